//! A real Chromium, driven over WebDriver (W3C). Everything waits for what it needs; nothing sleeps.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::eventually;

/// The key of an element's id in WebDriver.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

pub struct Browser {
    driver: Child,
    address: String,
    session: String,
    http: reqwest::Client,
    /// The console's address.
    site: String,
    _profile: TempDir,
}

/// Where `make need-chromium` unpacks it.
fn unpacked() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/tools/chromium");
    root.join("usr/bin/chromedriver").exists().then_some(root)
}

/// The driver, and the browser that it starts.
fn programs() -> (Command, Option<PathBuf>) {
    // The kernel ends the driver with the thread that started it, should the test be killed; the browser ends with the driver's pipe.
    let mut driver = Command::new("setpriv");
    driver.args(["--pdeathsig", "KILL"]);
    let Some(root) = unpacked() else {
        driver.arg("chromedriver");
        return (driver, None);
    };
    let libraries = root.join("usr/lib/x86_64-linux-gnu");
    let path =
        [libraries.clone(), libraries.join("pulseaudio")].map(|dir| dir.display().to_string());
    driver
        .arg(root.join("usr/bin/chromedriver"))
        .env("LD_LIBRARY_PATH", path.join(":"))
        .env("XDG_DATA_HOME", root.join("usr/share")); // its fonts
    (driver, Some(root.join("usr/lib/chromium/chromium")))
}

/// The driver at work, its port, and the browser that it starts. It takes a port that is free for one family of addresses and gives up when it is not
/// for the other: then it is started again.
fn start() -> (Child, u16, Option<PathBuf>) {
    let missing = "chromedriver cannot be started: `make need-chromium` brings it";
    for _ in 0..10 {
        let (mut command, binary) = programs();
        let mut driver = command
            .arg("--port=0")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect(missing);
        let mut lines = BufReader::new(driver.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let port = lines.find_map(|line| {
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        if let Some(port) = port {
            return (driver, port, binary);
        }
        let _ = driver.kill();
        let _ = driver.wait();
    }
    panic!("{missing}");
}

impl Browser {
    pub async fn open(site: &str) -> Browser {
        let profile = tempfile::tempdir().unwrap();
        let (driver, port, binary) = start();
        let address = format!("127.0.0.1:{port}");
        let mut args = vec![
            "--headless".to_owned(),
            "--disable-gpu".into(),
            "--disable-dev-shm-usage".into(),
            "--hide-scrollbars".into(),
            "--force-color-profile=srgb".into(),
            "--remote-debugging-pipe".into(),
            "--no-first-run".into(),
            format!("--user-data-dir={}", profile.path().display()),
        ];
        // Root may not have the sandbox.
        if std::fs::metadata("/proc/self").unwrap().uid() == 0 {
            args.push("--no-sandbox".into());
        }
        let mut options = json!({ "args": args });
        if let Some(binary) = binary {
            options["binary"] = json!(binary);
        }
        let mut browser = Browser {
            driver,
            address,
            session: String::new(),
            http: reqwest::Client::new(),
            site: site.to_owned(),
            _profile: profile,
        };
        let wanted = json!({ "capabilities": { "alwaysMatch": { "browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": { "browser": "ALL" } } } });
        let made = browser.send("/session", wanted).await.unwrap();
        browser.session = made["sessionId"].as_str().unwrap().to_owned();
        browser
    }

    async fn send(&self, path: &str, body: Value) -> Result<Value, String> {
        let url = format!("http://{}{path}", self.address);
        let sent = self.http.post(url).body(body.to_string()).send().await;
        let text = sent.unwrap().text().await.unwrap();
        let mut answer: Value = serde_json::from_str(&text).unwrap();
        match answer["value"]["error"].as_str() {
            Some(error) => Err(format!("{error}: {}", answer["value"]["message"])),
            None => Ok(answer["value"].take()),
        }
    }

    async fn ask(&self, what: &str, body: Value) -> Result<Value, String> {
        let path = format!("/session/{}{what}", self.session);
        self.send(&path, body).await
    }

    /// The answer of a script of the page.
    pub async fn run(&self, script: &str, args: Value) -> Value {
        let body = json!({ "script": script, "args": args });
        self.ask("/execute/sync", body).await.unwrap()
    }

    async fn cdp(&self, command: &str, params: Value) {
        let body = json!({ "cmd": command, "params": params });
        self.ask("/goog/cdp/execute", body).await.unwrap();
    }

    /// A page of the console, by what stands behind the `#`.
    pub async fn go(&self, page: &str) {
        let url = format!("{}/#{page}", self.site);
        self.ask("/url", json!({ "url": url })).await.unwrap();
    }

    async fn element(&self, css: &str) -> Option<String> {
        let wanted = json!({ "using": "css selector", "value": css });
        let found = self.ask("/element", wanted).await.ok()?;
        Some(found[ELEMENT].as_str()?.to_owned())
    }

    /// Does it as soon as the element is there and can take it.
    async fn on(&self, css: &str, what: &str, body: Value) {
        let doing = format!("{what} of {css}");
        eventually(&doing, async || {
            let element = self.element(css).await?;
            let path = format!("/element/{element}{what}");
            self.ask(&path, body.clone()).await.ok()
        })
        .await;
    }

    pub async fn click(&self, css: &str) {
        self.on(css, "/click", json!({})).await;
    }

    /// Instead of what stands in the field.
    pub async fn fill(&self, css: &str, text: &str) {
        self.on(css, "/clear", json!({})).await;
        self.on(css, "/value", json!({ "text": text })).await;
    }

    pub async fn choose(&self, css: &str, option: &str) {
        self.click(&format!("{css} option[value=\"{option}\"]"))
            .await;
    }

    /// What stands in all that match; empty if nothing does.
    pub async fn text(&self, css: &str) -> String {
        let script = "return [...document.querySelectorAll(arguments[0])].map((node) => node.innerText).join('\\n')";
        let text = self.run(script, json!([css])).await;
        text.as_str().unwrap().to_owned()
    }

    pub async fn count(&self, css: &str) -> u64 {
        let script = "return document.querySelectorAll(arguments[0]).length";
        self.run(script, json!([css])).await.as_u64().unwrap()
    }

    /// Waits until what stands there is as wanted.
    pub async fn until(&self, css: &str, wanted: impl Fn(&str) -> bool) -> String {
        let mut last = String::new();
        let looking = eventually(css, async || {
            last = self.text(css).await;
            wanted(&last).then(|| last.clone())
        });
        looking.await
    }

    /// Waits for text in it.
    pub async fn sees(&self, css: &str, text: &str) {
        self.until(css, |found| found.contains(text)).await;
    }

    /// Width in CSS pixels, and `light` or `dark`.
    pub async fn look(&self, width: u32, scheme: &str) {
        let phone = width < 600;
        let size =
            json!({ "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": phone });
        self.cdp("Emulation.setDeviceMetricsOverride", size).await;
        let scheme = json!({ "features": [{ "name": "prefers-color-scheme", "value": scheme }] });
        self.cdp("Emulation.setEmulatedMedia", scheme).await;
    }

    /// The whole page as a picture in `target/screenshots`, as wide as a desk and as a phone, light and dark.
    pub async fn picture(&self, name: &str) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/screenshots");
        std::fs::create_dir_all(&dir).unwrap();
        for (form, width) in [("desk", 1_280), ("phone", 390)] {
            for scheme in ["light", "dark"] {
                self.look(width, scheme).await;
                let wide = "return document.documentElement.scrollWidth - innerWidth";
                let beyond = self.run(wide, json!([])).await.as_i64().unwrap();
                assert!(beyond <= 0, "{name} is {beyond} px wider than {form}");
                let body = json!({ "cmd": "Page.captureScreenshot", "params": { "captureBeyondViewport": true } });
                let picture = self.ask("/goog/cdp/execute", body).await.unwrap();
                let data = picture["data"].as_str().unwrap();
                let bytes = base64::engine::general_purpose::STANDARD.decode(data);
                let file = dir.join(format!("{name}-{form}-{scheme}.png"));
                std::fs::write(file, bytes.unwrap()).unwrap();
            }
        }
        self.look(1_280, "light").await;
    }

    /// What the page complained of: scripts that failed, content that its policy forbids.
    pub async fn complaints(&self) -> Vec<String> {
        let entries = self.ask("/se/log", json!({ "type": "browser" })).await;
        let entries = entries.unwrap().as_array().unwrap().clone();
        let severe = entries.iter().filter(|entry| entry["level"] == "SEVERE");
        severe.map(|entry| entry["message"].to_string()).collect()
    }
}

impl Drop for Browser {
    /// The driver closes the browser, and is closed.
    fn drop(&mut self) {
        if let Ok(mut stream) = TcpStream::connect(&self.address) {
            let _ = stream.set_read_timeout(Some(Duration::from_secs(10)));
            let _ = write!(
                stream,
                "DELETE /session/{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                self.session
            );
            let _ = stream.read(&mut [0; 512]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}
