//! Requests that take more than a moment are carried out in a task of their own, beside their session.

use std::rc::Rc;

use super::session::Session;
use super::worker::Worker;
use crate::task;

/// Carries out `work` for `session`. Until it ends, in whatever way, it is one of the requests in flight. A panic in it is counted under `name` and
/// goes no further; the client, who waits for an answer, then gets the one of `after_panic`.
///
/// `work` answers last, or hands the request on last: otherwise there could be two answers.
pub fn run(
    worker: &Rc<Worker>,
    session: &Rc<Session>,
    name: &'static str,
    work: impl Future<Output = ()> + 'static,
    after_panic: impl FnOnce(&Worker, &Rc<Session>) + 'static,
) {
    let errand = Errand::begin(worker, session);
    tokio::task::spawn_local(async move {
        let Errand { worker, session } = &errand;
        if task::contained(name, work).await.is_err() {
            after_panic(worker, session);
        }
        worker.flush_dirty();
    });
}

/// One of the requests in flight, until it is dropped.
struct Errand {
    worker: Rc<Worker>,
    session: Rc<Session>,
}

impl Errand {
    fn begin(worker: &Rc<Worker>, session: &Rc<Session>) -> Errand {
        session.begun(worker);
        Errand {
            worker: worker.clone(),
            session: session.clone(),
        }
    }
}

impl Drop for Errand {
    fn drop(&mut self) {
        self.session.finished(&self.worker);
    }
}
