//! The order of events, for tens of thousands of connections that each say when they send again.
//!
//! A wheel of buckets, each for a short time: what is entered goes to the end of its bucket, which is sorted when its time
//! comes. So an event costs a few nanoseconds, where a heap costs as many cache misses as it has levels. What is beyond the
//! wheel waits in a heap.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Buckets; a power of two.
const BUCKETS: u64 = 4096;

/// Time, order among events at that time, and place.
type AgendaEvent = (u64, u64, u32);

/// Events in the order of their time; those at once in the order in which they were entered.
pub(super) struct Agenda {
    /// A bucket's nanoseconds, as a power of two.
    shift: u32,
    /// The bucket at hand, counted from the beginning of time.
    at: u64,
    /// The rest of the current slot, and events entered for earlier times: the last one comes first.
    at_hand: Vec<AgendaEvent>,
    /// Those after it.
    buckets: Vec<Vec<AgendaEvent>>,
    /// Events in them.
    count: usize,
    /// The events beyond them.
    later: BinaryHeap<Reverse<AgendaEvent>>,
    serial: u64,
}

impl Agenda {
    /// For events about `each_ns` nanoseconds apart.
    pub(super) fn new(each_ns: f64) -> Agenda {
        // Eight in each bucket.
        let shift = ((each_ns * 8.0) as u64).clamp(1, 1 << 40).ilog2();
        let buckets = vec![Vec::new(); BUCKETS as usize];
        Agenda { shift, at: 0, at_hand: Vec::new(), buckets, count: 0, later: BinaryHeap::new(), serial: 0 }
    }

    /// Enters an event.
    #[inline]
    pub(super) fn enter(&mut self, at: u64, place: u32) {
        let event = (at, self.serial, place);
        self.serial += 1;
        let bucket = at >> self.shift;
        if bucket <= self.at {
            let place = self.at_hand.partition_point(|other| *other > event);
            self.at_hand.insert(place, event);
        } else if bucket - self.at < BUCKETS {
            self.buckets[(bucket % BUCKETS) as usize].push(event);
            self.count += 1;
        } else {
            self.later.push(Reverse(event));
        }
    }

    /// When the next event is.
    #[inline]
    pub(super) fn next_at(&mut self) -> Option<u64> {
        if self.at_hand.is_empty() {
            self.turn();
        }
        self.at_hand.last().map(|event| event.0)
    }

    /// Takes the next event: its time and place.
    #[inline]
    pub(super) fn take(&mut self) -> Option<(u64, u32)> {
        if self.at_hand.is_empty() {
            self.turn();
        }
        self.at_hand.pop().map(|(at, _, place)| (at, place))
    }

    /// Goes on to the next bucket with something in it, if there is one.
    fn turn(&mut self) {
        while self.at_hand.is_empty() {
            let first_later = self.later.peek().map(|Reverse(event)| event.0 >> self.shift);
            self.at = match first_later {
                _ if self.count > 0 => self.at + 1,
                Some(first) => first,
                None => return,
            };
            while let Some(Reverse(event)) = self.later.peek()
                && (event.0 >> self.shift) - self.at < BUCKETS
            {
                self.buckets[((event.0 >> self.shift) % BUCKETS) as usize].push(*event);
                self.count += 1;
                self.later.pop();
            }
            std::mem::swap(&mut self.at_hand, &mut self.buckets[(self.at % BUCKETS) as usize]);
            self.count -= self.at_hand.len();
            self.at_hand.sort_unstable_by(|one, other| other.cmp(one));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fastrand::Rng;

    #[test]
    fn events_come_as_a_heap_would_have_them() {
        for (seed, each_ns) in [(1, 1.0), (2, 1000.0), (3, 1e5), (4, 1e12)] {
            let mut random = Rng::with_seed(seed);
            let (mut agenda, mut heap) = (Agenda::new(each_ns), BinaryHeap::new());
            let mut now = 0;
            let mut entered = 0;
            while entered < 100_000 {
                if random.u32(..100) < 52 || heap.is_empty() {
                    // At once, soon, beyond the wheel, or (what comes from elsewhere) before what is next.
                    let after = match random.u8(..5) {
                        0 => 0,
                        1 => random.u64(..10 * each_ns as u64),
                        2 => random.u64(..20_000 * each_ns as u64),
                        _ => random.u64(..1000),
                    };
                    agenda.enter(now + after, entered as u32);
                    heap.push(Reverse((now + after, entered, entered as u32)));
                    entered += 1;
                    continue;
                }
                let expected = heap.pop().map(|Reverse((at, _, place))| (at, place));
                assert_eq!(agenda.next_at(), expected.map(|(at, _)| at));
                assert_eq!(agenda.take(), expected);
                now = expected.map_or(now, |(at, _)| at);
            }
            while let Some(Reverse((at, _, place))) = heap.pop() {
                assert_eq!(agenda.take(), Some((at, place)));
            }
            assert_eq!((agenda.next_at(), agenda.take()), (None, None));
        }
    }
}
