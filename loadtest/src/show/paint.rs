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
        let dumb = env::var_os("TERM").is_some_and(|term| term == "dumb");
        Paint {
            coloured: is_terminal && !dumb && !set("NO_COLOR"),
        }
    }

    pub fn bold(self, text: &str) -> String {
        self.wrap("1", text)
    }

    pub fn dim(self, text: &str) -> String {
        self.wrap("2", text)
    }

    pub fn red(self, text: &str) -> String {
        self.wrap("31;1", text)
    }

    pub fn green(self, text: &str) -> String {
        self.wrap("32", text)
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

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn plain_paint_leaves_text_alone() {
        assert_eq!(Paint::PLAIN.red("x"), "x");
        assert_eq!(Paint::for_terminal(false), Paint::PLAIN);
    }
}
