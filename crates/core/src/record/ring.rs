//! The ring that a worker puts records into, and a thread of the host takes them out of.
//!
//! It is words of 8 bytes, which both ends load and store as atomic integers; that costs what plain loads and stores do. So a message
//! is written where it stays, and is not put together elsewhere and copied. A message lies in one piece: where the end of the ring
//! has no room for one, a word says that it lies at the ring's beginning. The writer alone stores how many words are written, behind
//! those of the message, and the reader alone how many are read.

use super::{LOST, Record, RecordRest, RecordStart, TEXT_BYTES_MAX, TEXTS, Texts};
use crate::l7::head::{Request, Span};
use crate::table::sync::{Apart, AtomicU64, Ordering, Words};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ops::Range;
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

/// The first word of a message.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Prefix {
    /// Words of the message, this one among them.
    words: u16,
    kind: u8,
    /// Of a head, how many bytes its last block has that are not in the blocks before.
    rest: u8,
    /// The exchange that begins.
    number: u32,
}

/// Nothing: the next message is at the ring's beginning.
const WRAP: u8 = 0;
const BEGUN: u8 = 1;
const ENDED: u8 = 2;
const WHOLE: u8 = 3;
const HEAD: u8 = 4;

/// What a message of [`BEGUN`] begins with. The bytes that texts lie in stand behind it.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct BegunHead {
    prefix: Prefix,
    volumes: [u64; 2],
    places: [Span; TEXTS],
}

/// What a message of [`HEAD`] begins with. A request's head stands behind it, in whole blocks: the last one is the head's last bytes,
/// some of which the block before it may have, too. (So its length costs no branch.)
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct RequestHead {
    prefix: Prefix,
    volumes: [u64; 2],
    line_and_host: [Span; 2],
}

/// A message of [`ENDED`], and what a message of [`WHOLE`] begins with, before the places of its texts.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct EndedHead {
    prefix: Prefix,
    record: Record,
}

/// Bytes of a word.
const WORD: usize = size_of::<u64>();
const BEGUN_WORDS: usize = size_of::<BegunHead>() / WORD;
const HEAD_WORDS: usize = size_of::<RequestHead>() / WORD;
const ENDED_WORDS: usize = size_of::<EndedHead>() / WORD;
const PLACES_WORDS: usize = size_of::<[Span; TEXTS]>() / WORD;
/// Words of texts at most, each of which begins with a word.
const TEXTS_WORDS_MAX: usize = {
    let [line, host, agent, referer, id, trace] = TEXT_BYTES_MAX;
    line.div_ceil(WORD)
        + host.div_ceil(WORD)
        + agent.div_ceil(WORD)
        + referer.div_ceil(WORD)
        + id.div_ceil(WORD)
        + trace.div_ceil(WORD)
};
/// Words of a message at most.
const MESSAGE_WORDS_MAX: usize = ENDED_WORDS + PLACES_WORDS + TEXTS_WORDS_MAX;
const _: () = assert!(BEGUN_WORDS <= ENDED_WORDS && MESSAGE_WORDS_MAX <= u16::MAX as usize);

/// Bytes of a head up to which all of it is copied: that costs a worker less than to look for the texts and to copy each by itself.
const HEAD_BYTES_MAX: usize = 1024;
/// Words of a block.
const BLOCK: usize = 4;
const BLOCK_BYTES: usize = BLOCK * WORD;
const _: () = assert!(HEAD_BYTES_MAX <= TEXTS_WORDS_MAX * WORD);

/// What both ends share.
struct Shared {
    words: Words,
    /// Words written so far, in all, those that were skipped at the ring's end among them.
    written: Apart<AtomicU64>,
    /// How many of them have been read.
    read: Apart<AtomicU64>,
    /// Records that found no room.
    lost: Apart<AtomicU64>,
}

/// A worker's end of a ring.
pub struct Recorder {
    shared: Arc<Shared>,
    cursor: Cursor,
    /// The number of the last exchange.
    next: u32,
}

/// How far the writer has come.
struct Cursor {
    /// Where the next message begins, if it has room there.
    at: usize,
    /// Words from there on that are known to be free, before the ring's end.
    room: usize,
    /// [`Shared::written`].
    written: u64,
}

impl core::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Recorder({} bytes)", self.shared.words.len() * WORD)
    }
}

impl Recorder {
    /// A ring of so many bytes, at least as many as two messages take.
    pub fn new(bytes: usize) -> (Recorder, Records) {
        let count = (bytes / WORD).max(2 * MESSAGE_WORDS_MAX);
        let zero = || Apart(AtomicU64::new(0));
        let shared = Arc::new(Shared { words: Words::new(count), written: zero(), read: zero(), lost: zero() });
        let recorder =
            Recorder { shared: Arc::clone(&shared), cursor: Cursor { at: 0, room: count, written: 0 }, next: 0 };
        (recorder, Records { shared, at: 0, read: 0, message: Vec::with_capacity(MESSAGE_WORDS_MAX) })
    }

    /// Notes what a request says of itself, and what its client's connection has carried so far; returns the number of its
    /// exchange, never 0: [`LOST`] if there is no room.
    #[inline(never)]
    pub fn begin(&mut self, volumes: [u64; 2], texts: &Texts<'_>) -> u32 {
        let number = self.number();
        let texts = texts.cut();
        let (places, words) = laid_out(&texts);
        let words = BEGUN_WORDS + words;
        let Some(message) = self.cursor.place(&self.shared, words) else { return LOST };
        let prefix = Prefix { words: words as u16, kind: BEGUN, rest: 0, number };
        let start: [u64; BEGUN_WORDS] = zerocopy::transmute!(BegunHead { prefix, volumes, places });
        put_texts(put_words(message, start), &texts);
        self.cursor.commit(&self.shared, words);
        number
    }

    /// [`Recorder::begin`] for a request that has neither an id nor a trace.
    #[inline(never)]
    pub(crate) fn begin_request(&mut self, volumes: [u64; 2], request: &Request<'_>) -> u32 {
        let head = request.bytes;
        let Some(last) = head.last_chunk::<BLOCK_BYTES>().filter(|_| head.len() <= HEAD_BYTES_MAX) else {
            return self.begin(volumes, &Texts::of(request, &[], &[]));
        };
        let number = self.number();
        let words = HEAD_WORDS + head.len() / BLOCK_BYTES * BLOCK + BLOCK;
        let Some(message) = self.cursor.place(&self.shared, words) else { return LOST };
        let prefix = Prefix { words: words as u16, kind: HEAD, rest: (head.len() % BLOCK_BYTES) as u8, number };
        let start = RequestHead { prefix, volumes, line_and_host: request.line_and_host() };
        let start: [u64; HEAD_WORDS] = zerocopy::transmute!(start);
        if let Some((blocks, end)) = put_words(message, start).split_last_chunk::<BLOCK>() {
            let blocks = blocks.as_chunks::<BLOCK>().0.iter();
            blocks.zip(head.as_chunks().0).for_each(|(to, from)| put_block(to, from));
            put_block(end, last);
        }
        self.cursor.commit(&self.shared, words);
        number
    }

    /// Notes the end of an exchange or a connection.
    #[inline(always)]
    pub fn end(&mut self, record: &Record) {
        let Some(message) = self.cursor.place(&self.shared, ENDED_WORDS) else { return };
        put_record(message, ENDED, record);
        self.cursor.commit(&self.shared, ENDED_WORDS);
    }

    /// [`Recorder::end`] with a record in two parts, the second made when the first is written: together they take more registers than
    /// there are.
    #[inline(always)]
    pub(crate) fn end_in_parts(&mut self, start: RecordStart, rest: impl FnOnce() -> RecordRest) {
        let Some(message) = self.cursor.place(&self.shared, ENDED_WORDS) else { return };
        let prefix = Prefix { words: ENDED_WORDS as u16, kind: ENDED, rest: 0, number: 0 };
        let prefix: [u64; 1] = [zerocopy::transmute!(prefix)];
        let start: [u64; size_of::<RecordStart>() / WORD] = zerocopy::transmute!(start);
        let message = put_words(put_words(message, prefix), start);
        let rest: [u64; size_of::<RecordRest>() / WORD] = zerocopy::transmute!(rest());
        put_words(message, rest);
        self.cursor.commit(&self.shared, ENDED_WORDS);
    }

    /// Notes an exchange as a whole.
    pub fn whole(&mut self, record: &Record, texts: &Texts<'_>) {
        let texts = texts.cut();
        let (places, words) = laid_out(&texts);
        let words = ENDED_WORDS + PLACES_WORDS + words;
        let Some(message) = self.cursor.place(&self.shared, words) else { return };
        let behind = put_record(message, WHOLE, record);
        let places: [u64; PLACES_WORDS] = zerocopy::transmute!(places);
        put_texts(put_words(behind, places), &texts);
        self.cursor.commit(&self.shared, words);
    }

    #[inline(always)]
    fn number(&mut self) -> u32 {
        self.next = if self.next >= LOST - 1 { 1 } else { self.next + 1 };
        self.next
    }
}

impl Cursor {
    /// Where a message of so many words is to be written. `None`: there is no room, and a record is lost.
    #[inline(always)]
    fn place<'a>(&mut self, shared: &'a Shared, words: usize) -> Option<&'a [AtomicU64]> {
        if words > self.room && !self.finds_room(shared, words) {
            return None;
        }
        shared.words.get(self.at..self.at + words)
    }

    /// The message is written.
    #[inline(always)]
    fn commit(&mut self, shared: &Shared, words: usize) {
        self.at += words;
        self.room -= words;
        self.written += words as u64;
        shared.written.store(self.written, Ordering::Release);
    }

    /// Looks how far the reader has come, and goes to the ring's beginning if there is no room before its end. `false`: there is no
    /// room, and a record is lost.
    #[cold]
    fn finds_room(&mut self, shared: &Shared, words: usize) -> bool {
        let capacity = shared.words.len();
        let unread = self.written - shared.read.load(Ordering::Acquire);
        let free = capacity - (unread as usize).min(capacity);
        let to_end = capacity - self.at;
        if words <= to_end {
            self.room = free.min(to_end);
        } else if free >= to_end + words {
            if let Some(word) = shared.words.get(self.at) {
                let prefix = Prefix { words: 0, kind: WRAP, rest: 0, number: 0 };
                word.store(zerocopy::transmute!(prefix), Ordering::Relaxed);
            }
            self.written += to_end as u64;
            (self.at, self.room) = (0, free - to_end);
        }
        let is_found = words <= self.room;
        if !is_found {
            // There is no other writer.
            shared.lost.store(shared.lost.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        is_found
    }
}

/// Writes words at the beginning of a message; returns those behind.
#[inline(always)]
fn put_words<const N: usize>(message: &[AtomicU64], words: [u64; N]) -> &[AtomicU64] {
    let Some((start, behind)) = message.split_first_chunk::<N>() else { return &[] };
    start.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
    behind
}

/// Writes a record at the beginning of a message; returns the words behind.
#[inline(always)]
fn put_record<'a>(message: &'a [AtomicU64], kind: u8, record: &Record) -> &'a [AtomicU64] {
    let prefix = Prefix { words: message.len() as u16, kind, rest: 0, number: 0 };
    let words: [u64; ENDED_WORDS] = zerocopy::transmute!(EndedHead { prefix, record: *record });
    put_words(message, words)
}

#[inline(always)]
fn put_block(out: &[AtomicU64; BLOCK], bytes: &[u8; BLOCK_BYTES]) {
    let words = out.iter().zip(bytes.as_chunks().0);
    words.for_each(|(word, bytes)| word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed));
}

/// Writes bytes into as many words as they take.
fn put_bytes(out: &[AtomicU64], bytes: &[u8]) {
    let put = |word: &AtomicU64, bytes: &[u8; WORD]| word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
    let (whole, rest) = bytes.as_chunks();
    out.iter().zip(whole).for_each(|(word, bytes)| put(word, bytes));
    if let Some(word) = out.get(whole.len())
        && !rest.is_empty()
    {
        let mut last = [0; WORD];
        last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
        put(word, &last);
    }
}

/// The places of texts, each of which begins with a word, and how many words they take.
fn laid_out(texts: &Texts<'_>) -> ([Span; TEXTS], usize) {
    let mut words = 0;
    let places = texts.parts().map(|text| {
        let place = Span { start: (words * WORD) as u16, bytes: text.len() as u16 };
        words += text.len().div_ceil(WORD);
        place
    });
    (places, words)
}

/// Writes texts where [`laid_out`] says.
fn put_texts(mut out: &[AtomicU64], texts: &Texts<'_>) {
    for text in texts.parts() {
        let Some((place, behind)) = out.split_at_checked(text.len().div_ceil(WORD)) else { return };
        put_bytes(place, text);
        out = behind;
    }
}

/// The reader's end of a ring.
pub struct Records {
    shared: Arc<Shared>,
    /// Where the next message begins.
    at: usize,
    read: u64,
    /// The message that is read.
    message: Vec<u64>,
}

impl core::fmt::Debug for Records {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "Records({} bytes)", self.shared.words.len() * WORD)
    }
}

impl Records {
    /// Shows all messages that are there to `each`, in the order in which they were written. Those that come meanwhile are for the
    /// next time. Returns how much of the ring they took, of 256 parts, rounded up: 0 if there were none.
    pub fn read(&mut self, each: impl FnMut(Message<'_>)) -> u32 {
        self.read_some(usize::MAX, each).share
    }

    /// [`Records::read`] of as many messages as begin in the first `bytes` of what is there.
    pub fn read_some(&mut self, bytes: usize, mut each: impl FnMut(Message<'_>)) -> Look {
        let written = self.shared.written.load(Ordering::Acquire);
        let share = (256 * (written - self.read)).div_ceil(self.shared.words.len() as u64) as u32;
        let until = written.min(self.read.saturating_add((bytes / WORD) as u64));
        while self.read < until {
            let Some((prefix, place)) = self.next_message() else { continue };
            self.message.clear();
            self.message.extend(self.shared.words.get(place).unwrap_or_default().iter().map(load));
            // The writer may have its room again.
            self.shared.read.store(self.read, Ordering::Release);
            let message = self.message.as_mut_bytes();
            if prefix.kind == HEAD {
                join_last_block(message, prefix.rest.into());
            }
            if let Some(message) = message_of(prefix, message) {
                each(message);
            }
        }
        Look { share, is_all: self.read >= written }
    }

    /// Passes over all messages that are there; how many ends of exchanges and connections were among them.
    pub fn discard(&mut self) -> u64 {
        let written = self.shared.written.load(Ordering::Acquire);
        let mut count = 0;
        while self.read < written {
            let message = self.next_message();
            count += u64::from(message.is_some_and(|(prefix, _)| matches!(prefix.kind, ENDED | WHOLE)));
        }
        self.shared.read.store(self.read, Ordering::Release);
        count
    }

    /// Goes past the next message that has been written, and says where it lies. `None`: past the ring's end.
    fn next_message(&mut self) -> Option<(Prefix, Range<usize>)> {
        let Some(word) = self.shared.words.get(self.at) else {
            // The last message ended where the ring does.
            self.at = 0;
            return None;
        };
        let prefix: Prefix = zerocopy::transmute!(load(word));
        let words = usize::from(prefix.words);
        if prefix.kind == WRAP || words == 0 {
            self.read += (self.shared.words.len() - self.at) as u64;
            self.at = 0;
            return None;
        }
        let place = self.at..self.at + words;
        self.at += words;
        self.read += words as u64;
        Some((prefix, place))
    }

    /// Records that found no room so far.
    pub fn lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }
}

/// What [`Records::read_some`] has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// How much of the ring was in use, of 256 parts, rounded up.
    pub share: u32,
    /// All that was there has been read.
    pub is_all: bool,
}

fn load(word: &AtomicU64) -> u64 {
    word.load(Ordering::Relaxed)
}

/// Puts the last of a head's bytes behind those before.
fn join_last_block(message: &mut [u8], rest: usize) {
    let end = message.len();
    if let Some(last) = end.checked_sub(BLOCK_BYTES)
        && rest <= BLOCK_BYTES
    {
        message.copy_within(end - rest.., last);
        message[last + rest..].fill(0);
    }
}

fn message_of(prefix: Prefix, bytes: &[u8]) -> Option<Message<'_>> {
    match prefix.kind {
        HEAD => {
            let (start, head) = RequestHead::read_from_prefix(bytes).ok()?;
            Some(Message::Begun(prefix.number, start.volumes, Texts::in_head(start.line_and_host, head)?))
        }
        BEGUN => {
            let (head, texts) = BegunHead::read_from_prefix(bytes).ok()?;
            Some(Message::Begun(prefix.number, head.volumes, Texts::at(&head.places, texts)?))
        }
        ENDED => Some(Message::Ended(EndedHead::read_from_bytes(bytes).ok()?.record)),
        WHOLE => {
            let (head, behind) = EndedHead::read_from_prefix(bytes).ok()?;
            let (places, texts) = <[Span; TEXTS]>::read_from_prefix(behind).ok()?;
            Some(Message::Whole(head.record, Texts::at(&places, texts)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
