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
use std::io::{self, IsTerminal, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::{Duration, SystemTime};

use hongbao::client::admin::AdminClient;
use hongbao::rain::RainId;

use crate::LoadError;
use crate::limits::allow_descriptors;
use crate::rains::{self, Order};
use crate::record::{Record, Verdict};
use crate::swarm::dialect::{Ask, Dialect, Gateway, Who};
use crate::swarm::tally::{Slot, Tally};
use crate::swarm::{Ramp, Swarm};
use crate::tokens::{Signer, read_text};
use args::{AdminTarget, Output, Target};
use hongbao::paint::{Paint, thousands};

pub use connect::connect;
pub use grabs::grabs;
pub use hostile::hostile;
pub use idle::idle;
pub use merge::merge;
pub use push::push;
pub use settle::settle;
pub use sweep::sweep;

/// Charts have a point for each of these.
const SLOT_MS: u64 = 1_000;
/// Descriptors beside those of the sessions.
const SPARE_DESCRIPTORS: u64 = 200;

fn generator(doing: &'static str) -> impl Fn(io::Error) -> LoadError {
    move |source| LoadError::Generator { doing, source }
}

/// What the scenarios share: where the gateways are, and how to get in.
struct Field {
    gateways: Vec<SocketAddr>,
    target: Target,
    seed: u64,
    quiet: bool,
    /// Begins all names of this run.
    prefix: String,
    /// A room that others share.
    room: Option<String>,
}

impl Field {
    fn new(target: &Target, output: &Output) -> Result<Field, LoadError> {
        crate::interrupt::watch();
        let mut gateways = vec![];
        for text in &target.gateways {
            let found = text.to_socket_addrs().ok().and_then(|mut all| all.next());
            let fault = || format!("\"{text}\" is no gateway address (host:port)");
            gateways.push(found.ok_or_else(|| LoadError::Usage(fault()))?);
        }
        // Small enough to be typed again.
        let drawn = RandomState::new().hash_one(SystemTime::now()) % 1_000_000_000;
        let seed = output.seed.unwrap_or(drawn);
        Ok(Field {
            gateways,
            target: target.clone(),
            seed,
            quiet: output.quiet,
            // The same seed on another day is another run.
            prefix: format!("l{seed}-{:x}-", hongbao::clock::now_ms() % 0x1000_0000),
            room: None,
        })
    }

    fn tell(&self, what: &str) {
        if !self.quiet {
            eprintln!("  {what}");
        }
    }

    fn signer(&self) -> Result<Signer, LoadError> {
        Signer::from_file(&self.target.token_secret_file, &self.target.token_kid)
    }

    fn dialect(&self, who: Who, ask: Ask) -> Result<Gateway, LoadError> {
        Ok(Gateway::new(self.signer()?, who, ask, &self.prefix))
    }

    fn swarm<D: Dialect>(&self, dialect: D) -> Result<Swarm<D>, LoadError> {
        let mut swarm = Swarm::new(dialect).map_err(generator("start the generator"))?;
        let told = if self.quiet { nobody } else { progress };
        swarm.with_series(SLOT_MS, 1, told);
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

    fn admin(&self, target: &AdminTarget) -> Result<AdminClient, LoadError> {
        let key = match (&target.api_key_file, &target.api_key) {
            (Some(file), _) => read_text(file)?,
            (None, Some(key)) => key.clone(),
            (None, None) => {
                return Err(LoadError::Usage(
                    "no admin API key: give --api-key-file or set HONGBAO_API_KEY".to_owned(),
                ));
            }
        };
        AdminClient::new(&target.admin, &key).map_err(|error| LoadError::Usage(error.to_string()))
    }

    /// Loaded, not open.
    async fn ready_rain(
        &self,
        admin: &AdminClient,
        target: &AdminTarget,
        name: &str,
        packets: u32,
    ) -> Result<RainId, LoadError> {
        let key = format!("{}{name}", self.prefix);
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
        let own = || format!("{}room", self.prefix);
        self.room.clone().unwrap_or_else(own)
    }
}

fn nobody(_: &Slot) {}

/// A line a second, on standard error.
fn progress(slot: &Slot) {
    eprintln!(
        "  {:>5.0} s  planned {:>9}  answered {:>9}  p50 {:>8.2} ms  p99 {:>8.2} ms  max {:>8.2} ms  dropped {}  late {}",
        slot.at_s + SLOT_MS as f64 / 1_000.0,
        thousands(slot.planned),
        thousands(slot.answered),
        slot.p50_ms,
        slot.p99_ms,
        slot.max_ms,
        thousands(slot.dropped),
        thousands(slot.late),
    );
}

/// Judges, writes what was asked for, prints the summary.
fn finish(mut record: Record, output: &Output) -> Result<Verdict, LoadError> {
    record.judge(&output.bounds);
    record.write(
        output.json.as_deref(),
        output.csv.as_deref(),
        output.html.as_deref(),
        output.hdr.as_deref(),
    )?;
    let paint = Paint::for_terminal(io::stdout().is_terminal());
    let mut stdout = io::stdout().lock();
    let _ = stdout.write_all(record.summary(paint).as_bytes()); // a closed pipe is no reason to report anything else than the result
    if crate::interrupt::is_set() {
        return Err(LoadError::Interrupted);
    }
    Ok(record.verdict())
}
