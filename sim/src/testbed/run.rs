//! A run: what happens, in the order of time.
//!
//! Three things can be next: a packet is through the line in, a packet that the card has turned round comes out of it, a
//! core is done with what it was at. Of those at the same time the core is first, then the card.

use super::card::{Card, Turned};
use super::core::{Phase, TestbedWorker};
use super::frames::{BACKENDS, LENGTH, NOWHERE, Packet, Sheet};
use super::results::{Results, Rows};
use super::{Mistake, Offered, Testbed, Traffic};
use crate::nic::{Passage, Tally};
use hairpin_core::engine::{Completion, FlowEngine, RuleOp, Samples};
use hairpin_core::flow::{Direction, FlowKey};
use hairpin_core::frame::{Batch, Egress, Frame};
use hairpin_core::offload::Reason;
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::Malformed;
use hairpin_core::worker::{Asked, Drop, Statistics};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Packets in a turn at most.
pub(super) const BURST: usize = 32;
/// Packets that are fetched from the traffic at a time.
const AHEAD: usize = 256;
/// How often a core looks after timeouts, and at all if it has nothing to do: so many nanoseconds at full scale.
const LOOK_NS: f64 = 20_000.0;
/// Rules may take so long to come to rest after a run.
const SETTLES: Duration = Duration::from_secs(60);
/// Packets between two reports of progress.
const PROGRESS: u64 = 1 << 16;
/// Planted mistakes are made once in so many packets.
const SELDOM: u64 = 1000;

/// Why a packet is lost but for the worker's reasons.
#[derive(Clone, Copy)]
enum Loss {
    ReceiveQueue,
    SendingQueue,
    Card,
    NoBackendYet,
    NoSuchFlow,
    NotTheServices,
    Unexplained,
}

const LOSSES: [(Loss, &str); 7] = [
    (Loss::ReceiveQueue, "receive-queue"),
    (Loss::SendingQueue, "sending-queue"),
    (Loss::Card, "card"),
    (Loss::NoBackendYet, "no-backend-yet"),
    (Loss::NoSuchFlow, "no-such-flow"),
    (Loss::NotTheServices, "not-the-service's"),
    (Loss::Unexplained, "unexplained"),
];

/// What is counted in a run.
struct Count {
    rows: Rows,
    offered: u64,
    received: u64,
    received_bytes: u64,
    lost: [u64; LOSSES.len()],
    drops: [u64; Drop::ALL.len()],
    malformed: [u64; Malformed::ALL.len()],
    unfaithful: u64,
    /// When the last packet has left.
    last: u64,
    /// Rules, times nanoseconds, until then.
    rules: (f64, u64),
    rules_peak: u32,
}

/// What workers and card had counted before.
struct Before {
    busy: Vec<u64>,
    kept: [u64; Reason::ALL.len()],
    evicted: [u64; Reason::ALL.len()],
    established: u64,
    card: Tally,
}

/// A run under way.
struct Run<'a> {
    bed: &'a mut Testbed,
    began: u64,
    count: Count,
    /// Out of the traffic, and when they are through the line in.
    ahead: VecDeque<(u64, Packet)>,
    /// Flows of those, by core.
    expected: Vec<Batch<FlowKey>>,
    /// Out of the card.
    turned: VecDeque<Turned<Packet>>,
    /// The core that is done next, and when.
    soonest: (u64, usize),
    /// A core's frames before and after a turn, and its packets.
    frames: (Batch<Sheet>, Batch<Sheet>),
    burst: Vec<Packet>,
    look: u64,
    queue: usize,
    beside: u64,
    /// Packets that a planted mistake might have hit.
    chances: u64,
}

impl Testbed {
    /// Offers all of `traffic`, and says what became of it. `progress` is told every so often: the time since the beginning,
    /// and how many packets there have been.
    ///
    /// A second run is papers/001's run 2: what the device knows it still knows.
    pub fn run<T: Traffic>(&mut self, traffic: &mut T, progress: &mut dyn FnMut(Time, u64)) -> Results {
        let before = self.counted();
        let mut run = Run::begin(self, traffic.flows());
        let mut tells_at = PROGRESS;
        while run.step(traffic) {
            if run.count.offered >= tells_at {
                tells_at += PROGRESS;
                progress(Time::from_nanos(run.bed.now - run.began), run.count.offered);
            }
        }
        run.settle();
        run.finish(&before)
    }

    fn counted(&self) -> Before {
        let mut before = Before {
            busy: self.cores.iter().map(|core| core.busy_ns).collect(),
            kept: [0; Reason::ALL.len()],
            evicted: [0; Reason::ALL.len()],
            established: 0,
            card: self.card.as_ref().map(|card| card.nic.tally()).unwrap_or_default(),
        };
        for statistics in self.cores.iter().filter_map(|core| core.worker.as_ref()).map(TestbedWorker::statistics) {
            let offload = &statistics.offload;
            for reason in Reason::ALL {
                before.kept[reason as usize] += offload.kept[reason as usize];
                before.evicted[reason as usize] += offload.evicted[reason as usize];
            }
            before.established += statistics.services.iter().map(|service| service.established).sum::<u64>();
        }
        before
    }
}

impl<'a> Run<'a> {
    fn begin(bed: &'a mut Testbed, flows: u32) -> Run<'a> {
        let began = bed.now;
        if bed.seen.len() < flows as usize {
            bed.seen.resize(flows as usize, NOWHERE);
        }
        bed.began.store(began, Ordering::Relaxed);
        let rules = bed.card.as_ref().map_or(0, |card| card.nic.rules()) as u32;
        let count = Count {
            rows: Rows::new(began, bed.options.interval),
            offered: 0,
            received: 0,
            received_bytes: 0,
            lost: [0; LOSSES.len()],
            drops: [0; Drop::ALL.len()],
            malformed: [0; Malformed::ALL.len()],
            unfaithful: 0,
            last: began,
            rules: (0.0, began),
            rules_peak: rules,
        };
        let slower = if bed.card.is_some() { 1.0 } else { 10.0 };
        let mut run = Run {
            began,
            count,
            ahead: VecDeque::with_capacity(AHEAD),
            expected: vec![Batch::new(); bed.cores.len()],
            turned: VecDeque::new(),
            soonest: (u64::MAX, 0),
            frames: (Batch::new(), Batch::new()),
            burst: Vec::with_capacity(BURST),
            look: (LOOK_NS * slower / bed.options.scale) as u64,
            queue: bed.options.port.queue as usize,
            beside: (bed.options.port.latency.as_nanos() as f64 / bed.options.scale) as u64,
            chances: 0,
            bed,
        };
        run.bed.cores.iter_mut().for_each(|core| core.until = core.until.max(began));
        run.seek_soonest();
        run.tell_costs();
        run
    }

    fn seek_soonest(&mut self) {
        let cores = self.bed.cores.iter().enumerate();
        self.soonest = cores.map(|(number, core)| (core.until, number)).min().unwrap_or((u64::MAX, 0));
    }

    /// Policies hear what a packet costs, with as many flows as there are.
    fn tell_costs(&mut self) {
        for core in &mut self.bed.cores {
            if let Some(worker) = &mut core.worker {
                let connections = worker.statistics().connections_now as u32;
                worker.set_costs(self.bed.costs.told(connections));
            }
        }
    }

    /// Does what is next; `false`: all is over.
    fn step<T: Traffic>(&mut self, traffic: &mut T) -> bool {
        if self.ahead.is_empty() {
            self.fetch(traffic);
        }
        let arrives = self.ahead.front().map_or(u64::MAX, |(at, _)| *at);
        let turned = self.turned.front().map_or(u64::MAX, |turned| turned.at);
        let idle = |core: &super::core::Core| core.phase == Phase::Idle && core.queue.is_empty();
        if arrives == u64::MAX && turned == u64::MAX && self.bed.cores.iter().all(idle) {
            return false;
        }
        let now = arrives.min(turned).min(self.soonest.0);
        self.come_to(now);
        if self.soonest.0 <= now {
            self.core_is_done(self.soonest.1, now);
            self.seek_soonest();
        } else if turned <= now {
            if let Some(Turned { packet, .. }) = self.turned.pop_front() {
                self.leave(now, packet, 0);
            }
        } else if let Some((_, packet)) = self.ahead.pop_front() {
            self.arrive(now, packet);
        }
        true
    }

    /// Fetches some packets from the traffic.
    fn fetch<T: Traffic>(&mut self, traffic: &mut T) {
        while self.ahead.len() < AHEAD
            && let Some(Offered { at, flow, length, direction, part }) = traffic.next()
        {
            let offered = self.began + at.as_nanos();
            let length = length.clamp(*LENGTH.start(), *LENGTH.end());
            let through = self.bed.line_in.through(offered, length);
            let seen = self.bed.seen.get(flow as usize).copied();
            let key = if seen.is_some() { traffic.key(flow) } else { FlowKey::default() };
            let packet = Packet {
                offered,
                flow,
                client: u32::from_be_bytes(key.source.address.ipv4_octets()),
                port: key.source.port,
                length,
                // That may have changed when it arrives.
                backend: seen.unwrap_or(NOWHERE),
                core: self.bed.steering.worker(&key.source) as u8,
                direction,
                part,
                protocol: key.protocol,
            };
            self.ahead.push_back((through, packet));
        }
        self.warm();
    }

    /// Brings into the cache what the packets fetched will need, many at a time: when their turn comes they come one by one,
    /// and each would wait for memory by itself. Nothing of what happens depends on it.
    fn warm(&mut self) {
        for (_, packet) in &self.ahead {
            let key = packet.key();
            let by_card = |card: &Card| packet.may_match() && card.nic.warm(&key);
            if self.bed.card.as_ref().is_some_and(by_card) {
                continue;
            }
            let number = usize::from(packet.core);
            let Some(worker) = &self.bed.cores[number].worker else { continue };
            let expected = &mut self.expected[number];
            expected.push(key);
            if expected.is_full() {
                worker.warm(expected);
                expected.clear();
            }
        }
        for (expected, core) in self.expected.iter_mut().zip(&self.bed.cores) {
            if let Some(worker) = &core.worker {
                worker.warm(expected);
            }
            expected.clear();
        }
    }

    /// Lets time pass: rows end, and packets have left.
    fn come_to(&mut self, now: u64) {
        while self.count.rows.ends <= now {
            self.sink(self.count.rows.ends - 1);
            let rules = self.bed.card.as_ref().map_or(0, |card| card.nic.rules()) as u32;
            self.count.rows.close(rules);
            self.tell_costs();
        }
        self.bed.now = now;
    }

    /// Takes the packets that have left.
    fn sink(&mut self, by: u64) {
        while let Some(left) = self.bed.line_out.left(by) {
            self.count.received += 1;
            self.count.received_bytes += u64::from(left.length);
            self.count.last = self.count.last.max(left.at + left.beside);
            self.count.rows.received(&left);
        }
    }

    fn lose(&mut self, now: u64, packet: &Packet, why: Loss) {
        self.count.lost[why as usize] += 1;
        self.count.rows.lost(now, packet.length);
    }

    /// A packet is through the line in.
    fn arrive(&mut self, now: u64, mut packet: Packet) {
        self.count.offered += 1;
        self.count.rows.offered(packet.offered, packet.length);
        let Some(&seen) = self.bed.seen.get(packet.flow as usize) else {
            return self.lose(now, &packet, Loss::NoSuchFlow);
        };
        packet.backend = if packet.direction == Direction::FromBackend { seen } else { NOWHERE };
        let balances = self.bed.cores[0].worker.is_some();
        if balances && packet.direction == Direction::FromBackend && seen == NOWHERE {
            return self.lose(now, &packet, Loss::NoBackendYet);
        }
        if let Some(card) = &mut self.bed.card
            && packet.may_match()
        {
            let (passage, to) = card.nic.carry(Time::from_nanos(now), &packet.key(), usize::from(packet.length));
            match passage {
                Passage::Forward(at) => {
                    if let (Some(to), Direction::FromClient) = (to, packet.direction) {
                        let number = u32::from_be_bytes(to.address.ipv4_octets()).wrapping_sub(BACKENDS);
                        packet.backend = u16::try_from(number).unwrap_or(NOWHERE);
                    }
                    return self.turned.push_back(Turned { at: at.as_nanos(), packet });
                }
                Passage::Lost => return self.lose(now, &packet, Loss::Card),
                Passage::Pass => return self.lose(now, &packet, Loss::NotTheServices),
                Passage::Miss => {}
            }
        }
        let number = usize::from(packet.core);
        let core = &mut self.bed.cores[number];
        if core.queue.len() >= self.queue {
            return self.lose(now, &packet, Loss::ReceiveQueue);
        }
        core.queue.push_back(packet);
        if core.phase == Phase::Idle {
            core.until = core.until.min(now + self.bed.costs.until_seen());
            self.soonest = self.soonest.min((core.until, number));
        }
    }

    /// A packet is to be sent.
    fn leave(&mut self, now: u64, mut packet: Packet, beside: u64) {
        self.sink(now);
        let hit = |chances: &mut u64| {
            *chances += 1;
            chances.is_multiple_of(SELDOM)
        };
        match self.bed.mistake {
            Some(Mistake::Vanishes) if hit(&mut self.chances) => return,
            Some(Mistake::OtherBackend) if hit(&mut self.chances) => packet.backend ^= 1,
            _ => {}
        }
        if !self.bed.line_out.send(now, packet.offered, packet.length, beside) {
            return self.lose(now, &packet, Loss::SendingQueue);
        }
        let seen = &mut self.bed.seen[packet.flow as usize];
        if packet.direction == Direction::FromClient && *seen != packet.backend {
            if *seen != NOWHERE && packet.part != super::Part::First {
                self.count.unfaithful += 1;
            }
            *seen = packet.backend;
        }
    }

    /// A core is done with what it was at.
    fn core_is_done(&mut self, number: usize, now: u64) {
        let core = &mut self.bed.cores[number];
        let phase = core.phase;
        if phase == Phase::Packets {
            let mut leaving = std::mem::take(&mut core.leaving);
            for packet in leaving.drain(..) {
                self.leave(now, packet, self.beside);
            }
            self.bed.cores[number].leaving = leaving;
        }
        let core = &self.bed.cores[number];
        if phase == Phase::Packets || phase == Phase::Idle && core.queue.is_empty() {
            let takes = self.rules(number, now).round() as u64;
            let core = &mut self.bed.cores[number];
            core.busy_ns += takes;
            if takes > 0 {
                (core.phase, core.until) = (Phase::Rules, now + takes);
                return;
            }
        }
        let core = &mut self.bed.cores[number];
        if core.queue.is_empty() {
            (core.phase, core.until) = (Phase::Idle, now + self.look);
            return;
        }
        let takes = (self.turn(number, now).round() as u64).max(1);
        let core = &mut self.bed.cores[number];
        core.busy_ns += takes;
        (core.phase, core.until) = (Phase::Packets, now + takes);
    }

    /// A core handles a burst; how long that takes, in nanoseconds.
    fn turn(&mut self, number: usize, now: u64) -> f64 {
        let core = &mut self.bed.cores[number];
        let size = core.queue.len().min(BURST);
        let Some(worker) = &mut core.worker else {
            core.leaving.extend(core.queue.drain(..size));
            return self.bed.costs.forward(size);
        };
        let (rx, tx) = (&mut self.frames.0, &mut self.frames.1);
        self.burst.clear();
        for (ticket, packet) in core.queue.drain(..size).enumerate() {
            rx.push(self.bed.plane.frame(&packet, ticket as u32 + 1));
            self.burst.push(packet);
        }
        let before = (worker.statistics().drops, worker.statistics().malformed);
        worker.handle_batch(Time::from_nanos(now), &mut self.bed.plane, rx, tx);
        let mut missing: u64 = (1 << size) - 1;
        let mut given_back: u64 = 0;
        for frame in tx.drain(..) {
            let place = (frame.meta().ticket as usize).wrapping_sub(1);
            let Some(packet) = self.burst.get(place) else { continue };
            if frame.meta().egress == Egress::GiveBack {
                given_back |= 1 << place;
                continue;
            }
            let backend = packet.carried_to(frame.bytes());
            if backend != NOWHERE {
                missing &= !(1 << place);
                core.leaving.push(Packet { backend, ..*packet });
            }
        }
        let (new, ended, in_use) = core.changes();
        let takes = self.bed.costs.turn(size, new, ended, in_use, &mut core.costs);
        if missing != 0 {
            self.explain(number, now, missing, given_back, before);
        }
        takes
    }

    /// Finds out why packets have not come out of a turn.
    fn explain(
        &mut self,
        number: usize,
        now: u64,
        missing: u64,
        given_back: u64,
        before: ([u64; Drop::ALL.len()], [u64; Malformed::ALL.len()]),
    ) {
        let Some(worker) = &self.bed.cores[number].worker else { return };
        let Statistics { drops, malformed, .. } = worker.statistics();
        let mut dropped = (0..drops.len()).flat_map(|why| (before.0[why]..drops[why]).map(move |_| why));
        let mut broken = (0..malformed.len()).flat_map(|why| (before.1[why]..malformed[why]).map(move |_| why));
        for (place, packet) in self.burst.iter().enumerate().filter(|(place, _)| missing & 1 << place != 0) {
            self.count.rows.lost(now, packet.length);
            if given_back & 1 << place != 0 {
                self.count.lost[Loss::NotTheServices as usize] += 1;
            } else if let Some(why) = dropped.next() {
                self.count.drops[why] += 1;
            } else if let Some(why) = broken.next() {
                self.count.malformed[why] += 1;
            } else {
                self.count.lost[Loss::Unexplained as usize] += 1;
            }
        }
    }

    /// A core looks after timeouts and rules; how long that takes, in nanoseconds.
    fn rules(&mut self, number: usize, now: u64) -> f64 {
        let time = Time::from_nanos(now);
        if let Some(card) = &mut self.bed.card {
            let rules = card.nic.rules() as u32;
            self.count.rules.0 += f64::from(rules) * (now - self.count.rules.1) as f64;
            self.count.rules.1 = now;
            self.count.rules_peak = self.count.rules_peak.max(rules);
            card.deal(time, &mut self.bed.cores);
        }
        let core = &mut self.bed.cores[number];
        let Some(worker) = &mut core.worker else { return 0.0 };
        if now >= core.looks_at {
            core.looks_at = now + self.look;
            if worker.poll_timeout(time).is_some_and(|due| due <= time) {
                worker.handle_timeout(time);
            }
        }
        let mut asked = 0;
        if let Some(card) = &mut self.bed.card {
            let mut handle = card.handle(number);
            sample(worker, &mut handle, time);
            while let Some(op) = worker.poll_op() {
                if self.bed.mistake == Some(Mistake::KeepsRules)
                    && let RuleOp::Remove { id, .. } = op
                {
                    core.inbox.push_back(Completion::Removed(id, None));
                    continue;
                }
                if let Err(op) = handle.submit(time, op) {
                    worker.return_op(op);
                    break;
                }
                asked += 1;
            }
            if asked > 0 {
                handle.flush(time);
            }
            while let Some(completion) = core.inbox.pop_front() {
                worker.handle_completion(time, &completion);
            }
        }
        let (_, ended, _) = core.changes();
        self.bed.costs.ends(ended) + self.bed.costs.rules(asked)
    }

    /// Waits until the last packet has left, and until what was asked of the card is done.
    fn settle(&mut self) {
        while !self.bed.line_out.is_empty() {
            self.come_to(self.count.rows.ends.min(self.bed.now + self.look));
            self.sink(self.bed.now);
        }
        let until = self.bed.now.saturating_add(SETTLES.as_nanos() as u64);
        let (area, peak) = (self.count.rules, self.count.rules_peak);
        while self.bed.card.is_some() && self.bed.now < until {
            self.bed.now += self.look;
            let asked: f64 = (0..self.bed.cores.len()).map(|number| self.rules(number, self.bed.now)).sum();
            let waiting = self.bed.cores.iter().any(|core| !core.inbox.is_empty());
            if asked == 0.0 && !waiting && self.bed.card.as_ref().is_none_or(|card| card.nic.is_idle()) {
                break;
            }
        }
        (self.count.rules, self.count.rules_peak) = (area, peak);
        self.bed.cores.iter_mut().for_each(|core| core.until = core.until.max(self.bed.now));
    }

    /// Adds everything up, and checks it.
    fn finish(self, before: &Before) -> Results {
        let after = self.bed.counted();
        let Count { rows, offered, received, received_bytes, lost, drops, malformed, unfaithful, last, .. } =
            self.count;
        let (rows, latency) = rows.finish();
        let own = LOSSES.iter().map(|&(why, name)| (name, lost[why as usize]));
        let dropped = Drop::ALL.iter().map(|&why| (why.name(), drops[why as usize]));
        let broken = Malformed::ALL.iter().map(|&why| (why.name(), malformed[why.index()]));
        let lost: Vec<(&'static str, u64)> = own.chain(dropped).chain(broken).filter(|&(_, count)| count > 0).collect();
        let verdicts = |after: &[u64], before: &[u64]| {
            let each = Reason::ALL.iter().map(|&why| (why.name(), after[why as usize] - before[why as usize]));
            each.filter(|&(_, count)| count > 0).collect()
        };
        let (mean, since) = (self.count.rules.0, self.count.rules.1 - self.began);
        let results = Results {
            rows,
            offered,
            received,
            received_bytes,
            duration: Duration::from_nanos(last - self.began),
            latency,
            offloaded_packets: after.card.forwarded - before.card.forwarded,
            offloaded_bytes: after.card.bytes - before.card.bytes,
            rules_mean: if since == 0 { 0.0 } else { mean / since as f64 },
            rules_peak: if after.card.rules_peak > before.card.rules_peak {
                after.card.rules_peak
            } else {
                self.count.rules_peak
            },
            inserted: after.card.inserted - before.card.inserted,
            deleted: after.card.deleted - before.card.deleted,
            refused: (after.card.full + after.card.failed) - (before.card.full + before.card.failed),
            busy: self
                .bed
                .cores
                .iter()
                .zip(&before.busy)
                .map(|(core, was)| core.busy_ns - was)
                .map(Duration::from_nanos)
                .collect(),
            kept: verdicts(&after.kept, &before.kept),
            evicted: verdicts(&after.evicted, &before.evicted),
            established: after.established - before.established,
            unfaithful,
            lost,
            failures: Vec::new(),
        };
        let failures = self.bed.failures(&results);
        Results { failures, ..results }
    }
}

/// Reads the counters that a worker asks for.
fn sample(worker: &mut TestbedWorker, handle: &mut impl FlowEngine, now: Time) {
    let mut asked = Asked::new();
    worker.poll_samples(&mut asked);
    if !asked.is_empty() {
        let mut samples = Samples::new();
        handle.sample(&asked, &mut samples);
        worker.handle_samples(now, &asked, &samples);
    }
}

impl Testbed {
    /// What is wrong with what a run has shown.
    fn failures(&self, results: &Results) -> Vec<String> {
        let mut failures = Vec::new();
        let lost: u64 = results.lost.iter().map(|(_, count)| count).sum();
        if results.offered != results.received + lost {
            let (offered, received) = (results.offered, results.received);
            failures.push(format!("{offered} packets were offered, {received} received and {lost} lost"));
        }
        if let Some((_, count)) = results.lost.iter().find(|(why, _)| *why == "unexplained") {
            failures.push(format!("{count} packets did not come out of a worker, which does not say why"));
        }
        let Some(card) = self.card.as_ref().filter(|card| card.nic.is_idle()) else { return failures };
        let workers = || self.cores.iter().filter_map(|core| core.worker.as_ref());
        let ledger: usize = workers().map(|worker| worker.ledger().count()).sum();
        if ledger != card.nic.rules() {
            failures.push(format!("the workers know of {ledger} rules, the card has {}", card.nic.rules()));
        }
        let unknown = workers().flat_map(|worker| worker.ledger()).filter(|key| !card.nic.holds(key)).count();
        if unknown > 0 {
            failures.push(format!("of the rules that the workers know of, the card has not got {unknown}"));
        }
        failures
    }
}
