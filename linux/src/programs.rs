//! Loading the BPF programs, attaching them, telling them what they balance, reading what they count.
//!
//! Everything is pinned under `<pin directory>/<instance>/`: `maps/`, `programs/`, `links/`. What is pinned outlives
//! the process; [`Plane::detach`] and [`flush`] remove it. Interfaces are those of the network namespace the calling
//! thread is in, and so must be the caller of `flush`.

mod attach;
mod filters;
mod pins;

pub use attach::AttachMode;
pub use pins::{PIN_DIRECTORY_DEFAULT, PIN_DIRECTORY_OWN, flush};

use crate::abi::{self, Bytes};
use crate::control::Control;
use crate::engine::KernelEngine;
use anyhow::{Context, Result, bail, ensure};
use attach::Attachment;
use hairpin_core::config::{Forwarding, Service, ServiceState, Snapshot};
use hairpin_core::flow::{FlowKey, Steering};
use libbpf_rs::{MapCore, MapFlags, MapHandle, Object, ObjectBuilder};
use pins::Pins;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/hairpin.bpf.o"));

/// What to load, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the instance: the directory its objects are pinned in.
    pub instance: String,
    /// Where to pin. If no BPF file system is mounted there, one is mounted at [`PIN_DIRECTORY_OWN`] and used instead.
    pub pin_directory: PathBuf,
    /// IPv4 rules at most. The memory is taken at once: 144 bytes a rule.
    pub rules_v4_max: u32,
    /// IPv6 rules at most. The memory is taken at once: 208 bytes a rule.
    pub rules_v6_max: u32,
    /// How programs are attached to devices.
    pub attach: AttachMode,
    /// While the process is away: drop packets that are its workers', or leave them to the kernel.
    pub absent_drop: bool,
    /// How old the process's heartbeat may be before it counts as away.
    pub heartbeat_timeout: Duration,
    /// Packets of unknown connections from a service's backends that each CPU admits per second; [`u32::MAX`]: all.
    pub policer_backend_pps: u32,
    /// How long a hand-over from worker to rule may wait for packets that are still on their way.
    pub handover_bound: Duration,
    /// For measuring by repetition only: packets keep their TTL, so that they can go round. See [`crate::cost`].
    pub keep_ttl: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            instance: "default".to_string(),
            pin_directory: PathBuf::from(PIN_DIRECTORY_DEFAULT),
            rules_v4_max: 65_536,
            rules_v6_max: 65_536,
            attach: AttachMode::Auto,
            absent_drop: false,
            heartbeat_timeout: Duration::from_secs(3),
            policer_backend_pps: 100_000,
            handover_bound: Duration::from_millis(100),
            keep_ttl: false,
        }
    }
}

/// The maps, by what they hold. Handles can be duplicated.
#[derive(Debug)]
pub struct Maps(HashMap<String, MapHandle>);

impl Maps {
    fn of(object: &Object) -> Result<Maps> {
        let named = |map: libbpf_rs::Map<'_>| {
            let name = map.name().to_string_lossy().into_owned();
            let handle = MapHandle::try_from(&map).with_context(|| format!("cannot take a handle of map {name}"))?;
            Ok((name, handle))
        };
        Ok(Maps(object.maps().map(named).collect::<Result<_>>()?))
    }

    /// The map `name` of `linux/bpf/maps.h`.
    pub fn named(&self, name: &str) -> Result<&MapHandle> {
        self.0.get(name).with_context(|| format!("the BPF object has no map {name}"))
    }
}

/// The loaded programs and their maps. Dropping it leaves everything pinned as it is.
#[derive(Debug)]
pub struct Plane {
    pins: Pins,
    maps: Arc<Maps>,
    control: Arc<Control>,
    queries: Arc<Queries>,
    ingress: OwnedFd,
    worker: OwnedFd,
    attach: AttachMode,
    attachments: Vec<Attachment>,
    rules: (u32, u32),
    /// Keys now in `ends` and in `addresses`.
    configured: (Vec<abi::End>, Vec<[u8; 16]>),
}

/// The syscall programs.
#[derive(Debug)]
pub(crate) struct Queries {
    pub(crate) take: OwnedFd,
    pub(crate) sample: OwnedFd,
}

impl Plane {
    /// Loads programs and maps and pins them. What a dead instance of the same name has left is removed first; that no
    /// living one has it is for the caller to make sure. Nothing is attached yet. Errors: no rights (CAP_BPF,
    /// CAP_NET_ADMIN, CAP_PERFMON, and CAP_SYS_ADMIN to mount a BPF file system), no memory for so many rules, a kernel
    /// older than 6.1, more CPUs than [`abi::CPUS_MAX`].
    pub fn load(options: &Options, steering: Steering) -> Result<Plane> {
        let workers = usize::from(steering.workers);
        ensure!((1..=abi::WORKERS_MAX).contains(&workers), "{workers} workers: 1 to {} are possible", abi::WORKERS_MAX);
        let cpus = libbpf_rs::num_possible_cpus().context("cannot count CPUs")?;
        ensure!(cpus <= abi::CPUS_MAX, "{cpus} CPUs: this build manages {}", abi::CPUS_MAX);
        let pins = Pins::create(&options.pin_directory, &options.instance)?;
        let object = load_object(options)?;
        let maps = Arc::new(Maps::of(&object)?);
        let control = Arc::new(Control::map(&maps)?);
        let plane = Plane {
            ingress: program(&object, "hairpin_ingress")?,
            worker: program(&object, "hairpin_worker")?,
            queries: Arc::new(Queries {
                take: program(&object, "rules_take")?,
                sample: program(&object, "rules_sample")?,
            }),
            rules: (options.rules_v4_max, options.rules_v6_max),
            attach: options.attach,
            attachments: Vec::new(),
            configured: Default::default(),
            pins,
            maps,
            control,
        };
        plane.pin()?;
        let block = abi::ControlBlock {
            steering_key: steering.key,
            workers: u32::from(steering.workers),
            absent_drop: u32::from(options.absent_drop),
            heartbeat_ns: 0,
            heartbeat_timeout_ns: options.heartbeat_timeout.as_nanos() as u64,
            policer_backend_pps: options.policer_backend_pps,
            handover_ms: options.handover_bound.as_millis() as u32,
        };
        plane.set("control", 0, &block)?;
        Ok(plane)
    }

    fn pin(&self) -> Result<()> {
        for (name, map) in &self.maps.0 {
            // The object's own sections have dots in their names, which a BPF file system refuses.
            if !name.contains('.') {
                self.pins.pin_map(map.as_fd(), name)?;
            }
        }
        for (name, program) in [
            ("hairpin_ingress", &self.ingress),
            ("hairpin_worker", &self.worker),
            ("rules_take", &self.queries.take),
            ("rules_sample", &self.queries.sample),
        ] {
            self.pins.pin_program(program.as_fd(), name)?;
        }
        Ok(())
    }

    fn set<T: Bytes>(&self, map: &str, index: u32, value: &T) -> Result<()> {
        let result = self.maps.named(map)?.update(index.bytes(), value.bytes(), MapFlags::ANY);
        result.with_context(|| format!("cannot write element {index} of map {map}"))
    }

    /// Tells the programs what they balance: ends and addresses. Can be told anew; what is no longer there goes.
    pub fn configure(&mut self, snapshot: &Snapshot) -> Result<()> {
        let (ends, addresses) = (ends(snapshot), addresses(snapshot));
        let map = self.maps.named("ends")?;
        for (end, roles) in &ends {
            map.update(end.bytes(), roles.bytes(), MapFlags::ANY).context("cannot add to map ends")?;
        }
        for end in self.configured.0.iter().filter(|end| !ends.contains_key(end)) {
            map.delete(end.bytes()).context("cannot take from map ends")?;
        }
        let map = self.maps.named("addresses")?;
        for address in &addresses {
            map.update(address, 1u32.bytes(), MapFlags::ANY).context("cannot add to map addresses")?;
        }
        for address in self.configured.1.iter().filter(|address| !addresses.contains(address)) {
            map.delete(address).context("cannot take from map addresses")?;
        }
        self.configured = (ends.into_keys().collect(), addresses);
        Ok(())
    }

    /// Attaches the ingress program to the interface `ifindex` with MAC address `address`, which the workers know by
    /// `slot`, 0 to [`abi::INTERFACES_MAX`] - 1.
    pub fn attach(&mut self, slot: u32, ifindex: u32, address: [u8; 6]) -> Result<()> {
        ensure!((slot as usize) < abi::INTERFACES_MAX, "interface slot {slot}: there are {}", abi::INTERFACES_MAX);
        self.set("interfaces", slot, &abi::InterfaceEntry { ifindex, address, zero: [0; 2] })?;
        let slots = self.maps.named("slots")?;
        slots.update(ifindex.bytes(), slot.bytes(), MapFlags::ANY).context("cannot add to map slots")?;
        let attachment = Attachment::make(self.attach, self.ingress.as_fd(), ifindex, &self.pins.links())?;
        self.attachments.push(attachment);
        Ok(())
    }

    /// Attaches the worker program to the TAP device `ifindex` of `worker`, and from now on sends packets there.
    pub fn attach_worker(&mut self, worker: u32, ifindex: u32) -> Result<()> {
        ensure!((worker as usize) < abi::WORKERS_MAX, "worker {worker}: there are {}", abi::WORKERS_MAX);
        let attachment = Attachment::make(self.attach, self.worker.as_fd(), ifindex, &self.pins.links())?;
        self.attachments.push(attachment);
        self.set("workers", worker, &ifindex)
    }

    /// The memory shared with the programs.
    pub fn control(&self) -> Arc<Control> {
        Arc::clone(&self.control)
    }

    /// The maps.
    pub fn maps(&self) -> Arc<Maps> {
        Arc::clone(&self.maps)
    }

    /// The flow engine of `worker`. At most one for each worker may be in use.
    pub fn engine(&self, worker: u8) -> Result<KernelEngine> {
        KernelEngine::new(worker, &self.maps, &self.control, &self.queries, self.rules)
    }

    /// The ingress program, to run it in tests.
    pub fn ingress_program(&self) -> BorrowedFd<'_> {
        self.ingress.as_fd()
    }

    /// The worker program, to run it in tests.
    pub fn worker_program(&self) -> BorrowedFd<'_> {
        self.worker.as_fd()
    }

    /// Whether the programs are attached by tcx; else by clsact filters. `None` if none is attached.
    pub fn is_tcx(&self) -> Option<bool> {
        self.attachments.first().map(Attachment::is_tcx)
    }

    /// The keys of all rules installed, in no order: to compare with a ledger.
    pub fn installed(&self) -> Result<Vec<FlowKey>> {
        let v4 = self.maps.named("rules_v4")?.keys().filter_map(|key| abi::FlowV4::from_bytes(&key)?.flow());
        let v6 = self.maps.named("rules_v6")?.keys().filter_map(|key| abi::FlowV6::from_bytes(&key)?.flow());
        Ok(v4.chain(v6).collect())
    }

    /// Where everything is pinned.
    pub fn pin_path(&self) -> &Path {
        self.pins.path()
    }

    /// What became of packets that took no rule, summed over CPUs: in the order of [`abi::EVENTS`].
    pub fn events(&self) -> Result<[u64; abi::EVENTS.len()]> {
        let mut sums = [0; abi::EVENTS.len()];
        for cpu in self.per_cpu("events", 0)? {
            for (sum, word) in sums.iter_mut().zip(cpu.as_chunks::<8>().0) {
                *sum += u64::from_ne_bytes(*word);
            }
        }
        Ok(sums)
    }

    /// What rules with this `total` have carried, summed over CPUs.
    pub fn total(&self, total: u32) -> Result<abi::Total> {
        let mut sum = abi::Total::default();
        for cpu in self.per_cpu("totals", total)? {
            let one = abi::Total::from_bytes(&cpu).unwrap_or_default();
            sum.packets += one.packets;
            sum.bytes += one.bytes;
        }
        Ok(sum)
    }

    /// The first `count` of what [`Plane::total`] gives.
    pub fn totals(&self, count: u32) -> Result<Vec<abi::Total>> {
        (0..count).map(|total| self.total(total)).collect()
    }

    fn per_cpu(&self, map: &str, index: u32) -> Result<Vec<Vec<u8>>> {
        let found = self.maps.named(map)?.lookup_percpu(index.bytes(), MapFlags::ANY);
        found.with_context(|| format!("cannot read map {map}"))?.with_context(|| format!("map {map} has no {index}"))
    }

    /// Detaches the programs and unpins everything. Rules, counters, all is gone once this process has dropped what it
    /// holds of it. Goes on after an error and reports the first.
    pub fn detach(mut self) -> Result<()> {
        let mut result = Ok(());
        for attachment in self.attachments.drain(..) {
            result = result.and(attachment.detach());
        }
        result.and(self.pins.clear())
    }
}

/// Opens the object, sizes its maps, sets its constants, loads it.
fn load_object(options: &Options) -> Result<Object> {
    ensure!(options.rules_v4_max > 0 && options.rules_v6_max > 0, "no room for rules: at least one of each family");
    let mut open = ObjectBuilder::default().open_memory(OBJECT).context("the embedded BPF object is damaged")?;
    let mark = give_back_mark();
    for mut map in open.maps_mut() {
        let name = map.name().to_string_lossy().into_owned();
        match name.as_str() {
            "rules_v4" | "numbers_v4" => map.set_max_entries(options.rules_v4_max)?,
            "rules_v6" | "numbers_v6" => map.set_max_entries(options.rules_v6_max)?,
            _ if name.ends_with(".rodata") => {
                // give_back_mark, then hop (linux/bpf/maps.h).
                let Some([a, b, c, d, hop, ..]) = map.initial_value_mut() else {
                    bail!("the embedded BPF object has other constants than this build expects");
                };
                [*a, *b, *c, *d] = mark.to_ne_bytes();
                *hop = u8::from(!options.keep_ttl);
            }
            _ => {}
        }
    }
    open.load().context(
        "cannot load the BPF programs: Linux 6.1 or later, CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON are needed, \
         and memory for the rules",
    )
}

/// Something that nobody else marks packets with: random, not zero.
fn give_back_mark() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    (RandomState::new().hash_one(std::process::id()) as u32) | 1
}

fn program(object: &Object, name: &str) -> Result<OwnedFd> {
    let found = object.progs().find(|program| program.name() == name);
    let program = found.with_context(|| format!("the BPF object has no program {name}"))?;
    program.as_fd().try_clone_to_owned().with_context(|| format!("cannot keep program {name}"))
}

/// Every service's and backend's end and what it is.
fn ends(snapshot: &Snapshot) -> HashMap<abi::End, abi::EndRoles> {
    let mut ends: HashMap<abi::End, abi::EndRoles> = HashMap::new();
    let vacant = |service: &Service| service.state == ServiceState::Vacant;
    for (number, service) in snapshot.services.iter().enumerate().filter(|(_, service)| !vacant(service)) {
        let number = number as u16;
        let roles = ends.entry(abi::End::of(&service.endpoint, service.protocol)).or_insert_with(Bytes::zeroed);
        roles.roles |= abi::END_SERVICE;
        roles.service = number;
        for backend in &service.backends {
            let roles = ends.entry(abi::End::of(&backend.endpoint, service.protocol)).or_insert_with(Bytes::zeroed);
            if roles.roles & abi::END_BACKEND == 0 {
                roles.roles |= abi::END_BACKEND;
                roles.backend_service = number;
            }
        }
    }
    ends
}

/// The addresses of VIPs and of the pool.
fn addresses(snapshot: &Snapshot) -> Vec<[u8; 16]> {
    let there = snapshot.services.iter().filter(|service| service.state != ServiceState::Vacant);
    let mut addresses: Vec<[u8; 16]> = there.map(|service| service.endpoint.address.0).collect();
    if snapshot.services.iter().any(|service| service.forwarding == Forwarding::FullNat) {
        addresses.extend(snapshot.pool.addresses.iter().map(|address| address.0));
    }
    addresses.sort_unstable();
    addresses.dedup();
    addresses
}

/// The result of a libbpf function that returns a negative errno.
pub(crate) fn checked(result: i32) -> std::io::Result<i32> {
    if result < 0 { Err(std::io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

pub(crate) fn raw(fd: BorrowedFd<'_>) -> i32 {
    fd.as_raw_fd()
}
