//! Takes the outer headers off packets that a balancer has wrapped for this host (`bpf/decapsulate.c`), for hosts whose kernel
//! has no tunnels.

use crate::abi::Bytes;
use crate::device::Interface;
use crate::programs::{AttachMode, Passing, load_object};
use anyhow::{Context, Result, ensure};
use hairpin_core::l7::config::Network;
use libbpf_rs::{MapCore, MapFlags, Object, ObjectBuilder};
use std::os::fd::AsFd;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/decapsulate.bpf.o"));

/// Networks of each kind at most: `NETWORKS_MAX` of decapsulate.c.
pub const NETWORKS_MAX: usize = 1024;

/// The fates of packets to [`DecapsulatorOptions::addresses`] that look wrapped, in the order of `enum fate`.
pub const FATES: [&str; 6] = [
    "unwrapped",
    "from another sender, left to the kernel",
    "not for a VIP, left to the kernel",
    "malformed, left to the kernel",
    "marked as congested though what is inside cannot be, dropped",
    "dropped, since the kernel could not take the headers off",
];

/// The packets that are unwrapped.
#[derive(Clone, Debug)]
pub struct DecapsulatorOptions {
    /// Their outer destinations.
    pub addresses: Vec<Network>,
    /// Their outer sources.
    pub senders: Vec<Network>,
    /// Their inner destinations.
    pub vips: Vec<Network>,
    /// The UDP port of GUE.
    pub port: u16,
}

/// The program at an interface, for as long as this lives.
pub struct Decapsulator {
    object: Object,
    passing: Passing,
}

impl Decapsulator {
    /// Loads the program and attaches it at the ingress of `interface`.
    pub fn attach(interface: &Interface, mode: AttachMode, options: &DecapsulatorOptions) -> Result<Decapsulator> {
        let mut open = ObjectBuilder::default().open_memory(OBJECT).context("the embedded BPF object is damaged")?;
        let mut constants = open.maps_mut().find(|map| map.name().to_string_lossy().ends_with(".rodata"));
        let value = constants.as_mut().and_then(|map| map.initial_value_mut());
        let Some([low, high, ..]) = value else {
            anyhow::bail!("the embedded BPF object has other constants than this build expects");
        };
        [*low, *high] = options.port.to_ne_bytes();
        let object = load_object(open)?;
        for (name, networks) in
            [("addresses", &options.addresses), ("senders", &options.senders), ("vips", &options.vips)]
        {
            ensure!(networks.len() <= NETWORKS_MAX, "{} {name}: {NETWORKS_MAX} are possible", networks.len());
            let map =
                object.maps().find(|map| map.name() == name).with_context(|| format!("there is no map {name}"))?;
            for network in networks {
                let mut key = u32::from(network.prefix).to_ne_bytes().to_vec();
                key.extend_from_slice(&network.address.0);
                let there = 1u32;
                map.update(&key, there.bytes(), MapFlags::ANY).with_context(|| format!("cannot change map {name}"))?;
            }
        }
        let program = object.progs().next().context("the BPF object has no program")?;
        let passing = Passing::attach(program.as_fd(), interface.index, mode)?;
        Ok(Decapsulator { object, passing })
    }

    /// How many packets have had each of [`FATES`].
    pub fn fates(&self) -> Result<[u64; FATES.len()]> {
        let map = self.object.maps().find(|map| map.name() == "fates").context("there is no map fates")?;
        let cpus = map.lookup_percpu(0u32.bytes(), MapFlags::ANY).context("cannot read map fates")?;
        let mut sums = [0; FATES.len()];
        for cpu in cpus.unwrap_or_default() {
            for (sum, word) in sums.iter_mut().zip(cpu.as_chunks::<8>().0) {
                *sum += u64::from_ne_bytes(*word);
            }
        }
        Ok(sums)
    }

    /// The program, to run it in tests.
    pub fn program(&self) -> Option<std::os::fd::OwnedFd> {
        self.object.progs().next()?.as_fd().try_clone_to_owned().ok()
    }

    /// Detaches the program.
    pub fn detach(self) -> Result<()> {
        self.passing.detach()
    }
}
