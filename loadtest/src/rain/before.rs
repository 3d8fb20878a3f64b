use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hongbao::client::admin::{NewRain, Rain};
use hongbao::client::{Client, ClientError, Login};
use hongbao::paint::thousands;
use hongbao::rain::{RainId, State};
use tokio::time::{Instant, sleep};

use super::Run;
use super::session::{self, Story};
use crate::LoadError;
use crate::show::View;

/// Sessions that may be connecting at the same time: beyond that the ramp waits for the gateway.
const CONNECTING_MAX: u64 = 1_024;
/// The ramp starts sessions in steps of this length.
const RAMP_STEP: Duration = Duration::from_millis(10);
/// How long the first session may take.
const SCOUT_MAX: Duration = Duration::from_secs(15);

impl Run {
    /// One session before there are thousands: what is wrong is better said once.
    pub(super) async fn scout(&mut self) -> Result<(), LoadError> {
        self.show.view(View::working("looking for the gateway"));
        let user = format!("load-{}-scout", self.crew.seed);
        let mut settings = (*self.crew.settings).clone();
        settings.first_session_ms = self.args.admin.patience.min(SCOUT_MAX).as_millis() as u64;
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
    pub(super) fn now_ms(&self) -> i64 {
        let scout = self.scout.as_ref();
        scout.and_then(Client::server_now_ms).unwrap_or_default()
    }

    pub(super) async fn fund(&self) -> Result<(), LoadError> {
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
    pub(super) fn key(&self) -> String {
        format!("load-{}-{}", self.crew.seed, self.now_ms())
    }

    pub(super) async fn create(&self, opens_at_ms: Option<i64>) -> Result<Rain, LoadError> {
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
            durability: args.admin.durability,
            buckets: args.admin.buckets,
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

    pub(super) async fn ready(&self, rain: Rain) -> Result<Rain, LoadError> {
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

    pub(super) async fn join(&self, id: RainId) -> Result<Rain, LoadError> {
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

    pub(super) async fn gather(&mut self) -> Result<(), LoadError> {
        let began = Instant::now();
        let wanted = u64::from(self.args.people.sessions);
        self.show.view(View::Gathering {
            crew: self.crew.clone(),
            wanted,
        });
        let limit = self.args.admin.patience
            + Duration::from_secs_f64(wanted as f64 / f64::from(self.args.people.connect_rate));
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
            let due = began.elapsed().as_secs_f64() * f64::from(self.args.people.connect_rate);
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
    pub(super) fn why_not(&self, story: Story) -> LoadError {
        let gone = ClientError::Closed;
        LoadError::Session {
            user: self.crew.user(story.number),
            source: story.ended.unwrap_or(gone),
        }
    }
}
