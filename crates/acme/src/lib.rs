//! Automatic certificates: an ACME client (RFC 8555) with its state directory and its schedule.
//!
//! One thread with a runtime of its own orders a certificate for each wanted name, one order at a time, and writes chain and key
//! to a file. It serves nothing itself: who starts it puts the answers to challenges into force ([`Host`]) and reads the files.
//! Nothing of the process waits for this thread, and nothing that the CA sends goes further than into a file that has passed
//! the host's own check of certificates.
//!
//! | module | what it is |
//! |---|---|
//! | `client` | the thread: which name is due, and what it becomes |
//! | `round` | what is known of names: certificates, failures, when each is due |
//! | `order` | one order: challenge, request, certificate |
//! | `account` | the account at the CA, made once |
//! | `transport` | bounded requests to the CA |
//! | `state` | files: rights, names, replacement as a whole |
//! | `schedule` | when to renew, when to try again |
//!
//! Invariants: a file is replaced as a whole or not at all; keys have mode 0600, their directories 0700; only the process that
//! holds the lock of the directory orders; a restart neither makes another account nor forgets the time to wait after a failure.

#![forbid(unsafe_code)]

mod account;
mod client;
mod order;
mod round;
mod schedule;
mod state;
mod transport;

pub use client::{Acme, AcmeReading, NameReading, NameState};
pub use schedule::{BACK_OFF_MAX, BACK_OFF_MIN};
pub use state::certificate_file;
pub use transport::{ANSWER_BYTES_MAX, REQUEST_TIMEOUT};

use std::path::{Path, PathBuf};
use tokio::sync::oneshot;

/// The directory of Let's Encrypt.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// How long one order may take, from the account to the certificate.
pub const ORDER_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(180);

/// A CA, and the account there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    /// The URL of its directory (RFC 8555, 7.1.1), `https`.
    pub directory: String,
    /// The file with the CAs that sign the certificate of that server.
    pub roots: PathBuf,
    /// Where the CA may write to, as `mailto:` URLs.
    pub contact: Vec<String>,
    /// An account elsewhere at the CA that the ACME account is bound to (RFC 8555, 7.3.4): its key's identifier, and the file
    /// with that key in base64url.
    pub external_account: Option<(String, PathBuf)>,
}

/// How the CA is shown that a name leads here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChallengeKind {
    /// A text at port 80 (RFC 8555, 8.3).
    Http01,
    /// A certificate at port 443 (RFC 8737).
    TlsAlpn01,
}

impl ChallengeKind {
    /// Its name at the CA.
    pub fn name(self) -> &'static str {
        match self {
            ChallengeKind::Http01 => "http-01",
            ChallengeKind::TlsAlpn01 => "tls-alpn-01",
        }
    }
}

/// A name that needs a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedName {
    /// The DNS name, lower case, without wildcard.
    pub name: String,
    /// How the CA is shown that it leads here.
    pub challenge: ChallengeKind,
}

/// The certificates that are to be obtained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// From whom.
    pub authority: Authority,
    /// The directory of this instance's state.
    pub state: PathBuf,
    /// For which names, each once.
    pub names: Vec<WantedName>,
}

/// The answer to an open challenge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChallengeAnswer {
    /// For http-01: the text at a path, whatever host is asked for.
    Http {
        /// The path, `/.well-known/acme-challenge/TOKEN`.
        path: String,
        /// The text.
        body: String,
    },
    /// For tls-alpn-01: the certificate for handshakes with ALPN `acme-tls/1` that ask for a name.
    TlsAlpn {
        /// The name.
        name: String,
        /// The certificate, DER.
        certificate: Vec<u8>,
        /// Its key, PKCS #8.
        key: Vec<u8>,
    },
}

/// The program that answers the CA and serves the certificates. Called from the client's thread; must not block.
pub trait Host: Send + Sync + 'static {
    /// Puts these answers into force, in the place of those before. `done` is told when they are; dropping it says that they
    /// cannot be.
    fn answer(&self, answers: Vec<ChallengeAnswer>, done: oneshot::Sender<()>);
    /// Whether this file with a chain and its key can be served.
    ///
    /// # Errors
    /// Why not.
    fn check(&self, file: &Path) -> Result<(), String>;
    /// Another certificate lies in its file.
    fn obtained(&self);
    /// Tells people.
    fn log(&self, message: &str);
}
