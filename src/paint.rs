//! How numbers look on a terminal.

use std::env;

/// Colours for one output, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Paint {
    coloured: bool,
}

impl Paint {
    pub const PLAIN: Paint = Paint { coloured: false };

    /// Colours on a terminal, unless the environment asks for none (<https://no-color.org>: set and not empty) or the terminal has none.
    pub fn for_terminal(is_terminal: bool) -> Paint {
        let set = |name| env::var_os(name).is_some_and(|value| !value.is_empty());
        Paint {
            coloured: is_terminal && !is_dumb() && !set("NO_COLOR"),
        }
    }

    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub fn green(self, text: &str) -> String {
        self.wrap("32", text)
    }

    pub fn red(self, text: &str) -> String {
        self.wrap("31;1", text)
    }

    pub fn gold(self, text: &str) -> String {
        self.wrap("33;1", text)
    }

    /// A red packet: gold on red.
    pub fn packet(self, text: &str) -> String {
        self.wrap("41;93;1", text)
    }

    fn wrap(self, code: &str, text: &str) -> String {
        match self.coloured {
            true => format!("\x1b[{code}m{text}\x1b[0m"),
            false => text.to_owned(),
        }
    }
}

/// A terminal that cannot move its cursor.
pub fn is_dumb() -> bool {
    env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty())
}

/// `1,234,567`
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `part` of `whole` as a bar of `width` characters, in eighths of a character. What is above nothing is seen.
pub fn bar(part: u64, whole: u64, width: usize) -> String {
    let eighths = (u128::from(part) * 8 * width as u128)
        .checked_div(u128::from(whole))
        .unwrap_or_default() as usize;
    let eighths = eighths.clamp(usize::from(part > 0), 8 * width);
    let mut bar = "█".repeat(eighths / 8);
    if let Some(rest) = ["▏", "▎", "▍", "▌", "▋", "▊", "▉"].get((eighths % 8).wrapping_sub(1))
    {
        bar.push_str(rest);
    }
    bar
}

/// A line of rates, each as high as it is beside the highest.
pub fn sparkline(rates: &[f64]) -> String {
    let highest = rates.iter().copied().fold(0.0, f64::max);
    let steps = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let step = |rate: &f64| {
        if highest <= 0.0 || *rate <= 0.0 {
            return ' ';
        }
        steps[((rate / highest * 8.0).ceil() as usize).clamp(1, 8) - 1]
    };
    rates.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_and_lines_are_as_long_and_high_as_their_numbers() {
        assert_eq!(bar(0, 10, 4), "");
        assert_eq!(bar(1, 1_000_000, 4), "▏");
        assert_eq!(bar(5, 10, 4), "██");
        assert_eq!(bar(10, 10, 4), "████");
        assert_eq!(bar(9, 16, 4), "██▎");
        assert_eq!(bar(3, 0, 4), "▏", "of nothing");
        assert_eq!(sparkline(&[0.0, 1.0, 4.0, 8.0]), " ▁▄█");
        assert_eq!(sparkline(&[0.0, 0.0]), "  ");
    }

    #[test]
    fn plain_paint_leaves_text_alone() {
        assert_eq!(Paint::PLAIN.red("x"), "x");
        assert_eq!(Paint::for_terminal(false), Paint::PLAIN);
    }

    #[test]
    fn thousands_are_parted() {
        for (n, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1,000"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(thousands(n), text);
        }
    }
}
