//! Contents that tell where they belong: the bytes of a stream follow from its number and their place in it alone, so
//! a receiver can say whether they are right, without the sender and without keeping any.

use hyper::body::{Body, Bytes, Frame, SizeHint};
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::OnceLock;
use std::task::{Context, Poll};

/// After so many bytes contents repeat: a prime, so that no power of two of bytes can be missing or doubled unnoticed.
const PERIOD: usize = 1_048_573;
/// The most that is taken at once.
const PIECE_MAX: usize = 64 << 10;

/// One period, and as much of the next as a piece may need.
fn table() -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut random = fastrand::Rng::with_seed(22);
        let mut table: Vec<u8> = (0..PERIOD).map(|_| random.u8(..)).collect();
        table.extend_from_within(..PIECE_MAX);
        table
    })
}

/// The position in a stream.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamPlace(usize);

impl StreamPlace {
    /// The beginning of the stream of this number.
    pub(super) fn of(stream: u64) -> StreamPlace {
        // Neighbours in number are far from each other in place.
        StreamPlace((stream.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) as usize % PERIOD)
    }

    /// The next bytes, at most 64 KiB of them.
    pub(super) fn take(&mut self, length: usize) -> &'static [u8] {
        let piece = &table()[self.0..][..length.min(PIECE_MAX)];
        self.0 = (self.0 + piece.len()) % PERIOD;
        piece
    }

    /// Whether these are the next bytes.
    pub(super) fn is_next(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            let piece = self.take(bytes.len());
            if bytes[..piece.len()] != *piece {
                return false;
            }
            bytes = &bytes[piece.len()..];
        }
        true
    }
}

/// A message's body: the first bytes of a stream.
#[derive(Debug)]
pub(super) struct Contents {
    place: StreamPlace,
    left: u64,
    /// Whether the length is told beforehand; otherwise the body goes in chunks.
    told: bool,
    /// Draws the lengths of chunks.
    random: fastrand::Rng,
}

impl Contents {
    /// `length` bytes of the stream.
    pub(super) fn of(stream: u64, length: u64, told: bool) -> Contents {
        Contents { place: StreamPlace::of(stream), left: length, told, random: fastrand::Rng::with_seed(stream) }
    }
}

impl Body for Contents {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let this = self.get_mut();
        if this.left == 0 {
            return Poll::Ready(None);
        }
        // Chunks of all lengths, small ones of small bodies only: a framing of more bytes than it frames is another test.
        let most = if this.told { PIECE_MAX } else { this.random.usize(1 + PIECE_MAX / 64..=PIECE_MAX) };
        let most = if this.left < 4096 && !this.told { this.random.usize(1..=512) } else { most };
        let piece = this.place.take(most.min(usize::try_from(this.left).unwrap_or(usize::MAX)));
        this.left -= piece.len() as u64;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.told && self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        if self.told { SizeHint::with_exact(self.left) } else { SizeHint::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_known_by_their_place() {
        let mut sent = StreamPlace::of(7);
        let stream: Vec<u8> = (0..40).flat_map(|_| sent.take(60_000).to_vec()).collect();
        let mut place = StreamPlace::of(7);
        assert!(stream.chunks(70_001).all(|part| place.is_next(part)));
        let mut wrong = stream.clone();
        wrong[2_000_000] ^= 1;
        assert!(!StreamPlace::of(7).is_next(&wrong), "one bit");
        wrong.clone_from(&stream);
        wrong.drain(65_536..131_072);
        assert!(!StreamPlace::of(7).is_next(&wrong), "a piece is missing");
        assert!(!StreamPlace::of(8).is_next(&stream[..100]), "another stream");
    }
}
