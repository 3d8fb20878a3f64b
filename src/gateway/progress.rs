//! How many packets are left, told to everyone who watches: a nicety, so it gives way to everything else.
//!
//! The steward at work on the rain counts and publishes; a worker pushes at most so often, and so few frames a second in all, that grabs do not feel it. A
//! session that has not taken its last frames is passed over, and a number that is the same as the last is not told again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::mpsc;

use super::rains::{Phase, Rains, Rank};
use super::rains::{Push, encode};
use super::worker::{PUSH_SLICE, Worker};
use crate::clock::now_ms;
use crate::rain::RainId;
use crate::store::directory::Progress;
use crate::wire::RainProgress;
use crate::wire::server_frame::Message;

/// What a worker told last of a rain.
pub struct Told {
    remaining: u32,
    next: Instant,
}

/// By rain; those of rains that are over go when there are more than so many.
pub type Tellings = HashMap<RainId, Told>;
const TELLINGS_MAX: usize = 1_024;

impl Rains {
    /// Hands on what a steward counted, as one frame for all.
    pub(super) fn tell_progress(&self, progress: Progress, workers: &[mpsc::Sender<Push>]) {
        let Some(view) = self.get(progress.rain) else {
            return;
        };
        let now = now_ms();
        if view.snapshot.sold_out || view.phase(now) != Phase::Open {
            return;
        }
        let frame: Bytes = encode(Message::RainProgress(RainProgress {
            rain_id: progress.rain.get(),
            room: view.snapshot.room.clone(),
            packets: progress.packets,
            remaining: progress.remaining,
            server_time_ms: now,
        }));
        let room: Arc<str> = view.snapshot.room.as_str().into();
        for worker in workers {
            // A busy worker does without.
            let _ = worker.try_send(Push {
                room: room.clone(),
                frame: frame.clone(),
                rank: Rank::Progress(progress),
            });
        }
    }
}

impl Worker {
    pub(super) async fn push_progress(&self, push: &Push, progress: Progress) {
        let now = Instant::now();
        let rate_max = self.settings.progress_per_second_max;
        {
            let mut tellings = self.tellings.borrow_mut();
            if let Some(told) = tellings.get(&progress.rain)
                && (now < told.next || told.remaining == progress.remaining)
            {
                return;
            }
            if tellings.len() >= TELLINGS_MAX {
                tellings.clear();
            }
            let watching = self.rooms.count(&push.room);
            if watching == 0 || rate_max == 0 {
                return;
            }
            let share = Duration::from_secs_f64(watching as f64 / rate_max as f64);
            let told = Told {
                remaining: progress.remaining,
                next: now + self.settings.progress_interval.max(share),
            };
            tellings.insert(progress.rain, told);
        }
        let watching = self.rooms.watching(&push.room);
        for slice in watching.chunks(PUSH_SLICE) {
            let mut told = 0;
            for session in slice.iter().filter(|session| !session.is_behind()) {
                session.send_bytes(self, &push.frame);
                told += 1;
            }
            crate::metrics::get().progress_pushes.increment(told);
            self.flush_dirty();
            tokio::task::yield_now().await;
        }
    }
}
