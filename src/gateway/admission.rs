//! What happens to a grab before it goes to Redis: most taps of a rain are answered here.
//!
//! A local answer must be one that Redis would give (promises P2 and P7). `Won` and `Closed` are final. `SOLD_OUT` is answered here only if Redis said
//! *nothing* when the rain was sold out already, and its record has not changed since: until a top-up nobody wins. *Empty* is remembered with the gate's epoch for a short while
//! (`gateway.empty_memory_ms`): packets that were moved in meanwhile are missed for so long at most, and `MISSED` never ends anybody's
//! tapping. A session that does not know its user's outcome always asks, even when the rain is over: its user may have won and lost the reply.

use std::rc::Rc;
use std::sync::Arc;

use super::edge;
use super::lane::{Waiting, bucket_for};
use super::rains::RainView;
use super::session::Session;
use super::worker::Worker;
use crate::clock::now_ms;
use crate::rain::{Packet, RainId, State};
use crate::wire::{Grab, Outcome};

/// Clocks of gateway and node may differ by this much: a tap this close to the opening is the node's to decide, ms.
const CLOCK_SLACK_MS: i64 = 500;

/// What a session knows of its user's outcome in a rain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembered {
    Won(Packet),
    /// The gate was closed and the user had no packet.
    Closed,
    /// The rain was known to be sold out, in this version, when Redis said that the user had no packet.
    SoldOut {
        version: i64,
    },
    /// The bucket was empty in this epoch and the user had no packet.
    Empty {
        epoch: u64,
    },
}

pub fn grab(worker: &Rc<Worker>, session: &Rc<Session>, request_id: u64, asked: Grab) {
    let refused =
        |outcome| worker.reply_grab_raw(session, request_id, asked.rain_id, outcome, None, 0);
    let Ok(id) = RainId::new(asked.rain_id) else {
        return refused(Outcome::NoSuchRain);
    };
    let named = match edge::named(session, asked.user) {
        Ok(named) => named,
        Err(outcome) => return refused(outcome),
    };
    if !session.may_ask(worker) || worker.draining() {
        return worker.reply_grab(session, request_id, id, Outcome::Busy, None);
    }
    match worker.rains.get(id) {
        Some(rain) => admit(worker, session, named, request_id, &rain),
        None => look_up(worker, session, named, request_id, id),
    }
}

/// `named`: whom an edge session grabs for.
fn admit(
    worker: &Rc<Worker>,
    session: &Rc<Session>,
    named: Option<String>,
    request_id: u64,
    rain: &Arc<RainView>,
) {
    let id = rain.snapshot.rain;
    let grab = Waiting::new(session, named, request_id);
    let bucket = bucket_for(rain, grab.user());
    match local_answer(session, rain, bucket) {
        Some((outcome, packet)) => worker.reply_grab(session, request_id, id, outcome, packet),
        None => {
            let lane = worker.lane(&rain.buckets[bucket], rain.snapshot.durability);
            session.in_flight.set(session.in_flight.get() + 1);
            worker.in_flight.set(worker.in_flight.get() + 1);
            if let Err(grab) = lane.push(rain, bucket, grab) {
                worker.reply_grab(session, request_id, id, Outcome::Busy, None);
                grab.session.finished(worker);
            }
        }
    }
}

fn local_answer(
    session: &Session,
    rain: &RainView,
    bucket: usize,
) -> Option<(Outcome, Option<Packet>)> {
    let now = now_ms();
    match session.remembered(rain.snapshot.rain) {
        Some(Remembered::Won(packet)) => return Some((Outcome::AlreadyWon, Some(packet))),
        Some(Remembered::Closed) => return Some((Outcome::Closed, None)),
        // In a later version it may be sold out once more: the user may have won what came in between.
        Some(Remembered::SoldOut { version })
            if rain.snapshot.sold_out && rain.snapshot.version == version =>
        {
            return Some((Outcome::SoldOut, None));
        }
        // A rain that is sold out since then is asked once more: the user may have won elsewhere before it was.
        Some(Remembered::Empty { epoch })
            if !rain.snapshot.sold_out && rain.buckets[bucket].still_empty(epoch, now as u64) =>
        {
            return Some((Outcome::Missed, None));
        }
        Some(Remembered::SoldOut { .. } | Remembered::Empty { .. }) | None => {}
    }
    let early = match (rain.snapshot.state, rain.snapshot.opens_at_ms) {
        (State::Created | State::Ready, Some(opens)) => now + CLOCK_SLACK_MS < opens,
        (State::Created | State::Ready, None) => true,
        (State::Open | State::Paused | State::Closed | State::Refunded | State::Finished, _) => {
            false
        }
    };
    early.then_some((Outcome::NotOpen, None))
}

/// A rain that this gateway has not heard of yet: one read tells whether it exists.
fn look_up(
    worker: &Rc<Worker>,
    session: &Rc<Session>,
    named: Option<String>,
    request_id: u64,
    id: RainId,
) {
    if worker.known_missing(id) {
        return worker.reply_grab(session, request_id, id, Outcome::NoSuchRain, None);
    }
    let Some(turn) = worker.look_up_turn() else {
        return worker.reply_grab(session, request_id, id, Outcome::Busy, None);
    };
    let (worker, session) = (worker.clone(), session.clone());
    session.in_flight.set(session.in_flight.get() + 1);
    worker.in_flight.set(worker.in_flight.get() + 1);
    tokio::task::spawn_local(async move {
        let _turn = turn;
        match worker.rains.find(id).await {
            Ok(Some(rain)) => admit(&worker, &session, named, request_id, &rain),
            Ok(None) => {
                worker.remember_missing(id);
                worker.reply_grab(&session, request_id, id, Outcome::NoSuchRain, None);
            }
            Err(_) => worker.reply_grab(&session, request_id, id, Outcome::Retry, None),
        }
        session.finished(&worker);
        worker.flush_dirty();
    });
}
