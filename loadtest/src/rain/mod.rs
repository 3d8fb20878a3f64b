//! A whole life of a rain, seen from outside: fund, create, gather people, open, tap, settle, close, audit.
//!
//! Every wait has a limit and says what it waited for. Calls that may fail for a moment (a server that is being restarted) are repeated
//! within `--patience`; whoever is killed in the middle of a rain must not spoil the measurement of whether the rain survives it.

/// What was promised against what was seen.
pub mod checks;
/// From the command line to a run that can begin.
mod prepare;
/// What one session does.
pub mod session;
/// The figures of a run, brought together.
mod tally;

use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hongbao::client::admin::{AdminClient, AdminError, Audit, NewRain, Rain};
use hongbao::client::{Client, Login};
use hongbao::rain::split::Rule;
use hongbao::rain::{RainId, State};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::LoadError;
use crate::args::{Opens, RainArgs};
use crate::report::money;
use crate::show::{Show, View};
use hongbao::paint::thousands;

use session::{Crew, Step, Story};

/// Sessions that may be connecting at the same time: beyond that the ramp waits for the gateway.
const CONNECTING_MAX: u64 = 1_024;
/// The ramp starts sessions in steps of this length.
const RAMP_STEP: Duration = Duration::from_millis(10);
/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(50);
/// Between two questions to the admin API about something that is waited for.
const POLL: Duration = Duration::from_millis(200);
/// How long the first session may take.
const SCOUT_MAX: Duration = Duration::from_secs(15);
/// Added to the rain's own times for the deadline of a run.
const RUN_MAX: Duration = Duration::from_secs(300);

/// Returns whether every check held and the audit was balanced.
pub async fn run(args: RainArgs) -> Result<bool, LoadError> {
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
    let report = outcome?;
    if let Some(path) = &run.args.json {
        let json = serde_json::to_string_pretty(&report).expect("a report is plain data");
        crate::write_file(path, (json + "\n").as_bytes())?;
    }
    let summary = report.summary(run.show.paint_for_stdout());
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(summary.as_bytes()); // a closed pipe is no reason to report anything else than the result
    let _ = stdout.flush();
    Ok(report.is_good())
}

struct Run {
    args: RainArgs,
    admin: AdminClient,
    crew: Arc<Crew>,
    /// The first session of the run, which nobody taps in: whether there is a gateway that lets us in, and its clock.
    scout: Option<Client>,
    show: Show,
    people: JoinSet<Story>,
}

impl Run {
    async fn live(&mut self) -> Result<crate::report::Report, LoadError> {
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
        self.open(&rain).await?;
        self.fall(&rain).await?;
        let (rain, closed) = self.settle_and_close(rain).await?;
        let audit = self.audit(rain.id, closed).await?;
        self.show.view(View::working("reading the ledger"));
        let winners = self.admin.all_winners(rain.id).await;
        let winners = winners.map_err(admin("fetch the winners"))?;
        let stories = self.go_home().await;
        Ok(tally::tally(self, &rain, &stories, &winners, audit, closed))
    }

    fn headline(&self) -> Vec<String> {
        let args = &self.args;
        let people = thousands(args.sessions.into());
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

    // ---- before the rain ----

    /// One session before there are thousands: what is wrong is better said once.
    async fn scout(&mut self) -> Result<(), LoadError> {
        self.show.view(View::working("looking for the gateway"));
        let user = format!("load-{}-scout", self.crew.seed);
        let mut settings = (*self.crew.settings).clone();
        settings.first_session_ms = self.args.patience.min(SCOUT_MAX).as_millis() as u64;
        let login = Login::with_token(self.crew.signer.token(&user));
        match Client::connect(Arc::new(settings), login).await {
            Ok((client, _events)) => {
                self.scout = Some(client);
                Ok(())
            }
            Err(source) => Err(LoadError::Session { user, source }),
        }
    }

    /// The server's time, ms since 1970.
    fn now_ms(&self) -> i64 {
        let scout = self.scout.as_ref();
        scout.and_then(Client::server_now_ms).unwrap_or_default()
    }

    async fn fund(&self) -> Result<(), LoadError> {
        self.show.view(View::working("funding the sponsor"));
        let (sponsor, total) = (&self.args.sponsor, self.args.total);
        self.patiently("create the sponsor's account", async || {
            self.admin.create_sponsor(sponsor).await
        })
        .await?;
        let key = self.key();
        self.patiently("deposit the total", async || {
            self.admin.deposit(sponsor, total, &key).await
        })
        .await?;
        Ok(())
    }

    /// Names what is made in this run, so that a repeated call makes it once, and the same seed on another day makes it anew.
    fn key(&self) -> String {
        format!("load-{}-{}", self.crew.seed, self.now_ms())
    }

    async fn create(&self, opens_at_ms: Option<i64>) -> Result<Rain, LoadError> {
        self.show.view(View::working("creating the rain"));
        let args = &self.args;
        let new = NewRain {
            title: args.heading.clone(),
            room: self.crew.stage.borrow().room.clone(),
            sponsor: args.sponsor.clone(),
            rule: args.rule.clone(),
            total_cents: args.total,
            packets: args.packets,
            min_cents: args.min,
            max_cents: args.max,
            opens_at_ms,
            duration_ms: Some(args.duration.as_millis() as i64),
            durability: args.durability,
            buckets: args.buckets,
            refund_after_ms: None,
            key_required: false,
            announce_ms: None,
            key: Some(self.key()),
        };
        self.patiently("create the rain", async || {
            self.admin.create_rain(&new).await
        })
        .await
    }

    async fn ready(&self, rain: Rain) -> Result<Rain, LoadError> {
        let began = Instant::now();
        self.show
            .view(View::working("splitting and loading the packets"));
        let id = rain.id;
        let ready = |rain: &Rain| rain.state >= State::Ready;
        let rain = self.rain_until("the rain to be ready", id, ready).await?;
        let buckets = rain.buckets.unwrap_or(1);
        self.show.done(&format!(
            "rain {id}: {} red packets are hung up in {buckets} bucket{} ({:.1} s)",
            thousands(rain.packets.unwrap_or(self.args.packets).into()),
            if buckets == 1 { "" } else { "s" },
            began.elapsed().as_secs_f64(),
        ));
        Ok(rain)
    }

    async fn join(&self, id: RainId) -> Result<Rain, LoadError> {
        self.show.view(View::working("looking at the rain"));
        let rain = self.patiently("look at the rain", async || self.admin.rain(id).await);
        let rain = rain.await?;
        if rain.state.is_closed() {
            let state = rain.state;
            return Err(LoadError::Usage(format!(
                "rain {id} is {state}: it takes no more grabs"
            )));
        }
        let room = rain.room.clone();
        self.crew.stage.send_modify(|stage| stage.room = room);
        self.ready(rain).await
    }

    async fn gather(&mut self) -> Result<(), LoadError> {
        let began = Instant::now();
        let wanted = u64::from(self.args.sessions);
        self.show.view(View::Gathering {
            crew: self.crew.clone(),
            wanted,
        });
        let limit = self.args.patience
            + Duration::from_secs_f64(wanted as f64 / f64::from(self.args.connect_rate));
        let mut started = 0u64;
        loop {
            let here = self.crew.meter.gathered.load(Relaxed);
            if here >= wanted {
                break;
            }
            if let Some(Ok(story)) = self.people.try_join_next() {
                return Err(self.why_not(story));
            }
            if began.elapsed() > limit {
                return Err(LoadError::TimedOut {
                    what: "everybody to be connected",
                    waited_s: limit.as_secs(),
                    seen: format!("{here} of {wanted} sessions are ready"),
                });
            }
            let due = began.elapsed().as_secs_f64() * f64::from(self.args.connect_rate);
            let room = here + CONNECTING_MAX;
            while started < wanted.min(due as u64 + 1).min(room) {
                self.people
                    .spawn(session::run(self.crew.clone(), started as u32));
                started += 1;
            }
            sleep(RAMP_STEP).await;
        }
        let took = began.elapsed().as_secs_f64();
        self.show.done(&format!(
            "{} people are connected and watch ({took:.1} s, {} a second)",
            thousands(wanted),
            thousands((wanted as f64 / took) as u64),
        ));
        Ok(())
    }

    /// A session that ends while people gather was refused.
    fn why_not(&self, story: Story) -> LoadError {
        let gone = hongbao::client::ClientError::Closed;
        LoadError::Session {
            user: self.crew.user(story.number),
            source: story.ended.unwrap_or(gone),
        }
    }

    // ---- the rain ----

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
            sessions: self.args.sessions.into(),
        });
        let began = Instant::now();
        let duration = rain.duration_ms.map(Duration::from_millis);
        let limit = duration.unwrap_or(self.args.duration) + self.args.patience;
        let decided = || self.crew.meter.decided.load(Relaxed);
        let mut gone = None;
        while decided() < self.args.sessions.into() && began.elapsed() < limit {
            let won = self.crew.meter.winners.load(Relaxed);
            if won >= packets.into() {
                gone.get_or_insert(began.elapsed());
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
                "{} of {} packets were won in {:.1} s",
                thousands(won),
                thousands(packets.into()),
                began.elapsed().as_secs_f64()
            ),
        });
        Ok(())
    }

    // ---- after the rain ----

    /// Waits until every win is credited, then closes the rain and waits for the refund. Returns whether it is closed. What is not reached
    /// in time is no error here: the checks and the audit say what it means.
    async fn settle_and_close(&self, rain: Rain) -> Result<(Rain, bool), LoadError> {
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
        self.patiently("close the rain", async || self.admin.close_rain(id).await)
            .await?;
        let refunded = |rain: &Rain| rain.state >= State::Refunded;
        match self.rain_until("the refund", id, refunded).await {
            Ok(rain) => {
                self.show
                    .done("the rain is closed, what was left went back to its sponsor");
                Ok((rain, true))
            }
            Err(LoadError::TimedOut { waited_s, .. }) => {
                self.show.warn(&format!("no refund after {waited_s} s"));
                Ok((rain, true))
            }
            Err(error) => Err(error),
        }
    }

    /// A closed rain comes to rest by itself: an audit that still sees something in motion is asked again.
    async fn audit(&self, id: RainId, closed: bool) -> Result<Audit, LoadError> {
        self.show.view(View::working("auditing every packet"));
        let began = Instant::now();
        loop {
            let audit = self.patiently("audit the rain", async || self.admin.audit(id).await);
            let audit = audit.await?;
            let at_rest = audit.balanced && (audit.in_motion == 0 || !closed);
            if at_rest || began.elapsed() > self.args.patience.min(Duration::from_secs(10)) {
                return Ok(audit);
            }
            sleep(POLL).await;
        }
    }

    async fn go_home(&mut self) -> Vec<Story> {
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
                Err(error) if error.may_pass() && began.elapsed() < self.args.patience => {
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
        match timeout(self.args.patience, look).await {
            Ok(rain) => rain,
            Err(_) => Err(LoadError::TimedOut {
                what,
                waited_s: self.args.patience.as_secs(),
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
