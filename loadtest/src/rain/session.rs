use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use hongbao::client::{AfterGrab, Client, ClientError, Event, Events, GrabReply, Login, Settings};
use hongbao::rain::{Packet, RainId};
use hongbao::wire::Outcome;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::human::{Human, Temper};
use crate::meter::Meter;
use crate::sources::Sources;
use crate::tokens::Signer;

/// Somebody who was not told that the rain opened taps anyway after this time, and it is counted.
const OPENING_PATIENCE: Duration = Duration::from_secs(5);
/// Somebody who hears that the rain is over before having tapped looks up and tries it all the same, within this time.
const LAST_LOOK: Duration = Duration::from_millis(1_200);
/// Of a session's faults, so many are kept: they are shown to a person.
const FAULTS_MAX: usize = 4;

/// What all sessions of a run share.
pub struct Crew {
    pub settings: Arc<Settings>,
    pub signer: Signer,
    pub meter: Meter,
    pub temper: Temper,
    pub seed: u64,
    /// Loopback addresses to connect from; `None` leaves it to the system.
    pub sources: Option<Sources>,
    pub stage: watch::Sender<Stage>,
}

/// How far the run is, for the sessions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    pub step: Step,
    /// Known at the latest when the countdown begins.
    pub rain: Option<RainId>,
    pub room: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    Gather,
    Countdown,
    Falling,
    /// Everybody goes home.
    Stop,
}

/// What one person lived through.
#[derive(Debug, Clone, Default)]
pub struct Story {
    pub number: u32,
    /// The final outcome: one of 10 to 19.
    pub outcome: Option<i32>,
    pub packet: Option<Packet>,
    /// Must stay empty: a user wins one packet of a rain.
    pub other_packet: Option<Packet>,
    /// By the server's clock, when WON was seen; `None` if that reply was lost and the packet learned later.
    pub won_at_ms: Option<i64>,
    /// When the first answer came that was not "too early", by the server's clock.
    pub tapped_at_ms: Option<i64>,
    /// From the gateway's sending RainOpened to its being seen.
    pub opening_lag_ms: Option<u64>,
    pub told_opened: bool,
    pub told_closed: bool,
    /// Went away for good with the first tap.
    pub gone: bool,
    /// And that before there was a final answer.
    pub left: bool,
    /// Answers that contradict each other or make no sense.
    pub faults: Vec<String>,
    /// Why the session ended early.
    pub ended: Option<ClientError>,
}

impl Crew {
    /// The user of session `number`: the same for the same seed.
    pub fn user(&self, number: u32) -> String {
        format!("load-{}-{number:06}", self.seed)
    }

    fn login(self: &Arc<Self>, number: u32) -> Login {
        let crew = self.clone();
        Login {
            token: Arc::new(move || crew.signer.token(&crew.user(number))),
            source: self.sources.map(|sources| sources.of(number as usize)),
            last_message_id: 0,
        }
    }
}

/// The life of one session: one task, one connection at a time.
pub async fn run(crew: Arc<Crew>, number: u32) -> Story {
    let (client, mut events, driver) = Client::open(crew.settings.clone(), crew.login(number));
    let mut stop = crew.stage.subscribe();
    let mut person = Person {
        human: Human::draw(crew.seed, number, &crew.temper),
        story: Story {
            number,
            ..Story::default()
        },
        decided: false,
        crew: &crew,
        client: &client,
    };
    let ended = tokio::select! {
        biased;
        error = driver.run() => Some(error),
        error = person.live(&mut events) => error,
        _ = stop.wait_for(|stage| stage.step == Step::Stop) => None,
    };
    person.story.ended = ended;
    crew.meter
        .reconnects
        .fetch_add(client.stats().sessions.saturating_sub(1).into(), Relaxed);
    person.decide();
    person.story
}

/// Whether somebody keeps the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stay {
    Yes,
    No,
}

/// What the gateway says about our rain without being asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum News {
    /// `lag_ms`: from the gateway's sending it to its being seen.
    Opened {
        rain: RainId,
        lag_ms: u64,
    },
    Over,
}

struct Person<'a> {
    crew: &'a Crew,
    client: &'a Client,
    human: Human,
    story: Story,
    decided: bool,
}

impl Person<'_> {
    /// Returns only when the session cannot go on.
    async fn live(&mut self, events: &mut Events) -> Option<ClientError> {
        match self.play(events).await {
            Ok(Stay::Yes) => {}
            Ok(Stay::No) => return None,
            Err(error) => return Some(error),
        }
        self.decide();
        // The phone stays on the table, and hears how it ends.
        while let Some(event) = events.next().await {
            let _ = self.hear(&event); // it only counts now
        }
        None
    }

    async fn play(&mut self, events: &mut Events) -> Result<Stay, ClientError> {
        self.client.ready().await?;
        let room = self.crew.stage.borrow().room.clone();
        self.client.watch(&room).await?;
        let _ = self.client.ping().await; // a good sample of the server's clock; any reply is one
        self.crew.meter.gathered.fetch_add(1, Relaxed);

        let (rain, due) = self.wait_for_opening(events).await;
        if let Some(after) = self.human.leaves_after {
            self.tap_and_leave(rain, due, after).await?;
            return Ok(Stay::No);
        }
        self.tap_until_final(rain, due).await?;
        if let Some(wait) = self.human.doubts_after
            && self.story.outcome.is_some()
        {
            let due = Instant::now() + wait;
            sleep_until(due).await;
            self.tap(rain, due).await?;
        }
        Ok(Stay::Yes)
    }

    /// The grab is on its way, and whoever sent it is gone: for good, whatever it won.
    async fn tap_and_leave(
        &mut self,
        rain: RainId,
        due: Instant,
        after: Duration,
    ) -> Result<(), ClientError> {
        // The connection goes first: whoever loses it and does not wait for another never hears.
        self.human.reconnects = true;
        if let Ok(reply) = timeout(after, self.tap(rain, due)).await {
            reply?;
        }
        self.story.gone = true;
        self.story.left = self.story.outcome.is_none();
        if self.story.left {
            self.crew.meter.left.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Until this person has seen the rain open and moved a thumb, or could not wait. Tells when the tap was due.
    async fn wait_for_opening(&mut self, events: &mut Events) -> (RainId, Instant) {
        let (mut eager, mut late) = (self.crew.stage.subscribe(), self.crew.stage.subscribe());
        let eager_after = self.human.eager_after;
        let eager = async {
            let Some(wait) = eager_after else {
                return std::future::pending().await;
            };
            let _ = eager.wait_for(|stage| stage.step >= Step::Countdown).await;
            let due = Instant::now() + wait;
            sleep_until(due).await;
            due
        };
        let late = async {
            let _ = late.wait_for(|stage| stage.step >= Step::Falling).await;
            let due = Instant::now() + OPENING_PATIENCE;
            sleep_until(due).await;
            due
        };
        tokio::pin!(eager, late);
        let due = loop {
            tokio::select! {
                biased;
                news = self.next_news(events) => if let News::Opened { rain, lag_ms } = news {
                    self.story.opening_lag_ms = Some(lag_ms);
                    return (rain, self.react(events).await);
                },
                due = &mut eager => break due,
                due = &mut late => break due,
            }
        };
        let rain = self.crew.stage.borrow().rain;
        (rain.expect("a rain is known before its countdown"), due)
    }

    /// The time that this person takes to tap; less when the news come that the rain is over. Tells when the tap was due.
    async fn react(&mut self, events: &mut Events) -> Instant {
        let tap = sleep(self.human.reaction);
        tokio::pin!(tap);
        loop {
            tokio::select! {
                () = &mut tap => return tap.deadline(),
                news = self.next_news(events) => if news == News::Over {
                    let last_look = Instant::now() + LAST_LOOK.mul_f64(self.human.slowness);
                    let first = tap.deadline().min(last_look);
                    tap.as_mut().reset(first);
                },
            }
        }
    }

    /// What is said about our rain. Waits for ever when the session has ended: its driver ends this future.
    async fn next_news(&mut self, events: &mut Events) -> News {
        loop {
            let Some(event) = events.next().await else {
                std::future::pending().await
            };
            if let Some(news) = self.hear(&event) {
                return news;
            }
        }
    }

    fn hear(&mut self, event: &Event) -> Option<News> {
        let ours = |rain_id: u32| {
            let rain = self.crew.stage.borrow().rain;
            rain.filter(|rain| rain.get() == rain_id)
        };
        match event {
            Event::RainOpened(opened) => {
                let rain = ours(opened.rain_id)?;
                self.story.told_opened = true;
                let now_ms = self.client.server_now_ms().unwrap_or_default();
                let lag_ms = now_ms.saturating_sub(opened.server_time_ms).max(0) as u64;
                Some(News::Opened { rain, lag_ms })
            }
            Event::RainSoldOut(sold_out) => ours(sold_out.rain_id).map(|_| News::Over),
            Event::RainClosed(closed) => {
                ours(closed.rain_id)?;
                self.story.told_closed = true;
                Some(News::Over)
            }
            Event::Connected { .. }
            | Event::Lost { .. }
            | Event::RainAnnounced(_)
            | Event::PacketCredited { .. }
            | Event::RainProgress(_)
            | Event::UserCredited { .. }
            | Event::Skipped(_) => None,
        }
    }

    async fn tap_until_final(&mut self, rain: RainId, mut due: Instant) -> Result<(), ClientError> {
        loop {
            match self.tap(rain, due).await?.after() {
                AfterGrab::Done | AfterGrab::Fix => return Ok(()),
                AfterGrab::TapAgain | AfterGrab::WaitThenRepeat => {}
            }
            due = Instant::now() + self.human.next_tap();
            sleep_until(due).await;
        }
    }

    async fn tap(&mut self, rain: RainId, due: Instant) -> Result<GrabReply, ClientError> {
        let (crew, client, number) = (self.crew, self.client, self.story.number);
        crew.meter.planned(due);
        let (mut wanted, mut repeats) = (Some(due), false);
        let grab = client.grab_observed(rain, |attempt| {
            if std::mem::replace(&mut repeats, true) {
                crew.meter.planned(Instant::now());
            }
            crew.meter
                .record(number, attempt, wanted.unwrap_or(attempt.sent));
            // Whoever was told to wait repeats the tap when it is time; whose answer was lost is still waiting for the first.
            if attempt.result.is_ok() {
                wanted = None;
            }
        });
        let reply = if std::mem::take(&mut self.human.reconnects) {
            // The grab is on its way when the connection goes: whether it won is known only to the server.
            let look_away = async { client.reconnect() };
            tokio::join!(biased; grab, look_away).0
        } else {
            grab.await
        };
        match &reply {
            Ok(reply) => self.learn(reply),
            Err(ClientError::Protocol(fault)) => self.fault(fault.clone()),
            Err(_) => {}
        }
        reply
    }

    /// Takes in an answer, and notes what cannot be true together with the earlier ones.
    fn learn(&mut self, reply: &GrabReply) {
        let name = hongbao::client::outcome_name(reply.code);
        let earlier = self.story.outcome;
        if self.story.tapped_at_ms.is_none() && reply.known() != Some(Outcome::NotOpen) {
            self.story.tapped_at_ms = self.client.server_now_ms();
        }
        match (reply.packet, self.story.packet) {
            (Some(packet), None) => {
                self.story.packet = Some(packet);
                self.crew.meter.winners.fetch_add(1, Relaxed);
                if reply.known() == Some(Outcome::Won) {
                    self.story.won_at_ms = self.client.server_now_ms();
                }
                if let Some(earlier) = earlier {
                    let earlier = hongbao::client::outcome_name(earlier);
                    self.fault(format!("{name} with packet {} after {earlier}", packet.id));
                }
            }
            (Some(packet), Some(first)) if packet != first => {
                self.story.other_packet = Some(packet);
            }
            (Some(packet), Some(_)) if reply.known() == Some(Outcome::Won) => {
                self.fault(format!("WON twice for packet {}", packet.id));
            }
            (None, Some(first)) => {
                self.fault(format!("{name} after packet {} was won", first.id));
            }
            (Some(_), Some(_)) | (None, None) => {}
        }
        match reply.after() {
            AfterGrab::Done => {
                self.story.outcome.get_or_insert(reply.code);
            }
            AfterGrab::Fix => self.fault(format!("{name} for a proper grab")),
            AfterGrab::TapAgain | AfterGrab::WaitThenRepeat => {}
        }
    }

    fn fault(&mut self, fault: String) {
        if self.story.faults.len() < FAULTS_MAX {
            self.story.faults.push(fault);
        }
    }

    fn decide(&mut self) {
        if !std::mem::replace(&mut self.decided, true) {
            self.crew.meter.decided.fetch_add(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::human::Crowd;

    /// A hundred thousand sessions run in one process: their futures must not grow unseen.
    #[tokio::test]
    async fn a_session_is_small() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "00ff").unwrap();
        let crew = Arc::new(Crew {
            settings: Arc::new(Settings::new(vec!["127.0.0.1:1".to_owned()])),
            signer: Signer::from_file(file.path(), "k").unwrap(),
            meter: Meter::new(),
            temper: Temper::of(Crowd::Quiz, Duration::from_secs(30), Duration::from_secs(3)),
            seed: 1,
            sources: None,
            stage: watch::Sender::new(Stage {
                step: Step::Gather,
                rain: None,
                room: "r".to_owned(),
            }),
        });
        let bytes = std::mem::size_of_val(&run(crew, 1));
        assert!(bytes <= 2_560, "{bytes} bytes");
    }
}
