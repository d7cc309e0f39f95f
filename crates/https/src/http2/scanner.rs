//! The frames in a stream of bytes, as far as their headers tell (RFC 9113, 4.1).

/// Kinds of frames (RFC 9113, 6).
pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
const PUSH_PROMISE: u8 = 5;
pub(super) const GOAWAY: u8 = 7;
pub(super) const CONTINUATION: u8 = 9;

/// Flags of frames.
pub(super) const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;

/// Bytes of the preface of a client.
pub(super) const PREFACE_BYTES: usize = 24;
/// Bytes of a frame's header.
const HEADER_BYTES: usize = 9;
/// Bytes of a payload that are read at most: of GOAWAY, with the text that names a limit of the h2 crate.
const PAYLOAD_BYTES: usize = 24;

/// A frame, seen when its header and the first bytes of its payload are there.
pub(super) struct Frame<'a> {
    pub(super) kind: u8,
    pub(super) flags: u8,
    /// Bytes of the payload.
    length: usize,
    /// Its first bytes, as many as its kind asks for.
    payload: &'a [u8],
}

impl Frame<'_> {
    /// Whether it is DATA without a byte of data. Padding is none.
    pub(super) fn is_empty_data(&self) -> bool {
        let padding =
            if self.flags & PADDED == 0 { 0 } else { 1 + self.payload.first().map_or(0, |&n| usize::from(n)) };
        self.kind == DATA && self.length <= padding
    }

    pub(super) fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// The error code of RST_STREAM or GOAWAY, and the text behind that of GOAWAY.
    pub(super) fn error(&self) -> Option<(u32, &[u8])> {
        let at = if self.kind == GOAWAY { 4 } else { 0 };
        let code = self.payload.get(at..at + 4)?;
        Some((u32::from_be_bytes(code.try_into().ok()?), &self.payload[at + 4..]))
    }
}

/// Goes along a stream of bytes.
pub(super) struct Scanner {
    /// Bytes until the next frame.
    skip: usize,
    /// The frame that has begun.
    begun: [u8; HEADER_BYTES + PAYLOAD_BYTES],
    filled: usize,
    /// A header block has begun and not ended.
    in_block: bool,
    /// The block ends with the frame that is read.
    ends_block: bool,
}

impl Scanner {
    /// `skip`: bytes before the first frame.
    pub(super) fn new(skip: usize) -> Scanner {
        Scanner { skip, begun: [0; HEADER_BYTES + PAYLOAD_BYTES], filled: 0, in_block: false, ends_block: false }
    }

    pub(super) fn is_in_block(&self) -> bool {
        self.in_block
    }

    /// Goes on with the next bytes: whether a header block ended among them.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut see: impl FnMut(&Frame<'_>)) -> bool {
        let mut has_ended = false;
        loop {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            if self.skip == 0 && self.filled == 0 && self.ends_block {
                (self.in_block, self.ends_block) = (false, false);
                has_ended = true;
            }
            if bytes.is_empty() {
                return has_ended;
            }
            let taken = (self.wanted() - self.filled).min(bytes.len());
            self.begun[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled == HEADER_BYTES && matches!(self.begun[3], HEADERS | PUSH_PROMISE | CONTINUATION) {
                self.in_block = true;
                self.ends_block = self.begun[4] & END_HEADERS != 0;
            }
            if self.filled >= HEADER_BYTES && self.filled == self.wanted() {
                let payload = &self.begun[HEADER_BYTES..self.filled];
                let frame = Frame { kind: self.begun[3], flags: self.begun[4], length: self.length(), payload };
                see(&frame);
                self.skip = frame.length - payload.len();
                self.filled = 0;
            }
        }
    }

    /// The payload's length of the frame that has begun.
    fn length(&self) -> usize {
        let length = [0, self.begun[0], self.begun[1], self.begun[2]];
        usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX)
    }

    /// Bytes of the frame that has begun that are to be read.
    fn wanted(&self) -> usize {
        if self.filled < HEADER_BYTES {
            return HEADER_BYTES;
        }
        let of_payload = match self.begun[3] {
            DATA if self.begun[4] & PADDED != 0 => 1,
            RST_STREAM => 4,
            GOAWAY => PAYLOAD_BYTES,
            _ => 0,
        };
        HEADER_BYTES + self.length().min(of_payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        [&[0, 0, payload.len() as u8, kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn frames_are_seen_however_the_stream_is_cut() {
        let stream = [
            vec![b'x'; PREFACE_BYTES],
            frame(HEADERS, 0, b"abc"),
            frame(CONTINUATION, END_HEADERS, b""),
            frame(DATA, PADDED, &[2, 0, 0]),
            frame(DATA, PADDED | END_STREAM, &[1, 7, 0]),
            frame(RST_STREAM, 0, &[0, 0, 0, 8]),
            frame(GOAWAY, 0, b"\0\0\0\0\0\0\0\x0btoo_many_resets and more"),
        ]
        .concat();
        for step in 1..=stream.len() {
            let (mut scanner, mut seen, mut ended) = (Scanner::new(PREFACE_BYTES), Vec::new(), 0);
            for bytes in stream.chunks(step) {
                ended += usize::from(scanner.feed(bytes, |frame| {
                    let error = frame.error().map(|(code, text)| (code, text.starts_with(b"too_many_resets")));
                    seen.push((frame.kind, frame.is_empty_data(), frame.ends_stream(), error));
                }));
            }
            let expected = [
                (HEADERS, false, false, None),
                (CONTINUATION, false, false, None),
                (DATA, true, false, None),
                (DATA, false, true, None),
                (RST_STREAM, false, false, Some((8, false))),
                (GOAWAY, false, false, Some((11, true))),
            ];
            assert_eq!((&seen[..], ended), (&expected[..], 1), "cut every {step} bytes");
        }
    }

    #[test]
    fn header_block_is_open_until_its_last_byte() {
        let mut scanner = Scanner::new(0);
        let block = frame(HEADERS, END_HEADERS, b"abc");
        scanner.feed(&block[..8], |_| {});
        assert!(!scanner.is_in_block());
        scanner.feed(&block[8..11], |_| {});
        assert!(scanner.is_in_block());
        assert!(scanner.feed(&block[11..], |_| {}));
        assert!(!scanner.is_in_block());
    }
}
