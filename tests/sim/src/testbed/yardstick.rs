//! The policy that knows the future: which flows were best in the card, worked out beforehand from all that will come.
//!
//! A pair of rules in the card is worth the packets that its flow still has, and costs a place for as long as it is there,
//! and one insertion. The plan is greedy: flows by what they save, most first; each gets its pair as early as there is a
//! place for it until its end, and an insertion to spare. "By what they save" can mean in all, for each moment that the
//! place is taken, or something in between: the best of three such plans is taken. What a plan counts on is checked at a
//! few thousand points in time; a flow's packets in between are taken to come evenly. So it is a yardstick and no bound: a
//! policy can save more.

use super::{FlowPart, ModelTraffic, OfferedPacket};
use hairpin_core::flow::Protocol;
use hairpin_core::offload::{EngineRoom, FlowStats, OffloadPolicy, Reason, Verdict};
use hairpin_core::time::{Duration, Time};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Points in time at which a plan checks what it counts on.
const SLOTS: usize = 4096;
/// The time in which all rules' flows are checked once for their end, if room is short.
const SAMPLES_WITHIN: Duration = Duration::from_millis(200);
/// How much what a flow saves is worth less the longer it takes a place: powers of that time.
const ORDERS: [f64; 3] = [0.0, 0.5, 1.0];

/// The limits of the yardstick, scaled as the rest of the run is.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Pairs of rules that the card has room for.
    pub pairs: u32,
    /// Pairs that it puts in per second; what it needs for taking out is not in it.
    pub pairs_per_s: f64,
    /// A flow cannot be offloaded before so many of its packets have come, both ways: TCP's handshake is 3, UDP answered is
    /// 3, UDP of one direction is 8.
    pub packets_before: u32,
    /// A pair must save so many packets to be worth its cost.
    pub worth: u32,
}

/// When a flow is to be in the card.
#[derive(Clone, Copy, Debug)]
struct Stay {
    from: u64,
    until: u64,
}

/// Which flows go to the card, and when, from the beginning of a run. Copies share their memory.
#[derive(Clone, Debug)]
pub struct OffloadPlan {
    stays: Arc<HashMap<u64, Stay, ahash::RandomState>>,
    saves: u64,
    is_short: bool,
}

/// The yardstick's knowledge of a flow's future.
#[derive(Clone, Copy, Default)]
struct Future {
    packets: u32,
    /// Packets that a pair saves that is there as soon as can be.
    saves: u32,
    /// As soon as can be, and the last packet.
    from: u64,
    last: u64,
}

/// A client's end and protocol in one word.
fn name(address: u32, port: u16, protocol: Protocol) -> u64 {
    u64::from(address) << 32 | u64::from(port) << 8 | protocol as u64
}

impl OffloadPlan {
    /// A plan for all of `traffic`, which is read to its end.
    pub fn greedy<T: ModelTraffic>(traffic: &mut T, budget: Budget) -> OffloadPlan {
        let mut futures = vec![Future::default(); traffic.flows() as usize];
        let mut end = 0;
        while let Some(OfferedPacket { at, flow, part, .. }) = traffic.next() {
            let Some(future) = futures.get_mut(flow as usize) else { continue };
            let now = at.as_nanos();
            future.packets = future.packets.saturating_add(1);
            if future.packets <= budget.packets_before {
                future.from = now;
            } else if part == FlowPart::Middle || traffic.key(flow).protocol == Protocol::Udp {
                future.saves += 1;
            }
            (future.last, end) = (now, now);
        }
        let mut best: Option<PlanDraft> = None;
        for order in ORDERS {
            let draft = PlanDraft::new(&futures, budget, end, order);
            if best.as_ref().is_none_or(|best| draft.saves > best.saves) {
                best = Some(draft);
            }
        }
        let draft = best.unwrap_or_default();
        let mut stays =
            HashMap::with_capacity_and_hasher(draft.stays.len(), ahash::RandomState::with_seeds(1, 2, 3, 4));
        for (flow, stay) in draft.stays {
            let key = traffic.key(flow);
            let address = u32::from_be_bytes(key.source.address.ipv4_octets());
            stays.insert(name(address, key.source.port, key.protocol), stay);
        }
        OffloadPlan { stays: Arc::new(stays), saves: draft.saves as u64, is_short: draft.is_short }
    }

    /// Flows that it offloads.
    pub fn flows(&self) -> usize {
        self.stays.len()
    }

    /// Packets that it expects to save.
    pub fn saves(&self) -> u64 {
        self.saves
    }
}

/// A plan in the making.
#[derive(Default)]
struct PlanDraft {
    stays: Vec<(u32, Stay)>,
    saves: f64,
    /// A flow found no place at once.
    is_short: bool,
}

impl PlanDraft {
    fn new(futures: &[Future], budget: Budget, end: u64, order: f64) -> PlanDraft {
        let slot_ns = end / SLOTS as u64 + 1;
        let slot = |at: u64| ((at / slot_ns) as usize).min(SLOTS - 1);
        let last = |future: &Future| slot(future.last);
        let score = |future: &Future| {
            let slots = (last(future) - slot(future.from) + 1) as f64;
            f64::from(future.saves) / slots.powf(order)
        };
        let worthy = |future: &Future| future.saves > 0 && future.saves >= budget.worth;
        let mut queue: Vec<(f64, u32)> = futures
            .iter()
            .enumerate()
            .filter(|(_, future)| worthy(future))
            .map(|(flow, future)| (score(future), flow as u32))
            .collect();
        queue.sort_unstable_by(|one, other| other.0.total_cmp(&one.0).then(one.1.cmp(&other.1)));

        let each = (budget.pairs_per_s * slot_ns as f64 / 1e9).max(1.0);
        let mut insertions = Insertions::new(if each < f64::from(u32::MAX) { each as u32 } else { u32::MAX });
        let mut places = TakenPlaces::new();
        let mut draft = PlanDraft::default();
        for (_, flow) in queue {
            let future = &futures[flow as usize];
            let (first, last) = (slot(future.from), last(future));
            let mut begins = places.free_until(last, first, budget.pairs);
            begins = insertions.next(begins);
            draft.is_short |= begins > first;
            let from = future.from.max(begins as u64 * slot_ns);
            let life = (future.last - future.from).max(1) as f64;
            let saves = f64::from(future.saves) * (future.last.saturating_sub(from) as f64 / life).min(1.0);
            if begins > last || saves < f64::from(budget.worth.max(1)) && begins > first {
                continue;
            }
            places.take(begins, last);
            insertions.take(begins);
            draft.saves += if begins == first { f64::from(future.saves) } else { saves };
            draft.stays.push((flow, Stay { from, until: future.last }));
        }
        draft
    }
}

/// Insertions left in each slot.
struct Insertions {
    left: Vec<u32>,
    /// From each slot towards the next one with some left.
    onward: Vec<usize>,
}

impl Insertions {
    fn new(each: u32) -> Insertions {
        Insertions { left: vec![each; SLOTS], onward: (0..=SLOTS).collect() }
    }

    /// The first slot from this one on with an insertion left; [`SLOTS`]: there is none.
    fn next(&mut self, slot: usize) -> usize {
        let mut found = slot.min(SLOTS);
        while self.onward[found] != found {
            self.onward[found] = self.onward[self.onward[found]];
            found = self.onward[found];
        }
        found
    }

    fn take(&mut self, slot: usize) {
        self.left[slot] -= 1;
        if self.left[slot] == 0 {
            self.onward[slot] = slot + 1;
        }
    }
}

/// How many places are taken in each slot: a tree over them, with the most in each part, and what is to be added to all of
/// it.
struct TakenPlaces {
    most: Vec<u32>,
    added: Vec<u32>,
}

impl TakenPlaces {
    fn new() -> TakenPlaces {
        TakenPlaces { most: vec![0; 2 * SLOTS], added: vec![0; 2 * SLOTS] }
    }

    /// The earliest slot from `first` on from which there is a place up to `last`; `last` + 1 if there is none.
    fn free_until(&self, last: usize, first: usize, room: u32) -> usize {
        self.last_full(1, (0, SLOTS - 1), (first, last), room).map_or(first, |full| full + 1)
    }

    /// The last full slot of those asked about, in the part of the tree at `node`. `room` is less what is added above.
    fn last_full(&self, node: usize, (low, high): (usize, usize), asked: (usize, usize), room: u32) -> Option<usize> {
        if high < asked.0 || asked.1 < low || self.most[node] < room {
            return None;
        }
        if low == high {
            return Some(low);
        }
        let (middle, room) = ((low + high) / 2, room.saturating_sub(self.added[node]));
        self.last_full(2 * node + 1, (middle + 1, high), asked, room)
            .or_else(|| self.last_full(2 * node, (low, middle), asked, room))
    }

    /// Takes a place in all slots from `first` to `last`.
    fn take(&mut self, first: usize, last: usize) {
        self.add(1, (0, SLOTS - 1), (first, last));
    }

    fn add(&mut self, node: usize, (low, high): (usize, usize), to: (usize, usize)) {
        if high < to.0 || to.1 < low {
            return;
        }
        if to.0 <= low && high <= to.1 {
            self.most[node] += 1;
            self.added[node] += 1;
            return;
        }
        let middle = (low + high) / 2;
        self.add(2 * node, (low, middle), to);
        self.add(2 * node + 1, (middle + 1, high), to);
        self.most[node] = self.most[2 * node].max(self.most[2 * node + 1]) + self.added[node];
    }
}

/// A plan carried out. It knows its flow by the client's end.
pub(super) struct Yardstick {
    plan: OffloadPlan,
    /// When the run began.
    began: Arc<AtomicU64>,
}

impl Yardstick {
    pub(super) fn new(plan: OffloadPlan, began: Arc<AtomicU64>) -> Yardstick {
        Yardstick { plan, began }
    }

    /// When a flow is to be in the card, and how far the run is.
    fn stay(&self, now: Time, flow: &FlowStats) -> Option<(Stay, u64)> {
        let address = u32::from_be_bytes(flow.client.address.ipv4_octets());
        let stay = self.plan.stays.get(&name(address, flow.client.port, flow.protocol))?;
        Some((*stay, now.as_nanos().saturating_sub(self.began.load(Ordering::Relaxed))))
    }
}

impl OffloadPolicy for Yardstick {
    fn name(&self) -> &'static str {
        "yardstick"
    }
    fn on_packet(&mut self, now: Time, flow: &FlowStats, room: EngineRoom) -> Verdict {
        match self.stay(now, flow) {
            None => Verdict::Keep(Reason::Unprofitable),
            Some((stay, since)) if since < stay.from => Verdict::Keep(Reason::Small),
            Some((stay, since)) if since >= stay.until => Verdict::Keep(Reason::Unprofitable),
            Some(_) if room.rules.saturating_add(2) > room.rules_max => Verdict::Keep(Reason::Room),
            Some(_) => Verdict::Offload,
        }
    }
    fn on_sample(&mut self, now: Time, flow: &FlowStats, _: EngineRoom) -> Verdict {
        match self.stay(now, flow) {
            Some((stay, since)) if since <= stay.until => Verdict::Offload,
            _ => Verdict::Evict(Reason::Unprofitable),
        }
    }
    fn samples_within(&self) -> Option<Duration> {
        self.plan.is_short.then_some(SAMPLES_WITHIN)
    }
}
