//! Limits of what one client may ask of a service: how many requests it may send, or connections it may begin, within a time, and how many
//! connections it may have at a time.
//!
//! A limit within a time is kept by the generic cell rate algorithm (GCRA; ITU-T I.371): of each client one time is remembered, the one from
//! which on it owes nothing. Each request or connection puts that time off by one interval; one that would put it further ahead of the
//! clock than the burst takes is refused, and puts off nothing. The times of all clients lie in one [`LimitTable`] of fixed size,
//! which all workers and runtimes share and which outlives the process.
//!
//! Clients are told apart by a prefix of their address, so that a client that has a whole network counts as one.

mod held;
mod table;
#[cfg(test)]
mod tests;

pub use held::CONCURRENT_MAX;
pub use table::{AHEAD_MAX, ENTRIES_OF_SET, LimitTable, TRIES_MAX, Taken};

use crate::config::Service;
use crate::flow::Address;
use crate::l7::head::Request;
use crate::time::{Duration, Time};
use alloc::sync::Arc;
use held::Hold;
use table::LimitKey;

/// Limits of a service at most.
pub const LIMITS_MAX: usize = 8;
/// What a limit may admit in a second at most.
pub const PER_SECOND_MAX: u32 = 1_000_000;

/// The clock of limits counts in units of 2^4 ns.
const UNIT_BITS: u32 = 4;

/// A number of units, rounded down.
const fn units(nanoseconds: u64) -> u64 {
    nanoseconds >> UNIT_BITS
}

/// How often something may happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Units of the clock for one.
    interval: u64,
    /// Units that a client may be ahead.
    ahead: u64,
}

impl Rate {
    /// So many within a time, and up to `burst` at once. `None`: one of them is 0, they are more than [`PER_SECOND_MAX`] a second,
    /// or the burst takes longer than [`AHEAD_MAX`].
    pub fn new(count: u32, within: Duration, burst: u32) -> Option<Rate> {
        let within = u64::try_from(within.as_nanos()).ok()?;
        if count == 0 || burst == 0 || within / u64::from(count) < 1_000_000_000 / u64::from(PER_SECOND_MAX) {
            return None;
        }
        let divisor = u64::from(count) << UNIT_BITS;
        let rate = |interval: u64| Some(Rate { interval, ahead: interval.checked_mul(burst.into())? });
        let fits = |rate: &Rate| rate.ahead <= units(AHEAD_MAX.as_nanos() as u64);
        // Rounded to the nearest, a burst that takes exactly the longest time might take nanoseconds more.
        let nearest = rate(within.saturating_add(divisor / 2) / divisor).filter(fits);
        nearest.or_else(|| rate(within / divisor).filter(fits))
    }
}

/// What is limited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitKind {
    /// Requests within a time.
    Requests(Rate),
    /// Connections that begin within a time.
    Connections(Rate),
    /// Connections at a time, 1 to [`CONCURRENT_MAX`].
    Concurrent(u32),
}

impl LimitKind {
    /// A word for people.
    pub fn name(&self) -> &'static str {
        match self {
            LimitKind::Requests(_) => "requests",
            LimitKind::Connections(_) => "connections",
            LimitKind::Concurrent(_) => "concurrent",
        }
    }
}

/// What becomes of a request or connection beyond a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LimitAction {
    /// A request is answered with 429 and Retry-After (RFC 6585, 4; RFC 9110, 10.2.3), a connection with RST, a datagram with ICMP port
    /// unreachable.
    #[default]
    Refuse,
    /// It is not answered. The connection of a request, or its stream of HTTP/2, is reset.
    Drop,
}

/// A limit of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Tells its clients' entries from those of other limits, in every process and configuration.
    pub id: u64,
    /// What of a client it admits.
    pub kind: LimitKind,
    /// Bits of an IPv4 address that make a client, 1 to 32.
    pub ipv4_prefix: u8,
    /// Bits of an IPv6 address that make a client, 1 to 128.
    pub ipv6_prefix: u8,
    /// The name, in lower case, of the field by whose value requests are counted that have it, instead of by address.
    pub header: Option<Arc<[u8]>>,
    /// What becomes of requests beyond it.
    pub action: LimitAction,
    /// It refuses nothing, and counts what it would have refused.
    pub is_dry_run: bool,
}

impl Limit {
    /// Whether connections are limited, not requests.
    pub fn is_of_connections(&self) -> bool {
        !matches!(self.kind, LimitKind::Requests(_))
    }

    /// The part of an address that makes a client.
    fn client(&self, address: &Address) -> [u8; 16] {
        let bits = if address.is_ipv4() { 96 + u32::from(self.ipv4_prefix) } else { u32::from(self.ipv6_prefix) };
        let mask = u128::MAX.checked_shl(128 - bits.min(128)).unwrap_or(0);
        (u128::from_be_bytes(address.0) & mask).to_be_bytes()
    }
}

/// What a limit has decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LimitCounts {
    /// Requests or connections admitted.
    pub admitted: u64,
    /// Those refused.
    pub refused: u64,
    /// Those admitted that it would have refused, had it not been a dry run.
    pub would_refuse: u64,
    /// Those, of all above, of clients for which there was no free entry: the entry of the client that owed least was taken. Of a limit
    /// of connections at a time: those that are not counted for that reason.
    pub displaced: u64,
}

impl LimitCounts {
    /// Adds what another part of the process has counted.
    pub fn add(&mut self, other: &LimitCounts) {
        let LimitCounts { admitted, refused, would_refuse, displaced } = other;
        self.admitted += admitted;
        self.refused += refused;
        self.would_refuse += would_refuse;
        self.displaced += displaced;
    }
}

/// A request or connection is beyond a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limited {
    /// What becomes of it.
    pub action: LimitAction,
    /// Seconds after which one like it is admitted, at least 1.
    pub retry_after_s: u32,
}

/// The limits of a service, as a request meets them.
pub struct Limiting<'a> {
    /// In their order. Those behind [`LIMITS_MAX`] have no counters.
    pub limits: &'a [Limit],
    /// Where the clients are.
    pub table: &'a LimitTable,
    /// The time.
    pub now: Time,
    /// Counters, by limit.
    pub counts: &'a mut [LimitCounts],
}

/// Tells values of fields from addresses in a limit's keys.
const BY_FIELD: u64 = 1 << 63;

/// The table of a process that has none.
static NONE: LimitTable = LimitTable::none();

impl Limiting<'_> {
    /// No limit.
    pub fn none() -> Limiting<'static> {
        Limiting { limits: &[], table: &NONE, now: Time::ZERO, counts: &mut [] }
    }

    /// Counts a request of the client at `address`. `Some`: it is refused by the first limit that it is beyond. The limits
    /// before that have counted it all the same, those behind have not.
    pub fn request(&mut self, address: &Address, request: &Request<'_>) -> Option<Limited> {
        self.limits.iter().enumerate().find_map(|(at, limit)| {
            let LimitKind::Requests(rate) = limit.kind else { return None };
            let value = limit.header.as_ref().and_then(|name| request.fields.find(name).next());
            let key = match value {
                Some(value) => self.table.key(limit.id ^ BY_FIELD, value),
                None => self.table.key(limit.id, &limit.client(address)),
            };
            self.take(at, &rate, key)
        })
    }

    /// Counts a connection that the client at `address` begins, likewise. If it is admitted the limits of connections at a time
    /// count it until [`release`].
    pub fn connection(&mut self, address: &Address) -> Option<Limited> {
        for (at, limit) in self.limits.iter().enumerate() {
            let limited = match limit.kind {
                LimitKind::Requests(_) => None,
                LimitKind::Connections(rate) => self.take(at, &rate, self.table.key(limit.id, &limit.client(address))),
                LimitKind::Concurrent(most) => self.hold(at, most, address),
            };
            if limited.is_some() {
                release(&self.limits[..at], self.table, address);
                return limited;
            }
        }
        None
    }

    /// Counts one of a limit within a time.
    fn take(&mut self, at: usize, rate: &Rate, key: LimitKey) -> Option<Limited> {
        let limit = self.limits.get(at)?;
        let mut unused = LimitCounts::default();
        let counts = self.counts.get_mut(at).unwrap_or(&mut unused);
        let Taken { refused_for, is_displacing } = self.table.take(key, rate, self.now);
        counts.displaced += u64::from(is_displacing);
        let seconds = |wait: Duration| wait.as_nanos().div_ceil(1_000_000_000).max(1);
        limit.decide(counts, refused_for.map(|wait| seconds(wait).try_into().unwrap_or(u32::MAX)))
    }

    /// Counts a connection of a limit of connections at a time.
    fn hold(&mut self, at: usize, most: u32, address: &Address) -> Option<Limited> {
        let limit = self.limits.get(at)?;
        let mut unused = LimitCounts::default();
        let counts = self.counts.get_mut(at).unwrap_or(&mut unused);
        let key = self.table.key(limit.id, &limit.client(address));
        let mut held = self.table.hold(key, most);
        let is_beyond = held == Hold::Refused;
        if is_beyond && limit.is_dry_run {
            held = self.table.hold(key, u32::MAX);
        }
        counts.displaced += u64::from(held == Hold::Uncounted);
        limit.decide(counts, is_beyond.then_some(1))
    }
}

impl Limit {
    /// Counts a decision. `retry_after_s`: it is beyond the limit.
    fn decide(&self, counts: &mut LimitCounts, retry_after_s: Option<u32>) -> Option<Limited> {
        match retry_after_s {
            None => counts.admitted += 1,
            Some(_) if self.is_dry_run => counts.would_refuse += 1,
            Some(retry_after_s) => {
                counts.refused += 1;
                return Some(Limited { action: self.action, retry_after_s });
            }
        }
        None
    }
}

/// The keys of a client for the limits of connections at a time.
fn concurrent<'a>(
    limits: &'a [Limit],
    table: &'a LimitTable,
    address: &'a Address,
) -> impl Iterator<Item = LimitKey> + 'a {
    let is_one = |limit: &&Limit| matches!(limit.kind, LimitKind::Concurrent(_));
    limits.iter().filter(is_one).map(|limit| table.key(limit.id, &limit.client(address)))
}

/// The client at `address` has a connection, whatever the limits say. They count it until [`release`].
pub fn hold(limits: &[Limit], table: &LimitTable, address: &Address) {
    for key in concurrent(limits, table, address) {
        let _ = table.hold(key, u32::MAX);
    }
}

/// [`hold`] of a connection of a service with this number, which is counted by the limits that the service had `before`.
pub fn hold_anew(services: &[Service], before: &[Service], table: &LimitTable, (service, address): (u16, &Address)) {
    let before = limits_of(before, service.into());
    for limit in limits_of(services, service.into()).iter().filter(|limit| is_new(limit, before)) {
        let _ = table.hold(table.key(limit.id, &limit.client(address)), u32::MAX);
    }
}

fn limits_of(services: &[Service], number: usize) -> &[Limit] {
    services.get(number).map_or(&[], |service| &service.limits)
}

/// Whether a limit of connections at a time is none of those `before`.
fn is_new(limit: &Limit, before: &[Limit]) -> bool {
    let is_of = |limit: &Limit| matches!(limit.kind, LimitKind::Concurrent(_));
    is_of(limit) && !before.iter().any(|other| is_of(other) && other.id == limit.id)
}

/// Whether services that were `before`, by number, have limits of connections at a time that count none of the connections that are
/// there ([`hold_anew`]).
pub fn have_new(services: &[Service], before: &[Service]) -> bool {
    let has_new = |(number, service): (usize, &Service)| {
        service.limits.iter().any(|limit| is_new(limit, limits_of(before, number)))
    };
    services.iter().enumerate().any(has_new)
}

/// A connection of the client at `address` that the limits of connections at a time have counted has ended.
pub fn release(limits: &[Limit], table: &LimitTable, address: &Address) {
    concurrent(limits, table, address).for_each(|key| table.release(key));
}
