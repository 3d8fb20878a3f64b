//! The scenarios besides `rain`: each measures one thing, and checks what a client can see of the promises on the way.

/// Their command lines.
pub mod args;
/// A storm of connections.
mod connect;
/// Grabs by plan, or as fast as they are answered.
mod grabs;
/// Honest sessions among hostile clients.
mod hostile;
/// Sessions that do nothing.
mod idle;
/// Clients that mean harm.
mod malice;
/// Several generators as one.
mod merge;
/// How soon everybody hears.
mod push;
/// How fast wins become credits.
mod settle;
/// The highest rate that keeps a bound.
mod sweep;

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, SystemTime};

use hongbao::client::admin::AdminClient;
use hongbao::paint::thousands;
use hongbao::rain::RainId;

use crate::LoadError;
use crate::limits::allow_descriptors;
use crate::rains::{self, Order};
use crate::show::pace;
use crate::sources::Sources;
use crate::swarm::dialect::{Ask, Dialect, Gateway, Who};
use crate::swarm::tally::Tally;
use crate::swarm::{Ramp, Swarm};
use crate::tokens::{Signer, read_text};
use args::{AdminTarget, Output, Target};

pub use connect::connect;
pub use grabs::grabs;
pub use hostile::hostile;
pub use idle::idle;
pub use merge::merge;
pub use push::push;
pub use settle::settle;
pub use sweep::sweep;

pub use crate::output::finish;

/// Somebody who looks on hears of a run once a second.
const LINE_MS: u64 = 1_000;
/// Descriptors beside those of the sessions.
const SPARE_DESCRIPTORS: u64 = 200;

fn generator(doing: &'static str) -> impl Fn(io::Error) -> LoadError {
    move |source| LoadError::Generator { doing, source }
}

/// What the scenarios share: where the gateways are, and how to get in.
pub struct Field {
    pub gateways: Vec<SocketAddr>,
    target: Target,
    pub seed: u64,
    quiet: bool,
    /// Begins the names of users and sessions: the same seed has the same people.
    prefix: String,
    /// Begins the keys of what is made: the same seed on another day makes it anew.
    key: String,
    /// A room that others share.
    room: Option<String>,
}

impl Field {
    pub fn new(target: &Target, output: &Output) -> Result<Field, LoadError> {
        crate::output::prepare(output)?;
        let gateways = gateways(target)?;
        // Before anything is made: a secret that cannot be read is better said at once.
        Signer::from_file(&target.token_secret_file, &target.token_kid)?;
        crate::interrupt::watch();
        let seed = output.seed.unwrap_or_else(drawn_seed);
        Ok(Field {
            gateways,
            target: target.clone(),
            seed,
            quiet: output.quiet,
            prefix: format!("l{seed}-"),
            key: format!("l{seed}-{:x}-", hongbao::clock::now_ms()),
            room: None,
        })
    }

    fn tell(&self, what: &str) {
        if !self.quiet {
            pace::begin();
            eprintln!("  {what}");
        }
    }

    fn signer(&self) -> Result<Signer, LoadError> {
        Signer::from_file(&self.target.token_secret_file, &self.target.token_kid)
    }

    fn dialect(&self, who: Who, ask: Ask) -> Result<Gateway, LoadError> {
        Ok(Gateway::new(self.signer()?, who, ask, &self.prefix))
    }

    /// For a run of about this length: a short one is cut finer, so that there is something to see in its charts.
    fn swarm<D: Dialect>(&self, dialect: D, length: Duration) -> Result<Swarm<D>, LoadError> {
        let mut swarm = Swarm::new(dialect).map_err(generator("start the generator"))?;
        let told = match self.quiet {
            true => pace::nobody,
            false => pace::line,
        };
        let slot_ms = slot_ms(length);
        swarm.with_series(slot_ms, (LINE_MS / slot_ms) as usize, told);
        swarm.with_sources(Sources::asked(self.target.source_addresses));
        Ok(swarm)
    }

    /// Connects to all gateways, evenly. An error unless every session comes up.
    fn connect_all<D: Dialect>(
        &self,
        swarm: &mut Swarm<D>,
        sessions: u32,
    ) -> Result<(), LoadError> {
        let tally = self.connect(swarm, sessions, 0, Duration::from_secs(60))?;
        let ready = swarm.ready();
        if ready < sessions as usize {
            return Err(LoadError::Sessions {
                ready,
                wanted: sessions as usize,
                faults: tally.faults.join("; "),
            });
        }
        self.tell(&format!(
            "{} sessions are connected",
            thousands(sessions.into())
        ));
        Ok(())
    }

    fn connect<D: Dialect>(
        &self,
        swarm: &mut Swarm<D>,
        sessions: u32,
        rate: u32,
        patience: Duration,
    ) -> Result<Tally, LoadError> {
        let wanted = u64::from(sessions) + SPARE_DESCRIPTORS;
        let descriptors = allow_descriptors(wanted);
        if descriptors < wanted {
            return Err(LoadError::Usage(format!(
                "{sessions} sessions need more than the {descriptors} descriptors that this process may open (ulimit -n)"
            )));
        }
        let ramp = Ramp {
            servers: &self.gateways,
            connections: sessions as usize,
            per_second: rate,
            patience,
        };
        swarm.connect(ramp).map_err(generator("connect"))
    }

    /// Loaded, not open.
    async fn ready_rain(
        &self,
        admin: &AdminClient,
        target: &AdminTarget,
        name: &str,
        packets: u32,
    ) -> Result<RainId, LoadError> {
        let key = format!("{}{name}", self.key);
        let order = Order {
            key: &key,
            room: &self.room(),
            packets,
            buckets: target.buckets,
            durability: target.durability,
            patience: target.patience,
        };
        let rain = rains::ready(admin, &order).await?;
        self.tell(&format!(
            "rain {rain} with {} packets is loaded",
            thousands(packets.into())
        ));
        Ok(rain)
    }

    fn room(&self) -> String {
        let own = || format!("{}room", self.key);
        self.room.clone().unwrap_or_else(own)
    }
}

/// Small enough to be typed again.
pub fn drawn_seed() -> u64 {
    RandomState::new().hash_one(SystemTime::now()) % 1_000_000_000
}

/// Slots of which a chart has some dozens at least.
pub fn slot_ms(length: Duration) -> u64 {
    match length.as_secs() {
        0..=14 => 200,
        15..=44 => 500,
        _ => 1_000,
    }
}

/// # Errors
/// A name that has no address, or source addresses that cannot be chosen.
pub fn gateways(target: &Target) -> Result<Vec<SocketAddr>, LoadError> {
    let mut gateways = vec![];
    for text in &target.gateways {
        let mut found = text.to_socket_addrs().map_err(|error| {
            LoadError::Usage(format!(
                "--gateway \"{text}\" is no gateway address (host:port): {error}"
            ))
        })?;
        let none = || LoadError::Usage(format!("--gateway \"{text}\" has no address"));
        gateways.push(found.next().ok_or_else(none)?);
    }
    let elsewhere = gateways
        .iter()
        .find(|at| !(at.is_ipv4() && at.ip().is_loopback()));
    match elsewhere {
        Some(at) if target.source_addresses > 0 => Err(LoadError::Usage(format!(
            "--source-addresses can be chosen only on loopback (127.0.0.0/8), and {at} is elsewhere"
        ))),
        _ => Ok(gateways),
    }
}

/// # Errors
/// No key, or an address that is none.
pub fn admin_client(target: &AdminTarget) -> Result<AdminClient, LoadError> {
    let key = match (&target.api_key_file, &target.api_key) {
        (Some(file), _) => read_text(file)?,
        (None, Some(key)) => key.clone(),
        (None, None) => {
            return Err(LoadError::Usage(
                "no admin API key: give --api-key-file or set HONGBAO_API_KEY".to_owned(),
            ));
        }
    };
    AdminClient::new(&target.admin, &key)
        .map_err(|error| LoadError::Usage(format!("--admin {}: {error}", target.admin)))
}
