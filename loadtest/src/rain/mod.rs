//! A whole life of a rain, seen from outside: fund, create, gather people, open, tap, settle, close, audit.
//!
//! Every wait has a limit and says what it waited for. Calls that may fail for a moment (a server that is being restarted) are repeated
//! within `--patience`; whoever is killed in the middle of a rain must not spoil the measurement of whether the rain survives it.

/// What was promised against what was seen.
pub mod checks;
/// What one session does.
pub mod session;
/// Gathering the figures of a run.
mod tally;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::Write as _;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hongbao::client::admin::{AdminClient, AdminError, Audit, NewRain, Rain};
use hongbao::client::{BackoffBounds, Settings};
use hongbao::rain::split::Rule;
use hongbao::rain::{RainId, State};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::LoadError;
use crate::args::{Opens, RainArgs};
use crate::human::Temper;
use crate::meter::Meter;
use crate::report::money;
use crate::show::{Show, View, paint::thousands};
use crate::tokens::{Signer, read_text};

use session::{Crew, Stage, Step, Story};

/// Sessions that may be connecting at the same time: beyond that the ramp waits for the gateway.
const CONNECTING_MAX: u64 = 1_024;
/// The ramp starts sessions in steps of this length.
const RAMP_STEP: Duration = Duration::from_millis(10);
/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(50);
/// Between two questions to the admin API about something that is waited for.
const POLL: Duration = Duration::from_millis(200);
/// Sessions per loopback address, and addresses at most.
const SESSIONS_PER_SOURCE: u32 = 200;
const SOURCES_MAX: u32 = 250;
/// Descriptors beside those of the sessions.
const SPARE_DESCRIPTORS: u64 = 100;
/// Added to the rain's own times for the deadline of a run.
const RUN_MAX: Duration = Duration::from_secs(300);

/// Returns whether every check held and the audit was balanced.
pub async fn run(args: RainArgs) -> Result<bool, LoadError> {
    let whole = args
        .deadline
        .unwrap_or(args.duration + args.countdown + RUN_MAX);
    let show = Show::start(args.quiet);
    let mut run = Run::prepare(args, show.clone())?;
    let outcome = tokio::select! {
        outcome = run.live() => outcome,
        () = sleep(whole) => Err(LoadError::TimedOut {
            what: "the whole run",
            waited_s: whole.as_secs(),
            seen: "it may be given longer with --deadline".to_owned(),
        }),
        _ = tokio::signal::ctrl_c() => Err(LoadError::Interrupted),
    };
    show.end().await;
    let report = outcome?;
    if let Some(path) = &run.args.json {
        let json = serde_json::to_string_pretty(&report).expect("a report is plain data");
        std::fs::write(path, json + "\n").map_err(|source| LoadError::Unwritable {
            path: path.clone(),
            source,
        })?;
    }
    let summary = report.summary(show.paint_for_stdout());
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(summary.as_bytes()); // a closed pipe is no reason to report anything else than the result
    let _ = stdout.flush();
    Ok(report.is_good())
}

struct Run {
    args: RainArgs,
    admin: AdminClient,
    crew: Arc<Crew>,
    show: Show,
    people: JoinSet<Story>,
}

impl Run {
    fn prepare(args: RainArgs, show: Show) -> Result<Run, LoadError> {
        let key = match (&args.api_key_file, &args.api_key) {
            (Some(file), _) => read_text(file)?,
            (None, Some(key)) => key.clone(),
            (None, None) => {
                return Err(LoadError::Usage(
                    "no admin API key: give --api-key-file or set HONGBAO_API_KEY".to_owned(),
                ));
            }
        };
        let admin = AdminClient::new(&args.admin, &key)
            .map_err(|error| LoadError::Usage(error.to_string()))?;
        let sessions = u64::from(args.sessions);
        let descriptors = rlimit::increase_nofile_limit(u64::MAX).unwrap_or(u64::MAX);
        if descriptors < sessions + SPARE_DESCRIPTORS {
            return Err(LoadError::Usage(format!(
                "{sessions} sessions need more than the {descriptors} descriptors that this process may open (ulimit -n)"
            )));
        }
        // Small enough to be typed again.
        let drawn = RandomState::new().hash_one(SystemTime::now()) % 1_000_000_000;
        let seed = args.seed.unwrap_or(drawn);
        let mut settings = Settings::new(args.gateways.clone());
        settings.connect_ms = 10_000;
        settings.hello_ms = 10_000;
        settings.reconnect = BackoffBounds {
            first_ms: 200,
            max_ms: 2_000,
        };
        let crew = Crew {
            sources: sources(&args)?,
            settings: Arc::new(settings),
            signer: Signer::from_file(&args.token_secret_file, &args.token_kid)?,
            meter: Meter::new(),
            temper: Temper {
                reaction: args.reaction,
                rain: args.duration,
                countdown: args.countdown,
                reconnecting: args.reconnecting,
                doubting: args.doubting,
                eager: args.eager,
            },
            seed,
            stage: watch::Sender::new(Stage {
                step: Step::Gather,
                rain: None,
                room: format!("load-{seed}"),
            }),
        };
        Ok(Run {
            args,
            admin,
            crew: Arc::new(crew),
            show,
            people: JoinSet::new(),
        })
    }

    async fn live(&mut self) -> Result<crate::report::Report, LoadError> {
        self.show.heading(&self.headline());
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
                let opens_at_ms = now_ms() + self.args.countdown.as_millis() as i64;
                self.create(Some(opens_at_ms)).await?
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

    async fn fund(&self) -> Result<(), LoadError> {
        self.show.view(View::working("funding the sponsor"));
        let (sponsor, total) = (&self.args.sponsor, self.args.total);
        self.patiently("create the sponsor's account", async || {
            self.admin.create_sponsor(sponsor).await
        })
        .await?;
        let key = format!("load-{}-{}", self.crew.seed, now_ms());
        self.patiently("deposit the total", async || {
            self.admin.deposit(sponsor, total, &key).await
        })
        .await?;
        Ok(())
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
            key: None,
        };
        // Not repeated: a second one would be a second rain.
        let rain = self.admin.create_rain(&new).await;
        rain.map_err(admin("create the rain"))
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
            thousands(self.args.packets.into()),
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
            Some(at_ms) => Duration::from_millis(at_ms.saturating_sub(now_ms()).max(0) as u64),
            None if by_us => self.args.countdown,
            None => Duration::ZERO,
        };
        self.crew
            .stage
            .send_modify(|stage| stage.step = Step::Countdown);
        let opens = Instant::now() + wait;
        self.show.view(View::Countdown { opens });
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
        let limit = self.args.duration + self.args.patience;
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

/// How many loopback addresses to connect from: none of our choosing when a gateway is elsewhere.
fn sources(args: &RainArgs) -> Result<u32, LoadError> {
    for gateway in &args.gateways {
        let resolved = gateway.to_socket_addrs().map_err(|error| {
            LoadError::Usage(format!(
                "\"{gateway}\" is no gateway address (host:port): {error}"
            ))
        })?;
        if !resolved
            .into_iter()
            .all(|at| at.is_ipv4() && at.ip().is_loopback())
        {
            return Ok(0);
        }
    }
    Ok(match args.source_addresses {
        0 => args
            .sessions
            .div_ceil(SESSIONS_PER_SOURCE)
            .clamp(1, SOURCES_MAX),
        chosen => chosen,
    })
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

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default().as_millis() as i64
}
