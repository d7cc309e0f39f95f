//! What entries are made of: the key of a flow, a request that is sent once more, the offload range of a pair of rules.

use super::buffers::Buffer;
use crate::flow::{Direction, Endpoint, FlowKey, Protocol};
use crate::stored::{Vacant, stored};
use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// The key of a flow, which is of TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct TcpKey {
    pub(in crate::l7::splice) source: Endpoint,
    pub(in crate::l7::splice) destination: Endpoint,
}

stored!(TcpKey: source, destination);

impl TcpKey {
    pub(in crate::l7::splice) fn of(key: &FlowKey) -> TcpKey {
        TcpKey { source: key.source, destination: key.destination }
    }

    /// As other code names it.
    #[inline]
    pub(in crate::l7::splice) fn flow(&self) -> FlowKey {
        FlowKey { source: self.source, destination: self.destination, protocol: Protocol::Tcp }
    }

    /// Whether this is the flow's.
    #[inline]
    pub(in crate::l7::splice) fn is(&self, key: &FlowKey) -> bool {
        key.source == self.source && key.destination == self.destination && key.protocol == Protocol::Tcp
    }

    pub(in crate::l7::splice) fn is_ipv4(&self) -> bool {
        self.source.address.is_ipv4()
    }

    /// Whether both ends are of one family.
    pub(in crate::l7::splice) fn is_plausible(&self) -> bool {
        self.source.address.is_ipv4() == self.destination.address.is_ipv4()
    }
}

/// A request that was sent over a connection which its backend had closed meanwhile: to be sent once more.
#[derive(Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct Again {
    pub(in crate::l7::splice) buffer: Buffer,
    /// Bytes of the client's that it stands for.
    pub(in crate::l7::splice) bytes: u32,
}

stored!(Again: buffer, bytes);

impl Vacant for Again {
    const VACANT: Again = Again { buffer: Buffer::VACANT, bytes: 0 };
    fn is_vacant(&self) -> bool {
        self.buffer.is_vacant()
    }
}

/// The offload range that a pair of rules holds for, of one exchange, in the numbers of the end that sends it.
#[derive(Clone, Copy, Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(in crate::l7::splice) struct OffloadRange {
    pub(in crate::l7::splice) first: u32,
    pub(in crate::l7::splice) bytes: u32,
    pub(in crate::l7::splice) from: Direction,
    is_there: bool,
    unused: [u8; 2],
}

stored!(OffloadRange: first, bytes, from, is_there, unused);

impl OffloadRange {
    pub(in crate::l7::splice) fn new(from: Direction, first: u32, bytes: u32) -> OffloadRange {
        OffloadRange { first, bytes, from, is_there: true, unused: [0; 2] }
    }
}

impl Vacant for OffloadRange {
    const VACANT: OffloadRange =
        OffloadRange { first: 0, bytes: 0, from: Direction::FromClient, is_there: false, unused: [0; 2] };
    fn is_vacant(&self) -> bool {
        !self.is_there
    }
}
