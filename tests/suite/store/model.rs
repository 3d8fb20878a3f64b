//! The scripts against a model that a reader can check by eye: random operations on both, and the same answers and contents all the way.

use std::collections::{BTreeMap, HashMap, VecDeque};

use hongbao::jitter::Jitter;
use hongbao::rain::{Cents, Claim, Packet, RainId, UserId, Window};
use hongbao::store::bucket::{Bucket, GateAnswer, Shut};
use hongbao::store::grab::{Answer, Gate, Grabbed};
use hongbao::store::keys::Tag;
use redis::Value;

use crate::support::redis::{Redis, store};

/// What a loaded bucket has at least; more come with top-ups, whenever they like.
const CHUNKS: u32 = 4;
const TOP_UP_CHUNKS: u32 = 4;

#[derive(Default)]
struct Model {
    chunks: u32,
    /// As `gate` left it: paused or not.
    ready: Option<bool>,
    closed: bool,
    /// Whether the gate names the process: without it the bucket is suspect.
    owned: bool,
    /// Front is grabbed first.
    pool: VecDeque<Packet>,
    winners: HashMap<UserId, Packet>,
    waiting: VecDeque<Claim>,
    /// Claim → deadline.
    leased: BTreeMap<String, (Claim, i64)>,
    retry: BTreeMap<String, (Claim, i64)>,
    dead: BTreeMap<u64, Claim>,
}

fn rain() -> RainId {
    RainId::new(77).unwrap()
}

fn packets_of(chunk: u32) -> Vec<Packet> {
    let packet = |n: u32| Packet {
        id: rain().packet(chunk * 10 + n),
        cents: Cents(i64::from(chunk * 10 + n + 1)),
    };
    (0..10).map(packet).collect()
}

fn user(n: u64) -> UserId {
    UserId::new(&format!("user:{n}")).unwrap()
}

async fn grab(bucket: &Bucket, users: &[UserId]) -> (Gate, Vec<Grabbed>) {
    let reply = bucket.grab(users.iter().map(UserId::as_str)).await;
    let Value::BulkString(bytes) = reply.unwrap() else {
        panic!()
    };
    let text = String::from_utf8(bytes).unwrap();
    let answer = Answer::read(&text).unwrap();
    (answer.gate, answer.map(Option::unwrap).collect())
}

impl Model {
    fn gate(&self) -> Gate {
        match (self.closed, self.chunks, self.ready) {
            (true, ..) if self.owned => Gate::Closed,
            (true, ..) => Gate::Suspect,
            (_, 0, _) => Gate::Missing,
            (_, _, None) => Gate::Loading,
            (_, _, Some(true)) => Gate::Paused,
            (_, _, Some(false)) => Gate::Open,
        }
    }

    fn grab(&mut self, users: &[UserId]) -> (Gate, Vec<Grabbed>) {
        let gate = self.gate();
        let mut answers = vec![];
        for user in users {
            answers.push(match self.winners.get(user) {
                Some(packet) => Grabbed::AlreadyWon(*packet),
                None if gate == Gate::Open => match self.pool.pop_front() {
                    Some(packet) => {
                        self.winners.insert(user.clone(), packet);
                        self.waiting.push_back(Claim {
                            packet,
                            user: user.clone(),
                        });
                        Grabbed::Won(packet)
                    }
                    None => Grabbed::Nothing,
                },
                None => Grabbed::Nothing,
            });
        }
        (gate, answers)
    }

    fn load(&mut self, chunk: u32) -> Option<u32> {
        if self.closed {
            return None;
        }
        if chunk == self.chunks {
            self.pool.extend(packets_of(chunk));
            self.chunks += 1;
            self.owned = true;
        }
        Some(self.chunks)
    }

    /// Whether the bucket is suspect; `chunks` as the one who closes knows them.
    fn close(&mut self, chunks: Option<u32>) -> bool {
        let filling = !self.closed && self.ready.is_none();
        self.owned = match chunks {
            None => self.winners.is_empty(),
            Some(chunks) => self.owned && !(filling && self.chunks < chunks),
        };
        self.closed = true;
        !self.owned
    }

    fn lease(&mut self, now: i64, lease_ms: i64, most: usize) -> Vec<String> {
        let deadline = now + lease_ms;
        let due = |held: &BTreeMap<String, (Claim, i64)>| {
            let mut due: Vec<_> = held
                .values()
                .filter(|(_, at)| *at <= now)
                .cloned()
                .collect();
            due.sort_by_key(|(claim, at)| (*at, claim.to_string()));
            due
        };
        let mut taken: Vec<Claim> = due(&self.leased)
            .into_iter()
            .take(most)
            .map(|(claim, _)| claim)
            .collect();
        for (claim, _) in due(&self.retry).into_iter().take(most - taken.len()) {
            self.retry.remove(&claim.to_string());
            taken.push(claim);
        }
        while taken.len() < most {
            let Some(claim) = self.waiting.pop_front() else {
                break;
            };
            taken.push(claim);
        }
        for claim in &taken {
            self.leased
                .insert(claim.to_string(), (claim.clone(), deadline));
        }
        taken.iter().map(Claim::to_string).collect()
    }
}

async fn assert_same(bucket: &Bucket, model: &Model) {
    let census = bucket.census().await.unwrap();
    let model = [
        model.pool.len(),
        model.winners.len(),
        model.waiting.len(),
        model.leased.len(),
        model.retry.len(),
        model.dead.len(),
    ];
    let [pool, winners, waiting, leased, retrying, dead] = model.map(|count| count as u64);
    let expected = hongbao::store::bucket::Census {
        pool,
        winners,
        claims_waiting: waiting,
        leased,
        retrying,
        dead,
    };
    assert_eq!(census, expected);
}

#[tokio::test]
async fn scripts_and_model_agree_on_random_operations() {
    let redis = Redis::fit().await;
    let store = store(&[&redis]).await;
    let chance = Jitter::default();
    for round in 0..12 {
        let bucket = store.bucket(
            Tag {
                rain: rain(),
                bucket: round,
                salt: 0,
            },
            "mark",
        );
        storm(&bucket, &chance).await;
    }
}

async fn storm(bucket: &Bucket, chance: &Jitter) {
    let mut model = Model::default();
    let below = |n: u64| chance.next_u64() % n;
    let open = Window {
        opens_at_ms: Some(0),
        duration_ms: i64::MAX / 4,
    };
    let (mut now, mut version) = (1_000_000i64, 0);
    for _ in 0..250 {
        now += below(400) as i64;
        match below(20) {
            0..=3 => {
                let chunk = below(u64::from(CHUNKS + TOP_UP_CHUNKS)) as u32;
                assert_eq!(
                    bucket.load(chunk, &packets_of(chunk)).await.unwrap(),
                    model.load(chunk)
                );
            }
            4 | 5 => {
                let paused = below(3) == 0;
                version += 1;
                let answer = bucket
                    .set_gate(CHUNKS, paused, &open, version)
                    .await
                    .unwrap();
                let expected = match (model.closed, model.chunks) {
                    (true, _) => GateAnswer::Closed,
                    (false, CHUNKS..) => GateAnswer::Set,
                    (false, _) => GateAnswer::NotLoaded,
                };
                assert_eq!(answer, expected);
                if answer == GateAnswer::Set {
                    model.ready = Some(paused);
                    let stale = bucket
                        .set_gate(CHUNKS, !paused, &open, version - 1)
                        .await
                        .unwrap();
                    assert_eq!(
                        stale,
                        GateAnswer::Stale,
                        "an older record must not overwrite a newer one"
                    );
                }
            }
            6..=11 => {
                let users: Vec<UserId> = (0..1 + below(8)).map(|_| user(below(60))).collect();
                assert_eq!(grab(bucket, &users).await, model.grab(&users), "{users:?}");
            }
            12..=14 => {
                let most = 1 + below(5) as usize;
                // No settler dies here: deaths_max is out of reach, and leases are renewed before they count twice.
                let lease = bucket
                    .lease(Some(now), 1_000_000, most, 1_000)
                    .await
                    .unwrap();
                let claims: Vec<String> = lease
                    .claims
                    .iter()
                    .map(|leased| leased.claim.to_string())
                    .collect();
                let none =
                    model.waiting.is_empty() && model.leased.is_empty() && model.retry.is_empty();
                assert_eq!(lease.under_way, !none);
                assert_eq!(claims, model.lease(now, 1_000_000, most));
            }
            15 | 16 => {
                if let Some((text, (claim, _))) = model.leased.pop_first() {
                    assert_eq!(bucket.ack(&[claim]).await.unwrap(), 1, "{text}");
                }
            }
            17 => {
                if let Some((text, (claim, deadline))) = model
                    .leased
                    .first_key_value()
                    .map(|(k, v)| (k.clone(), v.clone()))
                {
                    let wait = below(500);
                    let due = now + wait as i64;
                    let stale = bucket
                        .retry(
                            deadline - 1,
                            true,
                            Some(now),
                            &[(claim.clone(), wait, "late".into())],
                        )
                        .await
                        .unwrap();
                    assert_eq!(stale, 0, "a late settler may not retry");
                    assert_eq!(
                        bucket
                            .retry(
                                deadline,
                                true,
                                Some(now),
                                &[(claim.clone(), wait, "away".into())]
                            )
                            .await
                            .unwrap(),
                        1
                    );
                    model.leased.remove(&text);
                    model.retry.insert(text, (claim, due));
                }
            }
            18 => {
                if let Some((text, (claim, deadline))) = model
                    .leased
                    .first_key_value()
                    .map(|(k, v)| (k.clone(), v.clone()))
                {
                    let stale = bucket
                        .bury(deadline + 1, Some(now), &[(claim.clone(), "late".into())])
                        .await
                        .unwrap();
                    assert_eq!(stale, 0, "a late settler may not bury");
                    assert_eq!(
                        bucket
                            .bury(deadline, Some(now), &[(claim.clone(), "bad".into())])
                            .await
                            .unwrap(),
                        1
                    );
                    model.leased.remove(&text);
                    model.dead.insert(claim.packet.id.get(), claim);
                }
            }
            _ => {
                if below(8) == 0 {
                    let chunks = (below(3) > 0).then_some(CHUNKS);
                    let shut = bucket.close(chunks).await.unwrap();
                    let expected = Shut {
                        left: model.pool.len() as u64,
                        winners: model.winners.len() as u64,
                        chunks: model.chunks,
                        suspect: model.close(chunks),
                    };
                    assert_eq!(shut, expected);
                }
            }
        }
        assert_same(bucket, &model).await;
    }
}
