//! Packets to send: recorded ones ([`replay`]) and made up ([`synthetic`]), [paced](pace), each with a [`stamp`].

pub mod flows;
pub mod pace;
pub mod recording;
pub mod replay;
pub mod sizes;
pub mod stamp;
pub mod synthetic;
pub mod template;

use hairpin_core::frame::{Batch, Frame};
use stamp::{BYTES, MODULUS, SEQUENCES, Stamp};

/// A source of packets. Filling a burst allocates nothing.
pub trait TrafficSource {
    /// Makes packets of the first of `frames`, stamped with `now` (the [clock](crate::clock)'s nanoseconds), and says how
    /// many, and of how many bytes together: fewer than there are frames if it has nothing more to send now, or if a
    /// frame has no room for its packet ([`TrafficSource::refused`]).
    fn fill<F: Frame>(&mut self, now: u64, frames: &mut Batch<F>) -> FilledBurst;

    /// Fills frames with packets that make the flows known to a device that tracks them, before they are measured:
    /// after all of them have been sent, in order, every flow is an established connection. None: all is done, or the
    /// source's flows are new ones each time.
    fn introduce<F: Frame>(&mut self, now: u64, frames: &mut Batch<F>) -> FilledBurst;

    /// Packets it has made and stamped, introductions not among them.
    fn made(&self) -> u64;

    /// The packets that it could not send for a reason of its own, in packets or flows, by reason, for people.
    fn refused(&self) -> Vec<(&'static str, u64)>;

    /// Flows it has at a time, at most.
    fn flows(&self) -> usize;

    /// Bytes of a packet, on average, about.
    fn mean_length(&self) -> usize;
}

/// The result of filling a burst.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FilledBurst {
    /// Packets.
    pub packets: usize,
    /// Bytes of them together.
    pub bytes: usize,
}

/// Packets' numbers, and what else is the same in all of a generator's stamps.
#[derive(Clone, Debug)]
pub struct Numbering {
    session: u64,
    generator: u8,
    next: u64,
}

impl Numbering {
    /// From 0 on, for one of the generators of a session.
    pub fn new(session: u64, generator: u8) -> Numbering {
        Numbering { session, generator, next: 0 }
    }

    /// The next packet's stamp.
    #[inline]
    fn stamp(&mut self, flow: u32, now: u64) -> [u8; BYTES] {
        let sequence = (u64::from(self.generator) << 40) | (self.next % SEQUENCES);
        self.next += 1;
        Stamp { flow, sequence, time: now % MODULUS }.bytes(self.session)
    }

    /// The stamp of a packet that is not measured.
    fn unnumbered(&self, flow: u32) -> [u8; BYTES] {
        // Of no session: who meets it later than it was meant to does not count it.
        Stamp { flow, sequence: 0, time: 0 }.bytes(!self.session)
    }
}

/// Any source.
pub enum AnyTraffic {
    /// Recorded packets.
    Replay(replay::ReplaySource),
    /// Made up ones.
    Synthetic(synthetic::Synthetic),
}

/// Evaluates one expression for any variant of [`AnyTraffic`].
macro_rules! each {
    ($any:expr, $traffic:ident => $call:expr) => {
        match $any {
            AnyTraffic::Replay($traffic) => $call,
            AnyTraffic::Synthetic($traffic) => $call,
        }
    };
}

impl TrafficSource for AnyTraffic {
    #[inline]
    fn fill<F: Frame>(&mut self, now: u64, frames: &mut Batch<F>) -> FilledBurst {
        each!(self, traffic => traffic.fill(now, frames))
    }

    fn introduce<F: Frame>(&mut self, now: u64, frames: &mut Batch<F>) -> FilledBurst {
        each!(self, traffic => traffic.introduce(now, frames))
    }

    fn made(&self) -> u64 {
        each!(self, traffic => traffic.made())
    }

    fn refused(&self) -> Vec<(&'static str, u64)> {
        each!(self, traffic => traffic.refused())
    }

    fn flows(&self) -> usize {
        each!(self, traffic => traffic.flows())
    }

    fn mean_length(&self) -> usize {
        each!(self, traffic => traffic.mean_length())
    }
}

/// How often each flow is sent when it is made known: a datagram is taken for one of a conversation from the eighth on.
fn introductions(protocol: hairpin_core::flow::Protocol) -> usize {
    match protocol {
        hairpin_core::flow::Protocol::Tcp => 1,
        hairpin_core::flow::Protocol::Udp => 8,
    }
}

#[cfg(test)]
mod tests;
