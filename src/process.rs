//! What this process uses: memory, processor, descriptors. Linux only, as the rest.

use std::fs;
use std::io;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike;

/// Read when it is first asked for, which [`started`] does at the beginning.
static STARTED: LazyLock<f64> = LazyLock::new(|| {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
});

pub struct Usage {
    /// Since 1970.
    pub started_at_seconds: f64,
    /// In the program and in the kernel, on all threads.
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    pub descriptors: u64,
    pub descriptors_max: u64,
}

/// Notes the time of the start.
pub fn started() {
    LazyLock::force(&STARTED);
}

impl Usage {
    /// Costs some file reads: not for a runtime's thread.
    pub fn now() -> io::Result<Usage> {
        let times = getrusage(UsageWho::RUSAGE_SELF)?;
        let microseconds =
            times.user_time().num_microseconds() + times.system_time().num_microseconds();
        Ok(Usage {
            started_at_seconds: *STARTED,
            cpu_seconds: microseconds as f64 / 1e6,
            resident_bytes: resident_bytes(&fs::read_to_string("/proc/self/status")?),
            descriptors: descriptors()?,
            descriptors_max: rlimit::Resource::NOFILE.get_soft()?,
        })
    }
}

/// Of the line `VmRSS:     1234 kB`.
fn resident_bytes(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Since Linux 6.2 the folder's size is their number; before, they have to be counted: half a second for a million sessions.
fn descriptors() -> io::Result<u64> {
    let folder = "/proc/self/fd";
    match fs::metadata(folder)?.len() {
        0 => Ok(fs::read_dir(folder)?.count() as u64),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_resident_memory_is_read_from_its_line() {
        let status = "Name:\thongbao\nVmHWM:\t  900 kB\nVmRSS:\t  12 kB\n";
        assert_eq!(resident_bytes(status), 12 * 1024);
    }

    #[test]
    fn an_open_file_is_one_descriptor_more() {
        started();
        let before = Usage::now().unwrap();
        let files: Vec<fs::File> = (0..200)
            .map(|_| fs::File::open("/dev/null").unwrap())
            .collect();
        let after = Usage::now().unwrap();
        // Other tests open and close files meanwhile, though not as many.
        assert!(after.descriptors > before.descriptors + 100);
        assert!(after.descriptors <= after.descriptors_max);
        drop(files);
    }

    #[test]
    fn a_process_has_used_time_and_memory_since_its_start() {
        started();
        let usage = Usage::now().unwrap();
        assert!(usage.cpu_seconds > 0.0 && usage.resident_bytes > 1024 * 1024);
        let now = (crate::clock::now_ms() + 1) as f64 / 1e3; // whole milliseconds: the rest is cut off
        assert!(usage.started_at_seconds <= now && usage.started_at_seconds > now - 3_600.0);
    }
}
