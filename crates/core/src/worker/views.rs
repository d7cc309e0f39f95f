//! The first pass over a burst: what each frame is, and its key.

use super::Drop;
use crate::flow::FlowKey;
use crate::frame::{Arrival, BATCH_MAX, Batch, Frame, Meta};
use crate::wire::plain::{self, PlainPacket};
use crate::wire::{self, IcmpError, Malformed, Parsed, Transport};
use arrayvec::ArrayVec;

/// The first pass's view of a frame.
pub(super) enum FrameView {
    /// A packet to forward.
    Packet(Transport),
    /// A packet we sent, come back because its way out takes no more than so many bytes.
    TooBig(Transport, u16),
    /// An ICMP error about a packet we sent.
    Icmp(IcmpError),
    /// Not ours.
    Other,
    /// To be dropped.
    Bad(Result<Drop, Malformed>),
}

impl FrameView {
    pub(super) fn of<F: Frame>(frame: &F) -> FrameView {
        let arrival = frame.meta().arrival;
        if arrival == Arrival::Received
            && frame.is_examined()
            && let Some(at) = wire::examined(frame.bytes())
        {
            return FrameView::Packet(at);
        }
        match (wire::parse(frame.bytes()), arrival) {
            (Err(malformed), _) => FrameView::Bad(Err(malformed)),
            (Ok(Parsed::Transport(at)), Arrival::TooBig { mtu }) => FrameView::TooBig(at, mtu.get()),
            (Ok(_), Arrival::TooBig { .. }) => FrameView::Bad(Ok(Drop::TooBig)),
            (Ok(Parsed::Transport(at)), Arrival::Received) if at.has_impossible_flags() => {
                FrameView::Bad(Ok(Drop::Flags))
            }
            (Ok(Parsed::Transport(at)), Arrival::Received) => FrameView::Packet(at),
            (Ok(Parsed::IcmpError(error)), Arrival::Received) => FrameView::Icmp(error),
            (Ok(Parsed::Fragment), Arrival::Received) => FrameView::Bad(Ok(Drop::Fragment)),
            (Ok(Parsed::Other), Arrival::Received) => FrameView::Other,
        }
    }

    /// The flow by which its connection is found.
    pub(super) fn key(&self) -> Option<FlowKey> {
        match self {
            FrameView::Packet(at) => Some(at.key),
            FrameView::TooBig(at, _) => Some(at.key.reversed()),
            FrameView::Icmp(error) => Some(error.quoted.reversed()),
            FrameView::Other | FrameView::Bad(_) => None,
        }
    }
}

/// Those of a burst that are not plain.
pub(super) type Views = ArrayVec<FrameView, BATCH_MAX>;

/// The first pass over a burst: the keys of all, what there is of each that is plain, and views of the others.
#[inline(always)]
pub(super) fn look<F: Frame>(
    rx: &Batch<F>,
    keys: &mut [FlowKey],
    plains: &mut [Option<PlainPacket>; BATCH_MAX],
    views: &mut Views,
) {
    let plain = |frame: &F| match frame.is_examined() {
        true => plain::examined(frame.bytes()),
        false => plain::honest(frame.bytes()),
    };
    for (frame, (key, room)) in rx.iter().zip(keys.iter_mut().zip(plains)) {
        if let Some((plain, ends)) = plain(frame)
            && frame.meta().arrival == Arrival::Received
        {
            (*key, *room) = (ends.key(), Some(plain));
        } else {
            *key = look_closely(frame, views);
        }
    }
}

/// The first pass over a frame that is not plain: returns its key and adds its view.
#[inline(never)]
pub(super) fn look_closely<F: Frame>(frame: &F, views: &mut Views) -> FlowKey {
    let view = FrameView::of(frame);
    // no connection has the key that stands for none
    let key = view.key().unwrap_or_default();
    views.push(view);
    key
}

/// Packets and bytes a frame stands for: a super-packet's segments one by one, headers of each.
pub(crate) fn volume(meta: &Meta, at: &Transport) -> (u64, u64) {
    let whole = (at.end - at.l3) as u64;
    let payload = (at.end - at.payload) as u64;
    let segments = match u64::from(meta.gso_size) {
        0 => 1,
        size => payload.div_ceil(size).max(1),
    };
    (segments, whole + (segments - 1) * (at.payload - at.l3) as u64)
}

/// Packets and bytes that a frame with a plain packet stands for.
#[inline(always)]
pub(super) fn volume_of(meta: &Meta, plain: PlainPacket) -> (u64, u64) {
    if meta.gso_size == 0 { (1, u64::from(plain.length())) } else { volume(meta, &plain.transport(FlowKey::default())) }
}
