use super::*;

fn faults(sources: Sources) -> String {
    Settings::read(sources).unwrap_err().to_string()
}

#[test]
fn the_defaults_are_valid() {
    let (settings, shown) = Settings::read(Sources::default()).unwrap();
    assert_eq!(settings.gateway.listen.port(), 7700);
    assert!(shown.contains(&"gateway.listen = 127.0.0.1:7700 (default)".to_owned()));
}

#[test]
fn flags_win_over_the_environment_which_wins_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("hongbao.toml");
    std::fs::write(
        &file,
        "[gateway]\nworkers = 2\nin_flight_max = 3\nlane_queue_max = 4\n",
    )
    .unwrap();
    let environment = [
        ("HONGBAO_GATEWAY__IN_FLIGHT_MAX", "30"),
        ("HONGBAO_GATEWAY__LANE_QUEUE_MAX", "40"),
        ("HONGBAO_API_KEY", "x"),
    ];
    let environment = environment.map(|(name, text)| (name.to_owned(), text.to_owned()));
    let sources = Sources::default()
        .file(&file)
        .environment(environment.into_iter())
        .flags(["gateway.lane_queue_max=400", "admin.listen=127.0.0.1:0"]);
    let (settings, _) = Settings::read(sources).unwrap();
    let gateway = &settings.gateway;
    assert_eq!(
        (
            gateway.workers,
            gateway.in_flight_max,
            gateway.lane_queue_max
        ),
        (2, 30, 400)
    );
    assert_eq!(settings.admin.listen.port(), 0);
}

#[test]
fn all_faults_are_reported_together_with_where_they_came_from() {
    let environment = [("HONGBAO_GATEWAY__WORKERS".to_owned(), "none".to_owned())];
    let text = faults(
        Sources::default()
            .environment(environment.into_iter())
            .flags([
                "gateway.lissen=127.0.0.1:1",
                "admin.listen=here",
                "settle.batch_max=0",
                "log.level=info,hongbao=loud",
                "oops",
            ]),
    );
    assert!(text.starts_with("6 faults in the settings:"), "{text}");
    for part in [
        "gateway.workers (environment HONGBAO_GATEWAY__WORKERS): \"none\" is not a number from 1 to 256",
        "gateway.lissen (flag --set gateway.lissen=127.0.0.1:1): is not a setting; did you mean gateway.listen?",
        "admin.listen (flag --set admin.listen=here): \"here\" is not valid",
        "settle.batch_max (flag --set settle.batch_max=0): 0 is not a number from 1 to 2000",
        "oops (flag --set): must be KEY=VALUE",
    ] {
        assert!(text.contains(part), "{part}\nis not in\n{text}");
    }
}

#[test]
fn settings_that_contradict_each_other_are_faults() {
    assert!(
        faults(Sources::default().flags(["store.topology=nodes"])).contains("at least one node")
    );
    assert!(
        faults(Sources::default().flags(["server.roles=[\"gateway\"]"])).contains("all four roles")
    );
    assert!(
        faults(Sources::default().flags(["steward.durability=fsync"]))
            .contains("managed_appendfsync")
    );
    assert!(
        faults(Sources::default().flags(["steward.lease_ms=3000"]))
            .contains("one call that is not answered loses the lease")
    );
    assert!(
        faults(Sources::default().flags(["gateway.replicas_wait_ms=5000"]))
            .contains("must be shorter than store.call_timeout_ms")
    );
    assert!(
        faults(Sources::default().flags(["server.roles=[\"cook\"]"]))
            .contains("\"cook\" is not one of")
    );
}

/// An address that may begin as many handshakes as there are turns keeps everybody out, and a limit beyond that looks like one and is none.
#[test]
fn one_address_has_an_eighth_of_the_handshakes_unless_told_otherwise_and_never_more_than_all() {
    let all_and_of_one = |flags: &[&str]| {
        let sources = Sources::default().flags(flags.iter().copied());
        let (settings, _) = Settings::read(sources).unwrap();
        let gateway = settings.gateway;
        (gateway.handshakes_max, gateway.handshakes_per_address_max)
    };
    let (all, of_one) = (
        "gateway.handshakes_max=128",
        "gateway.handshakes_per_address_max",
    );
    assert_eq!(all_and_of_one(&[]), (2_048, 256));
    assert_eq!(all_and_of_one(&[all]), (128, 16));
    assert_eq!(all_and_of_one(&["gateway.handshakes_max=1"]), (1, 1));
    // Everybody behind one load balancer.
    let equal = format!("{of_one}=128");
    assert_eq!(all_and_of_one(&[all, &equal]), (128, 128));
    let more = format!("{of_one}=129");
    let text = faults(Sources::default().flags([all, &more]));
    let named =
        format!("{of_one} (flag --set {more}): 129 must be from 1 to gateway.handshakes_max, 128");
    assert!(text.contains(&named), "{text}");
}

#[test]
fn a_balance_system_needs_a_url_a_secret_and_a_time_out_within_the_lease() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        std::fs::write(dir.path().join(name), text).unwrap();
        format!(
            "ledger.balance_secret_file={}",
            dir.path().join(name).display()
        )
    };
    let (good, short) = (file("good", &"ab".repeat(32)), file("short", "abcd"));
    let url = "ledger.balance_url=https://balance.example/hongbao";
    let flags = ["ledger.balance=http", url, &good];
    let (settings, _) = Settings::read(Sources::default().flags(flags)).unwrap();
    let Balance::Http(http) = settings.ledger.balance else {
        panic!()
    };
    assert_eq!(http.url.host(), Some("balance.example"));
    assert_eq!(http.timeout, Duration::from_secs(5));

    for (change, fault) in [
        ("ledger.balance_url=", "must be the address of the endpoint"),
        ("ledger.balance_url=ftp://a/b", "\"ftp://a/b\" must be"),
        (
            "ledger.balance_url=http://anna:secret@host/",
            "without user and password",
        ),
        ("ledger.balance_secret_file=/nowhere", "No such file"),
        (&short, "it has 2 bytes, fewer than 32"),
        (
            "ledger.balance_timeout_ms=10001",
            "a third of settle.lease_ms",
        ),
        ("ledger.create_user_accounts=false", "must be true when"),
        ("ledger.balance=ledger", "set it to \"http\""),
    ] {
        let flags = flags.into_iter().chain([change]);
        let text = faults(Sources::default().flags(flags));
        assert!(text.contains(fault), "{change}: {text}");
    }
    // A gateway's machine has no secret.
    let gateway = [
        "server.roles=[\"gateway\"]",
        "store.topology=nodes",
        "store.nodes=[\"redis://a\"]",
    ];
    let flags = ["ledger.balance=http", url].into_iter().chain(gateway);
    assert!(Settings::read(Sources::default().flags(flags)).is_ok());
}
