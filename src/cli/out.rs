//! Standard output. `head` and its like close it when they have seen enough: that is no fault, and no panic.

use std::fmt::Arguments;
use std::io::{ErrorKind, Write};

/// What a shell says of a program that was ended by SIGPIPE. Ours is not: the server must outlive its readers, so the signal is ignored.
const NOBODY_READS: i32 = 141;

/// Prints a line.
macro_rules! say {
    ($($text:tt)*) => {
        $crate::cli::out::line(format_args!($($text)*))
    };
}

pub fn line(text: Arguments) {
    done(writeln!(std::io::stdout(), "{text}"));
}

/// Prints a piece, now.
pub fn piece(bytes: &[u8]) {
    let mut out = std::io::stdout().lock();
    done(out.write_all(bytes).and_then(|()| out.flush()));
}

/// What cannot be printed is of no use to anybody: the command ends here.
fn done(printed: std::io::Result<()>) {
    match printed {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(NOBODY_READS),
        Err(error) => {
            eprintln!("hongbao: cannot print: {error}");
            std::process::exit(1);
        }
    }
}
