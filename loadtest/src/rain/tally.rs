use std::collections::HashMap;
use std::sync::atomic::Ordering::Relaxed;

use hongbao::client::admin::{Audit, Rain, Winner};
use hongbao::paint::thousands;
use hongbao::wire::Outcome;

use super::checks::Evidence;
use super::session::Story;
use super::{Run, rule_name};
use crate::meter::{histogram_us, spread_ms};
use crate::record::Record;
use crate::report::{Report, money};

/// Brings together what the people saw, what the ledger says and what the meter counted.
pub(super) fn tally(
    run: &Run,
    rain: &Rain,
    stories: &[Story],
    winners: &[Winner],
    audit: Audit,
    closed: bool,
) -> Report {
    let meter = &run.crew.meter;
    let outcomes = meter.outcomes();
    let answered: u64 = outcomes.iter().map(|(_, count)| count).sum();
    let rate = meter.rate();
    let packets = rain.packets.unwrap_or(run.args.packets);
    let evidence = Evidence {
        stories,
        user: &|number| run.crew.user(number),
        winners,
        audit: &audit,
        packets: Some(packets),
        won_replies: meter.count(Outcome::Won),
        unanswered: meter.unanswered(),
        alone: run.args.rain.is_none(),
        closed,
        stuck: run.stuck.as_deref(),
    };
    let checks = evidence.check();
    let record = Record {
        sessions: run.args.people.sessions as usize,
        seconds: rate.over.as_secs_f64(),
        planned: meter.taps_planned(),
        sent: answered + meter.unanswered(),
        answered,
        per_second: rate.mean,
        late: meter.taps_late(),
        unanswered: meter.unanswered(),
        outcomes,
        checks,
        ..Record::empty("rain", &title(run, packets, &audit), run.crew.seed)
    };
    let mut report = Report {
        record: record.with_latencies(meter.latencies()),
        rain_id: rain.id,
        rule: rule_name(rain.rule.as_ref().unwrap_or(&run.args.rule)),
        packets,
        buckets: rain.buckets,
        reconnects: meter.reconnects.load(Relaxed),
        left: meter.left.load(Relaxed),
        grabs: answered + meter.unanswered(),
        settle_lag_ms: settle_lag(run, stories, winners),
        opening_lag_ms: spread_of(stories.iter().filter_map(|story| story.opening_lag_ms)),
        last_packet_lag_ms: last_packet_lag(stories, packets as usize),
        grabs_per_second: rate.mean,
        grabs_per_second_peak: rate.peak,
        grabbing_seconds: rate.over.as_secs_f64(),
        funded_cents: audit.funded_cents,
        credited_cents: audit.credited_cents,
        credited_count: audit.credited_count,
        refunded_cents: audit.refunded_cents,
        largest_cents: winners.iter().map(|winner| winner.cents).max(),
        audit,
    };
    report.record.facts = report.facts();
    report
}

fn title(run: &Run, packets: u32, audit: &Audit) -> String {
    format!(
        "{}: {} people, {} packets worth {}",
        run.args.heading,
        thousands(run.args.people.sessions.into()),
        thousands(packets.into()),
        money(audit.funded_cents)
    )
}

/// From a WON being seen to its credit, both by the server's clock. A credit that was there first has no lag.
fn settle_lag(run: &Run, stories: &[Story], winners: &[Winner]) -> crate::meter::Spread {
    let credited: HashMap<&str, i64> = winners
        .iter()
        .map(|winner| (winner.user.as_str(), winner.credited_at_ms))
        .collect();
    spread_of(stories.iter().filter_map(|story| {
        let won_at_ms = story.won_at_ms?;
        let credited_at_ms = credited.get(run.crew.user(story.number).as_str())?;
        Some(credited_at_ms.saturating_sub(won_at_ms).max(0) as u64)
    }))
}

/// From the moment when as many people had tapped as there are packets to the last win: how long packets lay where nobody tapped. `None`
/// when packets were left, or too few people tapped.
fn last_packet_lag(stories: &[Story], packets: usize) -> Option<u64> {
    let mut taps: Vec<i64> = stories
        .iter()
        .filter_map(|story| story.tapped_at_ms)
        .collect();
    taps.sort_unstable();
    let enough = *taps.get(packets.checked_sub(1)?)?;
    let won = stories
        .iter()
        .filter(|story| story.packet.is_some())
        .count();
    let last = stories.iter().filter_map(|story| story.won_at_ms).max()?;
    (won == packets).then(|| last.saturating_sub(enough).max(0) as u64)
}

fn spread_of(values_ms: impl Iterator<Item = u64>) -> crate::meter::Spread {
    let mut histogram = histogram_us();
    for ms in values_ms {
        histogram.saturating_record(ms.saturating_mul(1_000));
    }
    spread_ms(&histogram)
}
