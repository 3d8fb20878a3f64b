//! A PostgreSQL server of the benchmarks' own, with the settings that money needs.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::BenchError;
use super::process::Process;

const START_MAX: Duration = Duration::from_secs(20);

pub struct Postgres {
    folder: PathBuf,
    process: Option<Process>,
}

impl Postgres {
    /// `near` holds its log. Its data lie directly under /tmp: the path of its socket must fit into 107 bytes, and its user must be let in.
    pub fn start(near: &Path) -> Result<Postgres, BenchError> {
        let programs = programs()?;
        let folder = PathBuf::from(format!("/tmp/hongbao-bench-pg-{}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        let made = fs::DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(BenchError::io("make a folder for PostgreSQL"))?;
        let user = server_user(&folder)?;
        let data = folder.join("data").display().to_string();
        let initdb = programs.join("initdb").display().to_string();
        let mut words = user.clone();
        words.extend([
            initdb,
            "-D".into(),
            data.clone(),
            "-U".into(),
            "postgres".into(),
        ]);
        words.extend(["-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"].map(str::to_owned));
        let output = Command::new(&words[0])
            .args(&words[1..])
            .current_dir("/")
            .output();
        let output = output.map_err(BenchError::io("run initdb"))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(BenchError::Odd(format!("initdb: {said}")));
        }
        let mut words = user;
        words.extend([
            programs.join("postgres").display().to_string(),
            "-D".into(),
            data,
        ]);
        words.extend(["-k".into(), folder.display().to_string()]);
        words.extend(["-c", "listen_addresses=", "-c", "fsync=on"].map(str::to_owned));
        let log = near.join("postgres.log");
        let process = Process::start(&words[0], &words[1..], &log)?;
        let deadline = Instant::now() + START_MAX;
        loop {
            let said = fs::read_to_string(&log).unwrap_or_default();
            if said.contains("ready to accept connections") {
                break;
            }
            if Instant::now() > deadline {
                return Err(BenchError::Odd(format!(
                    "PostgreSQL does not start: {said}"
                )));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(Postgres {
            folder,
            process: Some(process),
        })
    }

    pub fn url(&self) -> String {
        let socket = self.folder.display().to_string().replace('/', "%2F");
        format!("postgres://postgres@{socket}/postgres")
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        drop(self.process.take()); // its files are in use until then
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Debian keeps each version's programs in a folder of its own; the newest will do.
fn programs() -> Result<PathBuf, BenchError> {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let with_programs = versions
        .map(|version| version.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists());
    with_programs.max().ok_or_else(|| {
        BenchError::Odd("PostgreSQL is not installed: apt-get install postgresql".to_owned())
    })
}

/// PostgreSQL refuses to run as root: the words that make another user of us.
fn server_user(folder: &Path) -> Result<Vec<String>, BenchError> {
    if !nix::unistd::geteuid().is_root() {
        return Ok(vec!["env".to_owned()]);
    }
    let id = |option: &str| {
        let output = Command::new("id")
            .args([option, "postgres"])
            .output()
            .ok()?;
        String::from_utf8_lossy(&output.stdout)
            .trim()
            .parse::<u32>()
            .ok()
    };
    let nobody = 65_534;
    let (user, group) = (id("-u").unwrap_or(nobody), id("-g").unwrap_or(nobody));
    chown(folder, Some(user), Some(group)).map_err(BenchError::io("give a folder away"))?;
    Ok([
        "setpriv".to_owned(),
        format!("--reuid={user}"),
        format!("--regid={group}"),
        "--clear-groups".to_owned(),
        "--pdeathsig=TERM".to_owned(),
    ]
    .into())
}
