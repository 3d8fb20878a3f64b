//! Requests that are wrong in every way we could think of: each has its answer, and none of them moves a cent.

/// What is wrong, and what the answer is.
mod cases;

use super::contract::{assert_problem, page};
use super::*;
use cases::{
    Case, DENIED, REPLAYED, TIME_OFF, bodies, forged, gone, reads, under_privileged, unsigned,
    writes,
};

/// Everything that money, rains and keys are.
async fn books(server: &Server) -> Vec<String> {
    let mut all = vec![];
    for path in ["/v1/accounts", "/v1/rains", "/v1/rains/1/audit"] {
        let answer = Signed::get(path, &server.api_key()).send(server).await;
        assert_eq!(answer.status, 200);
        all.push(answer.text);
    }
    let keys = server.admin().keys(None).await.unwrap().keys;
    all.extend(
        keys.into_iter()
            .map(|key| format!("{} {}", key.id, key.state)),
    );
    all
}

#[tokio::test]
async fn more_than_a_hundred_wrong_requests_are_refused_each_for_its_reason() {
    let server = Server::start(&["store.managed_nodes=1", "admin.body_max_bytes=32768"]);
    let page = page(&server).await;
    let rain = server.ready_rain(10, 1_000).await;
    assert_eq!(rain.get(), 1);
    server
        .admin()
        .deposit("acme", Cents(500), "d")
        .await
        .unwrap();
    server.ready_rain(10, 1_000).await;
    let two = Signed::get("/v1/rains?limit=1", &server.api_key());
    let cursor = two.send(&server).await.json["next_cursor"].clone();
    let key = server.api_key();
    let mut cases = gone(&server).await;
    cases.extend(under_privileged(&server).await);
    let before = books(&server).await;
    let lines = server
        .admin()
        .log(None, None, 1_000)
        .await
        .unwrap()
        .log
        .len();
    cases.extend(unsigned(&key));
    cases.extend(forged(&key));
    cases.extend(bodies(&key));
    cases.extend(writes(&key));
    cases.extend(reads(&key, cursor.as_str().unwrap()));
    assert!(cases.len() > 200, "{}", cases.len());
    let mut wrong = vec![];
    let mut denied_writes = 0;
    for Case {
        what,
        mut request,
        wanted,
    } in cases
    {
        // Made a while ago: those whose time is not the point are of now.
        if wanted != TIME_OFF && wanted != REPLAYED && request.instead.is_empty() {
            request.time_ms = hongbao::clock::now_ms();
        }
        let answer = request.send(&server).await;
        if (answer.status, answer.title()) != wanted {
            wrong.push(format!(
                "{what}: {} {}, not {wanted:?}",
                answer.status, answer.text
            ));
            continue;
        }
        assert_problem(&page, &answer);
        denied_writes += usize::from(wanted == DENIED && request.method == "POST");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(books(&server).await, before, "nothing has moved");
    let log = server.admin().log(None, None, 1_000).await.unwrap().log;
    let new = &log[..log.len() - lines];
    assert!(new.iter().all(|line| line.outcome.starts_with("refused: ")));
    let denied = new.iter().filter(|line| line.status == 403);
    assert_eq!(denied.count(), denied_writes, "each is in the log");
}
