//! Hugepages for as long as the benchmark runs: both sides' buffers stand on them, as they do in production.

use anyhow::{Context, Result};
use std::fs::{read_to_string, write};

const RESERVED: &str = "/proc/sys/vm/nr_hugepages";
/// Bytes of a page, which is what x86-64 has by default.
const PAGE: usize = 2 << 20;

/// Pages reserved; given back when dropped.
#[derive(Debug)]
pub(super) struct Reserved {
    before: usize,
}

impl Reserved {
    /// Reserves so many bytes more, if the kernel has them; `None`, and nothing changed, if not.
    pub(super) fn take(bytes: usize) -> Result<Option<Reserved>> {
        let read = || -> Result<usize> { read_to_string(RESERVED)?.trim().parse().context(RESERVED) };
        let reserved = Reserved { before: read()? };
        let wanted = reserved.before + bytes.div_ceil(PAGE);
        // May be refused, as in a container: then there are fewer, which is what is checked.
        let _ = write(RESERVED, wanted.to_string());
        Ok((read()? >= wanted).then_some(reserved))
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = write(RESERVED, self.before.to_string());
    }
}
