//! Honest sessions among hostile clients.
//!
//! In the world the hostile are other machines. Here they are one thread on one processor that runs when nobody else wants it: what is measured is what
//! they cost the gateway, and not that somebody has to play them. (Two threads that do nothing but count, at the lowest priority, one on each of two
//! virtual processors, made the honest p99 five times as long without one hostile client.) How often they came and what they sent is told with the result.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::args::{HostileArgs, Target};
use super::malice::{self, Score};
use super::{Field, finish, gateways, generator};
use crate::LoadError;
use crate::record::{Record, Verdict};
use crate::swarm::dialect::{Ask, Gateway, Who};
use crate::swarm::plan::Plan;
use crate::swarm::tally::Tally;
use crate::swarm::{IN_FLIGHT_MAX, Swarm};

/// Before the honest are measured with the others, all of those are at work.
const GATHER: Duration = Duration::from_secs(3);

/// The honest sessions, round by round.
#[derive(Default)]
struct Rounds {
    /// Nobody else is there.
    alone: Vec<Tally>,
    /// The hostile clients are at work, at another gateway.
    beside: Vec<Tally>,
    among: Vec<Tally>,
    /// What was done to the gateway of the honest.
    score: Score,
}

/// In turns alone and among hostile clients: the median of the honest sessions' p99 must not rise by more than it may.
pub async fn hostile(args: HostileArgs) -> Result<Verdict, LoadError> {
    if args.crowd {
        return crowd(&args).await;
    }
    let field = Field::new(&args.target, &args.output)?;
    if let Some(decoy) = &args.decoy {
        gateways(&Target {
            gateways: vec![decoy.clone()],
            ..args.target.clone()
        })?;
    }
    let mut swarm = field.swarm(field.dialect(Who::Own, Ask::Ping)?, args.length)?;
    field.connect_all(&mut swarm, args.sessions)?;
    let mut rounds = Rounds::default();
    for round in 0..u64::from(args.rounds) {
        let seed = field.seed.wrapping_add(3 * round);
        rounds.alone.push(honest(&mut swarm, &args, seed)?);
        if let Some(decoy) = &args.decoy {
            field.tell(&format!("{} hostile clients at {decoy}", args.hostile()));
            let crowd = Crowd::start(&args, std::slice::from_ref(decoy), seed)?;
            gather(&mut swarm)?;
            (rounds.beside).push(honest(&mut swarm, &args, seed.wrapping_add(1))?);
            crowd.stop()?;
        }
        field.tell(&format!("{} hostile clients join", args.hostile()));
        let crowd = Crowd::start(&args, &args.target.gateways, seed)?;
        gather(&mut swarm)?;
        (rounds.among).push(honest(&mut swarm, &args, seed.wrapping_add(2))?);
        rounds.score.add(&crowd.stop()?);
    }
    finish(rounds.record(&args, field.seed), &args.output)
}

fn gather(swarm: &mut Swarm<Gateway>) -> Result<(), LoadError> {
    let gathered = swarm.listen(GATHER, |_| false);
    gathered.map(drop).map_err(generator("listen"))
}

impl Rounds {
    fn record(mut self, args: &HostileArgs, seed: u64) -> Record {
        let each = || self.alone.iter().chain(&self.beside).chain(&self.among);
        let lost: u64 = each().map(|tally| tally.lost).sum();
        let unheard: u64 = each().map(|tally| tally.unanswered + tally.dropped).sum();
        let each_answered = each().all(|tally| tally.answered > 0) && unheard == 0;
        let came = self.score.connects >= u64::from(args.hostile()) * u64::from(args.rounds);
        let (alone, among) = (Spread::of(&self.alone), Spread::of(&self.among));
        let beside = (!self.beside.is_empty()).then(|| Spread::of(&self.beside));
        let title = format!(
            "{} honest sessions among {} hostile clients",
            args.sessions,
            args.hostile()
        );
        let mut record = Record::new("hostile", &title, seed, median(&mut self.among));
        record.sessions = args.sessions as usize;
        record.figure("p99 of the honest alone, ms", alone.median);
        if let Some(beside) = &beside {
            record.figure("with the others at another gateway, ms", beside.median);
        }
        record.figure("p99 of the honest among the others, ms", among.median);
        record.figure("in their worst round alone, ms", alone.worst);
        if let Some(beside) = &beside {
            record.figure("in the worst with the others elsewhere, ms", beside.worst);
        }
        record.figure("in their worst round among the others, ms", among.worst);
        record.figure("hostile connections", self.score.connects as f64);
        record.figure("of them ended by the gateway", self.score.ended as f64);
        record.figure("hostile bytes", self.score.bytes as f64);
        let (before, after, most) = (
            beside.unwrap_or(alone).median,
            among.median,
            args.factor_max,
        );
        record.check("the honest hardly notice", after <= before * most, || {
            format!("p99 went from {before:.2} ms to {after:.2} ms, more than {most} times as much")
        });
        record.check("every honest request was answered", each_answered, || {
            format!("{unheard} were not")
        });
        record.check("the hostile were there", came, || {
            format!("only {} connections of theirs came up", self.score.connects)
        });
        record.check("no honest session was lost", lost == 0, || {
            format!("{lost} were")
        });
        record
    }
}

/// The p99 of rounds, ms.
struct Spread {
    median: f64,
    worst: f64,
}

impl Spread {
    fn of(rounds: &[Tally]) -> Spread {
        let mut p99: Vec<f64> = rounds.iter().map(|tally| tally.quantile_ms(0.99)).collect();
        p99.sort_by(f64::total_cmp);
        Spread {
            median: p99[p99.len() / 2],
            worst: p99[p99.len() - 1],
        }
    }
}

fn honest(swarm: &mut Swarm<Gateway>, args: &HostileArgs, seed: u64) -> Result<Tally, LoadError> {
    let plan = Plan::new(args.rate, args.length, Duration::ZERO, Some(seed));
    let tally = swarm.open_loop(plan, IN_FLIGHT_MAX);
    tally.map_err(generator("run the generator"))
}

/// Of those that this process may run on.
fn last_processor() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap_or("0");
    let last = allowed.rsplit([',', '-']).next().unwrap_or("0");
    last.trim().to_owned()
}

/// The round whose p99 is in the middle: the machine's own stalls, of some milliseconds, make the p99 of the rounds in which they fall.
fn median(rounds: &mut Vec<Tally>) -> Tally {
    rounds.sort_by(|a, b| a.quantile_ms(0.99).total_cmp(&b.quantile_ms(0.99)));
    rounds.swap_remove(rounds.len() / 2)
}

/// The hostile clients, in a process of their own. It ends when its standard input does, so never later than this one.
struct Crowd {
    process: Child,
}

impl Crowd {
    fn start(args: &HostileArgs, gateways: &[String], seed: u64) -> Result<Crowd, LoadError> {
        let fault = generator("start the hostile clients");
        let this = match &args.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().map_err(&fault)?,
        };
        let mut command = Command::new("taskset");
        command.args(["--cpu-list", &last_processor(), "chrt", "--idle", "0"]);
        command.arg(this).arg("hostile");
        for gateway in gateways {
            command.args(["--gateway", gateway]);
        }
        let secret = &args.target.token_secret_file;
        command.arg("--token-secret-file").arg(secret);
        command.args(["--token-kid", &args.target.token_kid]);
        for (flag, value) in [
            ("--slow-loris", args.slow_loris.into()),
            ("--slow-readers", args.slow_readers.into()),
            ("--garbage", args.garbage.into()),
            ("--seed", seed),
        ] {
            command.args([flag, &value.to_string()]);
        }
        command.args(["--crowd", "--quiet"]);
        let process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        Ok(Crowd {
            process: process.map_err(&fault)?,
        })
    }

    fn stop(mut self) -> Result<Score, LoadError> {
        let fault = generator("hear what the hostile clients did");
        drop(self.process.stdin.take());
        let mut said = String::new();
        let mut output = self.process.stdout.take().expect("it is piped");
        output.read_to_string(&mut said).map_err(&fault)?;
        self.process.wait().map_err(&fault)?;
        serde_json::from_str(&said).map_err(|error| fault(error.into()))
    }
}

/// The other side of [`Crowd`].
async fn crowd(args: &HostileArgs) -> Result<Verdict, LoadError> {
    let field = Field::new(&args.target, &args.output)?;
    crate::limits::allow_descriptors(u64::from(args.hostile()) + 1_000);
    let (over, enough) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        let _ = over.send(());
    });
    let until = async {
        let _ = enough.await;
    };
    let score = std::thread::scope(|scope| {
        let crowd = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(generator("start the hostile clients"))?;
            runtime.block_on(malice::crowd(&field, args, until))
        });
        crowd.join().expect("the crowd does not panic")
    })?;
    let text = serde_json::to_string(&score).expect("numbers");
    let told = std::io::stdout().write_all(text.as_bytes());
    told.map_err(generator("tell what was done"))?;
    Ok(Verdict::Good)
}
