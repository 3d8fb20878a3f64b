//! Completions for shells, and the man page: from the same texts as `--help`.

use std::io::Write;
use std::process::ExitCode;

use clap::{Command, ValueEnum};
use clap_complete::Shell;

use super::out;

/// Shown by `--help` and in the man page.
pub const EXIT_CODES: &str = "Exit codes:
  0    done; of audit: balanced; of rain watch: the rain is over
  1    failed or refused, and the reason is on standard error; of audit: unbalanced; of repair: wins that could not be restored;
       of doctor: the program would not start; of nodes, pipeline: one does not answer; of winners: the list broke off;
       of serve: a second signal came before the end
  2    wrong use, or wrong settings: every fault is named
  141  whoever read the output has closed it";

/// Shells with completions.
#[derive(Clone, Copy, ValueEnum)]
pub enum ShellName {
    Bash,
    Zsh,
    Fish,
}

pub fn completions(mut command: Command, shell: ShellName) -> anyhow::Result<ExitCode> {
    let shell = match shell {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    let mut text = vec![];
    clap_complete::generate(shell, &mut command, "hongbao", &mut text);
    out::piece(&text);
    Ok(ExitCode::SUCCESS)
}

/// One page: the program, then every command with its flags.
pub fn man(mut command: Command) -> anyhow::Result<ExitCode> {
    command.build();
    let mut text = vec![];
    let page = clap_mangen::Man::new(command.clone()).section("1");
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    of_commands(&command, "hongbao", &mut text)?;
    page.render_extra_section(&mut text)?;
    page.render_version_section(&mut text)?;
    out::piece(&text);
    Ok(ExitCode::SUCCESS)
}

/// Of each command that does something: its name, what it does, its flags.
fn of_commands(command: &Command, path: &str, text: &mut Vec<u8>) -> std::io::Result<()> {
    for sub in command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help")
    {
        let path = format!("{path} {}", sub.get_name());
        if sub.has_subcommands() {
            of_commands(sub, &path, text)?;
            continue;
        }
        writeln!(text, ".SH \"{}\"", path.to_uppercase())?;
        // Those that every command has stand in front.
        let shown = sub.clone().mut_args(|arg| {
            let common = arg.is_global_set() || arg.get_id() == "help";
            arg.hide(common)
        });
        let page = clap_mangen::Man::new(shown);
        page.render_synopsis_section(text)?;
        page.render_description_section(text)?;
        page.render_options_section(text)?;
    }
    Ok(())
}
