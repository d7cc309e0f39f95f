//! Transport checksums that are still to be filled in when a frame is sent.

use crate::ffi::port::{CHECKSUM_IPV4, CHECKSUM_L3_SHIFT, CHECKSUM_UDP};
use crate::mbuf::Mbuf;
use hairpin_core::flow::Protocol;
use hairpin_core::frame::{Batch, Checksum, Frame};
use hairpin_core::wire::{self, Parsed, Transport};

/// Sees to it that the frames' checksums are, or will be, complete: filled in here, or by the device if it does that.
#[inline]
pub(crate) fn settle(batch: &mut Batch<Mbuf>, device: bool) {
    for frame in batch.iter_mut().filter(|frame| frame.meta().checksum == Checksum::Partial) {
        settle_one(frame, device);
    }
}

/// A frame whose headers say nothing of a transport keeps what is there: it is not known where its checksum is.
#[cold]
fn settle_one(frame: &mut Mbuf, device: bool) {
    let Ok(Parsed::Transport(at)) = wire::parse(frame.bytes()) else { return };
    if device {
        frame.leave_checksum(note(&at));
    } else {
        at.fill_checksum(frame.bytes_mut());
        frame.meta_mut().checksum = Checksum::Complete;
    }
}

/// The transmit flags for the device. The pseudo-header's sum is in its place already, as DPDK wants it.
fn note(at: &Transport) -> u32 {
    let family = if at.key.is_ipv4() { CHECKSUM_IPV4 } else { 0 };
    let protocol = if at.key.protocol == Protocol::Udp { CHECKSUM_UDP } else { 0 };
    at.l3 as u32 | ((at.l4 - at.l3) as u32) << CHECKSUM_L3_SHIFT | family | protocol
}
