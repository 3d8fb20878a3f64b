//! The risk service is asked about whoever watches a rain's room before the first tap: an answer that is there by then delays nobody, and the opening is
//! not the moment at which everybody is asked about.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use super::rains::Phase;
use super::session::Session;
use super::worker::{PUSH_SLICE, Worker};
use crate::clock::now_ms;
use crate::rain::RainId;
use crate::task;

/// How long to wait for room. Half of the default queue so often is more than a service answers.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// The session has come to watch the rain's room.
pub fn of_session(worker: &Worker, session: &Session, rain: RainId) {
    let user = session.user().filter(|_| session.edge().is_none());
    if let (Some(risk), Some(user)) = (&worker.risk, user)
        && risk.has_room_ahead()
    {
        risk.ask_ahead(rain, user.as_str());
    }
}

/// The rain has been announced to everyone who watches `room`. A large room is asked about as fast as the service answers, until the rain opens.
pub fn of_room(worker: &Rc<Worker>, rain: RainId, room: &Arc<str>) {
    if worker.risk.is_none() {
        return;
    }
    let (asking, room) = (worker.clone(), room.clone());
    tokio::task::spawn_local(async move {
        let _ = task::contained("ahead", ask(&asking, rain, &room)).await;
    });
}

async fn ask(worker: &Worker, rain: RainId, room: &str) {
    // One rain after the other: however many are announced, one list is held.
    let _turn = worker.ahead.lock().await;
    let Some(risk) = &worker.risk else { return };
    let announced = || {
        let view = worker.rains.get(rain);
        view.is_some_and(|view| view.phase(now_ms()) == Phase::Announced)
    };
    // Their numbers: who leaves meanwhile is not kept.
    let watching: Vec<u64> = (worker.rooms.watching(room).iter())
        .map(|session| session.id)
        .collect();
    for slice in watching.chunks(PUSH_SLICE) {
        for id in slice {
            while announced() && !risk.has_room_ahead() {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
            if let Some(session) = worker.session(*id) {
                of_session(worker, &session, rain);
            }
        }
        // Whoever taps now is asked about first.
        if !announced() {
            return;
        }
        tokio::task::yield_now().await;
    }
}
