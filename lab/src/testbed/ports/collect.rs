//! A sink alone, of a generator in another process.

use super::super::account::Books;
use super::super::cores::{Watch, pin};
use super::super::device::Handled;
use super::super::ends::{Inlet, Outlet};
use super::super::generator::Sent;
use super::super::{Measurement, Progress};
use super::{Ends, PortSettings, STEPS, between, seen_otherwise, session};
use crate::clock;
use crate::sink::timeline::Timeline;
use crate::sink::{Sink, SinkOptions};
use anyhow::{Result, anyhow};
use hairpin_core::frame::Batch;
use hairpin_dpdk::Eal;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// What a sink alone is told.
#[derive(Clone, Debug)]
pub struct SinkSettings {
    /// The port to receive from.
    pub port: PortSettings,
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

/// What a sink alone has found.
#[derive(Clone, Debug, serde::Serialize)]
pub struct Collected {
    /// What can be said without the generator: `sent` is what it must have sent, by the numbers of what came; the last
    /// packets, if they are lost, are not missed.
    pub measurement: Measurement,
    /// Frames of nobody's, or of another session.
    pub foreign: u64,
}

/// Receives from a port and judges, until told to stop or the time is over.
///
/// # Errors
/// A port that cannot be opened.
pub fn sink(
    eal: &Eal,
    settings: &SinkSettings,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(Progress),
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
    let queues: Vec<Ends> =
        (0..settings.port.cpus.len() as u16).map(|queue| opened.ends(queue)).collect::<Result<_>>()?;
    opened.wait(stop)?;
    let before = opened.port.statistics();
    progress(Progress::Started { device: Vec::new() });
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
            progress(Progress::Running { elapsed: Duration::from_nanos(elapsed), sent: received, received });
        }
        let joined = running.into_iter().map(|thread| thread.join().map_err(|_| anyhow!("a thread has panicked"))?);
        joined.collect::<Result<Vec<(Sink, u64)>>>()
    })?;
    let start = first.load(Ordering::Relaxed);
    let last = sinks.iter().map(|&(_, last)| last).max().unwrap_or(0);
    let duration = if start == 0 { 0 } else { last.saturating_sub(start).max(1) };
    let mut all = Sink::new(SinkOptions { flows: 0, duration, ..options }, start);
    sinks.iter().for_each(|(sink, _)| all.merge(sink));
    let counts = *all.counts();
    let sent = Sent { packets: counts.received + all.missing(), ..Sent::default() };
    let mut missing = all.missing().saturating_sub(seen_otherwise(&counts));
    let mut between = between(&before, &opened.port.statistics());
    for (_, count) in &mut between {
        *count = (*count).min(missing);
        missing -= *count;
    }
    between.push(("on-the-way".to_owned(), missing));
    between.retain(|&(_, count)| count > 0);
    let handled = Handled::default();
    let books = Books {
        sent,
        full: Ends::FULL,
        behind: 0,
        timeline: Timeline::new(start, 0),
        handled,
        between,
        sink: &all,
        duration,
    };
    let lost = books.between.clone();
    Ok(Collected { measurement: books.measurement(lost), foreign: counts.foreign })
}

fn collect(
    mut ends: Ends,
    cpu: usize,
    eal: &Eal,
    settings: &SinkSettings,
    options: SinkOptions,
    stop: &AtomicBool,
    (first, received): (&AtomicU64, &AtomicU64),
) -> Result<(Sink, u64)> {
    pin(cpu)?;
    let _registered = eal.register_thread()?;
    let mut sink = Sink::new(options, 0);
    let (mut batch, mut watch) = (Batch::new(), Watch::default());
    let (mut started, mut last, mut told) = (false, 0, 0);
    loop {
        for _ in 0..STEPS {
            ends.receive(&mut batch);
            watch.looked(!batch.is_empty());
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
