use serde::Serialize;

/// What the figures were taken on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Machine {
    pub processors: usize,
    pub model: String,
    pub kernel: String,
    pub memory_mib: u64,
    /// The redis-server that is installed here; empty where nobody asked.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub redis: String,
    /// Runnable tasks, averaged over the minute before: more than the processors means that somebody else is at work.
    pub load_before: f64,
    pub at_ms: i64,
}

impl Machine {
    pub fn here() -> Machine {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let value = |file: &str, name: &str| {
            let text = read(file);
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default()
                .trim_start_matches([' ', '\t', ':'])
                .to_owned()
        };
        let memory = value("/proc/meminfo", "MemTotal");
        let kib: Option<u64> = memory.split(' ').next().and_then(|text| text.parse().ok());
        Machine {
            processors: std::thread::available_parallelism().map_or(0, usize::from),
            model: value("/proc/cpuinfo", "model name"),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            memory_mib: kib.unwrap_or(0) / 1_024,
            redis: String::new(),
            load_before: read("/proc/loadavg")
                .split_whitespace()
                .next()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0.0),
            at_ms: hongbao::clock::now_ms(),
        }
    }

    /// Names the version of `redis-server` too: where the nodes run on this machine.
    pub fn with_redis(mut self) -> Machine {
        let output = std::process::Command::new("redis-server")
            .arg("--version")
            .output();
        let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let text = text.unwrap_or_default();
        let version = text
            .split_whitespace()
            .find_map(|word| word.strip_prefix("v="));
        self.redis = version.unwrap_or_default().to_owned();
        self
    }
}
