//! Frames as a plane hands them over, and the interface to the plane.

mod replay;

pub use replay::{Replay, ReplayFrame};

use arrayvec::ArrayVec;
use core::num::NonZeroU16;

/// Frames in a batch at most.
pub const BATCH_MAX: usize = 64;

/// Bytes of a frame whose IP packet is as long as one can be, behind an Ethernet header with two VLAN tags.
pub const ROOM: usize = 14 + 8 + 65_535;

/// A burst of frames.
pub type Batch<F> = ArrayVec<F, BATCH_MAX>;

/// Why a frame reached the worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrival {
    /// It arrived on an interface and no rule of the engine took it.
    #[default]
    Received,
    /// The worker sent it (already translated) and its egress takes at most `mtu` bytes of IP packet.
    TooBig {
        /// Largest IP packet the egress takes, in bytes. Never 0, which makes [`Meta`] a word shorter.
        mtu: NonZeroU16,
    },
}

impl Arrival {
    /// A frame of the worker's that its egress does not take; an `mtu` of 0 is taken for 1.
    pub fn too_big(mtu: u16) -> Arrival {
        Arrival::TooBig { mtu: NonZeroU16::new(mtu).unwrap_or(NonZeroU16::MIN) }
    }
}

/// The plane's action for a frame in the transmit batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Egress {
    /// Route it by its IP destination. Its Ethernet addresses are the plane's to fill in.
    #[default]
    Route,
    /// Send it to the neighbour that has the address of the backend with this number, whatever its IP destination.
    Direct(u16),
    /// It is not ours: it passes, unchanged, to the stack that handles packets of the interface it came in on.
    Kernel,
}

/// The state of the transport checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Checksum {
    /// In the frame in full (right or wrong, as it came).
    #[default]
    Complete,
    /// Only the pseudo-header's sum is there; the last device fills in the rest.
    Partial,
}

/// A plane's metadata of a frame, beside its bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Meta {
    /// The interface it came in on, as the plane counts them. For a frame of a worker's own, the interface from which its
    /// way is looked up, as if it had come in there: a routing rule may ask for it. It must be one that the plane has, so
    /// take the ticket of a frame of the same connection, or of the frame that this one answers.
    pub port: u16,
    /// The plane's own mark, kept as it is with the frame; 0 for a frame of a worker's own.
    pub ticket: u32,
    /// Why it is here.
    pub arrival: Arrival,
    /// The plane's action for it.
    pub egress: Egress,
    /// State of the transport checksum.
    pub checksum: Checksum,
    /// Payload bytes per segment of a super-packet; 0: an ordinary packet. A TCP frame may become one, or be made one:
    /// planes read its headers. A packet with a payload no longer than this is an ordinary packet, whatever this says.
    pub gso_size: u16,
}

impl Meta {
    /// Whether it says what it says of most frames: [`Frame::is_ordinary`].
    #[inline(always)]
    pub fn is_ordinary(&self) -> bool {
        self.arrival == Arrival::Received && self.checksum == Checksum::Complete && self.gso_size == 0
    }
}

/// One frame: owned bytes from the Ethernet header on, up to 64 KiB of IP packet where the plane has super-packets
/// ([`FrameIo::room`]). Dropping it returns it to its plane.
pub trait Frame {
    /// Whether [`Meta::ticket`] of a frame received may be a flow engine's mark ([`Worker::go_by_marks`]). Where it
    /// cannot be, no worker spends time on a check.
    ///
    /// [`Worker::go_by_marks`]: crate::worker::Worker::go_by_marks
    const MARKS: bool = false;
    /// Whether [`Meta::ticket`] of a frame received is a ticket: the plane waits for a worker to have finished with it. Where it
    /// is not, no event loop reads it.
    const TICKETS: bool = true;

    /// The frame, from the Ethernet header on.
    fn bytes(&self) -> &[u8];
    /// The frame, to change in place.
    fn bytes_mut(&mut self) -> &mut [u8];
    /// Makes the frame `length` bytes long, keeping what it can; new bytes are unspecified. `false`, and nothing
    /// changed, if there is no room.
    fn resize(&mut self, length: usize) -> bool;
    /// The frame's metadata.
    fn meta(&self) -> &Meta;
    /// The frame's metadata, to change.
    fn meta_mut(&mut self) -> &mut Meta;
    /// Whether the link layer has checked the headers, and [`wire::examined`](crate::wire::examined) may read them without
    /// checking them again. It holds for a received frame until its bytes change.
    #[inline(always)]
    fn is_examined(&self) -> bool {
        false
    }
    /// Sets [`Frame::is_examined`], where frames of this kind can keep it.
    #[inline(always)]
    fn set_examined(&mut self, _examined: bool) {}
    /// Whether it is what most are: a packet received as it is, its checksum complete.
    #[inline(always)]
    fn is_ordinary(&self) -> bool {
        self.meta().is_ordinary()
    }
}

/// A source and sink of frames: TAP devices, DPDK ports, the simulator's links.
pub trait FrameIo {
    /// This plane's frames.
    type Frame: Frame;
    /// Adds the frames that are there to `out`, up to its capacity; never waits.
    fn receive(&mut self, out: &mut Batch<Self::Frame>);
    /// Sends; what could not be sent stays in `batch`.
    fn transmit(&mut self, batch: &mut Batch<Self::Frame>);
    /// An empty frame to fill, if there is one: no bytes, [`Meta::default`], room for [`FrameIo::room`] bytes
    /// ([`Frame::resize`]). Frames come from the same store that [`FrameIo::receive`] fills: a caller that keeps many
    /// for long keeps the plane from receiving.
    fn allocate(&mut self) -> Option<Self::Frame>;
    /// Bytes of the longest frame that [`FrameIo::allocate`] gives, at least that of an ordinary packet on every egress.
    /// The default is a super-packet: 65,535 bytes of IP packet behind an Ethernet header with two VLAN tags. One that
    /// passes frames on says what the plane behind it says. Frames that are received may have less: what they have to spare
    /// only [`Frame::resize`] knows.
    fn room(&self) -> usize {
        ROOM
    }
}

/// A frame in ordinary memory: for tests, fuzzing and the simulator.
#[derive(Clone, Debug, Default)]
pub struct VecFrame {
    /// The bytes.
    pub data: alloc::vec::Vec<u8>,
    /// The metadata.
    pub meta: Meta,
    examined: bool,
}

impl VecFrame {
    /// A frame of these bytes.
    pub fn new(data: &[u8]) -> VecFrame {
        VecFrame { data: data.to_vec(), ..VecFrame::default() }
    }
}

impl Frame for VecFrame {
    const MARKS: bool = true;

    fn bytes(&self) -> &[u8] {
        &self.data
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.data
    }
    fn resize(&mut self, length: usize) -> bool {
        let fits = length <= 65_536 + 64;
        if fits {
            self.data.resize(length, 0);
        }
        fits
    }
    fn meta(&self) -> &Meta {
        &self.meta
    }
    fn meta_mut(&mut self) -> &mut Meta {
        &mut self.meta
    }
    fn is_examined(&self) -> bool {
        self.examined
    }
    fn set_examined(&mut self, examined: bool) {
        self.examined = examined;
    }
}
