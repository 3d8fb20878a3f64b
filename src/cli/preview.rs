//! `hongbao rain preview` and `hongbao rain create --dry-run`: what it would be, before anybody pays for it.

use std::process::ExitCode;

use clap::Args;

use hongbao::client::admin::NewRain;
use hongbao::client::rains::{Preview, Rehearsal};
use hongbao::config::Settings;
use hongbao::paint::{bar, thousands};
use hongbao::rain::Cents;
use hongbao::rain::split::{Rule, Tier};

use super::rains::{packets_of, parse_rule, parse_tier};
use super::remote::ServerFlags;

/// Width of the longest bar.
const BAR_WIDTH: usize = 40;

#[derive(Args)]
pub struct SplitFlags {
    /// Money to give away, like 10000.00
    #[arg(long)]
    pub total: Cents,
    /// How many packets it becomes (a prize table says it itself)
    #[arg(long, required_unless_present = "tier")]
    pub packets: Option<u32>,
    /// even, double_mean or line_cut
    #[arg(long, default_value = "double_mean", value_parser = parse_rule)]
    pub rule: Rule,
    /// A row of a prize table, COUNTxAMOUNT like 100x8.88; may be repeated, and replaces --rule and --packets
    #[arg(long, value_parser = parse_tier, conflicts_with_all = ["packets", "rule"])]
    pub tier: Vec<Tier>,
    /// Smallest packet [default: 0.01]
    #[arg(long)]
    pub min: Option<Cents>,
    /// Largest packet [default: no limit]
    #[arg(long)]
    pub max: Option<Cents>,
}

impl SplitFlags {
    /// A rain of which nothing but the split is known.
    pub fn rain(self) -> NewRain {
        NewRain {
            title: String::new(),
            room: String::new(),
            sponsor: String::new(),
            packets: packets_of(self.packets, &self.tier),
            rule: if self.tier.is_empty() {
                self.rule
            } else {
                Rule::Tiers(self.tier)
            },
            total_cents: self.total,
            min_cents: self.min,
            max_cents: self.max,
            opens_at_ms: None,
            duration_ms: None,
            durability: None,
            buckets: None,
            refund_after_ms: None,
            key_required: false,
            announce_ms: None,
            key: None,
        }
    }
}

#[derive(Args)]
pub struct PreviewFlags {
    #[command(flatten)]
    split: SplitFlags,
    #[command(flatten)]
    server: ServerFlags,
}

pub async fn preview(settings: &Settings, flags: PreviewFlags) -> anyhow::Result<ExitCode> {
    let server = flags.server.connect(settings)?;
    let preview = server.preview(&flags.split.rain()).await?;
    if flags.server.json {
        say!("{}", serde_json::to_string_pretty(&preview)?);
    } else {
        say!("{}", drawn(&preview));
    }
    Ok(ExitCode::SUCCESS)
}

fn drawn(preview: &Preview) -> String {
    let summary = &preview.summary;
    let mut lines = vec![
        format!(
            "packets   {} worth {}",
            thousands(summary.packets.into()),
            summary.sum
        ),
        format!(
            "amounts   smallest {}, median {}, largest {}",
            summary.smallest, summary.median, summary.largest
        ),
    ];
    if !preview.exact {
        let looked_at = thousands(summary.looked_at.into());
        lines.push(format!("          by a sample of {looked_at} packets"));
    }
    lines.push(String::new());
    let most = summary.histogram.iter().map(|bar| bar.packets).max();
    let edge = |cents: Cents| cents.to_string().len();
    let last = summary.histogram.last();
    let width = last.map_or(0, |bar| edge(bar.below));
    for row in &summary.histogram {
        let length = bar(
            row.packets.into(),
            most.unwrap_or_default().into(),
            BAR_WIDTH,
        );
        // Up to, but not including, the upper edge.
        let (from, to) = (row.from, Cents(row.below.0 - 1));
        let count = thousands(row.packets.into());
        lines.push(format!("{from:>width$} … {to:>width$}  {length} {count}"));
    }
    lines.join("\n")
}

pub fn show_rehearsal(rehearsal: &Rehearsal, json: bool) -> anyhow::Result<()> {
    if json {
        say!("{}", serde_json::to_string_pretty(rehearsal)?);
        return Ok(());
    }
    let text = |name: &str| {
        let value = &rehearsal.rain[name];
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    match rehearsal.existing {
        Some(rain) => {
            say!("dry run   rain {rain} was made by this key: it would be the answer")
        }
        None => say!("dry run   the rain would be created; nothing was stored"),
    }
    say!("room      {}", text("room"));
    let total = rehearsal.rain["total_cents"].as_i64().map(Cents);
    say!(
        "packets   {} worth {}",
        text("packets"),
        total.unwrap_or_default()
    );
    say!(
        "buckets   {}, durability {}",
        text("buckets"),
        text("durability")
    );
    say!(
        "sponsor   {} has {}, and {} after it",
        text("sponsor"),
        rehearsal.sponsor_balance_cents,
        rehearsal.sponsor_balance_after_cents
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use hongbao::rain::split::{Bar, Summary};

    use super::*;

    #[test]
    fn a_preview_is_drawn_with_bars_and_says_when_it_is_a_sample() {
        let bar = |from, below, packets| Bar {
            from: Cents(from),
            below: Cents(below),
            packets,
        };
        let preview = Preview {
            exact: false,
            summary: Summary {
                packets: 20_000_000,
                sum: Cents(200_000_000),
                smallest: Cents(1),
                largest: Cents(19),
                median: Cents(10),
                looked_at: 1_000_000,
                histogram: vec![bar(0, 10, 400_000), bar(10, 20, 600_000)],
            },
        };
        let wanted = format!(
            "packets   20,000,000 worth 2000000.00\n\
             amounts   smallest 0.01, median 0.10, largest 0.19\n          by a sample of 1,000,000 packets\n\n\
             0.00 … 0.09  {}▋ 400,000\n0.10 … 0.19  {} 600,000",
            "█".repeat(26),
            "█".repeat(40)
        );
        assert_eq!(drawn(&preview), wanted);
    }
}
