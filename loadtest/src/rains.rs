//! A rain for a measurement: funded, loaded, opened; settled, closed, audited at the end.

use std::time::Duration;

use hongbao::client::admin::{AdminClient, AdminError, Audit, NewRain};
use hongbao::rain::split::Rule;
use hongbao::rain::{Cents, Durability, RainId, State};
use tokio::time::{Instant, sleep};

use crate::LoadError;

/// What one packet is worth on the average.
const PACKET_CENTS: i64 = 100;
/// Longer than any measurement.
const OPEN_FOR: Duration = Duration::from_secs(3_600);
const LOOK: Duration = Duration::from_millis(20);

pub struct Order<'a> {
    /// Names what is made, so that a repeated call makes it once.
    pub key: &'a str,
    pub room: &'a str,
    pub packets: u32,
    pub buckets: Option<u32>,
    pub durability: Option<Durability>,
    pub patience: Duration,
}

fn admin(doing: &'static str) -> impl Fn(AdminError) -> LoadError {
    move |source| LoadError::Admin { doing, source }
}

/// Funded and loaded; not open.
pub async fn ready(api: &AdminClient, order: &Order<'_>) -> Result<RainId, LoadError> {
    let sponsor = "load";
    let total = Cents(i64::from(order.packets) * PACKET_CENTS);
    let made = api.create_sponsor(sponsor).await;
    made.map_err(admin("create the sponsor's account"))?;
    let deposit = api
        .deposit(sponsor, total, &format!("{}-deposit", order.key))
        .await;
    deposit.map_err(admin("deposit the total"))?;
    let rain = NewRain {
        title: "measured".to_owned(),
        room: order.room.to_owned(),
        sponsor: sponsor.to_owned(),
        rule: Rule::DoubleMean,
        total_cents: total,
        packets: order.packets,
        min_cents: None,
        max_cents: None,
        opens_at_ms: None,
        duration_ms: Some(OPEN_FOR.as_millis() as i64),
        durability: order.durability,
        buckets: order.buckets,
        refund_after_ms: None,
        key: Some(order.key.to_owned()),
        key_required: false,
        announce_ms: None,
    };
    let rain = api
        .create_rain(&rain)
        .await
        .map_err(admin("create the rain"))?;
    reach(api, rain.id, State::Ready, order.patience).await?;
    Ok(rain.id)
}

pub async fn open(api: &AdminClient, id: RainId, patience: Duration) -> Result<(), LoadError> {
    api.open_rain(id).await.map_err(admin("open the rain"))?;
    reach(api, id, State::Open, patience).await
}

async fn reach(
    api: &AdminClient,
    id: RainId,
    state: State,
    patience: Duration,
) -> Result<(), LoadError> {
    let deadline = Instant::now() + patience;
    loop {
        let rain = api.rain(id).await.map_err(admin("look at the rain"))?;
        if rain.state >= state {
            return Ok(());
        }
        if Instant::now() > deadline {
            return Err(LoadError::TimedOut {
                what: "the rain to get on",
                waited_s: patience.as_secs(),
                seen: format!("rain {id} is {}", rain.state),
            });
        }
        sleep(LOOK).await;
    }
}

/// Claims that are not credited yet.
pub async fn unsettled(api: &AdminClient, id: RainId) -> Result<u64, LoadError> {
    let rain = api.rain(id).await.map_err(admin("look at the rain"))?;
    Ok(rain.live.unwrap_or_default().claims_moving())
}

/// How a rain ended.
pub struct Ending {
    pub audit: Audit,
    /// Why it could not be closed, or its rest was not refunded: in the server's words.
    pub stuck: Option<String>,
}

/// Waits until every claim is credited, closes the rain, waits for the refund, audits. A rain that the server will not close, or not refund, is no error
/// here but a result: the audit says what is wrong with it.
pub async fn close_and_audit(
    api: &AdminClient,
    id: RainId,
    patience: Duration,
) -> Result<Ending, LoadError> {
    let deadline = Instant::now() + patience;
    loop {
        let left = unsettled(api, id).await?;
        if left == 0 {
            break;
        }
        if Instant::now() > deadline {
            return Err(LoadError::TimedOut {
                what: "settlement",
                waited_s: patience.as_secs(),
                seen: format!("{left} claims are not credited"),
            });
        }
        sleep(LOOK).await;
    }
    let stuck = match api.close_rain(id).await {
        Ok(_) => refunded(api, id, deadline).await?,
        Err(AdminError::Problem { title, detail, .. }) => Some(format!("{title}: {detail}")),
        Err(source) => return Err(admin("close the rain")(source)),
    };
    let audit = api.audit(id).await.map_err(admin("audit the rain"))?;
    Ok(Ending { audit, stuck })
}

/// Why it is not.
async fn refunded(
    api: &AdminClient,
    id: RainId,
    deadline: Instant,
) -> Result<Option<String>, LoadError> {
    loop {
        let rain = api.rain(id).await.map_err(admin("look at the rain"))?;
        if rain.state >= State::Refunded {
            return Ok(None);
        }
        if Instant::now() > deadline {
            return Ok(Some(format!("it is still {}", rain.state)));
        }
        sleep(LOOK).await;
    }
}
