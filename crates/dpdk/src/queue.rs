//! A queue pair of a port, which one thread uses.

use crate::checksum;
use crate::ffi::port::{self};
use crate::mbuf::{Chains, Mbuf, forget_first};
use crate::pool::MbufPool;
use crate::port::{Chained, Inner};
use crate::segment::Cut;
use hairpin_core::frame::Batch;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A receive queue and a transmit queue of a port, for one thread at a time.
///
/// The thread should be registered with EAL ([`Eal::register_thread`](crate::Eal::register_thread)): only then do pools
/// have a cache for it.
#[derive(Debug)]
pub struct PortQueue {
    pub(crate) port: Arc<Inner>,
    pub(crate) id: u16,
    pub(crate) index: u16,
    /// The device fills in checksums.
    pub(crate) checksums: bool,
    pub(crate) chains: Chains,
}

impl PortQueue {
    /// Adds frames that are there to `out`, as far as there is room in it, and returns how many. Their
    /// [`Meta::ticket`](hairpin_core::frame::Meta::ticket) is the mark that a rule of the port has given them, or 0.
    /// Never waits.
    pub fn receive(&mut self, out: &mut Batch<Mbuf>) -> usize {
        self.receive_as(0, usize::MAX, out)
    }

    /// [`PortQueue::receive`] of `most` frames at most; `port` is where they say that they come from
    /// ([`Meta::port`](hairpin_core::frame::Meta::port)).
    #[inline]
    pub(crate) fn receive_as(&mut self, port: u16, most: usize, out: &mut Batch<Mbuf>) -> usize {
        let (id, index) = (self.id, self.index);
        // SAFETY: the driver gives as many mbufs as it says, at most as many as it is told; the queue is ours.
        unsafe {
            Mbuf::append_fresh(out, (port, most), &mut self.chains, |first, most| {
                port::hairpin_queue_receive(id, index, first, most)
            })
        }
    }

    /// Sends from the front of the batch; what the device does not take now stays in it. Returns how many went.
    ///
    /// Checksums that are [`Partial`](hairpin_core::frame::Checksum::Partial) are completed, by the device if it can do
    /// that, otherwise here. TCP super-packets are cut; of one that does not go as a whole the rest stays. A driver
    /// refuses or drops a frame that is longer than its link takes: a router keeps to [`Port::mtu`](crate::Port::mtu).
    pub fn transmit(&mut self, batch: &mut Batch<Mbuf>) -> usize {
        let (_, finished) = Mbuf::ways(batch);
        self.transmit_as(finished, batch)
    }

    /// [`PortQueue::transmit`]; `finished` says whether there is nothing left to be done to the frames ([`Mbuf::ways`]).
    #[inline]
    pub(crate) fn transmit_as(&mut self, finished: bool, batch: &mut Batch<Mbuf>) -> usize {
        if finished { self.send(batch) } else { self.transmit_unfinished(batch) }
    }

    /// Sends frames that are ready.
    #[inline]
    fn send(&mut self, batch: &mut Batch<Mbuf>) -> usize {
        // SAFETY: those that went are forgotten; the queue is ours.
        let sent = unsafe { port::hairpin_queue_transmit(self.id, self.index, batch.as_mut_ptr(), batch.len() as u32) }
            as usize;
        let sent = sent.min(batch.len());
        forget_first(batch, sent);
        sent
    }

    #[cold]
    fn transmit_unfinished(&mut self, batch: &mut Batch<Mbuf>) -> usize {
        let mut sent = 0;
        loop {
            // Those up to the next super-packet.
            let cut = batch.iter().enumerate().find_map(|(place, frame)| Some((place, Cut::of(frame)?)));
            let Some((place, cut)) = cut else {
                checksum::settle(batch, self.checksums);
                return sent + self.send(batch);
            };
            let mut plain: Batch<Mbuf> = batch.drain(..place).collect();
            checksum::settle(&mut plain, self.checksums);
            sent += self.send(&mut plain);
            if !plain.is_empty() {
                plain.extend(batch.drain(..));
                *batch = plain;
                return sent;
            }
            let Some(super_packet) = batch.first_mut() else { return sent };
            if !self.send_cut(super_packet, cut) {
                return sent;
            }
            batch.remove(0);
            sent += 1;
        }
    }

    /// Sends a super-packet's segments. `false`: not all of them; the rest is still in it.
    fn send_cut(&mut self, super_packet: &mut Mbuf, cut: Cut) -> bool {
        let mut gone = 0;
        let mut segments = Batch::new();
        while gone < cut.segments() {
            let wanted = (cut.segments() - gone).min(segments.capacity());
            self.port.pool.allocate_burst(&mut segments, wanted);
            let written = |(place, segment): (usize, &mut Mbuf)| cut.write(super_packet, gone + place, segment);
            let made = segments.iter_mut().enumerate().map(written).take_while(|written| *written).count();
            segments.truncate(made);
            gone += self.send(&mut segments);
            // The ring is full, or the pool empty.
            if !segments.is_empty() || made < wanted {
                break;
            }
        }
        gone >= cut.segments() || {
            cut.take(super_packet, gone);
            false
        }
    }

    /// DPDK's number of its port.
    pub fn port(&self) -> u16 {
        self.id
    }

    /// Its place among the port's.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// The counters of frames of several segments.
    pub fn chained(&self) -> Chained {
        Chained { joined: self.chains.joined, dropped: self.chains.dropped }
    }

    /// The pool that its received frames are from.
    pub fn pool(&self) -> &MbufPool {
        &self.port.pool
    }
}

impl Drop for PortQueue {
    fn drop(&mut self) {
        if let Some(taken) = self.port.taken.get(usize::from(self.index)) {
            taken.store(false, Ordering::Release);
        }
    }
}
