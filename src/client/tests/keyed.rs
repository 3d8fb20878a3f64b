use bytes::Bytes;

use super::*;

fn opened(key: &'static [u8]) -> Message {
    Message::RainOpened(RainOpened {
        rain_id: 7,
        key: Bytes::from_static(key),
        ..RainOpened::default()
    })
}

/// Watches a room, whose name is the gateway's to confirm.
async fn watching(client: &Client, peer: &mut Peer) {
    let confirm = async {
        let (id, request) = peer.hear().await;
        let Request::Watch(watch) = request else {
            panic!("{request:?}")
        };
        let room = watch.room;
        peer.say(id, Message::Watching(Watching { room })).await;
    };
    let (watched, ()) = soon(async { tokio::join!(client.watch("quiz"), confirm) }).await;
    watched.unwrap();
}

/// The next request, a grab of rain 7: its id, and the key that it carries.
async fn hear_key(peer: &mut Peer) -> (u64, Bytes) {
    match peer.hear().await {
        (id, Request::Grab(grab)) if grab.rain_id == 7 => (id, grab.key),
        other => panic!("{other:?}"),
    }
}

/// A grab without its key was refused for good, although the key came before the refusal or right behind it.
#[tokio::test]
async fn a_grab_that_was_sent_before_its_key_came_is_sent_again_with_it() {
    for key_first in [true, false] {
        let gateway = StandIn::start().await;
        let (client, mut events, mut peer) = connected(&gateway).await;
        watching(&client, &mut peer).await;
        let serve = async {
            let (id, key) = hear_key(&mut peer).await;
            assert!(key.is_empty());
            if key_first {
                peer.say(0, opened(b"key")).await;
                peer.say(id, result(Outcome::WrongKey, 0, 0)).await;
            } else {
                peer.say(id, result(Outcome::WrongKey, 0, 0)).await;
                assert!(
                    timeout(Duration::from_millis(50), peer.hear())
                        .await
                        .is_err()
                );
                peer.say(0, opened(b"key")).await;
            }
            let (id, key) = hear_key(&mut peer).await;
            assert_eq!(key, "key");
            peer.say(id, result(Outcome::Won, PACKET, 888)).await;
        };
        let (reply, ()) = soon(async { tokio::join!(client.grab(rain()), serve) }).await;
        assert_eq!(reply.unwrap().known(), Some(Outcome::Won), "{key_first}");
        assert!(matches!(events.try_next(), Some(Event::RainOpened(_))));
    }
}

#[tokio::test]
async fn a_connection_that_is_lost_while_the_key_is_waited_for_costs_nothing() {
    let gateway = StandIn::start().await;
    let (client, _events, mut peer) = connected(&gateway).await;
    watching(&client, &mut peer).await;
    let serve = async {
        let (id, _) = hear_key(&mut peer).await;
        peer.say(id, result(Outcome::WrongKey, 0, 0)).await;
        drop(peer);
        // Watch and grab follow one another, so the grab is refused again before the key is known.
        let mut peer = gateway.welcome().await;
        let (watch, request) = peer.hear().await;
        assert!(matches!(request, Request::Watch(_)), "{request:?}");
        let (id, key) = hear_key(&mut peer).await;
        assert!(key.is_empty());
        let room = "quiz".to_owned();
        peer.say(watch, Message::Watching(Watching { room })).await;
        peer.say(0, opened(b"key")).await;
        peer.say(id, result(Outcome::WrongKey, 0, 0)).await;
        let (id, key) = hear_key(&mut peer).await;
        assert_eq!(key, "key");
        peer.say(id, result(Outcome::Won, PACKET, 888)).await;
    };
    let (reply, ()) = soon(async { tokio::join!(client.grab(rain()), serve) }).await;
    assert_eq!(reply.unwrap().known(), Some(Outcome::Won));
}

#[tokio::test]
async fn who_is_told_no_key_or_a_wrong_one_learns_that_it_is_wrong() {
    let mut gateway = StandIn::start().await;
    gateway.settings.reply_ms = 200;
    let (client, _events, mut peer) = connected(&gateway).await;
    // No room; then a room that does not tell; then a key that is not the rain's.
    for step in 0..3 {
        if step == 1 {
            watching(&client, &mut peer).await;
        }
        let begun = Instant::now();
        let serve = async {
            if step == 2 {
                peer.say(0, opened(b"key")).await;
                // Behind the key.
                let (id, _) = peer.hear().await;
                peer.say(id, Message::Pong(Pong::default())).await;
            }
            let (id, key) = hear_key(&mut peer).await;
            assert_eq!(key.is_empty(), step < 2);
            peer.say(id, result(Outcome::WrongKey, 0, 0)).await;
        };
        let grab = async {
            if step == 2 {
                client.ping().await.unwrap();
            }
            client.grab(rain()).await
        };
        let (reply, ()) = soon(async { tokio::join!(grab, serve) }).await;
        assert_eq!(reply.unwrap().known(), Some(Outcome::WrongKey), "{step}");
        let waited = begun.elapsed() >= Duration::from_millis(200);
        assert_eq!(waited, step == 1, "{step}: {:?}", begun.elapsed());
    }
}
