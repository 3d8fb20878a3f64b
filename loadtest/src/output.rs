//! What was asked for is written: whether it can be is known before a run of minutes, not after it.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};

use hongbao::paint::Paint;

use crate::LoadError;
use crate::record::{Record, Verdict};
use crate::scenario::args::Output;

/// # Errors
/// A file that cannot be written, or is named twice.
pub fn prepare(output: &Output) -> Result<(), LoadError> {
    let files = [
        ("--json", &output.json),
        ("--csv", &output.csv),
        ("--html", &output.html),
        ("--hdr", &output.hdr),
    ];
    let mut named: Vec<(&str, &PathBuf)> = vec![];
    for (option, file) in files {
        let Some(file) = file else { continue };
        if let Some((other, _)) = named.iter().find(|(_, path)| *path == file) {
            let file = file.display();
            return Err(LoadError::Usage(format!(
                "{other} and {option} are both to be written to {file}"
            )));
        }
        named.push((option, file));
        writable(option, file)?;
    }
    Ok(())
}

fn writable(option: &str, path: &Path) -> Result<(), LoadError> {
    let was_there = path.exists();
    let opened = std::fs::File::options()
        .append(true)
        .create(true)
        .open(path);
    match opened {
        Ok(_) if was_there => Ok(()),
        Ok(_) => {
            let _ = std::fs::remove_file(path); // an empty file would look like a result
            Ok(())
        }
        Err(error) => {
            let path = path.display();
            Err(LoadError::Usage(format!(
                "{option} {path} cannot be written: {error}"
            )))
        }
    }
}

/// Judges, and writes the files: `json` is what goes into the one of that name.
pub fn write(record: &Record, json: &str, output: &Output) -> Result<(), LoadError> {
    let write = |path: &Option<PathBuf>, bytes: &dyn Fn() -> Vec<u8>| match path {
        Some(path) => crate::write_file(path, &bytes()),
        None => Ok(()),
    };
    write(&output.json, &|| json.as_bytes().to_vec())?;
    write(&output.csv, &|| record.csv().into_bytes())?;
    write(&output.html, &|| crate::html::page(record).into_bytes())?;
    write(&output.hdr, &|| crate::hdr::write(record))
}

/// Judges, writes what was asked for, prints the summary.
pub fn finish(mut record: Record, output: &Output) -> Result<Verdict, LoadError> {
    record.judge(&output.bounds);
    write(&record, &record.json(), output)?;
    if !output.quiet {
        eprintln!(); // between progress and result
    }
    print(&record.summary(paint_for_stdout()));
    if crate::interrupt::is_set() {
        return Err(LoadError::Interrupted);
    }
    Ok(record.verdict())
}

pub fn paint_for_stdout() -> Paint {
    Paint::for_terminal(std::io::stdout().is_terminal())
}

/// A closed pipe is no reason to report anything else than the result.
pub fn print(summary: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = stdout.write_all(summary.as_bytes());
    let _ = stdout.flush();
}
