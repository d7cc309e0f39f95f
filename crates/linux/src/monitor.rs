//! Counts packets per flow at interfaces, in the kernel, and changes none (`bpf/monitor.c`): what a monitor is made of.
//!
//! The programs and maps are this process's own: nothing of them is pinned. They run at tc ingress before every other program, so
//! that they see packets as they come in, and at tc egress, where they see packets as they leave.

use crate::abi::Bytes;
use crate::programs::{AttachMode, MonitorHook, load_object};
use anyhow::{Context, Result, ensure};
use hairpin_core::flow::Address;
use hairpin_core::l7::config::Network;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder, RingBuffer, RingBufferBuilder};
use std::cell::RefCell;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/monitor.bpf.o"));

/// Networks of a filter at most: `NETWORKS_MAX` of monitor.c.
pub const NETWORKS_MAX: usize = 1024;
/// Flows of a monitor at most.
pub const FLOWS_MAX: u32 = 1 << 22;
/// Bytes of kernel memory that a flow takes, about: key, counts, and the hash's own.
pub const FLOW_BYTES: usize = 240;
/// Bytes of the ring by which the process hears of ends.
pub const NEWS_BYTES: usize = 1 << 20;
/// Elements that are read from the kernel at a time.
const BATCH: u32 = 1024;

/// The flows that are counted, and what is counted of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowFilter {
    /// Flows with one end in one of these, [`NETWORKS_MAX`] at most; none: all.
    pub networks: Vec<Network>,
    /// TCP and UDP flows with one end's port in one of these; none: all flows.
    pub ports: Vec<RangeInclusive<u16>>,
    /// Flows of these IP protocols; none: all.
    pub protocols: Vec<u8>,
    /// Whether times of TCP's handshakes are noted.
    pub handshake: bool,
    /// Whether packets that carry nothing new are counted.
    pub resent: bool,
}

/// The two ends of a flow, as an interface sees them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowEnds {
    far: [u8; 16],
    near: [u8; 16],
    far_port: [u8; 2],
    near_port: [u8; 2],
    /// The interface's number.
    pub ifindex: u32,
    /// The IP protocol.
    pub protocol: u8,
    zero: [u8; 3],
}

impl FlowEnds {
    /// From its parts: addresses and ports of the far and the near end, the interface's number, the protocol.
    pub fn new(far: (Address, u16), near: (Address, u16), ifindex: u32, protocol: u8) -> FlowEnds {
        let (far_port, near_port) = (far.1.to_be_bytes(), near.1.to_be_bytes());
        FlowEnds { far: far.0.0, near: near.0.0, far_port, near_port, ifindex, protocol, zero: [0; 3] }
    }

    /// The far end's address, from which packets come in.
    pub fn far(&self) -> Address {
        Address(self.far)
    }

    /// The near end's address, from which packets leave.
    pub fn near(&self) -> Address {
        Address(self.near)
    }

    /// The far end's port; 0 unless the protocol is TCP or UDP.
    pub fn far_port(&self) -> u16 {
        u16::from_be_bytes(self.far_port)
    }

    /// The near end's port; of ICMP its type in the upper byte and its code in the lower one; else 0.
    pub fn near_port(&self) -> u16 {
        u16::from_be_bytes(self.near_port)
    }
}

/// What has passed in one direction of a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowHalf {
    /// Packets as they are on the wire: those that the kernel has joined count one by one.
    pub packets: u64,
    /// Bytes of IP packets, with the headers of each.
    pub bytes: u64,
    /// When the first one passed, in nanoseconds of [`crate::cpu::now`]; 0: there was none.
    pub first: u64,
    /// When the last one passed.
    pub last: u64,
    /// Packets of TCP that carried nothing new: retransmissions, and what came after later ones.
    pub resent: u64,
    /// The highest sequence number of TCP so far, plus one.
    pub next: u32,
    /// In the lower 8 bits all flags of TCP that have been seen, as the header has them; bit 8: `next` is known.
    pub flags: u32,
}

impl FlowHalf {
    /// All TCP flags that have been seen, as the header has them: 8 bits.
    pub fn tcp_flags(&self) -> u8 {
        self.flags as u8
    }
}

/// What has passed of a flow.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowCount {
    /// From the far end to the near one.
    pub inward: FlowHalf,
    /// From the near end to the far one.
    pub outward: FlowHalf,
    /// When the SYN of its connection passed, as [`FlowHalf::first`]; 0: it was not seen, or is not noted.
    pub syn: u64,
    /// When the SYN-ACK passed, likewise.
    pub syn_ack: u64,
    /// When the ACK that completes the handshake passed, likewise.
    pub ack: u64,
    /// Who opened it, and what was repeated; [`FLOW_ENDED`].
    pub state: u32,
    /// Nothing.
    pub zero: u32,
}

/// `enum flow_state` of monitor.c.
const OPENED_IN: u32 = 1;
const OPENED_OUT: u32 = 2;
const SYN_AGAIN: u32 = 4;
const SYN_ACK_AGAIN: u32 = 8;
/// Of [`FlowCount::state`]: the connection has ended, by RST, or by FIN of both ends.
pub const FLOW_ENDED: u32 = 16;

impl FlowCount {
    /// Whether the far end opened the connection; `None`: the SYN was not seen.
    pub fn is_opened_inward(&self) -> Option<bool> {
        (self.state & (OPENED_IN | OPENED_OUT) != 0).then_some(self.state & OPENED_IN != 0)
    }

    /// From the SYN to its SYN-ACK, in nanoseconds: the round trip from here to the server and back. `None`: not both were seen, or
    /// there was more than one SYN, so that nothing tells which of them was answered.
    pub fn server_round_trip(&self) -> Option<u64> {
        let is_known = self.syn != 0 && self.syn_ack != 0 && self.state & SYN_AGAIN == 0;
        is_known.then(|| self.syn_ack.saturating_sub(self.syn))
    }

    /// From the SYN-ACK to the ACK, in nanoseconds: the round trip from here to the client and back. `None` likewise.
    pub fn client_round_trip(&self) -> Option<u64> {
        let is_known = self.syn_ack != 0 && self.ack != 0 && self.state & SYN_ACK_AGAIN == 0;
        is_known.then(|| self.ack.saturating_sub(self.syn_ack))
    }

    /// Whether the connection has ended: by RST, or by FIN of both ends.
    pub fn is_ended(&self) -> bool {
        self.state & FLOW_ENDED != 0
    }

    /// When the last packet passed, in nanoseconds of [`crate::cpu::now`].
    pub fn last(&self) -> u64 {
        self.inward.last.max(self.outward.last)
    }

    /// When the first one passed, likewise.
    pub fn first(&self) -> u64 {
        let firsts = [self.inward.first, self.outward.first];
        firsts.into_iter().filter(|first| *first != 0).min().unwrap_or(0)
    }
}

/// What was not counted in a flow of its own, and other incidents.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowIncidents {
    /// Packets of flows that found no room.
    pub no_room_packets: u64,
    /// Their bytes.
    pub no_room_bytes: u64,
    /// IP packets with impossible or truncated headers.
    pub malformed: u64,
    /// Connections that were counted with the one before of the same ends, as the process did not listen fast enough.
    pub merged: u64,
    /// Ends of connections that the process learns of later, for the same reason.
    pub unheard: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Former {
    ends: FlowEnds,
    zero: u32,
    count: FlowCount,
}

/// `struct wanted` of monitor.c.
#[repr(C)]
#[derive(Clone, Copy)]
struct Wanted {
    protocols: [u64; 4],
    by_network: u8,
    by_port: u8,
    handshake: u8,
    resent: u8,
    zero: [u8; 4],
}

macro_rules! plain {
    ($($name:ty: $bytes:literal),*) => { $(
        const _: () = assert!(size_of::<$name>() == $bytes);
        // SAFETY: `repr(C)`, integers and arrays of integers only, and as many bytes as the fields have.
        unsafe impl Bytes for $name {}
    )* };
}
plain!(FlowEnds: 44, FlowHalf: 48, FlowCount: 128, FlowIncidents: 40, Former: 176, Wanted: 40);

impl FlowFilter {
    fn wanted(&self) -> Wanted {
        let mut protocols = if self.protocols.is_empty() { [u64::MAX; 4] } else { [0; 4] };
        for protocol in &self.protocols {
            protocols[usize::from(protocol >> 6)] |= 1 << (protocol & 63);
        }
        Wanted {
            protocols,
            by_network: u8::from(!self.networks.is_empty()),
            by_port: u8::from(!self.ports.is_empty()),
            handshake: u8::from(self.handshake),
            resent: u8::from(self.resent),
            zero: [0; 4],
        }
    }

    /// A bit for each port.
    fn port_bits(&self) -> Vec<u8> {
        let mut bits = vec![0u64; 1024];
        for port in self.ports.iter().cloned().flatten() {
            bits[usize::from(port >> 6)] |= 1 << (port & 63);
        }
        bits.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }
}

/// The programs and maps of a monitor, and where they are attached.
#[derive(Debug)]
pub struct FlowMonitor {
    flows: MapHandle,
    news: MapHandle,
    counts: MapHandle,
    ingress: OwnedFd,
    egress: OwnedFd,
    hooks: Vec<MonitorHook>,
}

impl FlowMonitor {
    /// Loads the programs, with room for `flows_max` flows, 1 to [`FLOWS_MAX`]: the memory is taken at once. Nothing is attached
    /// yet. Errors: no rights (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON), no memory, a kernel older than 6.1.
    pub fn load(filter: &FlowFilter, flows_max: u32) -> Result<FlowMonitor> {
        ensure!((1..=FLOWS_MAX).contains(&flows_max), "{flows_max} flows: 1 to {FLOWS_MAX} are possible");
        ensure!(
            filter.networks.len() <= NETWORKS_MAX,
            "{} networks: {NETWORKS_MAX} are possible",
            filter.networks.len()
        );
        let mut open = ObjectBuilder::default().open_memory(OBJECT).context("the embedded BPF object is damaged")?;
        let wanted = filter.wanted();
        let mut is_set = false;
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            if name == "flows" {
                map.set_max_entries(flows_max)?;
            } else if name.contains(".wanted") {
                let value = map.initial_value_mut().and_then(|value| value.get_mut(..size_of::<Wanted>()));
                is_set = value.map(|value| value.copy_from_slice(wanted.bytes())).is_some();
            }
        }
        ensure!(is_set, "the embedded BPF object has other constants than this build expects");
        let object = load_object(open)?;
        let networks = map(&object, "networks")?;
        for network in &filter.networks {
            let mut key = u32::from(network.prefix).to_ne_bytes().to_vec();
            key.extend_from_slice(&network.address.0);
            networks.update(&key, 1u32.bytes(), MapFlags::ANY).context("cannot change map networks")?;
        }
        let ports = map(&object, "ports")?;
        ports.update(0u32.bytes(), &filter.port_bits(), MapFlags::ANY).context("cannot change map ports")?;
        Ok(FlowMonitor {
            flows: map(&object, "flows")?,
            news: map(&object, "news")?,
            counts: map(&object, "counts")?,
            ingress: program(&object, "monitor_ingress")?,
            egress: program(&object, "monitor_egress")?,
            hooks: Vec::new(),
        })
    }

    /// Attaches both programs to the interface `ifindex`. `notes`: the directory in a BPF file system where it is noted, if that is
    /// needed to find them again after this process has been killed ([`clean`]).
    pub fn attach(&mut self, ifindex: u32, mode: AttachMode, notes: &Path) -> Result<()> {
        for (program, is_egress) in [(&self.ingress, false), (&self.egress, true)] {
            self.hooks.push(MonitorHook::attach(program.as_fd(), (ifindex, is_egress), mode, notes)?);
        }
        Ok(())
    }

    /// Detaches the programs from all interfaces, as far as these are still there. Flows can still be read. Goes on after an error
    /// and reports the first.
    pub fn detach(&mut self) -> Result<()> {
        self.hooks.drain(..).map(MonitorHook::detach).fold(Ok(()), Result::and)
    }

    /// Calls `each` for every flow there is. A flow that comes or goes meanwhile may be left out. Errors: the kernel does not let
    /// the map be read.
    pub fn each(&self, mut each: impl FnMut(&FlowEnds, &FlowCount)) -> Result<()> {
        let all = self.flows.lookup_batch(BATCH, MapFlags::ANY, MapFlags::ANY).context("cannot read map flows")?;
        for (key, value) in all {
            if let (Some(ends), Some(count)) = (FlowEnds::from_bytes(&key), FlowCount::from_bytes(&value)) {
                each(&ends, &count);
            }
        }
        Ok(())
    }

    /// The flow between `ends` as it is now; `None`: there is none.
    pub fn find(&self, ends: &FlowEnds) -> Result<Option<FlowCount>> {
        let found = self.flows.lookup(ends.bytes(), MapFlags::ANY).context("cannot read map flows")?;
        Ok(found.and_then(|value| FlowCount::from_bytes(&value)))
    }

    /// Takes the flow between `ends` out; `None`: there is none. A packet that passes in this very moment may not be counted:
    /// only for flows that have been silent for a while.
    pub fn take(&self, ends: &FlowEnds) -> Result<Option<FlowCount>> {
        let taken = self.flows.lookup_and_delete(ends.bytes()).context("cannot take from map flows")?;
        Ok(taken.and_then(|value| FlowCount::from_bytes(&value)))
    }

    /// What happened that no flow shows.
    pub fn incidents(&self) -> Result<FlowIncidents> {
        let cpus = self.counts.lookup_percpu(0u32.bytes(), MapFlags::ANY).context("cannot read map counts")?;
        let mut sum = FlowIncidents::default();
        for count in cpus.unwrap_or_default().iter().filter_map(|cpu| FlowIncidents::from_bytes(cpu)) {
            sum.no_room_packets += count.no_room_packets;
            sum.no_room_bytes += count.no_room_bytes;
            sum.malformed += count.malformed;
            sum.merged += count.merged;
            sum.unheard += count.unheard;
        }
        Ok(sum)
    }

    /// What the kernel tells of flows that have ended. One for each monitor.
    pub fn news(&self) -> Result<FlowNews> {
        let heard = Rc::new(RefCell::new(Vec::new()));
        let into = Rc::clone(&heard);
        let mut builder = RingBufferBuilder::new();
        let hear = move |bytes: &[u8]| {
            let former = || Former::from_bytes(bytes).map(|former| FlowEvent::Former(former.ends, former.count));
            let event = match bytes.len() == size_of::<FlowEnds>() {
                true => FlowEnds::from_bytes(bytes).map(FlowEvent::Ended),
                false => former(),
            };
            into.borrow_mut().extend(event);
            0
        };
        builder.add(&self.news, hear).context("cannot listen to map news")?;
        Ok(FlowNews { ring: builder.build().context("cannot map map news")?, heard })
    }

    /// The programs for what comes in and for what leaves, to run them in tests and to measure them.
    pub fn programs(&self) -> [&OwnedFd; 2] {
        [&self.ingress, &self.egress]
    }
}

/// Something that the kernel tells of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowEvent {
    /// Its connection has ended; last packets may follow.
    Ended(FlowEnds),
    /// Its ends have begun another connection, which is counted from now on; this is the one before.
    Former(FlowEnds, FlowCount),
}

/// The receiver of [`FlowEvent`]s.
pub struct FlowNews {
    ring: RingBuffer<'static>,
    heard: Rc<RefCell<Vec<FlowEvent>>>,
}

impl FlowNews {
    /// What has happened since the last call.
    pub fn take(&mut self) -> Result<Vec<FlowEvent>> {
        self.ring.consume().context("cannot read map news")?;
        Ok(std::mem::take(&mut self.heard.borrow_mut()))
    }
}

/// Detaches what a killed process of the instance has left attached and noted in `notes`. Nothing there is fine.
pub fn clean(notes: &Path) -> Result<()> {
    MonitorHook::clean(notes)
}

fn map(object: &Object, name: &str) -> Result<MapHandle> {
    let map = object.maps().find(|map| map.name() == name).with_context(|| format!("there is no map {name}"))?;
    MapHandle::try_from(&map).with_context(|| format!("cannot take a handle of map {name}"))
}

fn program(object: &Object, name: &str) -> Result<OwnedFd> {
    let found = object.progs().find(|program| program.name() == name);
    let program = found.with_context(|| format!("the BPF object has no program {name}"))?;
    program.as_fd().try_clone_to_owned().with_context(|| format!("cannot keep program {name}"))
}
