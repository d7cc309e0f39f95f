//! Rings of frames between threads.

use crate::eal::Eal;
use crate::error::Error;
use crate::ffi::port::{self, RawRing};
use crate::mbuf::{Mbuf, forget_first};
use hairpin_core::frame::Batch;
use std::ffi::CString;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// How many threads have an end of a ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RingKind {
    /// One sends, one receives.
    #[default]
    OneToOne,
    /// Several send ([`RingSender::another`]), one receives.
    ManyToOne,
    /// One sends, several receive ([`RingReceiver::another`]).
    OneToMany,
    /// Several send, several receive.
    ManyToMany,
}

impl RingKind {
    fn many_senders(self) -> bool {
        matches!(self, RingKind::ManyToOne | RingKind::ManyToMany)
    }

    fn many_receivers(self) -> bool {
        matches!(self, RingKind::OneToMany | RingKind::ManyToMany)
    }
}

/// A ring (`rte_ring`) of a fixed size; what is in it when both ends are gone goes back to its pools. Frames keep what is
/// known of them ([`Frame::meta`](hairpin_core::frame::Frame::meta)).
#[derive(Debug)]
pub struct Ring {
    raw: NonNull<RawRing>,
    kind: RingKind,
    size: u32,
}

// SAFETY: an rte_ring is made to be used by several threads; the owners of the ends keep to the number allowed at each.
unsafe impl Send for Ring {}
// SAFETY: as above.
unsafe impl Sync for Ring {}

static NEXT: AtomicU32 = AtomicU32::new(0);

impl Ring {
    /// The two ends of a new ring in which `size` frames fit, 1 to 2^20.
    ///
    /// # Errors
    /// [`Error::Call`] when there is no memory, or `size` makes no sense.
    pub fn create(_: &Eal, size: u32, kind: RingKind) -> Result<(RingSender, RingReceiver), Error> {
        const WHAT: &str = "making a ring";
        if !(1..=1 << 20).contains(&size) {
            return Err(Error::Call { what: "a ring's size is 1 to 2^20 frames", code: libc::EINVAL });
        }
        let name = CString::new(format!("ring-{}", NEXT.fetch_add(1, Ordering::Relaxed))).unwrap_or_default();
        let (many_senders, many_receivers) = (i32::from(kind.many_senders()), i32::from(kind.many_receivers()));
        let mut raw = std::ptr::null_mut();
        // SAFETY: the name is a C string; the ring is written when 0 is returned.
        let code =
            unsafe { port::hairpin_ring_create(name.as_ptr(), size, many_senders, many_receivers, -1, &raw mut raw) };
        Error::of(code, WHAT)?;
        let raw = NonNull::new(raw).ok_or(Error::Call { what: WHAT, code: libc::EIO })?;
        let ring = Arc::new(Ring { raw, kind, size });
        Ok((RingSender(Arc::clone(&ring)), RingReceiver(ring)))
    }

    fn len(&self) -> usize {
        // SAFETY: the ring is there.
        unsafe { port::hairpin_ring_count(self.raw.as_ptr()) as usize }
    }

    fn receive(&self, out: &mut Batch<Mbuf>) -> usize {
        let raw = self.raw.as_ptr();
        // SAFETY: the shim gives as many frames as it says; whole ones were put in.
        unsafe { Mbuf::append(out, usize::MAX, |first, most| port::hairpin_ring_receive(raw, first, most)) }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let mut left = Batch::new();
        while self.receive(&mut left) > 0 {
            Mbuf::free_burst(&mut left);
        }
        // SAFETY: there is no sender and no receiver any more.
        unsafe { port::hairpin_ring_free(self.raw.as_ptr()) }
    }
}

/// The end at which frames go in.
#[derive(Debug)]
pub struct RingSender(Arc<Ring>);

impl RingSender {
    /// Sends from the front of the batch; what finds no room stays in it. Returns how many went.
    pub fn send(&mut self, batch: &mut Batch<Mbuf>) -> usize {
        // SAFETY: those that went are forgotten; the sender is alone, or the ring is made for several.
        let sent = unsafe { port::hairpin_ring_send(self.0.raw.as_ptr(), batch.as_ptr(), batch.len() as u32) } as usize;
        forget_first(batch, sent);
        sent
    }

    /// One more, if the ring is made for several.
    pub fn another(&self) -> Option<RingSender> {
        self.0.kind.many_senders().then(|| RingSender(Arc::clone(&self.0)))
    }

    /// How many frames are in it now, about.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many fit.
    pub fn size(&self) -> usize {
        self.0.size as usize
    }
}

/// The end at which frames come out.
#[derive(Debug)]
pub struct RingReceiver(Arc<Ring>);

impl RingReceiver {
    /// Adds what is there to `out`, as far as there is room in it; returns how many.
    pub fn receive(&mut self, out: &mut Batch<Mbuf>) -> usize {
        self.0.receive(out)
    }

    /// One more, if the ring is made for several.
    pub fn another(&self) -> Option<RingReceiver> {
        self.0.kind.many_receivers().then(|| RingReceiver(Arc::clone(&self.0)))
    }

    /// How many frames are in it now, about.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none now.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
