//! SYN cookies (RFC 4987, 3.6; KAIST 2018): a SYN is answered without storing anything, because all that must be known of
//! it comes back in the acknowledgement number of the first data. The linux plane's programs make and
//! check the same ones, bit for bit (`crates/linux/bpf/cookie.h`).
//!
//! A cookie is our initial sequence number:
//!
//! | bits | what |
//! |---|---|
//! | 9 to 31 | 23 bits of SipHash-1-3 over the flow, the SYN's sequence number, the time count and the bits 0 to 6 |
//! | 7 and 8 | the time count modulo 4 |
//! | 6 | the client takes SACK |
//! | 2 to 5 | the client's window scale; 15: it does not scale |
//! | 0 and 1 | the class of its MSS |
//!
//! Whether timestamps were agreed on the first data tells: it has some if the SYN-ACK had.
//!
//! The time count is `CLOCK_MONOTONIC` in units of 2^36 ns, 68.7 s. A cookie is good in the count it was made in and in
//! the three that follow, 206 to 275 s: browsers open connections ahead of the requests they expect. A guess is right
//! once in 2^23 times, for one flow and one sequence number.
//!
//! Every 64 counts, 73 minutes, another key is used: cookies of even epochs are made with the first of two keys, those
//! of odd ones with the second. The key of the next epoch is drawn in the middle of this one ([`Cookies::renewal`]),
//! when no process makes or checks cookies with it: there is no moment at which two processes, or two halves of a key,
//! could disagree, and a cookie is compared with one key's hash only.
//!
//! Balancers that share a secret share cookies: they count real time instead ([`Cookies::ahead`]), and the key of an epoch
//! is made of the secret and its number ([`EpochKeys::of`]). Another secret makes the keys of the epochs that follow; what
//! is in use stays. A cookie of a machine whose clock differs by less than a count is good.

use crate::flow::{FlowKey, Protocol};
use crate::frame::{Checksum, Frame};
use crate::keys::Secret;
use crate::l4::answer;
use crate::time::{Duration, Time};
use crate::wire::Transport;
use crate::wire::bytes::{u16_at, u32_at};
use crate::wire::tcp::{self, OPTION_MSS};
use core::fmt;
use core::hash::Hasher;
use siphasher::sip::SipHasher13;

/// The window scale we announce, if the client announces one.
pub const SCALE: u8 = 7;
/// The MSS we announce over IPv4, in bytes: an Ethernet frame's.
pub const MSS_V4: u16 = 1460;
/// The MSS we announce over IPv6, in bytes.
pub const MSS_V6: u16 = 1440;
/// The MSS over IPv4 of clients behind tunnels and access networks, in bytes.
pub(crate) const MSS_TUNNEL_V4: u16 = 1300;
/// Their MSS over IPv6, in bytes.
pub(crate) const MSS_TUNNEL_V6: u16 = 1360;

/// The values that an MSS is rounded down to over IPv4. The first is the least that Linux sends, whatever its peer says (its
/// `net.ipv4.tcp_min_snd_mss`), the second that of hosts that say nothing (RFC 9293, 3.7.1). Between it and Ethernet's lie
/// tunnels and access networks, most of them not far above 1300 (Alcock and Nelson, "An Analysis of TCP Maximum Segment
/// Sizes", 2011); what rounding costs there is 0.3 % of the bytes. Nothing is sent in longer segments than Ethernet's, so
/// jumbo frames' has no class.
const CLASSES_V4: [u16; 4] = [48, 536, MSS_TUNNEL_V4, MSS_V4];
/// The values that an MSS is rounded down to over IPv6: the least, the least MTU's, WireGuard's over Ethernet, Ethernet's.
const CLASSES_V6: [u16; 4] = [48, 1220, MSS_TUNNEL_V6, MSS_V6];
/// The class of those that say nothing of their MSS.
const CLASS_UNSAID: usize = 1;

/// The value for "no window scale".
const UNSCALED: u8 = 15;
/// The greatest window scale (RFC 7323, 2.3).
pub(crate) const SCALE_MAX: u8 = 14;
/// Bits of what a cookie says of the SYN's options.
const OFFER_BITS: u32 = 7;
/// Bits of a cookie that are not hash.
const PLAIN_BITS: u32 = 9;
/// Nanoseconds are shifted right by this to become a time count.
const COUNT_SHIFT: u32 = 36;
/// How long a cookie is good at most: four time counts, 275 s.
pub const LIFE_MAX: Duration = Duration::from_nanos(4 << COUNT_SHIFT);
/// Time counts are shifted right by this to become an epoch.
const EPOCH_SHIFT: u32 = 6;
/// Counts after which no cookie of the epoch before is good any more, with some to spare for who is late.
const RENEWAL_COUNTS: u64 = 8;

/// Window of a SYN-ACK, in bytes: the most that can be said without scaling, as it is in a SYN (RFC 7323, 2.2).
const WINDOW: u16 = u16::MAX;
/// Bytes of a SYN-ACK at most: header, MSS, SACK permitted with timestamps, window scale.
const SYN_ACK_MAX: usize = tcp::HEADER + 20;

/// The options of a SYN, as far as they matter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    /// The largest segment the client takes, in bytes. As a cookie tells it, rounded down to a class: over IPv4 48, 536,
    /// 1300, 1460, over IPv6 48, 1220, 1360, 1440.
    pub mss: u16,
    /// Window scale of the client, 0 to 14; `None`: neither side's window is scaled.
    pub scale: Option<u8>,
    /// Whether the client takes SACK.
    pub sack: bool,
}

impl Offer {
    /// Bits 0 to 6 of a cookie.
    fn bits(&self, ipv4: bool) -> u32 {
        let class = classes(ipv4).iter().rposition(|&class| class <= self.mss).unwrap_or(0);
        let scale = self.scale.map_or(UNSCALED, |scale| scale.min(SCALE_MAX));
        u32::from(self.sack) << 6 | u32::from(scale) << 2 | class as u32
    }

    /// The contents of bits 0 to 6 of a cookie.
    fn from_bits(bits: u32, ipv4: bool) -> Offer {
        let scale = (bits >> 2 & 0xf) as u8;
        Offer {
            mss: classes(ipv4)[(bits & 3) as usize],
            scale: (scale != UNSCALED).then_some(scale),
            sack: bits & 1 << 6 != 0,
        }
    }
}

fn classes(ipv4: bool) -> &'static [u16; 4] {
    if ipv4 { &CLASSES_V4 } else { &CLASSES_V6 }
}

/// Reads what a SYN offers from its `options`: the header's bytes from the 20th on. As the kernel does, the last of
/// several counts, an MSS of 0 and options of a wrong length do not, a scale above 14 is 14. What stands behind an
/// option of an impossible length is not read.
pub fn offer(options: &[u8], ipv4: bool) -> Offer {
    let mut offer = Offer { mss: classes(ipv4)[CLASS_UNSAID], scale: None, sack: false };
    for option in tcp::Options::new(options) {
        match (option.kind, option.length) {
            (OPTION_MSS, 2) => {
                offer.mss = u16_at(options, option.offset).filter(|&mss| mss != 0).unwrap_or(offer.mss);
            }
            (tcp::OPTION_WINDOW_SCALE, 1) => {
                offer.scale = options.get(option.offset).map(|&scale| scale.min(SCALE_MAX));
            }
            (tcp::OPTION_SACK_PERMITTED, 0) => offer.sack = true,
            _ => {}
        }
    }
    offer
}

/// Makes and checks cookies.
#[derive(Clone, Copy)]
pub struct Cookies {
    keys: [[u64; 2]; 2],
    /// The offset added to the clock before it is counted, in ns.
    ahead_ns: u64,
}

impl fmt::Debug for Cookies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cookies").finish_non_exhaustive()
    }
}

impl Cookies {
    /// Cookies under these secrets: that of even epochs and that of odd ones.
    pub fn new(keys: [[u64; 2]; 2]) -> Cookies {
        Cookies { keys, ahead_ns: 0 }
    }

    /// These cookies, by a clock that is `ahead_ns` nanoseconds (modulo 2^64) ahead of the one whose time is given.
    pub fn ahead(self, ahead_ns: u64) -> Cookies {
        Cookies { ahead_ns, ..self }
    }

    /// Our initial sequence number for a SYN of `flow` (client to VIP) with this `sequence` number.
    pub fn make(&self, now: Time, flow: &FlowKey, sequence: u32, offer: &Offer) -> u32 {
        self.cookie(self.count(now), flow, sequence, offer.bits(flow.is_ipv4()))
    }

    /// The options of the SYN to which `cookie` was the answer; `None` if it is no cookie of ours for this flow and
    /// number, or too old. `sequence` is the number of the first data byte, less one; `cookie` the acknowledgement number,
    /// less one.
    ///
    /// A count ahead of `now` is good too: the worker that made the cookie may have read the clock a moment later.
    pub fn check(&self, now: Time, flow: &FlowKey, sequence: u32, cookie: u32) -> Option<Offer> {
        let (now, bits) = (self.count(now), cookie & ((1 << OFFER_BITS) - 1));
        let made = |count: &u64| self.cookie(*count, flow, sequence, bits) == cookie;
        let counts = now.saturating_sub(3)..=now + 1;
        let same = |count: &u64| (*count as u32 ^ cookie >> OFFER_BITS) & 3 == 0;
        counts.filter(same).any(|count| made(&count)).then(|| Offer::from_bits(bits, flow.is_ipv4()))
    }

    fn count(&self, now: Time) -> u64 {
        count(Time::from_nanos(now.as_nanos().wrapping_add(self.ahead_ns)))
    }

    fn cookie(&self, count: u64, flow: &FlowKey, sequence: u32, offer: u32) -> u32 {
        let plain = (count as u32 & 3) << OFFER_BITS | offer;
        let [key0, key1] = self.keys[(count >> EPOCH_SHIFT & 1) as usize];
        let mut message = [0; 48];
        message[..16].copy_from_slice(&flow.source.address.0);
        message[16..32].copy_from_slice(&flow.destination.address.0);
        message[32..34].copy_from_slice(&flow.source.port.to_be_bytes());
        message[34..36].copy_from_slice(&flow.destination.port.to_be_bytes());
        message[36..40].copy_from_slice(&sequence.to_be_bytes());
        message[40..].copy_from_slice(&(count << OFFER_BITS | u64::from(offer)).to_le_bytes());
        let mut hasher = SipHasher13::new_with_keys(key0, key1);
        hasher.write(&message);
        (hasher.finish() as u32) << PLAIN_BITS | plain
    }

    /// The epoch whose key may be drawn now: the next one. Its place is that of the parity of its number. `None` in the
    /// first minutes of an epoch, while cookies of the one before, which that place's key made, may still come.
    pub fn renewal(now: Time) -> Option<u64> {
        let count = count(now);
        (count % (1 << EPOCH_SHIFT) >= RENEWAL_COUNTS).then_some((count >> EPOCH_SHIFT) + 1)
    }

    /// The epoch of `now`: counts since the clock's zero.
    pub fn epoch(now: Time) -> u64 {
        count(now) >> EPOCH_SHIFT
    }
}

/// The keys of the epochs at hand, made of a secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct EpochKeys {
    /// The keys of even and of odd epochs.
    pub keys: [[u64; 2]; 2],
    /// The last epoch that has its key among them; the other one is of the epoch before it.
    pub last: u64,
}

impl fmt::Debug for EpochKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EpochKeys").field("last", &self.last).finish_non_exhaustive()
    }
}

impl EpochKeys {
    /// The keys needed at `now` (real time), from `secret` alone: this epoch's, and that of the one before as long as its
    /// cookies may come, then of the next.
    pub fn of(secret: &Secret, now: Time) -> EpochKeys {
        let last = Cookies::renewal(now).unwrap_or_else(|| Cookies::epoch(now));
        let before = last.saturating_sub(1);
        let mut keys = [[0; 2]; 2];
        keys[(before % 2) as usize] = secret.of_epoch(before);
        keys[(last % 2) as usize] = secret.of_epoch(last);
        EpochKeys { keys, last }
    }

    /// The keys needed at `now` after these: keys that cookies may have been made with stay, from any secret. If
    /// these are of another time, because the clock was set or this was not called for so long, nothing of them does.
    pub fn renewed(&self, secret: &Secret, now: Time) -> EpochKeys {
        let mut new = EpochKeys::of(secret, now);
        let (epoch, is_renewal) = (Cookies::epoch(now), Cookies::renewal(now).is_some());
        let kept = [epoch, epoch.wrapping_sub(1)];
        for epoch in kept.into_iter().take(if is_renewal { 1 } else { 2 }) {
            if epoch == self.last || epoch.wrapping_add(1) == self.last {
                new.keys[(epoch % 2) as usize] = self.keys[(epoch % 2) as usize];
            }
        }
        new
    }
}

fn count(now: Time) -> u64 {
    now.as_nanos() >> COUNT_SHIFT
}

/// Turns the SYN in `frame` into its SYN-ACK with a cookie: the same bytes, from the IP header on, as the programs of the
/// linux plane answer with. Options: MSS, and what was offered of SACK, window scale and, if there is a `clock`, timestamps, of
/// which the value is that; no ECN. Data in the SYN is not acknowledged, so it comes again.
///
/// `false`, and nothing changed, if it is not a SYN and nothing but that, or its checksum is wrong.
pub fn answer<F: Frame>(frame: &mut F, at: &Transport, cookies: &Cookies, now: Time, clock: Option<u32>) -> bool {
    const OTHERS: u8 = tcp::ACK | tcp::FIN | tcp::RST;
    let bytes = frame.bytes();
    if at.key.protocol != Protocol::Tcp || at.tcp_flags & (tcp::SYN | OTHERS) != tcp::SYN {
        return false;
    }
    let written = u16_at(bytes, at.checksum_offset());
    // The two zeros are one.
    let same = |right: u16| written.is_some_and(|written| written % u16::MAX == right % u16::MAX);
    if frame.meta().checksum == Checksum::Complete && !at.transport_checksum(bytes).is_some_and(same) {
        return false;
    }
    let Some(sequence) = u32_at(bytes, at.l4 + tcp::SEQUENCE) else { return false };
    let ipv4 = at.key.is_ipv4();
    let options = bytes.get(at.l4 + tcp::HEADER..at.payload).unwrap_or_default();
    let offered = offer(options, ipv4);
    let heard = tcp::timestamps(options).last().and_then(|at| u32_at(options, at));
    let cookie = cookies.make(now, &at.key, sequence, &offered);
    let (mut segment, length) = syn_ack(&at.key, cookie, sequence.wrapping_add(1), &offered, clock.zip(heard));
    answer::segment(frame, at, segment.get_mut(..length).unwrap_or_default())
}

/// The segment that answers a SYN of `flow`, and its length; its checksum is still to come. Timestamps: our clock, and the
/// client's.
fn syn_ack(
    flow: &FlowKey,
    sequence: u32,
    acknowledgement: u32,
    offer: &Offer,
    timestamps: Option<(u32, u32)>,
) -> ([u8; SYN_ACK_MAX], usize) {
    let mut segment = [0; SYN_ACK_MAX];
    segment[..2].copy_from_slice(&flow.destination.port.to_be_bytes());
    segment[2..4].copy_from_slice(&flow.source.port.to_be_bytes());
    segment[4..8].copy_from_slice(&sequence.to_be_bytes());
    segment[8..12].copy_from_slice(&acknowledgement.to_be_bytes());
    segment[tcp::FLAGS] = tcp::SYN | tcp::ACK;
    segment[14..16].copy_from_slice(&WINDOW.to_be_bytes());
    let [high, low] = if flow.is_ipv4() { MSS_V4 } else { MSS_V6 }.to_be_bytes();
    let mut length = tcp::HEADER;
    let mut put = |option: [u8; 4]| {
        segment[length..length + 4].copy_from_slice(&option);
        length += 4;
    };
    put([OPTION_MSS, 4, high, low]);
    const PADDING: [u8; 2] = [tcp::OPTION_PADDING; 2];
    let sack = if offer.sack { [tcp::OPTION_SACK_PERMITTED, 2] } else { PADDING };
    match timestamps {
        Some((clock, heard)) => {
            put([sack[0], sack[1], tcp::OPTION_TIMESTAMPS, 10]);
            put(clock.to_be_bytes());
            put(heard.to_be_bytes());
        }
        None if offer.sack => put([sack[0], sack[1], PADDING[0], PADDING[1]]),
        None => {}
    }
    if offer.scale.is_some() {
        put([tcp::OPTION_PADDING, tcp::OPTION_WINDOW_SCALE, 3, SCALE]);
    }
    segment[12] = (length as u8 / 4) << 4;
    (segment, length)
}

#[cfg(test)]
mod tests;
