//! What stands around the chunks of a request, as it was read, until its backend has acknowledged it.
//!
//! Chunks are read once, as they go on, and the backend may get other bytes than those that were read: when they are lost
//! on their way or refused where they arrive, a client may send others with the same numbers, in which the body ends
//! earlier, and the rest of which would be a request of its own to the backend. So what comes again must be what was read,
//! but for what is in the chunks; what is not goes no further.
//!
//! Bounds: [`BYTES_MAX`] of records for a request, in a buffer of the worker's. What finds no room is not taken yet: the
//! client sends it again, and there is room when the backend has acknowledged what is before it.

use super::buffers::{Buffer, Buffers, SIZES};
use super::numbers::before;
use crate::l7::body::Chunks;

/// Bytes of records at most: as many as some 1,500 chunks have.
const BYTES_MAX: usize = SIZES[1];
/// Bytes of a record in front of those that were read: the number of the first, and how many there are.
const RECORD: usize = 5;
/// Bytes that were read of one record at most.
const RUN_MAX: usize = u8::MAX as usize;

/// The records of a request, in the client's numbers.
#[derive(Debug, Default)]
pub(super) struct Framing {
    records: Option<Buffer>,
}

/// A record.
struct Run<'a> {
    start: u32,
    bytes: &'a [u8],
}

impl Framing {
    /// Notes what of `bytes`, which come next and begin with number `start`, is not in a chunk. `false`: there is no room,
    /// and nothing is noted. What the backend has `acknowledged` is forgotten first.
    pub(super) fn note(
        &mut self,
        buffers: &mut Buffers,
        chunks: Chunks,
        (start, bytes): (u32, &[u8]),
        acknowledged: u32,
    ) -> bool {
        self.settle(buffers, acknowledged);
        let mut needed = 0;
        around(chunks, start, bytes, |run| needed += RECORD + run.bytes.len());
        if needed == 0 {
            return true;
        }
        let had = self.records.as_ref().map_or(0, Buffer::len);
        if had + needed > BYTES_MAX {
            return false;
        }
        if self.records.is_none() {
            self.records = buffers.take(needed);
        }
        let Some(records) = &mut self.records else { return false };
        let mut added = 0;
        around(chunks, start, bytes, |run| {
            added += buffers.append(records, &run.start.to_le_bytes());
            added += buffers.append(records, &[run.bytes.len() as u8]);
            added += buffers.append(records, run.bytes);
        });
        if added < needed {
            buffers.truncate(records, had);
        }
        added == needed
    }

    /// Whether `bytes`, which begin with number `start`, are what was read, as far as that is known.
    pub(super) fn agrees(&self, buffers: &Buffers, start: u32, bytes: &[u8]) -> bool {
        let Some(records) = &self.records else { return true };
        runs(buffers.bytes(records)).all(|run| {
            let ahead = run.start.wrapping_sub(start) as i32 as isize;
            let (of_run, of_bytes) = ((-ahead).max(0) as usize, ahead.max(0) as usize);
            let both =
                run.bytes.get(of_run..).unwrap_or_default().iter().zip(bytes.get(of_bytes..).unwrap_or_default());
            both.into_iter().all(|(known, said)| known == said)
        })
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self, buffers: &mut Buffers) {
        if let Some(records) = self.records.take() {
            buffers.release(records);
        }
    }

    /// Forgets what lies before number `acknowledged`.
    fn settle(&mut self, buffers: &mut Buffers, acknowledged: u32) {
        let Some(records) = &mut self.records else { return };
        let is_over = |run: &Run<'_>| !before(acknowledged, run.start.wrapping_add(run.bytes.len() as u32));
        let over = runs(buffers.bytes(records)).take_while(is_over).map(|run| RECORD + run.bytes.len()).sum();
        buffers.consume(records, over);
        if records.len() == 0 {
            self.clear(buffers);
        }
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

/// Tells the stretches of `bytes` that are not in a chunk, up to the body's end or to what is wrong in it.
fn around(mut chunks: Chunks, start: u32, bytes: &[u8], mut tell: impl FnMut(Run<'_>)) {
    let mut at = 0;
    loop {
        at += chunks.skip((bytes.len() - at) as u64) as usize;
        let from = at;
        while at < bytes.len() && chunks.data_left() == 0 && matches!(chunks.feed(&bytes[at..=at]), Ok(1)) {
            at += 1;
        }
        for (number, run) in bytes[from..at].chunks(RUN_MAX).enumerate() {
            tell(Run { start: start.wrapping_add((from + number * RUN_MAX) as u32), bytes: run });
        }
        if from == at {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;
    use alloc::vec::Vec;

    const BODY: &[u8] = b"4;x=y\r\nWiki\r\n10\r\n0\r\n\r\nGET / HTTP/\r\n0\r\nA: b\r\n\r\n";

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
        let data: Vec<usize> = (7..11).chain(17..33).collect();
        for start in [1000, u32::MAX - 20] {
            for piece in [1, 3, 7, 100] {
                let mut buffers = Buffers::new([2, 2, 2]);
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
        let mut buffers = Buffers::new([1, 1, 1]);
        let mut framing = read(&mut buffers, 1000, 7);
        let other = |from: usize| vec![b'-'; BODY.len() - from];
        framing.settle(&mut buffers, 1017);
        assert!(framing.agrees(&buffers, 1000, &other(0)[..33]) && !framing.agrees(&buffers, 1000, &other(0)));
        framing.settle(&mut buffers, 1000 + BODY.len() as u32);
        assert!(framing.agrees(&buffers, 1000, &other(0)));
        assert_eq!(buffers.in_use(), 0);
    }

    #[test]
    fn what_finds_no_room_is_not_noted() {
        let mut buffers = Buffers::new([0, 1, 1]);
        let (mut framing, mut chunks, mut at) = (Framing::default(), Chunks::default(), 0u32);
        let chunk = b"1\r\nx\r\n";
        while framing.note(&mut buffers, chunks, (at, chunk), 0) {
            chunks.feed(chunk).unwrap();
            at += chunk.len() as u32;
        }
        assert!((1000..5000).contains(&(at / 6)), "{at}");
        let mut other = chunk.to_vec();
        assert!(framing.agrees(&buffers, at - 6, &other) && framing.agrees(&buffers, at, b"0\r\n\r\nGET"));
        other[0] = b'2';
        assert!(!framing.agrees(&buffers, at - 6, &other));
        assert!(framing.note(&mut buffers, chunks, (at, chunk), at / 2), "as soon as some of it has arrived");
        framing.clear(&mut buffers);

        let mut none = Buffers::new([0, 0, 0]);
        assert!(!Framing::default().note(&mut none, Chunks::default(), (0, b"1"), 0));
        assert!(Framing::default().note(&mut none, Chunks::default(), (0, b""), 0));
    }
}
