//! Backends by name: look-ups in the DNS (A, AAAA and SRV), repeated as their TTLs say, and the last good answers.
//!
//! One thread with a runtime of its own asks, keeps what it knows, and says when it has changed. It knows nothing of services: what a
//! configuration makes of an answer is `config::names`, how it comes into force is `run::names`. Nothing of the process waits for this
//! thread, workers least of all.
//!
//! | module | what it is |
//! |---|---|
//! | `lookup` | one look-up, by hickory-resolver |
//! | `entry` | what is known of a name, and when it is asked for again |
//! | `client` | the thread |
//! | `store` | the file with the last good answers |
//!
//! Invariants: an answer has at most `addresses_max` addresses, whatever servers send; an answer that a name does not exist counts
//! after `hold` only; a failed look-up changes nothing.

mod client;
mod entry;
mod lookup;
mod store;

pub(crate) use client::{NameReading, Names, NamesTold, first};
pub(crate) use store::load;

/// Bounds.
pub(crate) mod limits {
    pub(crate) use super::client::{FIRST_PATIENCE, GATHER, IN_FLIGHT_MAX};
    pub(crate) use super::lookup::{LOOKUP_TIME_MAX, TARGETS_MAX};
    pub(crate) use super::store::FILE_BYTES_MAX;
}

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// What the DNS is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Question {
    /// The name, in small letters.
    pub name: String,
    /// Whether its SRV records are asked for (RFC 2782), and the addresses of their targets.
    pub is_srv: bool,
    /// Whether the addresses are IPv6.
    pub is_ipv6: bool,
}

impl Question {
    /// The type of the records that are asked for.
    pub fn kind(&self) -> &'static str {
        match (self.is_srv, self.is_ipv6) {
            (true, _) => "SRV",
            (false, true) => "AAAA",
            (false, false) => "A",
        }
    }
}

/// An address of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The address.
    pub address: IpAddr,
    /// Of an SRV record: where it came from, and what it says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub srv: Option<Target>,
}

/// An SRV record.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Target {
    /// Targets with the lowest are taken.
    pub priority: u16,
    /// Its share among those of the same priority.
    pub weight: u16,
    /// The port.
    pub port: u16,
    /// The host.
    pub host: String,
}

/// The last good answer to each question that has one. An empty one says that there are no addresses.
pub type Answers = BTreeMap<Question, Vec<Found>>;

/// How names are looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolverSettings {
    /// The servers, in the order in which they are asked; none: those of `/etc/resolv.conf`.
    pub servers: Vec<SocketAddr>,
    /// No name is asked for again earlier than this after an answer, 1 s to a day.
    pub ttl_min: Duration,
    /// A name is asked for again after this at the latest, `ttl_min` to a day.
    pub ttl_max: Duration,
    /// For one request to a server, 100 ms to 10 s.
    pub timeout: Duration,
    /// Requests more, once all servers have failed to answer, 0 to 5.
    pub retries: usize,
    /// Addresses of a name at most, 1 to 1024.
    pub addresses_max: usize,
    /// How long an answer that a name does not exist must stand until it counts, 0 to a day.
    pub hold: Duration,
    /// How old an answer may be that a start begins with, up to 30 days.
    pub keep: Duration,
    /// The directory of the files with answers.
    pub state: PathBuf,
}
