//! Loading the BPF programs, attaching them, telling them what they balance, reading what they count.
//!
//! Everything is pinned under `<pin directory>/<instance>/`: `maps/`, `programs/`, `links/`. What is pinned outlives
//! the process: the next one adopts it ([`LoadedPlane::adopt`]); [`LoadedPlane::detach`] and [`flush`] remove it.
//! Interfaces are those of the network namespace the calling thread is in, and so must be the caller of `flush`.

mod access;
mod adopt;
mod attach;
pub mod checks;
mod configure;
mod counters;
mod filters;
mod monitor_hook;
mod object;
mod pins;
mod reader;
mod refusal;
mod rules;
mod set_up;
mod table;
mod xdp;

pub use adopt::AdoptedPrograms;
pub use attach::AttachMode;
pub use object::Maps;
pub use pins::{PIN_DIRECTORY_DEFAULT, PIN_DIRECTORY_OWN, flush, is_lasting};
pub use reader::RuleReader;
pub use rules::InstalledRule;
pub use set_up::SetUpRoom;
pub use table::RuleTable;
pub use xdp::has_whole_checksums;

pub(crate) use attach::Passing;
pub(crate) use monitor_hook::MonitorHook;
pub(crate) use object::{Queries, load_object};

use crate::abi::{self, Bytes};
use crate::control::{self, Control};
use crate::cpu;
use crate::engine::KernelEngine;
use access::AccessInForce;
use anyhow::{Context, Result, ensure};
use attach::{Attachment, Hook};
use checks::CheckDevice;
use hairpin_core::flow::Steering;
use hairpin_core::l7::cookie::Cookies;
use libbpf_rs::{MapCore, MapFlags};
use object::{Constants, Programs};
use pins::Pins;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The map that says whether the others can be understood.
const CONTROL: &str = "control";

/// The load options of the programs.
#[derive(Clone, Debug)]
pub struct ProgramOptions {
    /// Name of the instance: the directory its objects are pinned in.
    pub instance: String,
    /// The directory of pinned objects. If no BPF file system is mounted there, one is mounted at [`PIN_DIRECTORY_OWN`] and
    /// used instead.
    pub pin_directory: PathBuf,
    /// IPv4 rules at most. The memory is taken at once, 112 bytes a rule.
    pub rules_v4_max: u32,
    /// IPv6 rules at most. The memory is taken at once, 176 bytes a rule, unless they are sparse.
    pub rules_v6_max: u32,
    /// IPv6 rules are not expected (yet): each takes its memory when it is installed, which is slower and may fail.
    pub rules_v6_sparse: bool,
    /// Rules of each family at most that translate sequence numbers, and no more than its rules: each hash bucket takes 16 bytes
    /// at once, and 112 or 136 more with the rule.
    pub sequences_max: u32,
    /// Room for connections that the programs set up by themselves; `None`: they do not.
    pub set_up: Option<SetUpRoom>,
    /// How programs are attached to devices.
    pub attach: AttachMode,
    /// The treatment of the workers' packets while the process is away.
    pub when_absent: Absent,
    /// How long connections are set up without a process, once its heartbeat is too old; to the millisecond, 49 days at most.
    pub serve_for: Duration,
    /// How old the process's heartbeat may be before it counts as away.
    pub heartbeat_timeout: Duration,
    /// Packets of unknown connections from a service's backends that each CPU admits per second; [`u32::MAX`]: all.
    pub policer_backend_pps: u32,
    /// How long a hand-over from worker to rule may wait for packets that are still on their way.
    pub handover_bound: Duration,
    /// For measuring by repetition only: packets keep their TTL, so that they can go round. See [`crate::cost`].
    pub keep_ttl: bool,
}

impl Default for ProgramOptions {
    fn default() -> ProgramOptions {
        ProgramOptions {
            instance: "default".to_string(),
            pin_directory: PathBuf::from(PIN_DIRECTORY_DEFAULT),
            rules_v4_max: 65_536,
            rules_v6_max: 65_536,
            rules_v6_sparse: false,
            sequences_max: u32::MAX,
            set_up: None,
            attach: AttachMode::Auto,
            when_absent: Absent::Drop,
            serve_for: Duration::ZERO,
            heartbeat_timeout: Duration::from_secs(3),
            policer_backend_pps: 100_000,
            handover_bound: Duration::from_millis(100),
            keep_ttl: false,
        }
    }
}

/// The fate of packets that no rule takes while no process serves: `ABSENT_*` of handover.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Absent {
    /// The kernel gets them.
    Pass = 0,
    /// They are dropped, except what a backend sends to a host that has no connection through this instance.
    Drop = 1,
    /// They are dropped: connections are not tracked, so a backend's packets cannot be told apart.
    DropAll = 2,
}

impl ProgramOptions {
    fn serve_ms(&self) -> u32 {
        self.serve_for.as_millis().try_into().unwrap_or(u32::MAX)
    }
}

/// The loaded programs and their maps. Dropping it leaves everything pinned as it is.
#[derive(Debug)]
pub struct LoadedPlane {
    pins: Pins,
    maps: Arc<Maps>,
    control: Arc<Control>,
    programs: Programs,
    attach: AttachMode,
    attachments: Vec<Attachment>,
    rules: (u32, u32),
    /// Whether health checks take the way of clients' packets.
    has_checks: bool,
    /// The device of checks.
    check_device: CheckDevice,
    /// Memory shared with the programs that set connections up; `None`: they do not.
    set_up: Option<set_up::SetUpMemory>,
    access: AccessInForce,
}

impl LoadedPlane {
    /// Loads programs and maps and pins them. What a dead instance of the same name has left is removed first; that no
    /// living one has it is for the caller to make sure. Nothing is attached yet. Errors: no rights (CAP_BPF,
    /// CAP_NET_ADMIN, CAP_PERFMON, and CAP_SYS_ADMIN to mount a BPF file system), no memory for so many rules, a kernel
    /// older than 6.1, more CPUs than [`abi::CPUS_MAX`].
    pub fn load(options: &ProgramOptions, steering: Steering) -> Result<LoadedPlane> {
        check(steering)?;
        let pins = Pins::create(&options.pin_directory, &options.instance)?;
        let constants = Constants::fresh(options);
        let object = object::load(object::open(options)?, &constants, None)?;
        let maps = Arc::new(Maps::of(&object)?);
        let plane = LoadedPlane {
            control: Arc::new(Control::map(&maps)?),
            programs: Programs::of(&object)?,
            rules: (options.rules_v4_max, options.rules_v6_max),
            attach: options.attach,
            attachments: Vec::new(),
            has_checks: false,
            check_device: CheckDevice::default(),
            set_up: None,
            access: AccessInForce::default(),
            pins,
            maps,
        };
        let [[a, b], [c, d], [e, _]] = [draw_key()?, draw_key()?, draw_key()?];
        let rule_keys = [a, b, c, d, e];
        let [rule_buckets, spill_buckets] = table::buckets(options.rules_v4_max);
        let block = abi::ControlBlock {
            abi_version: abi::VERSION,
            abi_layout: abi::LAYOUT,
            steering_key: steering.key,
            workers: u32::from(steering.workers),
            absent_drop: options.when_absent as u32,
            heartbeat_ns: 0,
            heartbeat_timeout_ns: options.heartbeat_timeout.as_nanos() as u64,
            policer_backend_pps: options.policer_backend_pps,
            handover_ms: options.handover_bound.as_millis() as u32,
            programs: constants.fingerprint(),
            to_kernel_mark: constants.to_kernel_mark,
            network: pins::network()?,
            cookie_keys: [draw_key()?, draw_key()?],
            cookie_epoch: Cookies::epoch(cpu::now()) + 1,
            cookie_ahead_ns: 0,
            clock_ahead: steering.clock_ahead(),
            direct: 0,
            follow: 0,
            serve_ms: options.serve_ms(),
            check_device: 0,
            rule_buckets,
            rule_keys,
            rules_v4_max: options.rules_v4_max,
            spill_buckets,
        };
        plane.set("control", 0, &block)?;
        plane.pin()?;
        Ok(plane)
    }

    fn pin(&self) -> Result<()> {
        for (name, program) in self.programs.named() {
            self.pins.pin_program(program.as_fd(), name)?;
        }
        for (name, map) in self.maps.0.iter().filter(|(name, _)| *name != CONTROL) {
            self.pins.pin_map(map.as_fd(), name)?;
        }
        // Last: by it one knows that what is pinned is complete.
        self.pins.pin_map(self.maps.named(CONTROL)?.as_fd(), CONTROL)
    }

    fn set<T: Bytes>(&self, map: &str, index: u32, value: &T) -> Result<()> {
        let result = self.maps.named(map)?.update(index.bytes(), value.bytes(), MapFlags::ANY);
        result.with_context(|| format!("cannot write element {index} of map {map}"))
    }

    /// Attaches the ingress program to the interface `ifindex` with MAC address `address`, which the workers know by
    /// `slot`, 0 to [`abi::INTERFACES_MAX`] - 1. An attachment that is there already, also an earlier process's, is
    /// taken over: from one packet to the next its program is replaced.
    pub fn attach(&mut self, slot: u32, ifindex: u32, address: [u8; 6]) -> Result<()> {
        ensure!((slot as usize) < abi::INTERFACES_MAX, "interface slot {slot}: there are {}", abi::INTERFACES_MAX);
        self.set("interfaces", slot, &abi::InterfaceEntry { ifindex, address, sends_back: 0, zero: 0 })?;
        let slots = self.maps.named("slots")?;
        slots.update(ifindex.bytes(), slot.bytes(), MapFlags::ANY).context("cannot add to map slots")?;
        let hook = Hook::ingress(ifindex);
        let attachment = Attachment::make(self.attach, self.programs.ingress.as_fd(), hook, &self.pins.links())?;
        self.keep(attachment);
        if self.has_checks {
            self.attach_check(ifindex)?;
            self.route_checks()?;
        }
        Ok(())
    }

    /// The named interfaces, by ifindex.
    fn interfaces(&self) -> Result<Vec<u32>> {
        let slots = self.maps.named("slots")?;
        Ok(slots.keys().filter_map(|key| u32::from_bytes(&key)).collect())
    }

    /// The slot of the interface `ifindex`; `None` if it has none. One that had a slot should keep it: frames that are
    /// on their way through a worker name their interface by it.
    pub fn slot(&self, ifindex: u32) -> Result<Option<u32>> {
        let found =
            self.maps.named("slots")?.lookup(ifindex.bytes(), MapFlags::ANY).context("cannot read map slots")?;
        Ok(found.and_then(|slot| u32::from_bytes(&slot)))
    }

    /// Attaches the worker program to the TAP device `ifindex` of `worker`, and from now on sends packets there. What
    /// is attached already is taken over as by [`LoadedPlane::attach`].
    pub fn attach_worker(&mut self, worker: u32, ifindex: u32) -> Result<()> {
        ensure!((worker as usize) < abi::WORKERS_MAX, "worker {worker}: there are {}", abi::WORKERS_MAX);
        let hook = Hook::ingress(ifindex);
        let attachment = Attachment::make(self.attach, self.programs.worker.as_fd(), hook, &self.pins.links())?;
        self.keep(attachment);
        self.set("workers", worker, &ifindex)
    }

    fn keep(&mut self, attachment: Attachment) {
        self.attachments.retain(|other| other.hook() != attachment.hook());
        self.attachments.push(attachment);
    }

    /// Detaches the programs from every device that is not in `devices` (interfaces and TAP devices, by ifindex), also
    /// where an earlier process has attached them, and forgets these devices. For interfaces and workers that the
    /// configuration has no longer, after everything else stands; rules of such workers have been passed on before
    /// ([`LoadedPlane::assign_rules`]), and [`LoadedPlane::steer`] no longer names them.
    pub fn detach_others(&mut self, devices: &[u32]) -> Result<()> {
        let devices = &[devices, &[self.check_device.ifindex]].concat()[..];
        for worker in 0..abi::WORKERS_MAX as u32 {
            let device = self.maps.named("workers")?.lookup(worker.bytes(), MapFlags::ANY)?;
            let device = device.and_then(|device| u32::from_bytes(&device)).unwrap_or(0);
            if device != 0 && !devices.contains(&device) {
                self.set("workers", worker, &0u32)?;
            }
        }
        self.attachments.retain(|attachment| devices.contains(&attachment.ifindex()));
        let others = attach::noted(&self.pins.links())?.into_iter().filter(|other| !devices.contains(&other.ifindex()));
        others.map(Attachment::detach).fold(Ok(()), Result::and)?;
        self.forget_devices(devices)?;
        let slots = self.maps.named("slots")?;
        let known: Vec<Vec<u8>> = slots.keys().collect();
        for ifindex in known.iter().filter(|key| u32::from_bytes(key).is_none_or(|ifindex| !devices.contains(&ifindex)))
        {
            slots.delete(ifindex).context("cannot take from map slots")?;
        }
        for slot in 0..abi::INTERFACES_MAX as u32 {
            let interface = self.maps.named("interfaces")?.lookup(slot.bytes(), MapFlags::ANY)?;
            let ifindex = interface.and_then(|entry| abi::InterfaceEntry::from_bytes(&entry)).map_or(0, |i| i.ifindex);
            if ifindex != 0 && !devices.contains(&ifindex) {
                self.set("interfaces", slot, &abi::InterfaceEntry::zeroed())?;
            }
        }
        Ok(())
    }

    /// Spreads connections as `steering` says from now on: when the number of workers has changed and all of them are
    /// attached and ready. With another key, packets that arrive in the same nanoseconds may go to a wrong worker.
    pub fn steer(&self, steering: Steering) -> Result<()> {
        check(steering)?;
        let block = self.control.block();
        for (shared, word) in block.steering_key.iter().zip(steering.key) {
            shared.store(word, Ordering::Relaxed);
        }
        block.workers.store(u32::from(steering.workers), Ordering::Release);
        Ok(())
    }

    /// How connections are spread over workers now.
    pub fn steering(&self) -> Steering {
        let block = self.control.block();
        let key = [0, 1].map(|word| block.steering_key[word].load(Ordering::Relaxed));
        Steering::by_hash(key, block.workers.load(Ordering::Acquire) as u16)
    }

    /// How many rules there is room for: IPv4, IPv6. An adopted plane's room is what it was made with.
    pub fn rules_max(&self) -> (u32, u32) {
        self.rules
    }

    /// How many rules that translate sequence numbers there is room for: IPv4, IPv6.
    ///
    /// # Errors
    /// A map is missing.
    pub fn sequences_max(&self) -> Result<(u32, u32)> {
        Ok((self.maps.named("sequence_v4")?.max_entries(), self.maps.named("sequence_v6")?.max_entries()))
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
        let set_up = self.set_up_of(worker)?;
        KernelEngine::new(worker, (&self.control, set_up), &self.programs.queries, self.rules)
    }

    /// The ingress program, to run it in tests.
    pub fn ingress_program(&self) -> BorrowedFd<'_> {
        self.programs.ingress.as_fd()
    }

    /// The worker program, to run it in tests.
    pub fn worker_program(&self) -> BorrowedFd<'_> {
        self.programs.worker.as_fd()
    }

    /// The program for health checks, to run it in tests.
    pub fn check_program(&self) -> BorrowedFd<'_> {
        self.programs.check.as_fd()
    }

    /// Whether the programs are attached by tcx; else by clsact filters. `None` if none is attached.
    pub fn is_tcx(&self) -> Option<bool> {
        self.attachments.iter().find(|attachment| !attachment.is_xdp()).map(Attachment::is_tcx)
    }

    /// The directory where filters of monitors are noted.
    pub fn monitors_path(&self) -> PathBuf {
        self.pins.monitors()
    }

    /// The directory of pinned objects.
    pub fn pin_path(&self) -> &Path {
        self.pins.path()
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

/// Whether this build can serve so many workers, and this machine's CPUs.
fn check(steering: Steering) -> Result<()> {
    let workers = usize::from(steering.workers);
    ensure!((1..=abi::WORKERS_MAX).contains(&workers), "{workers} workers: 1 to {} are possible", abi::WORKERS_MAX);
    let cpus = libbpf_rs::num_possible_cpus().context("cannot count CPUs")?;
    ensure!(cpus <= abi::CPUS_MAX, "{cpus} CPUs: this build manages {}", abi::CPUS_MAX);
    Ok(())
}

/// A secret, as a key of SYN cookies.
fn draw_key() -> Result<[u64; 2]> {
    control::draw().context("cannot draw a secret")
}

/// The result of a libbpf function that returns a negative errno.
pub(crate) fn checked(result: i32) -> std::io::Result<i32> {
    if result < 0 { Err(std::io::Error::from_raw_os_error(-result)) } else { Ok(result) }
}

pub(crate) fn raw(fd: BorrowedFd<'_>) -> i32 {
    fd.as_raw_fd()
}
