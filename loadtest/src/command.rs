/// The command line of this process as it could be typed again, without the API key.
pub fn line() -> String {
    quoted(std::env::args())
}

fn quoted(words: impl Iterator<Item = String>) -> String {
    let mut out = String::new();
    let mut hide = false;
    for (place, word) in words.enumerate() {
        let word = match (place, word.rsplit_once('/')) {
            (0, Some((_, name))) => name.to_owned(),
            _ => word,
        };
        if !out.is_empty() {
            out.push(' ');
        }
        if std::mem::take(&mut hide) {
            out.push('…');
            continue;
        }
        hide = word == "--api-key";
        if word.starts_with("--api-key=") {
            out.push_str("--api-key=…");
            continue;
        }
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+[]".contains(c);
        match !word.is_empty() && word.chars().all(plain) {
            true => out.push_str(&word),
            false => out.push_str(&format!("'{}'", word.replace('\'', r"'\''"))),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_typed_again_and_tells_no_secret() {
        let words = [
            "/usr/bin/hongbao-load",
            "grabs",
            "--bound",
            "p99<=5",
            "--api-key",
            "secret",
            "--api-key=secret",
            "--heading",
            "it's on",
        ];
        let line = quoted(words.iter().map(|word| (*word).to_owned()));
        let wanted =
            r"hongbao-load grabs --bound 'p99<=5' --api-key … --api-key=… --heading 'it'\''s on'";
        assert_eq!(line, wanted);
    }
}
