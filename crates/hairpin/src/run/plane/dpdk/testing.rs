//! The common parts of the plane's tests: DPDK, which starts once in a process, and frames.

use crate::run::eal;
use hairpin_core::frame::{Batch, Frame, FrameIo, Meta};
use hairpin_dpdk::{Eal, EalOptions, EalPages, Mbuf, MbufPool, PoolOptions};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// DPDK's devices are the process's: one test at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

pub(super) struct DpdkFixture {
    pub(super) eal: Eal,
    pub(super) pool: MbufPool,
    _alone: MutexGuard<'static, ()>,
}

impl DpdkFixture {
    /// With as many packet buffers.
    pub(super) fn new(mbufs: u32) -> DpdkFixture {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let options = EalOptions { memory_mib: 128, pages: EalPages::None, ..EalOptions::default() };
        let eal = eal::started(options).expect("DPDK starts");
        let options = PoolOptions { name: "test".into(), mbufs, cache: 0, ..PoolOptions::default() };
        let pool = MbufPool::create(&eal, options).expect("a pool");
        DpdkFixture { eal, pool, _alone: alone }
    }

    /// So many frames of these bytes, to leave by a port.
    pub(super) fn frames(&self, count: usize, port: u16, bytes: &[u8]) -> Batch<Mbuf> {
        let frame = |_| {
            let mut frame = self.pool.allocate().expect("a packet buffer");
            assert!(frame.resize(bytes.len()));
            frame.bytes_mut().copy_from_slice(bytes);
            *frame.meta_mut() = Meta { port, ..Meta::default() };
            frame
        };
        (0..count).map(frame).collect()
    }
}

/// Receives all that is there, and gives it back; how many that was.
pub(super) fn drained(from: &mut impl FrameIo<Frame = Mbuf>) -> usize {
    let (mut batch, mut all) = (Batch::new(), 0);
    loop {
        from.receive(&mut batch);
        if batch.is_empty() {
            return all;
        }
        all += batch.len();
        batch.clear();
    }
}
