//! One look-up, by hickory-resolver: bounded in time, requests and what is taken of the answer. CNAME chains are hickory's to follow, which
//! it does eight times at most.

use super::{Found, Question, ResolverSettings, Target};
use anyhow::{Context, Result};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig, ServerOrderingStrategy,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::rr::{RData, RecordType};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// For a look-up with all its requests.
pub(crate) const LOOKUP_TIME_MAX: Duration = Duration::from_secs(30);
/// Targets of SRV records whose addresses are looked up.
pub(crate) const TARGETS_MAX: usize = 32;

/// Records of an answer that are read. (A message has 64 KB at most.)
const RECORDS_MAX: usize = 4096;

/// What came of a look-up.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    /// Addresses.
    Found {
        /// In the order of the answer.
        found: Vec<Found>,
        /// The shortest of all records.
        ttl: Duration,
        /// Targets whose addresses could not be looked up.
        unknown: Vec<Target>,
    },
    /// The name does not exist, or has no such records.
    None { ttl: Duration },
    /// No usable answer, and why.
    Failed(String),
}

/// A resolver with its settings. It caches nothing: what is asked for has its time.
pub(super) struct Client {
    resolver: TokioResolver,
    /// The servers, for people.
    pub(super) servers: Vec<String>,
}

impl Client {
    /// # Errors
    /// `/etc/resolv.conf` names no servers, or cannot be read.
    pub(super) fn new(settings: &ResolverSettings) -> Result<Client> {
        let is_system = settings.servers.is_empty();
        let mut builder = if is_system {
            TokioResolver::builder_tokio().context("/etc/resolv.conf cannot be used")?
        } else {
            let servers = settings.servers.iter().map(server).collect();
            TokioResolver::builder_with_config(
                ResolverConfig::from_parts(None, Vec::new(), servers),
                hickory_resolver::net::runtime::TokioRuntimeProvider::default(),
            )
        };
        let options = builder.options_mut();
        options.timeout = settings.timeout;
        options.attempts = settings.retries;
        options.cache_size = 0;
        // One server after the other, in the order of the configuration.
        options.num_concurrent_reqs = 1;
        options.server_ordering_strategy = ServerOrderingStrategy::UserProvidedOrder;
        options.use_hosts_file = if is_system { ResolveHosts::Always } else { ResolveHosts::Never };
        let resolver = builder.build().context("the resolver cannot be made")?;
        let servers = if is_system { vec!["/etc/resolv.conf".to_string()] } else { texts(&settings.servers) };
        Ok(Client { resolver, servers })
    }

    /// Looks a question up.
    pub(super) async fn ask(&self, question: &Question) -> Outcome {
        let asked = async {
            match question.is_srv {
                true => self.services(question).await,
                false => self.addresses(&question.name, question.is_ipv6).await,
            }
        };
        // What moka, the cache, has not evicted yet is no answer of now.
        self.resolver.clear_cache();
        match tokio::time::timeout(LOOKUP_TIME_MAX, asked).await {
            Ok(outcome) => outcome,
            Err(_) => Outcome::Failed(format!("no answer within {} s", LOOKUP_TIME_MAX.as_secs())),
        }
    }

    async fn addresses(&self, name: &str, is_ipv6: bool) -> Outcome {
        let kind = if is_ipv6 { RecordType::AAAA } else { RecordType::A };
        let lookup = match self.resolver.lookup(name, kind).await {
            Ok(lookup) => lookup,
            Err(error) => return without(&error),
        };
        let address = |data: &RData| match data {
            RData::A(a) if !is_ipv6 => Some(IpAddr::V4(a.0)),
            RData::AAAA(aaaa) if is_ipv6 => Some(IpAddr::V6(aaaa.0)),
            _ => None,
        };
        let found: Vec<Found> = (lookup.answers().iter())
            .take(RECORDS_MAX)
            .filter_map(|record| Some(Found { address: address(&record.data)?, srv: None }))
            .collect();
        match found.is_empty() {
            true => Outcome::None { ttl: left(&lookup) },
            false => Outcome::Found { found, ttl: left(&lookup), unknown: Vec::new() },
        }
    }

    async fn services(&self, question: &Question) -> Outcome {
        let lookup = match self.resolver.lookup(&*question.name, RecordType::SRV).await {
            Ok(lookup) => lookup,
            Err(error) => return without(&error),
        };
        let target = |data: &RData| match data {
            // RFC 2782: a target of "." says that the service is not offered.
            RData::SRV(srv) if srv.port != 0 && !srv.target.is_root() => Some(Target {
                priority: srv.priority,
                weight: srv.weight,
                port: srv.port,
                host: srv.target.to_ascii().to_ascii_lowercase(),
            }),
            _ => None,
        };
        let mut targets: Vec<Target> = lookup.answers().iter().filter_map(|record| target(&record.data)).collect();
        targets.sort();
        targets.dedup();
        targets.truncate(TARGETS_MAX);
        let (mut all, mut unknown, mut failure) = (Vec::new(), Vec::new(), None);
        let mut shortest = left(&lookup);
        for target in targets {
            match self.addresses(&target.host, question.is_ipv6).await {
                Outcome::Found { found, ttl, .. } => {
                    shortest = shortest.min(ttl);
                    all.extend(found.into_iter().map(|found| Found { srv: Some(target.clone()), ..found }));
                }
                Outcome::None { ttl } => shortest = shortest.min(ttl),
                Outcome::Failed(why) => {
                    failure = Some(format!("{}: {why}", target.host));
                    unknown.push(target);
                }
            }
        }
        match failure {
            Some(why) if all.is_empty() => Outcome::Failed(why),
            None if all.is_empty() => Outcome::None { ttl: shortest },
            _ => Outcome::Found { found: all, ttl: shortest, unknown },
        }
    }
}

fn server(address: &SocketAddr) -> NameServerConfig {
    let at_port = |mut connection: ConnectionConfig| {
        connection.port = address.port();
        connection
    };
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(at_port).to_vec();
    NameServerConfig::new(address.ip(), true, connections)
}

fn texts(servers: &[SocketAddr]) -> Vec<String> {
    servers.iter().map(ToString::to_string).collect()
}

/// The shortest time to live of all records, aliases among them.
fn left(lookup: &Lookup) -> Duration {
    Duration::from_secs(lookup.answers().iter().map(|record| record.ttl).min().unwrap_or(0).into())
}

fn without(error: &NetError) -> Outcome {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) => {
            Outcome::None { ttl: Duration::from_secs(u64::from(none.negative_ttl.unwrap_or(0))) }
        }
        error => Outcome::Failed(error.to_string()),
    }
}
