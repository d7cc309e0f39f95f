//! The device under test: what turns frames that come in into frames that go out.

use super::Device;
use super::balancer::{dropped as worker_dropped, event_loop, now, retire};
use super::card::DevicePort;
use super::cores::CoreWatch;
use super::meter::{CoreMeter, CoreWork};
use super::offload::{Offloaded, Offloading};
use super::table::LabTable;
use crate::clock;
use crate::forward::Forwarder;
use hairpin_core::engine::NoEngine;
use hairpin_core::event_loop::EventLoop;
use hairpin_core::frame::{Batch, FrameIo};
use hairpin_core::offload::{AnyPolicy, Never};
use hairpin_core::worker::Worker;
use hairpin_sim::nic::Nic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a device that is to stop tries to get rid of what it has, in nanoseconds.
const PATIENCE: u64 = 1_000_000_000;

/// A device's core.
pub enum DeviceCore {
    /// Frames go out as they came in.
    Wire,
    /// The basic forwarder.
    Forwarder(Box<Forwarder>),
    /// Hairpin's worker.
    Balancer(Box<Worker<Never, LabTable>>),
    /// Hairpin's worker behind a card ([`ServingCore::behind`]).
    Offloading(Box<Worker<AnyPolicy, LabTable>>),
}

/// The counts of a device's core.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Handled {
    /// Frames that came in.
    pub received: u64,
    /// Frames that went out.
    pub sent: u64,
    /// Frames that did not, by reason.
    pub dropped: Vec<(String, u64)>,
    /// The totals of a card, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offloaded: Option<Offloaded>,
}

impl Handled {
    /// The difference since `before`.
    pub fn since(&self, before: &Handled) -> Handled {
        let was = |reason: &str| before.dropped.iter().find(|(name, _)| name == reason).map_or(0, |(_, count)| *count);
        let dropped = self.dropped.iter().map(|(name, count)| (name.clone(), count - was(name)));
        Handled {
            received: self.received - before.received,
            sent: self.sent - before.sent,
            dropped: dropped.filter(|&(_, count)| count > 0).collect(),
            offloaded: self.offloaded.map(|all| all.since(&before.offloaded.unwrap_or_default())),
        }
    }

    /// Adds what another core has done. (One that has a card is alone.)
    pub fn add(&mut self, other: Handled) {
        self.received += other.received;
        self.sent += other.sent;
        self.offloaded = self.offloaded.or(other.offloaded);
        for (reason, count) in other.dropped {
            match self.dropped.iter_mut().find(|(name, _)| *name == reason) {
                Some((_, sum)) => *sum += count,
                None => self.dropped.push((reason, count)),
            }
        }
    }

    /// Frames that were received and neither sent nor counted as dropped.
    pub fn unexplained(&self) -> u64 {
        let dropped: u64 = self.dropped.iter().map(|(_, count)| count).sum();
        self.received.saturating_sub(self.sent + dropped)
    }
}

/// A device's core with its port, and the loop that drives them.
enum Driver<IO: FrameIo> {
    Wire { io: DevicePort<IO>, frames: Batch<IO::Frame> },
    Forwarder { forwarder: Box<Forwarder>, io: DevicePort<IO>, rx: Batch<IO::Frame>, tx: Batch<IO::Frame> },
    Balancer(Box<EventLoop<DevicePort<IO>, NoEngine, Worker<Never, LabTable>>>),
    Offloading(Box<Offloading<IO>>),
}

/// Runs a piece of code with the port of whichever driver it is.
macro_rules! port {
    ($driver:expr, $io:ident => $what:expr) => {
        match $driver {
            Driver::Wire { io: $io, .. } | Driver::Forwarder { io: $io, .. } => $what,
            Driver::Balancer(event_loop) => {
                let $io = &event_loop.io;
                $what
            }
            Driver::Offloading(offloading) => {
                let $io = &offloading.event_loop().io;
                $what
            }
        }
    };
}

impl<IO: FrameIo> Driver<IO> {
    /// An iteration: receives, handles, sends. Whether there may be more to do at once.
    #[inline]
    fn iterate(&mut self) -> bool {
        match self {
            Driver::Wire { io, frames } => {
                if frames.is_empty() {
                    io.receive(frames);
                }
                let busy = !frames.is_empty();
                io.transmit(frames);
                busy
            }
            Driver::Forwarder { forwarder, io, rx, tx } => {
                let mut busy = !tx.is_empty();
                if !busy {
                    io.receive(rx);
                    busy = !rx.is_empty();
                    forwarder.handle_batch(rx, tx);
                }
                io.transmit(tx);
                busy
            }
            Driver::Balancer(event_loop) => {
                let busy = event_loop.iterate(now(), |_| {});
                if !busy {
                    event_loop.io.idle();
                }
                busy || event_loop.is_blocked()
            }
            Driver::Offloading(offloading) => {
                let busy = offloading.iterate();
                let event_loop = offloading.event_loop_mut();
                if !busy {
                    event_loop.io.idle();
                }
                busy || event_loop.is_blocked() || event_loop.io.is_blocked()
            }
        }
    }

    /// Whether frames find no room on their way out, so that nothing is received.
    fn is_blocked(&self) -> bool {
        match self {
            Driver::Wire { frames, .. } => !frames.is_empty(),
            Driver::Forwarder { tx, .. } => !tx.is_empty(),
            Driver::Balancer(event_loop) => event_loop.is_blocked(),
            Driver::Offloading(offloading) => offloading.event_loop().is_blocked(),
        }
    }

    /// Drops the frames that find no room; returns how many.
    fn give_up(&mut self) -> u64 {
        let drop_all = |frames: &mut Batch<IO::Frame>| {
            let count = frames.len();
            frames.clear();
            count
        };
        let (count, of_card) = match self {
            Driver::Wire { io, frames } => (drop_all(frames), io.give_up()),
            Driver::Forwarder { io, tx, .. } => (drop_all(tx), io.give_up()),
            Driver::Balancer(event_loop) => (event_loop.discard(), event_loop.io.give_up()),
            Driver::Offloading(offloading) => {
                let event_loop = offloading.event_loop_mut();
                (event_loop.discard(), event_loop.io.give_up())
            }
        };
        count as u64 + of_card
    }
}

/// A device's core between where frames come from and where they go, with a loop of its own.
pub struct ServingCore<IO: FrameIo> {
    driver: Driver<IO>,
    stuck: u64,
    meter: Option<Box<CoreMeter>>,
}

impl<IO: FrameIo> ServingCore<IO> {
    /// A core that has not begun; not [`DeviceCore::Offloading`], which stands behind a card.
    pub fn new(core: DeviceCore, io: IO) -> ServingCore<IO> {
        ServingCore::at(core, DevicePort::bare(io))
    }

    /// One that has not begun, behind a card that only marks packets.
    pub fn behind_marks(core: DeviceCore, io: IO, nic: Nic) -> ServingCore<IO> {
        ServingCore::at(core, DevicePort::behind(io, nic).only_marking())
    }

    /// One that has not begun, with backends behind its port that send everything back.
    pub fn before_backends(core: DeviceCore, io: IO) -> ServingCore<IO> {
        ServingCore::at(core, DevicePort::bare(io).with_backends())
    }

    /// One that has not begun, behind a card.
    pub fn behind(core: DeviceCore, io: IO, nic: Nic) -> ServingCore<IO> {
        ServingCore::at(core, DevicePort::behind(io, nic))
    }

    fn at(core: DeviceCore, io: DevicePort<IO>) -> ServingCore<IO> {
        let driver = match core {
            DeviceCore::Wire => Driver::Wire { io, frames: Batch::new() },
            DeviceCore::Forwarder(forwarder) => Driver::Forwarder { forwarder, io, rx: Batch::new(), tx: Batch::new() },
            DeviceCore::Balancer(worker) => Driver::Balancer(Box::new(event_loop(*worker, io, NoEngine::default()))),
            DeviceCore::Offloading(worker) => Driver::Offloading(Box::new(Offloading::new(*worker, io))),
        };
        ServingCore { driver, stuck: 0, meter: None }
    }

    /// One whose frames go back to the Ethernet address from which they came, whatever it does to them: for a link with
    /// the generator at its other end.
    pub fn returning(core: DeviceCore, io: IO) -> ServingCore<IO> {
        // The forwarder does that by itself.
        let io =
            if matches!(core, DeviceCore::Forwarder(_)) { DevicePort::bare(io) } else { DevicePort::returning(io) };
        ServingCore::at(core, io)
    }

    /// Measures iterations from now on, on the calling thread.
    pub fn meter(&mut self) {
        match &mut self.meter {
            Some(meter) => meter.restart(),
            None => self.meter = Some(Box::default()),
        }
    }

    /// The times of its iterations, if they were measured.
    pub fn work(&self) -> Option<CoreWork> {
        self.meter.as_ref().map(|meter| meter.work())
    }

    /// Which device it is.
    pub fn device(&self) -> Device {
        match self.driver {
            Driver::Wire { .. } => Device::Wire,
            Driver::Forwarder { .. } => Device::Forwarder,
            Driver::Balancer(_) | Driver::Offloading(_) => Device::Balancer,
        }
    }

    /// An iteration: receives, handles, sends. Whether there may be more to do at once.
    #[inline]
    pub fn iterate(&mut self) -> bool {
        let Some(meter) = &mut self.meter else { return self.driver.iterate() };
        let blocked = self.driver.is_blocked();
        let before = port!(&self.driver, io => io.counts().received);
        let busy = self.driver.iterate();
        let came = port!(&self.driver, io => io.counts().received) - before;
        meter.iteration((!blocked).then_some(came as usize));
        busy
    }

    /// Iterates until told to stop and nothing is in hand. How long it slept meanwhile, because nothing came.
    pub fn serve(&mut self, stop: &AtomicBool) -> Duration {
        let mut stopping = None;
        let mut watch = CoreWatch::default();
        loop {
            let busy = self.iterate();
            watch.polled(busy);
            if busy {
                if let Some(since) = stopping
                    && clock::now().saturating_sub(since) > PATIENCE
                {
                    self.stuck += self.driver.give_up();
                }
                continue;
            }
            if stop.load(Ordering::Acquire) {
                if stopping.is_some() {
                    return watch.slept();
                }
                stopping = Some(clock::now());
            }
            std::hint::spin_loop();
        }
    }

    /// It is needed no more.
    pub fn retire(self) {
        match self.driver {
            Driver::Wire { .. } | Driver::Forwarder { .. } => {}
            Driver::Balancer(event_loop) => retire(event_loop.worker),
            Driver::Offloading(offloading) => offloading.retire(),
        }
    }

    /// Frames received and sent so far.
    pub fn received_and_sent(&self) -> (u64, u64) {
        port!(&self.driver, io => (io.counts().received, io.counts().sent + io.kept().sent))
    }

    /// Its counts so far.
    pub fn handled(&self) -> Handled {
        let mut dropped: Vec<(String, u64)> = match &self.driver {
            Driver::Wire { .. } => Vec::new(),
            Driver::Forwarder { forwarder, .. } => named(forwarder.counts().dropped()),
            Driver::Balancer(event_loop) => named(worker_dropped(event_loop.worker.statistics())),
            Driver::Offloading(offloading) => named(worker_dropped(offloading.event_loop().worker.statistics())),
        };
        let kept = port!(&self.driver, io => io.kept());
        let offloaded = match &self.driver {
            Driver::Offloading(offloading) => Some(offloading.offloaded()),
            Driver::Wire { .. } | Driver::Forwarder { .. } | Driver::Balancer(_) => None,
        };
        let in_card = [("not-the-service's-in-the-card", kept.passed), ("lost-in-the-card", kept.lost)];
        dropped.extend(named(in_card.into_iter().filter(|&(_, count)| count > 0)));
        if self.stuck > 0 {
            dropped.push(("device-stuck".to_owned(), self.stuck));
        }
        let (received, sent) = self.received_and_sent();
        Handled { received, sent, dropped, offloaded }
    }
}

fn named(reasons: impl Iterator<Item = (&'static str, u64)>) -> Vec<(String, u64)> {
    reasons.map(|(name, count)| (name.to_owned(), count)).collect()
}
