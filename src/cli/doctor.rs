//! `hongbao doctor`, as a table.

use std::process::ExitCode;

use hongbao::config::Settings;
use hongbao::doctor::{self, Finding};
use hongbao::store::admission::Verdict;

/// Exit code 0 if the program would start, 1 if not.
pub async fn doctor(settings: Settings, json: bool) -> anyhow::Result<ExitCode> {
    let findings = doctor::examine(&settings).await;
    if json {
        say!("{}", serde_json::to_string_pretty(&findings)?);
    } else {
        findings
            .iter()
            .for_each(|finding| print(finding, &findings));
    }
    Ok(ExitCode::from(u8::from(doctor::is_bad(&findings))))
}

fn print(finding: &Finding, all: &[Finding]) {
    let width = |text: fn(&Finding) -> usize| all.iter().map(text).max().unwrap_or_default();
    let (at, what) = (width(|f| f.at.len()), width(|f| f.check.what.len()));
    let word = match finding.check.verdict {
        Verdict::Ok => "ok",
        Verdict::Warning => "warning",
        Verdict::NoStart | Verdict::Refused => "BAD",
    };
    let check = &finding.check;
    say!(
        "{word:<7}  {:<at$}  {:<what$}  {}",
        finding.at,
        check.what,
        check.found
    );
    if !check.advice.is_empty() {
        say!("{:<7}  {:<at$}  {:<what$}  → {}", "", "", "", check.advice);
    }
}
