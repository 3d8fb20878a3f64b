//! An external risk service is asked about a user once in a rain: see `proto/risk.md`.
//!
//! The workers only look into a memory. Whoever is not in it is asked about in the background, many users in one request, and their grab waits for the
//! answer; a user who watches the rain's room is asked about before the first tap (see `ahead.rs`). When there is no answer, `risk.fail` decides, and
//! nothing is remembered. Full queue, full memory, and the pause after a failed request count as no answer, also for those who wait for their turn.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::http::{Request, header};
use bytes::Bytes;
use http_body_util::Full;
use serde::{Deserialize, Serialize};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config;
use crate::metrics;
use crate::post::{Poster, Trust, TrustError};
use crate::rain::{RainId, UserId};
use crate::task;

const SHARDS: usize = 64;
/// Of an answer: 12 bytes a verdict, and as much again for those who like blanks.
const ANSWER_MAX_PER_USER: usize = 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Allow,
    /// May win; a person looks before the money moves.
    Hold,
    /// Wins nothing.
    Deny,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    Verdict(Verdict),
    /// Somebody waits for the answer already. The time is ms since the start, in as few bytes as a verdict leaves free: it comes round in 49 days.
    Asking {
        since_ms: u32,
    },
}

/// What asking came to.
pub enum Asked {
    Verdict(Verdict),
    /// Told when the answer is there; dropped without a word when there is none.
    Wait(oneshot::Receiver<Verdict>),
    /// Somebody asked a moment ago and waits.
    UnderWay,
    /// There is no room, the service was found away a moment ago, or the answer should have been here by now.
    NotNow,
}

struct Question {
    rain: RainId,
    user: UserId,
    told: oneshot::Sender<Verdict>,
}

pub struct Risk {
    settings: config::Risk,
    questions: mpsc::Sender<Question>,
    memory: Memory,
    /// Until when nobody asks, ms since `started`.
    paused_until_ms: AtomicU64,
    started: Instant,
}

/// Verdicts by rain and a hash of the user. About 40 bytes each.
struct Memory {
    shards: Vec<Mutex<HashMap<(RainId, u64), Known>>>,
    hasher: RandomState,
    shard_max: usize,
}

impl Memory {
    fn key(&self, rain: RainId, user: &str) -> (usize, (RainId, u64)) {
        let hash = self.hasher.hash_one(user);
        (hash as usize % SHARDS, (rain, hash))
    }

    /// What is known; if nothing, that somebody asks now. `None`: no room. Somebody who taps makes room; whoever is asked about ahead does not.
    fn begin(&self, rain: RainId, user: &str, now_ms: u32, taps: bool) -> Option<Option<Known>> {
        let (shard, key) = self.key(rain, user);
        let mut shard = self.shards[shard].lock().expect("no panic under this lock");
        if let Some(known) = shard.get(&key) {
            return Some(Some(*known));
        }
        if shard.len() >= self.shard_max {
            // The oldest other rain is forgotten as a whole.
            let others = shard.keys().map(|(other, _)| *other);
            let oldest = others.filter(|other| taps && *other != rain).min()?;
            shard.retain(|(rain, _), _| *rain != oldest);
        }
        shard.insert(key, Known::Asking { since_ms: now_ms });
        Some(None)
    }

    fn put(&self, rain: RainId, user: &str, verdict: Option<Verdict>) {
        let (shard, key) = self.key(rain, user);
        let mut shard = self.shards[shard].lock().expect("no panic under this lock");
        match verdict {
            Some(verdict) => shard.insert(key, Known::Verdict(verdict)),
            None => shard.remove(&key),
        };
    }
}

#[derive(Serialize)]
struct Body<'a> {
    rain_id: RainId,
    users: Vec<&'a UserId>,
}

#[derive(Deserialize)]
struct Answer {
    verdicts: Vec<Verdict>,
}

#[derive(Debug, thiserror::Error)]
pub enum RiskError {
    #[error("risk.token_file {0}")]
    Token(String),
    #[error("risk.url: {0}")]
    Trust(#[from] TrustError),
}

impl Risk {
    /// Starts the desk that asks.
    pub fn start(
        settings: &config::Risk,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Result<Arc<Risk>, RiskError> {
        let token = match &settings.token_file {
            None => None,
            Some(path) => {
                let text = std::fs::read_to_string(path)
                    .map_err(|error| RiskError::Token(format!("{}: {error}", path.display())))?;
                Some(format!("Bearer {}", text.trim()))
            }
        };
        let trust = match settings.url.scheme_str() {
            Some("https") => Trust::System,
            _ => Trust::Nobody,
        };
        let poster = Arc::new(Poster::new(settings.timeout, &trust)?);
        let (sender, questions) = mpsc::channel(settings.queue_max);
        let questions = Arc::new(tokio::sync::Mutex::new(questions));
        let risk = Arc::new(Risk {
            memory: Memory {
                shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
                hasher: RandomState::new(),
                shard_max: settings.memory_max.div_ceil(SHARDS),
            },
            questions: sender,
            paused_until_ms: AtomicU64::new(0),
            started: Instant::now(),
            settings: settings.clone(),
        });
        for _ in 0..settings.concurrency_max {
            let desk = Desk {
                risk: risk.clone(),
                poster: poster.clone(),
                token: token.clone(),
                questions: questions.clone(),
            };
            let stop = stop.clone();
            task::spawn(tasks, "gateway.risk", async move {
                stop.run_until_cancelled(desk.run()).await;
            });
        }
        Ok(risk)
    }

    pub fn fails_open(&self) -> bool {
        self.settings.fails_open
    }

    /// How long a grab waits for an answer: its turn, and a request.
    pub fn wait_max(&self) -> Duration {
        self.settings.timeout * 2
    }

    /// On behalf of somebody who taps.
    pub fn ask(&self, rain: RainId, user: &str) -> Asked {
        self.ask_for(rain, user, true)
    }

    /// On behalf of somebody who may tap later: only for the memory.
    pub fn ask_ahead(&self, rain: RainId, user: &str) {
        let _ = self.ask_for(rain, user, false);
    }

    fn ask_for(&self, rain: RainId, user: &str, taps: bool) -> Asked {
        let full = || {
            metrics::get().risk_full.increment(1);
            Asked::NotNow
        };
        let now_ms = self.now_ms() as u32;
        match self.memory.begin(rain, user, now_ms, taps) {
            Some(Some(Known::Verdict(verdict))) => return Asked::Verdict(verdict),
            Some(Some(Known::Asking { since_ms })) => {
                // Asked ahead, nobody may be waiting whose time runs out: it runs out here.
                // Another worker may have looked at the clock later, and asked first.
                let asked = (now_ms.wrapping_sub(since_ms) as i32).max(0) as u64;
                let asked = Duration::from_millis(asked);
                return match self.is_paused() || asked > self.wait_max() {
                    true => Asked::NotNow,
                    false => Asked::UnderWay,
                };
            }
            Some(None) => {}
            None => return full(),
        }
        let give_up = |asked| {
            self.memory.put(rain, user, None);
            asked
        };
        if self.is_paused() {
            return give_up(Asked::NotNow);
        }
        let Ok(name) = UserId::new(user) else {
            return give_up(Asked::NotNow);
        };
        let (told, wait) = oneshot::channel();
        let question = Question {
            rain,
            user: name,
            told,
        };
        match self.questions.try_send(question) {
            Ok(()) => Asked::Wait(wait),
            Err(_) => give_up(full()),
        }
    }

    /// Whether there is room for a question whose answer nobody waits for. Half the queue is left to those who tap.
    pub fn has_room_ahead(&self) -> bool {
        !self.is_paused() && self.questions.capacity() > self.settings.queue_max / 2
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn is_paused(&self) -> bool {
        self.now_ms() < self.paused_until_ms.load(Ordering::Relaxed)
    }

    fn answered(&self, question: Question, verdict: Option<Verdict>) {
        let metrics = metrics::get();
        match verdict {
            Some(Verdict::Allow) => metrics.risk_allow.increment(1),
            Some(Verdict::Hold) => metrics.risk_hold.increment(1),
            Some(Verdict::Deny) => metrics.risk_deny.increment(1),
            None => metrics.risk_failed.increment(1),
        }
        let user = question.user.as_str();
        self.memory.put(question.rain, user, verdict);
        if let Some(verdict) = verdict {
            let _ = question.told.send(verdict); // its grab may have given up
        }
    }

    fn pause(&self, problem: &str) {
        let now_ms = self.now_ms();
        let until = now_ms + self.settings.pause.as_millis() as u64;
        // Said once for all requests that fail together.
        if self.paused_until_ms.fetch_max(until, Ordering::Relaxed) < now_ms {
            tracing::warn!(problem, "the risk service does not answer");
        }
    }
}

/// Takes what waits, asks, tells. Batches form while requests are under way.
struct Desk {
    risk: Arc<Risk>,
    poster: Arc<Poster>,
    token: Option<String>,
    questions: Arc<tokio::sync::Mutex<mpsc::Receiver<Question>>>,
}

impl Desk {
    async fn run(self) {
        let mut batch = vec![];
        loop {
            let most = self.risk.settings.batch_max;
            let taken = self
                .questions
                .lock()
                .await
                .recv_many(&mut batch, most)
                .await;
            if taken == 0 {
                return;
            }
            // One request is about one rain.
            batch.sort_by_key(|question: &Question| question.rain);
            while let Some(first) = batch.first() {
                let rain = first.rain;
                let end = batch.partition_point(|question| question.rain <= rain);
                let of_rain: Vec<Question> = batch.drain(..end).collect();
                self.ask(rain, of_rain).await;
            }
        }
    }

    async fn ask(&self, rain: RainId, questions: Vec<Question>) {
        // What was queued before the pause is not asked in it either: a service that hangs would hold up everyone, one request after the other.
        if self.risk.is_paused() {
            for question in questions {
                self.risk.answered(question, None);
            }
            return;
        }
        // A panic must not leave users as asked about for ever, nor this desk empty.
        let posted = task::contained("risk_desk", self.post(rain, &questions)).await;
        let verdicts = match posted.unwrap_or_else(|panicked| Err(panicked.to_string())) {
            Ok(verdicts) => verdicts.into_iter().map(Some).collect(),
            Err(problem) => {
                self.risk.pause(&problem);
                vec![None; questions.len()]
            }
        };
        for (question, verdict) in questions.into_iter().zip(verdicts) {
            self.risk.answered(question, verdict);
        }
    }

    async fn post(&self, rain: RainId, questions: &[Question]) -> Result<Vec<Verdict>, String> {
        crate::crash::bug("risk_desk");
        let body = Body {
            rain_id: rain,
            users: questions.iter().map(|question| &question.user).collect(),
        };
        let json = serde_json::to_vec(&body).expect("a question is plain data");
        let mut request =
            Request::post(&self.risk.settings.url).header(header::CONTENT_TYPE, "application/json");
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, token);
        }
        let request = request
            .body(Full::new(Bytes::from(json)))
            .map_err(|error| error.to_string())?;
        let answer_max = 1_024 + questions.len() * ANSWER_MAX_PER_USER;
        let posted = self.poster.post(request, answer_max).await;
        let (status, body) = posted.map_err(|error| error.to_string())?;
        if !status.is_success() {
            return Err(format!("it answers {}", status.as_u16()));
        }
        let answer: Answer = serde_json::from_slice(&body)
            .map_err(|error| format!("its answer cannot be read: {error}"))?;
        if answer.verdicts.len() != questions.len() {
            let (given, asked) = (answer.verdicts.len(), questions.len());
            return Err(format!("it gives {given} verdicts for {asked} users"));
        }
        Ok(answer.verdicts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_keeps_to_its_size_and_forgets_the_oldest_rain_first() {
        let memory = Memory {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            hasher: RandomState::new(),
            shard_max: 4,
        };
        let rain = |id| RainId::new(id).unwrap();
        let count = |rain| {
            let shards = memory.shards.iter();
            let of_rain = shards.map(|shard| {
                let shard = shard.lock().unwrap();
                shard.keys().filter(|(known, _)| *known == rain).count()
            });
            of_rain.sum::<usize>()
        };
        let fill = |rain, taps| {
            (0..10_000)
                .filter(|n| memory.begin(rain, &format!("u{n}"), 0, taps).is_some())
                .count()
        };
        let first = fill(rain(1), true);
        assert_eq!((first, count(rain(1))), (SHARDS * 4, SHARDS * 4));
        fill(rain(2), true);
        assert_eq!((count(rain(1)), count(rain(2))), (0, SHARDS * 4));
        // Who is asked about ahead pushes nothing out; a tap does, whichever rain is the older.
        assert_eq!(fill(rain(3), false), 0);
        assert_eq!((count(rain(2)), count(rain(3))), (SHARDS * 4, 0));
        fill(rain(1), true);
        assert_eq!((count(rain(1)), count(rain(2))), (SHARDS * 4, 0));
    }
}
