//! Requests that are dear: a few at once, the others wait a moment for their turn.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::problem::Problem;

/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(3);

pub struct Turns {
    places: Arc<Semaphore>,
    /// What whoever waits in vain is told.
    title: &'static str,
    detail: &'static str,
}

impl Turns {
    /// Each keeps a core busy for up to two seconds, and rains may be falling.
    pub fn of_previews() -> Turns {
        Turns {
            places: Arc::new(Semaphore::new(1)),
            title: "too many previews",
            detail: "other previews are being computed: try again in a few seconds",
        }
    }

    /// Each reads every packet of its rain from Redis and SQL.
    pub fn of_audits() -> Turns {
        Turns {
            places: Arc::new(Semaphore::new(2)),
            title: "too many audits",
            detail: "other audits are at work: try again in a few seconds",
        }
    }

    /// Lasts as long as the permit is held.
    pub async fn wait(&self) -> Result<OwnedSemaphorePermit, Problem> {
        match timeout(PATIENCE, self.places.clone().acquire_owned()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => {
                Err(Problem::new(503, self.title, self.detail).retry_after(PATIENCE))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn two_audits_are_at_work_at_once_and_a_third_waits_a_moment() {
        let turns = Turns::of_audits();
        let one = turns.wait().await.unwrap();
        let _other = turns.wait().await.unwrap();
        assert_eq!(turns.wait().await.unwrap_err().status(), 503);
        drop(one);
        let _third = turns.wait().await.unwrap();
    }
}
