//! Standard output of commands. An error that tells of a reader that has gone can be told from any other broken pipe.

use std::fmt;
use std::io::{self, ErrorKind, StdoutLock, Write};

/// Standard output; it stays locked while this is there.
pub(crate) struct StandardOutput(StdoutLock<'static>);

/// Standard output.
pub(crate) fn stdout() -> StandardOutput {
    StandardOutput(io::stdout().lock())
}

impl Write for StandardOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(marked)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(marked)
    }
}

/// Standard output has no reader any more.
#[derive(Debug)]
struct ReaderGone;

impl fmt::Display for ReaderGone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("standard output has no reader any more")
    }
}

impl std::error::Error for ReaderGone {}

fn marked(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::BrokenPipe => io::Error::new(ErrorKind::BrokenPipe, ReaderGone),
        _ => error,
    }
}

/// Whether the reader of our output has gone, as in `hairpin status | head`.
pub(super) fn is_reader_gone(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is_some_and(|inner| inner.is::<ReaderGone>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_broken_pipe_elsewhere_is_a_failure() {
        let broken = || io::Error::from(ErrorKind::BrokenPipe);
        assert!(is_reader_gone(&marked(broken()).into()));
        assert!(!is_reader_gone(&broken().into()));
        let socket: anyhow::Result<()> = Err(broken()).context("the instance does not read its control socket");
        assert!(!is_reader_gone(&socket.unwrap_err()));
    }
}
