//! The few rules that a machine can check, each with its reason.

use std::fs;
use std::path::{Path, PathBuf};

/// All files below `dir` that end in `ending`, with their text.
fn files(dir: &str, ending: &str) -> Vec<(PathBuf, String)> {
    let mut found = vec![];
    let mut dirs = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == ending)
            {
                let text = fs::read_to_string(&path).unwrap();
                found.push((path, text));
            }
        }
    }
    assert!(!found.is_empty(), "no .{ending} files in {dir}");
    found
}

fn rust() -> Vec<(PathBuf, String)> {
    ["src", "loadtest", "tests", "proto"]
        .into_iter()
        .flat_map(|dir| files(dir, "rs"))
        .collect()
}

/// A leftover is a promise that nobody keeps.
#[test]
fn nothing_is_left_over() {
    // Put together here, so that this file does not find itself.
    let words = ["todo", "dbg", "unimplemented"].map(|word| format!("{word}!("));
    for (path, text) in rust() {
        for word in words
            .iter()
            .chain(&["FIX".to_owned() + "ME", "XX".to_owned() + "X"])
        {
            assert!(!text.contains(word), "{} holds {word}", path.display());
        }
    }
}

/// A sleep is a guess about how long something takes: wrong on a busy machine, slow on an idle one. Where one is right, the line says why.
#[test]
fn a_sleep_in_a_test_says_why() {
    for (path, text) in files("tests", "rs")
        .into_iter()
        .chain(files("loadtest/tests", "rs"))
    {
        for (number, line) in text.lines().enumerate() {
            let sleeps = line.contains(&format!("{}(", "sleep"));
            assert!(
                !sleeps || line.contains("//"),
                "{}:{}: {line}",
                path.display(),
                number + 1
            );
        }
    }
}

/// The shape of the whole: gateway, settle and steward meet only in Redis and SQL; the nouns know nobody; each outside system has one door.
#[test]
fn modules_import_only_whom_they_may() {
    let forbidden: &[(&str, &[&str])] = &[
        (
            "src/rain",
            &[
                "crate::store",
                "crate::ledger",
                "crate::gateway",
                "crate::settle",
                "crate::steward",
                "crate::config",
                "tokio",
            ],
        ),
        (
            "src/gateway",
            &["crate::settle", "crate::steward", "crate::ledger", "sqlx"],
        ),
        ("src/settle", &["crate::gateway", "crate::steward", "sqlx"]),
        ("src/steward", &["crate::gateway", "crate::settle", "sqlx"]),
        (
            "src/store",
            &[
                "crate::gateway",
                "crate::settle",
                "crate::steward",
                "crate::ledger",
                "sqlx",
            ],
        ),
        (
            "src/ledger",
            &[
                "crate::gateway",
                "crate::settle",
                "crate::steward",
                "crate::store",
                "redis::",
            ],
        ),
        ("src/admin", &["sqlx"]),
    ];
    for (dir, words) in forbidden {
        for (path, text) in files(dir, "rs") {
            for word in *words {
                let imported = text
                    .lines()
                    .filter(|line| !line.trim_start().starts_with("//"))
                    .any(|line| line.contains(word));
                assert!(!imported, "{} must not use {word}", path.display());
            }
        }
    }
}

/// Keys are made in one file, so that they can be changed, and found, in one file.
#[test]
fn keys_are_made_in_one_file() {
    for (path, text) in files("src", "rs") {
        if path.ends_with("store/keys.rs") {
            continue;
        }
        let made = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"))
            .find(|line| line.contains("\"hb:"));
        assert!(made.is_none(), "{}: {made:?}", path.display());
    }
}

/// The header of a script is what its callers read: it must name every key and argument that the script uses, and end in the line below
/// which Redis cannot take anything back.
#[test]
fn lua_headers_agree_with_their_use() {
    for (path, text) in files("src/store", "lua") {
        let name = path.display();
        assert!(
            text.starts_with("#!lua"),
            "{name}: without #!lua, running out of memory stops it in the middle"
        );
        let verb = path.file_stem().unwrap().to_str().unwrap();
        assert!(
            text.lines()
                .nth(1)
                .unwrap()
                .starts_with(&format!("-- {verb}: ")),
            "{name}: the header names the verb"
        );
        let (header, body): (Vec<&str>, Vec<&str>) = text
            .lines()
            .skip(1)
            .partition(|line| line.starts_with("--"));
        let header = header.join("\n");
        let body = body.join("\n");
        for number in 1..=9 {
            let key = format!("KEYS[{number}]");
            assert_eq!(header.contains(&key), body.contains(&key), "{name}: {key}");
        }
        assert_eq!(
            header.contains("ARGV"),
            body.contains("ARGV"),
            "{name}: ARGV"
        );
        assert!(header.contains("-- Returns "), "{name}: what it returns");
        assert!(header.contains("-- Cost "), "{name}: what it costs");
        let marked: Vec<&str> = text.split("-- From here on it must succeed.").collect();
        assert_eq!(marked.len(), 2, "{name}: one marked line");
        for write in [
            "'SET'",
            "'PEXPIRE'",
            "'HSET'",
            "'LPUSH'",
            "'RPOP'",
            "'ZADD'",
            "'ZREM'",
            "'HDEL'",
            "'DEL'",
            "'PUBLISH'",
        ] {
            assert!(
                !marked[0].contains(write),
                "{name}: {write} above the marked line"
            );
        }
        assert!(
            !body.contains("pcall"),
            "{name}: an error that is passed over leaves half a script"
        );
    }
}

/// A right that is missing shows in the middle of a rain, one too many in the middle of an attack. Commands are named in capitals and
/// quotes, in the scripts and beside them.
#[test]
fn the_acl_file_grants_exactly_what_is_used() {
    let rules = include_str!("../src/store/hongbao.acl");
    let granted: Vec<&str> = rules
        .split_ascii_whitespace()
        .filter_map(|rule| rule.strip_prefix('+'))
        .map(|rule| rule.split('|').next().unwrap())
        .collect();
    let named = |text: &str, before: &str, after: char| -> Vec<String> {
        let found = text.split(before).skip(1);
        found
            .filter_map(|rest| rest.split_once(after))
            .map(|(name, _)| name.to_ascii_lowercase())
            .collect()
    };
    let mut used: Vec<String> = vec!["evalsha".into(), "subscribe".into()];
    for (_, text) in files("src/store", "lua") {
        used.extend(named(&text, "redis.call('", '\''));
    }
    for (path, text) in files("src", "rs") {
        // What sentinels are asked is theirs to grant, and the children of the program have no door.
        if !path.ends_with("store/sentinel.rs") && !path.ends_with("store/managed.rs") {
            used.extend(named(&text, "redis::cmd(\"", '"'));
        }
    }
    for name in &used {
        // Not known to 7.0, where a file that names it is refused: see the README.
        assert!(
            granted.contains(&name.as_str()) || name == "waitaof",
            "{name} is used and not granted"
        );
    }
    for name in granted {
        assert!(
            used.iter().any(|used| used == name),
            "{name} is granted and not used"
        );
    }
}

/// Every metric is defined once, in one file, and described there.
#[test]
fn metrics_are_defined_in_one_file() {
    for (path, text) in files("src", "rs") {
        let defines = ["counter!(", "gauge!(", "histogram!("]
            .iter()
            .any(|word| text.contains(word));
        assert!(
            !defines || path.ends_with("metrics.rs"),
            "{}",
            path.display()
        );
    }
    let surface: Vec<&str> = hongbao::metrics::SURFACE
        .iter()
        .map(|(name, ..)| *name)
        .collect();
    let text = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/metrics.rs")).unwrap();
    for (at, _) in text.match_indices("\"hongbao_") {
        let name = text[at + 1..].split('"').next().unwrap();
        assert!(surface.contains(&name), "{name} is not described");
    }
    let readme = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).unwrap();
    for name in surface {
        assert!(readme.contains(name), "{name} is not in the README");
    }
}

/// Who reads in a library wants to find the reason of each dependency.
#[test]
fn every_dependency_has_a_reason_beside_it_or_above_its_group() {
    let manifest = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).unwrap();
    let dependencies = manifest
        .split("[dependencies]")
        .nth(1)
        .unwrap()
        .split("\n[")
        .next()
        .unwrap();
    let mut group_has_reason = false;
    for line in dependencies.lines().filter(|line| !line.is_empty()) {
        if line.starts_with('#') {
            group_has_reason = true;
        } else {
            assert!(group_has_reason || line.contains('#'), "{line}");
        }
    }
}
