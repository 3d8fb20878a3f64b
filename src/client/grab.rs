use std::borrow::Cow;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use super::{Client, ClientError, unexpected};
use crate::rain::{Cents, Packet, PacketId, RainId, UserId};
use crate::wire::client_frame::Request;
use crate::wire::server_frame::Message;
use crate::wire::{Grab, GrabResult, Outcome};

/// What an outcome's range asks of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AfterGrab {
    /// 10–19: show it, stop tapping.
    Done,
    /// 20–29: keep tapping.
    TapAgain,
    /// 30–39: wait, then repeat the same tap.
    WaitThenRepeat,
    /// 40–49, and whatever stands outside every range: the same request will be refused again.
    Fix,
}

/// The answer to one grab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrabReply {
    /// May be one that this version does not know; its range still tells what to do.
    pub code: i32,
    pub rain: RainId,
    /// With WON and ALREADY_WON, and only with these.
    pub packet: Option<Packet>,
    /// Zero when the gateway named no time.
    pub retry_after: Duration,
}

/// One grab that was sent, for whoever counts them.
#[derive(Debug)]
pub struct Attempt<'a> {
    pub sent: Instant,
    /// From sending to the reply, or to giving up.
    pub elapsed: Duration,
    pub result: &'a Result<GrabReply, ClientError>,
}

/// The outcome's name as the protocol spells it, like `ALREADY_WON`.
pub fn outcome_name(code: i32) -> Cow<'static, str> {
    match Outcome::try_from(code) {
        Ok(outcome) => outcome.as_str_name().into(),
        Err(_) => format!("OUTCOME_{code}").into(),
    }
}

impl AfterGrab {
    pub fn of(code: i32) -> AfterGrab {
        match code {
            10..=19 => AfterGrab::Done,
            20..=29 => AfterGrab::TapAgain,
            30..=39 => AfterGrab::WaitThenRepeat,
            _ => AfterGrab::Fix,
        }
    }
}

impl GrabReply {
    /// `None` for an outcome of a newer protocol.
    pub fn known(&self) -> Option<Outcome> {
        Outcome::try_from(self.code).ok()
    }

    pub fn after(&self) -> AfterGrab {
        AfterGrab::of(self.code)
    }

    fn read(asked: RainId, result: &GrabResult) -> Result<GrabReply, ClientError> {
        let fault = |text: &str| Err(ClientError::Protocol(format!("{text} in {result:?}")));
        if result.rain_id != asked.get() {
            return fault("another rain");
        }
        let wins = matches!(
            Outcome::try_from(result.outcome),
            Ok(Outcome::Won | Outcome::AlreadyWon)
        );
        let packet = match PacketId::new(result.packet_id) {
            Ok(id) if wins && id.rain() == asked && result.cents > 0 => Some(Packet {
                id,
                cents: Cents(result.cents),
            }),
            _ if wins => return fault("a win without a packet of this rain"),
            _ => None,
        };
        Ok(GrabReply {
            code: result.outcome,
            rain: asked,
            packet,
            retry_after: Duration::from_millis(u64::from(result.retry_after_ms)),
        })
    }
}

impl Client {
    /// One grab on the connection that is there, whatever comes of it.
    ///
    /// # Errors
    /// After [`ClientError::ConnectionLost`] and [`ClientError::TimedOut`] the result is unknown: only a repeat finds it out.
    pub async fn grab_once(&self, rain: RainId) -> Result<GrabReply, ClientError> {
        self.send_grab(rain, None, self.key_of(rain)).await
    }

    /// [`Client::grab_once`] for `user`, from an edge session.
    ///
    /// # Errors
    /// Those of [`Client::grab_once`].
    pub async fn grab_once_for(
        &self,
        user: &UserId,
        rain: RainId,
    ) -> Result<GrabReply, ClientError> {
        self.send_grab(rain, Some(user), self.key_of(rain)).await
    }

    /// What a grab of the rain must carry, as far as this client was told; empty otherwise.
    fn key_of(&self, rain: RainId) -> Bytes {
        self.shared.lock().key_of(rain.get())
    }

    async fn send_grab(
        &self,
        rain: RainId,
        user: Option<&UserId>,
        key: Bytes,
    ) -> Result<GrabReply, ClientError> {
        let grab = Request::Grab(Grab {
            rain_id: rain.get(),
            user: user.map(UserId::to_string).unwrap_or_default(),
            key,
        });
        match self.shared.request(grab).await? {
            Message::GrabResult(result) => GrabReply::read(rain, &result),
            other => Err(unexpected("GrabResult", &other)),
        }
    }

    /// One tap: repeats the grab until its result is known. Outcomes 30–39 are repeated after their `retry_after_ms` (sooner if a rain
    /// opens meanwhile), lost replies as soon as there is a session again. What comes back is done, missed (whether to tap again is for
    /// the person to decide) or wrong.
    ///
    /// A rain that asks for a key tells it in RainOpened: whoever watches its room has it, and this sends it along. A grab that was sent before the key
    /// came is sent again with it; it is wrong only if no key comes for as long as a reply may take, or no room is watched.
    ///
    /// Tries as long as it takes; to give up earlier, drop the future, for example with [`tokio::time::timeout`].
    ///
    /// # Errors
    /// Why the session ended, or a refusal that repeating cannot change.
    pub async fn grab(&self, rain: RainId) -> Result<GrabReply, ClientError> {
        self.grab_observed(rain, |_| {}).await
    }

    /// [`Client::grab`] for `user`, from an edge session: many of these futures may run at once, up to `in_flight_max` of them are sent.
    ///
    /// # Errors
    /// Those of [`Client::grab`].
    pub async fn grab_for(&self, user: &UserId, rain: RainId) -> Result<GrabReply, ClientError> {
        self.repeat_grab(rain, Some(user), |_| {}).await
    }

    /// [`Client::grab`], showing each grab that was sent to `observe`.
    pub async fn grab_observed(
        &self,
        rain: RainId,
        observe: impl FnMut(&Attempt<'_>),
    ) -> Result<GrabReply, ClientError> {
        self.repeat_grab(rain, None, observe).await
    }

    async fn repeat_grab(
        &self,
        rain: RainId,
        user: Option<&UserId>,
        mut observe: impl FnMut(&Attempt<'_>),
    ) -> Result<GrabReply, ClientError> {
        let mut backoff = self.repeat_backoff();
        loop {
            self.ready().await?;
            let rains_opened = self.shared.rains_opened();
            let (sent, key) = (Instant::now(), self.key_of(rain));
            let result = self.send_grab(rain, user, key.clone()).await;
            if result != Err(ClientError::NotConnected) {
                observe(&Attempt {
                    sent,
                    elapsed: sent.elapsed(),
                    result: &result,
                });
            }
            let wait = match &result {
                Ok(reply) if reply.known() == Some(Outcome::WrongKey) => {
                    match self.shared.another_key(rain.get(), &key).await {
                        true => Duration::ZERO,
                        false => return result,
                    }
                }
                Ok(reply) => match reply.after() {
                    AfterGrab::Done | AfterGrab::TapAgain | AfterGrab::Fix => return result,
                    AfterGrab::WaitThenRepeat if reply.retry_after.is_zero() => {
                        backoff.next_delay()
                    }
                    AfterGrab::WaitThenRepeat => reply.retry_after,
                },
                Err(error) => match error.wait_before_repeat(&mut backoff) {
                    Some(wait) => wait,
                    None => return result,
                },
            };
            if !wait.is_zero() {
                self.shared.wait_or_opened(wait, rains_opened).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rain() -> RainId {
        RainId::new(7).unwrap()
    }

    fn result(outcome: i32, packet_id: u64, cents: i64) -> GrabResult {
        GrabResult {
            outcome,
            rain_id: 7,
            packet_id,
            cents,
            retry_after_ms: 0,
        }
    }

    #[test]
    fn the_range_of_an_outcome_says_what_to_do_even_when_its_name_is_unknown() {
        for (code, after) in [
            (10, AfterGrab::Done),
            (19, AfterGrab::Done),
            (20, AfterGrab::TapAgain),
            (29, AfterGrab::TapAgain),
            (30, AfterGrab::WaitThenRepeat),
            (39, AfterGrab::WaitThenRepeat),
            (41, AfterGrab::Fix),
            (0, AfterGrab::Fix),
            (70, AfterGrab::Fix),
        ] {
            assert_eq!(AfterGrab::of(code), after, "{code}");
        }
        assert_eq!(outcome_name(11), "ALREADY_WON");
        assert_eq!(outcome_name(17), "OUTCOME_17");
    }

    #[test]
    fn a_win_carries_its_packet() {
        let reply = GrabReply::read(rain(), &result(10, 30_064_771_113, 888)).unwrap();
        let packet = reply.packet.unwrap();
        assert_eq!((packet.id.index(), packet.cents), (41, Cents(888)));
        assert_eq!(
            GrabReply::read(rain(), &result(20, 0, 0)).unwrap().packet,
            None
        );
    }

    #[test]
    fn a_win_without_a_believable_packet_is_an_error_and_no_win() {
        let of_rain_8 = 8u64 << 32;
        for broken in [
            result(10, 0, 888),
            result(10, 30_064_771_113, 0),
            result(11, 30_064_771_113, -5),
            result(11, of_rain_8, 888),
            GrabResult {
                rain_id: 8,
                ..result(20, 0, 0)
            },
        ] {
            let error = GrabReply::read(rain(), &broken).unwrap_err();
            assert!(matches!(error, ClientError::Protocol(_)), "{error}");
        }
    }
}
