//! Costs that are measured between frames in ordinary memory: new flows, their ends, rules; and everything where there are
//! no rings. What counts is the processor time of the thread, so a machine that others use does little harm.

use crate::clock::of_thread;
use crate::forward::Forwarder;
use crate::testbed::balancer::{BalancerOptions, retire, with_engine};
use crate::testbed::table::TableChoice;
use crate::traffic::flows::client;
use crate::traffic::stamp::BYTES;
use crate::traffic::template::{LinkAddresses, PacketKind, PacketTemplate};
use anyhow::{Result, ensure};
use hairpin_core::engine::{Completion, EngineCaps, RuleOp};
use hairpin_core::flow::{Protocol, Steering};
use hairpin_core::frame::{Batch, FrameIo, Replay};
use hairpin_core::offload::{Always, Never, OffloadPolicy};
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::tcp::{ACK, FIN, PSH, SYN};
use hairpin_core::worker::Worker;

/// Bytes of a frame.
const FRAME: usize = 64;
/// Packets in a burst, as in the testbed in virtual time.
const BURST: usize = 32;
/// Virtual time between bursts.
const STEP: Duration = Duration::from_micros(4);
/// New flows in one measurement, each in a burst of known ones.
const NEW: u32 = 4096;
/// New flows in one measurement, in bursts of nothing else.
const TOGETHER: u32 = 4 * NEW;
/// A measurement is made in so many parts, alternating with what it is compared with.
const PARTS: u32 = 64;
/// Longer than any half-open connection lives.
const PATIENCE: Duration = Duration::from_secs(31);
/// Time of ends goes on by so much at a time.
const TICK: Duration = Duration::from_millis(50);
/// An engine that can do everything, at once.
const ANY_ENGINE: EngineCaps = EngineCaps {
    rules_max: 1 << 24,
    families_apart: false,
    ops_in_flight_max: 1 << 16,
    rewrites_sequence: true,
    rewrites_sack: true,
    rewrites_window: true,
    rewrites_timestamps: true,
    checks_guards: true,
    counts: true,
    judges_access: false,
};

type ReplayedFrames = Replay<Vec<[u8; FRAME]>, FRAME>;
type MeasuredWorker<P> = Worker<P, crate::testbed::table::LabTable>;

/// One TCP packet of each of the flows `first` to `first + count`, in an order of its own, the same each time.
fn frames(tcp_flags: u8, first: u32, count: u32) -> ReplayedFrames {
    let mut numbers: Vec<u32> = (first..first + count).collect();
    fastrand::Rng::with_seed(u64::from(count)).shuffle(&mut numbers);
    ReplayedFrames::new(numbers.into_iter().map(packets_of(tcp_flags)).collect(), BURST)
}

/// Makes a TCP packet of a flow.
fn packets_of(tcp_flags: u8) -> impl Fn(u32) -> [u8; FRAME] {
    let kind = PacketKind { protocol: Protocol::Tcp, ipv6: false, tcp_flags };
    let mut store = Vec::new();
    let template = PacketTemplate::new(&mut store, kind, &LinkAddresses::default(), &[], FRAME as u16);
    move |number| {
        let mut bytes = [0; FRAME];
        template.make(&store, &mut bytes, &client(number), &[0; BYTES]);
        bytes
    }
}

/// The work on the packets.
enum Body<'a, P: OffloadPolicy> {
    Nothing,
    Forwarder(&'a mut Forwarder),
    Worker(&'a mut MeasuredWorker<P>),
}

/// Nanoseconds that each of `packets` packets (rounded up to bursts) takes; installs that were asked for are answered.
fn run<P: OffloadPolicy>(io: &mut ReplayedFrames, mut body: Body<'_, P>, clock: &mut Time, packets: u32) -> (f64, u64) {
    let (mut rx, mut tx) = (Batch::new(), Batch::new());
    let (bursts, mut installs) = ((packets as usize).div_ceil(BURST), 0);
    let start = of_thread();
    for _ in 0..bursts {
        io.receive(&mut rx);
        match &mut body {
            Body::Nothing => std::mem::swap(&mut rx, &mut tx),
            Body::Forwarder(forwarder) => forwarder.handle_batch(&mut rx, &mut tx),
            Body::Worker(worker) => {
                *clock = *clock + STEP;
                worker.handle_batch(*clock, io, &mut rx, &mut tx);
                while let Some(op) = worker.poll_op() {
                    let answer = match op {
                        RuleOp::Install(rule) => Completion::Installed(rule.id),
                        RuleOp::Remove { id, .. } => Completion::Removed(id, None),
                    };
                    installs += u64::from(matches!(answer, Completion::Installed(_)));
                    worker.handle_completion(*clock, &answer);
                }
                if worker.poll_timeout(*clock).is_some_and(|due| due <= *clock) {
                    worker.handle_timeout(*clock);
                }
            }
        }
        io.transmit(&mut tx);
    }
    ((of_thread() - start).as_nanos() as f64 / (bursts * BURST) as f64, installs)
}

/// A worker with room for so many connections.
fn worker<P: OffloadPolicy>(
    choice: TableChoice,
    connections: usize,
    policy: impl Fn() -> P,
    caps: EngineCaps,
) -> Result<MeasuredWorker<P>> {
    let seeds = [11, 12, 13, 14];
    let steering = Steering::by_hash([11, 12], 1);
    let options =
        BalancerOptions { backends: 4, connections_each: connections, method: choice.method(), steering, seeds };
    let tables = choice.tables(1, options.connections(), seeds, &None)?;
    let worker = with_engine(&options, tables, policy, caps).pop();
    worker.ok_or_else(|| anyhow::anyhow!("there is no worker"))
}

/// Room for so many flows and for new ones beside.
fn room(flows: u32) -> usize {
    super::entries(flows + NEW + TOGETHER) as usize
}

/// Nanoseconds that a TCP flow takes more than as many packets of a known one, with `flows` flows there: what a worker does for
/// its SYN, its first acknowledgement and its FIN. The first number is of flows that begin together, in bursts of nothing
/// else; the second what it is more for one that begins alone, as the worker does not take the bursts of known flows that
/// these come in as one. The first time meets memory that has not been touched, and does not count.
pub(super) fn new_flow(choice: TableChoice, flows: u32) -> Result<(f64, f64)> {
    new_flow_once(choice, flows)?;
    new_flow_once(choice, flows)
}

fn new_flow_once(choice: TableChoice, flows: u32) -> Result<(f64, f64)> {
    let known = flows.max(BURST as u32).next_multiple_of(BURST as u32);
    let mut unit = worker(choice, room(known), || Never, EngineCaps::NONE)?;
    let mut clock = Time::from_nanos(1_000_000_000);
    run(&mut frames(SYN, 0, known), Body::Worker(&mut unit), &mut clock, known);
    let packets = NEW * BURST as u32;
    let packet = packets_of(ACK | PSH);
    let mut of_known = fastrand::Rng::with_seed(u64::from(flows));
    let store: Vec<[u8; FRAME]> = (0..packets).map(|_| packet(of_known.u32(..known))).collect();
    let mut without = ReplayedFrames::new(store.clone(), BURST);
    // All known flows are as it leaves them.
    run(&mut without, Body::Worker(&mut unit), &mut clock, packets);
    // Of each new flow one packet in a burst, three bursts one after the other.
    let parts = [SYN, ACK | PSH, ACK | FIN];
    let mut alone = store;
    for (burst, flags) in parts.into_iter().enumerate() {
        let packet = packets_of(flags);
        let places = alone[burst * (BURST + BURST / 3)..].iter_mut().step_by(BURST);
        places.zip(known..known + NEW).for_each(|(place, number)| *place = packet(number));
    }
    let together: Vec<u32> = (known + NEW..known + NEW + TOGETHER).collect();
    let bursts = together.chunks(BURST).flat_map(|burst| parts.map(|flags| (flags, burst)));
    let together = bursts.flat_map(|(flags, burst)| burst.iter().copied().map(packets_of(flags)));
    let mut with = [ReplayedFrames::new(alone, BURST), ReplayedFrames::new(together.collect(), BURST)];
    let mut more: [Vec<f64>; 2] = Default::default();
    for _ in 0..PARTS {
        let plain = run(&mut without, Body::Worker(&mut unit), &mut clock, packets / PARTS).0;
        for (at, packets, of_flow) in
            [(0, packets, BURST as f64), (1, parts.len() as u32 * TOGETHER, parts.len() as f64)]
        {
            let each = run(&mut with[at], Body::Worker(&mut unit), &mut clock, packets / PARTS).0;
            more[at].push((each - plain) * of_flow);
        }
    }
    let (there, wanted) = (unit.statistics().connections_now, u64::from(known + NEW + TOGETHER));
    retire(unit);
    if choice.method().is_none_or(|method| method.tracks_connections()) {
        ensure!(there == wanted, "{there} connections of {wanted} flows");
    }
    let middle = |more: &mut Vec<f64>| {
        more.sort_by(f64::total_cmp);
        more[more.len() / 2].max(0.0)
    };
    let [alone, together] = more.each_mut().map(middle);
    Ok((together, (alone - together).max(0.0)))
}

/// Nanoseconds of a flow's end by silence.
pub(super) fn end(flows: u32) -> Result<f64> {
    let flows = flows.next_multiple_of(BURST as u32);
    let mut unit = worker(TableChoice::Own(Default::default()), room(flows), || Never, EngineCaps::NONE)?;
    let mut clock = Time::from_nanos(1_000_000_000);
    run(&mut frames(SYN, 0, flows), Body::Worker(&mut unit), &mut clock, flows);
    clock = clock + PATIENCE;
    let (start, mut iterations) = (of_thread(), 0);
    while unit.statistics().connections_now > 0 {
        match unit.poll_timeout(clock) {
            Some(due) if due <= clock => unit.handle_timeout(clock),
            _ => clock = clock + TICK,
        }
        iterations += 1;
        ensure!(iterations < 10_000_000, "{} connections do not end", unit.statistics().connections_now);
    }
    let took = of_thread() - start;
    retire(unit);
    Ok(took.as_nanos() as f64 / f64::from(flows))
}

/// Nanoseconds of asking for a rule and hearing that it is there: the middle of several differences of two large numbers.
pub(super) fn rule(flows: u32) -> Result<f64> {
    const TIMES: usize = 5;
    let mut all = (0..TIMES).map(|_| rule_once(flows)).collect::<Result<Vec<f64>>>()?;
    all.sort_by(f64::total_cmp);
    Ok(all[TIMES / 2].max(0.0))
}

fn rule_once(flows: u32) -> Result<f64> {
    /// Packets of each flow: the first makes it known, and a later one has it offloaded.
    const ROUNDS: u32 = 3;
    let flows = flows.next_multiple_of(BURST as u32);
    let mut frames = frames(ACK | PSH, 0, flows);
    let choice = TableChoice::Own(Default::default());
    let mut clock = Time::from_nanos(1_000_000_000);
    let mut without = worker(choice, room(flows), || Never, EngineCaps::NONE)?;
    let (plain, none) = run(&mut frames, Body::Worker(&mut without), &mut clock, ROUNDS * flows);
    retire(without);
    let mut clock = Time::from_nanos(1_000_000_000);
    let mut with = worker(choice, room(flows), || Always, ANY_ENGINE)?;
    let (offloading, installs) = run(&mut frames, Body::Worker(&mut with), &mut clock, ROUNDS * flows);
    retire(with);
    ensure!(none == 0 && installs >= u64::from(flows), "{installs} rules of {flows} flows");
    Ok((offloading - plain) * f64::from(ROUNDS * flows) / installs as f64)
}

/// Nanoseconds of a packet where there are no rings: of nothing, the forwarder, and, with a table, the worker.
pub(super) fn known(what: Option<TableChoice>, flows: u32, packets: u32, forwards: bool) -> Result<f64> {
    let flows = flows.max(BURST as u32);
    let mut frames = frames(ACK | PSH, 0, flows);
    let mut clock = Time::from_nanos(1_000_000_000);
    let packets = packets.max(flows);
    let Some(choice) = what else {
        let mut forwarder = Forwarder::default();
        let mut each = 0.0;
        // The first time is for getting warm.
        for packets in [flows, packets] {
            let body: Body<'_, Never> = if forwards { Body::Forwarder(&mut forwarder) } else { Body::Nothing };
            each = run(&mut frames, body, &mut clock, packets).0;
        }
        return Ok(each);
    };
    let mut unit = worker(choice, super::entries(flows) as usize, || Never, EngineCaps::NONE)?;
    run(&mut frames, Body::Worker(&mut unit), &mut clock, 2 * flows);
    let (each, _) = run(&mut frames, Body::Worker(&mut unit), &mut clock, packets);
    let sent = frames.sent();
    retire(unit);
    ensure!(sent >= u64::from(packets), "of {packets} packets {sent} were sent on");
    Ok(each)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cost_can_be_measured_and_is_one() {
        let choice = TableChoice::Own(Default::default());
        let (each, iteration) = new_flow(choice, 1000).unwrap();
        assert!(each >= 0.0 && iteration >= 0.0);
        assert!(end(5000).unwrap() > 0.0);
        assert!(rule(5000).unwrap() >= 0.0);
        for what in [None, Some(choice), Some(TableChoice::named("stateless").unwrap())] {
            assert!(known(what, 1000, 10_000, true).unwrap() > 0.0);
        }
        // Nothing is tracked, so nothing is new.
        assert!(new_flow(TableChoice::named("stateless").unwrap(), 1000).is_ok());
    }
}
