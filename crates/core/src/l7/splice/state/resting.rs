//! Ports of the pool that rest, because a backend may still remember the connection that had them (TIME_WAIT): they rest on
//! in the next process.
//!
//! The pool knows them; this is for the next process alone. It is a ring: of more ports than it has places for, those that
//! have rested longest are overwritten, and the next process may use them too early. It can tell how many those are.

use crate::flow::Endpoint;
use crate::stored::stored;
use crate::table::region::Array;
use crate::time::{Duration, Time};
use alloc::vec::Vec;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A port that rests; at time 0, none.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct RestingPort {
    /// Since when.
    released: Time,
    pub(in crate::l7::splice) source: Endpoint,
    pub(in crate::l7::splice) backend: Endpoint,
    /// 1: the port does not rest. After a change of the number of workers, another worker's connection uses it.
    pub(in crate::l7::splice) is_lent: u8,
    unused: u8,
    /// How long the port that this one has overwritten had rested by then, in units of 10 ms; 0: it overwrote none that
    /// rested.
    overwritten_after: u16,
}

stored!(RestingPort: released, source, backend, is_lent, unused, overwritten_after);

/// The unit of [`RestingPort::overwritten_after`].
const STEP_MS: u128 = 10;

/// Places for a worker with so many connections at a time.
pub(in crate::l7::splice) const fn places(connections: u32) -> usize {
    connections as usize
}

/// The ring.
pub(in crate::l7::splice) struct Resting {
    ports: Array<RestingPort>,
    next: usize,
}

impl Resting {
    /// The ring that another process has left; all zeroes: nothing rests.
    pub(in crate::l7::splice) fn new(ports: Array<RestingPort>) -> Resting {
        let youngest = (0..).zip(ports.iter()).max_by_key(|(_, port)| port.released);
        let next = youngest.map_or(0, |(at, port)| if port.released == Time::ZERO { 0 } else { at + 1 });
        Resting { ports, next }
    }

    /// Notes that the port `source` rests from now on at this backend, for `time_wait`.
    pub(in crate::l7::splice) fn add(&mut self, now: Time, time_wait: Duration, source: Endpoint, backend: Endpoint) {
        let at = if self.next < self.ports.len() { self.next } else { 0 };
        let rested = self.ports.get(at).map(|port| (port.released, now.since(port.released)));
        let early = rested.filter(|(released, rested)| *released != Time::ZERO && *rested < time_wait);
        let overwritten_after =
            early.map_or(0, |(_, rested)| (rested.as_millis() / STEP_MS).clamp(1, u16::MAX.into()) as u16);
        self.put(RestingPort { released: now, source, backend, is_lent: 0, unused: 0, overwritten_after });
    }

    /// Notes that a connection of another worker's has the port `source`, which is of this worker's part of the pool.
    pub(in crate::l7::splice) fn lend(&mut self, now: Time, source: Endpoint, backend: Endpoint) {
        self.put(RestingPort { released: now, source, backend, is_lent: 1, unused: 0, overwritten_after: 0 });
    }

    /// Notes a port that another worker had noted.
    pub(in crate::l7::splice) fn put(&mut self, noted: RestingPort) {
        if self.next >= self.ports.len() {
            self.next = 0;
        }
        if let Some(port) = self.ports.get_mut(self.next) {
            *port = noted;
            self.next += 1;
        }
    }

    /// How many ports that have not rested for `time_wait` were overwritten, because the ring was too small. A lower bound:
    /// each place remembers one overwritten port.
    pub(in crate::l7::splice) fn overwritten(&self, now: Time, time_wait: Duration) -> u64 {
        self.ports.iter().filter(|port| port.hides_another(now, time_wait)).count() as u64
    }

    /// All that are noted, the oldest first.
    pub(in crate::l7::splice) fn all(&self) -> Vec<RestingPort> {
        let mut all: Vec<RestingPort> = self.ports.iter().filter(|port| port.released != Time::ZERO).copied().collect();
        all.sort_by_key(|port| port.released);
        all
    }

    /// Those that have not rested for `time_wait`, in the order of their release, each with the time of that.
    pub(in crate::l7::splice) fn at(&self, now: Time, time_wait: Duration) -> Vec<(Time, RestingPort)> {
        let rests = |port: &&RestingPort| {
            port.released != Time::ZERO && (now.since(port.released) < time_wait || port.is_lent != 0)
        };
        let mut resting: Vec<_> = self.ports.iter().filter(rests).map(|port| (port.released.min(now), *port)).collect();
        resting.sort_by_key(|(released, _)| *released);
        resting
    }
}

impl RestingPort {
    /// Whether this port has overwritten another one that would still rest.
    fn hides_another(&self, now: Time, time_wait: Duration) -> bool {
        let before = Duration::from_millis(u64::from(self.overwritten_after) * STEP_MS as u64);
        self.overwritten_after != 0 && now.since(self.released) + before < time_wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow::Address;
    use crate::table::region::Region;

    #[test]
    fn the_next_process_knows_the_ports_that_rest() {
        let mut region = Region::own(Region::room::<RestingPort>(3));
        let end = |port| Endpoint::new(Address::from_ipv4([10, 0, 0, 1]), port);
        let at = |seconds: u64| Time::from_nanos(seconds * 1_000_000_000);
        let mut resting = Resting::new(region.take(3));
        assert!(resting.at(at(5), Duration::from_secs(60)).is_empty());
        let time_wait = Duration::from_secs(60);
        (1..=4).for_each(|port| resting.add(at(u64::from(port)), time_wait, end(port), end(80)));
        drop(resting);
        let mut region = region.again();
        let mut resting = Resting::new(region.take(3));
        let ports = |resting: &Resting, now| -> Vec<u16> {
            resting.at(now, Duration::from_secs(60)).iter().map(|(_, port)| port.source.port).collect()
        };
        assert_eq!(ports(&resting, at(10)), [2, 3, 4], "the oldest has given way");
        assert_eq!(ports(&resting, at(63)), [4], "the others have rested");
        let overwritten = [10, 60, 61].map(|seconds| resting.overwritten(at(seconds), time_wait));
        assert_eq!(overwritten, [1, 1, 0], "the first port has rested after 61 s");
        resting.add(at(64), time_wait, end(5), end(80));
        assert_eq!(resting.overwritten(at(64), time_wait), 0, "what it has overwritten had rested");
        assert_eq!(ports(&resting, at(64)), [5]);
        assert_eq!(ports(&resting, at(60)), [3, 4, 5], "it is in the place of the oldest");
    }
}
