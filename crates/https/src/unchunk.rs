//! A chunked body without its chunks, for a protocol that frames data itself.

use crate::translate;
use hairpin_core::l7::body::{BadChunk, Chunks};
use http::HeaderMap;

/// Takes a body out of its chunks.
pub(crate) struct Unchunker {
    chunks: Chunks,
    /// The bytes between the last chunk's data and here: in the end the last chunk's line and the trailers.
    between: Vec<u8>,
}

impl Default for Unchunker {
    fn default() -> Unchunker {
        Unchunker::new(Chunks::of_response())
    }
}

impl Unchunker {
    /// `chunks` are to be read as these.
    pub(crate) fn new(chunks: Chunks) -> Unchunker {
        Unchunker { chunks, between: Vec::new() }
    }

    /// Adds the data in the next bytes of the stream to `data`; how many of the bytes belong to the body.
    ///
    /// # Errors
    /// The error that the chunks have.
    pub(crate) fn feed(&mut self, bytes: &[u8], data: &mut Vec<u8>) -> Result<usize, BadChunk> {
        self.feed_at_most(bytes, usize::MAX, data)
    }

    /// As [`Self::feed`], until `most` bytes have been added to `data` and more would be; how many of the bytes were read.
    ///
    /// # Errors
    /// The error that the chunks have.
    pub(crate) fn feed_at_most(&mut self, bytes: &[u8], most: usize, data: &mut Vec<u8>) -> Result<usize, BadChunk> {
        let (mut rest, mut room) = (bytes, most);
        while !rest.is_empty() && !self.chunks.is_done() {
            let left = usize::try_from(self.chunks.data_left()).unwrap_or(usize::MAX).min(rest.len());
            if left > 0 {
                let taken = left.min(room);
                if taken == 0 {
                    break;
                }
                data.extend_from_slice(&rest[..taken]);
                self.chunks.skip(taken as u64);
                self.between.clear();
                (rest, room) = (&rest[taken..], room - taken);
                continue;
            }
            // `Chunks` bounds the framing of the data.
            self.chunks.feed(&rest[..1])?;
            self.between.push(rest[0]);
            rest = &rest[1..];
        }
        Ok(bytes.len() - rest.len())
    }

    pub(crate) fn is_done(&self) -> bool {
        self.chunks.is_done()
    }

    /// The trailers of a body that has ended, `Some(None)`: there are none. `None`: they cannot be carried.
    pub(crate) fn trailers(&self) -> Option<Option<HeaderMap>> {
        // The line of the last chunk, which may follow the end of the one before.
        let start = self.between.strip_prefix(b"\r\n").unwrap_or(&self.between);
        let line = start.iter().position(|&byte| byte == b'\n').map_or(start.len(), |end| end + 1);
        let trailers = translate::trailers(&start[line..])?;
        Some((!trailers.is_empty()).then_some(trailers))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BODY: &[u8] = b"5;x=y\r\nhello\r\n6\r\n world\r\n0\r\nGrpc-Status: 0\r\nx-end: yes\r\n\r\n";

    fn unchunked(body: &[u8], step: usize) -> (Vec<u8>, usize, Option<Option<HeaderMap>>) {
        let (mut unchunker, mut data, mut taken) = (Unchunker::default(), Vec::new(), 0);
        for piece in body.chunks(step) {
            taken += unchunker.feed(piece, &mut data).unwrap();
        }
        assert!(unchunker.is_done());
        (data, taken, unchunker.trailers())
    }

    #[test]
    fn data_and_trailers_come_out_however_the_body_is_cut() {
        for step in 1..=BODY.len() {
            let (data, taken, trailers) = unchunked(BODY, step);
            assert_eq!((&data[..], taken), (&b"hello world"[..], BODY.len()), "cut every {step} bytes");
            let trailers = trailers.unwrap().unwrap();
            assert_eq!(trailers["grpc-status"], "0");
            assert_eq!(trailers["x-end"], "yes");
        }
    }

    #[test]
    fn body_without_trailers_or_data_ends() {
        assert_eq!(unchunked(b"0\r\n\r\n", 1), (Vec::new(), 5, Some(None)));
        let (data, taken, trailers) = unchunked(b"1\r\na\r\n0\r\n\r\nHTTP/1.1", 100);
        assert_eq!((&data[..], taken, trailers), (&b"a"[..], 11, Some(None)));
    }

    #[test]
    fn wrong_chunks_are_refused() {
        assert!(Unchunker::default().feed(b"x\r\n", &mut Vec::new()).is_err());
        assert!(Unchunker::default().feed(b"1\r\nabc", &mut Vec::new()).is_err());
    }
}
