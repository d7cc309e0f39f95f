//! What a mark spares: the worker with marked packets beside the same worker that looks them up (KTH 2020, section 4.2.5).
//!
//! A card that marks packets (`rte_flow`'s MARK) says of a packet which connection it is of, and the worker reads that entry
//! instead of hashing the packet's ends and looking in the index ([`Worker::go_by_marks`]). Frames lie in memory, so that
//! nothing else differs. What counts is the processor time of the thread.

use super::entries;
use crate::clock::of_thread;
use crate::testbed::balancer::{BalancerOptions, retire, with_engine};
use crate::testbed::table::{LabTable, TableChoice};
use crate::traffic::flows::client;
use crate::traffic::stamp::BYTES;
use crate::traffic::template::{LinkAddresses, PacketKind, PacketTemplate};
use anyhow::{Context, Result, ensure};
use hairpin_core::engine::EngineCaps;
use hairpin_core::flow::{Protocol, Steering};
use hairpin_core::frame::{Batch, Frame, FrameIo, Meta};
use hairpin_core::offload::Never;
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::tcp::{ACK, PSH, SYN};
use hairpin_core::worker::Worker;

/// Bytes of a frame.
const FRAME: usize = 64;
/// Packets in a burst.
const BURST: usize = 32;
/// Virtual time between bursts.
const STEP: Duration = Duration::from_micros(4);
/// Packets of a measurement.
const PACKETS: usize = 1 << 21;

/// How a packet's connection is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Classification {
    /// By hash and look-up, as ever.
    Hash,
    /// By the mark that every packet has.
    Marks,
    /// By hash, on a worker that looks for marks first, and finds none.
    NoMarks,
}

impl Classification {
    /// All of them.
    pub const ALL: [Classification; 3] = [Classification::Hash, Classification::Marks, Classification::NoMarks];

    /// For files and people.
    pub const fn name(self) -> &'static str {
        match self {
            Classification::Hash => "hash",
            Classification::Marks => "marks",
            Classification::NoMarks => "no-marks",
        }
    }
}

/// A frame that lies in the batch itself, with room for a mark.
struct MarkedFrame {
    bytes: [u8; FRAME],
    meta: Meta,
    examined: bool,
}

impl Frame for MarkedFrame {
    const MARKS: bool = true;
    const TICKETS: bool = false;

    fn bytes(&self) -> &[u8] {
        &self.bytes
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
    fn resize(&mut self, length: usize) -> bool {
        length == FRAME
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

/// Packets in turn, each with its mark; what is sent is counted.
struct MarkedReplay {
    packets: Vec<([u8; FRAME], u32)>,
    at: usize,
    sent: usize,
}

impl FrameIo for MarkedReplay {
    type Frame = MarkedFrame;

    fn receive(&mut self, out: &mut Batch<MarkedFrame>) {
        for _ in 0..BURST {
            let (bytes, ticket) = self.packets[self.at];
            self.at = (self.at + 1) % self.packets.len();
            out.push(MarkedFrame { bytes, meta: Meta { ticket, ..Meta::default() }, examined: false });
        }
    }

    fn transmit(&mut self, batch: &mut Batch<MarkedFrame>) {
        self.sent += batch.len();
        batch.clear();
    }

    fn allocate(&mut self) -> Option<MarkedFrame> {
        None
    }

    fn room(&self) -> usize {
        FRAME
    }
}

/// A worker that knows all flows, and packets of them in an order of their own.
pub struct MarkBench {
    worker: Worker<Never, LabTable>,
    replay: MarkedReplay,
    now: Time,
}

impl MarkBench {
    /// A worker of a table (one of ours, by name) with so many flows, a burst at least.
    ///
    /// # Errors
    /// There is no such table.
    pub fn new(table: &str, flows: u32, how: Classification) -> Result<MarkBench> {
        let choice = TableChoice::named(table)?;
        let seeds = [11, 12, 13, 14];
        let options = BalancerOptions {
            backends: 4,
            connections_each: entries(flows) as usize,
            method: choice.method(),
            steering: Steering::by_hash([11, 12], 1),
            seeds,
        };
        let tables = choice.tables(1, options.connections(), seeds, &None)?;
        let worker = with_engine(&options, tables, || Never, EngineCaps::NONE).pop().context("there is no worker")?;
        let flows = flows.next_multiple_of(BURST as u32);
        // The worker gives places in order, and a flow's value is twice its place.
        let mark = |flow: u32| if how == Classification::Marks { 2 * flow + 1 } else { 0 };
        let first = packets_of(SYN);
        let packets = (0..flows).map(|flow| (first(flow), 0)).collect();
        let replay = MarkedReplay { packets, at: 0, sent: 0 };
        let mut bench = MarkBench { worker, replay, now: Time::from_nanos(1_000_000_000) };
        bench.bursts(flows as usize / BURST);
        if how != Classification::Hash {
            bench.worker.go_by_marks();
        }
        let mut order: Vec<u32> = (0..flows).collect();
        fastrand::Rng::with_seed(u64::from(flows)).shuffle(&mut order);
        let packet = packets_of(ACK | PSH);
        bench.replay.packets = order.into_iter().map(|flow| (packet(flow), mark(flow))).collect();
        bench.replay.at = 0;
        // Once, so that all are as they are from then on.
        bench.bursts(flows as usize / BURST);
        Ok(bench)
    }

    /// Nanoseconds of processor time for a packet.
    ///
    /// # Errors
    /// A packet was not forwarded, or its mark was not good for anything.
    pub fn measure(&mut self, how: Classification) -> Result<f64> {
        let (sent, marked) = (self.replay.sent, self.worker.statistics().marked);
        let began = of_thread();
        self.bursts(PACKETS / BURST);
        let took = of_thread() - began;
        let (sent, marked) = (self.replay.sent - sent, self.worker.statistics().marked - marked);
        ensure!(sent == PACKETS, "{sent} of {PACKETS} packets were sent on");
        let wanted = if how == Classification::Marks { PACKETS as u64 } else { 0 };
        ensure!(marked == wanted, "{marked} of {PACKETS} packets were found by their marks, not {wanted}");
        Ok(took.as_nanos() as f64 / PACKETS as f64)
    }

    fn bursts(&mut self, count: usize) {
        let (mut rx, mut tx) = (Batch::new(), Batch::new());
        for _ in 0..count {
            self.replay.receive(&mut rx);
            self.now = self.now + STEP;
            self.worker.handle_batch(self.now, &mut self.replay, &mut rx, &mut tx);
            if self.worker.poll_timeout(self.now).is_some_and(|due| due <= self.now) {
                self.worker.handle_timeout(self.now);
            }
            self.replay.transmit(&mut tx);
        }
    }

    /// It is needed no more.
    pub fn retire(self) {
        retire(self.worker);
    }
}

/// Makes a TCP packet of a flow.
fn packets_of(tcp_flags: u8) -> impl Fn(u32) -> [u8; FRAME] {
    let kind = PacketKind { protocol: Protocol::Tcp, ipv6: false, tcp_flags };
    let mut store = Vec::new();
    let template = PacketTemplate::new(&mut store, kind, &LinkAddresses::default(), &[], FRAME as u16);
    move |number| {
        let mut bytes = [0; FRAME];
        template.make(&store, &mut bytes, &client(number), &[0; BYTES]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each way finds all connections, and marks are what one of them goes by.
    #[test]
    fn each_way_finds_every_packet() {
        for how in Classification::ALL {
            let mut bench = MarkBench::new("cuckoo++", 1000, how).unwrap();
            assert!(bench.measure(how).unwrap() > 0.0, "{how:?}");
            assert_eq!(bench.worker.statistics().connections_now, 1024);
            bench.retire();
        }
        let mut bench = MarkBench::new("cuckoo++", 1000, Classification::NoMarks).unwrap();
        assert!(bench.measure(Classification::Marks).unwrap_err().to_string().contains("found by their marks"));
    }
}
