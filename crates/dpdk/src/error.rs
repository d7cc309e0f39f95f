//! Errors of DPDK.

use crate::ffi;
use std::ffi::CStr;
use std::fmt;

/// Why something of DPDK's was refused.
#[derive(Debug)]
pub enum Error {
    /// EAL was started before in this process, or starting it failed before.
    AlreadyStarted,
    /// EAL did not start: errno and what it logged.
    Start {
        /// DPDK's errno.
        code: i32,
        /// EAL's messages, one a line; may be empty.
        log: String,
    },
    /// A call of DPDK's failed.
    Call {
        /// The attempted operation.
        what: &'static str,
        /// DPDK's errno.
        code: i32,
    },
    /// A device could not be opened as a port.
    Device {
        /// Its name, as it was given.
        device: String,
        /// At which step it failed.
        what: String,
        /// DPDK's errno.
        code: i32,
        /// Messages of its driver, one message a line; may be empty.
        log: String,
    },
}

impl Error {
    /// `Ok` of 0, else the error of a call.
    ///
    /// # Errors
    /// [`Error::Call`] unless `code` is 0.
    pub fn of(code: i32, what: &'static str) -> Result<(), Error> {
        if code == 0 { Ok(()) } else { Err(Error::Call { what, code }) }
    }
}

/// DPDK's words for an errno.
pub(crate) fn describe(code: i32) -> String {
    // SAFETY: rte_strerror returns a string that stays valid until this thread calls it again; it is copied at once.
    unsafe { CStr::from_ptr(ffi::hairpin_strerror(code)) }.to_string_lossy().into_owned()
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::AlreadyStarted => f.write_str("DPDK's EAL starts once per process, and it has been started before"),
            Error::Start { code, log } => {
                write!(f, "DPDK's EAL did not start: {}", describe(*code))?;
                if log.trim().is_empty() { Ok(()) } else { write!(f, "\n{}", log.trim_end()) }
            }
            Error::Call { what, code } => write!(f, "{what}: {}", describe(*code)),
            Error::Device { device, what, code, log } => {
                write!(f, "cannot open {device}: {what}: {}", describe(*code))?;
                if log.trim().is_empty() { Ok(()) } else { write!(f, "\n{}", log.trim_end()) }
            }
        }
    }
}

impl std::error::Error for Error {}
