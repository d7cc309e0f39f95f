//! The counters of a worker: plain numbers that it alone writes.

use crate::access::RULES_MAX;
use crate::config::Snapshot;
use crate::l4::connection::Volume;
use crate::l7::splice::{Fault, HttpStatistics};
use crate::limit::{LIMITS_MAX, LimitCounts};
use crate::offload::Reason;
use crate::time::Duration;
use crate::wire::Malformed;
use alloc::boxed::Box;
use alloc::vec;

/// Why a worker dropped a frame or refused a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Drop {
    /// A TCP packet of no known connection; also counted when it is answered with RST.
    Unknown,
    /// TCP flags that no real packet has (SYN with FIN or RST, none at all).
    Flags,
    /// An access rule refuses the client.
    Denied,
    /// The client is beyond a limit of the service.
    Limited,
    /// No backend of the service takes connections.
    NoBackend,
    /// All backends of the service that take connections have as many as they may.
    BackendsFull,
    /// The connection table is full.
    TableFull,
    /// No source port is free in the pool.
    PoolExhausted,
    /// Another connection of the same client already uses the way to every backend tried.
    TupleConflict,
    /// A SYN for a connection that is over, whose backend takes no connections any more; the next one starts anew.
    Stale,
    /// TTL or hop limit used up; answered with ICMP time exceeded.
    TimeToLive,
    /// Too big for its way out; answered with ICMP.
    TooBig,
    /// A fragment.
    Fragment,
    /// An answer (RST, ICMP error) could not be made from the packet.
    Unanswerable,
    /// It called for an answer (RST, ICMP error), but there have been too many of late.
    AnswerLimit,
    /// No frame or no room in the transmit batch for another piece of a packet.
    NoFrame,
    /// A wrong TCP checksum: a SYN, which no backend would answer; bytes of a splice that would go on under a checksum of
    /// our own.
    Checksum,
    /// A case that cannot happen unless Hairpin has a mistake. Please report it.
    Invariant,
}

impl Drop {
    /// All of them, in order.
    pub const ALL: [Drop; 18] = [
        Drop::Unknown,
        Drop::Flags,
        Drop::Denied,
        Drop::Limited,
        Drop::NoBackend,
        Drop::BackendsFull,
        Drop::TableFull,
        Drop::PoolExhausted,
        Drop::TupleConflict,
        Drop::Stale,
        Drop::TimeToLive,
        Drop::TooBig,
        Drop::Fragment,
        Drop::Unanswerable,
        Drop::AnswerLimit,
        Drop::NoFrame,
        Drop::Checksum,
        Drop::Invariant,
    ];

    /// Its name in status.
    pub fn name(self) -> &'static str {
        match self {
            Drop::Unknown => "unknown",
            Drop::Flags => "tcp-flags",
            Drop::Denied => "denied",
            Drop::Limited => "limited",
            Drop::NoBackend => "no-backend",
            Drop::BackendsFull => "backends-full",
            Drop::TableFull => "table-full",
            Drop::PoolExhausted => "pool-exhausted",
            Drop::TupleConflict => "tuple-conflict",
            Drop::Stale => "stale",
            Drop::TimeToLive => "ttl",
            Drop::TooBig => "too-big",
            Drop::Fragment => "fragment",
            Drop::Unanswerable => "unanswerable",
            Drop::AnswerLimit => "answer-limit",
            Drop::NoFrame => "no-frame",
            Drop::Checksum => "tcp-checksum",
            Drop::Invariant => "invariant",
        }
    }
}

/// Numbers of one service.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServiceStatistics {
    /// Connections created.
    pub created: u64,
    /// Connections whose client has shown that it gets what it is sent: TCP's handshake, a datagram after the answer.
    pub established: u64,
    /// UDP connections whose backend has answered; their client may be forged.
    pub answered: u64,
    /// Frames that made a connection or belonged to none: what a flood consists of.
    pub speculative: u64,
    /// Connections refused, for whatever reason.
    pub refused: u64,
    /// Clients' connections now that are not over, of an HTTP or TLS service.
    pub client_conns_now: u64,
    /// Its requests; of a TLS service, ClientHellos.
    pub requests: u64,
    /// How long its requests took, of an HTTP service; of a group, those that went to it.
    pub times: RequestTimes,
    /// Bytes of the requests that [`RequestTimes::in_all`] counts, and of their responses, in this order, with their heads; interim
    /// responses count where connections are spliced. Of a message beyond 4 GiB whose length nothing says before, only the lower
    /// 32 bits are known.
    pub sizes: [Sizes; 2],
    /// Responses of Hairpin's own, by class: 1xx to 5xx.
    pub replies: [u64; 5],
    /// How long clients' TLS handshakes took that were completed, from when their connection was accepted.
    pub handshakes: Latency,
    /// Packets that would have begun a connection and that an access rule has refused or counted, by rule. Those that the engine
    /// has judged are not among them.
    pub access: [u64; RULES_MAX],
    /// What its limits have decided, by limit.
    pub limits: [LimitCounts; LIMITS_MAX],
}

/// The place of a status in counts by class: 1xx to 5xx.
pub fn class(status: u16) -> usize {
    usize::from(status / 100).saturating_sub(1).min(4)
}

/// How long requests that went to a backend took, from when their head was read.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestTimes {
    /// Until there was a connection to a backend.
    pub to_backend: Latency,
    /// Until the head of the final response had come.
    pub to_response: Latency,
    /// Until the client had acknowledged all of the response or, where its connection ends at a socket of this host, until all of
    /// it had been handed to that connection, where it may still wait. Responses that end with their connection, and tunnels, do
    /// not count.
    pub in_all: Latency,
}

impl RequestTimes {
    /// Adds what another part of the process has counted.
    pub fn merge(&mut self, other: &RequestTimes) {
        self.to_backend.merge(&other.to_backend);
        self.to_response.merge(&other.to_response);
        self.in_all.merge(&other.in_all);
    }
}

/// Numbers of one backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct BackendStatistics {
    /// Connections it was given.
    pub connections: u64,
    /// Connections it has, those that are over and kept for a while among them.
    pub connections_now: u64,
    /// Of these, those that are not over.
    pub open_now: u64,
    /// Connections it has taken up: TCP handshakes completed (and connections picked up), UDP flows answered. Of an HTTP
    /// service's backend, responses that do not speak against it: taking connections up is not yet serving.
    pub established: u64,
    /// Connections it has not: it answered a SYN with RST, or not at all, or was said to be unreachable. A client cannot
    /// make it fail by what it sends later, only by a first packet that the backend does not like.
    pub failed: u64,
    /// Requests that it has failed, of an HTTP service, by [`Fault`].
    pub faults: [u64; Fault::ALL.len()],
    /// Its responses, of an HTTP service, by class: 1xx to 5xx.
    pub responses: [u64; 5],
    /// Its responses with a status from 500 to 599, those among them that another backend's took the place of.
    pub server_errors: u64,
    /// From when its requests were given a connection until the heads of their responses had come, in microseconds, the sum of
    /// all; of an HTTP service.
    pub response_us: u64,
    /// Traffic that software forwarded: [from client, from backend].
    pub software: [Volume; 2],
}

impl ServiceStatistics {
    /// Adds what another part of the process has counted.
    pub fn add(&mut self, other: &ServiceStatistics) {
        // Every field, so that none is forgotten.
        let ServiceStatistics {
            created,
            established,
            answered,
            speculative,
            refused,
            client_conns_now,
            requests,
            times,
            sizes,
            replies,
            handshakes,
            access,
            limits,
        } = other;
        self.created += created;
        self.established += established;
        self.answered += answered;
        self.speculative += speculative;
        self.refused += refused;
        self.client_conns_now += client_conns_now;
        self.requests += requests;
        self.times.merge(times);
        self.sizes.iter_mut().zip(sizes).for_each(|(into, from)| into.merge(from));
        self.replies.iter_mut().zip(replies).for_each(|(into, from)| *into += from);
        self.handshakes.merge(handshakes);
        self.access.iter_mut().zip(access).for_each(|(into, from)| *into += from);
        self.limits.iter_mut().zip(limits).for_each(|(into, from)| into.add(from));
    }
}

impl BackendStatistics {
    /// Adds what another part of the process has counted, which forwards no packets.
    pub fn add(&mut self, other: &BackendStatistics) {
        let BackendStatistics {
            connections,
            connections_now,
            open_now,
            established,
            failed,
            faults,
            responses,
            server_errors,
            response_us,
            software: _,
        } = *other;
        self.connections += connections;
        self.connections_now += connections_now;
        self.open_now += open_now;
        self.established += established;
        self.failed += failed;
        self.server_errors += server_errors;
        self.response_us += response_us;
        self.faults.iter_mut().zip(faults).for_each(|(into, from)| *into += from);
        self.responses.iter_mut().zip(responses).for_each(|(into, from)| *into += from);
    }
}

/// Buckets of [`Latency`].
pub const LATENCY_BUCKETS: usize = 27;

/// How long something took, and how often.
#[derive(Clone, Copy, Debug, Default)]
pub struct Latency {
    /// How many times it took less than 2^i microseconds, and not less than half of that; the first counts all below one
    /// microsecond, the last all that took 2^25 microseconds (34 s) and more.
    pub buckets: [u64; LATENCY_BUCKETS],
    /// All of them together, in nanoseconds.
    pub sum_ns: u64,
    /// How many there were.
    pub count: u64,
}

impl Latency {
    /// Counts one.
    pub fn add(&mut self, took: Duration) {
        self.add_nanos(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    /// Counts one that took so many nanoseconds.
    #[inline]
    pub fn add_nanos(&mut self, nanos: u64) {
        self.buckets[(bits(nanos / 1000) as usize).min(LATENCY_BUCKETS - 1)] += 1;
        self.sum_ns = self.sum_ns.saturating_add(nanos);
        self.count += 1;
    }

    /// Adds what another part of the process has counted.
    pub fn merge(&mut self, other: &Latency) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(into, from)| *into += from);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.count += other.count;
    }
}

/// How many bits a number below 2^63 has.
#[inline]
fn bits(number: u64) -> u32 {
    // Never zero, which the processor's instruction does not count in.
    (number << 1 | 1).ilog2()
}

/// Buckets of [`Sizes`].
pub const SIZE_BUCKETS: usize = 14;

/// How many bytes something had, and how often.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sizes {
    /// How many times it had 64 * 4^i bytes at most, and more than a quarter of that; the last counts all beyond 1 GiB.
    pub buckets: [u64; SIZE_BUCKETS],
    /// All of them together, in bytes.
    pub sum: u64,
    /// How many there were.
    pub count: u64,
}

impl Sizes {
    /// Counts one.
    #[inline]
    pub fn add(&mut self, bytes: u64) {
        let bits = bits(bytes.saturating_sub(1) >> 6);
        #[allow(clippy::manual_div_ceil, reason = "it does not overflow, which costs two instructions less")]
        let bucket = (bits as usize + 1) / 2;
        self.buckets[bucket.min(SIZE_BUCKETS - 1)] += 1;
        self.sum = self.sum.saturating_add(bytes);
        self.count += 1;
    }

    /// Adds what another part of the process has counted.
    pub fn merge(&mut self, other: &Sizes) {
        self.buckets.iter_mut().zip(other.buckets).for_each(|(into, from)| *into += from);
        self.sum = self.sum.saturating_add(other.sum);
        self.count += other.count;
    }
}

/// Numbers of the rules' life cycle.
#[derive(Clone, Copy, Debug, Default)]
pub struct OffloadStatistics {
    /// Rules in force or asked for.
    pub rules: u64,
    /// Rules the engine confirmed.
    pub installed: u64,
    /// Rules the engine took away.
    pub removed: u64,
    /// Rules the engine had lost when it was asked to take them away.
    pub lost: u64,
    /// Connections that the engine has set up by itself.
    pub set_up: u64,
    /// Rules refused because the engine was full.
    pub refused_full: u64,
    /// Rules refused because it cannot do them.
    pub refused_unsupported: u64,
    /// Rules refused because it failed.
    pub refused_failed: u64,
    /// Connections not offered because the queue to the engine was full.
    pub queue_full: u64,
    /// Pass rules not made because there are as many as there may be.
    pub passes_full: u64,
    /// Times the policy has kept a connection in software, by [`Reason`].
    pub kept: [u64; Reason::ALL.len()],
    /// Connections it has taken back from the engine, by [`Reason`].
    pub evicted: [u64; Reason::ALL.len()],
    /// From the request for a rule until the engine has confirmed it, time in the worker's queue included.
    pub latency: Latency,
}

/// All of a worker's numbers.
#[derive(Clone, Debug)]
pub struct Statistics {
    /// Frames handled.
    pub frames: u64,
    /// Frames sent on.
    pub forwarded: u64,
    /// Frames passed to the kernel.
    pub to_kernel: u64,
    /// ICMP errors translated and sent on.
    pub icmp_errors: u64,
    /// RST and ICMP errors of our own.
    pub answered: u64,
    /// IPv4 packets cut into fragments.
    pub fragmented: u64,
    /// Connections that had been declared over and went on.
    pub revived: u64,
    /// Connections given up for newer ones before they were established, because the table was full.
    pub evicted: u64,
    /// Connections ended because their backend was disabled, removed, drained for too long, or (UDP) went down.
    pub ended: u64,
    /// Frames whose connection was known by a mark.
    pub marked: u64,
    /// Frames with a mark of another connection, or of none: their connections were looked up.
    pub mismarked: u64,
    /// Frames dropped, by [`Drop`].
    pub drops: [u64; Drop::ALL.len()],
    /// Frames dropped as malformed, by [`Malformed`].
    pub malformed: [u64; Malformed::ALL.len()],
    /// Connections now, those that are over and kept for a while among them, Pass entries not.
    pub connections_now: u64,
    /// Of these, those that are not over.
    pub open_now: u64,
    /// The most connections there have been at a time.
    pub connections_peak: u64,
    /// Connections now that a forged packet may have made: they give way when the table is full.
    pub half_open_now: u64,
    /// Pass entries now.
    pub passes_now: u64,
    /// Connections there can be.
    pub connections_max: u64,
    /// Rules.
    pub offload: OffloadStatistics,
    /// HTTP and TLS services.
    pub http: HttpStatistics,
    /// By service number; as long as the longest snapshot so far.
    pub services: Box<[ServiceStatistics]>,
    /// By backend number; as long as the longest snapshot so far.
    pub backends: Box<[BackendStatistics]>,
}

impl Statistics {
    /// Nothing has happened yet. `connections_max`: connections there can be.
    pub fn new(snapshot: &Snapshot, connections_max: usize) -> Statistics {
        Statistics {
            frames: 0,
            forwarded: 0,
            to_kernel: 0,
            icmp_errors: 0,
            answered: 0,
            fragmented: 0,
            revived: 0,
            evicted: 0,
            ended: 0,
            marked: 0,
            mismarked: 0,
            drops: [0; Drop::ALL.len()],
            malformed: [0; Malformed::ALL.len()],
            connections_now: 0,
            open_now: 0,
            connections_peak: 0,
            half_open_now: 0,
            passes_now: 0,
            connections_max: connections_max as u64,
            offload: OffloadStatistics::default(),
            http: HttpStatistics::default(),
            services: vec![ServiceStatistics::default(); snapshot.services.len()].into(),
            backends: vec![BackendStatistics::default(); snapshot.backends() as usize].into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{SIZE_BUCKETS, Sizes};

    #[test]
    fn sizes_are_in_buckets_of_powers_of_four() {
        let bucket = |bytes: u64| {
            let mut sizes = Sizes::default();
            sizes.add(bytes);
            sizes.buckets.iter().position(|count| *count == 1)
        };
        for (upper, at) in (0..SIZE_BUCKETS - 1).map(|at| (64u64 << (2 * at), at)) {
            assert_eq!((bucket(upper), bucket(upper + 1)), (Some(at), Some(at + 1)), "{upper}");
        }
        assert_eq!((bucket(0), bucket(u64::MAX)), (Some(0), Some(13)));
    }
}
