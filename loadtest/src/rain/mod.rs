//! A whole life of a rain, seen from outside: fund, create, gather people, open, tap, settle, close, audit.
//!
//! Every wait has a limit and says what it waited for. Calls that may fail for a moment (a server that is being restarted) are repeated
//! within `--patience`; whoever is killed in the middle of a rain must not spoil the measurement of whether the rain survives it.

/// Settled, closed, audited.
mod after;
/// Funded, created, and everybody there.
mod before;
/// What was promised against what was seen.
pub mod checks;
/// From the command line to a run that can begin.
mod prepare;
/// What one session does.
pub mod session;
/// The figures of a run, brought together.
mod tally;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use hongbao::client::Client;
use hongbao::client::admin::{AdminClient, AdminError, Rain};
use hongbao::rain::split::Rule;
use hongbao::rain::{RainId, State};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::LoadError;
use crate::Verdict;
use crate::args::{Opens, RainArgs};
use crate::output;
use crate::report::{Report, money};
use crate::show::{Show, View};
use hongbao::paint::thousands;

use session::{Crew, Step, Story};

/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(50);
/// Between two questions to the admin API about something that is waited for.
const POLL: Duration = Duration::from_millis(200);
/// Added to the rain's own times for the deadline of a run.
const RUN_MAX: Duration = Duration::from_secs(300);

pub async fn run(args: RainArgs) -> Result<Verdict, LoadError> {
    let whole = args
        .deadline
        .unwrap_or(args.duration + args.countdown + RUN_MAX);
    let mut run = Run::prepare(args)?;
    let outcome = tokio::select! {
        outcome = run.live() => outcome,
        () = sleep(whole) => Err(LoadError::TimedOut {
            what: "the whole run",
            waited_s: whole.as_secs(),
            seen: "it may be given longer with --deadline".to_owned(),
        }),
        _ = tokio::signal::ctrl_c() => Err(LoadError::Interrupted),
    };
    run.show.end().await;
    let mut report = outcome?;
    let output = &run.args.output;
    report.record.judge(&output.bounds);
    output::write(&report.record, &report.json(), output)?;
    output::print(&report.summary(output::paint_for_stdout()));
    Ok(report.verdict())
}

struct Run {
    args: RainArgs,
    admin: AdminClient,
    crew: Arc<Crew>,
    /// The first session of the run, which nobody taps in: whether there is a gateway that lets us in, and its clock.
    scout: Option<Client>,
    show: Show,
    people: JoinSet<Story>,
    /// Why the rain could not be closed, or its rest was not refunded.
    stuck: Option<String>,
}

impl Run {
    async fn live(&mut self) -> Result<Report, LoadError> {
        self.show.heading(&self.headline());
        self.scout().await?;
        let rain = match (self.args.rain, self.args.opens) {
            (Some(id), _) => self.join(id).await?,
            (None, Opens::Api) => {
                self.fund().await?;
                let rain = self.create(None).await?;
                self.ready(rain).await?
            }
            (None, Opens::Time) => {
                self.fund().await?;
                self.gather().await?;
                let opens_at_ms = self.now_ms() + self.args.countdown.as_millis() as i64;
                let rain = self.create(Some(opens_at_ms)).await?;
                self.ready(rain).await?
            }
        };
        self.crew
            .stage
            .send_modify(|stage| stage.rain = Some(rain.id));
        if self.people.is_empty() {
            self.gather().await?;
        }
        let began = SystemTime::now();
        let keeper = tokio::spawn({
            let (crew, slot) = (self.crew.clone(), self.slot());
            async move { crew.meter.keep_series(slot).await }
        });
        let fallen = async {
            self.open(&rain).await?;
            self.fall(&rain).await
        };
        let fallen = fallen.await;
        keeper.abort();
        fallen?;
        let (series, marks) = self.crew.meter.series(self.slot());
        let (rain, closed) = self.settle_and_close(rain).await?;
        let audit = self.audit(rain.id, closed).await?;
        self.show.view(View::working("reading the ledger"));
        let winners = self.admin.all_winners(rain.id).await;
        let winners = winners.map_err(admin("fetch the winners"))?;
        let stories = self.go_home().await;
        let mut report = tally::tally(self, &rain, &stories, &winners, audit, closed);
        (report.record.series, report.record.marks) = (series, marks);
        report.record.began = Some(began);
        Ok(report)
    }

    /// Of the time series.
    fn slot(&self) -> Duration {
        let length = self.args.countdown + self.args.duration;
        Duration::from_millis(crate::scenario::slot_ms(length))
    }

    fn headline(&self) -> Vec<String> {
        let args = &self.args;
        let people = thousands(args.people.sessions.into());
        let rain = match args.rain {
            Some(id) => format!("rain {id}"),
            None => format!(
                "{} packets worth {}, split by {}",
                thousands(args.packets.into()),
                money(args.total),
                rule_name(&args.rule),
            ),
        };
        vec![
            args.heading.clone(),
            format!("{rain}, {people} people, seed {}", self.crew.seed),
        ]
    }

    async fn open(&self, rain: &Rain) -> Result<(), LoadError> {
        let id = rain.id;
        let by_us =
            rain.opens_at_ms.is_none() && rain.state == State::Ready && !self.args.hands_off;
        let wait = match rain.opens_at_ms {
            Some(at_ms) => Duration::from_millis(at_ms.saturating_sub(self.now_ms()).max(0) as u64),
            None if by_us => self.args.countdown,
            None => Duration::ZERO,
        };
        self.crew
            .stage
            .send_modify(|stage| stage.step = Step::Countdown);
        let opens = Instant::now() + wait;
        self.show.view(match wait.is_zero() {
            true => View::working("waiting for the rain to open"),
            false => View::Countdown { opens },
        });
        sleep(wait).await;
        if by_us {
            self.patiently("open the rain", async || self.admin.open_rain(id).await)
                .await?;
        } else {
            let open = |rain: &Rain| rain.state >= State::Open;
            self.rain_until("the rain to open", id, open).await?;
        }
        self.crew.meter.mark("opened");
        Ok(())
    }

    /// Until everybody has a final outcome, or the rain is long over.
    async fn fall(&self, rain: &Rain) -> Result<(), LoadError> {
        self.crew
            .stage
            .send_modify(|stage| stage.step = Step::Falling);
        let packets = rain.packets.unwrap_or(self.args.packets);
        self.show.view(View::Falling {
            crew: self.crew.clone(),
            packets: packets.into(),
            sessions: self.args.people.sessions.into(),
        });
        let began = Instant::now();
        let duration = rain.duration_ms.map(Duration::from_millis);
        let limit = duration.unwrap_or(self.args.duration) + self.args.admin.patience;
        let decided = || self.crew.meter.decided.load(Relaxed);
        let mut gone = None;
        while decided() < self.args.people.sessions.into() && began.elapsed() < limit {
            let won = self.crew.meter.winners.load(Relaxed);
            if won >= packets.into() && gone.is_none() {
                gone = Some(began.elapsed());
                self.crew.meter.mark("all won");
            }
            sleep(LOOK).await;
        }
        let won = self.crew.meter.winners.load(Relaxed);
        self.show.done(&match gone {
            Some(gone) => format!(
                "all {} packets were gone {:.1} s after the opening",
                thousands(won),
                gone.as_secs_f64()
            ),
            None => format!(
                "{} of {} packets were seen to be won in {:.1} s",
                thousands(won),
                thousands(packets.into()),
                began.elapsed().as_secs_f64()
            ),
        });
        Ok(())
    }

    // ---- waiting ----

    /// Repeats a call that may be repeated while the server cannot answer it, for `--patience`.
    async fn patiently<T>(
        &self,
        doing: &'static str,
        call: impl AsyncFn() -> Result<T, AdminError>,
    ) -> Result<T, LoadError> {
        let began = Instant::now();
        loop {
            match call().await {
                Err(error) if error.may_pass() && began.elapsed() < self.args.admin.patience => {
                    sleep(POLL).await;
                }
                other => return other.map_err(admin(doing)),
            }
        }
    }

    /// Asks for the rain until it is as wanted.
    async fn rain_until(
        &self,
        what: &'static str,
        id: RainId,
        wanted: impl Fn(&Rain) -> bool,
    ) -> Result<Rain, LoadError> {
        let mut seen = "no answer yet".to_owned();
        let look = async {
            loop {
                let rain = self.patiently("look at the rain", async || self.admin.rain(id).await);
                match rain.await {
                    Ok(rain) if wanted(&rain) => return Ok(rain),
                    Ok(rain) => seen = format!("the rain is {}, {:?}", rain.state, rain.live),
                    Err(error) => return Err(error),
                }
                sleep(POLL).await;
            }
        };
        match timeout(self.args.admin.patience, look).await {
            Ok(rain) => rain,
            Err(_) => Err(LoadError::TimedOut {
                what,
                waited_s: self.args.admin.patience.as_secs(),
                seen,
            }),
        }
    }
}

fn rule_name(rule: &Rule) -> String {
    match rule {
        Rule::Even => "even".to_owned(),
        Rule::DoubleMean => "double_mean".to_owned(),
        Rule::LineCut => "line_cut".to_owned(),
        Rule::Tiers(tiers) => format!("a prize table of {} rows", tiers.len()),
    }
}

fn admin(doing: &'static str) -> impl FnOnce(AdminError) -> LoadError {
    move |source| LoadError::Admin { doing, source }
}
