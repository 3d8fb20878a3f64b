//! Who watches which room, in one worker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::session::Session;

/// Sessions by their ids.
type Watching = HashMap<u64, Rc<Session>>;

#[derive(Default)]
pub struct Rooms {
    rooms: RefCell<HashMap<Rc<str>, Watching>>,
}

impl Rooms {
    /// The session watches `room` and no other; an empty name watches none.
    pub fn watch(&self, session: &Rc<Session>, room: &str) {
        self.leave(session);
        if room.is_empty() {
            return;
        }
        let mut rooms = self.rooms.borrow_mut();
        // All sessions of a room share its name's memory.
        let name = rooms
            .get_key_value(room)
            .map_or_else(|| Rc::from(room), |(name, _)| name.clone());
        rooms
            .entry(name.clone())
            .or_default()
            .insert(session.id, session.clone());
        *session.room.borrow_mut() = Some(name);
    }

    pub fn leave(&self, session: &Session) {
        let Some(room) = session.room.borrow_mut().take() else {
            return;
        };
        let mut rooms = self.rooms.borrow_mut();
        if let Some(watching) = rooms.get_mut(&room) {
            watching.remove(&session.id);
            if watching.is_empty() {
                rooms.remove(&room);
            }
        }
    }

    pub fn count(&self, room: &str) -> usize {
        self.rooms.borrow().get(room).map_or(0, HashMap::len)
    }

    pub fn watching(&self, room: &str) -> Vec<Rc<Session>> {
        self.rooms
            .borrow()
            .get(room)
            .map(|watching| watching.values().cloned().collect())
            .unwrap_or_default()
    }
}
