//! An upper bound of what any policy can save: none can be above it, whatever it knows.
//!
//! A pair of rules saves the core the packets of its flow that the card forwards, and costs the core its requests. What a
//! policy saves net is the first less the second, both in packets. A policy chooses for each flow the spans of time in which
//! its pair is in the card, or asked for. Whatever it chooses, four things hold on this testbed:
//!
//! 1. a pair is asked for at a packet of its flow that software sees, not before the flow is established; that packet is not
//!    saved, and SYN and FIN never are;
//! 2. each span costs the requests for two rules at least;
//! 3. at no time are there more pairs than the card has room for, so all spans together are no longer than room times the
//!    run;
//! 4. the card puts in no more pairs than it has time for, so there are no more spans than that.
//!
//! The bound is the most that can be saved by choices of spans for which 1 and 2 hold, where 3 and 4 are not asked for but
//! have prices: so much for each nanosecond of a place, so much for each span, and what the prices are worth for all of the
//! room and all of the insertions is added (the Lagrangian dual; H. Everett, Generalized Lagrange multiplier method, 1963).
//! For prices that are not negative the sum is no less than what any choice that keeps to 3 and 4 saves: such a choice pays
//! no more for its spans than is added. With prices flows do not depend on each other any more, so the best spans of each are
//! found exactly, by one pass over its packets. Any prices give a bound; they are searched for those that give the least.
//!
//! The planner knows all packets beforehand. Rules take effect at once, room is fully used at every moment, and rules that
//! are left at the end cost nothing to remove: so the bound is above what can be reached.

use super::{FlowPart, ModelTraffic, OfferedPacket};
use hairpin_core::flow::Protocol;

/// Prices are searched between these, in packets per nanosecond of a place and in packets per span.
const PLACE_PRICES: (f64, f64) = (1e-9, 1e-1);
const SPAN_PRICES: (f64, f64) = (1e-2, 1e7);
/// Halvings of the search for a price, and how often both are searched for in turn.
const HALVINGS: u32 = 18;
const ROUNDS: u32 = 3;

/// The limits that the bound keeps to, scaled as the rest of the run is.
#[derive(Clone, Copy, Debug)]
pub struct BoundLimits {
    /// Pairs of rules that the card has room for.
    pub pairs: u32,
    /// Nanoseconds that the card takes at least to put in a pair, and to take one out.
    pub insert_ns: f64,
    /// See `insert_ns`.
    pub delete_ns: f64,
    /// A flow cannot be asked for before so many of its packets have come, both ways; at least 1.
    pub packets_before: u32,
    /// The requests for a pair of rules cost the core as much as so many packets.
    pub pair_packets: f64,
}

/// The bound.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SavingBound {
    /// Packets that can be saved at most, net of requests.
    pub packets: f64,
    /// Packets offered.
    pub offered: u64,
}

/// The packets of all flows, one flow after the other: times, the lowest bit says whether the card may forward it.
struct Arrivals {
    words: Vec<u64>,
    /// Where the packets of each flow begin; one more, for the end.
    begins: Vec<usize>,
    /// From the first packet to the last, in nanoseconds.
    span_ns: f64,
}

impl Arrivals {
    fn of<T: ModelTraffic>(traffic: &mut T) -> Arrivals {
        let mut all: Vec<(u32, u64)> = Vec::new();
        let mut begins = vec![0usize; traffic.flows() as usize + 1];
        let (mut first, mut last) = (None, 0);
        while let Some(OfferedPacket { at, flow, part, .. }) = traffic.next() {
            let Some(count) = begins.get_mut(flow as usize + 1) else { continue };
            *count += 1;
            let saves = part == FlowPart::Middle || traffic.key(flow).protocol == Protocol::Udp;
            all.push((flow, at.as_nanos() << 1 | u64::from(saves)));
            first.get_or_insert(at.as_nanos());
            last = at.as_nanos();
        }
        for flow in 1..begins.len() {
            begins[flow] += begins[flow - 1];
        }
        let (mut next, mut words) = (begins.clone(), vec![0; all.len()]);
        for (flow, word) in all {
            words[next[flow as usize]] = word;
            next[flow as usize] += 1;
        }
        Arrivals { words, begins, span_ns: (last - first.unwrap_or(0)) as f64 }
    }
}

/// What a choice of spans saves at some prices, how long they are together, and how many.
#[derive(Clone, Copy, Debug, Default)]
struct Spans {
    value: f64,
    held_ns: f64,
    count: f64,
}

/// The prices.
#[derive(Clone, Copy, Debug, Default)]
struct Prices {
    place: f64,
    span: f64,
}

/// The best spans of one flow.
fn best_of(packets: &[u64], limits: &BoundLimits, prices: Prices) -> Spans {
    let cost = limits.pair_packets + prices.span;
    let (mut out, mut inside, mut last) = (Spans::default(), None::<Spans>, 0);
    for (word, number) in packets.iter().zip(1..) {
        let at = word >> 1;
        let held_ns = (at - last) as f64;
        let stays = inside.map(|inside| Spans {
            value: inside.value + (word & 1) as f64 - prices.place * held_ns,
            held_ns: inside.held_ns + held_ns,
            ..inside
        });
        let asks = (number >= limits.packets_before).then_some(Spans {
            value: out.value - cost,
            count: out.count + 1.0,
            ..out
        });
        inside = match (stays, asks) {
            (Some(stays), Some(asks)) if asks.value > stays.value => Some(asks),
            (stays, asks) => stays.or(asks),
        };
        // It may leave behind this packet.
        out = inside.filter(|inside| inside.value > out.value).unwrap_or(out);
        last = at;
    }
    out
}

/// A search for prices.
struct Search<'a> {
    arrivals: &'a Arrivals,
    limits: BoundLimits,
    /// Places, times the run's nanoseconds; spans that the card has time for.
    places_ns: f64,
    spans: f64,
    /// The least bound so far.
    least: f64,
}

impl Search<'_> {
    /// The best spans of all flows at these prices.
    fn at(&mut self, prices: Prices) -> Spans {
        let mut all = Spans::default();
        for flow in self.arrivals.begins.windows(2) {
            let best = best_of(&self.arrivals.words[flow[0]..flow[1]], &self.limits, prices);
            all.value += best.value;
            all.held_ns += best.held_ns;
            all.count += best.count;
        }
        let bound = all.value + prices.place * self.places_ns + prices.span * self.spans;
        self.least = self.least.min(bound);
        all
    }

    /// The price at which no more is asked for than there is: the lowest one at hand. The bound is convex in it.
    fn price(
        &mut self,
        (low, high): (f64, f64),
        is_too_much: impl Fn(&Self, Spans) -> bool,
        at: impl Fn(f64) -> Prices,
    ) -> f64 {
        let free = self.at(at(0.0));
        if !is_too_much(self, free) {
            return 0.0;
        }
        let (mut low, mut high) = (low.ln(), high.ln());
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            let asked = self.at(at(middle.exp()));
            if is_too_much(self, asked) { low = middle } else { high = middle }
        }
        high.exp()
    }
}

/// The most that any policy can save of `traffic`, which is read to its end.
pub fn saving_bound<T: ModelTraffic>(traffic: &mut T, limits: BoundLimits) -> SavingBound {
    let arrivals = Arrivals::of(traffic);
    let (span_ns, room) = (arrivals.span_ns, f64::from(limits.pairs));
    // A pair more than the card has room for needs another one to be taken out.
    let filling = span_ns / limits.insert_ns.max(1e-9);
    let changing = (span_ns + room * limits.delete_ns) / (limits.insert_ns + limits.delete_ns).max(1e-9);
    let spans = filling.min(changing) + 1.0;
    let mut search = Search { arrivals: &arrivals, limits, places_ns: room * span_ns, spans, least: f64::INFINITY };
    let mut prices = Prices::default();
    for _ in 0..ROUNDS {
        let span = prices.span;
        prices.place =
            search.price(PLACE_PRICES, |search, all| all.held_ns > search.places_ns, |place| Prices { place, span });
        let place = prices.place;
        prices.span = search.price(SPAN_PRICES, |search, all| all.count > search.spans, |span| Prices { place, span });
    }
    SavingBound { packets: search.least.max(0.0), offered: arrivals.words.len() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testbed::service;
    use fastrand::Rng;
    use hairpin_core::flow::{Address, Direction, Endpoint, FlowKey};
    use hairpin_core::time::Time;

    /// Packets at given times, in nanoseconds: time, flow.
    struct Given(Vec<(u64, u32)>, usize);

    impl ModelTraffic for Given {
        fn next(&mut self) -> Option<OfferedPacket> {
            let &(at, flow) = self.0.get(self.1)?;
            self.1 += 1;
            let (direction, part) = (Direction::FromClient, FlowPart::Middle);
            Some(OfferedPacket { at: Time::from_nanos(at), flow, length: 100, direction, part })
        }
        fn key(&self, flow: u32) -> FlowKey {
            let source = Endpoint { address: Address::from_ipv4([10, 0, 0, 1]), port: 1024 + flow as u16 };
            FlowKey { source, destination: service(), protocol: Protocol::Tcp }
        }
        fn flows(&self) -> u32 {
            4
        }
    }

    fn limits(pairs: u32, pair_packets: f64) -> BoundLimits {
        BoundLimits { pairs, insert_ns: 1.0, delete_ns: 1.0, packets_before: 1, pair_packets }
    }

    #[test]
    fn with_room_for_all_it_is_what_can_be_saved() {
        let packets = (0..400u64).map(|number| (number * 1000, (number % 4) as u32)).collect();
        let bound = saving_bound(&mut Given(packets, 0), limits(4, 5.0));
        // Of each flow all but the first packet, less the requests.
        assert!((bound.packets - 4.0 * (99.0 - 5.0)).abs() < 1e-6, "{bound:?}");
        assert_eq!(bound.offered, 400);
    }

    #[test]
    fn no_room_and_no_time_save_nothing_more() {
        let packets: Vec<(u64, u32)> = (0..400u64).map(|number| (number * 1000, (number % 4) as u32)).collect();
        let bound = |limits| saving_bound(&mut Given(packets.clone(), 0), limits).packets;
        let one = bound(limits(1, 0.0));
        assert!((99.0..110.0).contains(&one), "one of four flows: {one}");
        let slow = bound(BoundLimits { insert_ns: 1e9, ..limits(4, 0.0) });
        assert!((99.0..110.0).contains(&slow), "one insertion: {slow}");
        let dear = bound(limits(4, 1000.0));
        assert_eq!(dear, 0.0, "requests that cost more than the flow has");
    }

    /// The best choice for so few packets, by trying all: which flow has the one place behind each packet.
    fn best(packets: &[(u64, u32)], pair_packets: f64) -> f64 {
        let mut states = vec![(None::<u32>, 0.0_f64)];
        for (_, flow) in packets {
            let mut next: Vec<(Option<u32>, f64)> = Vec::new();
            for (place, saved) in states {
                let is_saved = place == Some(*flow);
                let saved = saved + f64::from(u8::from(is_saved));
                next.push((place, saved));
                if !is_saved {
                    next.push((Some(*flow), saved - pair_packets));
                }
            }
            next.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.total_cmp(&a.1)));
            next.dedup_by_key(|state| state.0);
            states = next;
        }
        states.into_iter().map(|(_, saved)| saved).fold(0.0, f64::max)
    }

    #[test]
    fn nothing_that_one_place_can_do_is_above() {
        let mut random = Rng::with_seed(11);
        let mut tightest = f64::INFINITY;
        for _ in 0..2000 {
            let pair_packets = f64::from(random.u32(..20)) / 4.0;
            let mut at = 0;
            let packets: Vec<(u64, u32)> = (0..random.usize(2..60))
                .map(|_| {
                    at += random.u64(1..5000);
                    (at, random.u32(..4))
                })
                .collect();
            let best = best(&packets, pair_packets);
            let bound = saving_bound(&mut Given(packets.clone(), 0), limits(1, pair_packets)).packets;
            assert!(bound >= best - 1e-6, "bound {bound}, best {best}, {pair_packets} packets for a pair: {packets:?}");
            tightest = tightest.min(bound - best);
        }
        assert!(tightest < 0.5, "it is reached, or nearly: {tightest}");
    }
}
