//! A worker with an HTTP service, and both its neighbours played by a script: every segment written out, every answer
//! looked at.

pub(super) use super::script::Script;
use super::stamped;
use crate::config::{Backend, BackendState, Forwarding, Pool, Service, Snapshot};
use crate::engine::EngineCaps;
use crate::flow::{Endpoint, FlowKey, Protocol, Steering};
use crate::frame::{Batch, Frame, FrameIo, ROOM, VecFrame};
use crate::l4::connection::Connection;
use crate::l7::config::{Action, Edits, Forwarded, Http, HttpLimits, Kind, Route, RouteTerms};
use crate::l7::splice::tcp::segment::{Abilities, Own, Segment};
use crate::l7::splice::{AdoptedSplices, SplicedMemory};
use crate::offload::Always;
use crate::table::slab::boxed;
use crate::table::{AnyTable, Hasher};
use crate::time::{Duration, Time};
use crate::wire::bytes::u32_at;
use crate::wire::{self, Parsed};
use crate::worker::{Adopted, Worker, WorkerOptions};
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::net::{Ipv4Addr, Ipv6Addr};

/// Clients' connections there can be.
pub(super) const SPLICES_MAX: u32 = 64;
/// [`SPLICES_MAX`] of [`OneWorker::small`].
pub(super) const SMALL: u32 = 4;
/// What both ends can, unless a test says otherwise.
pub(super) const USUAL: Abilities = Abilities { mss: 1460, scale: Some(7), sack: true, timestamps: None };

/// A plane whose own frames have room for so many bytes.
struct NoPort(usize);

impl FrameIo for NoPort {
    type Frame = VecFrame;
    fn receive(&mut self, _: &mut Batch<VecFrame>) {}
    fn transmit(&mut self, _: &mut Batch<VecFrame>) {}
    fn allocate(&mut self) -> Option<VecFrame> {
        Some(VecFrame::default())
    }
    fn room(&self) -> usize {
        self.0
    }
}

/// A segment as it left the worker.
#[derive(Clone, Debug)]
pub(super) struct Sent {
    pub(super) from: Endpoint,
    pub(super) to: Endpoint,
    pub(super) segment: Segment,
    pub(super) bytes: Vec<u8>,
    pub(super) abilities: Abilities,
    /// The header's bytes from the 20th on, but for timestamps.
    pub(super) options: Vec<u8>,
    pub(super) gso_size: u16,
}

impl Sent {
    fn of(frame: &VecFrame) -> Sent {
        let Ok(Parsed::Transport(at)) = wire::parse(frame.bytes()) else { panic!("not a packet: {frame:?}") };
        assert_eq!(at.end, frame.bytes().len(), "the frame is as long as its packet");
        let bytes = frame.bytes()[at.payload..at.end].to_vec();
        Sent {
            from: at.key.source,
            to: at.key.destination,
            segment: Segment::of(frame.bytes(), &at),
            bytes,
            abilities: Abilities::of(frame.bytes(), &at),
            options: stamped::strip(&frame.bytes()[at.l4 + 20..at.payload]).to_vec(),
            gso_size: frame.meta().gso_size,
        }
    }

    /// Sequence number, acknowledgement number, flags and payload.
    pub(super) fn what(&self) -> (u32, u32, u8, &str) {
        (self.segment.sequence, self.segment.acknowledgement, self.segment.flags, self.text())
    }

    pub(super) fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes).expect("text")
    }
}

pub(super) fn end(ipv6: bool, last: u8, port: u16) -> Endpoint {
    let address: core::net::IpAddr = match ipv6 {
        true => Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last.into()).into(),
        false => Ipv4Addr::new(10, 0, 0, last).into(),
    };
    Endpoint::new(address, port)
}

/// The least that an HTTP service is.
pub(super) fn http() -> Http {
    Http {
        answers: Default::default(),
        access: [].into(),
        routes: vec![Route {
            conditions: Default::default(),
            action: Action::Forward { groups: vec![(0, 1)].into(), replace_prefix: None },
            edits: Edits::default(),
            terms: RouteTerms::default(),
        }]
        .into(),
        edits: Edits::default(),
        forwarded: Forwarded::default(),
        sticky: None,
        request_id: None,
        tracing: None,
        server_timing: false,
        upgrade: true,
        connect: false,
        proxy_protocol: None,
        reuse: true,
        limits: HttpLimits::default(),
        offload_bytes_min: Some(1 << 20),
        timestamps: true,
    }
}

/// A service of this kind with `count` backends, and a group with as many.
pub(super) fn snapshot(count: u16, kind: Kind) -> Snapshot {
    snapshot_of(false, count, kind)
}

fn snapshot_of(ipv6: bool, count: u16, kind: Kind) -> Snapshot {
    let backend = |number: u16| Backend {
        number,
        name: "backend".into(),
        endpoint: end(ipv6, 100 + number as u8, 8080),
        weight: 1,
        state: BackendState::Enabled,
        is_backup: false,
        connections_max: 0,
    };
    let service = |kind, first: u16| Service {
        endpoint: end(ipv6, 1, 80),
        protocol: Protocol::Tcp,
        kind,
        forwarding: Forwarding::FullNat,
        backends: (first..first + count).map(backend).collect(),
        state: Default::default(),
        name: "web".into(),
        ..Service::vacant()
    };
    let pool = Pool {
        addresses: vec![end(ipv6, 50, 0).address].into(),
        port_first: 20_000,
        port_last: 20_999,
        time_wait: Duration::from_secs(60),
    };
    Snapshot::new(vec![service(kind, 0), service(Kind::Group, count)].into(), pool)
}

fn table() -> AnyTable {
    AnyTable::new(64, Hasher::new([7, 2, 3, 4]))
}

const SEEDS: [u64; 4] = [1, 2, 3, 4];

pub(super) struct OneWorker {
    pub(super) worker: Worker<Always>,
    pub(super) now: Time,
    pub(super) vip: Endpoint,
    /// Bytes that a frame of the worker's own has room for.
    pub(super) room: usize,
    /// What it goes by now.
    pub(super) snapshot: Arc<Snapshot>,
    /// What it went by before.
    pub(super) formers: Vec<Arc<Snapshot>>,
    caps: EngineCaps,
    /// Before each segment another process takes over, unless the engine is at work (`scripts/test` runs all tests so,
    /// too).
    pub(super) restarts: bool,
    /// What steering, and all that is kept, goes by.
    pub(super) secrets: [u64; 4],
    /// Restarts so far.
    processes: u64,
    /// Flows and numbers that ICMP errors have quoted.
    pub(super) notices: Vec<(FlowKey, u32)>,
}

impl OneWorker {
    /// With one backend. Whatever a test leaves behind, [`OneWorker::over`] wants to be gone after a while.
    pub(super) fn new(change: impl FnOnce(&mut Http)) -> OneWorker {
        OneWorker::with_backends(1, change)
    }

    pub(super) fn with_backends(count: u16, change: impl FnOnce(&mut Http)) -> OneWorker {
        let mut kind = http();
        change(&mut kind);
        OneWorker::of(count, Kind::Http(kind.into()))
    }

    /// With a service of this kind and `count` backends of its own, beside a group (number 1) with as many others.
    pub(super) fn of(count: u16, kind: Kind) -> OneWorker {
        OneWorker::with(snapshot(count, kind))
    }

    /// As [`OneWorker::new`], over IPv4 or IPv6.
    pub(super) fn over_ip(ipv6: bool, change: impl FnOnce(&mut Http)) -> OneWorker {
        let mut kind = http();
        change(&mut kind);
        OneWorker::with(snapshot_of(ipv6, 1, Kind::Http(kind.into())))
    }

    /// With these services, of which the first is the one that clients go to.
    pub(super) fn with(snapshot: Snapshot) -> OneWorker {
        OneWorker::before(snapshot, |_| {})
    }

    /// As [`OneWorker::new`], with little memory, which is soon looked through.
    pub(super) fn small() -> OneWorker {
        OneWorker::of_size(SMALL, snapshot(1, Kind::Http(http().into())), |_| {})
    }

    /// As [`OneWorker::new`], before an engine that cannot do all.
    pub(super) fn before_engine(change: impl FnOnce(&mut EngineCaps)) -> OneWorker {
        OneWorker::before(snapshot(1, Kind::Http(http().into())), change)
    }

    fn before(snapshot: Snapshot, change: impl FnOnce(&mut EngineCaps)) -> OneWorker {
        OneWorker::of_size(SPLICES_MAX, snapshot, change)
    }

    fn of_size(connections: u32, mut snapshot: Snapshot, change: impl FnOnce(&mut EngineCaps)) -> OneWorker {
        let vip = snapshot.services[0].endpoint;
        snapshot.id = 1;
        let (snapshot, mut caps) = (Arc::new(snapshot), EngineCaps::full(1000));
        change(&mut caps);
        let now = Time::from_nanos(1_000_000_000_000);
        let options = WorkerOptions {
            caps,
            splices: SplicedMemory::own(connections),
            ..WorkerOptions::new(snapshot.clone(), boxed::<Connection>(32), table(), Always, SEEDS)
        };
        let (worker, _) = Worker::adopt(options, now, &|_| false);
        let restarts = std::env::var_os("HAIRPIN_TEST_RESTARTS").is_some();
        OneWorker {
            worker,
            now,
            vip,
            room: ROOM,
            snapshot,
            formers: Vec::new(),
            caps,
            restarts,
            secrets: SEEDS,
            processes: 0,
            notices: Vec::new(),
        }
    }

    /// A segment arrives; what the worker sends for it.
    pub(super) fn arrives(&mut self, own: &Own, bytes: &[u8]) -> Vec<Sent> {
        self.arrives_with(own, &[], bytes)
    }

    /// A segment with options arrives; what the worker sends for it.
    pub(super) fn arrives_with(&mut self, own: &Own, options: &[u8], bytes: &[u8]) -> Vec<Sent> {
        self.comes(OneWorker::frame(own, options, bytes))
    }

    /// Such a segment in its frame.
    pub(super) fn frame(own: &Own, options: &[u8], bytes: &[u8]) -> VecFrame {
        let mut frame = VecFrame::default();
        assert!(own.write(&mut frame, [options, bytes]));
        if !options.is_empty() {
            // They stand where the payload begins: what they are is a matter of the header's length.
            assert!(own.abilities.is_none() && options.len().is_multiple_of(4));
            let network = if own.source.address.is_ipv4() { 20 } else { 40 };
            frame.bytes_mut()[14 + network + 12] += ((options.len() / 4) << 4) as u8;
        }
        frame
    }

    /// A frame arrives.
    pub(super) fn comes(&mut self, frame: VecFrame) -> Vec<Sent> {
        self.come([frame])
    }

    /// Another process takes over what this one leaves in the midst of everything. Its counters go on counting.
    pub(super) fn restart(&mut self) -> AdoptedSplices {
        self.restart_from(None)
    }

    /// As [`OneWorker::restart`], with this memory if that is given.
    pub(super) fn restart_from(&mut self, image: Option<&[u8]>) -> AdoptedSplices {
        let rules: BTreeSet<FlowKey> = self.worker.rules_known().collect();
        // What is drawn at the start of a process is drawn anew.
        self.processes += 1;
        let seeds = SEEDS.map(|seed| seed + self.processes);
        let options = |memory, splices| WorkerOptions {
            seeds,
            caps: self.caps,
            splices,
            formers: self.formers.clone(),
            ..WorkerOptions::new(self.snapshot.clone(), memory, table(), Always, self.secrets)
        };
        let spare = options(boxed::<Connection>(32), SplicedMemory::own(0));
        let old = core::mem::replace(&mut self.worker, Worker::new(spare));
        let statistics = old.statistics().clone();
        let (memory, mut splices) = old.into_memory();
        image.into_iter().for_each(|image| splices.overwrite(image));
        let (mut worker, adopted) = Worker::adopt(options(memory, splices), self.now, &|key| rules.contains(key));
        worker.count_from(statistics);
        self.worker = worker;
        adopted.splices
    }

    /// How its packets are steered.
    pub(super) fn steering(&self) -> Steering {
        Steering::by_hash([SEEDS[0], SEEDS[1]], 1)
    }

    /// The memory of spliced connections that this process leaves; its worker has none any more.
    pub(super) fn take_memory(&mut self) -> SplicedMemory {
        let options = WorkerOptions {
            splices: SplicedMemory::own(0),
            ..WorkerOptions::new(self.snapshot.clone(), boxed::<Connection>(32), table(), Always, SEEDS)
        };
        core::mem::replace(&mut self.worker, Worker::new(options)).into_memory().1
    }

    /// A worker that takes over this memory.
    pub(super) fn adopting(
        &self,
        worker: u16,
        steering: Steering,
        splices: SplicedMemory,
    ) -> (Worker<Always, AnyTable>, Adopted) {
        let options = WorkerOptions {
            worker,
            steering,
            caps: self.caps,
            splices,
            ..WorkerOptions::new(self.snapshot.clone(), boxed::<Connection>(32), table(), Always, SEEDS)
        };
        Worker::adopt(options, self.now, &|_| false)
    }

    /// Frames arrive at once.
    pub(super) fn come(&mut self, frames: impl IntoIterator<Item = VecFrame>) -> Vec<Sent> {
        if self.restarts && self.worker.is_in_software() {
            let adopted = self.restart();
            assert_eq!((adopted.interrupted, adopted.forgotten()), (0, 0), "{adopted:?}");
        }
        let mut rx: Batch<VecFrame> = frames.into_iter().collect();
        let mut tx = Batch::new();
        self.worker.handle_batch(self.now, &mut NoPort(self.room), &mut rx, &mut tx);
        let room = self.room;
        assert!(tx.iter().all(|frame| frame.bytes().len() <= room), "no longer than there is room for");
        self.sorted(&tx)
    }

    /// The process ends: what the worker sends in one call, and whether there is more.
    pub(super) fn abandons(&mut self) -> (Vec<Sent>, bool) {
        let mut tx = Batch::new();
        self.restarts = false;
        let more = self.worker.abandon_splices(self.now, &mut NoPort(self.room), &mut tx);
        (self.sorted(&tx), more)
    }

    /// Both ends have vanished, or are done: after a while nothing is left, whatever there was.
    pub(super) fn over(&mut self) {
        self.wait(Duration::from_secs(400));
        assert_eq!(self.worker.splices(), (0, 0, 0), "connections of clients, of backends, buffers");
    }

    /// Time passes; what the worker sends meanwhile.
    pub(super) fn wait(&mut self, time: Duration) -> Vec<Sent> {
        let end = self.now + time;
        let mut sent = Vec::new();
        while self.now < end {
            let next = self.worker.poll_timeout(self.now).unwrap_or(end).max(self.now + Duration::from_millis(10));
            self.now = next.min(end);
            self.worker.handle_timeout(self.now);
            let mut tx = Batch::new();
            self.worker.handle_splices(self.now, &mut NoPort(self.room), &mut tx);
            sent.extend(self.sorted(&tx));
        }
        sent
    }

    /// Segments; ICMP errors are kept beside, by the flow and the number that they quote.
    fn sorted(&mut self, tx: &Batch<VecFrame>) -> Vec<Sent> {
        let (errors, segments): (Vec<_>, Vec<_>) =
            tx.iter().partition(|frame| matches!(wire::parse(frame.bytes()), Ok(Parsed::IcmpError(_))));
        for frame in errors {
            let Ok(Parsed::IcmpError(error)) = wire::parse(frame.bytes()) else { unreachable!("it was one") };
            self.notices.push((error.quoted, u32_at(frame.bytes(), error.quoted_l4 + 4).unwrap()));
        }
        let sent = segments.into_iter().map(Sent::of);
        sent.filter(stamped::check).collect()
    }
}
