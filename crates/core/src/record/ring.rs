//! The ring of bytes that a worker puts records into, and a thread of the host takes them out of.

use super::{ADOPTED, Record, TEXT_BYTES_MAX, TEXTS, Texts};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU64, Ordering};
use rtrb::{Consumer, Producer, RingBuffer};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// What comes out of a ring.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// The head of the exchange with this number, and what its client's connection had carried until then
    /// ([`Record::volumes`]).
    Begun(u32, [u64; 2], Texts<'a>),
    /// The end of an exchange whose texts came before, or of a connection that has none.
    Ended(Record),
    /// Both at once.
    Whole(Record, Texts<'a>),
}

/// What stands before each message.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Prefix {
    /// Bytes of the message behind this.
    length: u32,
    kind: u32,
}

const BEGUN: u32 = 1;
const ENDED: u32 = 2;
const WHOLE: u32 = 3;

/// A message of [`ENDED`], and what a message of [`WHOLE`] begins with.
#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct EndedMessage {
    prefix: Prefix,
    record: Record,
}

/// What a message of [`BEGUN`] begins with.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct BegunHead {
    volumes: [u64; 2],
    number: u32,
    unused: u32,
}

#[derive(Clone, Copy, IntoBytes, Immutable)]
#[repr(C)]
struct BegunMessage {
    prefix: Prefix,
    head: BegunHead,
}

/// Bytes of texts with their lengths at most.
const TEXTS_MAX: usize = {
    let [line, host, agent, referer, id, trace] = TEXT_BYTES_MAX;
    2 * TEXTS + line + host + agent + referer + id + trace
};
/// Bytes of a message at most.
const MESSAGE_MAX: usize = size_of::<EndedMessage>() + TEXTS_MAX;
const _: () = assert!(size_of::<BegunMessage>() <= size_of::<EndedMessage>());

/// A worker's end of a ring.
pub struct Recorder {
    ring: Producer<u8>,
    lost: Arc<AtomicU64>,
    /// Where a message is put together.
    message: Box<[u8]>,
    next: u32,
}

impl core::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Recorder({} bytes)", self.ring.buffer().capacity())
    }
}

impl Recorder {
    /// A ring of so many bytes, at least as many as two messages take.
    pub fn new(bytes: usize) -> (Recorder, Records) {
        let (ring, out) = RingBuffer::new(bytes.max(2 * MESSAGE_MAX));
        let lost = Arc::new(AtomicU64::new(0));
        let recorder = Recorder { ring, lost: lost.clone(), message: vec![0; MESSAGE_MAX].into(), next: 0 };
        (recorder, Records { ring: out, lost, bytes: Vec::new() })
    }

    /// Notes what a request says of itself, and what its client's connection has carried so far; returns the number of its
    /// exchange, never 0.
    #[inline(always)]
    pub fn begin(&mut self, volumes: [u64; 2], texts: &Texts<'_>) -> u32 {
        self.next = if self.next >= ADOPTED - 1 { 1 } else { self.next + 1 };
        let number = self.next;
        let length = put_texts(&mut self.message[size_of::<BegunMessage>()..], texts);
        let prefix = Prefix { length: (size_of::<BegunHead>() + length) as u32, kind: BEGUN };
        let head = BegunHead { volumes, number, unused: 0 };
        let start = BegunMessage { prefix, head };
        self.message[..size_of::<BegunMessage>()].copy_from_slice(start.as_bytes());
        let pushed = self.ring.push_entire_slice(&self.message[..size_of::<BegunMessage>() + length]);
        self.count(pushed.is_ok());
        number
    }

    /// Notes the end of an exchange or a connection, which `make` makes in place.
    #[inline(always)]
    pub fn end(&mut self, make: impl FnOnce() -> Record) {
        let prefix = Prefix { length: size_of::<Record>() as u32, kind: ENDED };
        let message = EndedMessage { prefix, record: make() };
        let pushed = self.ring.push_entire_slice(message.as_bytes());
        self.count(pushed.is_ok());
    }

    /// Notes an exchange as a whole.
    pub fn whole(&mut self, record: &Record, texts: &Texts<'_>) {
        let length = put_texts(&mut self.message[size_of::<EndedMessage>()..], texts);
        let prefix = Prefix { length: (size_of::<Record>() + length) as u32, kind: WHOLE };
        let start = EndedMessage { prefix, record: *record };
        self.message[..size_of::<EndedMessage>()].copy_from_slice(start.as_bytes());
        let pushed = self.ring.push_entire_slice(&self.message[..size_of::<EndedMessage>() + length]);
        self.count(pushed.is_ok());
    }

    #[inline]
    fn count(&self, is_pushed: bool) {
        if !is_pushed {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Writes texts with their lengths before them; how many bytes that are. `out` has room for [`TEXTS_MAX`].
#[inline(always)]
fn put_texts(out: &mut [u8], texts: &Texts<'_>) -> usize {
    let Some((lengths, room)) = out.split_first_chunk_mut::<{ 2 * TEXTS }>() else { return 0 };
    let mut at = 0;
    let mut put = |which: usize, text: &[u8]| {
        let text = &text[..text.len().min(TEXT_BYTES_MAX[which])];
        lengths[2 * which..2 * which + 2].copy_from_slice(&(text.len() as u16).to_ne_bytes());
        if text.is_empty() {
            return;
        }
        if let Some(place) = room.get_mut(at..at + text.len()) {
            place.copy_from_slice(text);
        }
        at += text.len();
    };
    put(0, texts.line);
    put(1, texts.host);
    put(2, texts.agent);
    put(3, texts.referer);
    put(4, texts.id);
    put(5, texts.trace);
    2 * TEXTS + at
}

/// The reader's end of a ring.
#[derive(Debug)]
pub struct Records {
    ring: Consumer<u8>,
    lost: Arc<AtomicU64>,
    bytes: Vec<u8>,
}

impl Records {
    /// Shows all messages that are there to `each`, in the order in which they were written.
    pub fn read(&mut self, mut each: impl FnMut(Message<'_>)) {
        let there = self.ring.slots();
        self.bytes.resize(there, 0);
        if self.ring.pop_entire_slice(&mut self.bytes).is_err() {
            return;
        }
        let mut rest = &self.bytes[..];
        // A message is written as a whole, so none is cut off.
        while let Ok((prefix, behind)) = Prefix::read_from_prefix(rest) {
            let Some((message, next)) = behind.split_at_checked(prefix.length as usize) else { return };
            if let Some(message) = message_of(prefix.kind, message) {
                each(message);
            }
            rest = next;
        }
    }

    /// Messages that found no room so far. One of [`Message::Begun`] and one of [`Message::Ended`] may be of one exchange.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

fn message_of(kind: u32, bytes: &[u8]) -> Option<Message<'_>> {
    match kind {
        BEGUN => {
            let (head, texts) = BegunHead::read_from_prefix(bytes).ok()?;
            Some(Message::Begun(head.number, head.volumes, Texts::read(texts)?))
        }
        ENDED => Some(Message::Ended(Record::read_from_bytes(bytes).ok()?)),
        WHOLE => {
            let (record, texts) = Record::read_from_prefix(bytes).ok()?;
            Some(Message::Whole(record, Texts::read(texts)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::tests::record;

    #[test]
    fn messages_come_out_as_they_went_in() {
        let (mut recorder, mut records) = Recorder::new(1 << 16);
        let texts = Texts { line: b"GET /a?b=c", host: b"example.org", ..Texts::default() };
        // More than the ring holds, so that it wraps.
        for round in 0..1000 {
            let number = recorder.begin([9, round.into()], &texts);
            assert_eq!(number, round + 1);
            recorder.end(|| record(number));
            recorder.whole(&record(7), &Texts { agent: b"curl", ..texts });
            let mut seen = 0;
            records.read(|message| {
                seen += 1;
                match message {
                    Message::Begun(begun, volumes, said) => {
                        assert_eq!((begun, volumes, said), (number, [9, round.into()], texts));
                    }
                    Message::Ended(ended) => assert_eq!((ended.number, ended.service), (number, 3)),
                    Message::Whole(whole, said) => assert_eq!((whole.number, said.agent), (7, &b"curl"[..])),
                }
            });
            assert_eq!(seen, 3);
        }
        assert_eq!(records.lost(), 0);
    }

    #[test]
    fn what_finds_no_room_is_lost_whole_and_counted() {
        let (mut recorder, mut records) = Recorder::new(0);
        let long = vec![b'x'; 10_000];
        let texts = Texts { line: &long, agent: &long, ..Texts::default() };
        for _ in 0..100 {
            recorder.begin([0; 2], &texts);
        }
        let mut seen = 0;
        records.read(|message| {
            let Message::Begun(_, _, said) = message else { panic!("{message:?}") };
            assert_eq!([said.line.len(), said.agent.len()], [TEXT_BYTES_MAX[0], TEXT_BYTES_MAX[2]]);
            seen += 1;
        });
        assert!(seen > 0);
        assert_eq!(seen + records.lost(), 100);
        // There is room again.
        recorder.end(|| record(1));
        let mut ended = 0;
        records.read(|message| ended += u32::from(matches!(message, Message::Ended(_))));
        assert_eq!(ended, 1);
    }
}
