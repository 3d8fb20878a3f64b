//! Webhooks: other people's servers that are told what happens.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, Subcommand};
use serde::Serialize;

use hongbao::client::admin::{AdminClient, Delivery, DeliveryDetail, NewWebhook, WebhookChange};
use hongbao::config::Settings;
use hongbao::ledger::{DeliveryState, EventKind};

use super::moment::utc;
use super::remote::ServerFlags;

/// Deliveries asked for at once.
const PAGE: u32 = 500;
/// How long a test delivery is watched, and how often it is looked at.
const WATCH: Duration = Duration::from_secs(15);
const LOOK: Duration = Duration::from_millis(100);

#[derive(Subcommand)]
pub enum WebhooksCommand {
    /// All webhooks
    List {
        #[command(flatten)]
        server: ServerFlags,
    },
    /// One webhook
    Show {
        id: String,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Have an https address told of events, and print the secret that its receiver checks signatures with: it is shown this once
    Create {
        url: String,
        /// rain.opened, rain.sold_out, rain.closed, rain.refunded or claim.dead; may be repeated [default: all]
        #[arg(long = "event", value_name = "EVENT")]
        events: Vec<EventKind>,
        /// Your own name for this request: the same key makes one webhook
        #[arg(long)]
        key: Option<String>,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Change address or events, disable or enable
    Update(UpdateFlags),
    /// Give a webhook a new secret, and print it; for a while deliveries are signed with the old one, too
    Rotate {
        id: String,
        /// How long the old secret signs, too, seconds [default: a day]; 0 ends it at once
        #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..=2_592_000))]
        overlap: Option<i64>,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// End a webhook, for good; what is pending for it is not sent
    Delete {
        id: String,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Send a test event and say how it went: exit code 1 if it did not arrive at the first try
    Test {
        id: String,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// What was sent and what is to be sent, newest first
    Deliveries(DeliveriesFlags),
    /// One delivery, with what was sent and every try
    Delivery {
        id: i64,
        #[command(flatten)]
        server: ServerFlags,
    },
    /// Send deliveries again: one by its number, or all that have failed
    Resend(ResendFlags),
}

#[derive(Args)]
pub struct UpdateFlags {
    id: String,
    #[arg(long)]
    url: Option<String>,
    /// Instead of the events so far; may be repeated
    #[arg(long = "event", value_name = "EVENT")]
    events: Vec<EventKind>,
    /// Nothing new is written for it, and what is pending waits
    #[arg(long, conflicts_with = "enable")]
    disable: bool,
    #[arg(long)]
    enable: bool,
    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Args)]
pub struct DeliveriesFlags {
    /// pending, delivered or failed
    #[arg(long)]
    state: Option<DeliveryState>,
    /// To one webhook
    #[arg(long)]
    webhook: Option<String>,
    /// How many
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    limit: u32,
    #[command(flatten)]
    server: ServerFlags,
}

#[derive(Args)]
pub struct ResendFlags {
    #[arg(required_unless_present = "failed")]
    delivery: Option<i64>,
    /// All that have failed
    #[arg(long, conflicts_with = "delivery")]
    failed: bool,
    /// Of those, the ones to this webhook
    #[arg(long, requires = "failed")]
    webhook: Option<String>,
    #[command(flatten)]
    server: ServerFlags,
}

pub async fn webhooks(settings: &Settings, command: WebhooksCommand) -> anyhow::Result<ExitCode> {
    match command {
        WebhooksCommand::List { server } => {
            let all = server.connect(settings)?.webhooks().await?;
            let line = |webhook: &hongbao::client::admin::Webhook| {
                let state = if webhook.enabled {
                    "enabled"
                } else {
                    "disabled"
                };
                let events = webhook.events.join(",");
                format!("{}  {state:<8}  {}  {events}", webhook.id, webhook.url)
            };
            let lines: Vec<String> = all.iter().map(line).collect();
            show(&server, &all, lines.join("\n"))
        }
        WebhooksCommand::Show { id, server } => {
            let webhook = server.connect(settings)?.webhook(&id).await?;
            let text = serde_json::to_string_pretty(&webhook)?;
            show(&server, &webhook, text)
        }
        WebhooksCommand::Create {
            url,
            events,
            key,
            server,
        } => {
            let events = names(&events);
            let new = NewWebhook { url, events };
            let admin = server.connect(settings)?;
            let issued = admin.create_webhook(&new, key.as_deref()).await?;
            let text = format!("{} {}", issued.webhook.id, issued.secret);
            show(&server, &issued, text)
        }
        WebhooksCommand::Update(flags) => update(settings, flags).await,
        WebhooksCommand::Rotate {
            id,
            overlap,
            server,
        } => {
            let overlap_ms = overlap.map(|seconds| seconds * 1_000);
            let admin = server.connect(settings)?;
            let issued = admin.rotate_webhook(&id, overlap_ms).await?;
            show(&server, &issued, issued.secret.clone())
        }
        WebhooksCommand::Delete { id, server } => {
            let webhook = server.connect(settings)?.delete_webhook(&id).await?;
            show(&server, &webhook, format!("{id} is deleted"))
        }
        WebhooksCommand::Test { id, server } => test(settings, &id, &server).await,
        WebhooksCommand::Deliveries(flags) => deliveries(settings, flags).await,
        WebhooksCommand::Delivery { id, server } => {
            let detail = server.connect(settings)?.delivery(id).await?;
            show(&server, &detail, in_full(&detail))
        }
        WebhooksCommand::Resend(flags) => resend(settings, flags).await,
    }
}

/// As text, or as JSON if that is wanted.
fn show(server: &ServerFlags, answer: &impl Serialize, text: String) -> anyhow::Result<ExitCode> {
    if server.json {
        say!("{}", serde_json::to_string_pretty(answer)?);
    } else if !text.is_empty() {
        say!("{text}");
    }
    Ok(ExitCode::SUCCESS)
}

fn names(events: &[EventKind]) -> Option<Vec<String>> {
    let names = events.iter().map(EventKind::to_string).collect();
    Some(names).filter(|names: &Vec<String>| !names.is_empty())
}

async fn update(settings: &Settings, flags: UpdateFlags) -> anyhow::Result<ExitCode> {
    let change = WebhookChange {
        url: flags.url,
        events: names(&flags.events),
        enabled: match (flags.enable, flags.disable) {
            (true, _) => Some(true),
            (false, true) => Some(false),
            (false, false) => None,
        },
    };
    let admin = flags.server.connect(settings)?;
    let webhook = admin.change_webhook(&flags.id, &change).await?;
    let text = serde_json::to_string_pretty(&webhook)?;
    show(&flags.server, &webhook, text)
}

async fn test(settings: &Settings, id: &str, server: &ServerFlags) -> anyhow::Result<ExitCode> {
    let admin = server.connect(settings)?;
    let sent = admin.test_webhook(id).await?;
    let detail = tried(&admin, &sent).await?;
    let arrived = detail.delivery.state == "delivered";
    show(server, &detail, in_full(&detail))?;
    Ok(ExitCode::from(u8::from(!arrived)))
}

/// The delivery after its first try, or as it is when that takes too long.
async fn tried(admin: &AdminClient, sent: &Delivery) -> anyhow::Result<DeliveryDetail> {
    let begun = Instant::now();
    loop {
        let detail = admin.delivery(sent.id).await?;
        if detail.delivery.attempts > 0 || begun.elapsed() > WATCH {
            return Ok(detail);
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn deliveries(settings: &Settings, flags: DeliveriesFlags) -> anyhow::Result<ExitCode> {
    let admin = flags.server.connect(settings)?;
    let state = flags.state.map(DeliveryState::as_str);
    let (mut found, mut cursor) = (vec![], None);
    while found.len() < flags.limit as usize {
        let left = (flags.limit - found.len() as u32).min(PAGE);
        let page = admin
            .deliveries(state, flags.webhook.as_deref(), cursor.as_deref(), left)
            .await?;
        found.extend(page.deliveries);
        match page.next_cursor {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    let lines: Vec<String> = found.iter().map(in_a_line).collect();
    show(&flags.server, &found, lines.join("\n"))
}

async fn resend(settings: &Settings, flags: ResendFlags) -> anyhow::Result<ExitCode> {
    let admin = flags.server.connect(settings)?;
    if let Some(id) = flags.delivery {
        let delivery = admin.resend_delivery(id).await?;
        return show(&flags.server, &delivery, in_a_line(&delivery));
    }
    let resent = admin.resend_failed(flags.webhook.as_deref()).await?;
    let answer = serde_json::json!({ "resent": resent });
    show(&flags.server, &answer, format!("{resent} are sent again"))
}

fn in_a_line(delivery: &Delivery) -> String {
    format!(
        "{:>8}  {:<9}  {:<13}  {}  {} tries  {}",
        delivery.id,
        delivery.state,
        delivery.event,
        delivery.webhook,
        delivery.attempts,
        delivery.event_id
    )
}

fn in_full(detail: &DeliveryDetail) -> String {
    let mut text = in_a_line(&detail.delivery);
    for attempt in &detail.log {
        let status = attempt.status.map(|status| status.to_string());
        text += &format!(
            "\n  try {} at {} took {} ms: {} {}",
            attempt.number,
            utc(attempt.at_ms),
            attempt.took_ms,
            status.as_deref().unwrap_or("no answer"),
            attempt.error.as_deref().unwrap_or_default()
        );
    }
    format!("{text}\n  {}", detail.body)
}
