use hdrhistogram::serialization::Deserializer;
use hdrhistogram::serialization::interval_log::{IntervalLogIterator, LogEntry};

use super::args::MergeArgs;
use super::finish;
use crate::LoadError;
use crate::meter::histogram_us;
use crate::record::{Latency, Record, Verdict, curve};
use crate::swarm::tally::Tally;

/// The latencies of several generators as those of one. Percentiles cannot be averaged; histograms can be added up.
pub fn merge(args: MergeArgs) -> Result<Verdict, LoadError> {
    let mut all = histogram_us();
    let mut longest = 0.0_f64;
    for path in &args.files {
        let bytes = std::fs::read(path).map_err(|source| LoadError::Unreadable {
            path: path.clone(),
            source,
        })?;
        let fault = || LoadError::Usage(format!("{} is no HDR log", path.display()));
        let mut intervals = 0;
        for entry in IntervalLogIterator::new(&bytes) {
            let LogEntry::Interval(interval) = entry.map_err(|_| fault())? else {
                continue;
            };
            let encoded = interval.encoded_histogram();
            let bytes = base64_decoded(encoded).ok_or_else(fault)?;
            let mut reader = bytes.as_slice();
            let one = Deserializer::new().deserialize::<u64, _>(&mut reader);
            all.add(one.map_err(|_| fault())?).map_err(|_| fault())?;
            longest = longest.max(interval.duration().as_secs_f64());
            intervals += 1;
        }
        if intervals == 0 {
            return Err(fault());
        }
    }
    let title = format!("{} generators as one", args.files.len());
    let seed = args.output.seed.unwrap_or(0);
    let mut record = Record::new("merge", &title, seed, Tally::new(0));
    record.answered = all.len();
    record.planned = all.len();
    record.seconds = longest;
    record.per_second = all.len() as f64 / longest.max(1e-9);
    record.latency_ms = Latency::of(&all);
    record.curve = curve(&all);
    record.histogram = all;
    finish(record, &args.output)
}

fn base64_decoded(text: &str) -> Option<Vec<u8>> {
    use base64::Engine;
    base64::engine::general_purpose::STANDARD.decode(text).ok()
}
