//! Processes of the benchmarks: they end with them, whatever happens.

use std::ffi::OsStr;
use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::BenchError;

/// How long a process may take to end after it was asked to.
const STOP_MAX: Duration = Duration::from_secs(10);
/// Ticks of `/proc/PID/stat` in a second, the same on every Linux.
const TICKS: f64 = 100.0;

pub struct Process {
    child: Child,
}

impl Process {
    /// Its output goes to `log`.
    pub fn start<A: AsRef<OsStr>>(
        program: &str,
        arguments: impl IntoIterator<Item = A>,
        log: &Path,
    ) -> Result<Process, BenchError> {
        let output = File::options().create(true).append(true).open(log);
        let output = output.map_err(BenchError::io("write a log"))?;
        let errors = output.try_clone().map_err(BenchError::io("write a log"))?;
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "TERM", program])
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output)
            .stderr(errors)
            .spawn()
            .map_err(BenchError::io("start setpriv"))?;
        Ok(Process { child })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok()??;
        Some(status.to_string())
    }

    /// Lets others have the processors first, from now on.
    pub fn give_way(&self) -> Result<(), BenchError> {
        let fault = BenchError::io("give way to the generator");
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).map_err(fault)?;
        let threads = threads.flatten().map(|thread| thread.file_name());
        let mut renice = Command::new("renice");
        renice.args(["-n", "10", "-p"]).args(threads);
        let done = renice.stdout(Stdio::null()).status();
        match done.map_err(BenchError::io("start renice"))?.success() {
            true => Ok(()),
            false => Err(BenchError::Odd("renice failed".to_owned())),
        }
    }

    /// Seconds on a processor so far, user and system.
    pub fn cpu_seconds(&self) -> f64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid()));
        stat.ok()
            .and_then(|stat| cpu_seconds_of(&stat))
            .unwrap_or(0.0)
    }

    /// Resident memory, bytes.
    pub fn memory_bytes(&self) -> u64 {
        memory_bytes(self.pid())
    }
}

/// Resident memory of a process, bytes; 0 when it is not there.
pub fn memory_bytes(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    kib.unwrap_or(0) * 1_024
}

fn cpu_seconds_of(stat: &str) -> Option<f64> {
    // The name, in brackets, may hold blanks.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field)?.parse::<f64>().ok();
    Some((ticks(11)? + ticks(12)?) / TICKS)
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.pid() as i32), Signal::SIGTERM);
        let deadline = Instant::now() + STOP_MAX;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_is_the_sum_of_user_and_system() {
        let stat = "7 (a ) b) S 1 7 7 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 100 0 0";
        assert_eq!(cpu_seconds_of(stat), Some(3.0));
    }
}
