//! Progress of the scenarios besides `rain`: a line a second, on standard error.

use std::cell::Cell;
use std::io::IsTerminal;

use hongbao::paint::{Paint, thousands};

use crate::summary::ms;
use crate::swarm::tally::Slot;

/// The names of the columns come again after so many lines.
const LINES_A_HEAD: u32 = 20;

thread_local! {
    static LINES: Cell<u32> = const { Cell::new(0) };
}

pub fn nobody(_: &Slot) {}

pub fn line(slot: &Slot) {
    let paint = Paint::for_terminal(std::io::stderr().is_terminal());
    let number = LINES.get();
    if number.is_multiple_of(LINES_A_HEAD) {
        eprintln!("{}", paint.dim(HEAD));
    }
    LINES.set(number + 1);
    eprintln!("{}", text(slot, paint));
}

/// Another run begins: the names of the columns come first.
pub fn begin() {
    LINES.set(0);
}

const HEAD: &str =
    "   from s    planned   answered        p50        p99        max    dropped       late";

fn text(slot: &Slot, paint: Paint) -> String {
    // What should not be is seen at once.
    let wrong = |n: u64| match n {
        0 => format!("{:>9}", paint.dim("        0")),
        n => paint.red(&format!("{:>9}", thousands(n))),
    };
    format!(
        "  {:>7.1}  {:>9}  {:>9}  {:>9}  {:>9}  {:>9}  {}  {}",
        slot.at_s,
        thousands(slot.planned),
        thousands(slot.answered),
        ms(slot.p50_ms),
        ms(slot.p99_ms),
        ms(slot.max_ms),
        wrong(slot.dropped),
        wrong(slot.late),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_below_their_names() {
        let slot = Slot {
            at_s: 12.0,
            planned: 1_000_000,
            answered: 999_999,
            dropped: 1,
            p50_ms: 0.25,
            p99_ms: 12.5,
            max_ms: 1_250.0,
            ..Slot::default()
        };
        let wanted = "     12.0  1,000,000    999,999    0.25 ms    12.5 ms     1.25 s          1          0";
        assert_eq!(text(&slot, Paint::PLAIN), wanted);
        assert_eq!(wanted.len(), HEAD.len());
    }
}
