//! Connections that the programs set up by themselves, as one worker learns of them.

use crate::abi::{self, Bytes, EndKey, Pending, PendingKey, Report, Reports};
use hairpin_core::engine::{self, Begun, SetUp, SetsUp};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use libbpf_rs::{MapCore, MapHandle};
use std::sync::atomic::Ordering;

/// A worker's queue of reports, and what is half-open.
#[derive(Debug)]
pub(crate) struct KernelSetUp {
    reports: SharedReports,
    pending: MapHandle,
}

/// The queue, in memory that stays mapped.
#[derive(Clone, Copy)]
pub(crate) struct SharedReports(pub(crate) &'static Reports);

impl std::fmt::Debug for SharedReports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Reports { head, tail, made, allowed, .. } = self.0;
        f.debug_struct("Reports")
            .field("head", head)
            .field("tail", tail)
            .field("made", made)
            .field("allowed", allowed)
            .finish()
    }
}

impl KernelSetUp {
    pub(crate) fn new(reports: SharedReports, pending: MapHandle) -> KernelSetUp {
        KernelSetUp { reports, pending }
    }

    /// The oldest report, if it is whole.
    fn oldest(&self) -> Option<Report> {
        let all = self.reports.0;
        let tail = all.tail.load(Ordering::Relaxed);
        let words = &all.reports[tail as usize % abi::REPORTS_MAX];
        // Written last.
        if words[0].load(Ordering::Acquire) != tail.wrapping_add(1) {
            return None;
        }
        let mut report = Report::zeroed();
        for (bytes, word) in report.bytes_mut().as_chunks_mut::<4>().0.iter_mut().zip(words) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        Some(report)
    }
}

impl SetsUp for KernelSetUp {
    fn next(&mut self) -> Option<engine::Report> {
        loop {
            let report = self.oldest()?;
            match (report.kind, flow(&report.key)) {
                (abi::REPORT_SET_UP, Some(key)) => {
                    let set_up = SetUp { key, backend: report.backend, answered: report.answered != 0 };
                    return Some(engine::Report::SetUp(set_up));
                }
                (abi::REPORT_SEGMENT, Some(key)) => {
                    return Some(engine::Report::Segment { key, flags: report.tcp_flags });
                }
                (abi::REPORT_BEGUN, Some(key)) => {
                    let Report { backend, proof, sent, .. } = report;
                    let begun = Begun { backend, answered: report.answered != 0, proof, sent };
                    return Some(engine::Report::Begun { key, begun });
                }
                _ => self.done(),
            }
        }
    }

    fn done(&mut self) {
        let tail = &self.reports.0.tail;
        tail.store(tail.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    fn take(&mut self, key: &FlowKey) -> Option<Begun> {
        let of = |end| EndKey::of(end, key.protocol);
        let asked = PendingKey { client: of(&key.source), vip: of(&key.destination) };
        let found = self.pending.lookup_and_delete(asked.bytes()).ok().flatten()?;
        let pending = Pending::from_bytes(&found)?;
        let Pending { backend, proof, sent, .. } = pending;
        // One that its client has ended has been told, and is over if the worker has it no longer.
        (pending.answered != abi::PENDING_ENDED).then_some(Begun {
            backend,
            answered: pending.answered != 0,
            proof,
            sent,
        })
    }

    fn grant(&mut self, room: u32) {
        let all = self.reports.0;
        // Those that are reported and not taken yet are to find room, too.
        let made = all.made.load(Ordering::Relaxed);
        let waiting = all.head.load(Ordering::Relaxed).wrapping_sub(all.tail.load(Ordering::Relaxed));
        let allowed = made.wrapping_add(room.min(1 << 30).saturating_sub(waiting));
        if all.allowed.load(Ordering::Relaxed) != allowed {
            all.allowed.store(allowed, Ordering::Relaxed);
        }
    }
}

/// The client's flow; `None` if the protocol is none of ours.
pub(crate) fn flow(key: &PendingKey) -> Option<FlowKey> {
    let end = |end: &EndKey| Endpoint { address: Address(end.address), port: u16::from_be_bytes(end.port) };
    let protocol = [Protocol::Tcp, Protocol::Udp].into_iter().find(|&known| known as u8 == key.client.protocol)?;
    Some(FlowKey { source: end(&key.client), destination: end(&key.vip), protocol })
}
