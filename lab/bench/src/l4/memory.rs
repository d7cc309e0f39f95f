//! `hairpin-bench l4 memory`: the worker by itself, between frames in ordinary memory. For finding out where its time
//! goes (under callgrind, for one) and what a change of it does, also on a machine that others use: what is counted is
//! processor time of the thread. What stands beside is the same without the worker.

use super::subject::{self, BenchWorker, PacketWork};
use super::traffic::{self, FRAME, Sort};
use crate::suite::samples::RepeatedValues;
use anyhow::Result;
use hairpin_core::frame::{BATCH_MAX, Batch, FrameIo, Replay};
use hairpin_core::time::Time;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The arguments of the measurement in memory.
#[derive(Debug, clap::Args)]
pub(super) struct MemoryArgs {
    /// Flows.
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 1_000_000])]
    flows: Vec<usize>,
    /// Packets of each measurement: at least one of each flow.
    #[arg(long, default_value_t = 4_000_000)]
    packets: usize,
    /// Measurements of each.
    #[arg(long, default_value_t = 5)]
    repetitions: usize,
    /// The work: nothing, stateless, maglev, nat, full-nat, nat-inline; all by default.
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    /// Packets: udp, tcp, syn.
    #[arg(long, value_delimiter = ',', default_value = "udp")]
    sort: Vec<String>,
    /// Every packet is the first of its flow.
    #[arg(long)]
    new: bool,
}

type Packets<'a> = Replay<&'a [traffic::FrameBytes], FRAME>;

/// Time of this thread on a processor.
fn thread_time() -> Result<Duration> {
    Ok(clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)?.into())
}

/// So many bursts; the time they took.
fn bursts(
    io: &mut Packets<'_>,
    mut worker: Option<&mut BenchWorker>,
    clock: &mut Time,
    count: usize,
) -> Result<Duration> {
    let (mut rx, mut tx) = (Batch::new(), Batch::new());
    let start = thread_time()?;
    for _ in 0..count {
        io.receive(&mut rx);
        match &mut worker {
            Some(worker) => {
                *clock = *clock + Duration::from_micros(4);
                worker.handle_batch(*clock, io, &mut rx, &mut tx);
                if worker.poll_timeout(*clock).is_some_and(|due| due <= *clock) {
                    worker.handle_timeout(*clock);
                }
                io.transmit(&mut tx);
            }
            None => io.transmit(&mut rx),
        }
    }
    Ok(thread_time()? - start)
}

/// A kind of work in the middle of its measurement.
struct Round<'a> {
    work: PacketWork,
    worker: Option<BenchWorker>,
    io: Packets<'a>,
    clock: Time,
    samples: RepeatedValues,
}

/// Measures and prints.
pub(super) fn run(arguments: &MemoryArgs) -> Result<()> {
    let wanted = |name: &str| arguments.only.is_empty() || arguments.only.iter().any(|only| only == name);
    for sort in Sort::ALL.into_iter().filter(|sort| arguments.sort.iter().any(|name| name == sort.name())) {
        for &flows in &arguments.flows {
            let packets = traffic::packets(sort, 0, flows.max(BATCH_MAX));
            let count = (if arguments.new { flows } else { arguments.packets.max(flows) }) / BATCH_MAX;
            let all = PacketWork::ALL.into_iter().chain([PacketWork::NAT_INLINE]);
            let works: Vec<PacketWork> = all.filter(|work| wanted(work.name())).collect();
            let begin = |work: &PacketWork| Round {
                work: *work,
                worker: None,
                io: Replay::new(&packets[..], BATCH_MAX),
                clock: Time::from_nanos(1_000_000_000),
                samples: RepeatedValues::default(),
            };
            let mut rounds: Vec<Round<'_>> = works.iter().map(begin).collect();
            for _ in 0..arguments.repetitions.max(1) {
                for round in &mut rounds {
                    measure(round, (sort, flows, count), arguments.new)?;
                }
                rounds.reverse();
            }
            rounds.sort_by_key(|round| works.iter().position(|work| *work == round.work));
            for round in &rounds {
                let (low, high) = round.samples.range();
                let (name, median) = (round.work.name(), round.samples.median());
                let what = if arguments.new { "new" } else { "known" };
                println!("{:4} {flows:8} {what} flows {name:10} {median:7.1} ns ({low:.1}..{high:.1})", sort.name());
            }
        }
    }
    Ok(())
}

/// One sample of a kind of work. Of known flows, all have had ten packets before.
fn measure(round: &mut Round<'_>, (sort, flows, count): (Sort, usize, usize), new: bool) -> Result<()> {
    let Round { work, worker, io, clock, samples } = round;
    if *work != PacketWork::Nothing && (worker.is_none() || new) {
        *worker = subject::workers(*work, sort, flows, 1).pop();
        if !new {
            bursts(io, worker.as_mut(), clock, 10 * flows.div_ceil(BATCH_MAX))?;
        }
    }
    let sent = io.sent();
    let took = bursts(io, worker.as_mut(), clock, count)?;
    let (expected, sent) = ((count * BATCH_MAX) as u64, io.sent() - sent);
    if sent != expected {
        let drops = worker.as_ref().map(|worker| worker.statistics().drops);
        println!("  {} {}: {sent} of {expected} were sent on; drops {drops:?}", sort.name(), work.name());
    }
    samples.push(took.as_nanos() as f64 / expected as f64);
    Ok(())
}
