//! Where settings come from, and what is wrong with them.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::RangeInclusive;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

/// One thing wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    pub key: String,
    /// The file, variable or flag it came from.
    pub origin: String,
    pub problem: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{} ({}): {}", self.key, self.origin, self.problem);
        f.write_str(&without_passwords(&text))
    }
}

/// Everything wrong with the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} fault{} in the settings:{}", .0.len(), if .0.len() == 1 { "" } else { "s" }, .0.iter().map(|f| format!("\n  {f}")).collect::<String>())]
pub struct Faults(pub Vec<Fault>);

/// A value as it was given, and where.
#[derive(Clone, Debug)]
struct Given {
    value: toml::Value,
    origin: String,
}

/// Raw settings by dotted key, the later source over the earlier.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    given: BTreeMap<String, Given>,
    faults: Vec<Fault>,
}

impl Sources {
    pub fn file(mut self, path: &Path) -> Sources {
        let origin = path.display().to_string();
        let read =
            std::fs::read_to_string(path).map_err(|error| format!("cannot be read: {error}"));
        match read.and_then(|text| {
            text.parse::<toml::Table>()
                .map_err(|error| error.to_string())
        }) {
            Ok(table) => self.flatten("", toml::Value::Table(table), &origin),
            Err(problem) => self.faults.push(Fault {
                key: "file".into(),
                origin,
                problem,
            }),
        }
        self
    }

    /// Takes every variable that starts with `HONGBAO_` and holds a `__`.
    pub fn environment(mut self, variables: impl Iterator<Item = (String, String)>) -> Sources {
        for (name, text) in variables {
            let Some(path) = name
                .strip_prefix("HONGBAO_")
                .filter(|path| path.contains("__"))
            else {
                continue;
            };
            let key = path.to_ascii_lowercase().replace("__", ".");
            self.give(key, &text, format!("environment {name}"));
        }
        self
    }

    /// `assignments` are texts like `gateway.listen=0.0.0.0:7700`.
    pub fn flags<'a>(mut self, assignments: impl IntoIterator<Item = &'a str>) -> Sources {
        for assignment in assignments {
            match assignment.split_once('=') {
                Some((key, text)) => self.give(
                    key.trim().into(),
                    text.trim(),
                    format!("flag --set {assignment}"),
                ),
                None => self.faults.push(Fault {
                    key: assignment.into(),
                    origin: "flag --set".into(),
                    problem: "must be KEY=VALUE".into(),
                }),
            }
        }
        self
    }

    /// A value from a flag of its own, like `--data-dir`.
    pub fn flag(mut self, flag: &str, key: &str, text: Option<String>) -> Sources {
        if let Some(text) = text {
            self.give(key.into(), &text, format!("flag {flag}"));
        }
        self
    }

    fn give(&mut self, key: String, text: &str, origin: String) {
        // Numbers, booleans and lists are written as in TOML; all else is text.
        let value = match format!("v = {text}").parse::<toml::Table>() {
            Ok(mut table) => table
                .remove("v")
                .unwrap_or_else(|| toml::Value::String(text.into())),
            Err(_) => toml::Value::String(text.into()),
        };
        self.given.insert(key, Given { value, origin });
    }

    fn flatten(&mut self, prefix: &str, value: toml::Value, origin: &str) {
        match value {
            toml::Value::Table(table) => {
                for (name, value) in table {
                    let key = if prefix.is_empty() {
                        name
                    } else {
                        format!("{prefix}.{name}")
                    };
                    self.flatten(&key, value, origin);
                }
            }
            value => {
                self.given.insert(
                    prefix.into(),
                    Given {
                        value,
                        origin: origin.into(),
                    },
                );
            }
        }
    }
}

/// Hands out settings by key and notes what is wrong with them.
pub(super) struct Reader {
    given: BTreeMap<String, Given>,
    faults: Vec<Fault>,
    known: Vec<&'static str>,
    /// Key, value, origin: for `check-config`.
    used: Vec<(&'static str, String, String)>,
}

impl Reader {
    pub(super) fn new(sources: Sources) -> Reader {
        Reader {
            given: sources.given,
            faults: sources.faults,
            known: vec![],
            used: vec![],
        }
    }

    /// Everything wrong with the settings, or a line `key = value (origin)` for each.
    pub(super) fn finish(mut self) -> Result<Vec<String>, Faults> {
        self.unknown();
        if !self.faults.is_empty() {
            return Err(Faults(self.faults));
        }
        let shown = self.used.iter();
        Ok(shown
            .map(|(key, value, origin)| without_passwords(&format!("{key} = {value} ({origin})")))
            .collect())
    }

    fn take<T: fmt::Display>(
        &mut self,
        key: &'static str,
        default: T,
        read: impl FnOnce(&toml::Value) -> Result<T, String>,
    ) -> T {
        self.known.push(key);
        let (value, origin) = match self.given.remove(key) {
            None => (default, "default".to_owned()),
            Some(given) => match read(&given.value) {
                Ok(value) => (value, given.origin),
                Err(problem) => {
                    let problem = format!("{} {problem}", given.value);
                    self.faults.push(Fault {
                        key: key.into(),
                        origin: given.origin.clone(),
                        problem,
                    });
                    (default, given.origin)
                }
            },
        };
        self.used.push((key, value.to_string(), origin));
        value
    }

    pub(super) fn number(
        &mut self,
        key: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> u64 {
        self.take(key, default, |value| {
            value
                .as_integer()
                .and_then(|n| u64::try_from(n).ok())
                .filter(|n| range.contains(n))
                .ok_or_else(|| format!("is not a number from {} to {}", range.start(), range.end()))
        })
    }

    pub(super) fn count(
        &mut self,
        key: &'static str,
        default: usize,
        range: RangeInclusive<usize>,
    ) -> usize {
        self.number(
            key,
            default as u64,
            *range.start() as u64..=*range.end() as u64,
        ) as usize
    }

    pub(super) fn ms(
        &mut self,
        key: &'static str,
        default: u64,
        range: RangeInclusive<u64>,
    ) -> Duration {
        Duration::from_millis(self.number(key, default, range))
    }

    pub(super) fn flag(&mut self, key: &'static str, default: bool) -> bool {
        self.take(key, default, |value| {
            value.as_bool().ok_or_else(|| "is not true or false".into())
        })
    }

    pub(super) fn parsed<T>(&mut self, key: &'static str, default: T) -> T
    where
        T: FromStr + fmt::Display,
        T::Err: fmt::Display,
    {
        self.take(key, default, |value| {
            let text = value.as_str().ok_or("is not a text")?;
            text.parse::<T>()
                .map_err(|error| format!("is not valid: {error}"))
        })
    }

    pub(super) fn text(&mut self, key: &'static str, default: &str) -> String {
        self.take(key, default.to_owned(), |value| {
            value
                .as_str()
                .map(str::to_owned)
                .ok_or_else(|| "is not a text".into())
        })
    }

    pub(super) fn one_of<T: Copy>(
        &mut self,
        key: &'static str,
        default: &str,
        choices: &[(&str, T)],
    ) -> T {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let chosen = self.take(key, default.to_owned(), |value| {
            value
                .as_str()
                .filter(|text| names.contains(text))
                .map(str::to_owned)
                .ok_or_else(|| format!("is not one of {}", names.join(", ")))
        });
        let found = choices.iter().find(|(name, _)| *name == chosen);
        found
            .map(|(_, choice)| *choice)
            .expect("the default is one of the choices")
    }

    pub(super) fn texts(&mut self, key: &'static str, default: &[&str]) -> Vec<String> {
        let default = List(default.iter().map(|text| (*text).to_owned()).collect());
        self.take(key, default, |value| {
            let fault = || "is not a list of texts like [\"one\", \"two\"]".to_owned();
            let texts = value.as_array().ok_or_else(fault)?.iter();
            let texts: Option<Vec<String>> =
                texts.map(|text| text.as_str().map(str::to_owned)).collect();
            texts.map(List).ok_or_else(fault)
        })
        .0
    }

    pub(super) fn fault(&mut self, key: &str, problem: String) {
        let origin = self
            .used
            .iter()
            .find(|(used, ..)| *used == key)
            .map_or("default", |(_, _, origin)| origin);
        self.faults.push(Fault {
            key: key.into(),
            origin: origin.to_owned(),
            problem,
        });
    }

    /// What nobody asked for is a spelling mistake, and says which key was probably meant.
    fn unknown(&mut self) {
        for (key, given) in std::mem::take(&mut self.given) {
            let nearest = self.known.iter().min_by_key(|known| distance(known, &key));
            let hint = nearest
                .filter(|known| distance(known, &key) <= 4)
                .map(|known| format!("; did you mean {known}?"));
            let problem = format!("is not a setting{}", hint.unwrap_or_default());
            self.faults.push(Fault {
                key,
                origin: given.origin,
                problem,
            });
        }
    }
}

struct List(Vec<String>);

impl fmt::Display for List {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// The text, with user and password left out of every address in it: settings and their faults are shown on screens and stand in logs.
fn without_passwords(text: &str) -> String {
    let mut shown = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        let end = after.find([' ', '"', '\'', ',', ']', ')']);
        let (address, later) = after.split_at(end.unwrap_or(after.len()));
        shown.push_str(before);
        let address = match address.rsplit_once('@') {
            Some((_, host)) => format!("…@{host}"),
            None => address.to_owned(),
        };
        // PostgreSQL takes it as a parameter, too.
        match address.split_once("password=") {
            Some((before, _)) => shown.push_str(&format!("{before}password=…")),
            None => shown.push_str(&address),
        }
        rest = later;
    }
    shown + rest
}

/// Edit distance (Levenshtein), for hints.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != *to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (text, shown) in [
            ("workers = 2 (default)", "workers = 2 (default)"),
            (
                r#"["redis://anna:s3cret@a:1", "rediss://:s3cret@b:2/0"] (flag --set x)"#,
                r#"["redis://…@a:1", "rediss://…@b:2/0"] (flag --set x)"#,
            ),
            (
                "postgres://u:p@ss@db/hb (file)",
                "postgres://…@db/hb (file)",
            ),
            (
                "postgres://db/hb?user=u&password=s3cret&x=1 (file)",
                "postgres://db/hb?user=u&password=… (file)",
            ),
            (
                "http://127.0.0.1:1/ and redis://b",
                "http://127.0.0.1:1/ and redis://b",
            ),
        ] {
            assert_eq!(without_passwords(text), shown);
        }
    }
}
