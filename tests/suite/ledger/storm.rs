use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::task::Poll;

use hongbao::ledger::{Booking, Discard, LedgerError, LedgerSettings, Refusal, Verdict};
use hongbao::rain::{Cents, Claim, PacketId, Rain, State};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use super::{SEED, Store, claim, new_rain, on_both_stores};

on_both_stores!(
    random_operations_agree_with_a_small_model,
    settlers_operators_and_refunds_at_once_lose_no_cent,
    a_call_dropped_at_any_point_leaves_nothing_half_done,
);

/// What the ledger should hold, kept in maps.
#[derive(Default)]
struct Model {
    balances: HashMap<String, i64>,
    deposits: HashMap<String, i64>,
    credits: HashMap<PacketId, (String, i64)>,
    discards: HashMap<PacketId, i64>,
    refunds: HashMap<u32, i64>,
}

impl Model {
    fn balance(&self, account: &str) -> i64 {
        self.balances.get(account).copied().unwrap_or(0)
    }

    fn move_cents(&mut self, from: &str, to: &str, cents: i64) {
        *self.balances.entry(from.into()).or_default() -= cents;
        *self.balances.entry(to.into()).or_default() += cents;
    }

    fn credit(&mut self, claim: &Claim) -> Verdict {
        let (packet, cents) = (claim.packet.id, claim.packet.cents.0);
        let escrow = format!("escrow:{}", packet.rain());
        if let Some((user, paid)) = self.credits.get(&packet) {
            return if *user == claim.user.as_str() && *paid == cents {
                Verdict::Existed
            } else {
                Verdict::Conflict {
                    user: user.parse().unwrap(),
                    cents: Cents(*paid),
                }
            };
        }
        if self.discards.contains_key(&packet) {
            return Verdict::Discarded;
        }
        if self.balance(&escrow) < cents {
            return Verdict::Refused(Refusal::EscrowTooPoor {
                balance: Cents(self.balance(&escrow)),
            });
        }
        self.credits.insert(packet, (claim.user.to_string(), cents));
        self.move_cents(&escrow, &format!("user:{}", claim.user), cents);
        Verdict::Credited
    }

    fn discard(&mut self, claim: &Claim) -> Option<Discard> {
        let (packet, cents) = (claim.packet.id, claim.packet.cents.0);
        let escrow = format!("escrow:{}", packet.rain());
        if let Some((user, paid)) = self.credits.get(&packet) {
            return Some(Discard::Credited {
                user: user.parse().unwrap(),
                cents: Cents(*paid),
            });
        }
        match self.discards.get(&packet) {
            Some(&earlier) if earlier == cents => return Some(Discard::Existed),
            Some(&earlier) => {
                return Some(Discard::Different {
                    cents: Cents(earlier),
                });
            }
            None if self.balance(&escrow) < cents => return None,
            None => {}
        }
        self.discards.insert(packet, cents);
        self.move_cents(&escrow, "sponsor:acme", cents);
        Some(Discard::Done)
    }
}

struct Storm {
    store: Store,
    model: Model,
    rains: Vec<Rain>,
    rng: ChaCha8Rng,
}

impl Storm {
    fn below(&mut self, n: u32) -> u32 {
        self.rng.next_u32() % n
    }

    fn any_claim(&mut self) -> Claim {
        let rain = self.below(self.rains.len() as u32) as usize;
        let (index, cents, user) = (self.below(40), 1 + self.below(3), self.below(12));
        claim(
            &self.rains[rain],
            index,
            i64::from(cents),
            &format!("u{user}"),
        )
    }

    async fn deposit(&mut self) {
        let (key, cents) = (
            format!("k{}", self.below(30)),
            i64::from(1 + self.below(200)),
        );
        let booked = self
            .store
            .ledger
            .deposit("acme", Cents(cents), &key, 1)
            .await
            .unwrap();
        match self.model.deposits.get(&key) {
            None => {
                assert_eq!(booked, Booking::Done);
                self.model.deposits.insert(key, cents);
                self.model.move_cents("deposits", "sponsor:acme", cents);
            }
            Some(&earlier) if earlier == cents => assert_eq!(booked, Booking::Existed),
            Some(_) => assert!(matches!(booked, Booking::Different { .. })),
        }
    }

    async fn create(&mut self) {
        let total = i64::from(1 + self.below(120));
        let made = self
            .store
            .ledger
            .create_rain(&new_rain("acme", total), SEED, 1, None, |_| vec![])
            .await;
        if self.model.balance("sponsor:acme") < total {
            assert!(
                matches!(made, Err(LedgerError::SponsorTooPoor { .. })),
                "{made:?}"
            );
        } else {
            let rain = made.unwrap();
            self.model
                .move_cents("sponsor:acme", &format!("escrow:{}", rain.id), total);
            self.rains.push(rain);
        }
    }

    async fn credit(&mut self) {
        let claims: Vec<Claim> = (0..self.below(30)).map(|_| self.any_claim()).collect();
        let verdicts = self.store.credit(&claims).await;
        // The model pays in the ledger's order: by rounds of distinct packets, each in the order of the packets. Halving keeps it, so
        // who is left without when an escrow runs dry is the same as one by one.
        let mut expected = vec![None; claims.len()];
        let mut order: Vec<usize> = (0..claims.len()).collect();
        let round = |i: &usize| {
            claims[..*i]
                .iter()
                .filter(|c| c.packet.id == claims[*i].packet.id)
                .count()
        };
        order.sort_by_key(|i| (round(i), claims[*i].packet.id));
        for i in order {
            expected[i] = Some(self.model.credit(&claims[i]));
        }
        let expected: Vec<Verdict> = expected.into_iter().map(Option::unwrap).collect();
        assert_eq!(verdicts, expected, "{claims:?}");
    }

    async fn discard(&mut self) {
        let claim = self.any_claim();
        let discarded = self.store.ledger.discard(&claim, "storm", 1).await;
        match self.model.discard(&claim) {
            Some(expected) => assert_eq!(discarded.unwrap(), expected),
            None => assert!(
                matches!(discarded, Err(LedgerError::EscrowTooPoor { .. })),
                "{discarded:?}"
            ),
        }
    }

    async fn refund(&mut self) {
        let rain = self.below(self.rains.len() as u32) as usize;
        let (id, cents) = (self.rains[rain].id, i64::from(self.below(60)));
        self.store.ledger.close_rain(id, 1).await.unwrap();
        let refunded = self.store.ledger.refund(id, Cents(cents), 1).await;
        let escrow = format!("escrow:{id}");
        match self.model.refunds.get(&id.get()) {
            Some(&earlier) if earlier == cents => assert_eq!(refunded.unwrap(), Booking::Existed),
            Some(_) => assert!(matches!(refunded.unwrap(), Booking::Different { .. })),
            None if self.model.balance(&escrow) < cents => {
                assert!(
                    matches!(refunded, Err(LedgerError::EscrowTooPoor { .. })),
                    "{refunded:?}"
                );
            }
            None => {
                assert_eq!(refunded.unwrap(), Booking::Done);
                self.model.refunds.insert(id.get(), cents);
                self.model.move_cents(&escrow, "sponsor:acme", cents);
            }
        }
    }
}

async fn random_operations_agree_with_a_small_model(store: Store) {
    store.ledger.open_sponsor("acme").await.unwrap();
    let rng = ChaCha8Rng::seed_from_u64(20_261_111);
    let mut storm = Storm {
        store,
        model: Model::default(),
        rains: Vec::new(),
        rng,
    };
    for _ in 0..400 {
        match storm.below(10) {
            0 | 1 => storm.deposit().await,
            2 => storm.create().await,
            _ if storm.rains.is_empty() => {}
            3..=7 => storm.credit().await,
            8 => storm.discard().await,
            _ => storm.refund().await,
        }
    }
    let accounts = storm.store.ledger.accounts("", None, 1_000).await.unwrap();
    for account in &accounts {
        assert_eq!(
            account.balance.0,
            storm.model.balance(&account.name.to_string()),
            "{}",
            account.name
        );
    }
    let open = storm
        .model
        .balances
        .keys()
        .filter(|name| !accounts.iter().any(|a| a.name.to_string() == **name));
    assert_eq!(open.collect::<Vec<_>>(), Vec::<&String>::new());
    assert!(
        storm.model.credits.len() > 100
            && storm.model.discards.len() > 5
            && storm.model.refunds.len() > 3
    );
    storm.store.assert_books_agree().await;
}

async fn settlers_operators_and_refunds_at_once_lose_no_cent(store: Store) {
    store.sponsor("acme", 100_000).await;
    let mut rains = Vec::new();
    for _ in 0..4 {
        rains.push(
            store
                .ledger
                .create_rain(&new_rain("acme", 2_000), SEED, 1, None, |_| vec![])
                .await
                .unwrap(),
        );
    }
    let other = store.opened_again(LedgerSettings::default()).await;
    let workers = (0..6u32).map(|worker| {
        let ledger = if worker % 2 == 0 {
            store.ledger.clone()
        } else {
            other.clone()
        };
        let rains = rains.clone();
        let mut rng = ChaCha8Rng::seed_from_u64(u64::from(worker));
        let mut below = move |n: u32| rng.next_u32() % n;
        tokio::spawn(async move {
            for round in 0..30 {
                let rain = &rains[below(4) as usize];
                let claims: Vec<Claim> = (0..20)
                    .map(|_| {
                        claim(
                            &rains[below(4) as usize],
                            below(700),
                            3,
                            &format!("u{}", below(30)),
                        )
                    })
                    .collect();
                // Every answer is fine but an error that is not about money: a deadlock, a broken transaction.
                match worker {
                    0..=3 => drop(ledger.credit(&claims, 1).await.unwrap()),
                    4 => match ledger.discard(&claims[0], "storm", 1).await {
                        Ok(_) | Err(LedgerError::EscrowTooPoor { .. }) => {}
                        Err(error) => panic!("{error:?}"),
                    },
                    _ => {
                        ledger
                            .deposit("acme", Cents(5), &format!("more {round}"), 1)
                            .await
                            .unwrap();
                        let made = ledger
                            .create_rain(&new_rain("acme", 10), SEED, 1, None, |_| vec![])
                            .await;
                        ledger.close_rain(made.unwrap().id, 1).await.unwrap();
                        if round == 20 {
                            ledger.close_rain(rain.id, 1).await.unwrap();
                            ledger.refund(rain.id, Cents(1), 1).await.unwrap();
                        }
                    }
                }
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    store.assert_books_agree().await;
}

/// Lets a future be polled `polls` times, then drops it: as a cancelled task does, or a process that dies there.
async fn dropped_after<F: Future>(polls: u32, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut left = polls;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            // The last poll is not waited for: nobody would wake us but the future itself, which may take its time.
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// A dropped call's COMMIT may still be on its way to the server: two looks that agree are one instant.
async fn two_equal<T: PartialEq>(look: impl AsyncFn() -> T) -> T {
    loop {
        let (first, second) = (look().await, look().await);
        if first == second {
            return first;
        }
    }
}

async fn a_call_dropped_at_any_point_leaves_nothing_half_done(store: Store) {
    let ledger = &store.ledger;
    let mut finished = 0;
    for polls in 1..=40 {
        let rain = store.rain(1_000).await;
        let claims: Vec<Claim> = (0..10)
            .map(|i| claim(&rain, i, 7, &format!("u{i}")))
            .collect();
        let credit = ledger.credit(&claims, 1);
        finished += u32::from(dropped_after(polls, credit).await.is_some());
        let verdicts = store.credit(&claims).await;
        let all = |verdict| verdicts.iter().all(|v| *v == verdict);
        let whole = all(Verdict::Credited) || all(Verdict::Existed);
        assert!(whole, "half a batch after {polls} polls: {verdicts:?}");

        ledger.close_rain(rain.id, 1).await.unwrap();
        let refund = ledger.refund(rain.id, Cents(900), 1);
        finished += u32::from(dropped_after(polls, refund).await.is_some());
        let (refunded, state) = two_equal(async || {
            let refunded = ledger.rain_totals(rain.id).await.unwrap().refunded;
            (refunded, ledger.rain(rain.id).await.unwrap().state)
        })
        .await;
        assert_eq!(
            refunded == Cents(900),
            state == State::Refunded,
            "after {polls} polls"
        );
        ledger.refund(rain.id, Cents(900), 1).await.unwrap();

        let new = new_rain("acme", 5);
        let create = ledger.create_rain(&new, SEED, 1, None, |_| vec![]);
        finished += u32::from(dropped_after(polls, create).await.is_some());
        let (rains, escrows) = two_equal(async || {
            let rains = ledger.rains(None, 1_000).await.unwrap().len();
            (
                rains,
                ledger.accounts("escrow:", None, 1_000).await.unwrap().len(),
            )
        })
        .await;
        assert_eq!(rains, escrows, "after {polls} polls");
    }
    assert!(finished > 0, "no call lived long enough to finish");
    store.assert_books_agree().await;
}
