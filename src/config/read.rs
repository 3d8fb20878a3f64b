//! Every setting by its name, with its unit, its default and its range; and what must hold between settings.

use std::path::PathBuf;

use axum::http::Uri;
use axum::http::uri::Authority;

use super::source::Reader;
use super::*;

impl Settings {
    /// The effective settings, and a line `key = value (origin)` for each.
    pub fn read(sources: Sources) -> Result<(Settings, Vec<String>), Faults> {
        let mut reader = Reader::new(sources);
        let settings = Self::from_reader(&mut reader);
        reader.finish().map(|shown| (settings, shown))
    }

    fn from_reader(r: &mut Reader) -> Settings {
        let data_dir = PathBuf::from(r.text("server.data_dir", "hongbao-data"));
        let under = |dir: &Path, text: String| {
            if text.is_empty() {
                dir.to_owned()
            } else {
                dir.join(text)
            }
        };
        let roles = r.texts("server.roles", &["gateway", "settle", "steward", "admin"]);
        let mut known_roles = vec![];
        for role in &roles {
            match role.parse() {
                Ok(role) => known_roles.push(role),
                Err(problem) => r.fault("server.roles", format!("\"{role}\" {problem}")),
            }
        }
        if roles.is_empty() {
            r.fault("server.roles", "must name at least one role".into());
        }
        let inbox = Inbox {
            keep: r.ms(
                "settle.inbox_keep_ms",
                2_592_000_000,
                1_000..=31_536_000_000,
            ),
            messages_max: r.count("settle.inbox_messages_max", 100, 1..=500),
        };
        let mut settings = Settings {
            log: Log {
                level: r.parsed("log.level", Directives("info".into())).0,
                json: r.flag("log.json", false),
            },
            trace: Trace::read(r),
            store: Self::store(r),
            gateway: Self::gateway(r),
            tokens: Tokens {
                secret_file: under(&data_dir, r.text("tokens.secret_file", "token-secret")),
                kid: r.text("tokens.kid", "default"),
                keys_file: Some(PathBuf::from(r.text("tokens.keys_file", "")))
                    .filter(|path| path != Path::new("")),
                leeway: r.ms("tokens.leeway_ms", 5_000, 0..=300_000),
            },
            risk: Self::risk(r),
            settle: Settle {
                workers: r.count("settle.workers", 2, 1..=64),
                lease: r.ms("settle.lease_ms", 30_000, 1_000..=3_600_000),
                batch_max: r.count("settle.batch_max", SETTLE_BATCH_MAX, 1..=SETTLE_BATCH_MAX),
                idle_wait: r.ms("settle.idle_wait_ms", 20, 1..=10_000),
                attempts_max: r.number("settle.attempts_max", 10, 1..=1_000) as u32,
                retry_base: r.ms("settle.retry_base_ms", 500, 1..=600_000),
                retry_max: r.ms("settle.retry_max_ms", 300_000, 1..=86_400_000),
                inbox,
            },
            ledger: Self::ledger(r, &known_roles),
            steward: Steward {
                interval: r.ms("steward.interval_ms", 50, 5..=10_000),
                repair_wait: r.ms("steward.repair_wait_ms", 500, 0..=600_000),
                progress_interval: r.ms("steward.progress_interval_ms", 200, 200..=3_600_000),
                refund_after: r.ms("steward.refund_after_ms", 86_400_000, 0..=31_536_000_000),
                keep_keys: r.ms("steward.keep_keys_ms", 604_800_000, 1_000..=31_536_000_000),
                durability: r.parsed("steward.durability", Durability::Memory),
                inbox,
                lease: LeaseTerms {
                    length: r.ms("steward.lease_ms", 5_000, 200..=3_600_000),
                    renew_interval: r.ms("steward.lease_renew_ms", 1_500, 10..=3_600_000),
                    margin: r.ms("steward.lease_margin_ms", 500, 10..=600_000),
                },
            },
            admin: Admin {
                listen: r.parsed("admin.listen", SocketAddr::from(([127, 0, 0, 1], 7701))),
                api_key_file: under(&data_dir, r.text("admin.api_key_file", "api-key")),
                key_secret_file: under(&data_dir, r.text("admin.key_secret_file", "key-secret")),
                connections_max: r.count("admin.connections_max", 256, 1..=65_536),
                header_timeout: r.ms("admin.header_timeout_ms", 5_000, 100..=60_000),
                write_timeout: r.ms("admin.write_timeout_ms", 30_000, 100..=600_000),
                body_max: r.count("admin.body_max_bytes", 256 * 1024, 1_024..=64 * 1024 * 1024),
                body_timeout: r.ms("admin.body_timeout_ms", 10_000, 100..=600_000),
                live_interval: r.ms("admin.live_interval_ms", 500, 50..=60_000),
                confirm: r.flag("admin.confirm", true),
                confirm_above: Cents(r.count(
                    "admin.confirm_above_cents",
                    100_000,
                    0..=1_000_000_000_000_000,
                ) as i64),
                schedule_interval: r.ms("admin.schedule_interval_ms", 1_000, 20..=60_000),
                live_streams_max: r.count("admin.live_streams_max", 64, 1..=65_536),
                console_idle: r.ms("admin.console_idle_ms", 1_800_000, 50..=86_400_000),
                console_session: r.ms("admin.console_session_ms", 43_200_000, 50..=7 * 86_400_000),
                currency: r.text("admin.currency", "¥"),
            },
            webhooks: Self::webhooks(r),
            roles: known_roles,
            data_dir,
        };
        if let Balance::Http(http) = &settings.ledger.balance {
            settings.steward.repair_wait = settings.steward.repair_wait.max(http.timeout);
        }
        settings.check(r);
        settings
    }

    fn store(r: &mut Reader) -> Store {
        #[derive(Clone, Copy)]
        enum Kind {
            Managed,
            Nodes,
            Sentinel,
            Cluster,
        }
        let kind = r.one_of(
            "store.topology",
            "managed",
            &[
                ("managed", Kind::Managed),
                ("nodes", Kind::Nodes),
                ("sentinel", Kind::Sentinel),
                ("cluster", Kind::Cluster),
            ],
        );
        let managed = r.count("store.managed_nodes", 3, 1..=64);
        let choices = [
            ("everysec", AppendFsync::EverySecond),
            ("always", AppendFsync::Always),
        ];
        let fsync = r.one_of("store.managed_appendfsync", "everysec", &choices);
        let urls = r.texts("store.nodes", &[]);
        let sentinels = r.texts("store.sentinels", &[]);
        if matches!(kind, Kind::Managed) == !urls.is_empty() {
            let problem = match kind {
                Kind::Managed => {
                    "is given, but store.topology is \"managed\": set it to \"nodes\", \"sentinel\" or \"cluster\""
                }
                Kind::Nodes => "must list at least one node, like [\"redis://127.0.0.1:6379\"]",
                Kind::Sentinel => {
                    "must list at least one primary by its name, like [\"redis://rain-a\"]"
                }
                Kind::Cluster => {
                    "must list at least one node of the cluster, like [\"redis://127.0.0.1:6379\"]"
                }
            };
            r.fault("store.nodes", problem.into());
        }
        if matches!(kind, Kind::Sentinel) == sentinels.is_empty() {
            let problem = if sentinels.is_empty() {
                "must list at least one sentinel, like [\"redis://127.0.0.1:26379\"]"
            } else {
                "is given, but store.topology is not \"sentinel\""
            };
            r.fault("store.sentinels", problem.into());
        }
        let file = |r: &mut Reader, key| {
            Some(PathBuf::from(r.text(key, ""))).filter(|path| path != Path::new(""))
        };
        let tls = NodeTls {
            ca_file: file(r, "store.tls_ca_file"),
            cert_file: file(r, "store.tls_cert_file"),
            key_file: file(r, "store.tls_key_file"),
        };
        if tls.cert_file.is_some() != tls.key_file.is_some() {
            let problem = "and store.tls_key_file are given together or not at all";
            r.fault("store.tls_cert_file", problem.into());
        }
        let topology = match kind {
            Kind::Managed => Topology::Managed {
                nodes: managed,
                fsync,
            },
            Kind::Nodes => Topology::Nodes { urls },
            Kind::Sentinel => Topology::Sentinel {
                sentinels,
                primaries: urls,
            },
            Kind::Cluster => Topology::Cluster { seeds: urls },
        };
        Store {
            topology,
            tls,
            connect_timeout: r.ms("store.connect_timeout_ms", 1_000, 10..=60_000),
            call_timeout: r.ms("store.call_timeout_ms", 1_000, 10..=60_000),
            probe_interval: r.ms("store.probe_interval_ms", 200, 10..=60_000),
        }
    }

    fn ledger(r: &mut Reader, roles: &[Role]) -> Ledger {
        let url = r.text("ledger.url", "");
        let create_user_accounts = r.flag("ledger.create_user_accounts", true);
        let http = r.one_of(
            "ledger.balance",
            "ledger",
            &[("ledger", false), ("http", true)],
        );
        let texts = [
            "ledger.balance_url",
            "ledger.balance_secret_file",
            "ledger.balance_ca_file",
        ];
        let [balance_url, secret_file, ca_file] = texts.map(|key| (key, r.text(key, "")));
        let timeout = r.ms("ledger.balance_timeout_ms", 5_000, 10..=600_000);
        let batch_max = r.count("ledger.balance_batch_max", 500, 1..=SETTLE_BATCH_MAX);
        let concurrency_max = r.count("ledger.balance_concurrency_max", 4, 1..=256);
        if !http {
            for (key, text) in [balance_url, secret_file, ca_file] {
                if !text.is_empty() {
                    let problem = "is given, but ledger.balance is \"ledger\": set it to \"http\"";
                    r.fault(key, problem.into());
                }
            }
            return Ledger {
                url,
                create_user_accounts,
                balance: Balance::Ledger,
            };
        }
        if !create_user_accounts {
            let problem = "must be true when ledger.balance is \"http\": the ledger could not record what was paid to a user it does not know";
            r.fault("ledger.create_user_accounts", problem.into());
        }
        let parsed = endpoint_url(&balance_url.1);
        match &parsed {
            Err(problem) => r.fault(balance_url.0, problem.clone()),
            Ok(url) if url.scheme_str() == Some("http") && !ca_file.1.is_empty() => {
                let problem = "is given, but ledger.balance_url is no https address";
                r.fault(ca_file.0, problem.into());
            }
            Ok(_) => {}
        }
        // Machines that do not settle need not have the secret.
        if roles.contains(&Role::Settle)
            && let Err(problem) = read_secret(Path::new(&secret_file.1))
        {
            r.fault(secret_file.0, problem);
        }
        Ledger {
            url,
            create_user_accounts,
            balance: Balance::Http(HttpBalance {
                url: parsed.unwrap_or_default(),
                secret_file: secret_file.1.into(),
                ca_file: Some(PathBuf::from(ca_file.1)).filter(|path| path != Path::new("")),
                timeout,
                batch_max,
                concurrency_max,
            }),
        }
    }

    fn webhooks(r: &mut Reader) -> Webhooks {
        let day = 86_400_000;
        let ca_file = PathBuf::from(r.text("webhooks.ca_file", ""));
        let webhooks = Webhooks {
            interval: r.ms("webhooks.interval_ms", 200, 5..=60_000),
            timeout: r.ms("webhooks.timeout_ms", 5_000, 10..=60_000),
            hold: r.ms("webhooks.hold_ms", 15_000, 100..=600_000),
            retries: [
                r.ms("webhooks.first_retry_ms", 30_000, 1..=day),
                r.ms("webhooks.second_retry_ms", 60_000, 1..=day),
                r.ms("webhooks.third_retry_ms", 180_000, 1..=day),
            ],
            keep: r.ms("webhooks.keep_ms", 7 * day, 1..=3_650 * day),
            concurrency_max: r.count("webhooks.concurrency_max", 4, 1..=64),
            allow_http: r.flag("webhooks.allow_http", false),
            ca_file: Some(ca_file).filter(|path| path != Path::new("")),
        };
        if webhooks.hold < webhooks.timeout * 2 {
            let problem = "must be at least twice webhooks.timeout_ms, or another process sends what is being sent";
            r.fault("webhooks.hold_ms", problem.into());
        }
        webhooks
    }

    fn risk(r: &mut Reader) -> Option<Risk> {
        let url = r.text("risk.url", "");
        let token_file = PathBuf::from(r.text("risk.token_file", ""));
        let risk = Risk {
            url: Uri::default(),
            token_file: Some(token_file).filter(|path| path != Path::new("")),
            timeout: r.ms("risk.timeout_ms", 500, 1..=60_000),
            fails_open: r.one_of("risk.fail", "open", &[("open", true), ("closed", false)]),
            batch_max: r.count("risk.batch_max", 500, 1..=10_000),
            concurrency_max: r.count("risk.concurrency_max", 8, 1..=256),
            queue_max: r.count("risk.queue_max", 65_536, 1..=1_048_576),
            memory_max: r.count("risk.memory_max", 1_000_000, 64..=100_000_000),
            pause: r.ms("risk.pause_ms", 1_000, 0..=600_000),
        };
        if url.is_empty() {
            return None;
        }
        match endpoint_url(&url) {
            Ok(url) => Some(Risk { url, ..risk }),
            Err(problem) => {
                r.fault("risk.url", problem);
                None
            }
        }
    }

    fn tls(r: &mut Reader) -> Option<Tls> {
        let files = ["gateway.tls_cert_file", "gateway.tls_key_file"];
        let [cert_file, key_file] = files.map(|key| r.text(key, ""));
        let reload_interval = r.ms("gateway.tls_reload_interval_ms", 10_000, 10..=86_400_000);
        for (key, given, other) in [
            (files[1], &key_file, &cert_file),
            (files[0], &cert_file, &key_file),
        ] {
            if given.is_empty() && !other.is_empty() {
                let problem = "is missing: TLS needs a certificate and its key";
                r.fault(key, problem.into());
            }
        }
        (!cert_file.is_empty()).then(|| Tls {
            cert_file: cert_file.into(),
            key_file: key_file.into(),
            reload_interval,
        })
    }

    fn networks(r: &mut Reader, key: &'static str) -> Vec<Network> {
        let mut networks = vec![];
        for text in r.texts(key, &[]) {
            match text.parse() {
                Ok(network) => networks.push(network),
                Err(problem) => r.fault(key, problem),
            }
        }
        networks
    }

    fn gateway(r: &mut Reader) -> Gateway {
        let handshakes_max = r.count("gateway.handshakes_max", 2_048, 1..=65_536);
        Gateway {
            // What one address can have by its ports alone: a limit that holds, and that nobody meets before it is set lower.
            connections_per_address_max: r.count(
                "gateway.connections_per_address_max",
                65_536,
                1..=10_000_000,
            ),
            connects_per_address_per_second: r.number(
                "gateway.connects_per_address_per_second",
                10_000,
                1..=1_000_000,
            ),
            accepts_per_second: r.number("gateway.accepts_per_second", 50_000, 1..=10_000_000),
            proxy_trusted: Self::networks(r, "gateway.proxy_trusted"),
            tls: Self::tls(r),
            handshake_timeout: r.ms("gateway.handshake_timeout_ms", 5_000, 10..=60_000),
            handshakes_max,
            // With a handshake of 200 ms, more than a thousand phones a second behind one carrier's address.
            handshakes_per_address_max: r.count(
                "gateway.handshakes_per_address_max",
                (handshakes_max / 8).max(1),
                1..=65_536,
            ),
            frame_timeout: r.ms("gateway.frame_timeout_ms", 10_000, 10..=600_000),
            frames_per_second: r.number("gateway.frames_per_second", 100, 1..=10_000_000),
            edge_frames_per_second: r.number(
                "gateway.edge_frames_per_second",
                1_000_000,
                1..=10_000_000,
            ),
            user_frames_per_second: r.number("gateway.user_frames_per_second", 200, 1..=10_000_000),
            drain_delay: r.ms("gateway.drain_delay_ms", 0, 0..=600_000),
            drain_spread: r.ms("gateway.drain_spread_ms", 2_000, 1..=3_600_000),
            listen: r.parsed("gateway.listen", SocketAddr::from(([127, 0, 0, 1], 7700))),
            workers: r.count("gateway.workers", 1, 1..=256),
            connections_max: r.count("gateway.connections_max", 1_000_000, 1..=10_000_000),
            sessions_per_user: r.count("gateway.sessions_per_user", 4, 1..=1_000),
            hello_timeout: r.ms("gateway.hello_timeout_ms", 5_000, 10..=60_000),
            idle_timeout: r.ms("gateway.idle_timeout_ms", 90_000, 100..=3_600_000),
            heartbeat_interval: r.ms("gateway.heartbeat_interval_ms", 30_000, 10..=3_600_000),
            in_flight_max: r.count("gateway.in_flight_max", 32, 1..=65_536),
            write_backlog_max: r.count(
                "gateway.write_backlog_max_bytes",
                64 * 1024,
                1_024..=16 * 1024 * 1024,
            ),
            edge_in_flight_max: r.count("gateway.edge_in_flight_max", 16_384, 1..=1_048_576),
            edge_write_backlog_max: r.count(
                "gateway.edge_write_backlog_max_bytes",
                4 * 1024 * 1024,
                1_024..=256 * 1024 * 1024,
            ),
            edge_awaited_max: r.count("gateway.edge_awaited_max", 262_144, 1..=16_777_216),
            lane_queue_max: r.count("gateway.lane_queue_max", 65_536, 1..=1_048_576),
            lanes_per_node: r.count("gateway.lanes_per_node", 1, 1..=16),
            empty_memory: r.ms("gateway.empty_memory_ms", 50, 1..=1_000),
            retry_after: r.ms("gateway.retry_after_ms", 300, 1..=60_000),
            progress_interval: r.ms("gateway.progress_interval_ms", 200, 200..=3_600_000),
            progress_per_second_max: r.count(
                "gateway.progress_per_second_max",
                20_000,
                0..=10_000_000,
            ),
            early_taps_max: r.number("gateway.early_taps_max", 10, 0..=1_000_000) as u32,
            early_window: r.ms("gateway.early_window_ms", 10_000, 1..=3_600_000),
            early_cool_down: r.ms("gateway.early_cool_down_ms", 3_000, 1..=600_000),
            keys_poll: r.ms("tokens.keys_poll_ms", 1_000, 10..=3_600_000),
            replicas_wait: r.ms("gateway.replicas_wait_ms", 500, 1..=60_000),
            drain_timeout: r.ms("gateway.drain_timeout_ms", 5_000, 0..=600_000),
        }
    }

    /// What holds between settings.
    fn check(&self, r: &mut Reader) {
        let managed = matches!(self.store.topology, Topology::Managed { .. });
        if managed && !Role::ALL.iter().all(|role| self.roles.contains(role)) {
            let problem = "needs all four roles in this process, since managed nodes are private to it; use \"nodes\"";
            r.fault("store.topology", problem.into());
        }
        if self.gateway.heartbeat_interval >= self.gateway.idle_timeout {
            let problem = format!(
                "{} ms must be shorter than gateway.idle_timeout_ms, {} ms",
                self.gateway.heartbeat_interval.as_millis(),
                self.gateway.idle_timeout.as_millis()
            );
            r.fault("gateway.heartbeat_interval_ms", problem);
        }
        let (all, of_one) = (
            self.gateway.handshakes_max,
            self.gateway.handshakes_per_address_max,
        );
        if of_one > all {
            let problem = format!(
                "{of_one} must be from 1 to gateway.handshakes_max, {all}: so many are never under way, and one address could take every turn"
            );
            r.fault("gateway.handshakes_per_address_max", problem);
        }
        if self.gateway.replicas_wait >= self.store.call_timeout {
            let problem = format!(
                "{} ms must be shorter than store.call_timeout_ms, {} ms: a wait that falls short is an answer, a time-out costs the connection",
                self.gateway.replicas_wait.as_millis(),
                self.store.call_timeout.as_millis()
            );
            r.fault("gateway.replicas_wait_ms", problem);
        }
        if self.settle.lease < self.store.call_timeout * 5 {
            let problem = "must be at least five times store.call_timeout_ms, or live settlers lose their leases";
            r.fault("settle.lease_ms", problem.into());
        }
        let lease = &self.steward.lease;
        let needed = lease.renew_interval + self.store.call_timeout + lease.margin;
        if lease.length <= needed {
            let problem = format!(
                "must be more than steward.lease_renew_ms, store.call_timeout_ms and steward.lease_margin_ms together, {} ms, or one \
                 call that is not answered loses the lease",
                needed.as_millis()
            );
            r.fault("steward.lease_ms", problem);
        }
        if let Balance::Http(http) = &self.ledger.balance
            && http.timeout * 3 > self.settle.lease
        {
            let problem = "must be at most a third of settle.lease_ms: a settler that waits for an answer may not lose its lease";
            r.fault("ledger.balance_timeout_ms", problem.into());
        }
        if self.steward.durability == Durability::Fsync
            && let Topology::Managed {
                fsync: AppendFsync::EverySecond,
                ..
            } = self.store.topology
        {
            r.fault(
                "steward.durability",
                "\"fsync\" needs store.managed_appendfsync = \"always\"".into(),
            );
        }
    }
}

pub(super) fn endpoint_url(text: &str) -> Result<Uri, String> {
    let fault = || {
        format!(
            "{text:?} must be the address of the endpoint, like https://company.example/hongbao, without user and password"
        )
    };
    let url: Uri = text.parse().map_err(|_| fault())?;
    let plain = |authority: &Authority| !authority.as_str().contains('@');
    match (url.scheme_str(), url.authority()) {
        (Some("http" | "https"), Some(authority)) if plain(authority) => Ok(url),
        _ => Err(fault()),
    }
}
