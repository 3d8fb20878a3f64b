//! A node came back as another process, after a restart or as a replica that was promoted, or it came back empty: its buckets may have lost the
//! last of what they had. Nothing is given there until they have been compared with the ledger.
//!
//! What a bucket has lost is the end of its history. So packets may lie in its pool again that were won, or that another bucket has received; winners,
//! claims and arrived transfers may be gone. The ledger knows the wins that were credited: their winners are put back, and their packets taken
//! out of the pool. A packet that is nowhere at all is put back into a pool. A win that was neither credited nor survived in Redis is lost:
//! its packet can be won again, and nobody can tell who had it.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use futures_util::future::{join_all, try_join_all};
use serde::Serialize;

use super::audit::{PAGE, amounts};
use super::load::{Reach, bucket_of_packet};
use super::{Steward, StewardError};
use crate::rain::{Packet, PacketId, Rain, UserId};
use crate::store::bucket::Bucket;
use crate::store::inbox::{Contents, Draft};
use crate::store::repair::{RepairAnswer, Repaired, Standing, TRANSFERS_MAX};
use crate::store::transfer::Transfer;
use crate::store::{StoreError, bucket_of};

/// Wins that a report names; more are only counted.
const NAMED_MAX: usize = 1_000;

/// What a repair found and did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Report {
    /// Buckets that were suspect, by number.
    pub buckets: Vec<usize>,
    /// Wins that the ledger had paid and a node had forgotten: put back.
    pub wins_restored: u64,
    /// Packets that lay in a pool although they were won or elsewhere: taken out.
    pub packets_removed: u64,
    /// Packets that were nowhere: put back into a pool.
    pub packets_returned: u64,
    /// Wins that the ledger has paid and that contradict what Redis holds: the user has another packet there, or another user was told of the
    /// same one. A person has to look.
    pub not_restored_total: u64,
    pub not_restored: Vec<NotRestored>,
}

impl Report {
    /// Nothing was lost: the node had been stopped and started in good order.
    fn is_empty(&self) -> bool {
        let found = [
            self.wins_restored,
            self.packets_removed,
            self.packets_returned,
        ];
        found.iter().all(|count| *count == 0) && self.not_restored_total == 0
    }

    /// In the log: a person looks at what was lost, and at nothing else.
    fn tell(&self, rain: &Rain, again: bool) {
        if self.is_empty() {
            tracing::info!(rain = %rain.id, buckets = ?self.buckets, again, "repaired: compared with the ledger, nothing was lost");
            return;
        }
        tracing::error!(
            rain = %rain.id, buckets = ?self.buckets, wins_restored = self.wins_restored, packets_removed = self.packets_removed,
            packets_returned = self.packets_returned, not_restored = self.not_restored_total, again, "repaired"
        );
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NotRestored {
    pub user: UserId,
    pub packet_id: PacketId,
    pub reason: String,
}

/// Where a packet was seen, one bit a place.
mod seen {
    /// In a pool or on its way, where nothing is suspect.
    pub const SOUND: u8 = 1;
    pub const WON: u8 = 2;
    pub const PAID: u8 = 4;
    /// In a suspect pool that keeps it.
    pub const KEPT: u8 = 8;
}

/// What came of looking for suspect buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Every bucket is held by the process that loaded or repaired it.
    Nothing,
    /// Settlers are given this long to finish.
    Later(Duration),
    /// Something moved while we looked: to be done again.
    Again,
    Done(Report),
}

/// Buckets known to be suspect, with the process that holds each, and since when.
#[derive(Clone, Debug)]
pub(super) struct Suspicion {
    held_by: Vec<(usize, String)>,
    since: Instant,
}

/// A suspect bucket, and what will be in it.
struct Suspect {
    number: usize,
    standing: Standing,
    winners: HashMap<UserId, Packet>,
    /// Of the pool, in its order. What cannot be read stays for the audit to report.
    pool: Vec<Result<Packet, String>>,
    /// Transfers that were on their way here.
    arriving: Vec<Transfer>,
    /// Ids of transfers that went out from here and will never arrive.
    void: Vec<String>,
    restore: Vec<(UserId, Packet)>,
}

impl Steward {
    /// Compares every suspect bucket of a rain with the ledger and repairs it.
    ///
    /// Settlers may hold claims that the node has forgotten. Before the ledger is read they are given `steward.repair_wait_ms` to record the
    /// credits. A credit that comes still later is refused as a conflict if its packet was won again meanwhile; if it was not, the packet lies in a
    /// pool though it is paid, which the refund finds, and `hongbao repair --all`.
    pub async fn repair(&self, rain: &Rain) -> Result<Repair, StewardError> {
        let buckets = self.store.buckets(rain);
        let before = try_join_all(buckets.iter().map(Bucket::standing)).await?;
        // Read after the standings: a suspect bucket takes no more chunks, so every top-up that it has some of is known here.
        let rain = &self.ledger.rain(rain.id).await?;
        let loaded = rain.parts.loaded_chunks();
        let held_by: Vec<(usize, String)> = (0..)
            .zip(&before)
            .filter(|(_, standing)| standing.is_suspect(loaded))
            .map(|(number, standing)| (number, standing.run_id.clone()))
            .collect();
        if held_by.is_empty() || !rain.parts.first().loaded {
            self.remember(rain.id, |applied| applied.suspicion = None);
            return Ok(Repair::Nothing);
        }
        let wait = self.wait_for_settlers(rain, held_by);
        if !wait.is_zero() {
            return Ok(Repair::Later(wait));
        }
        let mut picture = Picture::of(self, rain, &buckets, &before).await?;
        let after = try_join_all(buckets.iter().map(Bucket::standing)).await?;
        if before != after {
            // Packets were on the move while we looked: what seems to be nowhere may be somewhere.
            return Ok(Repair::Again);
        }
        let messages = self.forgotten_messages(&picture, &buckets);
        let report = picture.judge(rain, &before);
        if picture.has_packets() {
            // First: whoever dies after the repair leaves a record that says sold out for ever. Said too early, it is found out again.
            self.ledger.set_not_sold_out(rain.id).await?;
        }
        let number = self.jitter.next_u64();
        let mut changed = false;
        for suspect in picture.suspects {
            let bucket = &buckets[suspect.number];
            bucket.restore(&suspect.restore).await?;
            let repaired = Repaired {
                pool: suspect.pool.iter().map(text_of).collect(),
                chunks: rain.parts.chunks(),
                over: rain.state.is_closed(),
                arrived: suspect.arriving,
                void: suspect.void,
            };
            let answer = bucket.repair(&suspect.standing, &repaired, number).await?;
            changed |= answer == RepairAnswer::Changed;
        }
        crate::crash::point("repair.done");
        // What was changed at some of them stands, and is told, even if others have to be looked at again.
        report.tell(rain, changed);
        if report.not_restored_total > 0 {
            let packets: Vec<PacketId> = report
                .not_restored
                .iter()
                .map(|win| win.packet_id)
                .take(100)
                .collect();
            tracing::error!(rain = %rain.id, ?packets, "paid, and claimed otherwise in Redis; the audit says by whom");
        }
        if changed {
            return Ok(Repair::Again);
        }
        crate::metrics::get().repaired(&report);
        self.remember(rain.id, |applied| {
            applied.suspicion = None;
            applied.version = None;
        });
        self.write_again(rain, &messages).await;
        Ok(Repair::Done(report))
    }

    /// Makes every bucket suspect, so that the next repair compares all of them with the ledger.
    pub async fn distrust(&self, rain: &Rain) -> Result<(), StewardError> {
        let buckets = self.store.buckets(rain);
        try_join_all(buckets.iter().map(Bucket::distrust)).await?;
        Ok(())
    }

    /// How long settlers still have, from the moment when these processes were first seen to hold these buckets.
    fn wait_for_settlers(&self, rain: &Rain, held_by: Vec<(usize, String)>) -> Duration {
        let known = self.applied(rain.id).suspicion;
        let since = match known {
            Some(known) if known.held_by == held_by => known.since,
            _ => {
                let numbers: Vec<usize> = held_by.iter().map(|(number, _)| *number).collect();
                // Not yet an error: what was lost, if anything, the comparison will say.
                tracing::warn!(
                    rain = %rain.id, buckets = ?numbers,
                    "a node has come back as another process, or empty; nothing is given there until it is compared with the ledger"
                );
                let since = Instant::now();
                self.remember(rain.id, |applied| {
                    applied.suspicion = Some(Suspicion { held_by, since });
                });
                since
            }
        };
        self.settings.repair_wait.saturating_sub(since.elapsed())
    }

    /// Of everybody who was paid and whose inbox lies on the node of a suspect bucket: it may have lost them, too. What is there already is
    /// not written twice.
    fn forgotten_messages(&self, picture: &Picture, buckets: &[Bucket]) -> Vec<Draft> {
        let nodes: HashSet<usize> = picture
            .suspects
            .iter()
            .map(|suspect| self.store.node_of(&buckets[suspect.number].tag))
            .collect();
        let there = |user: &UserId| nodes.contains(&self.store.node_of_user(user));
        let paid = picture.paid.iter().filter(|(user, _)| there(user));
        let draft = |(user, packet): &(UserId, Packet)| Draft {
            user: user.clone(),
            contents: Contents::PacketCredited { packet: *packet },
        };
        paid.map(draft).collect()
    }

    /// After the buckets go on: money first.
    async fn write_again(&self, rain: &Rain, messages: &[Draft]) {
        let keep = self.settings.inbox.into();
        let written = self.store.write_messages(messages, keep, None).await;
        let missing = written
            .iter()
            .filter(|at| matches!(at, Ok(Some(_))))
            .count();
        let failed = written.into_iter().find_map(Result::err);
        if missing > 0 {
            tracing::warn!(rain = %rain.id, missing, "messages that a node had forgotten are in their inboxes again");
        }
        if let Some(error) = failed {
            tracing::error!(rain = %rain.id, %error, "messages that a node may have forgotten could not all be written again");
        }
    }
}

fn text_of(packet: &Result<Packet, String>) -> String {
    match packet {
        Ok(packet) => packet.to_string(),
        Err(text) => text.clone(),
    }
}

/// Where all packets of the rain are.
struct Picture {
    amounts: Vec<crate::rain::Cents>,
    places: Vec<u8>,
    suspects: Vec<Suspect>,
    /// What the ledger has paid, by packet.
    paid: Vec<(UserId, Packet)>,
    /// What was won and went back to the sponsor all the same.
    discarded: Vec<(UserId, Packet)>,
}

impl Picture {
    /// Reads in the direction in which packets move: pools, transfers, winners, ledger.
    async fn of(
        steward: &Steward,
        rain: &Rain,
        buckets: &[Bucket],
        standings: &[Standing],
    ) -> Result<Picture, StewardError> {
        let amounts = amounts(rain).await?;
        let mut picture = Picture {
            places: vec![0; amounts.len()],
            amounts,
            suspects: vec![],
            paid: vec![],
            discarded: vec![],
        };
        for (number, standing) in standings.iter().enumerate() {
            if standing.is_suspect(rain.parts.loaded_chunks()) {
                picture.suspects.push(Suspect {
                    number,
                    standing: standing.clone(),
                    winners: HashMap::new(),
                    pool: vec![],
                    arriving: vec![],
                    void: vec![],
                    restore: vec![],
                });
            }
        }
        let pools = join_all(buckets.iter().map(pool)).await;
        for (number, pool) in pools.into_iter().enumerate() {
            let pool = pool?;
            match picture.suspect(number) {
                Some(suspect) => suspect.pool = pool,
                None => {
                    let packets = pool.into_iter().flatten();
                    packets.for_each(|packet| picture.see(rain, &packet, seen::SOUND));
                }
            }
        }
        let outboxes = try_join_all(buckets.iter().map(Bucket::outbox)).await?;
        for (source, outbox) in outboxes.into_iter().enumerate() {
            for transfer in outbox.into_iter().flatten() {
                let standing = standings.get(transfer.target as usize);
                picture
                    .transfer(rain, buckets, source, transfer, standing)
                    .await?;
            }
        }
        for (number, bucket) in buckets.iter().enumerate() {
            let mut cursor = 0;
            loop {
                let (next, winners) = bucket.winners_scan(cursor).await?;
                for (user, packet) in winners.into_iter().flatten() {
                    picture.see(rain, &packet, seen::WON);
                    if let Some(suspect) = picture.suspect(number) {
                        suspect.winners.insert(user, packet);
                    }
                }
                if next == 0 {
                    break;
                }
                cursor = next;
            }
        }
        let mut after = None;
        loop {
            let page = steward
                .ledger
                .credits_after(rain.id, after, PAGE as u32)
                .await?;
            let Some(last) = page.last() else { break };
            after = Some(last.packet.id.index());
            for credit in page {
                picture.see(rain, &credit.packet, seen::PAID);
                picture.paid.push((credit.user, credit.packet));
            }
        }
        // What was given back to the sponsor was won all the same: its user has had a turn.
        for (user, packet) in steward.ledger.discarded_claims(rain.id).await? {
            picture.see(rain, &packet, seen::PAID);
            picture.discarded.extend(user.map(|user| (user, packet)));
        }
        Ok(picture)
    }

    fn suspect(&mut self, number: usize) -> Option<&mut Suspect> {
        self.suspects
            .iter_mut()
            .find(|suspect| suspect.number == number)
    }

    fn see(&mut self, rain: &Rain, packet: &Packet, place: u8) {
        if packet.id.rain() == rain.id
            && let Some(places) = self.places.get_mut(packet.id.index() as usize)
        {
            *places |= place;
        }
    }

    /// A transfer whose packets have arrived says nothing any more. One that is on its way to a suspect bucket is taken in by the repair,
    /// since the bucket may have had it before. One that was meant for an earlier incarnation of its target is void: the packets go back where they
    /// came from, unless they are seen elsewhere.
    async fn transfer(
        &mut self,
        rain: &Rain,
        buckets: &[Bucket],
        source: usize,
        transfer: Transfer,
        target: Option<&Standing>,
    ) -> Result<(), StewardError> {
        let number = transfer.target as usize;
        let (Some(bucket), Some(target)) = (buckets.get(number), target) else {
            return Ok(());
        };
        if bucket.has_taken(&transfer).await? {
            return Ok(());
        }
        let gone = !target.incarnation.is_empty() && target.incarnation != transfer.incarnation;
        let packets = transfer.packets.iter().copied().map(Ok);
        if gone {
            if let Some(suspect) = self.suspect(source) {
                suspect.pool.extend(packets);
                suspect.void.push(transfer.id);
                return enough(rain, suspect.void.len());
            }
        } else if let Some(suspect) = self.suspect(number) {
            suspect.pool.extend(packets);
            suspect.arriving.push(transfer);
            return enough(rain, suspect.arriving.len());
        }
        for packet in &transfer.packets {
            self.see(rain, packet, seen::SOUND);
        }
        Ok(())
    }

    /// Decides what each suspect bucket gets.
    fn judge(&mut self, rain: &Rain, standings: &[Standing]) -> Report {
        let mut report = Report {
            buckets: self.suspects.iter().map(|suspect| suspect.number).collect(),
            ..Report::default()
        };
        self.restore_winners(rain, standings.len(), &mut report);
        let places = &mut self.places;
        for suspect in &mut self.suspects {
            let count = suspect.pool.len();
            suspect.pool.retain(|packet| {
                let Ok(packet) = packet else { return true };
                let index = packet.id.index() as usize;
                let ours = packet.id.rain() == rain.id;
                match places.get(index).copied().filter(|_| ours) {
                    // Not of this rain: the audit reports it.
                    None => true,
                    Some(0) => {
                        places[index] |= seen::KEPT;
                        true
                    }
                    Some(_) => false,
                }
            });
            report.packets_removed += (count - suspect.pool.len()) as u64;
        }
        self.return_packets(rain, standings, &mut report);
        report
    }

    /// Everybody who was paid has had a turn, and is a winner again, so that nobody wins twice.
    fn restore_winners(&mut self, rain: &Rain, buckets: usize, report: &mut Report) {
        let discarded = std::mem::take(&mut self.discarded);
        for (user, packet) in std::mem::take(&mut self.paid).into_iter().chain(discarded) {
            let home = bucket_of(rain.id, user.as_str(), buckets);
            let taken = self.places[packet.id.index() as usize] & seen::WON != 0;
            let Some(suspect) = self.suspect(home) else {
                continue;
            };
            let reason = match suspect.winners.get(&user) {
                Some(held) if held.id == packet.id => continue,
                Some(held) => Some(format!("the user has packet {} there", held.id)),
                None => {
                    suspect.restore.push((user.clone(), packet));
                    let told = suspect.winners.iter().find(|(_, won)| won.id == packet.id);
                    let other = told.map_or("another user", |(user, _)| user.as_str());
                    taken.then(|| format!("{other} has won it in Redis"))
                }
            };
            let Some(reason) = reason else {
                report.wins_restored += 1;
                continue;
            };
            report.not_restored_total += 1;
            if report.not_restored.len() < NAMED_MAX {
                report.not_restored.push(NotRestored {
                    user,
                    packet_id: packet.id,
                    reason,
                });
            }
        }
    }

    /// Packets that are nowhere go into the pool of their own bucket if that is suspect, else of any that is. One that its bucket has not been
    /// loaded with yet will come by itself; a suspect bucket gets those of its own here.
    fn return_packets(&mut self, rain: &Rain, standings: &[Standing], report: &mut Report) {
        let chunks = standings.iter().map(|standing| standing.chunks);
        let reach = Reach::new(&rain.parts, chunks);
        for index in 0..self.amounts.len() {
            if self.places[index] != 0 {
                continue;
            }
            let home = bucket_of_packet(index as u32, standings.len());
            let suspect_home = self
                .suspects
                .iter()
                .position(|suspect| suspect.number == home);
            if suspect_home.is_none() && !reach.has(index as u32) {
                continue;
            }
            let packet = Packet {
                id: rain.id.packet(index as u32),
                cents: self.amounts[index],
            };
            self.suspects[suspect_home.unwrap_or(0)]
                .pool
                .push(Ok(packet));
            report.packets_returned += 1;
        }
    }

    fn has_packets(&self) -> bool {
        self.suspects.iter().any(|suspect| !suspect.pool.is_empty())
    }
}

/// `repair.lua` takes so many transfers at a time. Stewards make one after the other, so there are never more than a few.
fn enough(rain: &Rain, transfers: usize) -> Result<(), StewardError> {
    if transfers <= TRANSFERS_MAX {
        return Ok(());
    }
    let problem = format!("has more than {TRANSFERS_MAX} transfers to a suspect bucket under way");
    Err(super::advance::fault(rain, problem))
}

/// A pool from the left to the right. Packets that leave it meanwhile do so on the right.
async fn pool(bucket: &Bucket) -> Result<Vec<Result<Packet, String>>, StoreError> {
    let mut packets = vec![];
    loop {
        let page = bucket.pool_page(packets.len() as u64, PAGE).await?;
        let last = (page.len() as u64) < PAGE;
        packets.extend(page);
        if last {
            return Ok(packets);
        }
    }
}
