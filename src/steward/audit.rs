//! The audit: recomputes every packet from the seed, finds each one in exactly one place, and every winner with exactly one credit of that
//! amount. Works on a live rain, where what moves while it reads is looked at again; after the keys have expired it holds the
//! ledger against the recomputed allocation.

use std::collections::{HashMap, HashSet};

use serde::Serialize;

use super::StewardError;
use super::advance::fault;
use super::load::Reach;
use crate::ledger::{Ledger, RainTotals};
use crate::rain::{Cents, Claim, Packet, PacketId, Rain, State, UserId};
use crate::store::Store;
use crate::store::bucket::Bucket;
use crate::trace::Span;

/// Elements of a list or set read at a time.
pub(super) const PAGE: u64 = 5_000;
/// Differences that a report names; more are only counted.
const DIFFERENCES_NAMED_MAX: usize = 1_000;
/// A live rain moves while it is read: what looks wrong is believed when it looks so this often.
const LOOKS: usize = 3;

/// One thing that does not add up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Difference {
    pub kind: Kind,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_id: Option<PacketId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<UserId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cents: Option<Cents>,
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A packet of the allocation that is nowhere.
    MissingPacket,
    /// A packet that can still be won or refunded, and was won.
    PacketInTwoPlaces,
    /// An amount that is not the allocation's.
    WrongAmount,
    /// A packet that is not of this rain's allocation.
    UnknownPacket,
    /// Text in Redis that is no packet or claim.
    Unreadable,
    /// A packet paid to, or claimed for, somebody who did not win it.
    WrongUser,
    /// A user with more than one packet.
    UserWonTwice,
    /// A winner whose packet is neither credited nor claimed nor discarded.
    WinNotCredited,
    /// Cents that do not add up to what was funded.
    Totals,
}

#[derive(Clone, Debug, Serialize)]
pub struct Report {
    pub rain_id: crate::rain::RainId,
    pub state: State,
    pub balanced: bool,
    /// Claims whose credit has not been confirmed: nothing wrong with them, only not finished.
    pub in_motion: u64,
    pub packets: u32,
    pub funded_cents: Cents,
    pub pool_cents: Cents,
    pub pool_count: u64,
    /// On their way between two buckets.
    pub transfer_cents: Cents,
    pub transfer_count: u64,
    pub claims_cents: Cents,
    pub claims_count: u64,
    pub dead_count: u64,
    pub credited_cents: Cents,
    pub credited_count: u64,
    pub refunded_cents: Cents,
    pub discarded_cents: Cents,
    pub differences_total: usize,
    pub differences: Vec<Difference>,
}

/// Where a packet was seen, one bit a place.
mod seen {
    pub const POOL: u8 = 1;
    pub const CLAIM: u8 = 2;
    pub const CREDITED: u8 = 4;
    pub const WINNER: u8 = 8;
    pub const DISCARDED: u8 = 16;
    pub const DEAD: u8 = 32;
    pub const TRANSFER: u8 = 64;
}

/// What one pass found.
struct Look<'a> {
    rain: &'a Rain,
    amounts: &'a [Cents],
    places: Vec<u8>,
    /// Who a packet belongs to, by any place that names somebody; an index into `users`.
    owners: Vec<u32>,
    /// How far the buckets are loaded; `None` before all packets of the creation are.
    reach: Option<Reach>,
    users: HashMap<UserId, u32>,
    /// Claims that a person gave up: their user is not expected to be paid.
    dropped: HashSet<(PacketId, UserId)>,
    differences: Vec<Difference>,
}

const NOBODY: u32 = u32::MAX;

/// Every amount of the allocation, computed off the threads that serve.
pub(super) async fn amounts(rain: &Rain) -> Result<Vec<Cents>, StewardError> {
    let parts = rain.parts.clone();
    let computing = tokio::task::spawn_blocking(move || parts.amounts());
    let amounts = computing.await.expect("splitting does not panic");
    amounts.map_err(|error| fault(rain, error.to_string()))
}

pub async fn audit(store: &Store, ledger: &Ledger, rain: &Rain) -> Result<Report, StewardError> {
    Span::of_rain("steward.audit", rain.id, judge(store, ledger, rain)).await
}

async fn judge(store: &Store, ledger: &Ledger, rain: &Rain) -> Result<Report, StewardError> {
    let mut known = amounts(rain).await?;
    let mut report = look(store, ledger, rain, &known).await?;
    let mut looks = 1;
    while looks < LOOKS && !report.differences.is_empty() {
        let rain = &ledger.rain(rain.id).await?;
        if rain.parts.packets() as usize != known.len() {
            // Topped up meanwhile: what was seen without knowing those packets says nothing. A rain has so many top-ups and no more.
            known = amounts(rain).await?;
            report = look(store, ledger, rain, &known).await?;
            looks = 1;
            continue;
        }
        // A packet that moved between two reads is elsewhere now; a real difference is there each time.
        let mut again = look(store, ledger, rain, &known).await?;
        let before: HashSet<_> = report.differences.iter().map(Difference::key).collect();
        again
            .differences
            .retain(|difference| before.contains(&difference.key()));
        report = again;
        looks += 1;
    }
    report.differences_total = report.differences.len();
    report.balanced = report.differences.is_empty();
    report.differences.truncate(DIFFERENCES_NAMED_MAX);
    crate::metrics::get().audited(if report.balanced {
        "balanced"
    } else {
        "unbalanced"
    });
    Ok(report)
}

async fn look(
    store: &Store,
    ledger: &Ledger,
    rain: &Rain,
    amounts: &[Cents],
) -> Result<Report, StewardError> {
    let mut look = Look {
        rain,
        amounts,
        places: vec![0; amounts.len()],
        owners: vec![NOBODY; amounts.len()],
        reach: None,
        users: HashMap::new(),
        dropped: HashSet::new(),
        differences: vec![],
    };
    let in_redis = rain.state != State::Finished;
    look.dropped = ledger.dropped_claims(rain.id).await?.into_iter().collect();
    if in_redis {
        // In the direction in which packets move, so that one that moves while we read is seen twice rather than never.
        let buckets = store.buckets(rain);
        if rain.parts.first().loaded {
            // Before the pools are read: what had been loaded by then is found somewhere.
            look.reach = Some(Reach::of(&rain.parts, &buckets).await?);
        }
        for bucket in &buckets {
            look.pool(bucket).await?;
        }
        for bucket in &buckets {
            look.outbox(bucket).await?;
        }
        for bucket in &buckets {
            look.claims(bucket).await?;
        }
        for bucket in &buckets {
            look.winners(bucket).await?;
        }
    }
    look.ledger(ledger).await?;
    let totals = ledger.rain_totals(rain.id).await?;
    let mut report = look.judge(in_redis);
    report.refunded_cents = totals.refunded;
    report.discarded_cents = totals.discarded;
    look.judge_totals(&totals, in_redis.then_some(report.pool_cents));
    report.differences = look.differences;
    Ok(report)
}

impl Difference {
    fn key(&self) -> (Kind, Option<PacketId>, Option<UserId>) {
        (self.kind, self.packet_id, self.user.clone())
    }
}

impl Look<'_> {
    async fn pool(&mut self, bucket: &Bucket) -> Result<(), StewardError> {
        let mut start = 0;
        loop {
            let page = bucket.pool_page(start, PAGE).await?;
            let len = page.len() as u64;
            for packet in page {
                match packet {
                    Ok(packet) => drop(self.place(packet, seen::POOL, "pool")),
                    Err(text) => self.unreadable(bucket, &text),
                }
            }
            if len < PAGE {
                return Ok(());
            }
            start += len;
        }
    }

    async fn outbox(&mut self, bucket: &Bucket) -> Result<(), StewardError> {
        for transfer in bucket.outbox().await? {
            match transfer {
                Ok(transfer) => transfer.packets.into_iter().for_each(|packet| {
                    self.place(packet, seen::TRANSFER, "outbox");
                }),
                Err(text) => self.unreadable(bucket, &text),
            }
        }
        Ok(())
    }

    async fn claims(&mut self, bucket: &Bucket) -> Result<(), StewardError> {
        // Waiting claims are taken from the right and come in on the left: a page further on may repeat one, never skip one.
        let mut start = 0;
        loop {
            let page = bucket.claims_page(start, PAGE).await?;
            let len = page.len() as u64;
            page.into_iter()
                .for_each(|claim| self.claim(bucket, claim, seen::CLAIM));
            if len < PAGE {
                break;
            }
            start += len;
        }
        for leased in [true, false, true] {
            let mut start = 0;
            loop {
                let page = bucket.held_page(leased, start, PAGE).await?;
                let len = page.len() as u64;
                page.into_iter()
                    .for_each(|claim| self.claim(bucket, claim, seen::CLAIM));
                if len < PAGE {
                    break;
                }
                start += len;
            }
        }
        let mut cursor = 0;
        loop {
            let (next, letters) = bucket.dead_scan(cursor).await?;
            for letter in letters {
                self.claim(bucket, letter.map(|letter| letter.claim), seen::DEAD);
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    fn claim(&mut self, bucket: &Bucket, claim: Result<Claim, String>, place: u8) {
        match claim {
            Ok(claim) => {
                if let Some(index) = self.place(claim.packet, place, "claim") {
                    self.own(index, &claim.user, "claim");
                }
            }
            Err(text) => self.unreadable(bucket, &text),
        }
    }

    async fn winners(&mut self, bucket: &Bucket) -> Result<(), StewardError> {
        let mut cursor = 0;
        loop {
            let (next, winners) = bucket.winners_scan(cursor).await?;
            for winner in winners {
                match winner {
                    Ok((user, packet)) => {
                        if let Some(index) = self.place(packet, seen::WINNER, "winners") {
                            self.own(index, &user, "winners");
                        }
                    }
                    Err(text) => self.unreadable(bucket, &text),
                }
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    async fn ledger(&mut self, ledger: &Ledger) -> Result<(), StewardError> {
        let mut after = None;
        loop {
            let page = ledger
                .credits_after(self.rain.id, after, PAGE as u32)
                .await?;
            let Some(last) = page.last() else {
                break;
            };
            after = Some(last.packet.id.index());
            for credit in &page {
                if let Some(index) = self.place(credit.packet, seen::CREDITED, "credit") {
                    self.own(index, &credit.user, "credit");
                }
            }
        }
        for packet in ledger.discarded(self.rain.id).await? {
            self.place(packet, seen::DISCARDED, "discard");
        }
        Ok(())
    }

    /// Notes where a packet is. Only a packet of this allocation, with its own amount, has a place.
    fn place(&mut self, packet: Packet, place: u8, name: &str) -> Option<usize> {
        let index = packet.id.index() as usize;
        let own = packet.id.rain() == self.rain.id;
        match self.amounts.get(index).filter(|_| own) {
            None => {
                self.differ(Kind::UnknownPacket, Some(packet), None, name.into());
                return None;
            }
            Some(amount) if *amount != packet.cents => {
                self.differ(
                    Kind::WrongAmount,
                    Some(packet),
                    None,
                    format!("{name}; the allocation says {amount}"),
                );
            }
            Some(_) => {}
        }
        let once = place == seen::POOL || place == seen::TRANSFER;
        if once && self.places[index] & place != 0 {
            let twice = format!("twice {}", named(place));
            self.differ(Kind::PacketInTwoPlaces, Some(packet), None, twice);
        }
        self.places[index] |= place;
        Some(index)
    }

    /// Notes whose a packet is: all places must name the same user.
    fn own(&mut self, index: usize, user: &UserId, name: &str) {
        if !self.dropped.is_empty()
            && self
                .dropped
                .contains(&(self.rain.id.packet(index as u32), user.clone()))
        {
            return;
        }
        let next = self.users.len() as u32;
        let number = *self.users.entry(user.clone()).or_insert(next);
        let before = std::mem::replace(&mut self.owners[index], number);
        if before != NOBODY && before != number {
            let packet = Packet {
                id: self.rain.id.packet(index as u32),
                cents: self.amounts[index],
            };
            self.differ(
                Kind::WrongUser,
                Some(packet),
                Some(user),
                format!("{name} names another user than an earlier place"),
            );
        }
    }

    fn judge(&mut self, in_redis: bool) -> Report {
        let mut report = Report {
            rain_id: self.rain.id,
            state: self.rain.state,
            balanced: false,
            in_motion: 0,
            packets: self.amounts.len() as u32,
            funded_cents: self.rain.parts.total(),
            pool_cents: Cents::ZERO,
            pool_count: 0,
            transfer_cents: Cents::ZERO,
            transfer_count: 0,
            claims_cents: Cents::ZERO,
            claims_count: 0,
            dead_count: 0,
            credited_cents: Cents::ZERO,
            credited_count: 0,
            refunded_cents: Cents::ZERO,
            discarded_cents: Cents::ZERO,
            differences_total: 0,
            differences: vec![],
        };
        let mut wins = vec![0u8; self.users.len()];
        for index in 0..self.amounts.len() {
            self.judge_packet(index, in_redis, &mut report);
            if self.owners[index] != NOBODY {
                let wins = &mut wins[self.owners[index] as usize];
                *wins = wins.saturating_add(1);
            }
        }
        let twice = self
            .users
            .iter()
            .filter(|(_, number)| wins[**number as usize] > 1);
        let twice: Vec<_> = twice
            .map(|(user, number)| (user.clone(), wins[*number as usize]))
            .collect();
        for (user, count) in twice {
            self.differ(
                Kind::UserWonTwice,
                None,
                Some(&user),
                format!("{count} packets"),
            );
        }
        report
    }

    fn judge_packet(&mut self, index: usize, in_redis: bool, report: &mut Report) {
        use seen::{CLAIM, CREDITED, DEAD, DISCARDED, POOL, TRANSFER, WINNER};
        let cents = self.amounts[index];
        let packet = Packet {
            id: self.rain.id.packet(index as u32),
            cents,
        };
        let places = self.places[index];
        let add = |sum: &mut Cents| *sum = Cents(sum.0.saturating_add(cents.0));
        if places & POOL != 0 {
            report.pool_count += 1;
            add(&mut report.pool_cents);
            // Between take and given a packet stands in its new pool and still in the old outbox.
            if places & !(POOL | TRANSFER) != 0 {
                let others = named(places & !POOL);
                self.differ(
                    Kind::PacketInTwoPlaces,
                    Some(packet),
                    None,
                    format!("in the pool and {others}"),
                );
            }
            return;
        }
        if places == TRANSFER {
            if self.rain.state >= State::Refunded {
                self.differ(
                    Kind::MissingPacket,
                    Some(packet),
                    None,
                    "left in an outbox when the rain was refunded".into(),
                );
            }
            report.transfer_count += 1;
            add(&mut report.transfer_cents);
            return;
        }
        if places & CREDITED != 0 {
            report.credited_count += 1;
            add(&mut report.credited_cents);
            // Paid, but its claim has not been acked: its user may not have been told yet.
            report.in_motion += u64::from(places & CLAIM != 0);
            report.dead_count += u64::from(places & DEAD != 0);
            if places & DISCARDED != 0 {
                self.differ(
                    Kind::PacketInTwoPlaces,
                    Some(packet),
                    None,
                    "credited and discarded".into(),
                );
            }
        } else if places & (CLAIM | DEAD) != 0 && places & DISCARDED == 0 {
            report.claims_count += 1;
            report.in_motion += u64::from(places & CLAIM != 0);
            report.dead_count += u64::from(places & DEAD != 0);
            add(&mut report.claims_cents);
        } else if places & WINNER != 0 && places & DISCARDED == 0 {
            self.differ(
                Kind::WinNotCredited,
                Some(packet),
                None,
                "won, but neither claimed nor credited".into(),
            );
        }
        let won = places & (CLAIM | DEAD | CREDITED | DISCARDED) != 0;
        if in_redis && won && places & WINNER == 0 {
            self.differ(
                Kind::WrongUser,
                Some(packet),
                None,
                format!("{}, but nobody is its winner", named(places)),
            );
        }
        if places == 0 && in_redis {
            if self.reach.as_ref().is_some_and(|reach| {
                index < self.rain.parts.loaded_packets() as usize || reach.has(index as u32)
            }) {
                self.differ(
                    Kind::MissingPacket,
                    Some(packet),
                    None,
                    "in no pool, no claim and no credit".into(),
                );
            } else {
                // On its way into the pool, or the rain was closed before it got there: nobody can have it.
                report.pool_count += 1;
                add(&mut report.pool_cents);
            }
        }
    }

    /// Sums that must agree whatever moves: all are of one instant in the ledger. `pool` is what is left in Redis, unless its keys have expired.
    fn judge_totals(&mut self, totals: &RainTotals, pool: Option<Cents>) {
        if totals.funded != self.rain.parts.total() {
            self.totals(
                "the escrow was funded with another amount than the rain's total",
                totals.funded,
            );
        }
        let out = totals.credited.0 + totals.refunded.0 + totals.discarded.0;
        if totals.funded.0 - out != totals.escrow_balance.0 {
            self.totals(
                "the escrow holds another amount than was not paid out",
                totals.escrow_balance,
            );
        }
        if self.rain.state >= State::Refunded && pool.is_some_and(|pool| pool != totals.refunded) {
            self.totals("the refund is not what was left", totals.refunded);
        }
        if self.rain.state == State::Finished && totals.escrow_balance != Cents::ZERO {
            self.totals(
                "the escrow of a finished rain is not empty",
                totals.escrow_balance,
            );
        }
    }

    fn unreadable(&mut self, bucket: &Bucket, text: &str) {
        let shown: String = text.chars().take(100).collect();
        self.differ(
            Kind::Unreadable,
            None,
            None,
            format!("bucket {} holds \"{shown}\"", bucket.tag),
        );
    }

    fn totals(&mut self, detail: &str, cents: Cents) {
        self.differences.push(Difference {
            kind: Kind::Totals,
            packet_id: None,
            user: None,
            cents: Some(cents),
            detail: detail.to_owned(),
        });
    }

    fn differ(
        &mut self,
        kind: Kind,
        packet: Option<Packet>,
        user: Option<&UserId>,
        detail: String,
    ) {
        self.differences.push(Difference {
            kind,
            packet_id: packet.map(|packet| packet.id),
            user: user.cloned(),
            cents: packet.map(|packet| packet.cents),
            detail,
        });
    }
}

fn named(places: u8) -> String {
    let names = [
        (seen::POOL, "in the pool"),
        (seen::CLAIM, "claimed"),
        (seen::CREDITED, "credited"),
        (seen::WINNER, "won"),
        (seen::DISCARDED, "discarded"),
        (seen::DEAD, "a dead letter"),
        (seen::TRANSFER, "on its way to another bucket"),
    ];
    let present: Vec<&str> = names
        .into_iter()
        .filter(|(bit, _)| places & bit != 0)
        .map(|(_, name)| name)
        .collect();
    present.join(", ")
}
