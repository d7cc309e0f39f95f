//! The status of automatic certificates.

use serde::{Deserialize, Serialize};

/// What the ACME client has done and will do.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AcmeStatus {
    /// The URL of the CA's directory.
    pub directory: String,
    /// The URL of the account there; empty as long as there is none.
    pub account: String,
    /// Why no name is ordered at all; empty if there is no reason.
    pub error: String,
    /// Certificates obtained since the process began.
    pub obtained_total: u64,
    /// Orders failed since the process began.
    pub failed_total: u64,
    /// The names.
    pub names: Vec<AcmeNameStatus>,
}

/// A name that has a certificate automatically.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AcmeNameStatus {
    /// The name.
    pub name: String,
    /// How the CA is shown that it leads here: `http-01` or `tls-alpn-01`.
    pub challenge: String,
    /// `waiting` (for the first certificate), `ordering`, `held` or `failed` (the last order; there may be a certificate).
    pub state: String,
    /// When its certificate expires, in seconds since 1970; 0: there is none.
    pub valid_until_unix_s: i64,
    /// When it is ordered next; a time that has passed: as soon as the orders before it are done.
    pub next_order_unix_s: i64,
    /// Orders failed since the last one that did not.
    pub failures: u32,
    /// Why the last one failed; empty if it did not.
    pub error: String,
}
