use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;

use serde_json::json;

use crate::rain::{Cents, Claim, PacketId, UserId};

use super::db::{Row, Tx, Value};
use super::entry::sql_packet;
use super::error::LedgerError;
use super::{CREDIT_BATCH_MAX, Ledger};

/// What became of one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Paid by this call.
    Credited,
    /// Paid before, to this user and with this amount: as good as `Credited`.
    Existed,
    /// The packet was paid to another user or with another amount. Somebody has to look.
    Conflict { user: UserId, cents: Cents },
    /// The packet's money has gone back to the sponsor.
    Discarded,
    /// The user has no account, and this ledger opens none by itself.
    UnknownAccount,
    /// It cannot be paid, and will not be by trying again.
    Refused(Refusal),
    /// A company's balance system cannot pay this claim now, or did not say what became of it.
    Retry(String),
    /// A company's balance system will never pay this claim.
    Rejected(String),
    /// A company's balance system is away, and may have paid before it went: asking again finds out.
    Unknown(String),
    /// A company's balance system has paid, and the ledger refuses to record it. Somebody has to look.
    Unrecorded(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    UnknownRain,
    /// The rain's escrow holds less than the claim: more was won than funded.
    EscrowTooPoor {
        balance: Cents,
    },
    /// An amount that is not above zero.
    NotMoney,
    /// A constraint of the database that none of the above explains, in its own words.
    Constraint(String),
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::UnknownRain => f.write_str("the rain does not exist"),
            Refusal::EscrowTooPoor { balance } => {
                write!(f, "the rain's escrow holds only {balance}")
            }
            Refusal::NotMoney => f.write_str("the amount is not above zero"),
            Refusal::Constraint(reason) => write!(f, "the database refused it: {reason}"),
        }
    }
}

/// The claims of a batch as rows, from `$2` (and `$3`, `$4` in PostgreSQL).
macro_rules! sqlite_claims {
    () => {
        "(SELECT value ->> 0 AS packet_id, value ->> 1 AS user_id, value ->> 2 AS cents FROM json_each($2)) AS claim"
    };
}
macro_rules! postgres_claims {
    () => {
        "UNNEST($2::bigint[], $3::text[], $4::bigint[]) AS claim (packet_id, user_id, cents)"
    };
}

/// Pays what can be paid. The money moves by the journal's trigger. What is known beforehand to fail is left out, so that one bad
/// claim does not fail its batch; in one order of packets, so that two settlers with the same claims wait for one another and do not
/// lock each other up.
macro_rules! pay {
    ($claims:expr, $users:literal) => {
        concat!(
            "INSERT INTO credits (packet_id, user_id, cents, at_ms)
             SELECT claim.packet_id, claim.user_id, claim.cents, $1
             FROM ",
            $claims,
            "
             WHERE EXISTS (SELECT 1 FROM rains WHERE id = claim.packet_id >> 32)
               AND NOT EXISTS (SELECT 1 FROM entries WHERE packet_id = claim.packet_id)
               ",
            $users,
            "
             ORDER BY claim.packet_id
             ON CONFLICT (packet_id) DO NOTHING
             RETURNING packet_id"
        )
    };
}
macro_rules! pay_known_users {
    ($claims:expr) => {
        pay!(
            $claims,
            "AND EXISTS (SELECT 1 FROM accounts WHERE name = 'user:' || claim.user_id)"
        )
    };
}

/// Everything the ledger knows about the packets of a batch. (`$1`, unused, keeps the numbering.)
macro_rules! facts {
    ($claims:expr) => {
        concat!(
            "SELECT claim.packet_id, credit.user_id, credit.cents, discard.cents, escrow.balance_cents, payee.balance_cents
             FROM ", $claims, "
             LEFT JOIN credits AS credit ON credit.packet_id = claim.packet_id
             LEFT JOIN entries AS discard ON discard.packet_id = claim.packet_id
             LEFT JOIN accounts AS escrow ON escrow.name = 'escrow:' || (claim.packet_id >> 32)
             LEFT JOIN accounts AS payee ON payee.name = 'user:' || claim.user_id
             WHERE $1 = $1"
        )
    };
}

impl Ledger {
    /// Pays a batch of claims, at most `CREDIT_BATCH_MAX`, and says what became of each, in their order.
    ///
    /// One transaction for the batch. If the database refuses it, it is halved until the bad claim stands alone, and the others are
    /// paid. An error means that the whole batch has to be sent again; what was paid before the error is then found as `Existed`.
    pub async fn credit(&self, claims: &[Claim], at_ms: i64) -> Result<Vec<Verdict>, LedgerError> {
        if claims.len() > CREDIT_BATCH_MAX {
            return Err(LedgerError::BatchTooLarge {
                claims: claims.len(),
                max: CREDIT_BATCH_MAX,
            });
        }
        let mut verdicts = vec![Verdict::Refused(Refusal::NotMoney); claims.len()];
        let money = (0..claims.len()).filter(|&i| claims[i].packet.cents.0 > 0);
        for mut round in rounds(claims, money.collect()) {
            round.sort_unstable_by_key(|&i| claims[i].packet.id);
            let distinct: Vec<&Claim> = round.iter().map(|&i| &claims[i]).collect();
            let credited = self.credit_distinct(&distinct, at_ms).await?;
            for (i, verdict) in round.into_iter().zip(credited) {
                verdicts[i] = verdict;
            }
        }
        Ok(verdicts)
    }

    /// What can be known before claims of different packets are paid elsewhere: `None` for those that may be paid, and can then be recorded.
    pub(super) async fn foresee(
        &self,
        claims: &[&Claim],
    ) -> Result<Vec<Option<Verdict>>, LedgerError> {
        let sql = self
            .db
            .dialect(facts!(sqlite_claims!()), facts!(postgres_claims!()));
        let doing = "looking into claims";
        let rows = self
            .db
            .rows(doing, sql, self.bound_claims(claims, 0))
            .await?;
        let facts = self.read_facts(&rows)?;
        let foreseen = |claim: &&Claim| {
            if claim.packet.cents.0 <= 0 {
                return Some(Verdict::Refused(Refusal::NotMoney));
            }
            facts.get(&claim.packet.id)?.explain(claim)
        };
        Ok(claims.iter().map(foreseen).collect())
    }

    async fn credit_distinct(
        &self,
        claims: &[&Claim],
        at_ms: i64,
    ) -> Result<Vec<Verdict>, LedgerError> {
        let mut verdicts = Vec::with_capacity(claims.len());
        let whole: Range<usize> = 0..claims.len();
        let mut waiting = vec![whole];
        while let Some(part) = waiting.pop() {
            match self.credit_together(&claims[part.clone()], at_ms).await {
                Ok(paid) => verdicts.extend(paid),
                Err(LedgerError::Refused { source, .. }) if part.len() == 1 => {
                    verdicts.push(self.why_not_paid(claims[part.start], &source).await?);
                }
                Err(LedgerError::Refused { .. }) => {
                    let middle = part.start + part.len() / 2;
                    waiting.push(middle..part.end);
                    waiting.push(part.start..middle); // popped first: verdicts stay in order
                }
                Err(other) => return Err(other),
            }
        }
        Ok(verdicts)
    }

    /// All of these claims that can be paid, in one transaction.
    async fn credit_together(
        &self,
        claims: &[&Claim],
        at_ms: i64,
    ) -> Result<Vec<Verdict>, LedgerError> {
        crate::crash::point("credit.before");
        let mut tx = self.db.begin("crediting claims").await?;
        match self.pay(&mut tx, claims, at_ms).await {
            Ok(verdicts) => {
                crate::crash::point("credit.open");
                tx.commit().await?;
                crate::crash::point("credit.after");
                Ok(verdicts)
            }
            Err(error) => {
                tx.roll_back().await;
                Err(error)
            }
        }
    }

    async fn pay(
        &self,
        tx: &mut Tx,
        claims: &[&Claim],
        at_ms: i64,
    ) -> Result<Vec<Verdict>, LedgerError> {
        let sql = if self.settings.create_user_accounts {
            self.db
                .dialect(pay!(sqlite_claims!(), ""), pay!(postgres_claims!(), ""))
        } else {
            self.db.dialect(
                pay_known_users!(sqlite_claims!()),
                pay_known_users!(postgres_claims!()),
            )
        };
        let paid = tx.rows(sql, self.bound_claims(claims, at_ms)).await?;
        if paid.len() == claims.len() {
            return Ok(vec![Verdict::Credited; claims.len()]);
        }
        let paid: HashSet<i64> = paid
            .iter()
            .map(|row| row.i64(0))
            .collect::<Result<_, _>>()?;
        let unpaid: Vec<&Claim> = claims
            .iter()
            .copied()
            .filter(|claim| !paid.contains(&sql_packet(claim.packet.id)))
            .collect();
        let facts = self.facts(tx, &unpaid).await?;
        let verdict = |claim: &&Claim| match facts.get(&claim.packet.id) {
            Some(facts) => facts.explain(claim).unwrap_or_else(|| self.left_out()),
            None => Verdict::Credited,
        };
        Ok(claims.iter().map(verdict).collect())
    }

    /// What the statement found missing when it left a claim out, and somebody has added since: credits and discards stay for ever.
    fn left_out(&self) -> Verdict {
        if self.settings.create_user_accounts {
            Verdict::Refused(Refusal::UnknownRain)
        } else {
            Verdict::UnknownAccount
        }
    }

    /// After the database refused this claim on its own.
    async fn why_not_paid(
        &self,
        claim: &Claim,
        source: &sqlx::Error,
    ) -> Result<Verdict, LedgerError> {
        let mut tx = self.db.begin("looking into a refused claim").await?;
        let facts = self.facts(&mut tx, &[claim]).await;
        tx.roll_back().await;
        let known = facts?
            .remove(&claim.packet.id)
            .and_then(|facts| facts.explain(claim));
        Ok(known.unwrap_or_else(|| Verdict::Refused(Refusal::Constraint(source.to_string()))))
    }

    async fn facts(
        &self,
        tx: &mut Tx,
        claims: &[&Claim],
    ) -> Result<HashMap<PacketId, Facts>, LedgerError> {
        let sql = self
            .db
            .dialect(facts!(sqlite_claims!()), facts!(postgres_claims!()));
        let rows = tx.rows(sql, self.bound_claims(claims, 0)).await?;
        self.read_facts(&rows)
    }

    fn read_facts(&self, rows: &[Row]) -> Result<HashMap<PacketId, Facts>, LedgerError> {
        let create_user_accounts = self.settings.create_user_accounts;
        rows.iter()
            .map(|row| {
                let packet = PacketId::new(row.i64(0)? as u64).map_err(|e| row.broken(e))?;
                Ok((packet, Facts::read(row, create_user_accounts)?))
            })
            .collect()
    }

    fn bound_claims(&self, claims: &[&Claim], at_ms: i64) -> Vec<Value> {
        let packets = claims.iter().map(|claim| sql_packet(claim.packet.id));
        let users = claims.iter().map(|claim| claim.user.as_str());
        let cents = claims.iter().map(|claim| claim.packet.cents.0);
        if self.db.dialect(true, false) {
            let rows: Vec<_> = packets
                .zip(users)
                .zip(cents)
                .map(|((p, u), c)| json!([p, u, c]))
                .collect();
            return vec![at_ms.into(), json!(rows).to_string().into()];
        }
        vec![
            at_ms.into(),
            Value::I64s(packets.collect()),
            Value::Texts(users.map(str::to_owned).collect()),
            Value::I64s(cents.collect()),
        ]
    }
}

/// A packet that stands more than once in a batch takes as many rounds, as if its claims had come one after the other.
pub(super) fn rounds(claims: &[Claim], mut waiting: Vec<usize>) -> Vec<Vec<usize>> {
    let mut rounds = vec![];
    while !waiting.is_empty() {
        let mut seen = HashSet::with_capacity(waiting.len());
        let (round, repeats) = waiting
            .into_iter()
            .partition(|&i| seen.insert(claims[i].packet.id));
        rounds.push(round);
        waiting = repeats;
    }
    rounds
}

/// What the ledger knows about the packet, rain and user of a claim that was not paid.
struct Facts {
    credit: Option<(UserId, Cents)>,
    discarded: bool,
    escrow: Option<Cents>,
    payable_user: bool,
}

impl Facts {
    fn read(row: &Row, create_user_accounts: bool) -> Result<Facts, LedgerError> {
        let credit = match row.text_or_null(1)? {
            Some(user) => Some((
                UserId::new(&user).map_err(|e| row.broken(e))?,
                Cents(row.i64(2)?),
            )),
            None => None,
        };
        Ok(Facts {
            credit,
            discarded: row.i64_or_null(3)?.is_some(),
            escrow: row.i64_or_null(4)?.map(Cents),
            payable_user: create_user_accounts || row.i64_or_null(5)?.is_some(),
        })
    }

    /// None: nothing here speaks against the claim.
    fn explain(&self, claim: &Claim) -> Option<Verdict> {
        let cents = claim.packet.cents;
        match (&self.credit, self.escrow) {
            (Some((user, paid)), _) if *user == claim.user && *paid == cents => {
                Some(Verdict::Existed)
            }
            (Some((user, paid)), _) => Some(Verdict::Conflict {
                user: user.clone(),
                cents: *paid,
            }),
            (None, _) if self.discarded => Some(Verdict::Discarded),
            (None, None) => Some(Verdict::Refused(Refusal::UnknownRain)),
            (None, Some(_)) if !self.payable_user => Some(Verdict::UnknownAccount),
            (None, Some(balance)) if balance < cents => {
                Some(Verdict::Refused(Refusal::EscrowTooPoor { balance }))
            }
            (None, Some(_)) => None,
        }
    }
}
