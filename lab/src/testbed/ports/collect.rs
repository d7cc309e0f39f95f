//! A sink alone, of a generator in another process.

use super::super::account::{Books, seen_otherwise};
use super::super::cores::{CoreWatch, pin};
use super::super::device::Handled;
use super::super::ends::{Inlet, Outlet};
use super::super::generator::SentCounts;
use super::super::{Measurement, TrialProgress};
use super::{PortSetup, QueueEnds, STEPS, between, session, take};
use crate::clock;
use crate::sink::timeline::Timeline;
use crate::sink::{PacketSink, SinkOptions};
use anyhow::{Result, anyhow};
use hairpin_core::frame::Batch;
use hairpin_dpdk::Eal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// The arguments of a sink alone.
#[derive(Clone, Debug)]
pub struct SinkSettings {
    /// The port to receive from.
    pub port: PortSetup,
    /// The generator's seed.
    pub seed: u64,
    /// The generator's cores.
    pub generators: u16,
    /// Flows room is taken for.
    pub flows: usize,
    /// Whether destinations are backends.
    pub balanced: bool,
    /// How long it receives, from the first packet on.
    pub duration: Duration,
    /// It ends when nothing has come for so long after the first packet.
    pub idle: Duration,
}

/// The findings of a sink alone.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Collected {
    /// The measurement without the generator: `sent` is the number that it must have sent, by the numbers of what came
    /// whole; the last packets, if they are lost or damaged, are not missed.
    pub measurement: Measurement,
    /// Frames of no session, or of another session.
    pub foreign: u64,
}

/// Receives from a port and judges, until told to stop or the time is over.
///
/// # Errors
/// A port that cannot be opened, accounts that are not right, frames that are missing from the pool.
pub fn sink(
    eal: &Eal,
    settings: &SinkSettings,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(TrialProgress),
) -> Result<Collected> {
    let opened = settings.port.open(eal, stop)?;
    let duration = settings.duration.as_nanos() as u64;
    let options = SinkOptions {
        session: session(settings.seed),
        generators: settings.generators,
        flows: settings.flows,
        balanced: settings.balanced,
        duration,
    };
    let queues: Vec<QueueEnds> =
        (0..settings.port.cpus.len() as u16).map(|queue| opened.ends(queue)).collect::<Result<_>>()?;
    opened.wait(stop)?;
    let before = opened.port.statistics();
    progress(TrialProgress::Started { device: Vec::new() });
    let first = AtomicU64::new(0);
    let received = AtomicU64::new(0);
    let sinks = std::thread::scope(|scope| {
        let running: Vec<_> = queues
            .into_iter()
            .zip(&settings.port.cpus)
            .map(|(ends, &cpu)| {
                let shared = (&first, &received);
                scope.spawn(move || collect(ends, cpu, eal, settings, options, stop, shared))
            })
            .collect();
        while !running.iter().all(|thread| thread.is_finished()) {
            std::thread::sleep(Duration::from_millis(20));
            let start = first.load(Ordering::Relaxed);
            let elapsed = if start == 0 { 0 } else { clock::now().saturating_sub(start) };
            let received = received.load(Ordering::Relaxed);
            progress(TrialProgress::Running { elapsed: Duration::from_nanos(elapsed), sent: received, received });
        }
        let joined = running.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread has panicked"))?);
        joined.collect::<Result<Vec<(PacketSink, u64)>>>()
    })?;
    let start = first.load(Ordering::Relaxed);
    let last = sinks.iter().map(|&(_, last)| last).max().unwrap_or(0);
    let duration = if start == 0 { 0 } else { last.saturating_sub(start).max(1) };
    let mut all = PacketSink::new(SinkOptions { flows: 0, duration, ..options }, start);
    sinks.iter().for_each(|(sink, _)| all.merge(sink));
    let measurement = close(&all, start, duration, &between(&before, &opened.port.statistics()))?;
    opened.close()?;
    Ok(Collected { measurement, foreign: all.counts().foreign })
}

/// The accounts of a sink that knows of the generator only what its packets' numbers say; `between` is what the port has
/// lost.
fn close(all: &PacketSink, start: u64, duration: u64, between: &[(String, u64)]) -> Result<Measurement> {
    let counts = all.counts();
    let packets = all.numbered();
    let [corrupted, late, future] = seen_otherwise(counts).map(|(reason, count)| (reason.to_owned(), count));
    // A packet from the future has a number of its own, as a received one has. Of other packets it is not known whether it
    // had come before, or whose it was.
    let mut missing = packets.saturating_sub(counts.received + future.1);
    let others = [corrupted, late].into_iter().chain(between.iter().cloned());
    let mut lost: Vec<_> = others.map(|(reason, count)| (reason, take(&mut missing, count))).collect();
    lost.extend([future, ("on-the-way".to_owned(), missing)]);
    lost.retain(|&(_, count)| count > 0);
    let books = Books {
        sent: SentCounts { packets, ..SentCounts::default() },
        full: QueueEnds::FULL,
        behind: 0,
        timeline: Timeline::new(start, 0),
        handled: Handled::default(),
        between: Vec::new(),
        sink: all,
        duration,
    };
    books.close_with(lost)
}

fn collect(
    mut ends: QueueEnds,
    cpu: usize,
    eal: &Eal,
    settings: &SinkSettings,
    options: SinkOptions,
    stop: &AtomicBool,
    (first, received): (&AtomicU64, &AtomicU64),
) -> Result<(PacketSink, u64)> {
    pin(cpu)?;
    let _registered = eal.register_thread()?;
    let mut sink = PacketSink::new(options, 0);
    let (mut batch, mut watch) = (Batch::new(), CoreWatch::default());
    let (mut started, mut last, mut told) = (false, 0, 0);
    loop {
        for _ in 0..STEPS {
            ends.receive(&mut batch);
            watch.polled(!batch.is_empty());
            if batch.is_empty() {
                continue;
            }
            let now = clock::now();
            if !started {
                let before =
                    first.compare_exchange(0, now, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|at| at);
                sink.start(if before == 0 { now } else { before });
                started = true;
            }
            sink.take(now, &batch);
            Inlet::release(&mut ends, &mut batch);
            if sink.counts().received > told {
                received.fetch_add(sink.counts().received - told, Ordering::Relaxed);
                told = sink.counts().received;
                last = now;
            }
        }
        let now = clock::now();
        // Others' frames are no beginning.
        let begun = if told > 0 { first.load(Ordering::Relaxed) } else { 0 };
        let over = begun != 0
            && (now.saturating_sub(begun) > settings.duration.as_nanos() as u64
                || now.saturating_sub(last) > settings.idle.as_nanos() as u64);
        if over || stop.load(Ordering::Relaxed) {
            return Ok((sink, last));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sink::order::WINDOW;
    use crate::testbed::{Arrivals, FrameSize, TransportProtocol};
    use crate::traffic::flows::FlowLane;
    use crate::traffic::synthetic::{Synthetic, SyntheticOptions};
    use crate::traffic::template::LinkAddresses;
    use crate::traffic::{Numbering, TrafficSource};
    use hairpin_core::frame::VecFrame;

    const SESSION: u64 = 9;
    /// When all packets are sent.
    const SENT: u64 = 1000;

    fn packets(count: usize) -> Vec<VecFrame> {
        let options = SyntheticOptions {
            transport: TransportProtocol::Udp,
            ipv6: false,
            arrivals: Arrivals::Fixed,
            sizes: None,
            length: FrameSize::Fixed(64),
            flows: 10,
            known: false,
            link: LinkAddresses::default(),
        };
        let mut source = Synthetic::new(options, FlowLane::only(), Numbering::new(SESSION, 0), 0, 1).unwrap();
        let mut all = Vec::new();
        while all.len() < count {
            let mut frames: Batch<VecFrame> = (0..10).map(|_| VecFrame::default()).collect();
            source.fill(SENT, &mut frames);
            all.extend(frames.drain(..));
        }
        all.truncate(count);
        all
    }

    fn damage(frames: &mut [VecFrame]) {
        frames.iter_mut().for_each(|frame| *frame.data.last_mut().unwrap() ^= 1);
    }

    /// A sink's report of packets at these times: sent, received, and what was lost.
    fn accounts(came: &[(u64, &[VecFrame])], between: &[(&str, u64)]) -> (u64, u64, Vec<(String, u64)>) {
        let options = SinkOptions { session: SESSION, generators: 1, flows: 10, balanced: false, duration: 1 };
        let mut sink = PacketSink::new(options, 0);
        came.iter().for_each(|&(now, frames)| sink.take(now, frames));
        let between: Vec<_> = between.iter().map(|&(reason, count)| (reason.to_owned(), count)).collect();
        let measured = close(&sink, 0, 1, &between).unwrap();
        (measured.sent, measured.received, measured.lost_by_reason)
    }

    fn reasons(of: &[(&str, u64)]) -> Vec<(String, u64)> {
        of.iter().map(|&(reason, count)| (reason.to_owned(), count)).collect()
    }

    #[test]
    fn damaged_packets_are_lost_for_a_reason() {
        let mut frames = packets(1000);
        damage(&mut frames[980..990]);
        assert_eq!(accounts(&[(SENT, &frames)], &[]), (1000, 990, reasons(&[("corrupted", 10)])));
        // Some are missing as well, more than the port knows of.
        let expected = reasons(&[("corrupted", 10), ("receive-queue-full", 15), ("on-the-way", 5)]);
        let between = [("receive-queue-full", 15)];
        assert_eq!(accounts(&[(SENT, &frames[20..])], &between), (1000, 970, expected));
    }

    #[test]
    fn packets_from_the_future_are_lost_for_a_reason() {
        let frames = packets(1000);
        let expected = (1000, 600, reasons(&[("from-the-future", 400)]));
        // One that comes again is still one packet, and the last ones have numbers too.
        let came = [(SENT - 1, &frames[..300]), (SENT - 1, &frames[..50]), (SENT, &frames[300..900])];
        assert_eq!(accounts(&[&came[..], &[(SENT - 1, &frames[900..])]].concat(), &[]), expected);
    }

    #[test]
    fn packets_too_late_to_tell_are_lost_for_a_reason() {
        let frames = packets(WINDOW as usize + 100);
        let last = frames.len() as u64;
        let expected = (last, last - 20, reasons(&[("too-late-to-tell", 20)]));
        assert_eq!(accounts(&[(SENT, &frames[20..]), (SENT, &frames[..20])], &[]), expected);
        // Those that had come before are lost to nothing.
        let again = [(SENT, &frames[..]), (SENT, &frames[..20])];
        assert_eq!(accounts(&again, &[]), (last, last, reasons(&[])));
    }

    #[test]
    fn foreign_damaged_frames_are_not_counted() {
        let mut frames = packets(1010);
        damage(&mut frames[1000..]);
        assert_eq!(accounts(&[(SENT, &frames)], &[]), (1000, 1000, reasons(&[])));
    }

    #[test]
    fn a_packet_that_two_queues_count_is_no_figure() {
        let options = SinkOptions { session: SESSION, generators: 1, flows: 10, balanced: false, duration: 1 };
        let [mut one, mut other] = [(); 2].map(|()| PacketSink::new(options, 0));
        let frames = packets(100);
        one.take(SENT, &frames);
        other.take(SENT, &frames[..1]);
        one.merge(&other);
        assert!(close(&one, 0, 1, &[]).unwrap_err().to_string().contains("101 packets received of 100"));
    }
}
