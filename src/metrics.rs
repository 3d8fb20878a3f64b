//! Every metric once. Handles are made at first use and kept: a counter on the grab path is one atomic addition.

use std::fmt::Write;
use std::sync::{LazyLock, Once};
use std::thread;
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, counter, describe_counter, describe_gauge, describe_histogram,
    gauge, histogram,
};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusHandle};

use crate::process::Usage;
use crate::rain::State;
use crate::wire::{CloseCode, Outcome};

/// How often the samples of histograms are put into their buckets. They pile up until then, 8 bytes each, whether anybody scrapes or not.
const UPKEEP_EVERY: Duration = Duration::from_secs(1);

/// Buckets of the latency histograms, seconds: a batch takes well under a millisecond, a dead node a second.
const LATENCY_BUCKETS: &[f64] = &[
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5,
    5.0, 10.0,
];
/// Buckets of the batch sizes.
const SIZE_BUCKETS: &[f64] = &[
    1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1_024.0, 2_048.0,
];

/// Name, kind, what it tells.
pub const SURFACE: &[(&str, &str, &str)] = &[
    (
        "hongbao_build_info",
        "gauge",
        "Always 1; the label version tells which program runs.",
    ),
    (
        "hongbao_role",
        "gauge",
        "1 for each role of this process, by role: counted over all processes it tells who is left to do which work.",
    ),
    (
        "hongbao_log_lines_total",
        "counter",
        "Lines of the log by level: error, warn. A rising error count is worth reading the log for.",
    ),
    (
        "hongbao_process_start_time_seconds",
        "gauge",
        "When this process started, seconds since 1970: a change is a restart.",
    ),
    (
        "hongbao_process_cpu_seconds_total",
        "counter",
        "Processor time of this process, seconds: a rate of 1 is one core.",
    ),
    (
        "hongbao_process_resident_memory_bytes",
        "gauge",
        "Memory of this process that is in RAM.",
    ),
    (
        "hongbao_descriptors",
        "gauge",
        "Descriptors this process has open: each session is one.",
    ),
    (
        "hongbao_descriptors_max",
        "gauge",
        "Descriptors this process may have open: at the limit nobody can connect.",
    ),
    (
        "hongbao_sessions",
        "gauge",
        "Connections that are open now, before and after Hello.",
    ),
    (
        "hongbao_connections_total",
        "counter",
        "Connections accepted since the start.",
    ),
    (
        "hongbao_connections_closed_total",
        "counter",
        "Connections closed by the gateway, by close code: rising codes tell what clients do wrong.",
    ),
    (
        "hongbao_connections_refused_total",
        "counter",
        "Connections that did not become sessions, by reason: gateway_full, address_full, address_rate, address_handshakes, handshakes_full, proxy_header, tls_handshake, late.",
    ),
    (
        "hongbao_accepts_delayed_total",
        "counter",
        "Times that accepting paused because connections came faster than gateway.accepts_per_second.",
    ),
    (
        "hongbao_tls_handshakes_total",
        "counter",
        "TLS handshakes finished, by kind: full, resumed.",
    ),
    (
        "hongbao_tls_reloads_total",
        "counter",
        "Attempts to load a changed certificate by result: loaded, broken (the old one stays in use; tried again at each look).",
    ),
    (
        "hongbao_frames_refused_total",
        "counter",
        "Frames beyond a rate, by limit: session_rate, user_rate.",
    ),
    (
        "hongbao_panics_total",
        "counter",
        "Panics contained, by task: each is a bug to report; the log holds its place.",
    ),
    (
        "hongbao_edge_sessions",
        "gauge",
        "Sessions of trusted servers that are open now.",
    ),
    (
        "hongbao_in_flight_full_total",
        "counter",
        "Requests turned away because too many of their session were in flight, by kind of session: user, edge.",
    ),
    (
        "hongbao_edge_awaited_dropped_total",
        "counter",
        "Credits that an edge session will not be told of since gateway.edge_awaited_max newer ones wait; they stand in the inboxes.",
    ),
    (
        "hongbao_token_keys",
        "gauge",
        "Keys that session tokens may be signed with.",
    ),
    (
        "hongbao_token_keys_loads_total",
        "counter",
        "Changes of the key set file by result: loaded, or broken (the old keys stay).",
    ),
    (
        "hongbao_refreshes_total",
        "counter",
        "Tokens offered by sessions to go on with, by result: accepted, refused.",
    ),
    (
        "hongbao_cooled_down_total",
        "counter",
        "Sessions that began to cool down after gateway.early_taps_max taps before an opening.",
    ),
    (
        "hongbao_risk_users_total",
        "counter",
        "Users that the risk service was asked about, by result: allow, hold, deny, failed (no answer), full (no room to ask).",
    ),
    (
        "hongbao_progress_pushes_total",
        "counter",
        "Frames with the packets that are left, pushed to watching sessions: gateway.progress_per_second_max bounds them.",
    ),
    (
        "hongbao_grabs_total",
        "counter",
        "Grabs answered, by outcome.",
    ),
    (
        "hongbao_grab_seconds",
        "histogram",
        "From a grab's frame to its reply, for grabs that went to Redis: of each batch the one that waited longest.",
    ),
    (
        "hongbao_grab_batch_users",
        "histogram",
        "Users in one call of grab.lua: grows under load.",
    ),
    (
        "hongbao_pushes_total",
        "counter",
        "Frames pushed to watching sessions.",
    ),
    (
        "hongbao_node_failures_total",
        "counter",
        "Calls to Redis nodes that were refused, lost or timed out.",
    ),
    (
        "hongbao_node_up",
        "gauge",
        "1 if the node answered when it was last connected to, 0 if not, by node: its users get RETRY while it is 0. NaN where a node was before it moved.",
    ),
    (
        "hongbao_redirects_total",
        "counter",
        "Calls that a node sent on, by kind: moved and ask (Redis Cluster moves slots), wait (it is about to; CLUSTERDOWN, TRYAGAIN, READONLY).",
    ),
    (
        "hongbao_repairs_total",
        "counter",
        "Rains whose buckets were compared with the ledger after a node came back as another process or empty.",
    ),
    (
        "hongbao_repair_packets_total",
        "counter",
        "Packets that repairs changed, by what: restored (a paid win put back), removed (won, yet in a pool), returned (was nowhere), not_restored (a person has to look).",
    ),
    (
        "hongbao_claims_leased_total",
        "counter",
        "Claims leased by settlers of this process.",
    ),
    (
        "hongbao_credits_total",
        "counter",
        "Claims credited by this process for the first time.",
    ),
    (
        "hongbao_credited_cents_total",
        "counter",
        "Money credited by this process, in cents.",
    ),
    (
        "hongbao_claims_retried_total",
        "counter",
        "Claims put into the delay queue: the balance system is in trouble when it rises.",
    ),
    (
        "hongbao_claims_buried_total",
        "counter",
        "Claims given to a person to decide: look at the dead letters when it rises.",
    ),
    (
        "hongbao_settle_batch_seconds",
        "histogram",
        "One settlement: commit, messages, ack.",
    ),
    (
        "hongbao_inbox_messages_total",
        "counter",
        "Messages written into users' inboxes by this process.",
    ),
    (
        "hongbao_inbox_waits_total",
        "counter",
        "Credited claims that wait because their user's inbox cannot be written: a node is away or full when it rises.",
    ),
    (
        "hongbao_inbox_pages_total",
        "counter",
        "Pages of inboxes asked for, by result: read, busy (too many at once), away (the node does not answer).",
    ),
    (
        "hongbao_inbox_pushes_total",
        "counter",
        "Messages pushed to sessions when they were written.",
    ),
    (
        "hongbao_inbox_pushes_dropped_total",
        "counter",
        "Credits that a busy worker did not look at: their users find them in the inbox at the next connect or push.",
    ),
    (
        "hongbao_balance_requests_total",
        "counter",
        "Requests to the HTTP balance system by result: answered, refused (4xx), failed (5xx), unreadable, broken, timed_out, unreachable.",
    ),
    (
        "hongbao_balance_request_seconds",
        "histogram",
        "One request to the HTTP balance system, from connecting to the last byte of its answer.",
    ),
    (
        "hongbao_balance_away",
        "gauge",
        "1 while this process's settlers hold back because the balance system or the ledger is away, 0 otherwise.",
    ),
    (
        "hongbao_claims",
        "gauge",
        "Claims in Redis that are not settled, by state, of all rains: the same in every process. Waiting should fall to zero within a second after a rain.",
    ),
    (
        "hongbao_claim_oldest_seconds",
        "gauge",
        "How long the oldest unsettled claim has been seen on its way: rising means that somebody waits for money.",
    ),
    (
        "hongbao_rains",
        "gauge",
        "Rains that are not finished, by state: the same in every process with the role admin.",
    ),
    (
        "hongbao_packets_left",
        "gauge",
        "Packets that lie in the pools of rains that are not finished: nobody has won them yet.",
    ),
    (
        "hongbao_pipeline_problems",
        "gauge",
        "Places that could not be counted at the last look: while it is not 0, hongbao_claims, hongbao_rains and hongbao_packets_left are too low.",
    ),
    (
        "hongbao_step_failures_total",
        "counter",
        "Steps of rains (load, open, balance, close, refund, finish) that a steward could not take, by cause: node (it tries again soon), other (read the log), and list (the ledger did not say which rains there are).",
    ),
    (
        "hongbao_webhook_deliveries_total",
        "counter",
        "Events sent to webhooks by this process, by result: delivered, retried (sent again later), failed (kept until a person sends it again).",
    ),
    (
        "hongbao_webhook_pending",
        "gauge",
        "Deliveries that wait to be sent, or sent again, to webhooks that are enabled: the same in every process with the role admin.",
    ),
    (
        "hongbao_webhook_oldest_seconds",
        "gauge",
        "How long the oldest of them has waited: more than a few seconds means that a receiver does not take its events.",
    ),
    (
        "hongbao_webhook_request_seconds",
        "histogram",
        "One request to a webhook, from connecting to the last byte of its answer.",
    ),
    (
        "hongbao_admin_requests_total",
        "counter",
        "Requests to the admin API at its door, by result: accepted, or why not: unsigned, clock (more than 5 s off), signature (wrong key, secret or contents), replayed, key_revoked, key_expired, session (it has ended), foreign_page (a write by cookie from elsewhere), not_allowed, unfit (body too large, too slow), unavailable.",
    ),
    (
        "hongbao_console_logins_total",
        "counter",
        "Logins to the console, by result: succeeded, failed, throttled (too many failed before).",
    ),
    (
        "hongbao_openings_total",
        "counter",
        "Openings of schedules looked after by this process, by result: created, failed (tried again until its time comes), missed (its time came, and there was no rain).",
    ),
    (
        "hongbao_audits_total",
        "counter",
        "Audits by verdict: any but balanced is an alarm.",
    ),
];

pub struct Metrics {
    pub sessions: Gauge,
    pub connections: Counter,
    pub accepts_delayed: Counter,
    pub refused_by_session_rate: Counter,
    pub refused_by_user_rate: Counter,
    pub edge_sessions: Gauge,
    pub in_flight_full: Counter,
    pub edge_in_flight_full: Counter,
    pub edge_awaited_dropped: Counter,
    pub cooled_down: Counter,
    pub risk_allow: Counter,
    pub risk_hold: Counter,
    pub risk_deny: Counter,
    pub risk_failed: Counter,
    pub risk_full: Counter,
    pub progress_pushes: Counter,
    pub token_keys: Gauge,
    pub token_keys_loaded: Counter,
    pub token_keys_broken: Counter,
    pub refreshes_accepted: Counter,
    pub refreshes_refused: Counter,
    outcomes: [Counter; 64],
    pub grab_seconds: Histogram,
    pub grab_batch_users: Histogram,
    pub pushes: Counter,
    pub node_failures: Counter,
    pub claims_leased: Counter,
    pub credits: Counter,
    pub credited_cents: Counter,
    pub claims_retried: Counter,
    pub claims_buried: Counter,
    pub settle_batch_seconds: Histogram,
    pub balance_request_seconds: Histogram,
    pub balance_away: Gauge,
    pub claims_waiting: Gauge,
    pub claims_in_lease: Gauge,
    pub claims_retrying: Gauge,
    pub claims_dead: Gauge,
    pub claim_oldest_seconds: Gauge,
    pub packets_left: Gauge,
    pub pipeline_problems: Gauge,
    pub log_errors: Counter,
    pub log_warnings: Counter,
    pub webhooks_delivered: Counter,
    pub webhooks_retried: Counter,
    pub webhooks_failed: Counter,
    pub webhooks_pending: Gauge,
    pub webhook_oldest_seconds: Gauge,
    pub webhook_request_seconds: Histogram,
    pub inbox_messages: Counter,
    pub inbox_waits: Counter,
    pub inbox_pages_read: Counter,
    pub inbox_pages_busy: Counter,
    pub inbox_pages_away: Counter,
    pub inbox_pushes: Counter,
    pub inbox_pushes_dropped: Counter,
}

impl Metrics {
    fn new() -> Metrics {
        for (name, kind, text) in SURFACE {
            match *kind {
                "gauge" => describe_gauge!(*name, *text),
                "histogram" => describe_histogram!(*name, *text),
                _ => describe_counter!(*name, *text),
            }
        }
        zero_known_labels();
        let outcome = |code: usize| match Outcome::try_from(code as i32) {
            Ok(outcome) if outcome != Outcome::Unspecified => {
                counter!("hongbao_grabs_total", "outcome" => outcome.as_str_name())
            }
            _ => Counter::noop(),
        };
        Metrics {
            sessions: gauge!("hongbao_sessions"),
            connections: counter!("hongbao_connections_total"),
            accepts_delayed: counter!("hongbao_accepts_delayed_total"),
            refused_by_session_rate: counter!("hongbao_frames_refused_total", "limit" => "session_rate"),
            refused_by_user_rate: counter!("hongbao_frames_refused_total", "limit" => "user_rate"),
            edge_sessions: gauge!("hongbao_edge_sessions"),
            in_flight_full: counter!("hongbao_in_flight_full_total", "session" => "user"),
            edge_in_flight_full: counter!("hongbao_in_flight_full_total", "session" => "edge"),
            edge_awaited_dropped: counter!("hongbao_edge_awaited_dropped_total"),
            cooled_down: counter!("hongbao_cooled_down_total"),
            risk_allow: counter!("hongbao_risk_users_total", "result" => "allow"),
            risk_hold: counter!("hongbao_risk_users_total", "result" => "hold"),
            risk_deny: counter!("hongbao_risk_users_total", "result" => "deny"),
            risk_failed: counter!("hongbao_risk_users_total", "result" => "failed"),
            risk_full: counter!("hongbao_risk_users_total", "result" => "full"),
            progress_pushes: counter!("hongbao_progress_pushes_total"),
            token_keys: gauge!("hongbao_token_keys"),
            token_keys_loaded: counter!("hongbao_token_keys_loads_total", "result" => "loaded"),
            token_keys_broken: counter!("hongbao_token_keys_loads_total", "result" => "broken"),
            refreshes_accepted: counter!("hongbao_refreshes_total", "result" => "accepted"),
            refreshes_refused: counter!("hongbao_refreshes_total", "result" => "refused"),
            outcomes: std::array::from_fn(outcome),
            grab_seconds: histogram!("hongbao_grab_seconds"),
            grab_batch_users: histogram!("hongbao_grab_batch_users"),
            pushes: counter!("hongbao_pushes_total"),
            node_failures: counter!("hongbao_node_failures_total"),
            claims_leased: counter!("hongbao_claims_leased_total"),
            credits: counter!("hongbao_credits_total"),
            credited_cents: counter!("hongbao_credited_cents_total"),
            claims_retried: counter!("hongbao_claims_retried_total"),
            claims_buried: counter!("hongbao_claims_buried_total"),
            settle_batch_seconds: histogram!("hongbao_settle_batch_seconds"),
            balance_request_seconds: histogram!("hongbao_balance_request_seconds"),
            balance_away: gauge!("hongbao_balance_away"),
            claims_waiting: gauge!("hongbao_claims", "state" => "waiting"),
            claims_in_lease: gauge!("hongbao_claims", "state" => "leased"),
            claims_retrying: gauge!("hongbao_claims", "state" => "retrying"),
            claims_dead: gauge!("hongbao_claims", "state" => "dead"),
            claim_oldest_seconds: gauge!("hongbao_claim_oldest_seconds"),
            packets_left: gauge!("hongbao_packets_left"),
            pipeline_problems: gauge!("hongbao_pipeline_problems"),
            log_errors: counter!("hongbao_log_lines_total", "level" => "error"),
            log_warnings: counter!("hongbao_log_lines_total", "level" => "warn"),
            webhooks_delivered: counter!("hongbao_webhook_deliveries_total", "result" => "delivered"),
            webhooks_retried: counter!("hongbao_webhook_deliveries_total", "result" => "retried"),
            webhooks_failed: counter!("hongbao_webhook_deliveries_total", "result" => "failed"),
            webhooks_pending: gauge!("hongbao_webhook_pending"),
            webhook_oldest_seconds: gauge!("hongbao_webhook_oldest_seconds"),
            webhook_request_seconds: histogram!("hongbao_webhook_request_seconds"),
            inbox_messages: counter!("hongbao_inbox_messages_total"),
            inbox_waits: counter!("hongbao_inbox_waits_total"),
            inbox_pages_read: counter!("hongbao_inbox_pages_total", "result" => "read"),
            inbox_pages_busy: counter!("hongbao_inbox_pages_total", "result" => "busy"),
            inbox_pages_away: counter!("hongbao_inbox_pages_total", "result" => "away"),
            inbox_pushes: counter!("hongbao_inbox_pushes_total"),
            inbox_pushes_dropped: counter!("hongbao_inbox_pushes_dropped_total"),
        }
    }

    pub fn outcome(&self, outcome: Outcome) -> &Counter {
        &self.outcomes[outcome as usize]
    }

    /// What this process is, once at its start.
    pub fn started(&self, roles: impl IntoIterator<Item = &'static str>) {
        gauge!("hongbao_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1);
        for role in roles {
            gauge!("hongbao_role", "role" => role).set(1);
        }
    }

    pub fn closed(&self, code: CloseCode) {
        counter!("hongbao_connections_closed_total", "code" => code.as_str_name()).increment(1);
    }

    pub fn admin_request(&self, result: &'static str) {
        counter!("hongbao_admin_requests_total", "result" => result).increment(1);
    }

    pub fn console_login(&self, result: &'static str) {
        counter!("hongbao_console_logins_total", "result" => result).increment(1);
    }

    pub fn opening(&self, result: &'static str) {
        counter!("hongbao_openings_total", "result" => result).increment(1);
    }

    pub fn connection_refused(&self, reason: &'static str) {
        counter!("hongbao_connections_refused_total", "reason" => reason).increment(1);
    }

    pub fn tls_handshake(&self, kind: &'static str) {
        counter!("hongbao_tls_handshakes_total", "kind" => kind).increment(1);
    }

    pub fn tls_reloaded(&self, result: &'static str) {
        counter!("hongbao_tls_reloads_total", "result" => result).increment(1);
    }

    pub fn panicked(&self, task: &'static str) {
        counter!("hongbao_panics_total", "task" => task).increment(1);
    }

    pub fn balance_requested(&self, result: &'static str) {
        counter!("hongbao_balance_requests_total", "result" => result).increment(1);
    }

    pub fn node_up(&self, node: &str, up: bool) {
        gauge!("hongbao_node_up", "node" => node.to_owned()).set(f64::from(u8::from(up)));
    }

    /// No number, rather than "down" for ever: a node that has moved has another name. (Series cannot be taken back.)
    pub fn node_left(&self, node: &str) {
        gauge!("hongbao_node_up", "node" => node.to_owned()).set(f64::NAN);
    }

    pub fn redirected(&self, kind: &'static str) {
        counter!("hongbao_redirects_total", "kind" => kind).increment(1);
    }

    pub fn repaired(&self, report: &crate::steward::repair::Report) {
        counter!("hongbao_repairs_total").increment(1);
        for (what, count) in [
            ("restored", report.wins_restored),
            ("removed", report.packets_removed),
            ("returned", report.packets_returned),
            ("not_restored", report.not_restored_total),
        ] {
            counter!("hongbao_repair_packets_total", "what" => what).increment(count);
        }
    }

    pub fn rains(&self, state: State, count: usize) {
        gauge!("hongbao_rains", "state" => state.as_str()).set(count as f64);
    }

    pub fn step_failed(&self, cause: &'static str) {
        counter!("hongbao_step_failures_total", "cause" => cause).increment(1);
    }

    pub fn audited(&self, verdict: &'static str) {
        counter!("hongbao_audits_total", "verdict" => verdict).increment(1);
    }
}

/// A series that begins with its first event hides that event: `increase()` sees no step from nothing to 1. So all whose labels are known
/// begin at 0.
fn zero_known_labels() {
    let known: &[(&'static str, &'static str, &[&'static str])] = &[
        (
            "hongbao_balance_requests_total",
            "result",
            &[
                "answered",
                "refused",
                "failed",
                "unreadable",
                "broken",
                "timed_out",
                "unreachable",
            ],
        ),
        (
            "hongbao_connections_refused_total",
            "reason",
            &[
                "gateway_full",
                "address_full",
                "address_rate",
                "address_handshakes",
                "handshakes_full",
                "proxy_header",
                "tls_handshake",
                "late",
            ],
        ),
        (
            "hongbao_admin_requests_total",
            "result",
            &[
                "accepted",
                "unsigned",
                "clock",
                "signature",
                "replayed",
                "key_revoked",
                "key_expired",
                "session",
                "foreign_page",
                "not_allowed",
                "unfit",
                "unavailable",
            ],
        ),
        (
            "hongbao_console_logins_total",
            "result",
            &["succeeded", "failed", "throttled"],
        ),
        ("hongbao_tls_handshakes_total", "kind", &["full", "resumed"]),
        (
            "hongbao_openings_total",
            "result",
            &["created", "failed", "missed"],
        ),
        ("hongbao_tls_reloads_total", "result", &["loaded", "broken"]),
        ("hongbao_redirects_total", "kind", &["moved", "ask", "wait"]),
        (
            "hongbao_repair_packets_total",
            "what",
            &["restored", "removed", "returned", "not_restored"],
        ),
        (
            "hongbao_audits_total",
            "verdict",
            &["balanced", "unbalanced"],
        ),
        (
            "hongbao_step_failures_total",
            "cause",
            &["node", "other", "list"],
        ),
    ];
    for (name, label, values) in known {
        for value in *values {
            counter!(*name, *label => *value).increment(0);
        }
    }
    counter!("hongbao_repairs_total").increment(0);
    for code in (0..1_000).filter_map(|code| CloseCode::try_from(code).ok()) {
        if code != CloseCode::Unspecified {
            let name = code.as_str_name();
            counter!("hongbao_connections_closed_total", "code" => name).increment(0);
        }
    }
}

static METRICS: LazyLock<Metrics> = LazyLock::new(Metrics::new);

/// The handles. The recorder must have been installed before, or they count nothing.
pub fn get() -> &'static Metrics {
    &METRICS
}

/// Installs the Prometheus recorder of this process; the handle renders it. Once a process.
pub fn install() -> Result<PrometheusHandle, BuildError> {
    crate::process::started();
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), LATENCY_BUCKETS)?
        .set_buckets_for_metric(Matcher::Suffix("_users".into()), SIZE_BUCKETS)?;
    let handle = builder.install_recorder()?;
    static UPKEEP: Once = Once::new();
    UPKEEP.call_once(|| {
        let handle = handle.clone();
        // A thread of its own: it must go on when the runtime is busy, since that is when samples pile up.
        let upkeep = move || loop {
            thread::sleep(UPKEEP_EVERY);
            handle.run_upkeep();
        };
        let started = thread::Builder::new().name("metrics".into()).spawn(upkeep);
        started.expect("a process that cannot start a thread cannot serve either");
    });
    Ok(handle)
}

/// What `/metrics` says: the recorder's metrics, and what this process uses at this moment.
pub fn page(handle: &PrometheusHandle) -> String {
    let mut page = handle.render();
    if let Ok(usage) = Usage::now() {
        let values = [
            (
                "hongbao_process_start_time_seconds",
                usage.started_at_seconds,
            ),
            ("hongbao_process_cpu_seconds_total", usage.cpu_seconds),
            (
                "hongbao_process_resident_memory_bytes",
                usage.resident_bytes as f64,
            ),
            ("hongbao_descriptors", usage.descriptors as f64),
            ("hongbao_descriptors_max", usage.descriptors_max as f64),
        ];
        for (name, value) in values {
            let described = SURFACE.iter().find(|(described, ..)| *described == name);
            let (_, kind, text) = described.expect("every metric is in SURFACE");
            let _ = write!(
                page,
                "# HELP {name} {text}\n# TYPE {name} {kind}\n{name} {value}\n\n"
            );
        }
    }
    page
}
