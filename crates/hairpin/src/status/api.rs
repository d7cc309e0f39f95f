//! The status of the API.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The API that changes the configuration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ApiStatus {
    /// The Unix socket that it is on.
    pub socket: String,
    /// Whether it is served there; if not, the log says why.
    pub serves: bool,
    /// The address that it is served at by TLS; empty: none.
    pub listen: String,
    /// Whether it is served there; if not although there is an address, the log says why.
    pub serves_tls: bool,
    /// The version of the configuration in force.
    pub version: String,
    /// Whether the configuration in force has changes by the API that the file lacks.
    pub differs_from_file: bool,
    /// Writes that came into force.
    pub writes_total: u64,
    /// Requests, by the status code of the answer.
    pub answers_total: BTreeMap<String, u64>,
    /// Connections that ended out of order, by reason, as those of the metrics server.
    pub connections_closed_total: BTreeMap<String, u64>,
}
