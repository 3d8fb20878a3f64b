use std::net::SocketAddr;
use std::sync::Arc;

use hongbao::client::{BackoffBounds, Settings};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Run;
use super::session::{Crew, Stage, Step};
use crate::LoadError;
use crate::args::{PeopleArgs, RainArgs};
use crate::human::Temper;
use crate::limits::allow_descriptors;
use crate::meter::Meter;
use crate::scenario::{admin_client, drawn_seed, gateways};
use crate::show::Show;
use crate::sources::{SOURCES_MAX, Sources};
use crate::tokens::Signer;

/// Sessions per loopback address when nobody says how many: a gateway's limits by address are those of a household or an office.
const SESSIONS_PER_SOURCE: u32 = 200;
/// Descriptors beside those of the sessions.
const SPARE_DESCRIPTORS: u64 = 100;

impl Run {
    pub(super) fn prepare(args: RainArgs) -> Result<Run, LoadError> {
        crate::output::prepare(&args.output)?;
        let gateways = gateways(&args.target)?;
        let admin = admin_client(&args.admin)?;
        let sessions = u64::from(args.people.sessions);
        let descriptors = allow_descriptors(sessions + SPARE_DESCRIPTORS);
        if descriptors < sessions + SPARE_DESCRIPTORS {
            return Err(LoadError::Usage(format!(
                "{sessions} sessions need more than the {descriptors} descriptors that this process may open (ulimit -n)"
            )));
        }
        let seed = args.output.seed.unwrap_or_else(drawn_seed);
        let mut settings = Settings::new(args.target.gateways.clone());
        settings.connect_ms = 10_000;
        settings.hello_ms = 10_000;
        settings.reconnect = BackoffBounds {
            first_ms: 200,
            max_ms: 2_000,
        };
        let crew = Crew {
            sources: sources(&args, &gateways),
            settings: Arc::new(settings),
            signer: Signer::from_file(&args.target.token_secret_file, &args.target.token_kid)?,
            meter: Meter::new(),
            temper: temper(&args),
            seed,
            stage: watch::Sender::new(Stage {
                step: Step::Gather,
                rain: None,
                room: format!("load-{seed}"),
            }),
        };
        let show = Show::start(args.output.quiet);
        Ok(Run {
            args,
            admin,
            crew: Arc::new(crew),
            scout: None,
            show,
            people: JoinSet::new(),
            stuck: None,
        })
    }
}

/// What the people are like: as the crowd, but for what is said otherwise.
fn temper(args: &RainArgs) -> Temper {
    let PeopleArgs {
        crowd,
        reaction,
        late,
        eager,
        tap_again,
        doubting,
        reconnecting,
        leaving,
        ..
    } = args.people;
    let crowd = Temper::of(crowd, args.duration, args.countdown);
    Temper {
        reaction: reaction.unwrap_or(crowd.reaction),
        late: late.unwrap_or(crowd.late),
        eager: eager.unwrap_or(crowd.eager),
        tap_again: tap_again.unwrap_or(crowd.tap_again),
        doubting: doubting.unwrap_or(crowd.doubting),
        reconnecting: reconnecting.unwrap_or(crowd.reconnecting),
        leaving: leaving.unwrap_or(crowd.leaving),
        ..crowd
    }
}

/// The loopback addresses to connect from: none of our choosing when a gateway is elsewhere.
fn sources(args: &RainArgs, gateways: &[SocketAddr]) -> Option<Sources> {
    let here = |at: &SocketAddr| at.is_ipv4() && at.ip().is_loopback();
    let needed = args.people.sessions.div_ceil(SESSIONS_PER_SOURCE);
    let count = match args.target.source_addresses {
        0 => needed.clamp(1, SOURCES_MAX),
        chosen => chosen,
    };
    gateways.iter().all(here).then(|| Sources::asked(count))
}
