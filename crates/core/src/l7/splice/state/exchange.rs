//! A request and its response: what of either is still to come, and how its end is found.

use crate::l7::body::{BadChunk, Chunks, Length};
use crate::l7::head::{Method, Version};
use crate::l7::splice::tcp::numbers::{beyond, later};
use crate::record::{Ending, IS_KEPT, NEVER_US};
use crate::stored::{OptionalNumber, stored, stored_leaf};
use crate::time::Time;
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// What of a message is still to come from its sender.
#[derive(Clone, Copy, Debug)]
pub(in crate::l7::splice) enum Message {
    /// Its head.
    Head,
    /// So many bytes from this number on.
    Bytes { next: u32, left: u64 },
    /// Chunks; all but what is in them is read in order.
    Chunked(Chunks),
    /// Whatever there is until the sender closes.
    Endless,
    /// Nothing.
    Done,
}

impl Message {
    /// A body of this length that begins with number `start`.
    pub(in crate::l7::splice) fn of(length: Length, start: u32) -> Message {
        match length {
            Length::None | Length::Bytes(0) => Message::Done,
            Length::Bytes(left) => Message::Bytes { next: start, left },
            Length::Chunked => Message::Chunked(Chunks::of_response()),
            Length::UntilClose | Length::Tunnel => Message::Endless,
        }
    }

    pub(in crate::l7::splice) fn is_done(&self) -> bool {
        matches!(self, Message::Done)
    }

    /// Where it ends, as far as that is known: `end` says it of one that is done.
    pub(in crate::l7::splice) fn end(&self, end: Option<u32>) -> Option<u32> {
        match *self {
            Message::Done => end,
            // Beyond that, numbers cannot be told apart.
            Message::Bytes { next, left } if left < 1 << 31 => Some(next.wrapping_add(left as u32)),
            _ => None,
        }
    }

    /// Follows it through the bytes of a segment that begin with number `start`, none of them before its body. Returns
    /// how many of them belong to it. `end` is noted when it is done, and `expected` is the next number in order.
    pub(in crate::l7::splice) fn admit(
        &mut self,
        end: &mut Option<u32>,
        expected: &mut u32,
        start: u32,
        bytes: &[u8],
    ) -> Result<usize, Inadmissible> {
        let length = bytes.len();
        let admitted = match self {
            Message::Head => 0,
            Message::Done => end.map_or(0, |end| length.min(beyond(start, end) as usize)),
            Message::Endless => length,
            Message::Bytes { next, left } => {
                let ahead = i64::from(start.wrapping_sub(*next) as i32);
                let room = (*left as i64).saturating_sub(ahead).max(0);
                let admitted = (length as i64).min(room) as usize;
                // A segment that begins behind the end has nothing of it, and does not move it.
                let through = if admitted > 0 { start.wrapping_add(admitted as u32) } else { *next };
                let progress = beyond(*next, through);
                *next = later(*next, through);
                *left -= u64::from(progress).min(*left);
                if *left == 0 {
                    *end = Some(*next);
                    *self = Message::Done;
                }
                admitted
            }
            Message::Chunked(chunks) => {
                let gap = beyond(*expected, start);
                if gap > 0 {
                    // What lies in the middle of a chunk, with all that is missing before it, need not be read.
                    let through = u64::from(gap) + length as u64;
                    if length == 0 || through > chunks.data_left() {
                        return Err(Inadmissible::OutOfOrder);
                    }
                    chunks.skip(through);
                    *expected = start.wrapping_add(length as u32);
                    return Ok(length);
                }
                let had = (beyond(start, *expected) as usize).min(length);
                let fed = chunks.feed(&bytes[had..]).map_err(Inadmissible::Broken)?;
                if chunks.is_done() {
                    *end = Some(start.wrapping_add((had + fed) as u32));
                    *self = Message::Done;
                }
                had + fed
            }
        };
        // What lies behind a message says nothing of what has come of it.
        if admitted > 0 {
            *expected = later(*expected, start.wrapping_add(admitted as u32));
        }
        Ok(admitted)
    }
}

/// [`Message`] without its fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(u8)]
enum Kind {
    Head,
    Bytes,
    Chunked,
    Endless,
    Done,
}

/// A [`Message`] as plain data.
#[derive(Clone, Copy, Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct StoredMessage {
    kind: Kind,
    unused: [u8; 3],
    next: u32,
    left: u64,
    chunks: Chunks,
}

stored_leaf!(Kind: 1);
stored!(StoredMessage: kind, unused, next, left, chunks);

impl StoredMessage {
    #[inline]
    pub(in crate::l7::splice) fn get(&self) -> Message {
        match self.kind {
            Kind::Head => Message::Head,
            Kind::Bytes => Message::Bytes { next: self.next, left: self.left },
            Kind::Chunked => Message::Chunked(self.chunks),
            Kind::Endless => Message::Endless,
            Kind::Done => Message::Done,
        }
    }

    #[inline]
    pub(in crate::l7::splice) fn set(&mut self, message: Message) {
        self.kind = match message {
            Message::Head => Kind::Head,
            Message::Bytes { next, left } => {
                (self.next, self.left) = (next, left);
                Kind::Bytes
            }
            Message::Chunked(chunks) => {
                self.chunks = chunks;
                Kind::Chunked
            }
            Message::Endless => Kind::Endless,
            Message::Done => Kind::Done,
        };
    }

    #[inline]
    pub(in crate::l7::splice) fn is_done(&self) -> bool {
        self.kind == Kind::Done
    }

    #[inline]
    pub(in crate::l7::splice) fn is_head(&self) -> bool {
        self.kind == Kind::Head
    }

    #[inline]
    pub(in crate::l7::splice) fn is_chunked(&self) -> bool {
        self.kind == Kind::Chunked
    }

    #[inline]
    pub(in crate::l7::splice) fn is_endless(&self) -> bool {
        self.kind == Kind::Endless
    }

    /// [`Message::end`].
    #[inline]
    pub(in crate::l7::splice) fn end(&self, end: Option<u32>) -> Option<u32> {
        self.get().end(end)
    }

    /// [`Message::admit`].
    pub(in crate::l7::splice) fn admit(
        &mut self,
        end: &mut OptionalNumber,
        expected: &mut u32,
        start: u32,
        bytes: &[u8],
    ) -> Result<usize, Inadmissible> {
        let (mut message, mut known) = (self.get(), end.get());
        let admitted = message.admit(&mut known, expected, start, bytes);
        self.set(message);
        *end = known.into();
        admitted
    }
}

impl From<Message> for StoredMessage {
    fn from(message: Message) -> StoredMessage {
        let (next, left, chunks) = (0, 0, Chunks::default());
        let mut stored = StoredMessage { kind: Kind::Done, unused: [0; 3], next, left, chunks };
        stored.set(message);
        stored
    }
}

/// Why bytes of a message cannot go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::l7::splice) enum Inadmissible {
    /// They have to be read in order, and something before them is missing.
    OutOfOrder,
    /// They are no chunks, or too many.
    Broken(BadChunk),
}

/// A request and its response.
#[derive(Clone, Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct Exchange {
    /// What is still to come of the request, in the client's numbers.
    pub(in crate::l7::splice) request: StoredMessage,
    /// What is still to come of the response, in the backend's numbers.
    pub(in crate::l7::splice) response: StoredMessage,
    /// When its head was complete.
    pub(in crate::l7::splice) started: Time,
    /// The cookie the response is to set, where `sets_sticky` says so.
    pub(in crate::l7::splice) sticky: u64,
    /// The hash of the part of its request that chooses the backend ([`choice::hash`](crate::l7::choice::hash)); 0: none does.
    pub(in crate::l7::splice) hash: u64,
    pub(in crate::l7::splice) generation: u32,
    /// All the client's numbers before this one are ours or done with.
    pub(in crate::l7::splice) request_floor: u32,
    /// All the backend's numbers before this one are ours or done with.
    pub(in crate::l7::splice) response_floor: u32,
    /// One past the last number of the request, once all of it has been seen.
    pub(in crate::l7::splice) request_end: OptionalNumber,
    /// One past the last number of the response, once all of it has been seen.
    pub(in crate::l7::splice) response_end: OptionalNumber,
    /// How long until it had a connection, in microseconds; [`NEVER_US`]: it has had none.
    pub(in crate::l7::splice) chosen_in_us: u32,
    /// The route it took, as long as the configuration is the one it took it by.
    pub(in crate::l7::splice) route: u16,
    /// The backend's number.
    pub(in crate::l7::splice) backend: u16,
    /// The group it was chosen from.
    pub(in crate::l7::splice) group: u16,
    pub(in crate::l7::splice) method: Method,
    pub(in crate::l7::splice) version: Version,
    /// The client's connection ends with it.
    pub(in crate::l7::splice) close_client: bool,
    /// The backend's does.
    pub(in crate::l7::splice) close_backend: bool,
    /// Something of the response has gone to the client.
    pub(in crate::l7::splice) has_begun: bool,
    /// Backends that have been tried for it.
    pub(in crate::l7::splice) tries: u8,
    /// Its client has said which backend it is to be.
    pub(in crate::l7::splice) is_stuck: bool,
    /// Whether it may be sent a second time (RFC 9110, 9.2.2).
    pub(in crate::l7::splice) is_idempotent: bool,
    /// It asks for another protocol: 101 may answer it.
    pub(in crate::l7::splice) upgrade: bool,
    pub(in crate::l7::splice) sets_sticky: bool,
    /// The request has been sent to a backend.
    pub(in crate::l7::splice) is_sent: bool,
    /// The engine has carried some of it.
    pub(in crate::l7::splice) is_offloaded: bool,
    /// How it ends ([`Ending`](crate::record::Ending)), as far as that is settled before it does.
    pub(in crate::l7::splice) ending: u8,
    pub(in crate::l7::splice) unused: [u8; 3],
    /// The status of its response, once that is there.
    pub(in crate::l7::splice) status: u16,
    /// The number of its record; 0: none is kept.
    pub(in crate::l7::splice) record: u32,
    /// How long until the head of its response was there, in microseconds; [`NEVER_US`]: it is not.
    pub(in crate::l7::splice) response_in_us: u32,
    /// The first numbers of the request, as the client has them, and of the response, as the client will get it.
    pub(in crate::l7::splice) first: [u32; 2],
    /// The number that its ids are made from, those of its trace and its request id; 0: it has none.
    pub(in crate::l7::splice) trace: u64,
    /// Bytes of the request with its head, and of the response's body; [`NO_LENGTH`]: that is not known.
    pub(in crate::l7::splice) lengths: [u64; 2],
}

/// The length of a message whose end nothing says before it is there.
pub(in crate::l7::splice) const NO_LENGTH: u64 = u64::MAX;

stored!(
    Exchange: request,
    response,
    started,
    sticky,
    hash,
    generation,
    request_floor,
    response_floor,
    request_end,
    response_end,
    chosen_in_us,
    route,
    backend,
    group,
    method,
    version,
    close_client,
    close_backend,
    has_begun,
    tries,
    is_stuck,
    is_idempotent,
    upgrade,
    sets_sticky,
    is_sent,
    is_offloaded,
    ending,
    unused,
    status,
    record,
    response_in_us,
    first,
    trace,
    lengths,
);

impl Default for Exchange {
    fn default() -> Exchange {
        Exchange {
            request: Message::Done.into(),
            response: Message::Done.into(),
            started: Time::ZERO,
            sticky: 0,
            hash: 0,
            generation: 0,
            request_floor: 0,
            response_floor: 0,
            request_end: OptionalNumber::default(),
            response_end: OptionalNumber::default(),
            chosen_in_us: NEVER_US,
            route: u16::MAX,
            backend: 0,
            group: 0,
            method: Method::Get,
            version: Version::Http11,
            close_client: false,
            close_backend: false,
            has_begun: false,
            tries: 0,
            is_stuck: false,
            is_idempotent: false,
            upgrade: false,
            sets_sticky: false,
            is_sent: false,
            is_offloaded: false,
            ending: 0,
            unused: [0; 3],
            status: 0,
            record: 0,
            response_in_us: NEVER_US,
            first: [0; 2],
            trace: 0,
            lengths: [NO_LENGTH; 2],
        }
    }
}

impl Exchange {
    /// Whether this program could have left it.
    pub(in crate::l7::splice) fn is_plausible(&self) -> bool {
        let is_plausible = |message: &StoredMessage| match message.get() {
            Message::Bytes { left, .. } => left < 1 << 63,
            Message::Chunked(chunks) => chunks.is_plausible(),
            _ => true,
        };
        is_plausible(&self.request) && is_plausible(&self.response) && self.tries < u8::MAX
    }

    /// Both ends have closed: unless one of them did so too early, it is done.
    pub(in crate::l7::splice) fn ends_well(&mut self) {
        if self.ending == Ending::Aborted as u8 {
            self.ending = Ending::Done as u8;
        }
    }

    /// The head of the response is there, and its body begins with number `start`; `closes`: the backend's connection ends behind
    /// it.
    pub(in crate::l7::splice) fn begin_body(&mut self, length: Length, start: u32, closes: bool) {
        self.response.set(Message::of(length, start));
        if IS_KEPT {
            self.lengths[1] = match length {
                Length::None => 0,
                Length::Bytes(bytes) => bytes,
                _ => NO_LENGTH,
            };
        }
        self.response_end = self.response.is_done().then_some(start).into();
        self.close_backend |= closes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_in_a_chunk_may_overtake_what_is_missing_of_it() {
        for start in [1000u32, u32::MAX - 5] {
            let mut message = Message::of(Length::Chunked, start);
            let (mut end, mut expected) = (None, start);
            let bytes = b"10\r\n0123456789abcdef\r\n0\r\n\r\n";
            let mut admit = |from: usize, to: usize, message: &mut Message| {
                message.admit(&mut end, &mut expected, start.wrapping_add(from as u32), &bytes[from..to])
            };
            assert_eq!(admit(6, 8, &mut message), Err(Inadmissible::OutOfOrder), "how long it is, is not known yet");
            assert_eq!(admit(0, 6, &mut message), Ok(6));
            assert_eq!(admit(10, 21, &mut message), Err(Inadmissible::OutOfOrder), "reaches beyond it");
            assert_eq!(admit(20, 27, &mut message), Err(Inadmissible::OutOfOrder), "lies behind it");
            assert_eq!(admit(10, 10, &mut message), Err(Inadmissible::OutOfOrder), "FIN");
            assert_eq!(admit(10, 18, &mut message), Ok(8));
            assert_eq!(admit(6, 12, &mut message), Ok(6), "what was missing, and some of the rest");
            assert_eq!(admit(19, 20, &mut message), Ok(1), "all of the chunk");
            assert_eq!(admit(21, 23, &mut message), Err(Inadmissible::OutOfOrder));
            assert_eq!(admit(16, 27, &mut message), Ok(11));
            assert!(message.is_done());
            assert_eq!(end, Some(start.wrapping_add(27)));
        }
    }

    #[test]
    fn a_body_ends_where_its_length_says_whatever_overtakes_it() {
        for start in [1000u32, u32::MAX - 5] {
            let mut message = Message::of(Length::Bytes(20), start);
            let (mut end, mut expected) = (None, start);
            let mut admit = |from: u32, length: usize, message: &mut Message| {
                message.admit(&mut end, &mut expected, start.wrapping_add(from), &[0; 64][..length])
            };
            assert_eq!(admit(30, 10, &mut message), Ok(0), "the next request, before this one's body");
            assert_eq!(admit(20, 10, &mut message), Ok(0));
            assert_eq!(admit(10, 5, &mut message), Ok(5));
            assert!(!message.is_done());
            assert_eq!(message.end(None), Some(start.wrapping_add(20)));
            assert_eq!(admit(15, 20, &mut message), Ok(5));
            assert!(message.is_done());
            assert_eq!(admit(0, 10, &mut message), Ok(10), "what was missing");
            assert_eq!(admit(20, 1, &mut message), Ok(0));
            assert_eq!(end, Some(start.wrapping_add(20)));
        }
    }
}
