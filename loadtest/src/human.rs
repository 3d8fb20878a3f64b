use std::f64::consts::TAU;
use std::time::Duration;

use clap::ValueEnum;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Spread of the reaction times: the slowest sixth takes more than e^0.6, so 1.8 times, the median.
const REACTION_SPREAD: f64 = 0.6;
/// Nobody moves a thumb faster, ms.
const REACTION_MIN_MS: f64 = 120.0;
/// Until somebody who has an answer taps once more, ms.
const DOUBT: (Duration, Duration) = (Duration::from_millis(300), Duration::from_millis(1_500));
/// From a tap to its owner's leaving: less than a client takes to connect again.
const LEAVE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(20));

/// Kinds of people, by what they are like on the whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Crowd {
    /// Players of a live quiz: half have tapped 2 s after the opening, 15 % come late, 5 % lose their connection, misses are tapped again after 150 to
    /// 400 ms.
    Quiz,
    /// Everybody has the thumb over the screen: half have tapped after 300 ms, nobody comes late, 10 % tap too early, misses are tapped again after 80 to
    /// 200 ms.
    Burst,
    /// No hurry: half have tapped after 8 s, 60 % come late, 2 % leave, misses are tapped again after 0.4 to 1.5 s.
    Stroll,
    /// On the underground: as the quiz, but 40 % lose their connection with a tap on its way, and 10 % leave and do not come back.
    Subway,
}

/// What people are like on the whole.
#[derive(Debug, Clone, Copy)]
pub struct Temper {
    /// Half of those who are not late tap for the first time within this time after the opening.
    pub reaction: Duration,
    /// Between two taps of somebody who missed: the shortest and the longest.
    pub tap_again: (Duration, Duration),
    pub rain: Duration,
    pub countdown: Duration,
    /// Percent of all people.
    pub late: u8,
    pub eager: u8,
    pub doubting: u8,
    pub reconnecting: u8,
    pub leaving: u8,
}

impl Temper {
    /// Of `crowd`, in a rain that falls for so long after such a countdown.
    pub fn of(crowd: Crowd, rain: Duration, countdown: Duration) -> Temper {
        let ms = Duration::from_millis;
        let quiz = Temper {
            reaction: ms(2_000),
            tap_again: (ms(150), ms(400)),
            rain,
            countdown,
            late: 15,
            eager: 2,
            doubting: 30,
            reconnecting: 5,
            leaving: 0,
        };
        match crowd {
            Crowd::Quiz => quiz,
            Crowd::Burst => Temper {
                reaction: ms(300),
                tap_again: (ms(80), ms(200)),
                late: 0,
                eager: 10,
                ..quiz
            },
            Crowd::Stroll => Temper {
                reaction: ms(8_000),
                tap_again: (ms(400), ms(1_500)),
                late: 60,
                eager: 0,
                doubting: 10,
                leaving: 2,
                ..quiz
            },
            Crowd::Subway => Temper {
                reconnecting: 40,
                leaving: 10,
                ..quiz
            },
        }
    }
}

/// What one person will do, drawn from the run's seed and the person's number, so that a run can be repeated.
#[derive(Debug, Clone, PartialEq)]
pub struct Human {
    /// From seeing the rain to the first tap.
    pub reaction: Duration,
    /// 0 to 1: how late this person is where others hurry.
    pub slowness: f64,
    /// Taps this long after the countdown began, before the opening.
    pub eager_after: Option<Duration>,
    /// Loses the connection with the first tap on its way.
    pub reconnects: bool,
    /// Leaves for good, this long after the first tap.
    pub leaves_after: Option<Duration>,
    /// Taps once more, this long after the outcome is final.
    pub doubts_after: Option<Duration>,
    tap_again: (Duration, Duration),
    /// For the times between taps.
    random: u64,
}

impl Human {
    pub fn draw(seed: u64, number: u32, temper: &Temper) -> Human {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(u64::from(number));
        let mut percent = |share: u64| random.next_u64() % 100 < share;
        let late = percent(temper.late.into());
        let eager = percent(temper.eager.into());
        let reconnects = percent(temper.reconnecting.into());
        let doubts = percent(temper.doubting.into());
        let leaves = percent(temper.leaving.into());
        let reaction = if late {
            temper.rain.mul_f64(unit(&mut random) / 2.0)
        } else {
            let drawn = temper
                .reaction
                .mul_f64((REACTION_SPREAD * normal(&mut random)).exp());
            drawn.min(temper.rain)
        };
        Human {
            reaction: reaction.max(Duration::from_secs_f64(REACTION_MIN_MS / 1_000.0)),
            eager_after: eager.then(|| temper.countdown.mul_f64(unit(&mut random) * 0.9)),
            slowness: unit(&mut random),
            reconnects: reconnects && !leaves,
            doubts_after: doubts.then(|| between(DOUBT, random.next_u64())),
            leaves_after: leaves.then(|| between(LEAVE, random.next_u64())),
            tap_again: temper.tap_again,
            random: random.next_u64(),
        }
    }

    /// How long until the next tap of somebody who missed.
    pub fn next_tap(&mut self) -> Duration {
        // A multiplicative generator of eight bytes (Knuth's MMIX constants): people's thumbs need no better one.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        between(self.tap_again, self.random >> 16)
    }
}

fn between((low, high): (Duration, Duration), random: u64) -> Duration {
    let width_us = (high - low).as_micros() as u64;
    low + Duration::from_micros(random % (width_us + 1))
}

/// Evenly from 0 to below 1.
fn unit(random: &mut impl Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Standard normal, by Box and Muller.
fn normal(random: &mut impl Rng) -> f64 {
    let radius = (-2.0 * (1.0 - unit(random)).ln()).sqrt();
    radius * (TAU * unit(random)).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEMPER: Temper = Temper {
        reaction: Duration::from_millis(1_500),
        tap_again: (Duration::from_millis(150), Duration::from_millis(400)),
        rain: Duration::from_secs(30),
        countdown: Duration::from_secs(3),
        late: 15,
        eager: 2,
        doubting: 30,
        reconnecting: 5,
        leaving: 3,
    };

    fn crowd() -> Vec<Human> {
        (0..10_000).map(|n| Human::draw(42, n, &TEMPER)).collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_person_and_another_seed_another() {
        assert_eq!(Human::draw(42, 7, &TEMPER), Human::draw(42, 7, &TEMPER));
        assert_ne!(Human::draw(42, 7, &TEMPER), Human::draw(42, 8, &TEMPER));
        assert_ne!(Human::draw(42, 7, &TEMPER), Human::draw(43, 7, &TEMPER));
    }

    #[test]
    fn reactions_are_skewed_like_those_of_people() {
        let mut reactions: Vec<_> = crowd().iter().map(|human| human.reaction).collect();
        reactions.sort_unstable();
        let at = |percent: usize| reactions[percent * 100].as_secs_f64();
        // 85 % are log-normal around 1.5 s, 15 % spread over 15 s: the median of both together is near 1.75 s.
        assert!((1.6..1.95).contains(&at(50)), "{}", at(50));
        assert!(at(90) > 2.0 * at(50), "a long tail: {}", at(90));
        assert!(reactions[0] >= Duration::from_millis(120));
        assert!(reactions[9_999] <= TEMPER.rain);
    }

    #[test]
    fn shares_are_as_asked() {
        let crowd = crowd();
        let count = |what: fn(&Human) -> bool| crowd.iter().filter(|human| what(human)).count();
        // Expected 500, 3000 and 200, with standard deviations of 22, 46 and 14.
        assert!((400..600).contains(&count(|human| human.reconnects)));
        assert!((2_800..3_200).contains(&count(|human| human.doubts_after.is_some())));
        assert!((140..260).contains(&count(|human| human.eager_after.is_some())));
        // 300 and 17.
        assert!((230..370).contains(&count(|human| human.leaves_after.is_some())));
        assert_eq!(
            count(|human| human.leaves_after.is_some() && human.reconnects),
            0
        );
        assert!(
            crowd
                .iter()
                .all(|human| human.eager_after < Some(TEMPER.countdown))
        );
    }

    #[test]
    fn crowds_differ_as_they_are_described() {
        let first_taps = |crowd| {
            let temper = Temper::of(crowd, Duration::from_secs(30), Duration::from_secs(3));
            let people = (0..2_000).map(|n| Human::draw(9, n, &temper).reaction);
            let mut all: Vec<_> = people.collect();
            all.sort_unstable();
            all[1_000].as_secs_f64()
        };
        let (burst, quiz) = (first_taps(Crowd::Burst), first_taps(Crowd::Quiz));
        assert!((0.25..0.35).contains(&burst), "{burst}");
        assert!((2.0..2.6).contains(&quiz), "{quiz}");
        assert!(first_taps(Crowd::Stroll) > 6.0);
    }

    #[test]
    fn taps_follow_each_other_within_150_to_400_ms() {
        let mut human = Human::draw(1, 1, &TEMPER);
        let mut sum = Duration::ZERO;
        for _ in 0..1_000 {
            let wait = human.next_tap();
            assert!(wait >= Duration::from_millis(150) && wait <= Duration::from_millis(400));
            sum += wait;
        }
        let mean_ms = sum.as_millis() / 1_000;
        assert!((265..285).contains(&mean_ms), "{mean_ms}"); // 275 expected, 2.3 the standard error
    }
}
