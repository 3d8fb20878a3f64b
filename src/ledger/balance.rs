//! Who pays a claim: the ledger itself, or a company's own balance system, whose word the ledger then records.

use crate::rain::Claim;

use super::credit::{Verdict, rounds};
use super::error::LedgerError;
use super::http_balance::{Answer, Endpoint};
use super::{CREDIT_BATCH_MAX, Ledger};

/// Cheap to clone.
#[derive(Clone)]
pub enum Balance {
    /// To credit the ledger is to pay.
    Ledger(Ledger),
    Http(HttpBalance),
}

impl From<Ledger> for Balance {
    fn from(ledger: Ledger) -> Balance {
        Balance::Ledger(ledger)
    }
}

impl Balance {
    /// Pays claims, at most `CREDIT_BATCH_MAX`, and says what became of each, in their order. Safe to repeat after any crash: every
    /// step's key is the packet id.
    ///
    /// # Errors
    /// As [`Ledger::credit`]. A company's system that is away is no error but [`Verdict::Unknown`], since it may be away for one part of
    /// the batch and not for another.
    pub async fn credit(&self, claims: &[Claim], at_ms: i64) -> Result<Vec<Verdict>, LedgerError> {
        match self {
            Balance::Ledger(ledger) => ledger.credit(claims, at_ms).await,
            Balance::Http(http) => http.credit(claims, at_ms).await,
        }
    }

    /// Where every credit ends up.
    pub fn ledger(&self) -> &Ledger {
        match self {
            Balance::Ledger(ledger) => ledger,
            Balance::Http(http) => &http.ledger,
        }
    }
}

/// A company's own balance system pays, the ledger records.
///
/// ```text
///   foresee ──▶ post ──confirmed──▶ Ledger::credit
///      │          └── not confirmed ──▶ retry, rejected, conflict, unknown
///      └── credited or discarded before, or cannot be recorded: not posted
/// ```
///
/// A crash after the other side's commit repeats the post, whose key is the packet id; a crash after the record is foreseen. Looking
/// first keeps a claim that was discarded, or that no escrow covers, from being paid at all.
#[derive(Clone)]
pub struct HttpBalance {
    ledger: Ledger,
    endpoint: Endpoint,
}

impl HttpBalance {
    pub fn new(ledger: Ledger, endpoint: Endpoint) -> HttpBalance {
        HttpBalance { ledger, endpoint }
    }

    async fn credit(&self, claims: &[Claim], at_ms: i64) -> Result<Vec<Verdict>, LedgerError> {
        if claims.len() > CREDIT_BATCH_MAX {
            return Err(LedgerError::BatchTooLarge {
                claims: claims.len(),
                max: CREDIT_BATCH_MAX,
            });
        }
        let mut verdicts = vec![None; claims.len()];
        for round in rounds(claims, (0..claims.len()).collect()) {
            let distinct: Vec<&Claim> = round.iter().map(|&i| &claims[i]).collect();
            let credited = self.credit_distinct(&distinct, at_ms).await?;
            for (i, verdict) in round.into_iter().zip(credited) {
                verdicts[i] = Some(verdict);
            }
        }
        Ok(verdicts.into_iter().flatten().collect())
    }

    async fn credit_distinct(
        &self,
        claims: &[&Claim],
        at_ms: i64,
    ) -> Result<Vec<Verdict>, LedgerError> {
        let foreseen = self.ledger.foresee(claims).await?;
        let unpaid: Vec<&Claim> = claims
            .iter()
            .zip(&foreseen)
            .filter_map(|(claim, foreseen)| foreseen.is_none().then_some(*claim))
            .collect();
        let answers = self.endpoint.pay(&unpaid).await;
        let confirmed: Vec<Claim> = unpaid
            .iter()
            .zip(&answers)
            .filter(|(_, answer)| **answer == Answer::Confirmed)
            .map(|(claim, _)| (*claim).clone())
            .collect();
        let mut recorded = self
            .ledger
            .credit(&confirmed, at_ms)
            .await?
            .into_iter()
            .map(after_confirmed);
        let mut answers = answers.into_iter();
        // One answer for each claim that was not foreseen, one record for each that was confirmed.
        let missing = || Verdict::Unknown("it was not asked for".into());
        let verdict = |foreseen| match foreseen {
            Some(verdict) => verdict,
            None => match answers.next() {
                Some(Answer::Confirmed) => recorded.next().unwrap_or_else(missing),
                Some(Answer::Not(verdict)) => verdict,
                None => missing(),
            },
        };
        Ok(foreseen.into_iter().map(verdict).collect())
    }
}

/// The other side has paid: what the ledger cannot record must reach a person, not be acked.
fn after_confirmed(verdict: Verdict) -> Verdict {
    match verdict {
        Verdict::Credited | Verdict::Existed | Verdict::Conflict { .. } => verdict,
        Verdict::Discarded => {
            Verdict::Unrecorded("its money went back to the sponsor meanwhile".into())
        }
        Verdict::UnknownAccount => Verdict::Unrecorded("the user has no account here".into()),
        Verdict::Refused(refusal) => Verdict::Unrecorded(refusal.to_string()),
        // Not the ledger's words.
        Verdict::Retry(_) | Verdict::Rejected(_) | Verdict::Unknown(_) | Verdict::Unrecorded(_) => {
            verdict
        }
    }
}
