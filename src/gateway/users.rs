//! Which sessions are a user's, in one worker.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use super::session::Session;
use crate::rain::UserId;

/// About 60 bytes a session: the id's text is shared with it, and nearly every user has one.
#[derive(Default)]
pub struct Users {
    sessions: RefCell<HashMap<UserId, Vec<Rc<Session>>>>,
}

impl Users {
    pub fn enter(&self, user: &UserId, session: &Rc<Session>) {
        let mut sessions = self.sessions.borrow_mut();
        let of_user = sessions.entry(user.clone()).or_default();
        of_user.reserve_exact(1);
        of_user.push(session.clone());
    }

    pub fn leave(&self, session: &Session) {
        let Some(user) = session.user().filter(|_| session.edge().is_none()) else {
            return;
        };
        let mut sessions = self.sessions.borrow_mut();
        if let Some(of_user) = sessions.get_mut(user) {
            of_user.retain(|other| other.id != session.id);
            if of_user.is_empty() {
                sessions.remove(user);
            }
        }
    }

    /// Sessions of a user that still take something; none costs no memory.
    pub fn sessions_of(&self, user: &UserId) -> Vec<Rc<Session>> {
        let sessions = self.sessions.borrow();
        let of_user = sessions.get(user).into_iter().flatten();
        of_user
            .filter(|session| session.closing_since().is_none())
            .cloned()
            .collect()
    }
}
