//! Tasks with names: a drain can say who did not end, and a panic stays where it happened and is counted.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Mutex, MutexGuard};

use futures_util::FutureExt;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::metrics;

/// Tasks at work by name: roles start a few dozen. Sessions are counted elsewhere.
static AT_WORK: Mutex<BTreeMap<&'static str, usize>> = Mutex::new(BTreeMap::new());

/// The work of this name panicked. What it was has been logged by the panic hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} panicked")]
pub struct Panicked(pub &'static str);

/// Runs `work`; a panic in it is counted under `name` and goes no further. The caller sees to it that what the work shared with others is whole.
pub async fn contained<T>(
    name: &'static str,
    work: impl Future<Output = T>,
) -> Result<T, Panicked> {
    let outcome = AssertUnwindSafe(work).catch_unwind().await;
    outcome.map_err(|_| {
        metrics::get().panicked(name);
        Panicked(name)
    })
}

/// Spawns `work` under a name.
pub fn spawn(
    tasks: &TaskTracker,
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let named = Named::begin(name);
    tasks.spawn(async move {
        let _named = named;
        if contained(name, work).await.is_err() {
            tracing::error!(task = name, "the task has ended by a panic");
        }
    })
}

/// Names of the tasks that have not ended, each with how many there are.
pub fn at_work() -> Vec<(&'static str, usize)> {
    names()
        .iter()
        .map(|(name, count)| (*name, *count))
        .collect()
}

struct Named(&'static str);

impl Named {
    fn begin(name: &'static str) -> Named {
        *names().entry(name).or_default() += 1;
        Named(name)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let mut names = names();
        if let Some(count) = names.get_mut(self.0) {
            *count -= 1;
            if *count == 0 {
                names.remove(self.0);
            }
        }
    }
}

fn names() -> MutexGuard<'static, BTreeMap<&'static str, usize>> {
    AT_WORK
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_ends_its_task_and_nothing_else() {
        assert_eq!(
            contained("test.bad", async { panic!("on purpose") }).await,
            Err::<(), _>(Panicked("test.bad"))
        );
        assert_eq!(contained("test.good", async { 7 }).await, Ok(7));

        let tasks = TaskTracker::new();
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let bad = spawn(&tasks, "test.spawned", async { panic!("on purpose") });
        let good = spawn(&tasks, "test.waiting", async {
            let _ = gone.await;
        });
        assert!(
            bad.await.is_ok(),
            "whoever waits for it learns that it has ended"
        );
        let ours = || {
            at_work()
                .into_iter()
                .filter(|(name, _)| name.starts_with("test."))
        };
        assert_eq!(ours().collect::<Vec<_>>(), [("test.waiting", 1)]);
        go.send(()).unwrap();
        good.await.unwrap();
        assert_eq!(ours().count(), 0);
    }
}
