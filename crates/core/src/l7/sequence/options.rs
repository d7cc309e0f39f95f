//! SACK options of a header that a map translates.

use crate::wire::tcp::{OPTION_SACK, Options};

/// Option kind: no operation.
const NO_OPERATION: u8 = 1;
/// Bytes of a SACK block: its left and its right edge.
const BLOCK: usize = 8;

/// Carries the SACK blocks in `options` (a TCP header's bytes from the 20th on) from the receiver's sequence numbers, which
/// they speak of, to the sender's, by `block` ([`SequenceMap::sack`](super::SequenceMap::sack)). Blocks of which
/// nothing is left are removed, those behind them move up, and the room is filled with no-operation options: the header
/// keeps its length. Says whether a byte has changed; the checksum is the caller's.
///
/// As the kernel does, a SACK option whose length is not that of one or more whole blocks is ignored.
pub fn translate_sack(options: &mut [u8], block: impl Fn(u32, u32) -> Option<(u32, u32)>) -> bool {
    let mut changed = false;
    let mut from = 0;
    while let Some(option) = next_sack(options, from) {
        from = option.end;
        let data = &mut options[option];
        if data.len() < 2 + BLOCK || !(data.len() - 2).is_multiple_of(BLOCK) {
            continue;
        }
        let mut kept = 2;
        for at in (2..data.len()).step_by(BLOCK) {
            let left = u32::from_be_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
            let right = u32::from_be_bytes([data[at + 4], data[at + 5], data[at + 6], data[at + 7]]);
            let translated = block(left, right);
            changed |= translated != Some((left, right));
            if let Some((left, right)) = translated {
                data[kept..kept + 4].copy_from_slice(&left.to_be_bytes());
                data[kept + 4..kept + BLOCK].copy_from_slice(&right.to_be_bytes());
                kept += BLOCK;
            }
        }
        // An option without blocks says nothing, and some stacks do not skip it.
        let end = if kept > 2 { kept } else { 0 };
        data[end..].fill(NO_OPERATION);
        if end > 0 {
            data[1] = end as u8;
        }
    }
    changed
}

/// Replaces all SACK options in `options` (a TCP header's bytes from the 20th on), well-formed or not, by no-operation
/// options, for a peer that has not agreed to SACK. Says whether there was one; the checksum is the caller's.
pub fn strip_sack(options: &mut [u8]) -> bool {
    let mut from = 0;
    while let Some(option) = next_sack(options, from) {
        from = option.end;
        options[option].fill(NO_OPERATION);
    }
    from > 0
}

/// The bytes, kind and length included, of the first SACK option that starts at or behind `from`, where an option starts.
fn next_sack(options: &[u8], from: usize) -> Option<core::ops::Range<usize>> {
    let option = Options::new(options.get(from..)?).find(|option| option.kind == OPTION_SACK)?;
    let start = from + option.offset - 2;
    Some(start..start + 2 + option.length)
}
