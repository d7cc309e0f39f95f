//! One mechanism at work: a worker-like loop over the index, the slab of connections and the traffic, each of its own.

use super::frames::BurstFrames;
use super::mechanisms::{Due, FlowNotice, Mechanism};
use super::traffic::{AgeingPacket, AgeingTraffic, BURST, FlowEnd, PacketPurpose, ends_of, key_of};
use anyhow::{Context, Result, ensure};
use hairpin_core::flow::{Direction, FlowKey, Protocol};
use hairpin_core::l4::connection::{Connection, State};
use hairpin_core::table::ageing::Deadlines;
use hairpin_core::table::cuckoo::CuckooPlusPlus;
use hairpin_core::table::slab::{self, Slab};
use hairpin_core::table::{Entries, Hasher, Position, Table};
use hairpin_core::time::{Duration, Time};
use hairpin_tables::ageing::buckets::Indexed;
use nix::time::{ClockId, clock_gettime};
use std::time::Instant;

/// The connections, with their timeouts.
pub(super) struct TimedConnections<'a> {
    slab: &'a Slab<Connection>,
    established: Duration,
}

impl Entries<FlowKey> for TimedConnections<'_> {
    #[inline]
    fn is(&self, value: u32, key: &FlowKey) -> bool {
        let position = value / 2;
        self.slab.contains(position) && self.slab.at(position).key(direction(value)) == *key
    }

    #[inline]
    fn prefetch(&self, value: u32) {
        self.slab.prefetch(value / 2);
    }
}

impl Deadlines for TimedConnections<'_> {
    #[inline]
    fn deadline(&self, position: Position) -> Option<Time> {
        self.slab.contains(position).then(|| deadline(self.slab.at(position), self.established))
    }

    #[inline]
    fn prefetch(&self, position: Position) {
        self.slab.prefetch(position);
    }
}

impl Indexed<FlowKey> for TimedConnections<'_> {
    fn key(&self, position: Position) -> FlowKey {
        self.slab.at(position).key(Direction::FromClient)
    }
}

fn direction(value: u32) -> Direction {
    if value & 1 == 0 { Direction::FromClient } else { Direction::FromBackend }
}

/// As a worker judges: after silence, or so long after it seemed over.
fn deadline(connection: &Connection, established: Duration) -> Time {
    let timeout = |kind: FlowEnd| kind.timeout(established);
    match connection.state {
        State::Closed => connection.changed + timeout(FlowEnd::Closed),
        State::SynSent => connection.last_seen + timeout(FlowEnd::HalfOpen),
        _ => connection.last_seen + timeout(FlowEnd::Silent),
    }
}

/// One window of work; all windows have equally many packets.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct WorkWindow {
    /// Processor time of the thread.
    pub(super) cpu: Duration,
    /// The time by the clock.
    pub(super) wall: Duration,
    /// In the mechanism, finding out what is over.
    pub(super) ageing: Duration,
    /// Taking away what is over.
    pub(super) removal: Duration,
    /// The longest the packets of an iteration had to wait for both.
    pub(super) longest: Duration,
    /// Connections that were found over.
    pub(super) over: usize,
    /// Connections at the end.
    pub(super) connections: usize,
    /// The latest of them, beyond its deadline.
    pub(super) late: Duration,
}

/// One mechanism, and its own table, slab and traffic.
pub(super) struct MechanismBench {
    pub(super) mechanism: Box<dyn Mechanism>,
    table: CuckooPlusPlus,
    slab: Slab<Connection>,
    traffic: AgeingTraffic,
    established: Duration,
    keys: [FlowKey; BURST],
    packets: [AgeingPacket; BURST],
    found: [Option<u32>; BURST],
    clock: SpanClock,
    /// The frames that packets are, if the whole balancer is at work.
    frames: Option<Box<BurstFrames>>,
}

impl MechanismBench {
    /// Room for `capacity` connections; established ones time out after `established`.
    pub(super) fn new(
        mechanism: Box<dyn Mechanism>,
        traffic: AgeingTraffic,
        capacity: usize,
        established: Duration,
    ) -> Result<MechanismBench> {
        Ok(MechanismBench {
            mechanism,
            table: CuckooPlusPlus::new(2 * capacity, Hasher::new([7, 1, 8, 2])),
            slab: Slab::new(slab::boxed(capacity)),
            traffic,
            established,
            keys: [FlowKey::default(); BURST],
            packets: [AgeingPacket { flow: 0, purpose: PacketPurpose::Goes }; BURST],
            found: [None; BURST],
            clock: SpanClock::new()?,
            frames: None,
        })
    }

    /// From now on packets are frames, which are read and sent on with new ends.
    pub(super) fn forward_frames(&mut self) {
        self.frames = Some(Box::new(BurstFrames::new()));
    }

    /// Lets flows begin and end until the table is as full as it gets; ages without counting. Those that never end begin
    /// within the last quarter of a timeout, before the end of which their packets follow.
    pub(super) fn fill(&mut self, until: Time) -> Result<()> {
        let last = self.established / 4;
        let (mut eternal, eternal_max) = (0, self.traffic.eternal());
        self.traffic.set_brief(true);
        while self.traffic.now() < until {
            let now = self.traffic.burst(&mut self.keys, &mut self.packets);
            self.receive(now)?;
            let missing = until.since(now).as_secs_f64() / last.as_secs_f64();
            while (eternal as f64) < eternal_max as f64 * (1.0 - missing) {
                self.begin(now, eternal)?;
                eternal += 1;
            }
            while self.age(now, &mut WorkWindow::default())? {}
        }
        self.traffic.set_brief(false);
        Ok(())
    }

    /// Works off `bursts` bursts.
    pub(super) fn window(&mut self, bursts: usize) -> Result<WorkWindow> {
        let mut window = WorkWindow::default();
        let (cpu, wall) = (thread_time()?, Instant::now());
        for _ in 0..bursts {
            let now = self.traffic.burst(&mut self.keys, &mut self.packets);
            self.receive(now)?;
            self.age(now, &mut window)?;
        }
        (window.cpu, window.wall) = (thread_time()? - cpu, wall.elapsed());
        window.connections = self.slab.len();
        Ok(window)
    }

    fn receive(&mut self, now: Time) -> Result<()> {
        if let Some(frames) = &mut self.frames {
            frames.arrive(&self.keys);
            frames.read(&mut self.keys)?;
        }
        let connections = TimedConnections { slab: &self.slab, established: self.established };
        self.mechanism.find(now, &mut self.table, &connections, &self.keys, &mut self.found);
        for i in 0..BURST {
            let AgeingPacket { flow, purpose } = self.packets[i];
            match self.found[i] {
                None if purpose == PacketPurpose::Begins => self.begin(now, flow)?,
                None => ensure!(false, "{}: flow {flow} was taken away while it went on", self.mechanism.name()),
                Some(_) if purpose == PacketPurpose::Begins => ensure!(false, "flow {flow} is there before it begins"),
                Some(value) => {
                    self.packet(now, value, purpose);
                    if let Some(frames) = &mut self.frames {
                        frames.forward(i, self.slab.at(value / 2), direction(value));
                    }
                }
            }
        }
        Ok(())
    }

    fn packet(&mut self, now: Time, value: u32, purpose: PacketPurpose) {
        let position = value / 2;
        let connection = self.slab.at_mut(position);
        connection.last_seen = now;
        connection.forwarded[direction(value) as usize].add(1, 1500);
        if purpose == PacketPurpose::Closes {
            connection.state = State::Closed;
            connection.changed = now;
            let (key, deadline) = (connection.key(Direction::FromClient), deadline(connection, self.established));
            let told = FlowNotice { key: &key, position, deadline, kind: FlowEnd::Closed, truth: None };
            self.mechanism.told(&mut self.table, &told);
        }
    }

    fn begin(&mut self, now: Time, flow: u64) -> Result<()> {
        let kind = FlowEnd::of(flow);
        let [client, vip, backend] = ends_of(flow);
        let state = if kind == FlowEnd::HalfOpen { State::SynSent } else { State::Established };
        let connection = Connection::new(now, Protocol::Tcp, state, [client, vip, backend, client]);
        let position = self.slab.insert(connection).context("the slab is full")?;
        let keys = [Direction::FromClient, Direction::FromBackend].map(|direction| key_of(flow, direction));
        let values = [position * 2, position * 2 + 1];
        ensure!(self.table.insert_burst(&keys, &values) == 2, "the index is full");
        let truth = kind.life(self.established).map(|life| now + life);
        let deadline = deadline(&connection, self.established);
        self.mechanism.told(&mut self.table, &FlowNotice { key: &keys[0], position, deadline, kind, truth });
        Ok(())
    }

    /// One iteration's ageing; whether there is more at once.
    fn age(&mut self, now: Time, window: &mut WorkWindow) -> Result<bool> {
        self.clock.start()?;
        let (mut finding, mut removal) = (Duration::ZERO, Duration::ZERO);
        loop {
            let mut due = Due::new();
            let connections = TimedConnections { slab: &self.slab, established: self.established };
            let more = self.mechanism.due(now, &mut self.table, &connections, &mut due);
            finding += self.clock.lap()?;
            if !due.is_empty() {
                self.judge(now, &due, window)?;
                self.remove(&due)?;
                removal += self.clock.lap()?;
            }
            if !(more && self.mechanism.stops_the_world()) {
                window.ageing += finding;
                window.removal += removal;
                window.longest = window.longest.max(finding + removal);
                return Ok(more);
            }
        }
    }

    /// Fails if an entry is taken away early; notes in `window` how late they are.
    fn judge(&self, now: Time, due: &[Position], window: &mut WorkWindow) -> Result<()> {
        window.over += due.len();
        due.iter().for_each(|&position| self.slab.prefetch(position));
        for &position in due {
            let deadline = deadline(self.slab.at(position), self.established);
            ensure!(deadline <= now, "{}: taken away early", self.mechanism.name());
            window.late = window.late.max(now.since(deadline));
        }
        Ok(())
    }

    fn remove(&mut self, due: &[Position]) -> Result<()> {
        for due in due.chunks(BURST / 2) {
            let mut keys = [FlowKey::default(); BURST];
            let mut values = [0; BURST];
            for (i, &position) in due.iter().enumerate() {
                let connection = self.slab.at(position);
                keys[2 * i..2 * i + 2].copy_from_slice(
                    &[Direction::FromClient, Direction::FromBackend].map(|direction| connection.key(direction)),
                );
                values[2 * i..2 * i + 2].copy_from_slice(&[position * 2, position * 2 + 1]);
            }
            let count = 2 * due.len();
            ensure!(self.table.remove_burst(&keys[..count], &values[..count]) == count, "a key is lost");
            for &position in due {
                self.slab.remove(position);
            }
        }
        Ok(())
    }
}

/// Measures short spans: by the clock, which is fast to read, but without the time that the thread was not running.
struct SpanClock {
    last: Instant,
    /// The clock and the thread's time, when they were last read together.
    wall: Instant,
    cpu: Duration,
    starts: u32,
}

impl SpanClock {
    /// Longer ones are investigated.
    const LONG: Duration = Duration::from_micros(20);
    /// Both are read together once in so many starts.
    const STARTS: u32 = 16;

    fn new() -> Result<SpanClock> {
        let now = Instant::now();
        Ok(SpanClock { last: now, wall: now, cpu: thread_time()?, starts: 0 })
    }

    fn start(&mut self) -> Result<()> {
        self.starts += 1;
        if self.starts.is_multiple_of(SpanClock::STARTS) {
            (self.wall, self.cpu) = (Instant::now(), thread_time()?);
        }
        self.last = Instant::now();
        Ok(())
    }

    /// Time since the last lap or start.
    fn lap(&mut self) -> Result<Duration> {
        let now = Instant::now();
        let mut lap = now - self.last;
        self.last = now;
        if lap > SpanClock::LONG {
            let cpu = thread_time()?;
            let away = (now - self.wall).saturating_sub(cpu - self.cpu);
            lap = lap.saturating_sub(away);
            self.last = Instant::now();
            (self.wall, self.cpu) = (self.last, cpu);
        }
        Ok(lap)
    }
}

fn thread_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

#[cfg(test)]
mod tests {
    use super::super::mechanisms;
    use super::*;

    /// Every mechanism ages the same traffic: nothing early (`window` sees to that), everything in time, and the table
    /// does not grow.
    #[test]
    fn all_keep_up_with_full_churn() {
        let established = Duration::from_secs(2);
        let traffic = || AgeingTraffic::new(Duration::from_micros(40), established, 64);
        let capacity = 64 + traffic().begun_in(3 * established);
        for mechanism in mechanisms::all(capacity, established) {
            let (name, late_max) = (mechanism.name(), mechanism.late_max());
            let mut bench = MechanismBench::new(mechanism, traffic(), capacity, established).expect(name);
            bench.fill(Time::ZERO + 2 * established).expect(name);
            let begun = bench.traffic.begun_in(2 * established);
            let window = bench.window(bench.traffic.bursts_in(2 * established)).expect(name);
            assert!(window.over.abs_diff(begun) < begun / 5, "{name}: {} of {begun} flows are over", window.over);
            assert!(window.connections < capacity * 3 / 4, "{name}: {} connections", window.connections);
            if let Some(late_max) = late_max {
                assert!(window.late <= late_max, "{name}: {} ms late", window.late.as_millis());
            }
        }
    }
}
