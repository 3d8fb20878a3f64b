use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The state of a rain.
///
/// ```text
///             all chunks are in the pools      opening time, or an operator
///   Created ───────────────────────────▶ Ready ───────────────────────────▶ Open ◀──────▶ Paused
///      │                                   │                                 │  an operator │
///      └───── an operator calls it off ────┴──▶ Closed ◀─────────────────────┴──────────────┘
///                                                 │        closing time, or an operator
///                left over returned to the sponsor│
///                                                 ▼         no claim in Redis, audit balanced
///                                              Refunded ────────────────────────────────────▶ Finished
/// ```
///
/// A top-up is no state: before the close packets may be added at any time, and the steward loads them as it finds the rain.
///
/// Whether a grab may win is decided by the gate in Redis with the node's own clock; this state is the steward's record of how far it
/// got, so a process that sleeps through the opening instant delays an announcement, not a grab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Created,
    Ready,
    Open,
    Paused,
    Closed,
    Refunded,
    Finished,
}

/// What moves a rain from one state to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Step {
    Load,
    Open,
    Pause,
    Resume,
    /// Packets are added. The state stays: they are loaded as it is.
    TopUp,
    Close,
    Refund,
    Finish,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a rain that is {state} cannot {step}")]
pub struct StepError {
    pub state: State,
    pub step: Step,
}

impl State {
    /// Those that a steward still has work with.
    pub const UNFINISHED: [State; 6] = [
        State::Created,
        State::Ready,
        State::Open,
        State::Paused,
        State::Closed,
        State::Refunded,
    ];
    pub const ALL: [State; 7] = [
        State::Created,
        State::Ready,
        State::Open,
        State::Paused,
        State::Closed,
        State::Refunded,
        State::Finished,
    ];

    /// The state after `step`. A step that has been taken already changes nothing, so every step may be repeated.
    pub fn after(self, step: Step) -> Result<State, StepError> {
        use State::*;
        let refused = Err(StepError { state: self, step });
        match (step, self) {
            (Step::Load, Created | Ready) => Ok(Ready),
            (Step::Load, Open | Paused | Closed | Refunded | Finished) => refused,
            (Step::Open, Ready | Open) => Ok(Open),
            (Step::Open, Created | Paused | Closed | Refunded | Finished) => refused,
            (Step::Pause, Open | Paused) => Ok(Paused),
            (Step::Pause, Created | Ready | Closed | Refunded | Finished) => refused,
            (Step::Resume, Paused | Open) => Ok(Open),
            (Step::Resume, Created | Ready | Closed | Refunded | Finished) => refused,
            (Step::TopUp, Created | Ready | Open | Paused) => Ok(self),
            (Step::TopUp, Closed | Refunded | Finished) => refused,
            (Step::Close, Created | Ready | Open | Paused | Closed) => Ok(Closed),
            (Step::Close, Refunded | Finished) => Ok(self),
            (Step::Refund, Closed | Refunded) => Ok(Refunded),
            (Step::Refund, Finished) => Ok(Finished),
            (Step::Refund, Created | Ready | Open | Paused) => refused,
            (Step::Finish, Refunded | Finished) => Ok(Finished),
            (Step::Finish, Created | Ready | Open | Paused | Closed) => refused,
        }
    }

    /// States from which `step` leads on. SQL guards are built from this, so the rule stands once.
    pub fn before(step: Step) -> impl Iterator<Item = State> {
        Self::ALL
            .into_iter()
            .filter(move |state| state.after(step).is_ok())
    }

    /// No packet can leave a pool any more.
    pub fn is_closed(self) -> bool {
        self >= State::Closed
    }

    pub fn as_str(self) -> &'static str {
        match self {
            State::Created => "created",
            State::Ready => "ready",
            State::Open => "open",
            State::Paused => "paused",
            State::Closed => "closed",
            State::Refunded => "refunded",
            State::Finished => "finished",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "\"{0}\" is not a state of a rain: created, ready, open, paused, closed, refunded or finished"
)]
pub struct ParseStateError(String);

impl FromStr for State {
    type Err = ParseStateError;
    fn from_str(text: &str) -> Result<State, ParseStateError> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == text)
            .ok_or_else(|| ParseStateError(text.to_owned()))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Load => "be loaded",
            Step::Open => "be opened",
            Step::Pause => "be paused",
            Step::Resume => "be resumed",
            Step::TopUp => "be topped up",
            Step::Close => "be closed",
            Step::Refund => "be refunded",
            Step::Finish => "be finished",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rain_walks_from_created_to_finished_and_every_step_may_be_repeated() {
        let steps = [
            Step::Load,
            Step::Open,
            Step::Pause,
            Step::Resume,
            Step::Close,
            Step::Refund,
            Step::Finish,
        ];
        let mut state = State::Created;
        for step in steps {
            state = state.after(step).unwrap();
            assert_eq!(state.after(step), Ok(state), "{step} twice");
        }
        assert_eq!(state, State::Finished);
    }

    #[test]
    fn no_step_leads_back_from_closed() {
        for state in State::ALL.into_iter().filter(|s| s.is_closed()) {
            for step in [
                Step::Load,
                Step::Open,
                Step::Pause,
                Step::Resume,
                Step::TopUp,
            ] {
                assert!(state.after(step).is_err(), "{state} must not {step}");
            }
        }
        assert_eq!(
            State::Open.after(Step::Refund).unwrap_err().to_string(),
            "a rain that is open cannot be refunded"
        );
    }
}
