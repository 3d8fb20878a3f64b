//! People who tap until they know, and the check that they were paid what they were told.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use hongbao::client::admin::{Audit, Winner};
use hongbao::client::{BackoffBounds, Client, Login, Settings};
use hongbao::rain::{RainId, State};
use hongbao::wire::client_frame::Request;
use hongbao::wire::inbox_message::Contents;
use hongbao::wire::server_frame::Message;
use hongbao::wire::{Inbox, Outcome};
use tokio::sync::{Mutex, Notify};

use super::server::Server;
use super::wire::Raw;
use super::{PATIENCE, eventually};

/// What the people of a rain were told: user → packet and cents.
pub type Told = HashMap<String, (u64, i64)>;

pub struct Crowd {
    told: Arc<Mutex<Told>>,
    /// Told at every win.
    won: Arc<Notify>,
    people: Vec<tokio::task::JoinHandle<Outcome>>,
}

/// `count` people who tap until their outcome is final, through lost connections and unknown results.
pub fn crowd(server: &Server, rain: RainId, count: u32) -> Crowd {
    crowd_of(server, rain, 0..count, Duration::ZERO)
}

/// The people with these numbers, who come one after the other, `apart` from each other.
pub fn crowd_of(server: &Server, rain: RainId, numbers: Range<u32>, apart: Duration) -> Crowd {
    let (told, won) = (Arc::new(Mutex::new(Told::new())), Arc::new(Notify::new()));
    let settings = Settings {
        reconnect: BackoffBounds {
            first_ms: 10,
            max_ms: 200,
        },
        ..Settings::new(vec![server.gateway().to_string()])
    };
    let settings = Arc::new(settings);
    let people = numbers.enumerate().map(|(place, n)| {
        let user = format!("user-{n}");
        let login = Login::with_token(server.token(&user));
        let (settings, told, won) = (settings.clone(), told.clone(), won.clone());
        tokio::spawn(async move {
            tokio::time::sleep(apart * place as u32).await; // people come when they come
            let (client, _events, driver) = Client::open(settings, login);
            let tapping = async {
                loop {
                    let reply = client
                        .grab(rain)
                        .await
                        .expect("the client goes on until it knows");
                    match (reply.known(), reply.packet) {
                        (Some(outcome), Some(packet)) => {
                            told.lock()
                                .await
                                .insert(user.clone(), (packet.id.get(), packet.cents.0));
                            won.notify_waiters();
                            return outcome;
                        }
                        (Some(outcome @ (Outcome::SoldOut | Outcome::Closed)), None) => {
                            return outcome;
                        }
                        (Some(Outcome::Missed), None) => tapping_pause().await,
                        other => panic!("{other:?}"),
                    }
                }
            };
            tokio::select! {
                outcome = tapping => outcome,
                _ = driver.run() => panic!("the session ended"),
            }
        })
    });
    let people = people.collect();
    Crowd { told, won, people }
}

/// Between two taps of one person.
async fn tapping_pause() {
    tokio::time::sleep(Duration::from_millis(20)).await; // people tap at some pace
}

impl Crowd {
    pub async fn until_won(&self, count: usize) {
        let enough = async {
            loop {
                let won = self.won.notified();
                if self.told.lock().await.len() >= count {
                    return;
                }
                won.await;
            }
        };
        tokio::time::timeout(PATIENCE, enough)
            .await
            .expect("nobody wins any more");
    }

    /// Everybody knows their outcome.
    pub async fn end(self) -> Told {
        for person in self.people {
            tokio::time::timeout(PATIENCE, person)
                .await
                .expect("somebody never learned the outcome")
                .unwrap();
        }
        Arc::into_inner(self.told).unwrap().into_inner()
    }
}

/// Settles and closes the rain and checks that everyone was paid exactly what they were told.
pub async fn assert_paid(server: &Server, rain: RainId, told: &Told) -> Audit {
    let admin = server.admin();
    server.until_settled(rain).await;
    eventually("the rain to be closed", async || {
        admin.close_rain(rain).await.ok()
    })
    .await;
    server
        .until(rain, |rain| rain.state >= State::Refunded)
        .await;
    let audit = eventually("an audit", async || admin.audit(rain).await.ok()).await;
    assert!(audit.balanced, "{audit:?}");
    assert_eq!(
        audit.funded_cents.0,
        audit.credited_cents.0 + audit.refunded_cents.0
    );
    let winners: Vec<Winner> = admin.all_winners(rain).await.unwrap();
    let paid: Told = winners
        .into_iter()
        .map(|winner| {
            (
                winner.user.to_string(),
                (winner.packet_id.get(), winner.cents.0),
            )
        })
        .collect();
    for (user, win) in told {
        assert_eq!(
            paid.get(user),
            Some(win),
            "{user} was told of a win that was not paid so"
        );
    }
    assert_eq!(paid.len(), told.len(), "everybody who was paid was told");
    // Some stand for all.
    let some = told.iter().take(30);
    messages_are_right(server, some).await.unwrap();
    audit
}

/// One message of the rain in the inbox of each, about exactly what was paid.
pub async fn messages_are_right(
    server: &Server,
    paid: impl Iterator<Item = (&String, &(u64, i64))>,
) -> Result<(), String> {
    for (user, win) in paid {
        let mut session = Raw::user(server, user).await;
        let Message::InboxPage(page) = session.ask(Request::Inbox(Inbox::default())).await else {
            return Err(format!("{user} has no inbox"));
        };
        let rain = win.0 >> 32;
        let contents = page.messages.into_iter().map(|message| message.contents);
        let contents = contents.filter(|contents| match contents {
            Some(Contents::PacketCredited(told)) => told.packet_id >> 32 == rain,
            _ => true,
        });
        match &contents.collect::<Vec<_>>()[..] {
            [Some(Contents::PacketCredited(told))] if (told.packet_id, told.cents) == *win => {}
            other => {
                return Err(format!(
                    "{user} was paid {win:?} and has messages {other:?}"
                ));
            }
        }
    }
    Ok(())
}
