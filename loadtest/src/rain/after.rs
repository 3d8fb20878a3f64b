use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hongbao::client::admin::{AdminError, Audit, Rain};
use hongbao::paint::thousands;
use hongbao::rain::{RainId, State};
use tokio::time::{Instant, sleep};

use super::session::{Step, Story};
use super::{POLL, Run};
use crate::LoadError;
use crate::show::View;

/// A closed rain comes to rest within this time.
const REST_MAX: Duration = Duration::from_secs(10);

impl Run {
    /// Waits until every win is credited, then closes the rain and waits for the refund. Returns whether it is closed. What is not reached
    /// in time is no error here: the checks and the audit say what it means.
    pub(super) async fn settle_and_close(&mut self, rain: Rain) -> Result<(Rain, bool), LoadError> {
        let id = rain.id;
        let won = self.crew.meter.winners.load(Relaxed);
        let began = Instant::now();
        let settled = |rain: &Rain| {
            let live = rain.live.unwrap_or_default();
            self.show.view(View::Settling {
                credited: live.credited_count,
                won: won.max(live.credited_count + live.claims_moving() + live.dead),
            });
            live.claims_moving() == 0 && live.credited_count + live.dead >= won
        };
        let rain = match self
            .rain_until("every win to be credited", id, settled)
            .await
        {
            Err(LoadError::TimedOut { waited_s, .. }) => {
                self.show
                    .warn(&format!("not every win is credited after {waited_s} s"));
                rain
            }
            other => {
                let rain = other?;
                let credited = rain.live.unwrap_or_default().credited_count;
                self.show.done(&format!(
                    "{} wins are credited ({:.1} s after the last tap)",
                    thousands(credited),
                    began.elapsed().as_secs_f64(),
                ));
                rain
            }
        };
        if self.args.hands_off {
            return Ok((rain, false));
        }
        self.show.view(View::working("closing the rain"));
        let close = self.patiently("close the rain", async || self.admin.close_rain(id).await);
        match close.await {
            Ok(_) => {}
            // It will not be closed as it is: what is wrong with it is a result, and the audit says more.
            Err(LoadError::Admin {
                source: AdminError::Problem { title, detail, .. },
                ..
            }) => {
                let why = format!("{title}: {detail}");
                self.show.warn(&why);
                self.stuck = Some(why);
                return Ok((rain, true));
            }
            Err(error) => return Err(error),
        }
        let refunded = |rain: &Rain| rain.state >= State::Refunded;
        match self.rain_until("the refund", id, refunded).await {
            Ok(rain) => {
                self.show
                    .done("the rain is closed, what was left went back to its sponsor");
                Ok((rain, true))
            }
            Err(LoadError::TimedOut { waited_s, .. }) => {
                let why = format!("no refund after {waited_s} s");
                self.show.warn(&why);
                self.stuck = Some(why);
                Ok((rain, true))
            }
            Err(error) => Err(error),
        }
    }

    /// A closed rain comes to rest by itself: an audit that still sees something in motion is asked again.
    pub(super) async fn audit(&self, id: RainId, closed: bool) -> Result<Audit, LoadError> {
        self.show.view(View::working("auditing every packet"));
        let began = Instant::now();
        loop {
            let audit = self.patiently("audit the rain", async || self.admin.audit(id).await);
            let audit = audit.await?;
            let at_rest = audit.balanced && (audit.in_motion == 0 || !closed);
            if at_rest || began.elapsed() > self.args.admin.patience.min(REST_MAX) {
                return Ok(audit);
            }
            sleep(POLL).await;
        }
    }

    pub(super) async fn go_home(&mut self) -> Vec<Story> {
        self.crew.stage.send_modify(|stage| stage.step = Step::Stop);
        let mut stories = Vec::with_capacity(self.people.len());
        while let Some(story) = self.people.join_next().await {
            match story {
                Ok(story) => stories.push(story),
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
        }
        stories.sort_unstable_by_key(|story| story.number);
        stories
    }
}
