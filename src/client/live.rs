//! The live numbers of a rain, from the admin API's stream of server-sent events.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use serde::Deserialize;

use super::admin::{AdminError, chain};
use crate::rain::{Cents, State};

/// The server sends something every ten seconds at least.
const SILENCE_MAX: Duration = Duration::from_secs(35);
/// One event: 256 buckets are about 50 KiB.
const EVENT_BYTES_MAX: usize = 1024 * 1024;

#[derive(Debug, Clone, PartialEq)]
pub enum LiveEvent {
    Numbers {
        numbers: Box<LiveNumbers>,
        /// As it was sent, one line of JSON.
        json: String,
    },
    /// A look that failed. The next one may not.
    Problem(String),
    /// Nothing comes after it: `finished`, `settled` (closed, and no claim is on its way), or `draining` (this server stops).
    End(String),
}

/// Where the packets of a rain are, and how fast they go.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct LiveNumbers {
    pub at_ms: i64,
    pub state: State,
    #[serde(default)]
    pub sold_out: bool,
    pub opens_at_ms: Option<i64>,
    pub closes_at_ms: Option<i64>,
    pub packets: u32,
    pub total_cents: Cents,
    #[serde(flatten)]
    pub counts: Counts,
    pub credited_count: u64,
    pub credited_cents: Cents,
    pub wins_per_second: f64,
    pub credits_per_second: f64,
    pub settle_lag_seconds: f64,
    /// Grabs that the answering process knows itself.
    #[serde(default)]
    pub here: Here,
    #[serde(default)]
    pub buckets: Vec<BucketNumbers>,
    #[serde(default)]
    pub problems: Vec<String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Counts {
    /// Packets that nobody has won.
    pub pool: u64,
    pub winners: u64,
    pub claims_waiting: u64,
    pub leased: u64,
    pub retrying: u64,
    pub dead: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Here {
    pub grabs_per_second: f64,
    pub outcomes: BTreeMap<String, u64>,
    /// Half of the grabs since the event before that went to Redis took so long, or less.
    pub latency_p50_seconds: Option<f64>,
    /// All of them but one in a hundred.
    pub latency_p99_seconds: Option<f64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct BucketNumbers {
    pub bucket: usize,
    pub node: String,
    /// Whether its node answered.
    pub counted: bool,
    /// Nothing is given there until it has been compared with the ledger.
    #[serde(default)]
    pub suspect: bool,
    #[serde(flatten)]
    pub counts: Counts,
}

/// An open stream. See `AdminClient::live`.
pub struct LiveStream {
    response: reqwest::Response,
    reader: Reader,
    url: String,
}

impl LiveStream {
    pub(super) fn new(response: reqwest::Response) -> LiveStream {
        LiveStream {
            url: response.url().to_string(),
            response,
            reader: Reader::default(),
        }
    }

    /// The next event; `None` when the stream ended without a last word.
    ///
    /// # Errors
    /// [`AdminError::Unreachable`] when the connection is lost or silent for longer than the server ever is.
    pub async fn next(&mut self) -> Result<Option<LiveEvent>, AdminError> {
        let lost = |reason: String| AdminError::Unreachable {
            url: self.url.clone(),
            reason,
        };
        loop {
            while let Some((name, data)) = self.reader.events.pop_front() {
                match event(&name, data) {
                    Ok(Some(event)) => return Ok(Some(event)),
                    Ok(None) => {} // of a later version
                    Err(error) => {
                        return Err(lost(format!("its event {name} cannot be read: {error}")));
                    }
                }
            }
            let chunk = tokio::time::timeout(SILENCE_MAX, self.response.chunk()).await;
            match chunk {
                Ok(Ok(Some(bytes))) => self.reader.read(&bytes).map_err(&lost)?,
                Ok(Ok(None)) => return Ok(None),
                Ok(Err(error)) => return Err(lost(chain(&error))),
                Err(_) => return Err(lost(format!("silent for {SILENCE_MAX:?}"))),
            }
        }
    }
}

fn event(name: &str, data: String) -> Result<Option<LiveEvent>, serde_json::Error> {
    #[derive(Deserialize)]
    struct Problem {
        detail: String,
    }
    #[derive(Deserialize)]
    struct End {
        reason: String,
    }
    Ok(match name {
        "numbers" => Some(LiveEvent::Numbers {
            numbers: serde_json::from_str(&data)?,
            json: data,
        }),
        "problem" => Some(LiveEvent::Problem(
            serde_json::from_str::<Problem>(&data)?.detail,
        )),
        "end" => Some(LiveEvent::End(serde_json::from_str::<End>(&data)?.reason)),
        _ => None,
    })
}

/// Puts events together from what arrives (HTML standard, "Server-sent events"), as far as this server uses the format.
#[derive(Default)]
struct Reader {
    line: Vec<u8>,
    name: String,
    data: String,
    /// Name and data.
    events: VecDeque<(String, String)>,
}

impl Reader {
    fn read(&mut self, bytes: &[u8]) -> Result<(), String> {
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                if self.line.len() + self.data.len() > EVENT_BYTES_MAX {
                    return Err(format!("an event of more than {EVENT_BYTES_MAX} bytes"));
                }
                continue;
            }
            let line = String::from_utf8_lossy(&self.line).into_owned();
            self.line.clear();
            self.take(&line);
        }
        Ok(())
    }

    fn take(&mut self, line: &str) {
        if line.is_empty() {
            let (name, data) = (
                std::mem::take(&mut self.name),
                std::mem::take(&mut self.data),
            );
            if !data.is_empty() {
                self.events.push_back((name, data));
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => value.clone_into(&mut self.name),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            _ => {} // comments, and fields that mean nothing here
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_put_together_however_they_arrive() {
        let sent = ": alive\n\nretry: 1000\nevent: problem\ndata: {\"detail\":\ndata: \"away\"}\n\nevent: new\ndata: {}\n\nevent: end\ndata:{\"reason\":\"settled\"}\n\n";
        for size in [1, 2, 7, sent.len()] {
            let mut reader = Reader::default();
            for chunk in sent.as_bytes().chunks(size) {
                reader.read(chunk).unwrap();
            }
            let events: Vec<_> = reader
                .events
                .into_iter()
                .filter_map(|(name, data)| event(&name, data).unwrap())
                .collect();
            let wanted = [
                LiveEvent::Problem("away".into()),
                LiveEvent::End("settled".into()),
            ];
            assert_eq!(events, wanted, "in pieces of {size}");
        }
    }

    #[test]
    fn an_event_without_end_is_refused() {
        let mut reader = Reader::default();
        let mut outcome = Ok(());
        for _ in 0..=EVENT_BYTES_MAX / 1024 {
            outcome = outcome.and(reader.read(&[b'x'; 1024]));
        }
        assert!(outcome.is_err());
    }
}
