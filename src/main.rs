//! Command line → run.

/// The commands and their flags.
mod cli;

use std::process::ExitCode;

/// Many small, short-lived allocations on several threads: measured quicker than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
