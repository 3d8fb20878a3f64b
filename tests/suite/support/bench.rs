//! Store, ledger and steward in this process, so that a test can take each step by hand and spoil what lies between two.

use std::sync::Arc;

use hongbao::config::{self, Settings};
use hongbao::ledger::{Balance, Ledger};
use hongbao::rain::split::{Rule, Seed, Split};
use hongbao::rain::{Cents, Durability, NewRain, Rain, RainId, State, TopUp, Window};
use hongbao::settle;
use hongbao::steward::Steward;
use hongbao::steward::audit::{Report, audit};
use hongbao::store::bucket::Bucket;
use hongbao::store::transfer::Transfer;
use hongbao::store::{Store, bucket_of};
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::redis::{Redis, settings};

pub struct Bench {
    pub nodes: Vec<Redis>,
    pub store: Arc<Store>,
    pub ledger: Ledger,
    pub steward: Steward,
    pub settings: Settings,
    /// Of each rain; bucket *b* lies on node *b mod N*.
    pub buckets: u32,
    _dir: TempDir,
}

impl Bench {
    pub async fn new(nodes: usize) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", dir.path().join("ledger").display());
        Bench::with_ledger(nodes, &url, dir).await
    }

    /// With a ledger of the test's own; `dir` lives as long as the bench.
    pub async fn with_ledger(nodes: usize, url: &str, dir: TempDir) -> Bench {
        let mut started = vec![];
        for _ in 0..nodes {
            started.push(Redis::fit().await);
        }
        let settings = settings(&started.iter().collect::<Vec<_>>());
        let ledger = Ledger::open(url).await.unwrap();
        let store = Arc::new(
            Store::open(&settings.store, dir.path(), Durability::Memory)
                .await
                .unwrap(),
        );
        let steward = Steward::new(&settings.steward, store.clone(), ledger.clone());
        Bench {
            nodes: started,
            store,
            ledger,
            steward,
            settings,
            buckets: nodes as u32,
            _dir: dir,
        }
    }

    pub fn settle(&self) -> &config::Settle {
        &self.settings.settle
    }

    /// Settlers at work until `done` is over.
    pub async fn settling<T>(&self, done: impl Future<Output = T>) -> T {
        let settlers = Settlers::start(self);
        let result = done.await;
        settlers.stop().await;
        result
    }

    /// Funded, not loaded.
    pub async fn created(&self, packets: u32, total: i64) -> Rain {
        self.ledger.open_sponsor("acme").await.unwrap();
        let key = format!("{}", hongbao::jitter::Jitter::default().next_u64());
        self.ledger
            .deposit("acme", Cents(total), &key, 0)
            .await
            .unwrap();
        let new = NewRain {
            title: String::new(),
            room: "quiz".into(),
            sponsor: "acme".into(),
            split: Split {
                rule: Rule::DoubleMean,
                total: Cents(total),
                packets,
                min: Cents(1),
                max: Cents(i64::MAX),
            },
            window: Window {
                opens_at_ms: None,
                duration_ms: 600_000,
            },
            durability: Durability::Memory,
            refund_after_ms: 0,
            key_required: false,
            announce_at_ms: None,
        };
        let salts = |id| self.store.salts(id, self.buckets);
        self.ledger
            .create_rain(&new, Seed([7; 32]), 0, None, salts)
            .await
            .unwrap()
    }

    pub async fn ready(&self, packets: u32, total: i64) -> Rain {
        let rain = self.created(packets, total).await;
        self.steward.advance(rain.clone()).await.unwrap();
        self.rain(rain.id).await
    }

    pub async fn open(&self, packets: u32, total: i64) -> Rain {
        let rain = self.ready(packets, total).await;
        let rain = self
            .ledger
            .open_rain(rain.id, hongbao::clock::now_ms() - 10)
            .await
            .unwrap();
        self.steward.advance(rain.clone()).await.unwrap();
        rain
    }

    /// Recorded and paid for by acme, who gets the money for it; not loaded.
    pub async fn top_up(&self, rain: &Rain, packets: u32, total: i64) -> Rain {
        let key = format!("{}", hongbao::jitter::Jitter::default().next_u64());
        let deposit = self.ledger.deposit("acme", Cents(total), &key, 0);
        deposit.await.unwrap();
        let top_up = TopUp {
            packets,
            total: Cents(total),
            rule: None,
            min: None,
            max: None,
        };
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&hongbao::jitter::Jitter::default().next_u64().to_be_bytes());
        let now = hongbao::clock::now_ms();
        let made = self.ledger.top_up(rain.id, &top_up, Seed(seed), now, &key);
        made.await.unwrap().rain
    }

    /// Another process's steward, which knows nothing.
    pub fn other_steward(&self) -> Steward {
        Steward::new(
            &self.settings.steward,
            self.store.clone(),
            self.ledger.clone(),
        )
    }

    pub async fn rain(&self, id: RainId) -> Rain {
        self.ledger.rain(id).await.unwrap()
    }

    /// One round of the steward.
    pub async fn advance(&self, id: RainId) -> Result<State, String> {
        let advanced = self.steward.advance(self.rain(id).await).await;
        advanced.map_err(|error| error.to_string())?;
        Ok(self.rain(id).await.state)
    }

    pub fn buckets(&self, rain: &Rain) -> Vec<Bucket> {
        self.store.buckets(rain)
    }

    /// `users` people named `<prefix>-<n>` tap once.
    pub async fn grab(&self, rain: &Rain, prefix: &str, users: u32) {
        let buckets = self.buckets(rain);
        let mut crowds = vec![vec![]; buckets.len()];
        for n in 0..users {
            let user = format!("{prefix}-{n}");
            crowds[bucket_of(rain.id, &user, buckets.len())].push(user);
        }
        for (bucket, crowd) in buckets.iter().zip(&crowds) {
            for batch in crowd.chunks(256) {
                bucket.grab(batch.iter().map(String::as_str)).await.unwrap();
            }
        }
    }

    pub async fn audit(&self, id: RainId) -> Report {
        audit(&self.store, &self.ledger, &self.rain(id).await)
            .await
            .unwrap()
    }

    pub async fn balance(&self, account: &str) -> i64 {
        self.ledger
            .account(&account.parse().unwrap())
            .await
            .unwrap()
            .unwrap()
            .balance
            .0
    }
}

/// Settlers of this process; they end with it.
pub struct Settlers {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Settlers {
    /// They pay by the bench's own ledger.
    pub fn start(bench: &Bench) -> Settlers {
        Settlers::paying_by(bench, bench.settle(), bench.ledger.clone().into())
    }

    pub fn paying_by(bench: &Bench, settings: &config::Settle, balance: Balance) -> Settlers {
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        settle::start(settings, bench.store.clone(), balance, &tasks, &stop);
        Settlers { tasks, stop }
    }

    pub async fn stop(self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// The first step of a transfer between two buckets as they are now.
pub async fn give(
    buckets: &[Bucket],
    from: usize,
    id: &str,
    to: u32,
    most: u64,
) -> Option<Transfer> {
    let target = buckets[to as usize].level().await.unwrap();
    let given = buckets[from].give(id, to, &target.incarnation, most).await;
    given.unwrap()
}
