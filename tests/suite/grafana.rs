//! Dashboards and alerts against a real Prometheus that scrapes a real server: a panel that shows nothing helps nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use hongbao::metrics::SURFACE;
use serde_json::Value;

use crate::support::crowd::{assert_paid, crowd};
use crate::support::eventually;
use crate::support::prometheus::{Prometheus, folder, program};
use crate::support::server::Server;

/// Metrics that are on no dashboard and in no rule, each with its reason.
const NOT_SHOWN: &[(&str, &str)] = &[];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

struct Panel {
    /// For people.
    name: String,
    json: Value,
}

/// File name and contents.
fn dashboards() -> Vec<(PathBuf, Value)> {
    let files = std::fs::read_dir(root().join("grafana/dashboards")).unwrap();
    let read = files.map(|file| {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        (path, serde_json::from_str(&text).unwrap())
    });
    let read: Vec<_> = read.collect();
    assert!(read.len() >= 4);
    read
}

/// All panels but the headings of rows.
fn panels() -> Vec<Panel> {
    let mut panels = vec![];
    for (path, dashboard) in dashboards() {
        for json in dashboard["panels"].as_array().unwrap() {
            let name = format!("{}: {}", path.display(), json["title"]);
            if json["type"] != "row" {
                let json = json.clone();
                panels.push(Panel { name, json });
            }
        }
    }
    panels
}

/// Every expression of every panel, with Grafana's variables as it would fill them in, by where it stands.
fn expressions() -> Vec<(String, String)> {
    let text = |json: &Value| json.as_str().unwrap().to_owned();
    let mut found = vec![];
    for panel in panels() {
        for target in panel.json["targets"].as_array().unwrap() {
            found.push((panel.name.clone(), text(&target["expr"])));
        }
    }
    found
        .into_iter()
        .map(|(name, expression)| {
            let filled = expression
                .replace("$instance", ".*")
                .replace("$__rate_interval", "1m")
                .replace("$__range", "30m");
            assert!(!filled.contains('$'), "{name}: {filled}");
            (name, filled)
        })
        .collect()
}

fn promtool(arguments: &[&str], input: Option<&str>) -> Output {
    use std::io::Write;
    use std::process::Stdio;
    let mut child = Command::new(program("promtool"))
        .args(arguments)
        .current_dir(folder())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool: make need-prometheus");
    let mut stdin = child.stdin.take().unwrap();
    stdin
        .write_all(input.unwrap_or_default().as_bytes())
        .unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8(text).unwrap()
}

#[test]
fn the_scrape_config_and_all_rules_are_valid() {
    let output = promtool(&["check", "config", "prometheus.yml"], None);
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn every_alert_fires_for_its_trouble_and_for_nothing_else() {
    let output = promtool(&["test", "rules", "hongbao.tests.yml"], None);
    assert!(output.status.success(), "{}", said(&output));
    let tests = std::fs::read_to_string(folder().join("hongbao.tests.yml")).unwrap();
    for alert in alerts() {
        let tested = format!("alertname=\"{}\", alertstate=\"firing\"", alert.name);
        assert!(tests.contains(&tested), "{} has no test", alert.name);
    }
}

struct Alert {
    name: String,
    lines: Vec<String>,
}

/// As they stand in the file: name, and the lines up to the next.
fn alerts() -> Vec<Alert> {
    let text = std::fs::read_to_string(folder().join("hongbao.alerts.yml")).unwrap();
    let mut alerts: Vec<Alert> = vec![];
    for line in text.lines() {
        match (line.trim().strip_prefix("- alert: "), alerts.last_mut()) {
            (Some(name), _) => alerts.push(Alert {
                name: name.to_owned(),
                lines: vec![],
            }),
            (None, Some(alert)) => alert.lines.push(line.trim().to_owned()),
            (None, None) => {}
        }
    }
    assert!(alerts.len() > 10);
    alerts
}

/// Whoever is woken by an alert reads what to do about it: the guide has a heading for each, and no heading for one that is gone.
#[test]
fn every_alert_has_its_heading_in_the_production_guide() {
    let guide = std::fs::read_to_string(root().join("src/service/README.md")).unwrap();
    let mut headings: BTreeSet<&str> = guide
        .lines()
        .filter_map(|line| line.strip_prefix("### "))
        .filter(|heading| heading.starts_with("Hongbao"))
        .collect();
    for alert in alerts() {
        let anchor = alert.name.to_lowercase();
        let line = |start: &str| {
            let found = alert.lines.iter().find_map(|line| line.strip_prefix(start));
            found.unwrap_or_else(|| panic!("{} has no {start}", alert.name))
        };
        assert_eq!(
            line("runbook: "),
            format!("\"src/service/README.md#{anchor}\"")
        );
        for annotation in ["summary: ", "description: ", "labels: {severity: "] {
            assert!(line(annotation).len() > 6, "{}: {annotation}", alert.name);
        }
        assert!(headings.remove(alert.name.as_str()), "{}", alert.name);
    }
    assert!(headings.is_empty(), "no alerts of that name: {headings:?}");
}

#[test]
fn every_panel_says_what_it_shows_in_which_unit_and_what_to_do() {
    let mut uids = BTreeSet::new();
    for (path, dashboard) in dashboards() {
        let name = path.display();
        assert!(uids.insert(dashboard["uid"].to_string()), "{name}");
        assert_eq!(dashboard["templating"]["list"][0]["type"], "datasource");
        let mut ids = BTreeSet::new();
        let mut taken = BTreeMap::new();
        for panel in dashboard["panels"].as_array().unwrap() {
            assert!(ids.insert(panel["id"].as_u64()), "{name}: two of one id");
            let place = |side: &str| panel["gridPos"][side].as_u64().unwrap();
            assert!(place("x") + place("w") <= 24, "{name}: {}", panel["title"]);
            for x in place("x")..place("x") + place("w") {
                for y in place("y")..place("y") + place("h") {
                    let other = taken.insert((x, y), panel["title"].to_string());
                    assert!(other.is_none(), "{name}: {other:?} is covered");
                }
            }
        }
    }
    for Panel { name, json } in panels() {
        assert!(json["description"].as_str().unwrap().len() > 20, "{name}");
        assert_eq!(json["datasource"]["uid"], "${datasource}", "{name}");
        assert!(
            json["fieldConfig"]["defaults"]["unit"].is_string(),
            "{name}"
        );
        let targets = json["targets"].as_array().unwrap();
        for target in targets {
            let legend = target["legendFormat"].as_str().unwrap();
            assert!(json["type"] == "stat" || !legend.is_empty(), "{name}");
        }
    }
}

/// What is measured is shown, and what is shown is measured.
#[test]
fn dashboards_rules_and_metrics_know_each_other() {
    let mut text = String::new();
    for (_, dashboard) in dashboards() {
        text += &dashboard.to_string();
    }
    for file in ["hongbao.rules.yml", "hongbao.alerts.yml"] {
        text += &std::fs::read_to_string(folder().join(file)).unwrap();
    }
    let letter = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let words: BTreeSet<&str> = text.split(|c| !letter(c)).collect();
    let mut used = BTreeSet::new();
    for word in words.iter().filter(|word| word.starts_with("hongbao_")) {
        let known = SURFACE.iter().find(|(name, kind, _)| {
            let of_histogram = ["_bucket", "_sum", "_count"]
                .iter()
                .any(|part| word.strip_suffix(part) == Some(name));
            name == word && *kind != "histogram" || *kind == "histogram" && of_histogram
        });
        let (name, ..) = known.unwrap_or_else(|| panic!("{word} is not measured"));
        used.insert(*name);
    }
    // "hongbao:" alone begins titles.
    let recorded = words.iter().filter(|word| word.len() > 8);
    for recorded in recorded.filter(|word| word.starts_with("hongbao:")) {
        let rule = format!("record: {recorded}\n");
        assert!(text.contains(&rule), "{recorded} is not recorded");
    }
    for (name, ..) in SURFACE {
        let excused = NOT_SHOWN.iter().any(|(excused, _)| excused == name);
        assert!(
            used.contains(name) != excused,
            "{name} is neither shown nor excused, or both"
        );
    }
}

/// The left side of "number comparison threshold", and the whole as a question with the answer 0 or 1.
fn as_question(alert: &str) -> (String, String) {
    let at = alert.rfind([' ']).unwrap();
    let (left, threshold) = (alert[..at].trim_end(), alert[at..].trim());
    assert!(threshold.parse::<f64>().is_ok(), "{alert}");
    let (left, comparison) = left.rsplit_once(' ').unwrap();
    assert!([">", "<", "=="].contains(&comparison), "{alert}");
    (
        left.to_owned(),
        format!("({left}) {comparison} bool {threshold}"),
    )
}

/// A whole rain under a real Prometheus. An expression that returns nothing is a panel that shows "No data", or an alert that can never fire.
#[tokio::test(flavor = "multi_thread")]
async fn every_expression_of_every_panel_and_rule_returns_data_under_a_rain() {
    let server = Server::start(&["store.managed_nodes=2", "steward.refund_after_ms=0"]);
    let prometheus = Prometheus::scraping(server.addresses.admin.unwrap()).await;
    // Rates need a point before the rain, too.
    let seen = async || {
        let up = prometheus.query("count_over_time(up[1m])").await.unwrap();
        up.into_values().find(|points| *points >= 2.0)
    };
    eventually("a scrape before the rain", seen).await;
    let rain = server.open_rain(60, 60_000).await;
    let told = crowd(&server, rain, 100).end().await;
    assert_paid(&server, rain, &told).await;
    let won = r#"hongbao_grabs_total{outcome="WON"}"#;
    eventually("a scrape after the rain", async || {
        let won = prometheus.query(won).await.unwrap();
        won.into_values().find(|won| *won >= 60.0)
    })
    .await;
    assert_eq!(told.len(), 60);

    for (place, expression) in expressions() {
        returns_data(&prometheus, &place, &expression).await;
    }
    // Rules have been evaluated after all that.
    eventually("all rules to be evaluated", async || {
        let rules = prometheus.rules().await;
        let all = rules.iter().all(|rule| rule["health"] == "ok");
        all.then_some(())
    })
    .await;
    let mut firing = vec![];
    for rule in prometheus.rules().await {
        let (name, expression) = (&rule["name"], rule["query"].as_str().unwrap());
        if rule["type"] == "recording" {
            returns_data(&prometheus, &name.to_string(), expression).await;
            continue;
        }
        let (left, question) = as_question(expression);
        returns_data(&prometheus, &name.to_string(), &left).await;
        let answers = returns_data(&prometheus, &name.to_string(), &question).await;
        if answers.values().any(|answer| *answer != 0.0) {
            firing.push(format!("{name}: {answers:?}"));
        }
    }
    let log = server.log();
    assert!(firing.is_empty(), "a rain is no trouble: {firing:?}\n{log}");
}

async fn returns_data(
    prometheus: &Prometheus,
    place: &str,
    expression: &str,
) -> BTreeMap<String, f64> {
    eventually(&format!("data of {place}: {expression}"), async || {
        let answer = prometheus.query(expression).await;
        let answer = answer.unwrap_or_else(|error| panic!("{place}: {expression}: {error}"));
        Some(answer).filter(|answer| !answer.is_empty())
    })
    .await
}

/// One prefix, base units, one kind for each name, help for each, and no label whose values grow without end.
#[tokio::test]
async fn the_metrics_are_as_prometheus_wants_them() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let rain = server.open_rain(20, 2_000).await;
    let told = crowd(&server, rain, 20).end().await;
    assert_eq!(told.len(), 20);
    server.until_settled(rain).await;
    let page = server.metrics().await;
    let output = promtool(&["check", "metrics"], Some(&page));
    assert!(output.status.success(), "{}\n{page}", said(&output));
    // A panic's task is not known before.
    let shown = |name: &str| name != "hongbao_panics_total";
    for (name, kind, text) in SURFACE.iter().filter(|(name, ..)| shown(name)) {
        for line in [
            format!("# TYPE {name} {kind}\n"),
            format!("# HELP {name} {text}\n"),
        ] {
            assert!(page.contains(&line), "{line} is missing in\n{page}");
        }
    }
    let known = ["code", "outcome", "result", "session", "state", "kind"];
    let known = [&known[..], &["node", "what", "verdict", "le", "level"]].concat();
    let known = [&known[..], &["role", "version", "cause", "limit", "reason"]].concat();
    for line in page.lines().filter(|line| !line.starts_with('#')) {
        assert!(line.is_empty() || line.starts_with("hongbao_"), "{line}");
        let Some((_, labels)) = line.split_once('{') else {
            continue;
        };
        for label in labels
            .split("=\"")
            .filter_map(|part| part.rsplit(['{', ',', '"']).next())
        {
            if !label.is_empty() && !label.starts_with('}') {
                assert!(known.contains(&label), "{label} in {line}");
            }
        }
        assert!(!line.contains("user-"), "{line}");
    }
    let lines = page.lines().count();
    assert!(lines < 1_000, "{lines} lines are dear to keep for years");
}

/// A machine that is only a gateway has no admin API, and yet has to be looked after.
#[tokio::test]
async fn a_process_without_the_role_admin_shows_its_health_and_nothing_else() {
    let redis = crate::support::redis::Redis::fit().await;
    let nodes = format!("store.nodes=[\"{}\"]", redis.url());
    let server = Server::start(&["server.roles=[\"gateway\"]", "store.topology=nodes", &nodes]);
    assert_eq!(server.addresses.admin, None);
    let url = format!("http://{}", server.addresses.probes);
    let page = reqwest::get(format!("{url}/metrics")).await.unwrap();
    let page = page.text().await.unwrap();
    assert!(
        page.contains("hongbao_role{role=\"gateway\"} 1\n"),
        "{page}"
    );
    assert!(!page.contains("role=\"admin\""), "{page}");
    for (path, status) in [
        ("/healthz", 200),
        ("/readyz", 200),
        ("/v1/rains", 404),
        ("/v1/accounts", 404),
    ] {
        let answer = reqwest::get(format!("{url}{path}")).await.unwrap();
        assert_eq!(answer.status(), status, "{path}");
    }
}
