//! What becomes of a claim after a try to credit it.

use super::follow;
use crate::ledger::Verdict;
use crate::metrics;
use crate::store::bucket::LeasedClaim;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The credit stands: its user is told, then the claim may go.
    TellThenAck,
    /// There is nothing to credit and nothing to tell: the claim may go.
    Ack,
    /// Later again. `tried` is false when the claim was not to blame: then no attempt is counted.
    Retry { reason: String, tried: bool },
    /// A person has to decide.
    Bury(String),
}

/// Exhaustive on purpose: a new verdict must be decided here.
pub fn decide(leased: &LeasedClaim, verdict: Verdict) -> Decision {
    let cents = leased.claim.packet.cents;
    match verdict {
        Verdict::Credited => {
            metrics::get().credits.increment(1);
            metrics::get().credited_cents.increment(cents.0 as u64);
            follow("credited", std::iter::once(&leased.claim));
            Decision::TellThenAck
        }
        // Whoever credited it may have died before it told the user.
        Verdict::Existed => {
            follow("found credited", std::iter::once(&leased.claim));
            Decision::TellThenAck
        }
        // The money went back to the sponsor by a person's decision: nothing is left to credit.
        Verdict::Discarded => {
            follow("found discarded", std::iter::once(&leased.claim));
            Decision::Ack
        }
        Verdict::Conflict { user, cents } => Decision::Bury(format!(
            "conflict: the packet is credited to {user} with {cents}"
        )),
        Verdict::UnknownAccount => {
            Decision::Bury("unknown_account: the user has no account".into())
        }
        Verdict::Refused(refusal) => Decision::Bury(format!("refused: {refusal}")),
        Verdict::Retry(reason) => Decision::Retry {
            reason,
            tried: true,
        },
        Verdict::Unknown(reason) => Decision::Retry {
            reason,
            tried: false,
        },
        Verdict::Rejected(reason) => Decision::Bury(format!("rejected: {reason}")),
        Verdict::Unrecorded(reason) => Decision::Bury(format!(
            "unrecorded: the balance system has paid, the ledger has not: {reason}"
        )),
    }
}
