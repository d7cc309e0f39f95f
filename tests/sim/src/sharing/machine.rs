//! The cores, their queues and the lines between them, event by event.

use super::line::{Line, ns};
use super::profile::{MarkingCard, MethodCosts, SharingProfile};
use super::program::{LookedUp, SharedLine, SharingMethod, Step, steps};
use super::{RoundTrip, SharingOptions, SharingResults};
use fastrand::Rng;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Latencies kept of each direction at most.
const SAMPLES_MAX: usize = 1 << 17;
/// Rules of a flow: one for each direction, put in and taken out.
const RULES_OF_FLOW: f64 = 4.0;
/// A card with more work than this before it, in nanoseconds, takes no more rules.
const BACKLOG_MAX: u64 = 10_000_000;
/// What a writer leaves in the lock's word.
const WRITER: i32 = -1;

/// A packet in a queue.
#[derive(Clone, Copy)]
struct Waiting {
    at: u64,
    /// A backend has sent it.
    returns: bool,
}

/// What happens at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A core goes on.
    Goes(usize),
    /// The store that frees a spinlock becomes visible.
    Freed,
}

/// How far a step has come.
enum Progress {
    Done,
    Until(u64),
    Watches,
}

struct Core {
    random: Rng,
    next_arrival: u64,
    queue: VecDeque<Waiting>,
    burst: Vec<Waiting>,
    steps: Vec<Step>,
    /// The step at hand, and how far it has come.
    at: usize,
    stage: u8,
    /// When the step began.
    since: u64,
    /// The lock's word as it was read.
    seen: i32,
    /// When the last store that nothing has waited for is done: an atomic change waits for that.
    stored_at: u64,
    /// Of each flow, from when on the card marks its packets.
    marked_from: Vec<u64>,
    waited: u64,
    transferred: u64,
    idle: u64,
    received: u64,
    offered: u64,
    lost: u64,
    looked_up: u64,
    marked: u64,
    /// Latencies of clients' packets and of backends'.
    latencies: [Vec<f64>; 2],
}

pub(super) struct Machine<'a> {
    profile: &'a SharingProfile,
    method: SharingMethod,
    costs: MethodCosts,
    card: Option<&'a MarkingCard>,
    card_free_at: u64,
    cores: Vec<Core>,
    lines: [Line; SharedLine::COUNT],
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    scheduled: u64,
    /// Mean nanoseconds between packets of a core.
    gap: f64,
    begins: u64,
    ends: u64,
    random: Rng,
}

impl<'a> Machine<'a> {
    pub(super) fn new(options: &'a SharingOptions) -> Result<Machine<'a>, String> {
        let profile = &options.profile;
        let costs = profile.of(options.method).cloned();
        let costs = costs.ok_or_else(|| format!("the profile {} has no method {}", profile.name, options.method))?;
        let mut random = Rng::with_seed(options.seed);
        let line_pps = profile.packets.gbit_s * 1e9 / 8.0 / f64::from(profile.packets.frame);
        let gap = f64::from(options.cores) * 1e9 / options.offered_pps.unwrap_or(line_pps);
        let is_marking = options.method == SharingMethod::Marks;
        let flows = if is_marking { (profile.packets.flows / u32::from(options.cores)).max(1) } else { 0 };
        let begins = (options.warm_up * 1e9) as u64;
        let mut machine = Machine {
            profile,
            method: options.method,
            costs,
            card: profile.card.as_ref().filter(|_| is_marking),
            card_free_at: 0,
            cores: (0..options.cores).map(|_| Core::new(random.fork(), flows)).collect(),
            lines: Default::default(),
            events: BinaryHeap::new(),
            scheduled: 0,
            gap,
            begins,
            ends: begins + ns(options.seconds * 1e9),
            random,
        };
        for core in 0..machine.cores.len() {
            let first = machine.random.u64(0..=gap as u64 + 1);
            machine.cores[core].next_arrival = first;
            machine.schedule(first, Event::Goes(core));
        }
        Ok(machine)
    }

    pub(super) fn run(mut self) -> SharingResults {
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            if now >= self.ends {
                break;
            }
            match event {
                Event::Freed => self.lines[SharedLine::Lock as usize].value = 0,
                Event::Goes(core) => self.go(core, now),
            }
        }
        self.results()
    }

    fn schedule(&mut self, at: u64, event: Event) {
        self.scheduled += 1;
        self.events.push(Reverse((at, self.scheduled, event)));
    }

    /// A core goes on until it waits for a time, or for a line to change.
    fn go(&mut self, core: usize, now: u64) {
        loop {
            let of = &self.cores[core];
            let Some(&step) = of.steps.get(of.at) else {
                self.conclude(core, now);
                match self.poll(core, now) {
                    Some(until) => return self.schedule(until, Event::Goes(core)),
                    None => continue,
                }
            };
            match self.step(core, step, now) {
                Progress::Done => {
                    let of = &mut self.cores[core];
                    (of.at, of.stage, of.since) = (of.at + 1, 0, now);
                }
                Progress::Until(until) => return self.schedule(until, Event::Goes(core)),
                Progress::Watches => return,
            }
        }
    }

    /// The burst leaves.
    fn conclude(&mut self, core: usize, now: u64) {
        let of = &mut self.cores[core];
        let counts = now >= self.begins;
        for packet in of.burst.drain(..) {
            if counts {
                of.received += 1;
                let latencies = &mut of.latencies[usize::from(packet.returns)];
                if latencies.len() < SAMPLES_MAX {
                    latencies.push((now - packet.at) as f64);
                }
            }
        }
        of.steps.clear();
        (of.at, of.stage, of.since) = (0, 0, now);
    }

    /// Takes a burst and lays out its steps; when there is none, until when the core is idle.
    fn poll(&mut self, core: usize, now: u64) -> Option<u64> {
        self.arrive(core, now);
        let counts = now >= self.begins;
        let packets = &self.profile.packets;
        let of = &mut self.cores[core];
        if of.queue.is_empty() {
            if counts {
                of.idle += of.next_arrival - now;
            }
            return Some(of.next_arrival);
        }
        let count = of.queue.len().min(packets.burst as usize);
        of.burst.extend(of.queue.drain(..count));
        let each = packets.packet_ns * count as f64;
        let mut laid = vec![Step::Work(packets.burst_ns + each * packets.before)];
        let mut looked_up: Vec<LookedUp> = Vec::with_capacity(count);
        for place in 0..count {
            if packets.returns_look_up || !self.cores[core].burst[place].returns {
                looked_up.push(self.look_up(core, now, counts, place));
            }
        }
        steps(self.method, &self.costs, &looked_up, &mut laid);
        laid.push(Step::Work(each * (1.0 - packets.before) + self.costs.other_ns * looked_up.len() as f64));
        self.cores[core].steps = laid;
        None
    }

    /// What looking a packet up takes.
    fn look_up(&mut self, core: usize, now: u64, counts: bool, place: usize) -> LookedUp {
        let of = &mut self.cores[core];
        let is_new = !of.burst[place].returns && of.random.f64() < self.profile.packets.new;
        let moves = is_new && of.random.f64() < self.costs.moves;
        let mut packet = LookedUp { is_new, lookup_ns: self.costs.lookup_ns, change_ns: self.costs.change_ns, moves };
        let Some(card) = self.card else { return packet };
        let flow = of.random.usize(..of.marked_from.len());
        let is_marked = !is_new && of.marked_from[flow] <= now;
        if counts {
            of.looked_up += 1;
            of.marked += u64::from(is_marked);
        }
        if is_marked {
            packet.lookup_ns = card.marked_ns;
        }
        if is_new {
            packet.change_ns += RULES_OF_FLOW * card.rule_ns;
            of.marked_from[flow] = u64::MAX;
            if self.card_free_at.saturating_sub(now) <= BACKLOG_MAX {
                self.card_free_at = self.card_free_at.max(now) + ns(RULES_OF_FLOW * 1e9 / card.rules_per_s);
                of.marked_from[flow] = self.card_free_at;
                if card.waits {
                    packet.change_ns += (self.card_free_at - now) as f64;
                }
            }
        }
        packet
    }

    /// The packets that have come since this was last asked.
    fn arrive(&mut self, core: usize, now: u64) {
        let (gap, room) = (self.gap, self.profile.packets.queue as usize);
        let begins = self.begins;
        let of = &mut self.cores[core];
        while of.next_arrival <= now {
            let at = of.next_arrival;
            let is_lost = of.queue.len() >= room;
            if at >= begins {
                of.offered += 1;
                of.lost += u64::from(is_lost);
            }
            if !is_lost {
                of.queue.push_back(Waiting { at, returns: of.random.bool() });
            }
            let until = -gap * (1.0 - of.random.f64()).ln();
            of.next_arrival = at + ns(until);
        }
    }

    fn step(&mut self, core: usize, step: Step, now: u64) -> Progress {
        match step {
            Step::Work(time) => {
                if self.cores[core].stage > 0 || time <= 0.0 {
                    return Progress::Done;
                }
                let varies = self.profile.packets.varies;
                let of = &mut self.cores[core];
                of.stage = 1;
                Progress::Until(now + ns(time * (1.0 + varies * (2.0 * of.random.f64() - 1.0))))
            }
            Step::Read(line) => {
                let done = |machine: &mut Self| machine.lines[line as usize].read(core, now, &machine.profile.line);
                self.shared(core, now, done)
            }
            Step::Change(line) => self.shared(core, now, |machine| machine.change(core, line, now)),
            Step::SpinLock => self.spin_lock(core, now),
            Step::SpinUnlock => {
                // The store waits for the line, the core does not.
                let done = self.change(core, SharedLine::Lock, now);
                self.cores[core].stored_at = done;
                self.schedule(done, Event::Freed);
                Progress::Done
            }
            Step::ReadLock => self.take(core, now, |seen| (seen > WRITER).then_some(seen + 1)),
            Step::WriteLock => self.take(core, now, |seen| (seen == 0).then_some(WRITER)),
            Step::ReadUnlock | Step::WriteUnlock => self.give_back(core, now, step == Step::ReadUnlock),
        }
    }

    /// A line other than the lock's: the core waits for it.
    fn shared(&mut self, core: usize, now: u64, done: impl FnOnce(&mut Self) -> u64) -> Progress {
        if self.cores[core].stage > 0 {
            return Progress::Done;
        }
        let done = done(self);
        if now >= self.begins {
            self.cores[core].transferred += done - now;
        }
        self.cores[core].stage = 1;
        Progress::Until(done)
    }

    /// A core changes a line; cores that watch it read it again.
    fn change(&mut self, core: usize, line: SharedLine, now: u64) -> u64 {
        let access = self.lines[line as usize].change(core, now, &self.profile.line);
        for watcher in self.lines[line as usize].leave() {
            let pauses = self.cores[watcher].steps.get(self.cores[watcher].at) != Some(&Step::SpinLock);
            let pause = if pauses { self.profile.line.pause_ns as u64 } else { 0 };
            self.schedule(access.begins + pause, Event::Goes(watcher));
        }
        access.done
    }

    fn read_lock_word(&mut self, core: usize, now: u64) -> u64 {
        self.lines[SharedLine::Lock as usize].read(core, now, &self.profile.line)
    }

    /// Reads the lock's word again when it changes; at once, if it has changed since it was read.
    fn watch(&mut self, core: usize, now: u64, stage: u8) -> Progress {
        let line = &mut self.lines[SharedLine::Lock as usize];
        self.cores[core].stage = stage;
        if line.may_read(core) {
            line.watch(core);
            return Progress::Watches;
        }
        Progress::Until(now)
    }

    /// Exchange; if it was taken, read until it is free, and exchange again.
    fn spin_lock(&mut self, core: usize, now: u64) -> Progress {
        const EXCHANGE: u8 = 0;
        const EXCHANGED: u8 = 1;
        const READ: u8 = 2;
        const HAS_READ: u8 = 3;
        let is_free = self.lines[SharedLine::Lock as usize].value == 0;
        match self.cores[core].stage {
            EXCHANGED if is_free => {
                self.lines[SharedLine::Lock as usize].value = 1;
                self.has_waited(core, now);
                Progress::Done
            }
            HAS_READ if !is_free => self.watch(core, now, READ),
            EXCHANGE if now < self.cores[core].stored_at => Progress::Until(self.cores[core].stored_at),
            EXCHANGE | HAS_READ => {
                self.cores[core].stage = EXCHANGED;
                Progress::Until(self.change(core, SharedLine::Lock, now))
            }
            _ => {
                self.cores[core].stage = HAS_READ;
                Progress::Until(self.read_lock_word(core, now))
            }
        }
    }

    /// Reads the word until it allows a new one, and exchanges it.
    fn take(&mut self, core: usize, now: u64, new: impl Fn(i32) -> Option<i32>) -> Progress {
        const READ: u8 = 0;
        const HAS_READ: u8 = 1;
        const EXCHANGED: u8 = 2;
        const RETRIED: u8 = 3;
        let value = self.lines[SharedLine::Lock as usize].value;
        match self.cores[core].stage {
            READ => {
                self.cores[core].stage = HAS_READ;
                Progress::Until(self.read_lock_word(core, now))
            }
            HAS_READ if new(value).is_none() => self.watch(core, now, READ),
            HAS_READ => {
                let of = &mut self.cores[core];
                (of.seen, of.stage) = (value, EXCHANGED);
                Progress::Until(self.change(core, SharedLine::Lock, now))
            }
            RETRIED => {
                self.has_waited(core, now);
                Progress::Done
            }
            _ => match new(value) {
                // If it has changed since it was read, the exchange fails; the core has the line now, and succeeds with what
                // it finds before the line is taken from it.
                Some(new) => {
                    self.lines[SharedLine::Lock as usize].value = new;
                    let of = &mut self.cores[core];
                    of.stage = RETRIED;
                    let again = if value == of.seen { 0 } else { 2 * ns(self.profile.line.held_ns) };
                    Progress::Until(now + again)
                }
                None => {
                    self.cores[core].stage = READ;
                    Progress::Until(now)
                }
            },
        }
    }

    fn give_back(&mut self, core: usize, now: u64, as_reader: bool) -> Progress {
        if self.cores[core].stage == 0 {
            self.cores[core].stage = 1;
            return Progress::Until(self.change(core, SharedLine::Lock, now));
        }
        let word = &mut self.lines[SharedLine::Lock as usize].value;
        *word = if as_reader { *word - 1 } else { 0 };
        self.has_waited(core, now);
        Progress::Done
    }

    /// What a step on the lock took beyond what it takes alone.
    fn has_waited(&mut self, core: usize, now: u64) {
        let of = &mut self.cores[core];
        let waited = now.saturating_sub(of.since.max(self.begins));
        of.waited += waited.saturating_sub(ns(self.profile.line.held_ns));
    }

    fn results(mut self) -> SharingResults {
        // Cores that still wait.
        for core in 0..self.cores.len() {
            let of = &self.cores[core];
            if matches!(of.steps.get(of.at), Some(Step::SpinLock | Step::ReadLock | Step::WriteLock)) {
                self.has_waited(core, self.ends);
            }
        }
        let time = (self.ends - self.begins) as f64;
        let all = time * self.cores.len() as f64;
        let sum = |of: fn(&Core) -> u64| self.cores.iter().map(of).sum::<u64>() as f64;
        let part = |part: f64, of: f64| if of > 0.0 { part / of } else { 0.0 };
        let [there, back] = [0, 1].map(|direction| {
            let all = self.cores.iter().flat_map(|core| core.latencies[direction].iter().copied());
            all.collect::<Vec<f64>>()
        });
        SharingResults {
            received_pps: sum(|core| core.received) * 1e9 / time,
            lost: part(sum(|core| core.lost), sum(|core| core.offered)),
            waiting: sum(|core| core.waited) / all,
            transfers: sum(|core| core.transferred) / all,
            idle: (sum(|core| core.idle) / all).min(1.0),
            marked: part(sum(|core| core.marked), sum(|core| core.looked_up)),
            round_trip: round_trip(there, back, &mut self.random),
        }
    }
}

impl Core {
    fn new(random: Rng, flows: u32) -> Core {
        Core {
            random,
            next_arrival: 0,
            queue: VecDeque::new(),
            burst: Vec::new(),
            steps: Vec::new(),
            at: 0,
            stage: 0,
            since: 0,
            seen: 0,
            stored_at: 0,
            marked_from: vec![0; flows as usize],
            waited: 0,
            transferred: 0,
            idle: 0,
            received: 0,
            offered: 0,
            lost: 0,
            looked_up: 0,
            marked: 0,
            latencies: Default::default(),
        }
    }
}

/// Any packet there with any packet back.
fn round_trip(there: Vec<f64>, mut back: Vec<f64>, random: &mut Rng) -> RoundTrip {
    random.shuffle(&mut back);
    let mut all: Vec<f64> = there.iter().zip(&back).map(|(there, back)| there + back).collect();
    if all.is_empty() {
        return RoundTrip::default();
    }
    all.sort_by(f64::total_cmp);
    let at = |part: f64| all[((all.len() - 1) as f64 * part) as usize];
    let mean = all.iter().sum::<f64>() / all.len() as f64;
    RoundTrip { mean, p25: at(0.25), p50: at(0.5), p75: at(0.75), p99: at(0.99) }
}
