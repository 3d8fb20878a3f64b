//! Writes by their idempotency key.

use futures_util::future::join_all;
use hongbao::admin::signing::random_text;

use super::*;

/// The same request once more, as a client that got no answer sends it.
fn again(request: &Signed) -> Signed {
    Signed {
        nonce: random_text(),
        time_ms: hongbao::clock::now_ms(),
        ..request.clone()
    }
}

#[tokio::test]
async fn a_write_that_is_repeated_is_answered_as_the_first_time() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    let path = "/v1/accounts/acme/deposits";
    let deposit = Signed::post(path, &server.api_key(), r#"{"cents":500}"#).keyed("bank-1");
    let first = deposit.send(&server).await;
    assert_eq!(
        (first.status, &first.json["balance_cents"]),
        (200, &500.into())
    );
    assert!(!first.headers.contains_key("idempotency-replayed"));
    admin.deposit("acme", Cents(70), "bank-2").await.unwrap();
    let second = again(&deposit).send(&server).await;
    assert_eq!((second.status, &second.text), (200, &first.text));
    assert_eq!(second.headers["idempotency-replayed"], "true");
    // Another body, another path: another request.
    let mut other = again(&deposit);
    other.body = r#"{"cents":501}"#.into();
    let mut elsewhere = again(&deposit);
    elsewhere.path = "/v1/accounts/else/deposits".into();
    for request in [other, elsewhere] {
        let answer = request.send(&server).await;
        assert_eq!(
            (answer.status, answer.title()),
            (409, "the key was used for something else")
        );
    }
    let mut nameless = again(&deposit);
    nameless.idempotency_key = String::new();
    let answer = nameless.send(&server).await;
    assert_eq!((answer.status, answer.title()), (400, "no idempotency key"));
    let account = admin.account("sponsor:acme").await.unwrap();
    assert_eq!(account.balance_cents, Cents(570));
    let log = admin.log(None, None, 100).await.unwrap().log;
    let deposits = log.iter().filter(|line| line.operation == "deposit");
    assert_eq!(deposits.count(), 2, "a repeat is no write");
}

#[tokio::test]
async fn a_refused_write_may_be_sent_again_when_it_can_work() {
    let server = Server::start(&["store.managed_nodes=1"]);
    let admin = server.admin();
    admin.create_sponsor("acme").await.unwrap();
    let rain = hongbao::client::admin::NewRain {
        key: Some("tonight".into()),
        ..new_rain(10, 1_000)
    };
    let poor = refused(admin.create_rain(&rain).await.unwrap_err());
    assert_eq!(poor, (409, "not enough money".into()));
    admin.deposit("acme", Cents(1_000), "d").await.unwrap();
    let made = admin.create_rain(&rain).await.unwrap();
    assert_eq!(admin.create_rain(&rain).await.unwrap().id, made.id);
    assert_eq!(admin.rains().await.unwrap().len(), 1);
}

#[tokio::test]
async fn many_at_once_with_one_key_are_one_write() {
    let (_redis, one, two) = two_admins().await;
    let (first, second) = (one.admin(), client(&two, &one.api_key()));
    first.create_sponsor("acme").await.unwrap();
    first.deposit("acme", Cents(1_000), "d").await.unwrap();
    let rain = hongbao::client::admin::NewRain {
        key: Some("tonight".into()),
        ..new_rain(10, 100)
    };
    let calls = (0..16).map(|n| if n % 2 == 0 { &first } else { &second }.create_rain(&rain));
    for made in join_all(calls).await {
        assert_eq!(made.unwrap().id.get(), 1);
    }
    let left = first.account("sponsor:acme").await.unwrap().balance_cents;
    assert_eq!(left, Cents(900));
    let log = first.log(None, None, 100).await.unwrap().log;
    let created = log.iter().filter(|line| line.operation == "create_rain");
    assert_eq!(created.count(), 1);
}
