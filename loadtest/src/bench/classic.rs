//! The classic approach, our own plain version of it: one user a call, packets as JSON, and the clients call Redis directly. Driven by
//! `redis-benchmark`, which is Redis's own and written in C.

use std::process::Command;

use super::BenchError;
use super::redis::Redis;

const SCRIPT: &str = include_str!("classic.lua");
/// Users are drawn from so many, so that hardly any call meets a user who has won.
const USERS: &str = "1000000000";
/// Of 1,000 calls so many may find a user who has won before.
const LOSERS_PER_MILLE: u64 = 5;

pub struct Classic {
    script: String,
    /// Wins so far.
    won: u64,
    rounds: u32,
    /// Calls a second in the last round: the next has as many as fit into its time.
    expected: f64,
}

impl Classic {
    pub fn new(redis: &mut Redis) -> Result<Classic, BenchError> {
        Ok(Classic {
            script: redis.text(&["SCRIPT", "LOAD", SCRIPT])?,
            won: 0,
            rounds: 0,
            expected: 40_000.0,
        })
    }

    /// Winning grabs a second.
    pub fn round(
        &mut self,
        redis: &mut Redis,
        clients: usize,
        pipeline: u32,
        seconds: f64,
    ) -> Result<f64, BenchError> {
        let calls = (self.expected * seconds).clamp(20_000.0, 1_000_000.0) as u32;
        redis.fill("classic:pool", calls, |n| {
            format!(
                r#"{{"id":"{}","cents":{}}}"#,
                (7u64 << 32) + u64::from(n),
                n % 1_000 + 1
            )
        })?;
        // Two runs of redis-benchmark may draw the same numbers: its seed is made of the time and its process id.
        self.rounds += 1;
        let user = format!("user:{}:__rand_int__", self.rounds);
        let output = Command::new("redis-benchmark")
            .args(["-h", "127.0.0.1", "-p", &redis.address.port().to_string()])
            .args(["-c", &clients.to_string(), "-P", &pipeline.to_string()])
            .args(["-n", &calls.to_string(), "-r", USERS, "--csv"])
            .args(["EVALSHA", &self.script, "3", "classic:pool"])
            .args(["classic:winners", "classic:claims", &user])
            .output()
            .map_err(BenchError::io("run redis-benchmark"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        let odd = || BenchError::Odd(format!("redis-benchmark said {text:?}"));
        let per_second = per_second_of(&text).ok_or_else(odd)?;
        let won = redis.count(&["LLEN", "classic:claims"])?;
        let (new, calls) = (won - self.won, u64::from(calls));
        if new * 1_000 < calls * (1_000 - LOSERS_PER_MILLE) {
            return Err(BenchError::Odd(format!(
                "only {new} of {calls} classic calls won"
            )));
        }
        // What did not win is left in the pool, and would be there for the next round.
        redis.call(&["DEL", "classic:pool"])?;
        self.won = won;
        self.expected = per_second;
        Ok(per_second * new as f64 / calls as f64)
    }
}

/// The second column of the last line.
fn per_second_of(csv: &str) -> Option<f64> {
    let line = csv.lines().rfind(|line| line.contains("EVALSHA"))?;
    let after = line
        .rsplit_once("\",\"")
        .map(|_| line.split("\",\"").nth(1))??;
    after.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_read_from_what_redis_benchmark_prints() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\"EVALSHA abc 3 p w c user:__rand_int__\",\"96899.22\",\"1.6\"\n";
        assert_eq!(per_second_of(csv), Some(96_899.22));
        assert_eq!(per_second_of("\"test\",\"rps\"\n"), None);
    }
}
