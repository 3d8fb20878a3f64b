//! One grab followed in the log, from its frame to its credit, through two processes that share nothing but their stores.

use hongbao::wire::server_frame::Message;
use hongbao::wire::{Outcome, Welcome};
use serde_json::Value;

use crate::support::redis::Redis;
use crate::support::server::Server;
use crate::support::wire::Raw;
use crate::support::{eventually, postgres};

/// A gateway, and a process for the rest, on the same stores.
async fn pair(redis: &Redis, log: &[&str]) -> (Server, Server) {
    let nodes = format!("store.nodes=[\"redis://127.0.0.1:{}\"]", redis.port);
    let ledger = format!("ledger.url={}", postgres::database().await);
    let shared = ["store.topology=nodes", &nodes, &ledger];
    let start = |roles: &str| {
        let settings = [&shared[..], log, &[roles]].concat();
        Server::start(&settings)
    };
    let rest = start("server.roles=[\"settle\",\"steward\",\"admin\"]");
    let secret = rest.data_dir().join("token-secret");
    let secret = format!("tokens.secret_file={}", secret.display());
    let settings = [&shared[..], log, &["server.roles=[\"gateway\"]", &secret]].concat();
    (Server::start(&settings), rest)
}

/// A session of `user` at the gateway, whose tokens the other process makes.
async fn enter(gateway: &Server, rest: &Server, user: &str) -> (Raw, Welcome) {
    let mut raw = Raw::connect(gateway).await;
    match raw.hello(&rest.token(user)).await {
        Message::Welcome(welcome) => (raw, welcome),
        other => panic!("{other:?}"),
    }
}

/// Lines that are about the packet.
fn about(log: &str, packet: &str) -> Vec<String> {
    let lines = log.lines().filter(|line| line.contains(packet));
    lines.map(str::to_owned).collect()
}

/// Both ends of the journey, as soon as the packet's claim has been acked.
async fn both_ends(gateway: &Server, rest: &Server, packet: &str) -> (Vec<String>, Vec<String>) {
    let acked = async || {
        let lines = about(&rest.log(), packet);
        (lines.iter().any(|line| line.contains("acked"))).then_some(lines)
    };
    let settled = eventually("the packet to be acked", acked).await;
    (about(&gateway.log(), packet), settled)
}

/// What the client knows finds the packet, and the packet finds the rest; whose it is stands nowhere.
#[tokio::test]
async fn a_grab_is_followed_by_its_packet_from_the_frame_to_the_ack() {
    let redis = Redis::fit().await;
    let level = "log.level=warn,hongbao::journey=trace";
    let (gateway, rest) = pair(&redis, &[level]).await;
    let rain = rest.open_rain(5, 500).await;
    let (mut anna, welcome) = enter(&gateway, &rest, "anna-of-aachen").await;
    // Request 1 was Hello.
    let won = anna.grab(rain.get()).await;
    assert_eq!(won.outcome(), Outcome::Won);
    // Another session, as after a lost reply.
    let (mut again, second) = enter(&gateway, &rest, "anna-of-aachen").await;
    assert_eq!(again.grab(rain.get()).await.outcome(), Outcome::AlreadyWon);

    let packet = format!("packet={}", won.packet_id);
    let (grabbed, settled) = both_ends(&gateway, &rest, &packet).await;
    let expected = |session: u64, outcome: &str| {
        format!(
            "hongbao::journey: grabbed packet={} rain={rain} session={session} request=2 outcome=\"{outcome}\"",
            won.packet_id
        )
    };
    assert_eq!(grabbed.len(), 2, "{grabbed:?}");
    assert!(
        grabbed[0].ends_with(&expected(welcome.session_id, "WON")),
        "{grabbed:?}"
    );
    assert!(
        grabbed[1].ends_with(&expected(second.session_id, "ALREADY_WON")),
        "{grabbed:?}"
    );
    let steps: Vec<&str> = settled
        .iter()
        .map(|line| line.split("journey: ").nth(1).unwrap())
        .map(|rest| rest.split(" packet=").next().unwrap())
        .collect();
    assert_eq!(steps, ["leased", "credited", "acked"]);
    for log in [gateway.log(), rest.log()] {
        for personal in ["anna-of-aachen", &rest.token("anna-of-aachen")[..40]] {
            assert!(!log.contains(personal), "{personal} stands in {log}");
        }
    }
}

#[tokio::test]
async fn a_grab_is_followed_in_json_too_and_costs_no_line_otherwise() {
    let redis = Redis::fit().await;
    let log = ["log.level=warn,hongbao::journey=trace", "log.json=true"];
    let (gateway, rest) = pair(&redis, &log).await;
    let rain = rest.open_rain(5, 500).await;
    let (mut berta, welcome) = enter(&gateway, &rest, "berta-of-bern").await;
    let won = berta.grab(rain.get()).await;
    assert_eq!(won.outcome(), Outcome::Won);
    let packet = format!("\"packet\":\"{}\"", won.packet_id);
    let (grabbed, settled) = both_ends(&gateway, &rest, &packet).await;
    let line: Value = serde_json::from_str(&grabbed[0]).unwrap();
    assert_eq!(line["target"], "hongbao::journey");
    assert_eq!(line["fields"]["message"], "grabbed");
    assert_eq!(line["fields"]["session"], welcome.session_id);
    assert_eq!(line["fields"]["request"], 2);
    assert_eq!(line["fields"]["outcome"], "WON");
    let messages = settled.iter().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line["fields"]["message"].as_str().unwrap().to_owned()
    });
    assert_eq!(
        messages.collect::<Vec<_>>(),
        ["leased", "credited", "acked"]
    );
    for log in [gateway.log(), rest.log()] {
        assert!(!log.contains("berta-of-bern"), "{log}");
    }

    let quiet = Server::start(&["log.level=debug", "store.managed_nodes=1"]);
    let rain = quiet.open_rain(5, 500).await;
    let mut clara = Raw::user(&quiet, "clara").await;
    assert_eq!(clara.grab(rain.get()).await.outcome(), Outcome::Won);
    quiet.until_settled(rain).await;
    assert!(!quiet.log().contains("hongbao::journey"));
}
