//! What stands around the chunks of a request, as it was read, until its backend has acknowledged it.
//!
//! Chunks are read once, as they go on, and the backend may get other bytes than those that were read: when they are lost
//! on their way or refused where they arrive, a client may send others with the same numbers, in which the body ends
//! earlier, and the rest of which would be a request of its own to the backend. So what comes again must be what was read,
//! but for what is in the chunks; what is not goes no further.
//!
//! The first bytes of each chunk are remembered with what stands in front of them: small chunks then make one long record
//! instead of many short ones, and no body takes more than 15 bytes of records for 11 of its own.
//!
//! Bounds: [`BYTES_MAX`] of records for a request, in a buffer of the worker's. A client whose chunks are small is shown
//! no more room than they fit into ([`DENSE_WINDOW`]). What finds no room all the same is not taken yet: the client
//! sends it again, and there is room when the backend has acknowledged what is before it.

use super::buffers::{Buffer, Buffers, SIZES};
use super::entry::ClientConn;
use super::exchange::Message;
use crate::l7::body::Chunks;
use crate::l7::splice::tcp::numbers::{before, beyond};
use crate::stored::{Optional, stored};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// Bytes of records at most.
pub const BYTES_MAX: usize = SIZES[2];
/// Bytes of a record in front of those that were read: the number of the first, and how many there are.
const RECORD: usize = 5;
/// Bytes that were read of one record at most.
const RUN_MAX: usize = u8::MAX as usize;
/// So many of a chunk's first bytes are remembered too.
const FIRST_MAX: u8 = RECORD as u8;
/// Bytes that a client may send ahead of what its backend has acknowledged while its chunks are small: their records, 15
/// bytes for 11, fit into [`BYTES_MAX`].
const DENSE_WINDOW: u32 = 65_535;
/// Chunks are small until so many bytes have been read of them,
const DENSE_UNTIL: u32 = 4096;
/// and as long as there is a byte of records for so many.
const DENSE_RATIO: u32 = 8;
/// Records that were acknowledged are kept up to so many bytes beside those that are needed: not every segment has to
/// move the rest.
const SETTLE_ABOVE: usize = 512;

/// The records of a request, in the client's numbers.
#[derive(Debug, Default, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct Framing {
    records: Optional<Buffer>,
    /// Where in them the last one begins.
    last: u32,
    /// Bytes of records that were left when acknowledged ones were last forgotten.
    needed: u32,
    /// Bytes that have been read, and bytes of records that they took.
    read: u32,
    noted: u32,
    /// How many of the chunk's first bytes that is being read are in them.
    first: u8,
    unused: [u8; 3],
}

stored!(Framing: records, last, needed, read, noted, first, unused);

/// A record.
struct Run<'a> {
    start: u32,
    bytes: &'a [u8],
}

impl Framing {
    /// Notes what of `bytes`, which come next and begin with number `start`, is not in a chunk. `false`: there is no room,
    /// and nothing is noted. What the backend has `acknowledged` is forgotten first, from time to time.
    pub(in crate::l7::splice) fn note(
        &mut self,
        buffers: &mut Buffers,
        chunks: Chunks,
        (start, bytes): (u32, &[u8]),
        acknowledged: u32,
    ) -> bool {
        if self.records.as_ref().is_some_and(|records| records.len() > 2 * self.needed as usize + SETTLE_ABOVE) {
            self.settle(buffers, acknowledged);
        }
        if self.write(buffers, chunks, (start, bytes)) {
            return true;
        }
        self.settle(buffers, acknowledged);
        self.write(buffers, chunks, (start, bytes))
    }

    /// Notes as [`Framing::note`] does, but forgets nothing.
    fn write(&mut self, buffers: &mut Buffers, chunks: Chunks, (start, bytes): (u32, &[u8])) -> bool {
        let (had, last, first) = (self.records.as_ref().map_or(0, Buffer::len), self.last, self.first);
        let last_length =
            self.records.as_ref().and_then(|records| buffers.bytes(records).get(last as usize + RECORD - 1).copied());
        let mut fits = true;
        self.first = around(chunks, first, bytes, |at, run| {
            fits = fits && self.add(buffers, start.wrapping_add(at as u32), run);
        });
        let has = self.records.as_ref().map_or(0, Buffer::len);
        if fits {
            self.read = self.read.saturating_add(bytes.len() as u32);
            self.noted = self.noted.saturating_add((has - had) as u32);
            return true;
        }
        (self.last, self.first) = (last, first);
        match (self.records.as_mut(), last_length) {
            (Some(records), Some(length)) => {
                buffers.truncate(records, had);
                set_length(buffers, records, last as usize, length);
            }
            _ => self.release(buffers),
        }
        false
    }

    /// Adds bytes to the last record, if they follow it, and others behind it. `false`: there is no room; some may be there.
    fn add(&mut self, buffers: &mut Buffers, start: u32, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        if rest.is_empty() {
            return true;
        }
        if let Some(records) = self.records.as_mut() {
            let run = runs(buffers.bytes(records).get(self.last as usize..).unwrap_or_default()).next();
            let (end, length) = run.map_or((0, RUN_MAX), |run| (run.end(), run.bytes.len()));
            let taken = if end == start { rest.len().min(RUN_MAX - length) } else { 0 };
            if taken > 0 {
                if !append(buffers, records, &rest[..taken]) {
                    return false;
                }
                set_length(buffers, records, self.last as usize, (length + taken) as u8);
                rest = &rest[taken..];
            }
        } else {
            self.records = buffers.take(RECORD + rest.len().min(RUN_MAX)).into();
        }
        let Some(records) = self.records.as_mut() else { return false };
        for run in rest.chunks(RUN_MAX) {
            let number = start.wrapping_add((bytes.len() - rest.len()) as u32);
            let [a, b, c, d] = number.to_le_bytes();
            let at = records.len();
            if !append(buffers, records, &[a, b, c, d, run.len() as u8]) || !append(buffers, records, run) {
                return false;
            }
            self.last = at as u32;
            rest = &rest[run.len()..];
        }
        true
    }

    /// Whether this program could have left it.
    pub(in crate::l7::splice) fn is_plausible(&self) -> bool {
        self.first <= FIRST_MAX && self.last as usize <= self.records.as_ref().map_or(0, Buffer::len)
    }

    /// The buffer that they lie in.
    pub(in crate::l7::splice) fn records(&self) -> Option<&Buffer> {
        self.records.as_ref()
    }

    pub(in crate::l7::splice) fn records_mut(&mut self) -> Option<&mut Buffer> {
        self.records.as_mut()
    }

    /// Whether the chunks are so small, or may be, that their records take much of what a client may send.
    pub(in crate::l7::splice) fn is_dense(&self) -> bool {
        self.read < DENSE_UNTIL || self.noted > self.read / DENSE_RATIO
    }

    /// Whether `bytes`, which begin with number `start`, are what was read, as far as that is known.
    pub(in crate::l7::splice) fn agrees(&self, buffers: &Buffers, start: u32, bytes: &[u8]) -> bool {
        let Some(records) = self.records.as_ref().filter(|_| !bytes.is_empty()) else { return true };
        runs(buffers.bytes(records)).all(|run| {
            let ahead = run.start.wrapping_sub(start) as i32 as isize;
            let (of_run, of_bytes) = ((-ahead).max(0) as usize, ahead.max(0) as usize);
            let both =
                run.bytes.get(of_run..).unwrap_or_default().iter().zip(bytes.get(of_bytes..).unwrap_or_default());
            both.into_iter().all(|(known, said)| known == said)
        })
    }

    /// Forgets everything.
    pub(in crate::l7::splice) fn clear(&mut self, buffers: &mut Buffers) {
        self.release(buffers);
        *self = Framing::default();
    }

    fn release(&mut self, buffers: &mut Buffers) {
        if let Some(records) = self.records.take() {
            buffers.release(records);
        }
        (self.last, self.needed) = (0, 0);
    }

    /// Forgets what lies before number `acknowledged`.
    fn settle(&mut self, buffers: &mut Buffers, acknowledged: u32) {
        let Some(records) = self.records.as_mut() else { return };
        let is_over = |run: &Run<'_>| !before(acknowledged, run.end());
        let over = runs(buffers.bytes(records)).take_while(is_over).map(|run| RECORD + run.bytes.len()).sum();
        buffers.consume(records, over);
        self.needed = records.len() as u32;
        if self.needed == 0 {
            return self.release(buffers);
        }
        // What lies in buffers is not checked at adoption.
        self.last = self.last.saturating_sub(over as u32);
    }
}

impl ClientConn {
    /// Beside this acknowledgement number, what the client is shown of its backend's window at most, in bytes: of a body of
    /// many small chunks no more than can be remembered of it.
    pub(in crate::l7::splice) fn most_for_client(&self, acknowledgement: u32) -> u32 {
        match self.exchange.request.get() {
            Message::Chunked(_) if self.framing.is_dense() => DENSE_WINDOW.max(beyond(acknowledgement, self.peer.edge)),
            _ => u32::MAX,
        }
    }
}

impl Run<'_> {
    /// One past the number of its last byte.
    fn end(&self) -> u32 {
        self.start.wrapping_add(self.bytes.len() as u32)
    }
}

/// Adds all of some bytes to a buffer, up to [`BYTES_MAX`] in all.
fn append(buffers: &mut Buffers, records: &mut Buffer, bytes: &[u8]) -> bool {
    records.len() + bytes.len() <= BYTES_MAX && buffers.append(records, bytes) == bytes.len()
}

/// Says how many bytes the record has that begins at `at`.
fn set_length(buffers: &mut Buffers, records: &Buffer, at: usize, length: u8) {
    if let Some(place) = buffers.bytes_mut(records).get_mut(at + RECORD - 1) {
        *place = length;
    }
}

/// The records in some bytes.
fn runs(mut records: &[u8]) -> impl Iterator<Item = Run<'_>> {
    core::iter::from_fn(move || {
        let (head, rest) = records.split_first_chunk::<RECORD>()?;
        let [a, b, c, d, length] = *head;
        let (bytes, rest) = rest.split_at_checked(length.into())?;
        records = rest;
        Some(Run { start: u32::from_le_bytes([a, b, c, d]), bytes })
    })
}

/// Tells the stretches of `bytes` that are to be remembered, each with where it begins, up to the body's end or to what is
/// wrong in it. `first` bytes of the chunk that they begin in are remembered; returns the count for the one at the end.
fn around(mut chunks: Chunks, mut first: u8, bytes: &[u8], mut tell: impl FnMut(usize, &[u8])) -> u8 {
    let (mut from, mut at) = (0, 0);
    while at < bytes.len() {
        let skipped = chunks.skip((bytes.len() - at) as u64) as usize;
        if skipped > 0 {
            let remembered = skipped.min(usize::from(FIRST_MAX - first));
            first += remembered as u8;
            if remembered < skipped {
                tell(from, &bytes[from..at + remembered]);
                from = at + skipped;
            }
            at += skipped;
        } else if matches!(chunks.feed(&bytes[at..=at]), Ok(1)) {
            (first, at) = (0, at + 1);
        } else {
            break;
        }
    }
    tell(from, &bytes[from..at]);
    first
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const BODY: &[u8] = b"c;x=y\r\nWikiWikiWiki\r\n10\r\n0\r\n\r\nGET / HTTP/\r\n0\r\nA: b\r\n\r\n";

    /// The records of [`BODY`] from number `start` on, which was read in pieces of this size.
    fn read(buffers: &mut Buffers, start: u32, piece: usize) -> Framing {
        let (mut framing, mut chunks, mut at) = (Framing::default(), Chunks::default(), start);
        for piece in BODY.chunks(piece) {
            assert!(framing.note(buffers, chunks, (at, piece), start));
            chunks.feed(piece).unwrap();
            at = at.wrapping_add(piece.len() as u32);
        }
        assert!(chunks.is_done());
        framing
    }

    #[test]
    fn only_what_is_in_chunks_may_be_another_when_it_comes_again() {
        // Without the first five bytes of each chunk.
        let data: Vec<usize> = (12..19).chain(30..41).collect();
        for start in [1000, u32::MAX - 20] {
            for piece in [1, 3, 7, 100] {
                let mut buffers = Buffers::with([2, 2, 2]);
                let mut framing = read(&mut buffers, start, piece);
                assert!(framing.agrees(&buffers, start, BODY), "the same");
                for at in 0..BODY.len() {
                    let mut other = BODY.to_vec();
                    other[at] ^= 1;
                    let may = data.contains(&at);
                    for from in 0..BODY.len() {
                        let number = start.wrapping_add(from as u32);
                        let agrees = framing.agrees(&buffers, number, &other[from..]);
                        assert_eq!(agrees, may || from > at, "byte {at} in a segment from {from} on, read by {piece}");
                    }
                    assert!(framing.agrees(&buffers, start, &other[..at]), "in front of it");
                }
                framing.clear(&mut buffers);
                assert_eq!(buffers.in_use(), 0);
            }
        }
    }

    #[test]
    fn what_is_acknowledged_is_forgotten() {
        let mut buffers = Buffers::with([1, 1, 1]);
        let mut framing = read(&mut buffers, 1000, 7);
        let other = |from: usize| vec![b'-'; BODY.len() - from];
        framing.settle(&mut buffers, 1030);
        assert!(framing.agrees(&buffers, 1000, &other(0)[..41]) && !framing.agrees(&buffers, 1000, &other(0)));
        framing.settle(&mut buffers, 1000 + BODY.len() as u32);
        assert!(framing.agrees(&buffers, 1000, &other(0)));
        assert_eq!(buffers.in_use(), 0);
    }

    #[test]
    fn what_finds_no_room_is_not_noted() {
        let mut buffers = Buffers::with([0, 1, 1]);
        let (mut framing, mut chunks, mut at) = (Framing::default(), Chunks::default(), 0u32);
        let chunk = b"1\r\nx\r\n";
        while framing.note(&mut buffers, chunks, (at, chunk), 0) {
            chunks.feed(chunk).unwrap();
            at += chunk.len() as u32;
        }
        assert!((15_000..16_384).contains(&(at / 6)), "{at}");
        let mut other = chunk.to_vec();
        assert!(framing.agrees(&buffers, at - 6, &other) && framing.agrees(&buffers, at, b"0\r\n\r\nGET"));
        other[0] = b'2';
        assert!(!framing.agrees(&buffers, at - 6, &other));
        assert!(framing.note(&mut buffers, chunks, (at, chunk), at / 2), "as soon as some of it has arrived");
        framing.clear(&mut buffers);

        let mut none = Buffers::with([0, 0, 0]);
        assert!(!Framing::default().note(&mut none, Chunks::default(), (0, b"1"), 0));
        assert!(Framing::default().note(&mut none, Chunks::default(), (0, b""), 0));
    }

    #[test]
    fn records_are_not_much_longer_than_what_they_are_of() {
        for chunk in [&b"1\r\nx\r\n"[..], b"5\r\nhello\r\n", b"6\r\nhello!\r\n", b"b\r\nhello, you!\r\n"] {
            for piece in [1, 2, 3, 5, 7, 1460, 65_000] {
                let mut buffers = Buffers::with([1, 1, 1]);
                let (mut framing, mut chunks) = (Framing::default(), Chunks::default());
                let all = chunk.repeat(DENSE_WINDOW as usize / chunk.len());
                for (number, bytes) in all.chunks(piece).enumerate() {
                    assert!(
                        framing.note(&mut buffers, chunks, ((number * piece) as u32, bytes), 0),
                        "{chunk:?} by {piece}"
                    );
                    chunks.feed(bytes).unwrap();
                }
                assert!(framing.is_dense() && framing.agrees(&buffers, 0, &all));
                assert!(framing.noted as usize <= all.len() * 15 / 11 + 20, "{} of {}", framing.noted, all.len());
                framing.clear(&mut buffers);
                assert_eq!(buffers.in_use(), 0);
            }
        }
    }

    #[test]
    fn large_chunks_take_little() {
        let mut buffers = Buffers::with([1, 0, 0]);
        let (mut framing, mut chunks, mut at) = (Framing::default(), Chunks::default(), 0u32);
        let chunk = [&b"2000\r\n"[..], &[b'x'; 0x2000], b"\r\n"].concat();
        for number in 0..1000 {
            for piece in chunk.chunks(1460) {
                assert!(framing.note(&mut buffers, chunks, (at, piece), at.saturating_sub(65_000)), "{number}");
                chunks.feed(piece).unwrap();
                at += piece.len() as u32;
            }
            assert_eq!(framing.is_dense(), at < DENSE_UNTIL);
        }
        framing.clear(&mut buffers);
    }
}
