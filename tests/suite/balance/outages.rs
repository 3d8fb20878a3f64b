//! The company is away, slow, or talks nonsense: nothing is lost, nobody is blamed, and it is not asked too often.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::http::StatusCode;
use hongbao::ledger::EndpointSettings;
use hongbao::rain::Rain;
use redis::Value;

use super::{assert_agreed, census, credited, impatient, settled};
use crate::support::bench::Bench;
use crate::support::company::{Asked, Company, Fault, SECRET, balance};
use crate::support::eventually;
use crate::support::server::Server;
use crate::support::wire::{Raw, final_outcome};

/// Packets of which an attempt was counted.
async fn attempts(bench: &Bench, rain: &Rain) -> usize {
    let mut counted = 0;
    for (bucket, node) in bench.buckets(rain).iter().zip(&bench.nodes) {
        let Value::Array(notes) = node.call(&["HVALS", &bucket.keys.attempts]).await else {
            panic!()
        };
        let count = |note: &&Value| match note {
            Value::BulkString(note) => !note.starts_with(b"0:"), // attempts:deaths:last error
            _ => panic!(),
        };
        counted += notes.iter().filter(count).count();
    }
    counted
}

/// A request that finds out whether an outage is over. (No batch of the settlers here is so small by itself.)
fn is_probe(asked: &Asked) -> bool {
    asked.packets.len() <= 16 && asked.in_flight == 1
}

/// An outage that ends after two probes, while 1,500 claims wait. It costs no attempt, and few requests.
async fn outage(timeout: Duration, fault: fn() -> Fault) -> Company {
    let bench = Bench::new(2).await;
    let rain = bench.open(3_000, 300_000).await;
    bench.grab(&rain, "user", 1_500).await;
    let mut probes = 0;
    let company = Company::start(move |asked| {
        probes += usize::from(is_probe(asked));
        if probes <= 2 { fault() } else { Fault::Behave }
    })
    .await;
    let settings = EndpointSettings {
        timeout,
        batch_max: 50,
        ..company.settings()
    };
    // Whoever loses an attempt here is buried.
    let settlers = impatient(&bench, balance(&bench.ledger, settings), 4, 1);
    eventually("every claim to be credited", async || {
        (census(&bench, &rain).await.unsettled() == 0).then_some(())
    })
    .await;
    settlers.stop().await;
    assert_eq!(census(&bench, &rain).await.dead, 0);
    assert_agreed(&bench, &company, &rain, 1_500).await;

    let asked = company.asked();
    let last = asked.iter().filter(|asked| is_probe(asked)).nth(2).unwrap();
    let (probes, others): (Vec<&Asked>, Vec<&Asked>) = asked[..=last.number]
        .iter()
        .partition(|asked| is_probe(asked));
    // Four under way when the first one failed, and four of each settler that began before the breaker opened; thirty waited.
    let begun = others.len();
    assert!(begun <= 12, "{begun} requests before the breaker opened");
    for pair in probes.windows(2) {
        let gap = pair[1].at - pair[0].at;
        let shortest = Duration::from_millis(250);
        assert!(gap >= shortest, "{gap:?} between two probes");
    }
    company
}

#[tokio::test]
async fn errors_for_the_whole_request_are_an_outage_and_cost_few_requests() {
    const LONG: Duration = Duration::from_secs(10);
    let refusals: [fn() -> Fault; 5] = [
        || Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR),
        || Fault::Refuse(StatusCode::SERVICE_UNAVAILABLE),
        || Fault::Refuse(StatusCode::TOO_MANY_REQUESTS),
        || Fault::Refuse(StatusCode::BAD_REQUEST),
        || Fault::Refuse(StatusCode::TEMPORARY_REDIRECT),
    ];
    futures_util::future::join_all(refusals.map(|refusal| outage(LONG, refusal))).await;
}

#[tokio::test]
async fn answers_that_cannot_be_read_are_an_outage_and_pay_once_although_the_money_moved() {
    const LONG: Duration = Duration::from_secs(10);
    let answers: [fn() -> Fault; 4] = [
        || Fault::Scribble("<html>It works!</html>"),
        || Fault::Scribble("{\"results\":[]}"),
        || Fault::HangUp,
        || Fault::Endless,
    ];
    let companies = answers.map(|answer| outage(LONG, answer));
    let companies = futures_util::future::join_all(companies).await;
    // 101 KiB may be read of each, and the sockets' buffers hold some more: not the 10 GB that were on offer.
    let taken = companies[3].endless_bytes();
    assert!(
        (100_000..100_000_000).contains(&taken),
        "{taken} bytes were taken"
    );
}

#[tokio::test]
async fn a_time_out_before_or_after_the_commit_pays_once() {
    const SHORT: Duration = Duration::from_millis(1_500);
    tokio::join!(
        outage(SHORT, || Fault::Silent),
        outage(SHORT, || Fault::Slow)
    );
}

#[tokio::test]
async fn claims_wait_while_connections_are_refused() {
    let bench = Bench::new(2).await;
    let rain = bench.open(600, 60_000).await;
    bench.grab(&rain, "user", 300).await;
    let mut company = Company::closed(|_| Fault::Behave).await;
    let settlers = impatient(&bench, company.balance(&bench.ledger), 2, 1);
    eventually("claims that were given back", async || {
        let census = census(&bench, &rain).await;
        (census.retrying >= 16 && census.leased == 0).then_some(())
    })
    .await;
    assert_eq!(attempts(&bench, &rain).await, 0);
    assert_eq!(credited(&bench, &rain).await, []);
    company.listen();
    eventually("every claim to be credited", async || {
        (census(&bench, &rain).await.unsettled() == 0).then_some(())
    })
    .await;
    settlers.stop().await;
    assert_agreed(&bench, &company, &rain, 300).await;
}

/// It used to be enough that one claim made the endpoint answer 500: the probes took that claim again and again, and nobody was paid.
#[tokio::test]
async fn a_claim_that_the_company_chokes_on_does_not_keep_the_others_waiting() {
    let bench = Bench::new(1).await;
    let rain = bench.open(40, 4_000).await;
    bench.grab(&rain, "user", 40).await;
    let poison = rain.id.packet(7).to_string();
    let healed = Arc::new(AtomicBool::new(false));
    let (sick, bad) = (healed.clone(), poison.clone());
    let company = Company::start(move |asked| {
        if asked.packets.contains(&bad) && !sick.load(Ordering::Relaxed) {
            Fault::Refuse(StatusCode::INTERNAL_SERVER_ERROR)
        } else {
            Fault::Behave
        }
    })
    .await;
    let settlers = impatient(&bench, company.balance(&bench.ledger), 1, 1);
    eventually("all others to be credited", async || {
        (credited(&bench, &rain).await.len() == 39).then_some(())
    })
    .await;
    assert!(
        company
            .paid()
            .await
            .iter()
            .all(|(packet, ..)| *packet != poison)
    );
    healed.store(true, Ordering::Relaxed);
    eventually("the last one to be credited", async || {
        (census(&bench, &rain).await.unsettled() == 0).then_some(())
    })
    .await;
    settlers.stop().await;
    assert_agreed(&bench, &company, &rain, 40).await;
}

#[tokio::test]
async fn a_wrong_secret_pays_nothing_and_burns_no_attempt() {
    let bench = Bench::new(1).await;
    let rain = bench.open(50, 5_000).await;
    bench.grab(&rain, "user", 50).await;
    let company = Company::start(|_| Fault::Behave).await;
    let mut settings = company.settings();
    settings.secret[31] ^= 1;
    let settlers = impatient(&bench, balance(&bench.ledger, settings), 1, 1);
    eventually("a second look", async || {
        (company.asked().len() > 1).then_some(())
    })
    .await;
    settlers.stop().await;
    assert_eq!(company.paid().await, []);
    assert_eq!(attempts(&bench, &rain).await, 0);
    // With the right one everything is paid.
    settled(&bench, &rain, company.balance(&bench.ledger), 1).await;
    assert_agreed(&bench, &company, &rain, 50).await;
}

/// The whole process, killed where it hurts: the other side has committed, we have not.
#[tokio::test]
async fn a_server_killed_while_it_waits_for_the_answer_pays_once() {
    let company = Company::start(|asked| match asked.number {
        0 => Fault::Silent,
        _ => Fault::Behave,
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let secret_file = dir.path().join("secret");
    std::fs::write(&secret_file, hex::encode(SECRET)).unwrap();
    let settings = [
        "ledger.balance=http",
        &format!("ledger.balance_url={}", company.settings().url),
        &format!("ledger.balance_secret_file={}", secret_file.display()),
        "ledger.balance_timeout_ms=2000",
        "settle.lease_ms=6000",
    ];
    let mut server = Server::start(&settings);
    let rain = server.open_rain(200, 20_000).await;
    let mut told = vec![];
    for n in 0..20 {
        let mut person = Raw::user(&server, &format!("user-{n}")).await;
        let won = final_outcome(&mut person, rain.get()).await;
        told.push((won.packet_id.to_string(), format!("user-{n}"), won.cents));
    }
    eventually("the other side's commit", async || {
        (!company.paid().await.is_empty()).then_some(())
    })
    .await;
    server.kill();
    let server = server.restart();
    server.until_settled(rain).await;
    told.sort_by_key(|(packet, ..)| packet.parse::<u64>().unwrap());
    assert_eq!(company.paid().await, told);
    let audit = server.admin().audit(rain).await.unwrap();
    assert!(audit.balanced, "{audit:?}");
    assert_eq!(audit.credited_count, 20);
    assert_eq!(
        server
            .admin()
            .account("user:user-3")
            .await
            .unwrap()
            .balance_cents
            .0,
        told.iter().find(|told| told.1 == "user-3").unwrap().2
    );
}
