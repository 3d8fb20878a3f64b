//! `hongbao rain watch`: a rain as it falls.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;

use hongbao::client::admin::{AdminClient, AdminError};
use hongbao::client::live::{Counts, LiveEvent, LiveNumbers};
use hongbao::config::Settings;
use hongbao::paint::{self, Paint, bar, sparkline, thousands};
use hongbao::rain::{RainId, State};

use super::out;
use super::remote::ServerFlags;

/// Width of the bar and of the line of rates.
const WIDTH: usize = 48;
/// Buckets that are shown one by one.
const BUCKETS_SHOWN: usize = 16;
/// A server that is away for longer than this has ended the watch.
const AWAY_MAX: Duration = Duration::from_secs(30);
const TRY_AGAIN: Duration = Duration::from_millis(500);

#[derive(Args)]
pub struct WatchFlags {
    rain: RainId,
    #[command(flatten)]
    server: ServerFlags,
}

/// Exit code 0 when the rain is over, 1 when the server is not to be reached any more.
pub async fn watch(settings: &Settings, flags: WatchFlags) -> anyhow::Result<ExitCode> {
    let server = flags.server.connect(settings)?;
    let on_terminal = std::io::stdout().is_terminal() && !paint::is_dumb();
    let mut view = View {
        rain: flags.rain,
        way: match (flags.server.json, on_terminal) {
            (true, _) => Way::Json,
            (false, true) => Way::Block,
            (false, false) => Way::Lines,
        },
        paint: Paint::for_terminal(std::io::stdout().is_terminal()),
        rates: VecDeque::new(),
        lines_drawn: 0,
    };
    let mut away_since: Option<Instant> = None;
    loop {
        let lost = match look_on(&server, &mut view, &mut away_since).await {
            Ok(()) => return Ok(ExitCode::SUCCESS),
            Err(error) => error,
        };
        let since = *away_since.get_or_insert_with(Instant::now);
        if !lost.may_pass() || since.elapsed() > AWAY_MAX {
            return Err(lost.into());
        }
        tokio::time::sleep(TRY_AGAIN).await;
    }
}

/// Shows one stream, until the rain is over.
async fn look_on(
    server: &AdminClient,
    view: &mut View,
    away_since: &mut Option<Instant>,
) -> Result<(), AdminError> {
    let mut stream = server.live(view.rain).await?;
    while let Some(event) = stream.next().await? {
        *away_since = None;
        match event {
            LiveEvent::Numbers { numbers, json } => {
                view.show(&numbers, &json);
            }
            LiveEvent::Problem(detail) => eprintln!("hongbao: {detail}"),
            LiveEvent::End(reason) if reason == "draining" => break,
            LiveEvent::End(_) => return Ok(()),
        }
    }
    Err(AdminError::Unreachable {
        url: format!("/v1/rains/{}/live", view.rain),
        reason: "the server has stopped".into(),
    })
}

enum Way {
    Json,
    Lines,
    /// The same lines of the terminal, drawn again and again.
    Block,
}

struct View {
    rain: RainId,
    way: Way,
    paint: Paint,
    /// Wins a second, the newest last.
    rates: VecDeque<f64>,
    lines_drawn: usize,
}

impl View {
    fn show(&mut self, numbers: &LiveNumbers, json: &str) {
        self.rates.push_back(numbers.wins_per_second);
        if self.rates.len() > WIDTH {
            self.rates.pop_front();
        }
        match self.way {
            Way::Json => say!("{json}"),
            Way::Lines => say!("{}", line(numbers)),
            Way::Block => {
                let block = self.block(numbers);
                let lines = block.lines().count();
                let over = match self.lines_drawn {
                    0 => String::new(),
                    drawn => format!("\x1b[{drawn}A\x1b[J"),
                };
                out::piece(format!("{over}{block}").as_bytes());
                self.lines_drawn = lines;
            }
        }
    }

    fn block(&self, numbers: &LiveNumbers) -> String {
        let paint = self.paint;
        let mut block = String::new();
        let counts = &numbers.counts;
        let left = format!(
            "{} of {} left",
            thousands(counts.pool),
            thousands(numbers.packets.into())
        );
        let filled = bar(counts.pool, numbers.packets.into(), WIDTH);
        let empty = " ".repeat(WIDTH - filled.chars().count());
        let rates: Vec<f64> = self.rates.iter().copied().collect();
        let rows = [
            format!(
                "{}  {}",
                paint.bold(&format!("rain {}", self.rain)),
                state(numbers)
            ),
            format!("packets   {}{empty}▏{left}", paint.gold(&filled)),
            format!(
                "wins/s    {:<WIDTH$}▏{}",
                sparkline(&rates),
                whole(numbers.wins_per_second)
            ),
            format!(
                "grabs/s   {} answered by this server{}, {} credits/s",
                whole(numbers.here.grabs_per_second),
                latency(numbers),
                whole(numbers.credits_per_second)
            ),
            format!("outcomes  {}", outcomes(numbers)),
            format!(
                "claims    {}, oldest {:.1} s",
                claims(counts, paint),
                numbers.settle_lag_seconds
            ),
            format!(
                "credited  {} packets worth {}",
                thousands(numbers.credited_count),
                numbers.credited_cents
            ),
        ];
        for row in rows {
            let _ = writeln!(block, "{row}"); // into a String
        }
        for bucket in numbers.buckets.iter().take(BUCKETS_SHOWN) {
            let (number, node) = (bucket.bucket, &bucket.node);
            let row = if bucket.counted {
                let counts = &bucket.counts;
                let (pool, won) = (thousands(counts.pool), thousands(counts.winners));
                format!(
                    "{pool:>12} left {won:>12} won {:>9} unsettled",
                    moving(counts)
                )
            } else {
                paint.red("does not answer")
            };
            let _ = writeln!(block, "bucket {number:>3} {row}  {node}");
        }
        if numbers.buckets.len() > BUCKETS_SHOWN {
            let _ = writeln!(
                block,
                "           and {} more",
                numbers.buckets.len() - BUCKETS_SHOWN
            );
        }
        block
    }
}

fn line(numbers: &LiveNumbers) -> String {
    let counts = &numbers.counts;
    let mut line = format!(
        "{} {}: {} of {} left, {} wins/s, claims {}, oldest {:.1} s, credited {} worth {}",
        numbers.at_ms,
        state(numbers),
        counts.pool,
        numbers.packets,
        numbers.wins_per_second.round(),
        moving(counts),
        numbers.settle_lag_seconds,
        numbers.credited_count,
        numbers.credited_cents
    );
    for problem in &numbers.problems {
        let _ = write!(line, "; {problem}"); // into a String
    }
    line
}

fn state(numbers: &LiveNumbers) -> String {
    let until = |what: &str, at: Option<i64>| {
        let left_ms = at.map_or(0, |at| at - numbers.at_ms);
        if left_ms <= 0 {
            return String::new();
        }
        format!(
            ", {what} in {}.{} s",
            left_ms / 1_000,
            left_ms % 1_000 / 100
        )
    };
    let then = match numbers.state {
        State::Created | State::Ready => until("opens", numbers.opens_at_ms),
        State::Open | State::Paused => until("closes", numbers.closes_at_ms),
        State::Closed | State::Refunded | State::Finished => String::new(),
    };
    let sold_out = if numbers.sold_out { ", sold out" } else { "" };
    format!("{}{sold_out}{then}", numbers.state)
}

/// Of the grabs that went to Redis since the last look.
fn latency(numbers: &LiveNumbers) -> String {
    let p99 = numbers.here.latency_p99_seconds;
    p99.map_or(String::new(), |p99| format!(" (p99 {:.1} ms)", p99 * 1e3))
}

fn outcomes(numbers: &LiveNumbers) -> String {
    let outcomes = numbers.here.outcomes.iter();
    let told: Vec<String> = outcomes
        .map(|(name, count)| format!("{name} {}", thousands(*count)))
        .collect();
    if told.is_empty() {
        return "no grab has reached this server".into();
    }
    told.join("  ")
}

fn claims(counts: &Counts, paint: Paint) -> String {
    let dead = format!("{} dead", thousands(counts.dead));
    format!(
        "{} waiting, {} leased, {} retrying, {}",
        thousands(counts.claims_waiting),
        thousands(counts.leased),
        thousands(counts.retrying),
        if counts.dead > 0 {
            paint.red(&dead)
        } else {
            dead
        }
    )
}

fn moving(counts: &Counts) -> u64 {
    counts.claims_waiting + counts.leased + counts.retrying
}

fn whole(rate: f64) -> String {
    thousands(rate.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers() -> LiveNumbers {
        let json = r#"{"rain_id":7,"at_ms":1000,"state":"open","sold_out":false,"opens_at_ms":0,"closes_at_ms":13500,
            "packets":3000,"total_cents":1000000,"pool":1500,"winners":1500,"claims_waiting":3,"leased":2,"retrying":0,"dead":1,
            "credited_count":1494,"credited_cents":498000,"wins_per_second":1234.4,"credits_per_second":1200.0,
            "settle_lag_seconds":0.25,"here":{"grabs_per_second":2000.0,"outcomes":{"MISSED":10,"WON":1500}},
            "buckets":[{"bucket":0,"node":"redis-a","counted":true,"pool":1500,"winners":1500,"claims_waiting":3,"leased":2,"retrying":0,"dead":1},
                       {"bucket":1,"node":"redis-b","counted":false,"pool":0,"winners":0,"claims_waiting":0,"leased":0,"retrying":0,"dead":0}],
            "nodes":{},"problems":["bucket 1 on redis-b: away"]}"#;
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_plain_line_has_all_that_matters() {
        let wanted = "1000 open, closes in 12.5 s: 1500 of 3000 left, 1234 wins/s, claims 5, oldest 0.2 s, credited 1494 worth 4980.00; \
                      bucket 1 on redis-b: away";
        assert_eq!(line(&numbers()), wanted);
    }

    #[test]
    fn a_block_shows_the_packets_the_rates_the_outcomes_and_every_bucket() {
        let view = View {
            rain: RainId::new(7).unwrap(),
            way: Way::Block,
            paint: Paint::PLAIN,
            rates: [1.0, 2.0].into(),
            lines_drawn: 0,
        };
        let block = view.block(&numbers());
        for part in [
            "rain 7  open, closes in 12.5 s",
            &format!("{}{}▏1,500 of 3,000 left", "█".repeat(24), " ".repeat(24)),
            "▄█",
            "2,000 answered by this server, 1,200 credits/s",
            "MISSED 10  WON 1,500",
            "3 waiting, 2 leased, 0 retrying, 1 dead, oldest 0.2 s",
            "1,494 packets worth 4980.00",
            "1,500 left        1,500 won         5 unsettled  redis-a",
            "does not answer  redis-b",
        ] {
            assert!(block.contains(part), "{part} in\n{block}");
        }
    }
}
