//! Sends what is due, and sends it again.
//!
//! Every process with the role admin has a courier. It takes deliveries by holding them in SQL, so that two couriers do not both send one,
//! sends each in a task of its own, and records how it went. If it dies in between, the hold runs out and another courier sends it once
//! more: receivers tell by the event's id.
//!
//! Each webhook has its own few places for requests under way, so one that is slow delays no other. What waits, waits in SQL.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use axum::http::StatusCode;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::super::Admin;
use super::super::auth::hash_of;
use super::super::signing::random_text;
use super::address;
use super::signature::Message;
use crate::clock::now_ms;
use crate::config;
use crate::ledger::{After, Attempt, Delivery, LedgerError, Webhook};
use crate::metrics;
use crate::post::{PostError, Poster, Trust, TrustError};
use crate::task;
use crate::trace::Span;

/// Of an answer that much is read; one that is longer does not count as an answer.
const ANSWER_MAX: usize = 16 << 10;
/// Of the text of a refusal that much is kept.
const SHOWN_MAX: usize = 160;
/// How often the backlog is counted.
const COUNT: Duration = Duration::from_secs(1);
/// How often old deliveries and events are looked for, and how many go in one transaction.
const PRUNE: Duration = Duration::from_secs(60);
const PRUNE_MAX: u32 = 1_000;
/// How long a drain waits for answers: what is not answered by then is sent again by somebody else.
const LAST_ANSWERS: Duration = Duration::from_secs(5);

pub struct Courier {
    admin: Arc<Admin>,
    settings: config::Webhooks,
    plain: Poster,
    /// Or why https cannot be spoken.
    encrypted: Result<Poster, String>,
    /// Another name for each process.
    holder: String,
    /// Requests under way, by webhook.
    under_way: Mutex<HashMap<String, usize>>,
    /// A place has become free.
    freed: Notify,
}

impl Courier {
    /// Without certificates to trust, deliveries to https addresses fail and say so; a `webhooks.ca_file` that is broken is an error.
    pub fn new(admin: Arc<Admin>) -> Result<Courier, TrustError> {
        let settings = admin.webhooks.clone();
        let encrypted = match &settings.ca_file {
            Some(file) => Ok(Poster::new(settings.timeout, &Trust::File(file.clone()))?),
            None => {
                Poster::new(settings.timeout, &Trust::System).map_err(|error| error.to_string())
            }
        };
        Ok(Courier {
            plain: Poster::new(settings.timeout, &Trust::Nobody)?,
            encrypted,
            holder: random_text(),
            under_way: Mutex::default(),
            freed: Notify::new(),
            settings,
            admin,
        })
    }

    /// Until `stop`; requests under way may end after it.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let mut look = tokio::time::interval(self.settings.interval);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let (mut counted, mut pruned): (Option<Instant>, Option<Instant>) = (None, None);
        let is_due = |last: Option<Instant>, every| last.is_none_or(|at| at.elapsed() >= every);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = self.freed.notified() => {}
                _ = look.tick() => {}
            }
            let mut done = self.send_what_is_due(&stop).await;
            if done.is_ok() && is_due(counted, COUNT) {
                counted = Some(Instant::now());
                done = self.count().await;
            }
            if done.is_ok() && is_due(pruned, PRUNE) {
                pruned = Some(Instant::now());
                done = self.prune().await;
            }
            if let Err(error) = done {
                tracing::debug!(%error, "deliveries to webhooks wait for the ledger");
            }
        }
    }

    async fn send_what_is_due(
        self: &Arc<Self>,
        stop: &CancellationToken,
    ) -> Result<(), LedgerError> {
        let ledger = &self.admin.ledger;
        for id in ledger.due_webhooks(now_ms()).await? {
            let room = self.settings.concurrency_max.saturating_sub(self.busy(&id));
            if room == 0 {
                continue;
            }
            let webhook = Arc::new(ledger.webhook(&id).await?);
            let now = now_ms();
            let until = now + self.settings.hold.as_millis() as i64;
            let held = ledger
                .hold_deliveries(&id, &self.holder, now, until, room as u32)
                .await?;
            for delivery in held {
                let place = self.place(&id);
                let (courier, webhook, stop) = (self.clone(), webhook.clone(), stop.clone());
                task::spawn(&self.admin.tasks, "admin.delivery", async move {
                    let _place = place;
                    let patience = async {
                        stop.cancelled().await;
                        tokio::time::sleep(LAST_ANSWERS).await;
                    };
                    tokio::select! {
                        () = courier.deliver(&webhook, &delivery) => {}
                        () = patience => {}
                    }
                });
            }
        }
        Ok(())
    }

    /// One try, recorded.
    async fn deliver(&self, webhook: &Webhook, delivery: &Delivery) {
        crate::crash::point("delivery.held");
        let (at_ms, started) = (now_ms(), Instant::now());
        let mut span = Span::begin("webhook.delivery");
        span.note("hongbao.event", delivery.kind.as_str());
        span.note("hongbao.webhook", webhook.id.as_str());
        span.note("hongbao.delivery", delivery.id);
        let outcome = self.send(webhook, delivery, at_ms).await;
        match &outcome {
            Ok(_) => {}
            // A receiver's own words stay in the log of deliveries.
            Err(Fault { status, .. }) => span.failed(match status {
                Some(_) => "it answers with another status than 2xx",
                None => "no answer",
            }),
        }
        span.end();
        crate::crash::point("delivery.sent");
        metrics::get()
            .webhook_request_seconds
            .record(started.elapsed());
        let took_ms = started.elapsed().as_millis() as i64;
        let retry = self.settings.retries.get(delivery.tries as usize);
        let after = match (&outcome, retry) {
            (Ok(_), _) => After::Delivered,
            (Err(_), Some(wait)) => After::Again {
                due_ms: at_ms + took_ms + wait.as_millis() as i64,
            },
            (Err(_), None) => After::Failed,
        };
        let attempt = Attempt {
            number: delivery.attempts + 1,
            at_ms,
            took_ms,
            status: match &outcome {
                Ok(status) => Some(status.as_u16()),
                Err(fault) => fault.status.map(|status| status.as_u16()),
            },
            error: outcome.err().map(|fault| fault.text),
        };
        let recording = self
            .admin
            .ledger
            .attempted(delivery.id, &self.holder, &attempt, after);
        match recording.await {
            Ok(ours) => self.tell(webhook, delivery, &attempt, after, ours),
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(
                    delivery = delivery.id,
                    error,
                    "a delivery cannot be recorded, and is sent again"
                );
            }
        }
        crate::crash::point("delivery.recorded");
    }

    async fn send(
        &self,
        webhook: &Webhook,
        delivery: &Delivery,
        at_ms: i64,
    ) -> Result<StatusCode, Fault> {
        let url = address::checked(&webhook.url, self.settings.allow_http)
            .map_err(|error| Fault::before(error.to_string()))?;
        let poster = if url.scheme_str() == Some("http") {
            &self.plain
        } else {
            self.encrypted
                .as_ref()
                .map_err(|problem| Fault::before(problem.clone()))?
        };
        let message = Message {
            event_id: &delivery.event,
            event: &delivery.kind,
            delivery: delivery.id,
            attempt: delivery.attempts + 1,
            at_ms,
            body: &delivery.body,
        };
        let request = message.request(url, &self.secrets(webhook)?);
        let (status, body) = poster.post(request, ANSWER_MAX).await?;
        if status.is_success() {
            return Ok(status);
        }
        let text = match status.is_redirection() {
            true => "redirects are not followed".into(),
            false => shown(&String::from_utf8_lossy(&body)),
        };
        Err(Fault {
            status: Some(status),
            text: format!("it answers {}: {text}", status.as_u16()),
        })
    }

    /// Those that are good now, the newest first.
    fn secrets(&self, webhook: &Webhook) -> Result<Vec<String>, Fault> {
        let secret = |generation| self.admin.gate.webhook_secret(&webhook.id, generation);
        let mut secrets = vec![secret(webhook.generation)];
        if hash_of(&secrets[0]) != webhook.secret_hash {
            let problem =
                "not sent: the webhook was made by a server with another admin.key_secret_file";
            return Err(Fault::before(problem.into()));
        }
        if webhook.generation > 1 && now_ms() < webhook.overlap_until_ms {
            secrets.push(secret(webhook.generation - 1));
        }
        Ok(secrets)
    }

    fn tell(
        &self,
        webhook: &Webhook,
        delivery: &Delivery,
        attempt: &Attempt,
        after: After,
        ours: bool,
    ) {
        if !ours {
            // It took longer than it was held, or was sent again or deleted by hand meanwhile: whoever holds it now decides.
            return;
        }
        let (event, id, error) = (&delivery.event, &webhook.id, &attempt.error);
        match after {
            After::Delivered => metrics::get().webhooks_delivered.increment(1),
            After::Again { .. } => {
                metrics::get().webhooks_retried.increment(1);
                tracing::info!(event, webhook = id, error, "an event is sent again later");
            }
            After::Failed => {
                metrics::get().webhooks_failed.increment(1);
                tracing::warn!(event, webhook = id, error, "an event was not delivered");
            }
        }
    }

    async fn count(&self) -> Result<(), LedgerError> {
        let backlog = self.admin.ledger.backlog().await?;
        let age_ms = backlog.oldest_ms.map_or(0, |at| (now_ms() - at).max(0));
        metrics::get().webhooks_pending.set(backlog.pending as f64);
        metrics::get()
            .webhook_oldest_seconds
            .set(age_ms as f64 / 1_000.0);
        Ok(())
    }

    async fn prune(&self) -> Result<(), LedgerError> {
        let before = now_ms() - self.settings.keep.as_millis() as i64;
        let (ledger, most) = (&self.admin.ledger, u64::from(PRUNE_MAX));
        while ledger.prune_deliveries(before, PRUNE_MAX).await? == most {}
        while ledger.prune_events(before, PRUNE_MAX).await? == most {}
        Ok(())
    }

    fn busy(&self, webhook: &str) -> usize {
        self.lock().get(webhook).copied().unwrap_or_default()
    }

    fn place(self: &Arc<Self>, webhook: &str) -> Place {
        *self.lock().entry(webhook.to_owned()).or_default() += 1;
        Place {
            courier: self.clone(),
            webhook: webhook.to_owned(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.under_way.lock().expect("no panic under this lock")
    }
}

/// One request of a webhook, under way.
struct Place {
    courier: Arc<Courier>,
    webhook: String,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut under_way = self.courier.lock();
        if let Some(count) = under_way.get_mut(&self.webhook) {
            *count -= 1;
            if *count == 0 {
                under_way.remove(&self.webhook);
            }
        }
        drop(under_way);
        self.courier.freed.notify_one();
    }
}

/// Why a try does not count as delivered.
struct Fault {
    status: Option<StatusCode>,
    text: String,
}

impl Fault {
    fn before(text: String) -> Fault {
        Fault { status: None, text }
    }
}

impl From<PostError> for Fault {
    fn from(error: PostError) -> Fault {
        Fault::before(error.to_string())
    }
}

/// Other people's text, on one line of bounded length.
fn shown(text: &str) -> String {
    let plain = text
        .trim()
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c });
    plain.take(SHOWN_MAX).collect()
}
