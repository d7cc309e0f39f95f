//! A run: what happens, in the order of time.
//!
//! Three things can be next: a packet is through the line in, a packet that the card has turned round comes out of it, a
//! core is done with what it was at. Of those at the same time the core is first, then the card.

use super::account::{Loss, RunCounts, dropped};
use super::card::Turned;
use super::core::Phase;
use super::costs::BurstCounts;
use super::frames::{BACKENDS, LENGTH, ModelPacket, NOWHERE, Sheet};
use super::results::RunResults;
use super::{CardAction, Mistake, ModelTestbed, ModelTraffic, OfferedPacket};
use crate::nic::{Hint, Passage};
use hairpin_core::engine::{Completion, FlowEngine, RuleOp};
use hairpin_core::flow::{Direction, FlowKey};
use hairpin_core::frame::{Batch, Egress, Frame};
use hairpin_core::time::{Duration, Time};
use std::collections::VecDeque;
use std::sync::atomic::Ordering;

/// Packets in an iteration at most.
pub(super) const BURST: usize = 32;
/// Packets that are fetched from the traffic at a time.
const AHEAD: usize = 256;
/// The interval in which a core handles timeouts, and polls if it has nothing to do: nanoseconds at full scale.
const POLL_NS: f64 = 20_000.0;
/// Rules may take so long to come to rest after a run.
const SETTLES: Duration = Duration::from_secs(60);
/// Packets between two reports of progress.
const PROGRESS: u64 = 1 << 16;
/// Planted mistakes are made once in so many packets.
const SELDOM: u64 = 1000;

/// A packet out of the traffic.
struct Ahead {
    /// When it is through the line in.
    through: u64,
    packet: ModelPacket,
    /// The place of the card's rule for it.
    hint: Option<Hint>,
}

/// A run under way.
struct TestbedRun<'a> {
    bed: &'a mut ModelTestbed,
    began: u64,
    count: RunCounts,
    /// Out of the traffic, and which of them is next.
    ahead: Vec<Ahead>,
    next: usize,
    /// Flows of those: all that the card may have a rule for, and by core.
    flows: Vec<FlowKey>,
    hints: Vec<Hint>,
    expected: Vec<Batch<FlowKey>>,
    /// Out of the card.
    turned: VecDeque<Turned<ModelPacket>>,
    /// The core that is done next, and when.
    soonest: (u64, usize),
    /// A core's frames before and after an iteration, and its packets.
    frames: (Batch<Sheet>, Batch<Sheet>),
    burst: Vec<ModelPacket>,
    poll: u64,
    queue: usize,
    beside: u64,
    /// Packets that a planted mistake might have hit.
    chances: u64,
}

impl ModelTestbed {
    /// Offers all of `traffic`, and says what became of it. `progress` is told every so often: the time since the
    /// beginning, and how many packets there have been.
    ///
    /// A second run is KTH 2022's run 2: what the device knows it still knows.
    pub fn run<T: ModelTraffic>(&mut self, traffic: &mut T, progress: &mut dyn FnMut(Time, u64)) -> RunResults {
        let before = self.counted();
        let mut run = TestbedRun::begin(self, traffic.flows());
        let mut tells_at = PROGRESS;
        while run.step(traffic) {
            if run.count.offered >= tells_at {
                tells_at += PROGRESS;
                progress(Time::from_nanos(run.bed.now - run.began), run.count.offered);
            }
        }
        run.settle();
        let TestbedRun { bed, began, count, .. } = run;
        count.results(bed, began, &before)
    }
}

impl<'a> TestbedRun<'a> {
    fn begin(bed: &'a mut ModelTestbed, flows: u32) -> TestbedRun<'a> {
        let began = bed.now;
        if bed.seen.len() < flows as usize {
            bed.seen.resize(flows as usize, NOWHERE);
        }
        bed.began.store(began, Ordering::Relaxed);
        let rules = bed.card.as_ref().map_or(0, |card| card.nic.rules()) as u32;
        let count = RunCounts::new(began, bed.options.interval, rules);
        let slower = if bed.card.is_some() { 1.0 } else { 10.0 };
        let mut run = TestbedRun {
            began,
            count,
            ahead: Vec::with_capacity(AHEAD),
            next: 0,
            flows: Vec::with_capacity(AHEAD),
            hints: Vec::with_capacity(AHEAD),
            expected: vec![Batch::new(); bed.cores.len()],
            turned: VecDeque::new(),
            soonest: (u64::MAX, 0),
            frames: (Batch::new(), Batch::new()),
            burst: Vec::with_capacity(BURST),
            poll: (POLL_NS * slower / bed.options.scale) as u64,
            queue: bed.options.port.queue as usize,
            beside: (bed.options.port.latency.as_nanos() as f64 / bed.options.scale) as u64,
            chances: 0,
            bed,
        };
        run.bed.until.iter_mut().for_each(|until| *until = (*until).max(began));
        run.seek_soonest();
        run.tell_costs();
        run
    }

    fn seek_soonest(&mut self) {
        let cores = self.bed.until.iter().enumerate();
        self.soonest = cores.map(|(number, until)| (*until, number)).min().unwrap_or((u64::MAX, 0));
    }

    /// Policies hear what a packet costs.
    fn tell_costs(&mut self) {
        for core in &mut self.bed.cores {
            if let Some(worker) = &mut core.worker {
                let told = self.bed.costs.told(core.busy_ns, worker.statistics());
                worker.set_costs(told);
            }
        }
    }

    /// Does what is next; `false`: all is over.
    fn step<T: ModelTraffic>(&mut self, traffic: &mut T) -> bool {
        if self.next >= self.ahead.len() {
            self.fetch(traffic);
        }
        let arrives = self.ahead.get(self.next).map_or(u64::MAX, |ahead| ahead.through);
        let turned = self.turned.front().map_or(u64::MAX, |turned| turned.at);
        let idle = |core: &super::core::ModelCore| core.phase == Phase::Idle && core.queue.is_empty();
        if arrives == u64::MAX && turned == u64::MAX && self.bed.cores.iter().all(idle) {
            return false;
        }
        let now = arrives.min(turned).min(self.soonest.0);
        self.come_to(now);
        if self.soonest.0 <= now {
            self.core_is_done(self.soonest.1, now);
            self.seek_soonest();
        } else if turned <= now {
            match self.turned.pop_front() {
                Some(Turned { packet, .. }) if packet.marked => self.receive(now, packet),
                Some(Turned { packet, .. }) => self.leave(now, packet, 0),
                None => {}
            }
        } else if let Some(&Ahead { packet, hint, .. }) = self.ahead.get(self.next) {
            self.next += 1;
            self.arrive(now, packet, hint);
        }
        true
    }

    /// Fetches some packets from the traffic.
    fn fetch<T: ModelTraffic>(&mut self, traffic: &mut T) {
        self.ahead.clear();
        self.next = 0;
        while self.ahead.len() < AHEAD
            && let Some(OfferedPacket { at, flow, length, direction, part }) = traffic.next()
        {
            let offered = self.began + at.as_nanos();
            let length = length.clamp(*LENGTH.start(), *LENGTH.end());
            let through = self.bed.line_in.through(offered, length);
            let seen = self.bed.seen.get(flow as usize).copied();
            let key = if seen.is_some() { traffic.key(flow) } else { FlowKey::default() };
            let packet = ModelPacket {
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
                marked: false,
            };
            self.ahead.push(Ahead { through, packet, hint: None });
        }
        self.warm();
    }

    /// Brings into the cache what the packets fetched will need, many at a time: when their turn comes they come one by
    /// one, and each would wait for memory by itself. Nothing of what happens depends on it.
    fn warm(&mut self) {
        if let Some(card) = &self.bed.card {
            self.flows.clear();
            self.flows
                .extend(self.ahead.iter().filter(|ahead| ahead.packet.may_match()).map(|ahead| ahead.packet.key()));
            self.hints.resize(self.flows.len(), card.nic.no_hint());
            card.nic.warm(&self.flows, &mut self.hints);
            let matching = self.ahead.iter_mut().filter(|ahead| ahead.packet.may_match());
            matching.zip(&self.hints).for_each(|(ahead, hint)| ahead.hint = Some(*hint));
        }
        let forwards = self.bed.card.as_ref().is_none_or(|card| card.action == CardAction::Forward);
        for Ahead { packet, hint, .. } in &self.ahead {
            let number = usize::from(packet.core);
            let Some(worker) = &self.bed.cores[number].worker else { continue };
            if forwards && hint.is_some_and(|hint| hint.is_found()) {
                continue;
            }
            let expected = &mut self.expected[number];
            expected.push(packet.key());
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

    /// A packet is through the line in.
    fn arrive(&mut self, now: u64, mut packet: ModelPacket, hint: Option<Hint>) {
        self.count.offered += 1;
        self.count.rows.offered(packet.offered, packet.length);
        let Some(&seen) = self.bed.seen.get(packet.flow as usize) else {
            return self.count.lose(now, &packet, Loss::NoSuchFlow);
        };
        packet.backend = if packet.direction == Direction::FromBackend { seen } else { NOWHERE };
        let balances = self.bed.cores[0].worker.is_some();
        if balances && packet.direction == Direction::FromBackend && seen == NOWHERE {
            return self.count.lose(now, &packet, Loss::NoBackendYet);
        }
        let Some(card) = &mut self.bed.card else { return self.receive(now, packet) };
        if packet.may_match() {
            let hint = hint.unwrap_or_else(|| card.nic.no_hint());
            let length = usize::from(packet.length);
            let (passage, to) = card.nic.forward(Time::from_nanos(now), &packet.key(), length, hint);
            match passage {
                Passage::Forward(at) if card.action == CardAction::Mark => {
                    packet.marked = true;
                    return self.turned.push_back(Turned { at: at.as_nanos().saturating_sub(card.latency), packet });
                }
                Passage::Forward(at) => {
                    if let (Some(to), Direction::FromClient) = (to, packet.direction) {
                        let number = u32::from_be_bytes(to.address.ipv4_octets()).wrapping_sub(BACKENDS);
                        packet.backend = u16::try_from(number).unwrap_or(NOWHERE);
                    }
                    return self.turned.push_back(Turned { at: at.as_nanos(), packet });
                }
                Passage::Lost => return self.count.lose(now, &packet, Loss::Card),
                Passage::Pass => return self.count.lose(now, &packet, Loss::NotTheServices),
                Passage::Miss => {}
            }
        }
        self.receive(now, packet);
    }

    /// A packet goes into the queue of its core.
    fn receive(&mut self, now: u64, packet: ModelPacket) {
        let number = usize::from(packet.core);
        let core = &mut self.bed.cores[number];
        if core.queue.len() >= self.queue {
            return self.count.lose(now, &packet, Loss::ReceiveQueue);
        }
        core.queue.push_back(packet);
        if core.phase == Phase::Idle {
            let until = &mut self.bed.until[number];
            *until = (*until).min(now + self.bed.costs.until_seen());
            self.soonest = self.soonest.min((*until, number));
        }
    }

    /// A packet is to be sent.
    fn leave(&mut self, now: u64, mut packet: ModelPacket, beside: u64) {
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
            return self.count.lose(now, &packet, Loss::SendingQueue);
        }
        let seen = &mut self.bed.seen[packet.flow as usize];
        if packet.direction == Direction::FromClient && *seen != packet.backend {
            if *seen != NOWHERE && packet.part != super::FlowPart::First {
                self.count.unfaithful += 1;
            }
            *seen = packet.backend;
        }
    }

    /// A core is done with what it was at.
    fn core_is_done(&mut self, number: usize, now: u64) {
        let waits = self.bed.card.as_ref().is_some_and(|card| card.waits);
        let core = &self.bed.cores[number];
        let turns_to_rules = match core.phase {
            Phase::Packets => true,
            Phase::Rules => waits,
            Phase::Idle => core.queue.is_empty(),
        };
        // A worker that waits for the card keeps the packets of its burst until then.
        if core.phase == Phase::Packets && !waits {
            self.depart(number, now);
        }
        if turns_to_rules {
            let asks = self.rules(number, now).round() as u64;
            let takes = if waits { asks.max(self.until_card(number, now)) } else { asks };
            if takes > 0 {
                return self.occupy(number, Phase::Rules, now, takes);
            }
        }
        self.depart(number, now);
        if self.bed.cores[number].queue.is_empty() {
            (self.bed.cores[number].phase, self.bed.until[number]) = (Phase::Idle, now + self.poll);
            return;
        }
        let takes = (self.iteration(number, now).round() as u64).max(1);
        self.occupy(number, Phase::Packets, now, takes);
    }

    /// A core is busy for so long.
    fn occupy(&mut self, number: usize, phase: Phase, now: u64, takes: u64) {
        let core = &mut self.bed.cores[number];
        core.busy_ns += takes;
        (core.phase, self.bed.until[number]) = (phase, now + takes);
    }

    /// Sends the packets that a core has done with.
    fn depart(&mut self, number: usize, now: u64) {
        let mut leaving = std::mem::take(&mut self.bed.cores[number].leaving);
        for packet in leaving.drain(..) {
            self.leave(now, packet, self.beside);
        }
        self.bed.cores[number].leaving = leaving;
    }

    /// How long it is until the card is done with the next of its work; 0: it owes this core nothing.
    fn until_card(&self, number: usize, now: u64) -> u64 {
        let Some(card) = self.bed.card.as_ref().filter(|_| self.bed.cores[number].unanswered > 0) else { return 0 };
        card.nic.next().map_or(0, |at| at.as_nanos().saturating_sub(now).max(1))
    }

    /// A core handles a burst; how long that takes, in nanoseconds.
    fn iteration(&mut self, number: usize, now: u64) -> f64 {
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
        let before = dropped(worker.statistics());
        worker.handle_batch(Time::from_nanos(now), &mut self.bed.plane, rx, tx);
        let mut missing: u64 = (1 << size) - 1;
        for frame in tx.drain(..) {
            let place = (frame.meta().ticket as usize).wrapping_sub(1);
            let Some(packet) = self.burst.get(place) else { continue };
            if frame.meta().egress == Egress::Kernel {
                missing &= !(1 << place);
                self.count.lose(now, packet, Loss::NotTheServices);
                continue;
            }
            let backend = packet.destination_of(frame.bytes());
            if backend != NOWHERE {
                missing &= !(1 << place);
                core.leaving.push(ModelPacket { backend, ..*packet });
            }
        }
        if missing != 0 {
            let numbered = self.burst.iter().enumerate();
            let packets = numbered.filter(|(place, _)| missing & 1 << place != 0).map(|(_, packet)| packet);
            self.count.dropped(now, packets, &before, worker.statistics());
        }
        let (new, ended, flows) = core.changes();
        let marked = self.burst.iter().filter(|packet| packet.marked).count();
        let counts = BurstCounts { packets: size, marked, new, ended, flows };
        self.bed.costs.iteration(counts, &mut core.costs)
    }

    /// A core handles timeouts and rules; how long that takes, in nanoseconds.
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
        if now >= core.polls_at {
            core.polls_at = now + self.poll;
            if worker.poll_timeout(time).is_some_and(|due| due <= time) {
                worker.handle_timeout(time);
            }
        }
        let mut asked = 0;
        if let Some(card) = &mut self.bed.card {
            let mut handle = card.handle(number);
            handle.sample_for(worker, time);
            while !handle.is_full()
                && let Some(op) = worker.poll_op()
            {
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
            core.unanswered += asked;
            while let Some(completion) = core.inbox.pop_front() {
                core.unanswered = core.unanswered.saturating_sub(1);
                worker.handle_completion(time, &completion);
            }
        }
        let (_, ended, _) = core.changes();
        self.bed.costs.ends(ended) + self.bed.costs.rules(asked)
    }

    /// Waits until the last packet has left, and until what was asked of the card is done.
    fn settle(&mut self) {
        while !self.bed.line_out.is_empty() {
            self.come_to(self.count.rows.ends.min(self.bed.now + self.poll));
            self.sink(self.bed.now);
        }
        let until = self.bed.now.saturating_add(SETTLES.as_nanos() as u64);
        let (area, peak) = (self.count.rules, self.count.rules_peak);
        while self.bed.card.is_some() && self.bed.now < until {
            self.bed.now += self.poll;
            let asked: f64 = (0..self.bed.cores.len()).map(|number| self.rules(number, self.bed.now)).sum();
            let waiting = self.bed.cores.iter().any(|core| !core.inbox.is_empty());
            if asked == 0.0 && !waiting && self.bed.card.as_ref().is_none_or(|card| card.nic.is_idle()) {
                break;
            }
        }
        (self.count.rules, self.count.rules_peak) = (area, peak);
        let now = self.bed.now;
        self.bed.until.iter_mut().for_each(|until| *until = (*until).max(now));
    }
}
