use crate::rain::{Cents, Claim, RainId, Step, UserId};

use super::Ledger;
use super::accounts::AccountName;
use super::db::Tx;
use super::entry::{Booking, Entry, Kind, Recorded, sql_packet};
use super::error::LedgerError;
use super::events::Event;

/// The answer to a discard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Discard {
    Done,
    /// The packet was discarded before, with this amount.
    Existed,
    /// The packet was discarded before with another amount. Nothing was changed.
    Different {
        cents: Cents,
    },
    /// The packet has been credited, so there is nothing to give back. Nothing was changed.
    Credited {
        user: UserId,
        cents: Cents,
    },
}

impl Ledger {
    /// Gives what is left of a rain back to its sponsor and takes `Step::Refund`, in one transaction: once, however often and by
    /// however many it is asked for. Zero cents takes the step and writes no entry. The rain must be closed.
    pub async fn refund(
        &self,
        id: RainId,
        cents: Cents,
        at_ms: i64,
    ) -> Result<Booking, LedgerError> {
        if cents < Cents::ZERO {
            return Err(LedgerError::NotPositive {
                what: "refund",
                cents,
            });
        }
        let mut tx = self.db.begin("refunding a rain").await?;
        match tx.refund(id, cents, at_ms).await {
            Ok(Booking::Done) => tx.commit().await.map(|()| Booking::Done),
            Ok(unchanged @ (Booking::Existed | Booking::Different { .. })) => {
                tx.roll_back().await;
                Ok(unchanged)
            }
            Err(error) => {
                tx.roll_back().await;
                Err(self.why_not_returned(id, cents, error).await?)
            }
        }
    }

    /// Gives the amount of a claim that cannot be credited back to the sponsor, for good: a credit of the packet is refused from then
    /// on (`Verdict::Discarded`). `reason` is for people.
    pub async fn discard(
        &self,
        claim: &Claim,
        reason: &str,
        at_ms: i64,
    ) -> Result<Discard, LedgerError> {
        if claim.packet.cents <= Cents::ZERO {
            return Err(LedgerError::NotPositive {
                what: "discarded claim",
                cents: claim.packet.cents,
            });
        }
        let mut tx = self.db.begin("discarding a claim").await?;
        let outcome = tx.discard(claim, reason, at_ms).await;
        match outcome {
            Ok(Discard::Done) => tx.commit().await.map(|()| Discard::Done),
            Ok(unchanged) => {
                tx.roll_back().await;
                Ok(unchanged)
            }
            Err(refused @ LedgerError::Refused { .. }) => {
                tx.roll_back().await;
                // A credit may have committed while we waited for the escrow account.
                let mut tx = self.db.begin("discarding a claim").await?;
                let credited = tx.credited(claim).await?;
                tx.roll_back().await;
                match credited {
                    Some(credited) => Ok(credited),
                    None => Err(self
                        .why_not_returned(claim.packet.id.rain(), claim.packet.cents, refused)
                        .await?),
                }
            }
            Err(error) => {
                tx.roll_back().await;
                Err(error)
            }
        }
    }

    /// Records that a claim was given up although its packet is paid to another claim. The first record stays.
    pub async fn drop_claim(
        &self,
        claim: &Claim,
        reason: &str,
        at_ms: i64,
    ) -> Result<(), LedgerError> {
        let sql = "INSERT INTO dropped_claims (packet_id, user_id, cents, reason, at_ms) VALUES ($1, $2, $3, $4, $5)
                   ON CONFLICT (packet_id, user_id) DO NOTHING";
        let values = vec![
            sql_packet(claim.packet.id).into(),
            claim.user.as_str().into(),
            claim.packet.cents.0.into(),
            reason.into(),
            at_ms.into(),
        ];
        let mut tx = self.db.begin("dropping a claim").await?;
        tx.execute(sql, values).await?;
        tx.commit().await
    }

    async fn why_not_returned(
        &self,
        rain: RainId,
        needed: Cents,
        error: LedgerError,
    ) -> Result<LedgerError, LedgerError> {
        if !matches!(error, LedgerError::Refused { .. }) {
            return Ok(error);
        }
        Ok(match self.account(&AccountName::Escrow(rain)).await? {
            Some(escrow) if escrow.balance < needed => LedgerError::EscrowTooPoor {
                rain,
                balance: escrow.balance,
                needed,
            },
            Some(_) | None => error,
        })
    }
}

impl Tx {
    async fn refund(
        &mut self,
        id: RainId,
        cents: Cents,
        at_ms: i64,
    ) -> Result<Booking, LedgerError> {
        // The step first: it locks the rain, so of two refunds at once the second waits here and then finds the first.
        let stepped = self
            .step(id, Step::Refund, Some(at_ms), |window| window)
            .await?;
        let entry = Entry {
            key: format!("refund:{id}"),
            kind: Kind::Refund,
            from: AccountName::Escrow(id),
            to: AccountName::Sponsor(stepped.rain.sponsor.clone()),
            cents,
            rain: Some(id),
            packet: None,
            at_ms,
            note: None,
        };
        if !stepped.new {
            return Ok(match self.earlier(&entry.key).await? {
                Some(earlier) => earlier.compared_with(&entry),
                None if cents == Cents::ZERO => Booking::Existed,
                None => Booking::Different {
                    from: entry.from,
                    to: entry.to,
                    cents: Cents::ZERO,
                },
            });
        }
        self.tell(&Event::refunded(&stepped.rain, cents, at_ms))
            .await?;
        crate::crash::point("refund.written");
        if cents == Cents::ZERO {
            return Ok(Booking::Done);
        }
        Ok(match self.record(&entry).await? {
            Recorded::New => Booking::Done,
            Recorded::Earlier(earlier) => earlier.compared_with(&entry),
        })
    }

    async fn discard(
        &mut self,
        claim: &Claim,
        reason: &str,
        at_ms: i64,
    ) -> Result<Discard, LedgerError> {
        let packet = claim.packet;
        let rain = self.rain(packet.id.rain()).await?;
        if let Some(credited) = self.credited(claim).await? {
            return Ok(credited);
        }
        let entry = Entry {
            key: format!("discard:{}", packet.id),
            kind: Kind::Discard,
            from: AccountName::Escrow(rain.id),
            to: AccountName::Sponsor(rain.sponsor),
            cents: packet.cents,
            rain: Some(rain.id),
            packet: Some(packet.id),
            at_ms,
            note: Some(format!("{}: {reason}", claim.user)),
        };
        Ok(match self.record(&entry).await? {
            Recorded::New => Discard::Done,
            Recorded::Earlier(earlier) if earlier.cents == packet.cents => Discard::Existed,
            Recorded::Earlier(earlier) => Discard::Different {
                cents: earlier.cents,
            },
        })
    }

    async fn credited(&mut self, claim: &Claim) -> Result<Option<Discard>, LedgerError> {
        let sql = "SELECT user_id, cents FROM credits WHERE packet_id = $1";
        let row = self
            .row(sql, vec![sql_packet(claim.packet.id).into()])
            .await?;
        row.map(|row| {
            Ok(Discard::Credited {
                user: row.parse(0)?,
                cents: Cents(row.i64(1)?),
            })
        })
        .transpose()
    }
}
