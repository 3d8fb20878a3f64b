//! Channels that are listened to on every node: whoever publishes may choose any that is up.

use std::sync::Arc;

use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Store;
use super::link::Link;

/// What a listener learns.
#[derive(Clone, Copy, Debug)]
pub enum Heard<'a> {
    /// From now on it hears; whatever was said before it has missed.
    Listening,
    Message(&'a str),
}

impl Store {
    /// What `read` makes of each message on `channel`, until `stop`. Messages are lost while a node is away, and when `waiting_max` of them
    /// wait to be taken: every channel needs another way to find out what was missed.
    pub(super) fn listen<T: Send + 'static>(
        &self,
        channel: &'static str,
        waiting_max: usize,
        read: fn(&str) -> Option<T>,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) -> mpsc::Receiver<T> {
        let (send, heard) = mpsc::channel(waiting_max);
        let hear = move |heard: Heard| {
            if let Heard::Message(text) = heard
                && let Some(message) = read(text)
            {
                let _ = send.try_send(message);
            }
        };
        self.listen_with(channel, hear, tasks, stop);
        heard
    }

    /// Calls `hear` for all that is said on `channel`, until `stop`.
    ///
    /// Nodes of a cluster pass messages on to each other, so there one of them is enough, any that is up.
    pub(super) fn listen_with(
        &self,
        channel: &'static str,
        hear: impl Fn(Heard) + Clone + Send + Sync + 'static,
        tasks: &TaskTracker,
        stop: CancellationToken,
    ) {
        if self.nodes.is_cluster() {
            let nodes = self.nodes.clone();
            tasks.spawn(stop.run_until_cancelled_owned(async move {
                for turn in 0usize.. {
                    let owners = nodes.owners();
                    listen_to(&owners[turn % owners.len()], channel, &hear).await;
                }
            }));
            return;
        }
        for link in self.nodes.owners() {
            let hear = hear.clone();
            tasks.spawn(stop.clone().run_until_cancelled_owned(async move {
                loop {
                    listen_to(&link, channel, &hear).await;
                }
            }));
        }
    }
}

/// Listens until the connection breaks or the node moves, then rests.
async fn listen_to(link: &Arc<Link>, channel: &str, hear: &(impl Fn(Heard) + Sync)) {
    let (node, mut moves) = (&link.node, link.node.moves());
    let target = moves.borrow_and_update().clone();
    let listening = async {
        let mut listener = node.reach.subscribe(&target.client, channel).await?;
        hear(Heard::Listening);
        let mut messages = listener.on_message();
        while let Some(message) = messages.next().await {
            if let Ok(text) = std::str::from_utf8(message.get_payload_bytes()) {
                hear(Heard::Message(text));
            }
        }
        // Where nothing happens nobody else would find out that the process has ended.
        link.look_again("a listener was cut off");
        Ok::<(), redis::RedisError>(())
    };
    tokio::select! {
        ended = listening => {
            if let Err(error) = ended {
                tracing::debug!(node = %target.name, channel, %error, "nothing is heard from here now");
            }
            tokio::time::sleep(node.reach.probe_interval).await;
        }
        _ = moves.changed() => {}
    }
}
