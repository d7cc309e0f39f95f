//! TCP mechanics: segments, sequence numbers, retransmission of bytes that Hairpin owns, and forwarding of segments.

pub(super) mod numbers;
pub(super) mod pass;
pub(super) mod path;
pub(super) mod segment;
pub(super) mod send;
pub(super) mod timestamps;
