//! The measured mechanisms: every mechanism, none at all, and the sweep that stops the world.

use super::mechanism_bench::TimedConnections;
use super::traffic::{BURST, FlowEnd};
use arrayvec::ArrayVec;
use hairpin_core::flow::FlowKey;
use hairpin_core::table::cuckoo::CuckooPlusPlus;
use hairpin_core::table::{Lookup, Position};
use hairpin_core::time::{Duration, Time};
use hairpin_tables::ageing::buckets::BucketStamps;
use hairpin_tables::ageing::{Ageing, Deadlines, SlabSweep, Stamps, Wheel};
use std::collections::VecDeque;

/// Entries handed out by one call at most, as a worker has it.
pub(super) const DUE_MAX: usize = 64;

/// Entries that are over.
pub(super) type Due = ArrayVec<Position, DUE_MAX>;

/// The granularity of deadlines, as a worker has it.
const TICK: Duration = Duration::from_millis(50);
/// Slots of the wheel.
const WHEEL_SLOTS: usize = 8192;
/// How often the walk comes by. Shorter is more exact, and costs in proportion.
const PERIOD: Duration = Duration::from_millis(500);
/// The traffic generator reports the end of a flow as late as the others are at most: a flow's last packet may come a
/// burst after its end.
const SPARE: Duration = Duration::from_millis(100);
/// Ticks of stamps in buckets: each costs a walk over the whole index.
const BUCKET_TICK: Duration = Duration::from_millis(250);

/// A flow that has begun, or whose deadline is earlier than it was said to be.
pub(super) struct FlowNotice<'a> {
    pub(super) key: &'a FlowKey,
    pub(super) position: Position,
    pub(super) deadline: Time,
    pub(super) kind: FlowEnd,
    /// When it will be over, which only who makes the traffic can know. Said when it begins; `None`: never, or said.
    pub(super) truth: Option<Time>,
}

/// One of those measured.
pub(super) trait Mechanism {
    fn name(&self) -> &'static str;

    /// Bytes it takes beside table and slab, for `capacity` connections.
    fn bytes(&self) -> usize;

    /// The most that it is late, if it says so.
    fn late_max(&self) -> Option<Duration> {
        None
    }

    /// Whether an iteration calls it until there is nothing more to do.
    fn stops_the_world(&self) -> bool {
        false
    }

    /// A burst of lookups.
    fn find(
        &mut self,
        _now: Time,
        table: &mut CuckooPlusPlus,
        connections: &TimedConnections<'_>,
        keys: &[FlowKey; BURST],
        out: &mut [Option<u32>; BURST],
    ) {
        table.find_burst(keys, connections, out);
    }

    fn told(&mut self, table: &mut CuckooPlusPlus, told: &FlowNotice<'_>);

    /// Adds what is over to `out`; whether there is more at once.
    fn due(&mut self, now: Time, table: &mut CuckooPlusPlus, connections: &TimedConnections<'_>, out: &mut Due)
    -> bool;
}

/// All of them for `capacity` connections; the first is the one without ageing.
pub(super) fn all(capacity: usize, timeout: Duration) -> Vec<Box<dyn Mechanism>> {
    vec![
        Box::new(Oracle::default()),
        Box::new(OverAny(Wheel::new(capacity, TICK, WHEEL_SLOTS))),
        Box::new(OverAny(Stamps::new(capacity, TICK))),
        Box::new(OverAny(SlabSweep::new(PERIOD))),
        Box::new(InBuckets { stamps: BucketStamps::new(BUCKET_TICK), on_hit: None }),
        Box::new(InBuckets { stamps: BucketStamps::new(BUCKET_TICK), on_hit: Some(timeout / 5) }),
        Box::new(StopTheWorld { every: timeout, next: Time::ZERO + timeout, cursor: None, used: 0 }),
    ]
}

/// A mechanism that goes with any table.
struct OverAny<A>(A);

impl<A: Ageing> Mechanism for OverAny<A> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }

    fn late_max(&self) -> Option<Duration> {
        Some(self.0.late_max())
    }

    fn told(&mut self, _: &mut CuckooPlusPlus, told: &FlowNotice<'_>) {
        self.0.started(told.position, told.deadline);
    }

    fn due(&mut self, now: Time, _: &mut CuckooPlusPlus, connections: &TimedConnections<'_>, out: &mut Due) -> bool {
        self.0.due(now, connections, out)
    }
}

/// Stamps in the buckets of the table, written when a flow begins or is put off; or with every hit as well.
struct InBuckets {
    stamps: BucketStamps,
    /// The shortest timeout, if hits write stamps.
    on_hit: Option<Duration>,
}

impl Mechanism for InBuckets {
    fn name(&self) -> &'static str {
        if self.on_hit.is_some() { "bucket-stamps/on-hit" } else { "bucket-stamps" }
    }

    fn bytes(&self) -> usize {
        0
    }

    fn late_max(&self) -> Option<Duration> {
        // Two, and one for those that an insertion moves behind the sweep's back once.
        Some(3 * BUCKET_TICK)
    }

    fn find(
        &mut self,
        now: Time,
        table: &mut CuckooPlusPlus,
        connections: &TimedConnections<'_>,
        keys: &[FlowKey; BURST],
        out: &mut [Option<u32>; BURST],
    ) {
        match self.on_hit {
            Some(shortest) => table.find_burst_stamped(keys, connections, self.stamps.stamp(now + shortest), out),
            None => table.find_burst(keys, connections, out),
        }
    }

    fn told(&mut self, table: &mut CuckooPlusPlus, told: &FlowNotice<'_>) {
        table.restamp(told.key, told.position * 2, self.stamps.stamp(told.deadline));
    }

    fn due(
        &mut self,
        now: Time,
        table: &mut CuckooPlusPlus,
        connections: &TimedConnections<'_>,
        out: &mut Due,
    ) -> bool {
        self.stamps.due(now, table, connections, out)
    }
}

/// No ageing: entries go when their time is up because the traffic generator says so. (All flows of a kind live equally
/// long, so a queue for each is in order.)
#[derive(Default)]
struct Oracle {
    silent: VecDeque<(Time, Position)>,
    closed: VecDeque<(Time, Position)>,
    half_open: VecDeque<(Time, Position)>,
}

impl Mechanism for Oracle {
    fn name(&self) -> &'static str {
        "none"
    }

    fn bytes(&self) -> usize {
        0
    }

    fn told(&mut self, _: &mut CuckooPlusPlus, told: &FlowNotice<'_>) {
        let Some(end) = told.truth.map(|end| end + SPARE) else { return };
        let queue = match told.kind {
            FlowEnd::Eternal => return,
            FlowEnd::Silent => &mut self.silent,
            FlowEnd::Closed => &mut self.closed,
            FlowEnd::HalfOpen => &mut self.half_open,
        };
        queue.push_back((end, told.position));
    }

    fn due(&mut self, now: Time, _: &mut CuckooPlusPlus, _: &TimedConnections<'_>, out: &mut Due) -> bool {
        for queue in [&mut self.silent, &mut self.closed, &mut self.half_open] {
            while let Some(&(end, position)) = queue.front()
                && end <= now
            {
                if out.is_full() {
                    return true;
                }
                out.push(position);
                queue.pop_front();
            }
        }
        false
    }
}

/// The papers' mechanism: once in a timeout, all entries are scanned at once.
struct StopTheWorld {
    every: Duration,
    next: Time,
    cursor: Option<Position>,
    used: Position,
}

impl Mechanism for StopTheWorld {
    fn name(&self) -> &'static str {
        "stop-the-world"
    }

    fn bytes(&self) -> usize {
        0
    }

    fn stops_the_world(&self) -> bool {
        true
    }

    fn told(&mut self, _: &mut CuckooPlusPlus, told: &FlowNotice<'_>) {
        self.used = self.used.max(told.position + 1);
    }

    fn due(&mut self, now: Time, _: &mut CuckooPlusPlus, connections: &TimedConnections<'_>, out: &mut Due) -> bool {
        if self.cursor.is_none() && now >= self.next {
            self.next = self.next + self.every;
            self.cursor = Some(0);
        }
        let Some(from) = self.cursor else { return false };
        for position in from..self.used {
            if out.is_full() {
                self.cursor = Some(position);
                return true;
            }
            if connections.deadline(position).is_some_and(|deadline| deadline <= now) {
                out.push(position);
            }
        }
        self.cursor = None;
        false
    }
}
