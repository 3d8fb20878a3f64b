//! Latencies as HDR logs, which other HDR tools read too: one interval for each slot of a run, in µs. A comment, which they skip, has the counts, so
//! that `merge` can add up everything.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::Histogram;
use hdrhistogram::serialization::interval_log::{
    IntervalLogIterator, IntervalLogWriterBuilder, LogEntry, Tag,
};
use hdrhistogram::serialization::{Deserializer, V2Serializer};

use crate::record::{Record, Totals};

/// Begins the comment with the counts.
const TOTALS: &str = "hongbao-load ";

/// What stands in one log.
pub struct Log {
    /// `None` in a log that another tool wrote.
    pub totals: Option<Totals>,
    /// Each with its beginning, since 1970 if the log says when it was started.
    pub intervals: Vec<(Duration, Duration, Histogram<u64>)>,
}

/// The log of a run. Settlement and audits may lie between its end and now, so it has to know when it began; one that does not has just ended.
pub fn write(record: &Record) -> Vec<u8> {
    let mut out = vec![];
    let mut serializer = V2Serializer::new();
    let totals = serde_json::to_string(&record.totals()).expect("counts are plain data");
    let whole = Duration::from_secs_f64(record.seconds);
    let just_ended = || SystemTime::now().checked_sub(whole);
    let began = record.began.or_else(just_ended).unwrap_or(UNIX_EPOCH);
    let mut log = IntervalLogWriterBuilder::new()
        .add_comment("latencies in microseconds, one interval for each slot of the run")
        .add_comment(&format!("{TOTALS}{totals}"))
        .with_start_time(began)
        .with_base_time(began)
        .with_max_value_divisor(1_000.0)
        .begin_log_with(&mut out, &mut serializer)
        .expect("memory does not fail");
    let tag = Tag::new(record.scenario);
    let memory = "memory does not fail";
    if record.series.is_empty() {
        log.write_histogram(&record.histogram, Duration::ZERO, whole, tag)
            .expect(memory);
    }
    for (place, slot) in record.series.iter().enumerate() {
        let Some(histogram) = decoded(&slot.hdr) else {
            continue;
        };
        let next = record.series.get(place + 1);
        let length = next.map_or(record.seconds - slot.at_s, |next| next.at_s - slot.at_s);
        let begin = Duration::from_secs_f64(slot.at_s);
        let length = Duration::from_secs_f64(length.max(0.001));
        log.write_histogram(&histogram, begin, length, tag)
            .expect(memory);
    }
    drop(log);
    out
}

/// `None` when it is no HDR log, or one without a single interval.
pub fn read(bytes: &[u8]) -> Option<Log> {
    let mut log = Log {
        totals: std::str::from_utf8(bytes).ok()?.lines().find_map(totals),
        intervals: vec![],
    };
    let mut base = Duration::ZERO;
    for entry in IntervalLogIterator::new(bytes) {
        match entry.ok()? {
            LogEntry::StartTime(time) | LogEntry::BaseTime(time) => base = time,
            LogEntry::Interval(interval) => {
                let bytes = STANDARD.decode(interval.encoded_histogram()).ok()?;
                let histogram = decoded(&bytes)?;
                let begin = base + interval.start_timestamp();
                log.intervals.push((begin, interval.duration(), histogram));
            }
        }
    }
    (!log.intervals.is_empty()).then_some(log)
}

fn totals(line: &str) -> Option<Totals> {
    let json = line.strip_prefix('#')?.strip_prefix(TOTALS)?;
    serde_json::from_str(json).ok()
}

fn decoded(mut bytes: &[u8]) -> Option<Histogram<u64>> {
    Deserializer::new().deserialize(&mut bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn what_is_written_is_read_again() {
        let record = record();
        let bytes = write(&record);
        let log = read(&bytes).unwrap();
        assert_eq!(log.totals, Some(record.totals()));
        assert_eq!(log.intervals.len(), record.series.len());
        let counted: u64 = log.intervals.iter().map(|(_, _, one)| one.len()).sum();
        assert_eq!(counted, record.answered);
        let (first, second) = (log.intervals[0].0, log.intervals[1].0);
        assert_eq!((second - first).as_millis(), 1_000);
        assert!(first.as_secs() > 1_700_000_000, "since 1970");
    }

    #[test]
    fn a_log_begins_when_its_run_did_however_late_it_is_written() {
        let mut record = record();
        record.began = Some(UNIX_EPOCH + Duration::from_millis(1_795_302_300_250));
        let log = read(&write(&record)).unwrap();
        assert_eq!(log.intervals[0].0.as_millis(), 1_795_302_300_250);
    }

    #[test]
    fn a_log_of_another_tool_has_latencies_and_no_counts() {
        let text = String::from_utf8(write(&record())).unwrap();
        let others: String = text
            .lines()
            .filter(|line| !line.starts_with(&format!("#{TOTALS}")))
            .map(|line| format!("{line}\n"))
            .collect();
        let log = read(others.as_bytes()).unwrap();
        assert_eq!(log.totals, None);
        assert!(!log.intervals.is_empty());
        for nothing in ["", "# only a comment\n", "not a log\n"] {
            assert!(read(nothing.as_bytes()).is_none(), "{nothing:?}");
        }
    }
}
