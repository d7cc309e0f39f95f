//! Forwarding measured with frames that are made in the kernel (`crates/linux/bpf/frames.c`): each passes devices, drivers and
//! programs as one from a wire does, all on the CPU of the caller.

use super::{activate, checked};
use crate::abi::Bytes;
use crate::abi::NextHop;
use crate::device::Interface;
use crate::programs::LoadedPlane;
use anyhow::{Context, Result, ensure};
use hairpin_core::engine::Rule;
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::rewrite::Rewrite;
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

static FRAMES: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/frames.bpf.o"));

/// Source addresses of flows: from 10.1.0.0 on.
const FIRST: u32 = 0x0a01_0000;
/// Where all flows go.
const SERVICE: ([u8; 4], u16) = ([192, 0, 2, 1], 53);

/// `struct plan` of frames.c.
#[derive(Clone, Copy)]
#[repr(C)]
struct Plan {
    ifindex: u32,
    flows: u32,
    next: u32,
    first: u32,
    headers: [u8; 42],
    zero: [u8; 6],
}

// SAFETY: `repr(C)`, integers and arrays of bytes, 64 bytes without padding.
unsafe impl Bytes for Plan {}

const _: () = assert!(size_of::<Plan>() == 64);

/// The programs that make frames and drop them.
#[derive(Debug)]
pub struct LiveFrames {
    frames: OwnedFd,
    sink: OwnedFd,
    plan: MapHandle,
    arrived: MapHandle,
}

impl LiveFrames {
    /// Loads the programs. Everything is gone when the value is dropped, but what [`LiveFrames::drop_at`] has attached.
    pub fn load() -> Result<LiveFrames> {
        let open = ObjectBuilder::default().open_memory(FRAMES).context("the embedded BPF object is damaged")?;
        let object = open.load().context("cannot load the programs of frames")?;
        Ok(LiveFrames {
            frames: program(&object, "frames")?,
            sink: program(&object, "sink")?,
            plan: map(&object, "plan")?,
            arrived: map(&object, "arrived")?,
        })
    }

    /// Drops and counts the frames that arrive at `interface`, before anything else gets them; or no longer.
    pub fn drop_at(&self, interface: &Interface, on: bool) -> Result<()> {
        let program = if on { self.sink.as_raw_fd() } else { -1 };
        let flags = libbpf_sys::XDP_FLAGS_DRV_MODE;
        // SAFETY: the descriptor is open, or none; there are no options.
        let done =
            checked(unsafe { libbpf_sys::bpf_xdp_attach(interface.index as i32, program, flags, std::ptr::null()) });
        done.map(drop).with_context(|| format!("cannot change the XDP program of {}", interface.name))
    }

    /// Sends `count` frames of 64 bytes, of `flows` flows in turn, by `out` to the address `to`. The calling thread is in the
    /// devices' network namespace and stays on one CPU. Returns how long it took and how many frames arrived where they are
    /// dropped.
    pub fn send(&self, out: &Interface, to: [u8; 6], flows: u32, count: u32) -> Result<(Duration, u64)> {
        ensure!((1..=1 << 24).contains(&flows), "{flows} flows: 1 to 2^24 can be made");
        let plan = Plan { ifindex: out.index, flows, next: 0, first: FIRST, headers: headers(to), zero: [0; 6] };
        self.plan.update(0u32.bytes(), plan.bytes(), MapFlags::ANY).context("cannot write map plan")?;
        let before = self.arrived()?;
        let frame = [0u8; 64];
        let mut options = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat: count as i32,
            flags: libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES,
            ..Default::default()
        };
        let start = Instant::now();
        // SAFETY: the options and the frame they point to live through the call.
        checked(unsafe { libbpf_sys::bpf_prog_test_run_opts(self.frames.as_raw_fd(), &mut options) })
            .context("cannot make frames")?;
        let mut elapsed = start.elapsed();
        // The last ones may still be on their way, by a thread of the kernel's.
        let mut arrived = self.arrived()? - before;
        for _ in 0..10 {
            std::thread::sleep(Duration::from_millis(1));
            let now = self.arrived()? - before;
            if now == arrived {
                break;
            }
            (arrived, elapsed) = (now, start.elapsed());
        }
        Ok((elapsed, arrived))
    }

    fn arrived(&self) -> Result<u64> {
        let counts = self.arrived.lookup_percpu(0u32.bytes(), MapFlags::ANY).context("cannot read map arrived")?;
        let counts = counts.context("map arrived has no element")?;
        Ok(counts.iter().filter_map(|count| u64::from_bytes(count)).sum())
    }
}

/// Puts a rule in for each flow of [`LiveFrames::send`], in force, that sends its packets by `egress` to the address `to` for
/// as long as measurements last.
pub fn install_rules(plane: &LoadedPlane, flows: u32, egress: &Interface, to: [u8; 6]) -> Result<()> {
    let destination = Endpoint::new(Address::from_ipv4([198, 51, 100, 2]), 8053);
    let rule = |flow: u32| {
        let source = Endpoint::new(Address::from_ipv4((FIRST + flow).to_be_bytes()), 1024 + (flow % 60_000) as u16);
        let service = Endpoint::new(Address::from_ipv4(SERVICE.0), SERVICE.1);
        let key = FlowKey { source, destination: service, protocol: Protocol::Udp };
        Rule { key, rewrite: Rewrite { source, destination, ..Rewrite::default() }, ..Rule::default() }
    };
    let mut macs = [0; 12];
    macs[..6].copy_from_slice(&to);
    macs[6..].copy_from_slice(&egress.mac);
    let rules: Vec<Rule> = (0..flows).map(rule).collect();
    activate(plane, &rules, &NextHop::lasting(egress.index, macs, 1500, false))
}

/// Headers of a packet to [`SERVICE`] in a frame of 64 bytes, without what frames.c fills in, and without UDP checksum.
fn headers(to: [u8; 6]) -> [u8; 42] {
    let mut headers = [0; 42];
    headers[..6].copy_from_slice(&to);
    headers[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
    headers[12..14].copy_from_slice(&[8, 0]);
    headers[14..24].copy_from_slice(&[0x45, 0, 0, 50, 0, 1, 0, 0, 64, 17]);
    headers[30..34].copy_from_slice(&SERVICE.0);
    headers[36..38].copy_from_slice(&SERVICE.1.to_be_bytes());
    headers[38..40].copy_from_slice(&[0, 30]);
    headers
}

fn program(object: &Object, name: &str) -> Result<OwnedFd> {
    let found = object.progs().find(|program| program.name() == name);
    let found = found.with_context(|| format!("the BPF object has no program {name}"))?;
    found.as_fd().try_clone_to_owned().with_context(|| format!("cannot keep program {name}"))
}

fn map(object: &Object, name: &str) -> Result<MapHandle> {
    let found = object.maps().find(|map| map.name() == name);
    MapHandle::try_from(&found.with_context(|| format!("the BPF object has no map {name}"))?)
        .with_context(|| format!("cannot take a handle of map {name}"))
}
