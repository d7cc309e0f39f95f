//! The TCP header (RFC 9293) and its options.

/// Bytes of a header without options.
pub const HEADER: usize = 20;
/// Offset of the sequence number in the header.
pub const SEQUENCE: usize = 4;
/// Offset of the acknowledgement number in the header.
pub const ACKNOWLEDGEMENT: usize = 8;
/// Offset of the flags in the header.
pub const FLAGS: usize = 13;
/// Offset of the window in the header.
pub const WINDOW: usize = 14;
/// Offset of the checksum in the header.
pub const CHECKSUM: usize = 16;

/// No more data from the sender.
pub const FIN: u8 = 0x01;
/// Synchronise sequence numbers.
pub const SYN: u8 = 0x02;
/// Reset the connection.
pub const RST: u8 = 0x04;
/// Push.
pub const PSH: u8 = 0x08;
/// The acknowledgement number is valid.
pub const ACK: u8 = 0x10;

/// Option kind: nothing, one byte.
pub const OPTION_PADDING: u8 = 1;
/// Option kind: maximum segment size.
pub const OPTION_MSS: u8 = 2;
/// Option kind: window scale (RFC 7323).
pub const OPTION_WINDOW_SCALE: u8 = 3;
/// Option kind: selective acknowledgement permitted (RFC 2018).
pub const OPTION_SACK_PERMITTED: u8 = 4;
/// Option kind: selective acknowledgement (RFC 2018).
pub const OPTION_SACK: u8 = 5;
/// Option kind: timestamps (RFC 7323, 3.2): the sender's, and the latest of the receiver's that it echoes.
pub const OPTION_TIMESTAMPS: u8 = 8;
/// The first bytes of options that begin with timestamps as RFC 7323, appendix A, recommends: aligned, the sender's value at
/// byte 4, the echo at byte 8.
pub const ALIGNED_TIMESTAMPS: [u8; 4] = [OPTION_PADDING, OPTION_PADDING, OPTION_TIMESTAMPS, 10];
/// Bytes of such options.
pub const TIMESTAMPS: usize = 12;

/// Whether no honest segment has these flags: SYN, FIN and RST together in any way, or none of them and no ACK.
#[inline(always)]
pub(crate) fn are_impossible(flags: u8) -> bool {
    let odd = flags & (SYN | FIN | RST);
    odd & SYN != 0 && odd != SYN || flags & (SYN | FIN | RST | ACK) == 0
}

/// An option of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpOption {
    /// Its kind, 2 to 255.
    pub kind: u8,
    /// The start of its data, in bytes from the start of the options.
    pub offset: usize,
    /// Bytes of data, 0 to 38.
    pub length: usize,
}

/// The options of a header, in order, without padding. Ends at the end-of-list option and at the first option whose
/// length is impossible: nothing behind that can be trusted.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    options: &'a [u8],
    offset: usize,
}

impl<'a> Options<'a> {
    /// Over `options`: the header's bytes from the 20th on.
    pub fn new(options: &'a [u8]) -> Options<'a> {
        Options { options, offset: 0 }
    }
}

impl Iterator for Options<'_> {
    type Item = TcpOption;

    fn next(&mut self) -> Option<TcpOption> {
        while let Some(&kind) = self.options.get(self.offset) {
            match kind {
                0 => break,
                1 => self.offset += 1,
                _ => {
                    let size = usize::from(*self.options.get(self.offset + 1)?);
                    let offset = self.offset + 2;
                    self.offset += size;
                    if size < 2 || self.offset > self.options.len() {
                        self.offset = self.options.len();
                        break;
                    }
                    return Some(TcpOption { kind, offset, length: size - 2 });
                }
            }
        }
        None
    }
}

/// Offsets, from the start of `options`, of both edges of every SACK block (four bytes each, at any alignment). As the
/// kernel does, a SACK option whose length is not that of one or more whole blocks is ignored.
pub fn sack_edges(options: &[u8]) -> impl Iterator<Item = usize> {
    Options::new(options)
        .filter(|option| option.kind == OPTION_SACK && option.length >= 8 && option.length.is_multiple_of(8))
        .flat_map(|option| (option.offset..option.offset + option.length).step_by(4))
}

/// Offsets, from the start of `options`, of the values of every timestamps option, each followed by its echo, at any alignment.
pub fn timestamps(options: &[u8]) -> impl Iterator<Item = usize> {
    Options::new(options)
        .filter(|option| option.kind == OPTION_TIMESTAMPS && option.length == TIMESTAMPS - 4)
        .map(|option| option.offset)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn finds_sack_edges_at_any_alignment() {
        let options = [1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(sack_edges(&options).collect::<Vec<_>>(), [3, 7]);
    }

    #[test]
    fn finds_timestamps_at_any_alignment() {
        let mut options = [0; 28];
        options[..4].copy_from_slice(&ALIGNED_TIMESTAMPS);
        options[12..16].copy_from_slice(&[OPTION_TIMESTAMPS, 9, 0, 0]);
        options[21..23].copy_from_slice(&[OPTION_PADDING, OPTION_TIMESTAMPS]);
        assert_eq!(timestamps(&options).collect::<Vec<_>>(), [4], "one of 9 bytes is none, one of no length ends all");
        let odd = [
            OPTION_TIMESTAMPS,
            10,
            0,
            0,
            0,
            1,
            0,
            0,
            0,
            2,
            OPTION_PADDING,
            OPTION_TIMESTAMPS,
            10,
            0,
            0,
            0,
            3,
            0,
            0,
            0,
            4,
        ];
        assert_eq!(timestamps(&odd).collect::<Vec<_>>(), [2, 13]);
    }

    #[test]
    fn stops_at_what_is_malformed() {
        assert_eq!(Options::new(&[3, 0, 5, 10]).count(), 0, "length 0");
        assert_eq!(Options::new(&[3, 1, 5, 10]).count(), 0, "length 1");
        assert_eq!(Options::new(&[2, 4, 5, 0xb4, 5, 10, 0]).count(), 1, "beyond the end");
        assert_eq!(Options::new(&[5]).count(), 0, "no length");
        assert_eq!(Options::new(&[0, 2, 4, 0, 0]).count(), 0, "end of list");
    }

    #[test]
    fn ignores_sack_of_odd_length() {
        let mut options = [0; 16];
        options[..2].copy_from_slice(&[5, 12]);
        assert_eq!(sack_edges(&options).count(), 0);
        options[..2].copy_from_slice(&[5, 2]);
        assert_eq!(sack_edges(&options).count(), 0);
    }
}
