//! A modelled card in front of a device's port, in real time: packets of flows that it has rules for it rewrites and sends
//! back by itself, all others come up to the worker, whose flow engine it is.
//!
//! The model is [`hairpin_sim::nic`]. By the real clock go its room, its small first table, how long rules take and how
//! many come in a second, in which order they are confirmed, refusals, and how old the counters are that it tells. What
//! does not is how fast it turns packets round: a thread does that, at its own speed, so a card's line rate and delay
//! would be imitations. Nothing is ever lost for want of them.
//!
//! It works on the thread of the device's core, which has to find the rules that silicon finds beside it; how much of its
//! time goes there is in [`KeptFrames::ns`]. All of a burst meets the rules of one instant, and a burst's packets leave
//! before the next one comes in, so no packet overtakes those of its flow at hand-over, other than with a real card.

use crate::clock;
use crate::forward;
use fastrand::Rng;
use hairpin_core::engine::{Completions, EngineCaps, FlowEngine, RuleId, RuleOp, Samples};
use hairpin_core::flow::FlowKey;
use hairpin_core::frame::{Batch, Egress, Frame, FrameIo, Meta};
use hairpin_core::time::Time;
use hairpin_core::wire::{Parsed, parse};
use hairpin_sim::nic::{CardProfile, ForwardingProfile, Nic, Passage};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Faster than any thread: a packet takes a nanosecond, and nothing is lost.
const UNLIMITED: ForwardingProfile =
    ForwardingProfile { gbit_s: 1e9, mpps: 1e9, latency_us: 0.0, waiting_max: u32::MAX, while_changing: 1.0 };

/// A card like `profile` without rules, for a worker of so many connections; confirmations are late as drawn from `seed`.
pub fn card(profile: &CardProfile, connections: usize, seed: u64) -> Nic {
    let profile = CardProfile { forwarding: UNLIMITED, ..profile.clone() };
    let mut nic = Nic::new(profile, Rng::with_seed(seed));
    nic.reserve(connections.saturating_mul(2));
    nic
}

/// Frames that the card has not let through to the worker, and what they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeptFrames {
    /// Rewritten, to be sent back.
    pub turned: u64,
    /// Of those, sent.
    pub sent: u64,
    /// Not the service's: a rule says so, and there is no kernel to leave them to.
    pub passed: u64,
    /// Lost in the card. There are none.
    pub lost: u64,
    /// Marked, and let through, by a card that only marks.
    pub marked: u64,
    /// Nanoseconds of receiving and looking for rules, of bursts in which anything came.
    pub ns: u64,
}

/// A device's port, with a card in front of it or without. It counts what the device receives and sends.
pub struct DevicePort<IO: FrameIo> {
    io: IO,
    card: Option<Box<FrontCard<IO::Frame>>>,
    counts: CardCounts,
    /// Frames go back to the Ethernet address from which they came.
    returns: bool,
    /// Frames at the front of the next batch to send that did not fit before, and are ready as they are.
    waiting: usize,
    /// Frames that backends have sent back, if there are backends behind the port.
    returned: Option<Box<Batch<IO::Frame>>>,
}

/// The traffic through a device's port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardCounts {
    /// Frames received, those included that the card keeps.
    pub received: u64,
    /// Frames sent by the device, without the card's.
    pub sent: u64,
    /// Nanoseconds of receiving and sending, of a port behind a card; 0 of others.
    pub ns: u64,
}

/// The modelled card as the worker's flow engine. The port has the other handle; both are used by one thread only, so the
/// lock is always free.
#[derive(Clone)]
pub struct CardEngine(Arc<Mutex<Nic>>);

impl CardEngine {
    fn nic(&self) -> MutexGuard<'_, Nic> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FlowEngine for CardEngine {
    fn caps(&self) -> EngineCaps {
        self.nic().caps()
    }

    fn submit(&mut self, now: Time, op: RuleOp) -> Result<(), RuleOp> {
        self.nic().submit(now, op)
    }

    fn flush(&mut self, now: Time) {
        self.nic().flush(now);
    }

    fn poll(&mut self, now: Time, out: &mut Completions) {
        self.nic().poll(now, out);
    }

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        self.nic().sample(rules, out);
    }
}

struct FrontCard<F> {
    nic: CardEngine,
    missed: Batch<F>,
    turned: Batch<F>,
    kept: KeptFrames,
    /// It turns nothing round: it marks what it has rules for, and lets everything through to the worker.
    only_marks: bool,
}

impl<IO: FrameIo> DevicePort<IO> {
    /// A port alone.
    pub fn bare(io: IO) -> DevicePort<IO> {
        DevicePort { io, card: None, counts: CardCounts::default(), returns: false, waiting: 0, returned: None }
    }

    /// A port behind a card.
    pub fn behind(io: IO, nic: Nic) -> DevicePort<IO> {
        let nic = CardEngine(Arc::new(Mutex::new(nic)));
        let (missed, turned, kept) = (Batch::new(), Batch::new(), KeptFrames::default());
        let card = FrontCard { nic, missed, turned, kept, only_marks: false };
        DevicePort { card: Some(Box::new(card)), ..DevicePort::bare(io) }
    }

    /// A port whose frames go back to the Ethernet address from which they came, whatever is done to them: for a link with
    /// the generator at its other end.
    pub fn returning(io: IO) -> DevicePort<IO> {
        DevicePort { returns: true, ..DevicePort::bare(io) }
    }

    /// Its card marks packets and turns none round (`rte_flow`'s MARK, KTH 2020, section 4.2.5): a frame of a flow that it has
    /// a rule for says which connection it is of ([`Worker::go_by_marks`](hairpin_core::worker::Worker::go_by_marks)).
    #[must_use]
    pub fn only_marking(mut self) -> DevicePort<IO> {
        if let Some(card) = &mut self.card {
            card.only_marks = true;
        }
        self
    }

    /// Backends behind the port: what the device sends to one comes back at once, with its ends exchanged, and goes through
    /// the device again. Neither counts as sent or received. The device's thread does that, which takes it some nanoseconds
    /// for each packet.
    #[must_use]
    pub fn with_backends(self) -> DevicePort<IO> {
        DevicePort { returned: Some(Box::default()), ..self }
    }

    /// The card as an engine.
    pub fn engine(&self) -> Option<CardEngine> {
        self.card.as_ref().map(|card| card.nic.clone())
    }

    /// Its traffic so far.
    pub fn counts(&self) -> CardCounts {
        self.counts
    }

    /// Drivers take their buffers back when they are called to send, also nothing.
    pub fn idle(&mut self) {
        if self.waiting == 0 {
            self.io.transmit(&mut Batch::new());
        }
    }

    /// The packets that the card has kept to itself so far.
    pub fn kept(&self) -> KeptFrames {
        self.card.as_ref().map_or(KeptFrames::default(), |card| card.kept)
    }

    /// The most rules it had in force at a time.
    pub fn rules_peak(&self) -> u32 {
        self.card.as_ref().map_or(0, |card| card.nic.nic().tally().rules_peak)
    }

    /// The caller has dropped the frames that did not fit.
    pub fn forget_waiting(&mut self) {
        self.waiting = 0;
    }

    /// Whether frames of the card's find no room on their way out. Nothing is received meanwhile.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.card.as_ref().is_some_and(|card| !card.turned.is_empty())
    }

    /// Drops the card's frames that find no room; returns how many. The device drops its own.
    pub fn give_up(&mut self) -> u64 {
        self.waiting = 0;
        let Some(card) = &mut self.card else { return 0 };
        let count = card.turned.len() as u64;
        card.turned.clear();
        count
    }
}

impl<F: Frame> FrontCard<F> {
    /// Keeps of `frames`, from the `first` on, what there are rules for.
    fn sort(&mut self, now: Time, frames: &mut Batch<F>, first: usize) {
        let mut nic = self.nic.nic();
        for mut frame in frames.drain(first..) {
            if self.only_marks {
                let met = match parse(frame.bytes()) {
                    Ok(Parsed::Transport(at)) => nic.marking(now, &at),
                    _ => None,
                };
                self.kept.marked += u64::from(met.is_some());
                // One more than the lower half of the rule's id, as the worker reads it; 0 is none.
                frame.meta_mut().ticket = met.map_or(0, |id| (id.0 as u32).wrapping_add(1));
                self.missed.push(frame);
                continue;
            }
            let passage = match parse(frame.bytes()) {
                Ok(Parsed::Transport(at)) => nic.frame(now, &mut frame, &at),
                _ => Passage::Miss,
            };
            // A frame without a destination is dropped, and so returned to its plane.
            match passage {
                Passage::Miss => self.missed.push(frame),
                Passage::Forward(_) => {
                    self.kept.turned += 1;
                    self.turned.push(frame);
                }
                Passage::Pass => self.kept.passed += 1,
                Passage::Lost => self.kept.lost += 1,
            }
        }
        drop(nic);
        frames.extend(self.missed.drain(..));
    }

    fn send(&mut self, io: &mut impl FrameIo<Frame = F>) {
        if !self.turned.is_empty() {
            let before = self.turned.len();
            io.transmit(&mut self.turned);
            self.kept.sent += (before - self.turned.len()) as u64;
        }
    }
}

impl<IO: FrameIo> FrameIo for DevicePort<IO> {
    type Frame = IO::Frame;

    #[inline]
    fn receive(&mut self, out: &mut Batch<IO::Frame>) {
        if let Some(returned) = &mut self.returned {
            let count = returned.len().min(out.remaining_capacity());
            out.extend(returned.drain(..count));
        }
        let first = out.len();
        let Some(card) = &mut self.card else {
            self.io.receive(out);
            self.counts.received += (out.len() - first) as u64;
            return;
        };
        let began = clock::now();
        let now = Time::from_nanos(began);
        card.nic.nic().advance(now);
        card.send(&mut self.io);
        if card.turned.is_empty() {
            self.io.receive(out);
            self.counts.received += (out.len() - first) as u64;
            if out.len() > first {
                card.sort(now, out, first);
                card.kept.ns += clock::now().saturating_sub(began);
                card.send(&mut self.io);
            }
        }
        self.counts.ns += clock::now().saturating_sub(began);
    }

    /// The worker's own frames meet no rules. Those for the kernel are dropped: there is none.
    #[inline]
    fn transmit(&mut self, batch: &mut Batch<IO::Frame>) {
        let began = if self.card.is_some() { clock::now() } else { 0 };
        let mut place = 0;
        let fresh = self.waiting;
        if batch.iter().skip(fresh).any(|frame| frame.meta().egress == Egress::Kernel) {
            batch.retain(|frame| {
                place += 1;
                place <= fresh || frame.meta().egress != Egress::Kernel
            });
        }
        if self.returns {
            batch.iter_mut().skip(fresh).for_each(|frame| turn_back(frame.bytes_mut()));
        }
        if let Some(returned) = &mut self.returned {
            at_backends(batch, fresh, returned);
        }
        let before = batch.len();
        self.io.transmit(batch);
        self.counts.sent += (before - batch.len()) as u64;
        self.waiting = batch.len();
        if self.card.is_some() {
            self.counts.ns += clock::now().saturating_sub(began);
        }
    }

    #[inline]
    fn allocate(&mut self) -> Option<IO::Frame> {
        self.io.allocate()
    }

    fn room(&self) -> usize {
        self.io.room()
    }
}

/// Takes the frames for backends out of a batch, from the `fresh`-th on, and turns them back.
fn at_backends<F: Frame>(batch: &mut Batch<F>, fresh: usize, returned: &mut Batch<F>) {
    let all = std::mem::take(batch);
    for (place, mut frame) in all.into_iter().enumerate() {
        let room = place >= fresh && !returned.is_full();
        if room && forward::turn_at_backend(frame.bytes_mut()) {
            frame.set_examined(false);
            let port = frame.meta().port;
            *frame.meta_mut() = Meta { port, ..Meta::default() };
            returned.push(frame);
        } else {
            batch.push(frame);
        }
    }
}

/// Exchanges Ethernet addresses.
fn turn_back(frame: &mut [u8]) {
    if let Some(addresses) = frame.get_mut(..12) {
        let (destination, source) = addresses.split_at_mut(6);
        destination.swap_with_slice(source);
    }
}
