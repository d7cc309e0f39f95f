//! One direction of a wire, with its faults.

use crate::segments::transport;
use fastrand::Rng;
use hairpin_core::frame::{Frame, VecFrame};
use hairpin_core::time::{Duration, Time};

/// Bytes of an Ethernet header, which no fault touches.
const ETHERNET: usize = 14;
/// The denominator of shares.
const MILLION: u32 = 1_000_000;

/// How a link treats frames. Shares are in millionths of frames.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// Every frame takes so long.
    pub delay: Duration,
    /// And up to so much longer, each frame by itself: frames overtake each other.
    pub jitter: Duration,
    /// Frames that vanish.
    pub loss: u32,
    /// Frames that come twice.
    pub duplicated: u32,
    /// Frames in which one bit flips, behind the Ethernet header, unless one has flipped on an earlier link: every checksum
    /// finds one. A second one can hide the first (seed 5022), also from a host behind a router.
    pub corrupted: u32,
    /// Bits per second; 0: no bound.
    pub rate: u64,
    /// Bytes that wait for their turn at most, if the rate is bounded; more are dropped.
    pub queue: usize,
    /// The largest IP packet, in bytes.
    pub mtu: usize,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            delay: Duration::from_micros(50),
            jitter: Duration::ZERO,
            loss: 0,
            duplicated: 0,
            corrupted: 0,
            rate: 0,
            queue: 1 << 20,
            mtu: 1500,
        }
    }
}

impl Faults {
    /// Faults drawn from a seed's generator. Each kind is absent in half of the seeds, all of them in a quarter; with
    /// `HAIRPIN_SIM_CALM=1` in all, which tells mistakes about faults from others.
    pub fn draw(random: &mut Rng, mtu: usize) -> Faults {
        let delay = Duration::from_micros(random.u64(5..20_000));
        let none = Faults { delay, mtu, ..Faults::default() };
        let calm = std::env::var_os("HAIRPIN_SIM_CALM").is_some_and(|value| value == "1");
        if random.u8(..4) == 0 || calm {
            return none;
        }
        let mut some = |share: u32| if random.bool() { random.u32(1..share) } else { 0 };
        let (loss, duplicated, corrupted) = (some(40_000), some(30_000), some(20_000));
        let jitter = if random.bool() { Duration::from_micros(random.u64(1..5_000)) } else { Duration::ZERO };
        let bounded = random.u8(..3) == 0;
        let rate = if bounded { random.u64(5_000_000..200_000_000) } else { 0 };
        Faults { jitter, loss, duplicated, corrupted, rate, queue: random.usize(16_000..200_000), ..none }
    }
}

/// One direction of a wire.
#[derive(Clone, Debug)]
pub struct WireDirection {
    /// How it treats frames.
    pub faults: Faults,
    free_at: Time,
}

impl WireDirection {
    /// A link with these faults.
    pub fn new(faults: Faults) -> WireDirection {
        WireDirection { faults, free_at: Time::ZERO }
    }

    /// Carries a frame, which is no larger than the link's MTU: when what arrives of it, and how often.
    pub fn transmit(&mut self, now: Time, mut frame: VecFrame, random: &mut Rng) -> Vec<(Time, VecFrame)> {
        let faults = self.faults;
        let mut leaves = now;
        if faults.rate > 0 {
            let took = |bytes: usize| Duration::from_nanos(bytes as u64 * 8_000_000_000 / faults.rate.max(8));
            if self.free_at.since(now) > took(faults.queue) {
                return Vec::new();
            }
            self.free_at = self.free_at.max(now) + took(frame.data.len());
            leaves = self.free_at;
        }
        let happens = |share: u32, random: &mut Rng| share > 0 && random.u32(..MILLION) < share;
        if happens(faults.loss, random) {
            return Vec::new();
        }
        let copies = if happens(faults.duplicated, random) { 2 } else { 1 };
        if happens(faults.corrupted, random) && frame.data.len() > ETHERNET {
            let bit = random.usize(ETHERNET * 8..frame.data.len() * 8);
            if is_intact(&frame) {
                frame.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
            }
        }
        let jitter = faults.jitter.as_nanos() as u64;
        let late = |random: &mut Rng| if jitter > 0 { random.u64(..jitter) } else { 0 };
        (0..copies).map(|_| (leaves + faults.delay + Duration::from_nanos(late(random)), frame.clone())).collect()
    }
}

/// Whether no bit of a frame has flipped.
fn is_intact(frame: &VecFrame) -> bool {
    transport(&frame.data).is_some_and(|at| {
        let field = at.checksum_offset();
        let there = frame.data.get(field..field + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
        at.transport_checksum(&frame.data) == there
    })
}
