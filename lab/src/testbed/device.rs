//! The device under test: what turns frames that come in into frames that go out.

use super::Device;
use super::balancer::Balancer;
use super::card::Front;
use super::cores::Watch;
use super::meter::{Meter, Work};
use super::offload::{Offloaded, Offloading};
use crate::clock;
use crate::forward::Forwarder;
use hairpin_core::frame::{Batch, Frame, FrameIo};
use hairpin_sim::nic::Nic;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a device that is to stop tries to get rid of what it has, in nanoseconds.
const PATIENCE: u64 = 1_000_000_000;

/// A device's core.
pub enum Core {
    /// Frames go out as they came in.
    Wire,
    /// The basic forwarder.
    Forwarder(Box<Forwarder>),
    /// Hairpin's worker.
    Balancer(Box<Balancer>),
    /// Hairpin's worker behind a card ([`Serving::behind`]).
    Offloading(Box<Offloading>),
}

/// What a device's core has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Handled {
    /// Frames that came in.
    pub received: u64,
    /// Frames that went out.
    pub sent: u64,
    /// Frames that did not, by reason.
    pub dropped: Vec<(String, u64)>,
    /// What a card has done, if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offloaded: Option<Offloaded>,
}

impl Handled {
    /// What has been done since `before`.
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

/// A device's core between where frames come from and where they go, with a loop of its own.
pub struct Serving<IO: FrameIo> {
    core: Core,
    io: Front<IO>,
    rx: Batch<IO::Frame>,
    tx: Batch<IO::Frame>,
    received: u64,
    sent: u64,
    stuck: u64,
    /// What a balancer sends goes back to the Ethernet address it came from.
    returns: bool,
    meter: Option<Box<Meter>>,
}

impl<IO: FrameIo> Serving<IO> {
    /// A core that has not begun.
    pub fn new(core: Core, io: IO) -> Serving<IO> {
        Serving::at(core, Front::bare(io))
    }

    /// One that has not begun, behind a card.
    pub fn behind(core: Core, io: IO, nic: Nic) -> Serving<IO> {
        Serving::at(core, Front::behind(io, nic))
    }

    fn at(core: Core, io: Front<IO>) -> Serving<IO> {
        let (rx, tx, returns, meter) = (Batch::new(), Batch::new(), false, None);
        Serving { core, io, rx, tx, received: 0, sent: 0, stuck: 0, returns, meter }
    }

    /// One whose frames go back to the Ethernet address from which they came, whatever it does to them: for a link with
    /// the generator at its other end.
    pub fn returning(core: Core, io: IO) -> Serving<IO> {
        // The forwarder does that by itself.
        let returns = !matches!(core, Core::Forwarder(_));
        Serving { returns, ..Serving::new(core, io) }
    }

    /// Measures iterations from now on, on the calling thread.
    pub fn meter(&mut self) {
        match &mut self.meter {
            Some(meter) => meter.restart(),
            None => self.meter = Some(Box::default()),
        }
    }

    /// What its iterations took, if they were measured.
    pub fn work(&self) -> Option<Work> {
        self.meter.as_ref().map(|meter| meter.work())
    }

    /// Which device it is.
    pub fn device(&self) -> Device {
        match self.core {
            Core::Wire => Device::Wire,
            Core::Forwarder(_) => Device::Forwarder,
            Core::Balancer(_) | Core::Offloading(_) => Device::Balancer,
        }
    }

    /// One iteration: receives, handles, sends. Whether anything came or is still to go.
    #[inline]
    pub fn iterate(&mut self) -> bool {
        let came = self.tx.is_empty().then(|| self.take());
        let before = self.tx.len();
        // Drivers take their frames back when they are called, also with none.
        self.io.transmit(&mut self.tx);
        self.sent += (before - self.tx.len()) as u64;
        if let Some(meter) = &mut self.meter {
            meter.iteration(came);
        }
        // Where all that came was dropped nothing is to be sent, and more may wait.
        before > 0 || came.is_some_and(|came| came > 0) || self.io.is_blocked()
    }

    /// Receives and handles; how many came.
    #[inline]
    fn take(&mut self) -> usize {
        let came = self.io.take(&mut self.rx);
        self.received += came as u64;
        match &mut self.core {
            Core::Wire => std::mem::swap(&mut self.rx, &mut self.tx),
            Core::Forwarder(forwarder) => forwarder.handle_batch(&mut self.rx, &mut self.tx),
            Core::Balancer(balancer) => {
                balancer.turn(clock::now(), &mut self.io, &mut self.rx, &mut self.tx);
            }
            Core::Offloading(offloading) => offloading.iterate(&mut self.io, &mut self.rx, &mut self.tx),
        }
        if self.returns {
            self.tx.iter_mut().for_each(|frame| swap_macs(frame.bytes_mut()));
        }
        came
    }

    /// Iterates until told to stop and nothing is in hand. How long it slept meanwhile, because nothing came.
    pub fn serve(&mut self, stop: &AtomicBool) -> Duration {
        let mut stopping = None;
        let mut watch = Watch::default();
        loop {
            let busy = self.iterate();
            watch.polled(busy);
            if busy {
                if let Some(since) = stopping
                    && clock::now().saturating_sub(since) > PATIENCE
                {
                    self.stuck += self.tx.len() as u64 + self.io.give_up();
                    self.tx.clear();
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
        match self.core {
            Core::Wire | Core::Forwarder(_) => {}
            Core::Balancer(balancer) => balancer.retire(),
            Core::Offloading(offloading) => offloading.retire(),
        }
    }

    /// Frames received and sent so far.
    pub fn received_and_sent(&self) -> (u64, u64) {
        (self.received, self.sent + self.io.kept().sent)
    }

    /// What it has done so far.
    pub fn handled(&self) -> Handled {
        let mut dropped: Vec<(String, u64)> = match &self.core {
            Core::Wire => Vec::new(),
            Core::Forwarder(forwarder) => named(forwarder.counts().dropped()),
            Core::Balancer(balancer) => named(balancer.dropped()),
            Core::Offloading(offloading) => named(offloading.balancer().dropped()),
        };
        let kept = self.io.kept();
        let offloaded = match &self.core {
            Core::Offloading(offloading) => Some(offloading.offloaded(self.received, &kept, self.io.rules_peak())),
            Core::Wire | Core::Forwarder(_) | Core::Balancer(_) => None,
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

/// Exchanges Ethernet addresses.
fn swap_macs(frame: &mut [u8]) {
    if let Some(addresses) = frame.get_mut(..12) {
        let (destination, source) = addresses.split_at_mut(6);
        destination.swap_with_slice(source);
    }
}

fn named(reasons: impl Iterator<Item = (&'static str, u64)>) -> Vec<(String, u64)> {
    reasons.map(|(name, count)| (name.to_owned(), count)).collect()
}
