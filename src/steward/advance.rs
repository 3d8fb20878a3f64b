//! The next step of one rain. See the diagram at [`State`].

use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};

use super::load::{Load, Missing};
use super::{Steward, StewardError};
use crate::clock::now_ms;
use crate::rain::{Rain, State, Step};
use crate::store::StoreError;
use crate::store::bucket::{Census, GateAnswer, Shut};
use crate::store::directory::{Progress, Snapshot};
use crate::trace::Span;

/// How long what a node was told is taken to stand: after that it is told again, in case the node has forgotten.
const APPLIED_FOR: Duration = Duration::from_secs(1);
/// After an audit that did not balance, how long until the next.
const AUDIT_AGAIN: Duration = Duration::from_secs(60);

impl Steward {
    /// Takes the step that the rain's record asks for, if any. Taking it twice changes nothing.
    pub async fn advance(&self, rain: Rain) -> Result<(), StewardError> {
        match rain.state {
            State::Created => {
                // Known to the gateways from the beginning: whoever taps now is early, not wrong.
                self.publish(&rain).await?;
                let loading = self.load(&rain, Missing::All);
                match Span::of_rain("steward.load", rain.id, loading).await? {
                    Load::Done | Load::Slice => {}
                    Load::Shut => return self.called_off(&rain).await,
                }
                crate::crash::point("load.done");
                // Those that are known here: a top-up may have come meanwhile.
                let parts = rain.parts.count();
                let rain = self.ledger.loaded(rain.id, parts).await?;
                crate::crash::point("load.recorded");
                if rain.state.is_closed() {
                    return Ok(());
                }
                tracing::info!(rain = %rain.id, packets = rain.parts.loaded_packets(), "rain loaded");
                self.apply(&rain).await
            }
            State::Ready => {
                // A node that is away keeps the others from nothing: its part of the error is reported at the end.
                let applied = self.apply(&rain).await;
                let topped_up = self.load_top_ups(&rain).await;
                // The gates open by the nodes' clocks; this only records it.
                if self.has_passed(rain.window.opens_at_ms).await? {
                    let opening = async {
                        let rain = self.ledger.step(rain.id, Step::Open).await?;
                        self.apply(&rain).await
                    };
                    Span::of_rain("steward.open", rain.id, opening).await?;
                }
                applied.and(topped_up)
            }
            State::Open | State::Paused => {
                if self.has_passed(rain.window.closes_at_ms()).await? {
                    let rain = self.ledger.step(rain.id, Step::Close).await?;
                    return self.shut(&rain).await;
                }
                // A node that is away keeps the others from nothing: its part of the error is reported at the end.
                let applied = self.apply(&rain).await;
                if rain.sold_out {
                    return applied;
                }
                let topped_up = self.load_top_ups(&rain).await;
                let balanced = self.balance(&rain).await;
                applied.and(topped_up).and(balanced)?;
                let census = self.census(&rain).await?;
                self.tell_progress(&rain, &census).await;
                if is_sold_out(&rain, &census) {
                    let rain = self.sold_out(&rain).await?;
                    if rain.sold_out && !rain.state.is_closed() {
                        self.apply(&rain).await?;
                    }
                }
                Ok(())
            }
            State::Closed => {
                self.shut(&rain).await?;
                let rain = self.sold_out_at_last(rain).await?;
                self.refund_when_due(&rain).await
            }
            State::Refunded => {
                // Shut again and again, as long as the keys are there: a node may have forgotten, and nothing is left to win.
                self.shut(&rain).await?;
                self.finish_when_settled(&rain).await
            }
            State::Finished => Ok(()),
        }
    }

    /// Loads a slice of what was added since the rain was loaded. Before it, the record that is not sold out any more was published: gateways
    /// let grabs through before the packets are there, never after.
    async fn load_top_ups(&self, rain: &Rain) -> Result<(), StewardError> {
        if rain.parts.are_loaded() {
            return Ok(());
        }
        // Told again: of what was told a moment ago nobody may have heard.
        self.store.publish(&Snapshot::of(rain)).await?;
        let loading = self.load(rain, Missing::TopUps);
        match Span::of_rain("steward.load", rain.id, loading).await? {
            Load::Slice => Ok(()),
            Load::Shut => self.called_off(rain).await,
            Load::Done => {
                crate::crash::point("top_up.loaded");
                let parts = rain.parts.count();
                let rain = self.ledger.loaded(rain.id, parts).await?;
                crate::crash::point("top_up.done");
                if rain.state.is_closed() {
                    return Ok(());
                }
                tracing::info!(rain = %rain.id, packets = rain.parts.loaded_packets(), "top-up loaded");
                self.apply(&rain).await
            }
        }
    }

    /// A load found the gates shut: the rain was closed meanwhile, or the gates are those of a rain that was.
    async fn called_off(&self, rain: &Rain) -> Result<(), StewardError> {
        if self.ledger.rain(rain.id).await?.state.is_closed() {
            return Ok(());
        }
        let problem = "its gates are shut, yet it was never closed";
        Err(fault(rain, problem.into()))
    }

    /// Whether an instant has passed by every node's clock. This machine's own only says when it is worth asking.
    async fn has_passed(&self, at_ms: Option<i64>) -> Result<bool, StewardError> {
        match at_ms {
            Some(at) if at <= now_ms() => Ok(self.store.earliest_clock_ms().await? >= at),
            Some(_) | None => Ok(false),
        }
    }

    /// Makes gates and snapshot say what the record says. Gates first: what is published must be true. A node that is away keeps no
    /// other from its part, and is told when it is back.
    async fn apply(&self, rain: &Rain) -> Result<(), StewardError> {
        if self.is_applied(rain) {
            return Ok(());
        }
        let weak = self.store.weaker_than(rain.durability).await;
        let (chunks, buckets) = (rain.parts.loaded_chunks(), self.store.buckets(rain));
        let gates = buckets.iter().map(|bucket| {
            // Where a win would not be safe enough nobody may win; the other nodes' users go on.
            let weak = weak
                .iter()
                .any(|(node, _)| *node == self.store.node_of(&bucket.tag));
            let paused = rain.state == State::Paused || weak;
            bucket.set_gate(chunks, paused, &rain.window, rain.version)
        });
        let answers = join_all(gates).await;
        self.store.publish(&Snapshot::of(rain)).await?;
        let lost = |answer: &Result<GateAnswer, _>| {
            matches!(answer, Ok(GateAnswer::NotLoaded | GateAnswer::Suspect))
        };
        if answers.iter().any(lost) {
            self.repair(rain).await?;
            return Ok(());
        }
        first_error(answers)?;
        self.tell_weak(rain, &weak);
        if weak.is_empty() {
            self.remember(rain.id, |applied| {
                applied.version = Some((rain.version, Instant::now()));
                applied.suspicion = None;
            });
        }
        Ok(())
    }

    /// Says once that a rain is paused where nodes are too weak for it, and once that it is not any more.
    fn tell_weak(&self, rain: &Rain, weak: &[(usize, String)]) {
        let (told, weak_nodes) = (self.applied(rain.id).weak_nodes, weak.len());
        if told == weak_nodes {
            return;
        }
        match weak.first() {
            Some((_, problem)) => {
                tracing::error!(rain = %rain.id, weak_nodes, problem, "a rain is paused where it would not be durable enough");
            }
            None => tracing::info!(rain = %rain.id, "a rain is durable enough everywhere again"),
        }
        self.remember(rain.id, |applied| applied.weak_nodes = weak_nodes);
    }

    fn is_applied(&self, rain: &Rain) -> bool {
        let applied = self.applied(rain.id).version;
        applied.is_some_and(|(version, at)| version == rain.version && at.elapsed() < APPLIED_FOR)
    }

    /// Shuts every gate for ever, then says so.
    async fn shut(&self, rain: &Rain) -> Result<(), StewardError> {
        if self.is_applied(rain) {
            return Ok(());
        }
        let told = self.applied(rain.id).version;
        let again = told.is_some_and(|(version, _)| version == rain.version);
        match again {
            true => self.shut_now(rain, again).await,
            false => Span::of_rain("steward.close", rain.id, self.shut_now(rain, again)).await,
        }
    }

    async fn shut_now(&self, rain: &Rain, again: bool) -> Result<(), StewardError> {
        let (buckets, chunks) = (self.store.buckets(rain), chunks_of(rain));
        let answers = join_all(buckets.iter().map(|bucket| bucket.close(chunks))).await;
        let suspect = |answer: &Result<Shut, _>| answer.as_ref().is_ok_and(|shut| shut.suspect);
        let suspect = answers.iter().any(suspect);
        // The others are shut all the same, and nobody is told so where one of them is suspect: a repair needs every node.
        first_error(answers)?;
        if suspect {
            self.repair(rain).await?;
        }
        if !again {
            tracing::info!(rain = %rain.id, "rain closed");
        }
        self.publish(rain).await
    }

    pub(super) async fn publish(&self, rain: &Rain) -> Result<(), StewardError> {
        if !self.is_applied(rain) {
            self.store.publish(&Snapshot::of(rain)).await?;
            self.remember(rain.id, |applied| {
                applied.version = Some((rain.version, Instant::now()))
            });
        }
        Ok(())
    }

    async fn sold_out(&self, rain: &Rain) -> Result<Rain, StewardError> {
        crate::crash::point("sold_out.seen");
        let recorded = self
            .ledger
            .set_sold_out_if(rain.id, rain.version, now_ms())
            .await?;
        Ok(recorded)
    }

    /// The last packets may go in the instant before the close, or while no steward is at work: then it is found out here. The gates are
    /// shut, so one look is enough.
    async fn sold_out_at_last(&self, rain: Rain) -> Result<Rain, StewardError> {
        if rain.sold_out || self.applied(rain.id).counted_after_close {
            return Ok(rain);
        }
        let census = self.census(&rain).await?;
        let rain = if is_sold_out(&rain, &census) {
            self.sold_out(&rain).await?
        } else {
            rain
        };
        self.remember(rain.id, |applied| applied.counted_after_close = true);
        Ok(rain)
    }

    async fn census(&self, rain: &Rain) -> Result<Census, StewardError> {
        let buckets = self.store.buckets(rain);
        let counts = try_join_all(buckets.iter().map(|bucket| bucket.census())).await?;
        Ok(counts.into_iter().fold(Census::default(), Census::plus))
    }

    /// Gateways show how many packets are left. Lost news are replaced by the next.
    async fn tell_progress(&self, rain: &Rain, census: &Census) {
        let interval = self.settings.progress_interval;
        let told = self.applied(rain.id).progress_at;
        let open = rain.state == State::Open;
        if !open || told.is_some_and(|at| at.elapsed() < interval) {
            return;
        }
        self.remember(rain.id, |applied| {
            applied.progress_at = Some(Instant::now())
        });
        let packets = rain.parts.packets();
        let won = u32::try_from(census.winners).unwrap_or(u32::MAX);
        let progress = Progress {
            rain: rain.id,
            packets,
            remaining: packets.saturating_sub(won),
        };
        if let Err(error) = self.store.publish_progress(progress).await {
            tracing::debug!(rain = %rain.id, %error, "the packets that are left cannot be told now");
        }
    }

    /// A refunded rain is finished when no claim is left in Redis and the audit balances. Its keys then expire.
    async fn finish_when_settled(&self, rain: &Rain) -> Result<(), StewardError> {
        self.publish(rain).await?;
        let census = self.census(rain).await?;
        if census.unsettled() > 0
            || census.dead > 0
            || self
                .applied(rain.id)
                .audit_after
                .is_some_and(|at| at > Instant::now())
        {
            return Ok(());
        }
        // Nobody repairs a rain that is finished: what is suspect now would stay so until its keys expire, and its users would be told to
        // come again all that time.
        let (buckets, chunks) = (self.store.buckets(rain), chunks_of(rain));
        let shut = try_join_all(buckets.iter().map(|bucket| bucket.close(chunks))).await?;
        if shut.iter().any(|shut| shut.suspect) {
            return Ok(());
        }
        let report = super::audit::audit(&self.store, &self.ledger, rain).await?;
        if !report.balanced {
            self.remember(rain.id, |applied| {
                applied.audit_after = Some(Instant::now() + AUDIT_AGAIN)
            });
            let problem = format!(
                "audit UNBALANCED with {} differences: its keys are kept",
                report.differences_total
            );
            return Err(fault(rain, problem));
        }
        if report.in_motion > 0 || report.dead_count > 0 {
            // The counts were taken one after the other: a claim that moved meanwhile is seen here.
            return Ok(());
        }
        // The record last: until it says finished, all of this is done again.
        let keep_ms = self.settings.keep_keys.as_millis() as u64;
        try_join_all(buckets.iter().map(|bucket| bucket.expire(keep_ms))).await?;
        crate::crash::point("finish.expired");
        self.store.unlist(rain.id, keep_ms).await?;
        crate::crash::point("finish.unlisted");
        self.ledger.step(rain.id, Step::Finish).await?;
        tracing::info!(rain = %rain.id, "rain finished: settled, refunded, audit balanced");
        Ok(())
    }
}

/// All packets were won, each from a pool that was there, those of top-ups that are not loaded yet among them. A pool that is missing
/// is not taken for one that is empty.
fn is_sold_out(rain: &Rain, census: &Census) -> bool {
    census.pool == 0 && census.winners == u64::from(rain.parts.packets())
}

/// How many chunks a bucket of the rain has at least; `None` if the rain was never loaded: then it has never been open.
pub(super) fn chunks_of(rain: &Rain) -> Option<u32> {
    let loaded = rain.parts.first().loaded;
    loaded.then(|| rain.parts.loaded_chunks())
}

pub(super) fn fault(rain: &Rain, problem: String) -> StewardError {
    StewardError::Rain {
        rain: rain.id,
        problem,
    }
}

/// All have been done; the first that failed is reported.
fn first_error<T>(answers: Vec<Result<T, StoreError>>) -> Result<(), StoreError> {
    answers
        .into_iter()
        .find_map(Result::err)
        .map_or(Ok(()), Err)
}
