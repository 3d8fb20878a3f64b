use std::process::ExitCode;

use clap::Parser;
use hongbao_load::Verdict;
use hongbao_load::args::Args;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Exit codes: 0 all is well, 1 the audit or a check failed, 2 wrong arguments, 3 the run could not be carried out, 4 a bound does not hold.
fn main() -> ExitCode {
    let args = Args::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("the runtime starts with its defaults");
    match runtime.block_on(hongbao_load::run(args)) {
        Ok(Verdict::Good) => ExitCode::SUCCESS,
        Ok(Verdict::Broken) => ExitCode::from(1),
        Ok(Verdict::BeyondThreshold) => ExitCode::from(4),
        Err(error) => {
            eprintln!("hongbao-load: {error}");
            ExitCode::from(if error.is_usage() { 2 } else { 3 })
        }
    }
}
