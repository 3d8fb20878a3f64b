//! A private PostgreSQL for the test process: one server, a database for each test that asks for one.
//!
//! The server belongs to a small shell that waits on a pipe from this process. However this process ends (also by `kill -9`), the
//! kernel closes the pipe, and the shell stops the server and removes its folder. (PR_SET_PDEATHSIG would not do: it fires when the
//! *thread* ends that started the child, and a test's thread ends long before the others need the server no more.)

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs as root when the tests do, and so may remove what the server's user owns. `$1` initdb, `$2` server, `$3` folder. The server
/// reports on stderr, which is where we learn that it is ready. QUIT ends it at once; TERM ends one that has only just been started,
/// since shells start background jobs with QUIT ignored.
const KEEPER: &str = r#"
    eval "$1" </dev/null && {
        eval "$2" </dev/null &
        server=$!
        cat >/dev/null
        exec 2>/dev/null # nobody reads it any more, and a write would end us
        kill -TERM $server; kill -QUIT $server
        wait $server
    }
    rm -rf "$3"
"#;

struct Server {
    folder: PathBuf,
    databases: AtomicU32,
    /// Held open for as long as this process lives.
    _keeper: ChildStdin,
}

static SERVER: OnceLock<Server> = OnceLock::new();

/// The URL of a new, empty database.
pub async fn database() -> String {
    // Starting takes two seconds, in which other tests of this thread's runtime have nothing to do.
    let server = SERVER.get_or_init(start);
    let name = format!("test_{}", server.databases.fetch_add(1, Ordering::Relaxed));
    let socket = server.folder.to_str().unwrap().replace('/', "%2F");
    let url = |database: &str| format!("postgres://postgres@{socket}/{database}");

    use sqlx::{Connection, Executor};
    let mut admin = sqlx::PgConnection::connect(&url("postgres")).await.unwrap();
    let create = sqlx::AssertSqlSafe(format!("CREATE DATABASE {name}"));
    admin.execute(create).await.unwrap();
    admin.close().await.unwrap();
    url(&name)
}

fn start() -> Server {
    let bin = binaries();
    // The socket's path has to fit into 107 bytes, which a long TMPDIR would exceed.
    let folder = PathBuf::from(format!("/tmp/hongbao-pg-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
    let become_user = server_user(&folder);

    let data = folder.join("data");
    let initdb = format!(
        "{become_user} {}/initdb -D {} -U postgres -A trust -E UTF8 --locale=C --no-sync",
        bin.display(),
        data.display()
    );
    let server = format!(
        "exec {become_user} {}/postgres -D {} -k {} -c listen_addresses= -c max_connections=200 -c fsync=on",
        bin.display(),
        data.display(),
        folder.display()
    );
    let mut keeper = Command::new("sh")
        .args([
            "-c",
            KEEPER,
            "keeper",
            &initdb,
            &server,
            folder.to_str().unwrap(),
        ])
        .process_group(0) // Ctrl-C is for the tests; the keeper outlives them, to clean up
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let server = Server {
        folder,
        databases: AtomicU32::new(0),
        _keeper: keeper.stdin.take().unwrap(),
    };
    let mut log = BufReader::new(keeper.stderr.take().unwrap());
    let mut seen = String::new();
    while !seen.contains("ready to accept connections") {
        let read = log.read_line(&mut seen).unwrap();
        assert!(read > 0, "postgres ended before it was ready:\n{seen}");
    }
    // The rest of the log must be read, or the server would block on a full pipe.
    std::thread::spawn(move || {
        std::io::copy(&mut log, &mut std::io::sink()).ok();
        keeper.wait()
    });
    server
}

/// Debian keeps each version's programs in a folder of its own; the newest will do.
fn binaries() -> PathBuf {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let newest = versions
        .map(|version| version.path().join("bin"))
        .filter(|bin| bin.join("initdb").exists())
        .max();
    newest
        .expect("these tests need PostgreSQL under /usr/lib/postgresql: apt-get install postgresql")
}

/// PostgreSQL refuses to run as root. Returns the words to put before a command.
fn server_user(folder: &Path) -> String {
    let id = |args: &[&str]| {
        let out = Command::new("id").args(args).output().unwrap();
        String::from_utf8(out.stdout)
            .unwrap()
            .trim()
            .parse::<u32>()
            .ok()
    };
    if id(&["-u"]) != Some(0) {
        return String::new();
    }
    let (user, group) = match (id(&["-u", "postgres"]), id(&["-g", "postgres"])) {
        (Some(user), Some(group)) => (user, group),
        _ => (65_534, 65_534), // nobody
    };
    chown(folder, Some(user), Some(group)).unwrap();
    format!("setpriv --reuid={user} --regid={group} --clear-groups --")
}

/// A server of one test's own, which may be killed and started again.
pub struct Private {
    folder: PathBuf,
    child: std::process::Child,
}

impl Private {
    pub fn start() -> Private {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = PathBuf::from(format!("/tmp/hongbao-pg-{}-{number}", std::process::id()));
        let _ = fs::remove_dir_all(&folder);
        fs::DirBuilder::new().mode(0o700).create(&folder).unwrap();
        let initdb = format!(
            "{} {}/initdb -D {} -U postgres -A trust -E UTF8 --locale=C --no-sync",
            server_user(&folder),
            binaries().display(),
            folder.join("data").display()
        );
        let made = Command::new("sh")
            .args(["-c", &initdb])
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(made.success());
        Private {
            child: spawn_private(&folder),
            folder,
        }
    }

    pub fn url(&self) -> String {
        format!(
            "postgres://postgres@{}/postgres",
            self.folder.to_str().unwrap().replace('/', "%2F")
        )
    }

    /// SIGKILL to the postmaster; its children follow it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub fn restart(&mut self) {
        self.child = spawn_private(&self.folder);
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Returns when it is ready. It dies with the thread that started it, should the test be killed.
fn spawn_private(folder: &Path) -> std::process::Child {
    let server = format!(
        "exec {} setpriv --pdeathsig KILL {}/postgres -D {} -k {} -c listen_addresses= -c fsync=on",
        server_user(folder),
        binaries().display(),
        folder.join("data").display(),
        folder.display()
    );
    // A killed server leaves its lock behind, and its children for a moment: try until they are gone.
    loop {
        let mut child = Command::new("sh")
            .args(["-c", &server])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while log.read_line(&mut line).unwrap() > 0 {
            if line.contains("ready to accept connections") {
                std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
                return child;
            }
            line.clear();
        }
        child.wait().unwrap();
        std::thread::yield_now();
    }
}
