use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::time::SystemTime;

use hongbao::client::admin::AdminClient;
use hongbao::client::{BackoffBounds, Settings};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Run;
use super::session::{Crew, Stage, Step};
use crate::LoadError;
use crate::args::RainArgs;
use crate::human::Temper;
use crate::limits::allow_descriptors;
use crate::meter::Meter;
use crate::show::Show;
use crate::tokens::{Signer, read_text};

/// Sessions per loopback address, and addresses at most.
const SESSIONS_PER_SOURCE: u32 = 200;
const SOURCES_MAX: u32 = 250;
/// Descriptors beside those of the sessions.
const SPARE_DESCRIPTORS: u64 = 100;

impl Run {
    pub(super) fn prepare(args: RainArgs) -> Result<Run, LoadError> {
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
        let descriptors = allow_descriptors(sessions + SPARE_DESCRIPTORS);
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
        let show = Show::start(args.quiet);
        Ok(Run {
            args,
            admin,
            crew: Arc::new(crew),
            scout: None,
            show,
            people: JoinSet::new(),
        })
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
