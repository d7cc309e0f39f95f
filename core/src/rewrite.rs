//! What a rule changes in a packet, and doing it in software.

use crate::flow::Endpoint;

/// New ends of a flow, and what is added to its TCP numbers (wrapping).
///
/// The same frame under the same rewrite gives the same bytes above layer 2 here, in BPF (`linux/bpf/rewrite.h`) and in
/// the modelled NIC (invariant 4). TTL or hop limit is always lowered by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rewrite {
    /// The new source.
    pub source: Endpoint,
    /// The new destination.
    pub destination: Endpoint,
    /// Added to the sequence number.
    pub sequence_delta: u32,
    /// Added to the acknowledgement number and to both edges of every SACK block; the acknowledgement number is left
    /// alone when ACK is not set.
    pub acknowledgement_delta: u32,
}
