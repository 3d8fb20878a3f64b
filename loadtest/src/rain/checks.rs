//! What was promised, held against what was seen: by the people, in the ledger, in the audit. No I/O.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Display;

use hongbao::client::admin::{Audit, Winner};
use hongbao::client::outcome_name;
use hongbao::rain::{Cents, Packet};
use hongbao::wire::Outcome;
use serde::Serialize;

use super::session::Story;

/// Of what went wrong, so many examples are named.
const EXAMPLES_MAX: usize = 5;

/// A promise, and whether it was kept.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    pub name: Cow<'static, str>,
    pub ok: bool,
    /// What was wrong, with examples; empty when all is well.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub detail: String,
}

/// What is known after a run.
pub struct Evidence<'a> {
    pub stories: &'a [Story],
    /// The user of a session.
    pub user: &'a dyn Fn(u32) -> String,
    /// Every credited winner of the rain.
    pub winners: &'a [Winner],
    pub audit: &'a Audit,
    pub packets: Option<u32>,
    /// Grabs answered WON.
    pub won_replies: u64,
    /// Grabs whose reply never came.
    pub unanswered: u64,
    /// Nobody else took part in this rain.
    pub alone: bool,
    /// It is closed and refunded, so nothing may be in motion.
    pub closed: bool,
    /// Why it could not be, in the server's words.
    pub stuck: Option<&'a str>,
}

impl Evidence<'_> {
    pub fn check(&self) -> Vec<Check> {
        let by_user: HashMap<&str, &Winner> = self
            .winners
            .iter()
            .map(|winner| (winner.user.as_str(), winner))
            .collect();
        vec![
            self.one_packet_each(),
            self.one_winner_each(),
            self.wins_are_credited(&by_user),
            self.credits_were_told(&by_user),
            self.losers_lost(&by_user),
            self.answers_agree(),
            self.won_is_told_once(),
            self.all_decided(),
            self.opening_was_told(),
            self.came_to_its_end(),
            self.sums_agree(),
            self.audit_is_balanced(),
        ]
    }

    /// P1, the user's side.
    fn one_packet_each(&self) -> Check {
        let mut wrong = Wrong::default();
        for story in self.stories {
            if let (Some(first), Some(other)) = (story.packet, story.other_packet) {
                let user = (self.user)(story.number);
                wrong.add(format!("{user} won {} and {}", first.id, other.id));
            }
        }
        let mut seen: HashMap<&str, &Winner> = HashMap::new();
        for winner in self.winners {
            if let Some(first) = seen.insert(winner.user.as_str(), winner) {
                let (one, two) = (first.packet_id, winner.packet_id);
                wrong.add(format!("{} was credited for {one} and {two}", winner.user));
            }
        }
        wrong.check("no user won twice")
    }

    /// P1, the packet's side.
    fn one_winner_each(&self) -> Check {
        let mut wrong = Wrong::default();
        let mut told: HashMap<_, u32> = HashMap::new();
        for story in self.stories {
            let packets = [story.packet, story.other_packet];
            for Packet { id, .. } in packets.into_iter().flatten() {
                if let Some(first) = told.insert(id, story.number)
                    && first != story.number
                {
                    let (one, two) = ((self.user)(first), (self.user)(story.number));
                    wrong.add(format!("{id} was won by {one} and {two}"));
                }
            }
        }
        let mut credited = HashMap::new();
        for winner in self.winners {
            if let Some(first) = credited.insert(winner.packet_id, &winner.user) {
                let (id, two) = (winner.packet_id, &winner.user);
                wrong.add(format!("{id} was credited to {first} and {two}"));
            }
        }
        wrong.check("no packet was won twice")
    }

    /// P4: what a person was shown is on the account, to the cent.
    fn wins_are_credited(&self, by_user: &HashMap<&str, &Winner>) -> Check {
        let mut wrong = Wrong::default();
        for story in self.stories {
            let Some(packet) = story.packet else { continue };
            let user = (self.user)(story.number);
            match by_user.get(user.as_str()) {
                None => wrong.add(format!("{user} won {packet} and has no credit")),
                Some(winner) if (winner.packet_id, winner.cents) != (packet.id, packet.cents) => {
                    let (id, cents) = (winner.packet_id, winner.cents.0);
                    wrong.add(format!("{user} won {packet} and was credited {id}:{cents}"));
                }
                Some(_) => {}
            }
        }
        wrong.check("every win that was shown is credited, to the cent")
    }

    /// P2: whoever keeps asking learns what was won.
    fn credits_were_told(&self, by_user: &HashMap<&str, &Winner>) -> Check {
        let mut wrong = Wrong::default();
        // Whoever left did not keep asking.
        let asked = self.stories.iter().filter(|story| !story.left);
        for story in asked.filter(|story| story.packet.is_none()) {
            let user = (self.user)(story.number);
            if let Some(winner) = by_user.get(user.as_str()) {
                let id = winner.packet_id;
                wrong.add(format!("{user} was credited for {id} and never told"));
            }
        }
        wrong.check("every credit was shown to its user")
    }

    /// P7: SOLD_OUT and CLOSED are true.
    fn losers_lost(&self, by_user: &HashMap<&str, &Winner>) -> Check {
        let mut wrong = Wrong::default();
        let is = |story: &Story, outcome: Outcome| story.outcome == Some(outcome as i32);
        for story in self.stories {
            if is(story, Outcome::SoldOut) || is(story, Outcome::Closed) {
                let user = (self.user)(story.number);
                if let Some(winner) = by_user.get(user.as_str()) {
                    let name = outcome_name(story.outcome.unwrap_or_default());
                    let id = winner.packet_id;
                    wrong.add(format!("{user} was told {name} and has {id}"));
                }
            }
        }
        let sold_out = self.stories.iter().any(|story| is(story, Outcome::SoldOut));
        if sold_out && self.closed && self.audit.refunded_cents != Cents::ZERO {
            let left = self.audit.refunded_cents;
            wrong.add(format!("SOLD_OUT was told and {left} were left"));
        }
        wrong.check("SOLD_OUT and CLOSED were true")
    }

    /// P2 and the outcome table.
    fn answers_agree(&self) -> Check {
        let mut wrong = Wrong::default();
        for story in self.stories {
            for fault in &story.faults {
                wrong.add(format!("{}: {fault}", (self.user)(story.number)));
            }
        }
        wrong.check("a repeated tap got the same answer")
    }

    /// Each win is told once as WON, unless that very reply was lost.
    fn won_is_told_once(&self) -> Check {
        let mut wrong = Wrong::default();
        let told = self.stories.iter().filter(|story| story.packet.is_some());
        let (told, won) = (told.count() as u64, self.won_replies);
        if won > told || told - won > self.unanswered {
            let lost = self.unanswered;
            wrong.add(format!(
                "{told} users won, {won} were told WON, {lost} replies were lost"
            ));
        }
        wrong.check("WON was told once for each win")
    }

    fn all_decided(&self) -> Check {
        let mut wrong = Wrong::default();
        for story in self.stories.iter().filter(|story| !story.left) {
            let user = (self.user)(story.number);
            match (&story.ended, story.outcome) {
                (Some(error), _) => wrong.add(format!("{user}: {error}")),
                (None, None) => wrong.add(format!("{user} has no final outcome")),
                (None, Some(_)) => {}
            }
        }
        wrong.check("everybody learned a final outcome")
    }

    fn opening_was_told(&self) -> Check {
        let mut wrong = Wrong::default();
        for story in self.stories {
            // An early tap may have waited through the opening; those are told by the answer to their tap.
            if !story.told_opened && story.ended.is_none() && !story.gone {
                wrong.add(format!("{} saw no RainOpened", (self.user)(story.number)));
            }
        }
        wrong.check("everybody was told that the rain opened")
    }

    /// P6: what is left goes back to the sponsor.
    fn came_to_its_end(&self) -> Check {
        let mut wrong = Wrong::default();
        if let Some(why) = self.stuck {
            wrong.add(why);
        }
        wrong.check("the rain was closed and refunded")
    }

    /// P5, by our own arithmetic.
    fn sums_agree(&self) -> Check {
        let mut wrong = Wrong::default();
        let audit = self.audit;
        let sum: Cents = self.winners.iter().map(|winner| winner.cents).sum();
        let count = self.winners.len() as u64;
        if (sum, count) != (audit.credited_cents, audit.credited_count) {
            let (cents, credited) = (audit.credited_cents, audit.credited_count);
            wrong.add(format!(
                "{count} winners have {sum}, the audit counts {credited} with {cents}"
            ));
        }
        let end = audit.credited_cents.checked_add(audit.refunded_cents);
        if self.closed && end != Some(audit.funded_cents) {
            let (funded, credited) = (audit.funded_cents, audit.credited_cents);
            let refunded = audit.refunded_cents;
            wrong.add(format!(
                "funded {funded}, credited {credited}, refunded {refunded}"
            ));
        }
        if self.packets.is_some_and(|packets| count > packets.into()) {
            wrong.add(format!("{count} packets were won of {:?}", self.packets));
        }
        let told = self.stories.iter().filter(|story| story.packet.is_some());
        let told = told.count() as u64;
        // Those who left may have won without being told.
        let left = self.stories.iter().filter(|story| story.left).count() as u64;
        if self.alone && !(told..=told + left).contains(&count) {
            wrong.add(format!(
                "{told} users were told that they won, {left} left, {count} were credited"
            ));
        }
        wrong.check("the sums agree")
    }

    fn audit_is_balanced(&self) -> Check {
        let mut wrong = Wrong::default();
        let audit = self.audit;
        if !audit.balanced {
            wrong.add(format!("differences: {}", audit.differences.len()));
        }
        if self.closed && audit.in_motion > 0 {
            wrong.add(format!("{} packets are still in motion", audit.in_motion));
        }
        wrong.check("the audit is balanced")
    }
}

/// Collects what is wrong, and keeps the first few examples.
#[derive(Default)]
struct Wrong {
    count: usize,
    examples: Vec<String>,
}

impl Wrong {
    fn add(&mut self, example: impl Display) {
        self.count += 1;
        if self.examples.len() < EXAMPLES_MAX {
            self.examples.push(example.to_string());
        }
    }

    fn check(self, name: &'static str) -> Check {
        let mut detail = self.examples.join("; ");
        if self.count > self.examples.len() {
            detail += &format!("; and {} more", self.count - self.examples.len());
        }
        Check {
            name: name.into(),
            ok: self.count == 0,
            detail,
        }
    }
}
