//! One of the two TCP ends of a splice, as we see it, and what of our own it has to get.

use super::buffers::{Buffer, Buffers};
use crate::l7::cookie;
use crate::l7::splice::tcp::numbers::{before, later};
use crate::l7::splice::tcp::segment::{Abilities, Segment};
use crate::l7::splice::tcp::timestamps::Timestamps;
use crate::stored::{Optional, Vacant, stored};
use crate::time::{Duration, Time};
use crate::wire::tcp::TIMESTAMPS;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// How long the first acknowledgement of what we sent is awaited; doubled each time (RFC 6298, 5.5).
pub const RETRANSMIT_AFTER: Duration = Duration::from_millis(200);
/// The longest such wait.
pub const RETRANSMIT_AFTER_MAX: Duration = Duration::from_secs(8);
/// How often the same bytes are sent again at most: about 25 s in all.
pub const RETRANSMITS_MAX: u8 = 7;
/// Duplicate acknowledgements that mean loss (RFC 5681, 3.2).
const DUPLICATES: u8 = 3;

/// Bytes, and perhaps FIN, that Hairpin itself has put into a stream and keeps until they are acknowledged.
#[derive(Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct Owned {
    /// When it is sent again.
    pub(in crate::l7::splice) due: Time,
    /// None: nothing but FIN.
    pub(in crate::l7::splice) buffer: Optional<Buffer>,
    /// The number of the first byte.
    pub(in crate::l7::splice) start: u32,
    /// Bytes.
    pub(in crate::l7::splice) length: u32,
    /// One past the last number of it that was sent.
    pub(in crate::l7::splice) sent: u32,
    /// Whether FIN follows.
    pub(in crate::l7::splice) fin: bool,
    pub(in crate::l7::splice) tries: u8,
    /// How often it is sent again at most.
    pub(in crate::l7::splice) tries_max: u8,
    duplicates: u8,
    is_there: bool,
    unused: [u8; 3],
}

stored!(Owned: due, buffer, start, length, sent, fin, tries, tries_max, duplicates, is_there, unused);

impl Vacant for Owned {
    const VACANT: Owned = Owned {
        due: Time::ZERO,
        buffer: Optional::NONE,
        start: 0,
        length: 0,
        sent: 0,
        fin: false,
        tries: 0,
        tries_max: 0,
        duplicates: 0,
        is_there: false,
        unused: [0; 3],
    };
    fn is_vacant(&self) -> bool {
        !self.is_there
    }
}

impl Owned {
    pub(in crate::l7::splice) fn new(now: Time, start: u32, buffer: Option<Buffer>, fin: bool) -> Owned {
        let length = buffer.as_ref().map_or(0, |buffer| buffer.len() as u32);
        let due = now + RETRANSMIT_AFTER;
        let buffer = buffer.into();
        let (tries_max, is_there) = (RETRANSMITS_MAX, true);
        Owned { due, buffer, start, length, sent: start, fin, tries_max, is_there, ..Owned::VACANT }
    }

    /// One past its last number.
    pub(in crate::l7::splice) fn end(&self) -> u32 {
        self.start.wrapping_add(self.length).wrapping_add(u32::from(self.fin))
    }
}

/// A TCP end.
#[derive(Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct Peer {
    /// One past the last number seen from it, wherever its segments have come through software.
    pub(in crate::l7::splice) highest: u32,
    /// The next number expected of it, while software reads what it sends in order.
    pub(in crate::l7::splice) expected: u32,
    /// The highest acknowledgement number it was sent.
    pub(in crate::l7::splice) told: u32,
    /// One past the highest number it was sent.
    pub(in crate::l7::splice) sent: u32,
    /// One past the highest number that an engine may have forwarded to it; of no meaning below `sent`.
    pub(in crate::l7::splice) reach: u32,
    /// The highest acknowledgement number it has sent.
    pub(in crate::l7::splice) acknowledged: u32,
    /// Bytes it was ready to take beyond `acknowledged` when it last said so.
    pub(in crate::l7::splice) window: u32,
    /// Its numbers before this one were within a window that it was shown.
    pub(in crate::l7::splice) edge: u32,
    /// The window field it was last sent.
    pub(in crate::l7::splice) shown: u16,
    /// The longest segment it takes.
    pub(in crate::l7::splice) mss: u16,
    /// What its window fields are shifted by.
    pub(in crate::l7::splice) scale: u8,
    /// What ours to it are.
    pub(in crate::l7::splice) announced: u8,
    /// The way to it takes less than the two ends have agreed on, by our own link or by what a router says: the engine,
    /// which cuts nothing, has no part in it any more.
    pub(in crate::l7::splice) is_narrow: bool,
    /// Whether selective acknowledgements were agreed on.
    pub(in crate::l7::splice) sack: bool,
    /// It has sent FIN, and we have seen all before it.
    pub(in crate::l7::splice) has_closed: bool,
    /// It was sent FIN, by Hairpin or by the other end.
    pub(in crate::l7::splice) was_closed: bool,
    /// Whether timestamps were agreed on.
    pub(in crate::l7::splice) has_timestamps: bool,
    unused: [u8; 1],
    /// Its clock when it last sent something, as the next segment to it is to echo it (TS.Recent of RFC 7323).
    pub(in crate::l7::splice) timestamp: u32,
    /// The highest value of a timestamp that it may have seen, as far as software knows.
    pub(in crate::l7::splice) timestamp_sent: u32,
    /// One past the last number of what came behind a gap and was dropped, because it has to be read in order: it sends
    /// that again. Not above `told`: there is no such gap.
    pub(in crate::l7::splice) missed: u32,
    pub(in crate::l7::splice) owned: Optional<Owned>,
}

stored!(
    Peer: highest,
    expected,
    told,
    sent,
    reach,
    acknowledged,
    window,
    edge,
    shown,
    mss,
    scale,
    announced,
    is_narrow,
    sack,
    has_closed,
    was_closed,
    has_timestamps,
    unused,
    timestamp,
    timestamp_sent,
    missed,
    owned,
);

/// What an acknowledgement has brought about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::l7::splice) struct Heard {
    /// All that we own is there.
    pub(in crate::l7::splice) delivered: bool,
    /// What we own is to be sent again from here.
    pub(in crate::l7::splice) again: bool,
    /// A part of what we own is there: the rest has its time anew.
    pub(in crate::l7::splice) progress: bool,
    /// There is room now for bytes that we own and have not sent yet.
    pub(in crate::l7::splice) more: bool,
}

impl Peer {
    /// One that sends its first byte of data as `expected` and gets ours as `sent`.
    pub(in crate::l7::splice) fn new(expected: u32, sent: u32, abilities: &Abilities) -> Peer {
        Peer {
            highest: expected,
            expected,
            told: expected,
            sent,
            reach: sent,
            acknowledged: sent,
            window: 0,
            scale: abilities.scale.unwrap_or(0),
            announced: if abilities.scale.is_some() { cookie::SCALE } else { 0 },
            shown: u16::MAX,
            edge: expected,
            mss: abilities.mss,
            is_narrow: false,
            sack: abilities.sack,
            has_closed: false,
            was_closed: false,
            has_timestamps: abilities.timestamps.is_some(),
            unused: [0; 1],
            timestamp: abilities.timestamps.map_or(0, |timestamps| timestamps.value),
            timestamp_sent: abilities.timestamps.map_or(0, |timestamps| timestamps.echo),
            missed: expected,
            owned: Optional::NONE,
        }
    }

    /// What Hairpin owns was perhaps never sent: it is sent again soon, by a process that begins now.
    pub(in crate::l7::splice) fn wake(&mut self, now: Time) {
        if let Some(owned) = self.owned.as_mut() {
            owned.due = owned.due.min(now + RETRANSMIT_AFTER);
        }
    }

    /// The timestamps of a segment of Hairpin's own to it.
    pub(in crate::l7::splice) fn timestamps(&self) -> Option<Timestamps> {
        self.has_timestamps.then_some(Timestamps { value: self.timestamp_sent, echo: self.timestamp })
    }

    /// Takes from a segment of it what its next segments from us are to echo, and what it has seen of those it was sent. The
    /// echo is the latest value also where that came behind a gap (RFC 7323, 4.3, has it wait): software does not know which
    /// numbers the engine has forwarded.
    #[inline]
    pub(in crate::l7::splice) fn hear_timestamps(&mut self, timestamps: Option<Timestamps>) {
        let Some(Timestamps { value, echo }) = timestamps.filter(|_| self.has_timestamps) else { return };
        self.timestamp = later(self.timestamp, value);
        self.timestamp_sent = later(self.timestamp_sent, echo);
    }

    /// Bytes of options in each segment to it or of it, but for SACK.
    pub(in crate::l7::splice) fn options(&self) -> u32 {
        if self.has_timestamps { TIMESTAMPS as u32 } else { 0 }
    }

    /// Whether this program could have left it.
    pub(in crate::l7::splice) fn is_plausible(&self) -> bool {
        let owned = self.owned.as_ref().is_none_or(|owned| {
            let tries = 1..=RETRANSMITS_MAX;
            owned.buffer.as_ref().map_or(0, Buffer::len) == owned.length as usize
                && tries.contains(&owned.tries_max)
                && owned.tries <= owned.tries_max
        });
        owned && self.scale <= cookie::SCALE_MAX && self.announced <= cookie::SCALE_MAX && self.mss > 0
    }

    /// Takes what a segment of it says of our numbers. `false`: it acknowledges what was never sent, or is too old to
    /// mean anything; the segment is to be dropped.
    pub(in crate::l7::splice) fn hear(&mut self, now: Time, segment: &Segment, buffers: &mut Buffers) -> Option<Heard> {
        let ack = segment.acknowledgement;
        // A peer that could acknowledge what was never sent would have its exchange taken for over, and its backend's
        // connection left to others with numbers that the backend does not know.
        if before(ack, self.acknowledged.wrapping_sub(1 << 30)) || before(later(self.sent, self.reach), ack) {
            return None;
        }
        self.hear_timestamps(segment.timestamps);
        let mut heard = Heard::default();
        let window = u32::from(segment.window) << self.scale;
        let is_new = before(self.acknowledged, ack);
        let is_duplicate = ack == self.acknowledged && segment.payload == 0 && window == self.window;
        if !before(ack, self.acknowledged) {
            self.window = window;
            self.acknowledged = ack;
            self.sent = later(self.sent, ack);
            self.reach = later(self.reach, ack);
        }
        if let Some(owned) = self.owned.as_mut() {
            if !before(ack, owned.end()) {
                heard.delivered = true;
            } else if is_new {
                owned.duplicates = 0;
                owned.tries = 0;
                owned.due = now + RETRANSMIT_AFTER;
                heard.progress = true;
            } else if is_duplicate && !before(ack, owned.start) {
                owned.duplicates = owned.duplicates.saturating_add(1);
                heard.again = owned.duplicates == DUPLICATES;
            }
            let limit = self.acknowledged.wrapping_add(self.window);
            heard.more = before(owned.sent, owned.end()) && before(owned.sent, limit);
            if self.window == 0 && !before(ack, owned.start) {
                // A peer that says that it takes nothing now has not vanished; how long that may last is not for here.
                owned.tries = owned.tries.min(owned.tries_max - 1);
            }
        }
        if heard.delivered {
            heard.more = false;
            self.disown(buffers);
        }
        Some(heard)
    }

    /// Of what we own, all before `end` has been sent.
    pub(in crate::l7::splice) fn has_sent(&mut self, end: u32) {
        self.sent = later(self.sent, end);
        if let Some(owned) = self.owned.as_mut() {
            owned.sent = later(owned.sent, end);
        }
    }

    /// Lets go of what we own.
    pub(in crate::l7::splice) fn disown(&mut self, buffers: &mut Buffers) {
        if let Some(buffer) = self.owned.take().and_then(|mut owned| owned.buffer.take()) {
            buffers.release(buffer);
        }
    }

    /// Whether all that it was sent is acknowledged, FIN included, as far as software knows.
    pub(in crate::l7::splice) fn is_settled(&self) -> bool {
        self.acknowledged == self.sent && self.owned.is_none()
    }

    /// Whether it was sent FIN, and has not acknowledged that, as far as software knows.
    pub(in crate::l7::splice) fn owes_last(&self) -> bool {
        self.was_closed && !self.is_settled()
    }

    /// Whether a segment to it that begins with this number may not have arrived yet, by software or by the engine.
    pub(in crate::l7::splice) fn may_be_on_its_way(&self, sequence: u32) -> bool {
        let end = later(self.sent, self.reach);
        !before(sequence, self.acknowledged) && !before(end, sequence)
    }

    /// Whether `acknowledgement` is within what we own and FIN and data before it must be waited for.
    pub(in crate::l7::splice) fn holds(&self, acknowledgement: u32) -> bool {
        self.owned
            .as_ref()
            .is_some_and(|owned| !before(acknowledgement, owned.start) && before(acknowledgement, owned.end()))
    }

    /// Puts off the next time that what we own is sent again. `false`: it was sent too often.
    pub(in crate::l7::splice) fn backend_off(&mut self, now: Time) -> bool {
        let Some(owned) = self.owned.as_mut() else { return true };
        owned.tries += 1;
        owned.due = now + (RETRANSMIT_AFTER * (1 << owned.tries.min(10))).min(RETRANSMIT_AFTER_MAX);
        owned.tries <= owned.tries_max
    }

    /// The window field that tells it, with this acknowledgement number, of so many bytes. While there is a gap in what it
    /// sent, it is told of no more than it has sent already. If its window had room for new data, it would send that
    /// first after a timeout (F-RTO: RFC 5682, 2.1, step 2b); it would be dropped, too, and each of the segments before it
    /// would need a timeout of its own.
    pub(in crate::l7::splice) fn field(&self, acknowledgement: u32, window: u32) -> u16 {
        let window = match before(acknowledgement, self.missed) {
            true => window.min(self.missed.wrapping_sub(acknowledgement)).max(window.min(1 << self.announced)),
            false => window,
        };
        u16::try_from(window >> self.announced).unwrap_or(u16::MAX)
    }

    /// One past the last number that it may send by the window that it was last shown.
    pub(in crate::l7::splice) fn limit(&self) -> u32 {
        self.told.wrapping_add(u32::from(self.shown) << self.announced)
    }

    /// A segment that ends before this number was dropped, because it lies behind a gap.
    pub(in crate::l7::splice) fn misses(&mut self, end: u32) {
        self.missed = later(self.missed, end);
    }

    /// Notes that it was told this acknowledgement number and window.
    pub(in crate::l7::splice) fn tell(&mut self, acknowledgement: u32, shown: u16) {
        self.told = later(self.told, acknowledgement);
        self.missed = later(self.missed, acknowledgement);
        self.shown = shown;
        self.edge = later(self.edge, acknowledgement.wrapping_add(u32::from(shown) << self.announced));
    }
}
