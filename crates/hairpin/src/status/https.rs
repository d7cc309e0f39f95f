//! The status of services whose TLS ends here.

use super::Count;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// HTTPS services, all together; what they have in common with HTTP services is in `http`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HttpsStatus {
    /// TLS handshakes completed.
    pub handshakes: Count,
    /// Of these, those that resumed a session.
    pub resumed: Count,
    /// What else happened to connections, by name. What never happened is left out.
    pub events: BTreeMap<String, Count>,
    /// The certificates that are served, service by service, the one for clients without a fitting name first.
    pub certificates: Vec<CertificateStatus>,
}

/// A certificate that is served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CertificateStatus {
    /// The service's name.
    pub service: String,
    /// The file it is from.
    pub file: String,
    /// The names it is for, the first 16.
    pub names: Vec<String>,
    /// How many names it is for.
    pub names_total: u64,
    /// Its key: `ECDSA`, `RSA` or `ED25519`.
    pub key: String,
    /// When it becomes valid, in seconds since 1970.
    pub valid_from_unix_s: i64,
    /// When it expires.
    pub valid_until_unix_s: i64,
    /// Whether it signs itself, and stands in for one that is not obtained yet.
    #[serde(default)]
    pub placeholder: bool,
}
