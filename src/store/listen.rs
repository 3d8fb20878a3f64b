//! Channels that are listened to on every node: whoever publishes may choose any that is up.

use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Store;
use super::link::Address;

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
        for link in self.links() {
            let (address, send, stop) = (link.address.clone(), send.clone(), stop.clone());
            tasks.spawn(async move {
                let listening = async {
                    loop {
                        if let Err(error) = listen_to(&address, channel, read, &send).await {
                            tracing::debug!(node = %address.name, channel, %error, "nothing is heard from here now");
                        }
                        tokio::time::sleep(address.probe_interval()).await;
                    }
                };
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = listening => {}
                }
            });
        }
        heard
    }
}

async fn listen_to<T>(
    address: &Address,
    channel: &str,
    read: fn(&str) -> Option<T>,
    heard: &mpsc::Sender<T>,
) -> Result<(), redis::RedisError> {
    let mut listener = address.subscribe(channel).await?;
    let mut messages = listener.on_message();
    while let Some(message) = messages.next().await {
        if let Ok(text) = std::str::from_utf8(message.get_payload_bytes())
            && let Some(message) = read(text)
        {
            let _ = heard.try_send(message);
        }
    }
    Ok(())
}
