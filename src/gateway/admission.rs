//! What happens to a grab before it goes to Redis: most taps of a rain are answered here.
//!
//! A local answer must be one that Redis would give (promises P2 and P7). `Won` and `Closed` are final. `SOLD_OUT` is answered here only if Redis said
//! *nothing* when the rain was sold out already, and its record has not changed since: until a top-up nobody wins. *Empty* is remembered with the gate's epoch for a short while
//! (`gateway.empty_memory_ms`): packets that were moved in meanwhile are missed for so long at most, and `MISSED` never ends anybody's
//! tapping. A session that does not know its user's outcome always asks, even when the rain is over: its user may have won and lost the reply.

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;

use super::edge;
use super::errand;
use super::lane::{Waiting, bucket_for};
use super::rains::{Phase, RainView};
use super::risk::{Asked as AskedRisk, Verdict};
use super::session::Session;
use super::worker::Worker;
use crate::clock::now_ms;
use crate::rain::{Packet, RainId, State};
use crate::store::grab::Doubt;
use crate::wire::{Grab, Outcome};

/// Clocks of gateway and node may differ by this much: a tap this close to the opening is the node's to decide, ms.
const CLOCK_SLACK_MS: i64 = 500;

/// What a session knows of its user's outcome in a rain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembered {
    Won(Packet),
    /// The gate was closed and the user had no packet.
    Closed,
    /// The risk service does not let the user win, and the user had no packet.
    Barred,
    /// The rain was known to be sold out, in this version, when Redis said that the user had no packet.
    SoldOut {
        version: i64,
    },
    /// The bucket was empty in this epoch and the user had no packet.
    Empty {
        epoch: u64,
    },
}

impl Remembered {
    /// Nothing that happens in this rain changes it.
    pub fn is_final(self) -> bool {
        match self {
            Remembered::Won(_) | Remembered::Closed | Remembered::Barred => true,
            Remembered::SoldOut { .. } | Remembered::Empty { .. } => false,
        }
    }
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
    let cooling_ms = worker.cooling_ms(session);
    if cooling_ms > 0 && session.remembered(id).is_none() {
        return worker.cool_down(session, request_id, id, cooling_ms);
    }
    let asked = Asked {
        named,
        key: asked.key,
        request_id,
    };
    match worker.rains.get(id) {
        Some(rain) => admit(worker, session, asked, &rain),
        None => look_up(worker, session, asked, id),
    }
}

/// A grab that has been looked at.
struct Asked {
    /// Whom an edge session grabs for.
    named: Option<String>,
    key: Bytes,
    request_id: u64,
}

fn admit(worker: &Rc<Worker>, session: &Rc<Session>, asked: Asked, rain: &Arc<RainView>) {
    let id = rain.snapshot.rain;
    let request_id = asked.request_id;
    let own = || session.user().map_or("", |user| user.as_str());
    let bucket = bucket_for(rain, asked.named.as_deref().unwrap_or_else(own));
    match local_answer(session, rain, bucket) {
        Some((outcome, packet)) => {
            if outcome == Outcome::NotOpen {
                worker.tapped_early(session, rain);
            }
            worker.reply_grab(session, request_id, id, outcome, packet);
        }
        None => {
            let grab = Waiting::new(session, asked.named, request_id);
            match has_key(rain, &asked.key) {
                true => check(worker, session, rain, bucket, grab),
                false => without_key(worker, session, rain, bucket, grab),
            }
        }
    }
}

/// A grab that can win nothing. Before the opening nobody can have the key; from then on the node tells what the user has won: a lost reply is found
/// by a client that has lost the key, too. A session may ask so once in a while, so that taps without a key stay cheap.
fn without_key(
    worker: &Rc<Worker>,
    session: &Rc<Session>,
    rain: &Arc<RainView>,
    bucket: usize,
    mut grab: Waiting,
) {
    let outcome = if rain.phase(now_ms()) < Phase::Open {
        worker.tapped_early(session, rain);
        Outcome::NotOpen
    } else if session.may_ask_without_key(worker) {
        grab.doubt = Some(Doubt::Deny);
        grab.keyless = true;
        return enqueue(worker, rain, bucket, grab);
    } else {
        Outcome::Busy
    };
    worker.reply_grab(session, grab.request_id, rain.snapshot.rain, outcome, None);
}

/// Asks the risk service about a user whom it was not asked about in this rain.
fn check(
    worker: &Rc<Worker>,
    session: &Rc<Session>,
    rain: &Arc<RainView>,
    bucket: usize,
    mut grab: Waiting,
) {
    let Some(risk) = worker.risk.as_ref().filter(|_| !is_closed(rain)) else {
        return enqueue(worker, rain, bucket, grab);
    };
    let (id, request_id) = (rain.snapshot.rain, grab.request_id);
    let answer = match risk.ask(id, grab.user()) {
        AskedRisk::Verdict(verdict) => {
            grab.doubt = doubt(verdict);
            return enqueue(worker, rain, bucket, grab);
        }
        AskedRisk::NotNow if risk.fails_open() => return enqueue(worker, rain, bucket, grab),
        AskedRisk::NotNow | AskedRisk::UnderWay => {
            return worker.reply_grab(session, request_id, id, Outcome::Checking, None);
        }
        AskedRisk::Wait(answer) => answer,
    };
    let (asking, rain, risk) = (worker.clone(), rain.clone(), risk.clone());
    let check = async move {
        let answered = tokio::time::timeout(risk.wait_max(), answer).await;
        crate::crash::bug("risk");
        match answered {
            Ok(Ok(verdict)) => {
                grab.doubt = doubt(verdict);
                enqueue(&asking, &rain, bucket, grab);
            }
            Ok(Err(_)) | Err(_) if risk.fails_open() => enqueue(&asking, &rain, bucket, grab),
            Ok(Err(_)) | Err(_) => {
                asking.reply_grab(&grab.session, request_id, id, Outcome::Checking, None)
            }
        }
    };
    errand::run(worker, session, "risk", check, retry(request_id, id));
}

/// For a grab that came to nothing by a fault of ours: the repeat finds out.
fn retry(request_id: u64, rain: RainId) -> impl FnOnce(&Worker, &Rc<Session>) {
    move |worker, session| worker.reply_grab(session, request_id, rain, Outcome::Retry, None)
}

fn doubt(verdict: Verdict) -> Option<Doubt> {
    match verdict {
        Verdict::Allow => None,
        Verdict::Hold => Some(Doubt::Hold),
        Verdict::Deny => Some(Doubt::Deny),
    }
}

fn enqueue(worker: &Rc<Worker>, rain: &Arc<RainView>, bucket: usize, grab: Waiting) {
    let lane = worker.lane(&rain.buckets[bucket], rain.snapshot.durability);
    grab.session.begun(worker);
    if let Err(grab) = lane.push(rain, bucket, grab) {
        let (id, request_id) = (rain.snapshot.rain, grab.request_id);
        worker.reply_grab(&grab.session, request_id, id, Outcome::Busy, None);
        grab.session.finished(worker);
    }
}

/// Recorded as closed, after every node's clock: nobody can win.
fn is_closed(rain: &RainView) -> bool {
    match rain.snapshot.state {
        State::Created | State::Ready | State::Open | State::Paused => false,
        State::Closed | State::Refunded | State::Finished => true,
    }
}

/// Whoever is to win must have the rain's key.
fn has_key(rain: &RainView, key: &[u8]) -> bool {
    let needed = rain.snapshot.grab_key;
    needed.is_none_or(|needed| needed.opens_with(key))
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
        Some(Remembered::Barred) => return Some((Outcome::Barred, None)),
        // In a later version it may be sold out once more: the user may have won what came in between.
        Some(Remembered::SoldOut { version })
            if rain.is_sold_out(now) && rain.snapshot.version == version =>
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

/// A rain that this gateway has not heard of yet: its record, or the list, tells whether it exists.
fn look_up(worker: &Rc<Worker>, session: &Rc<Session>, asked: Asked, id: RainId) {
    let request_id = asked.request_id;
    if worker.known_missing(id) {
        return worker.reply_grab(session, request_id, id, Outcome::NoSuchRain, None);
    }
    let Some(turn) = worker.look_up_turn() else {
        return worker.reply_grab(session, request_id, id, Outcome::Busy, None);
    };
    let (looking, asking) = (worker.clone(), session.clone());
    let look = async move {
        let _turn = turn;
        let found = looking.rains.find(id).await;
        crate::crash::bug("look_up");
        let listed = match found {
            Ok(Some(rain)) => return admit(&looking, &asking, asked, &rain),
            Ok(None) => looking.store.is_listed(id).await,
            Err(error) => Err(error),
        };
        match listed {
            Ok(false) => {
                looking.remember_missing(id);
                looking.reply_grab(&asking, request_id, id, Outcome::NoSuchRain, None);
            }
            // Listed without a record: its node has lost it, or it is not written yet. The steward writes it again.
            Ok(true) | Err(_) => looking.reply_grab(&asking, request_id, id, Outcome::Retry, None),
        }
    };
    errand::run(worker, session, "look_up", look, retry(request_id, id));
}
