//! A modelled card in front of a device's port, in real time: packets of flows that it has rules for it rewrites and sends
//! back by itself, all others come up to the worker, whose flow engine it is.
//!
//! The model is [`hairpin_sim::nic`]. By the real clock go its room, its small first table, how long rules take and how
//! many come in a second, in which order they are confirmed, refusals, and how old the counters are that it tells. What
//! does not is how fast it turns packets round: a thread does that, at its own speed, so a card's line rate and delay
//! would be imitations. Nothing is ever lost for want of them.
//!
//! It works on the thread of the device's core, which has to find the rules that silicon finds beside it; how much of its
//! time goes there is in [`Kept::ns`]. All of a burst meets the rules of one instant, and a burst's packets leave before the
//! next one comes in, so no packet overtakes those of its flow at hand-over, other than with a real card.

use crate::clock;
use fastrand::Rng;
use hairpin_core::frame::{Batch, Frame, FrameIo};
use hairpin_core::time::Time;
use hairpin_core::wire::{Parsed, parse};
use hairpin_sim::nic::{Forwarding, Nic, Passage, Profile};

/// Faster than any thread: a packet takes a nanosecond, and nothing is lost.
const UNLIMITED: Forwarding =
    Forwarding { gbit_s: 1e9, mpps: 1e9, latency_us: 0.0, waiting_max: u32::MAX, while_changing: 1.0 };

/// A card like `profile` without rules, for a worker of so many connections; confirmations are late as drawn from `seed`.
pub fn card(profile: &Profile, connections: usize, seed: u64) -> Nic {
    let profile = Profile { forwarding: UNLIMITED, ..profile.clone() };
    let mut nic = Nic::new(profile, Rng::with_seed(seed));
    nic.reserve(connections.saturating_mul(2));
    nic
}

/// Frames that the card has not let through to the worker, and what they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Kept {
    /// Rewritten, to be sent back.
    pub turned: u64,
    /// Of those, sent.
    pub sent: u64,
    /// Not the service's: a rule says so, and there is no kernel to leave them to.
    pub passed: u64,
    /// Lost in the card. There are none.
    pub lost: u64,
    /// Nanoseconds of receiving and looking for rules, of bursts in which anything came.
    pub ns: u64,
}

impl Kept {
    fn frames(&self) -> u64 {
        self.turned + self.passed + self.lost
    }
}

/// A port with a card in front of it, or without.
pub struct Front<IO: FrameIo> {
    io: IO,
    card: Option<Box<Card<IO::Frame>>>,
}

struct Card<F> {
    nic: Nic,
    missed: Batch<F>,
    turned: Batch<F>,
    kept: Kept,
}

impl<IO: FrameIo> Front<IO> {
    /// A port alone.
    pub fn bare(io: IO) -> Front<IO> {
        Front { io, card: None }
    }

    /// A port behind a card.
    pub fn behind(io: IO, nic: Nic) -> Front<IO> {
        let card = Card { nic, missed: Batch::new(), turned: Batch::new(), kept: Kept::default() };
        Front { io, card: Some(Box::new(card)) }
    }

    /// The card.
    pub fn nic(&mut self) -> Option<&mut Nic> {
        self.card.as_mut().map(|card| &mut card.nic)
    }

    /// What the card has kept to itself so far.
    pub fn kept(&self) -> Kept {
        self.card.as_ref().map_or(Kept::default(), |card| card.kept)
    }

    /// The most rules it had in force at a time.
    pub fn rules_peak(&self) -> u32 {
        self.card.as_ref().map_or(0, |card| card.nic.tally().rules_peak)
    }

    /// Receives; how many frames came, those included that the card keeps.
    #[inline]
    pub fn take(&mut self, out: &mut Batch<IO::Frame>) -> usize {
        let (before, kept) = (out.len(), self.kept().frames());
        self.receive(out);
        out.len() - before + (self.kept().frames() - kept) as usize
    }

    /// Whether frames of the card's find no room on their way out. Nothing is received meanwhile.
    #[inline]
    pub fn is_blocked(&self) -> bool {
        self.card.as_ref().is_some_and(|card| !card.turned.is_empty())
    }

    /// Drops the frames that find no room; how many.
    pub fn give_up(&mut self) -> u64 {
        let Some(card) = &mut self.card else { return 0 };
        let count = card.turned.len() as u64;
        card.turned.clear();
        count
    }
}

impl<F: Frame> Card<F> {
    /// Keeps of `frames`, from the `first` on, what there are rules for.
    fn sort(&mut self, now: Time, frames: &mut Batch<F>, first: usize) {
        for mut frame in frames.drain(first..) {
            let passage = match parse(frame.bytes()) {
                Ok(Parsed::Transport(at)) => self.nic.frame(now, &mut frame, &at),
                _ => Passage::Miss,
            };
            // What goes nowhere is dropped, and so returned to its plane.
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

impl<IO: FrameIo> FrameIo for Front<IO> {
    type Frame = IO::Frame;

    #[inline]
    fn receive(&mut self, out: &mut Batch<IO::Frame>) {
        let Some(card) = &mut self.card else { return self.io.receive(out) };
        let (began, first) = (clock::now(), out.len());
        let now = Time::from_nanos(began);
        card.nic.advance(now);
        card.send(&mut self.io);
        if !card.turned.is_empty() {
            return;
        }
        self.io.receive(out);
        if out.len() > first {
            card.sort(now, out, first);
            card.kept.ns += clock::now().saturating_sub(began);
            card.send(&mut self.io);
        }
    }

    /// What the worker sends meets no rules.
    #[inline]
    fn transmit(&mut self, batch: &mut Batch<IO::Frame>) {
        self.io.transmit(batch);
    }

    #[inline]
    fn allocate(&mut self) -> Option<IO::Frame> {
        self.io.allocate()
    }

    fn room(&self) -> usize {
        self.io.room()
    }
}
