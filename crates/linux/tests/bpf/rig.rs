//! A plane loaded in a network and mount namespace of its own, with two devices, and ways to run its programs.

use hairpin_core::config::{Algorithm, Backend, BackendState, Forwarding, Pool, Service, Snapshot, Timeouts};
use hairpin_core::engine::Rule;
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol, Steering};
use hairpin_core::l7::config::Kind;
use hairpin_core::time::{Duration, Time};
use hairpin_linux::abi::{self, Bytes, FlowV4, FlowV6, RuleHead, RuleV4, RuleV6, SequenceChange};
use hairpin_linux::cpu;
use hairpin_linux::device::Interface;
use hairpin_linux::programs::{AttachMode, LoadedPlane, ProgramOptions};
use libbpf_rs::{MapCore, MapFlags};
use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

pub(crate) const OK: i32 = -1; // TC_ACT_UNSPEC: on to the kernel
pub(crate) const SHOT: i32 = 2;
pub(crate) const REDIRECT: i32 = 7;

pub(crate) const XDP_DROP: i32 = 1;
pub(crate) const XDP_PASS: i32 = 2;
pub(crate) const XDP_TX: i32 = 3;
pub(crate) const XDP_REDIRECT: i32 = 4;

/// The loopback device's number in every network namespace.
pub(crate) const LOOPBACK: u32 = 1;

pub(crate) const KEY: [u64; 2] = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];

pub(crate) const VIP: [u8; 4] = [192, 0, 2, 10];
pub(crate) const CLIENT: [u8; 4] = [10, 1, 0, 2];
pub(crate) const BACKEND: [u8; 4] = [10, 2, 0, 2];
pub(crate) const BACKEND_MAC: [u8; 6] = [2, 0, 0, 0, 2, 2];
pub(crate) const POOL: [u8; 4] = [10, 3, 0, 1];
pub(crate) const POOL_PORT: u16 = 20_000;

/// Runs `test` on a thread with network and mount namespaces of its own, which are gone when it returns.
pub(crate) fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let outcome = std::thread::spawn(move || {
        // SAFETY: changes this thread alone.
        if unsafe { libc::unshare(libc::CLONE_NEWNET | libc::CLONE_NEWNS) } < 0 {
            eprintln!("skipped: needs root ({})", std::io::Error::last_os_error());
            return;
        }
        command("mount", &["--make-rprivate", "/"]);
        command("mount", &["-t", "tmpfs", "tmpfs", "/run"]);
        // The machine's own BPF file system would keep what a test leaves, and show it to others.
        if std::path::Path::new("/sys/fs/bpf").is_dir() {
            command("mount", &["-t", "tmpfs", "tmpfs", "/sys/fs/bpf"]);
        }
        command("ip", &["link", "set", "lo", "up"]);
        // Tickets and counters are per CPU: stay on one. Tests that run at a time stay on different ones.
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let cpus = CPUS.get_or_init(|| cpu::allowed().unwrap());
        cpu::pin(cpus[STARTED.fetch_add(1, Ordering::Relaxed) % cpus.len()]).unwrap();
        test();
    });
    if let Err(panic) = outcome.join() {
        std::panic::resume_unwind(panic);
    }
}

/// The CPUs that tests may run on.
static CPUS: OnceLock<Vec<usize>> = OnceLock::new();

/// A CPU on which the calling test does not run, if there is one.
pub(crate) fn other_cpu() -> Option<usize> {
    let own = cpu::allowed().unwrap();
    CPUS.get().unwrap().iter().copied().find(|cpu| !own.contains(cpu))
}

/// How programs can be attached to devices here: by tcx since Linux 6.6.
pub(crate) fn attach_modes() -> Vec<AttachMode> {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.trim().parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap(), numbers.next().unwrap());
    if version < (6, 6) { vec![AttachMode::Clsact] } else { vec![AttachMode::Tcx, AttachMode::Clsact] }
}

pub(crate) fn command(name: &str, arguments: &[&str]) -> String {
    let output = Command::new(name).args(arguments).output().unwrap_or_else(|e| panic!("{name}: {e}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{name} {arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn ip(line: &str) {
    command("ip", &line.split_whitespace().collect::<Vec<_>>());
}

/// The result of a run of a program.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) verdict: i32,
    pub(crate) frame: Vec<u8>,
    pub(crate) mark: u32,
}

/// The metadata of the socket buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Buffer {
    pub(crate) mark: u32,
    pub(crate) gso_size: u32,
    pub(crate) gso_segs: u32,
    /// The kernel knows the sum of the packet's bytes, and checks afterwards that it still does.
    pub(crate) checksum_complete: bool,
}

pub(crate) struct Rig {
    pub(crate) plane: LoadedPlane,
    pub(crate) options: ProgramOptions,
    pub(crate) left: Interface,
    pub(crate) right: Interface,
}

/// One service of each kind on the VIP's port 80, TCP and UDP, one backend each; port 81 is full NAT.
pub(crate) fn snapshot() -> Snapshot {
    let end = |address: [u8; 4], port| Endpoint { address: Address::from_ipv4(address), port };
    let end6 =
        |text: &str, port| Endpoint { address: Address(text.parse::<std::net::Ipv6Addr>().unwrap().octets()), port };
    let service = |number, endpoint, backend, protocol, forwarding| Service {
        state: Default::default(),
        name: "service".into(),
        endpoint,
        protocol,
        kind: Kind::Forward,
        forwarding,
        algorithm: Algorithm::default(),
        unknown: Default::default(),
        timeouts: Timeouts::default(),
        drain_limit: Duration::ZERO,
        all_down: Default::default(),
        backends: [Backend {
            number,
            name: "b".into(),
            endpoint: backend,
            weight: 1,
            state: BackendState::Enabled,
            is_backup: false,
            connections_max: 0,
        }]
        .into(),
        ..Service::vacant()
    };
    let nat = Forwarding::Nat;
    Snapshot::new(
        [
            service(0, end(VIP, 80), end(BACKEND, 8080), Protocol::Tcp, nat),
            service(1, end(VIP, 80), end(BACKEND, 8080), Protocol::Udp, nat),
            service(2, end6("2001:db8::10", 80), end6("fd02::2", 8080), Protocol::Tcp, nat),
            service(3, end(VIP, 81), end(BACKEND, 8081), Protocol::Tcp, Forwarding::FullNat),
        ]
        .into(),
        Pool {
            addresses: [Address::from_ipv4(POOL)].into(),
            port_first: POOL_PORT,
            port_last: POOL_PORT + 1000,
            time_wait: Duration::from_secs(60),
        },
    )
}

/// MACs that tell a rule's frames from the kernel's own.
pub(crate) const NEXT_HOP: [u8; 12] = [2, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2];

/// Devices `left` (clients: 10.1.0.0/24, fd01::/64) and `right` (backends: 10.2.0.0/24, fd02::/64), each with a peer,
/// and forwarding.
pub(crate) fn devices() -> (Interface, Interface) {
    for (name, net) in [("left", 1), ("right", 2)] {
        ip(&format!("link add {name} type veth peer name {name}-peer"));
        for device in [name.to_string(), format!("{name}-peer")] {
            ip(&format!("link set {device} up"));
        }
        ip(&format!("addr add 10.{net}.0.1/24 dev {name}"));
        ip(&format!("addr add fd0{net}::1/64 dev {name} nodad"));
        ip(&format!("neigh add 10.{net}.0.2 lladdr 02:00:00:00:0{net}:02 dev {name}"));
        ip(&format!("neigh add fd0{net}::2 lladdr 02:00:00:00:0{net}:02 dev {name}"));
    }
    for file in [
        "ipv4/conf/all/forwarding",
        "ipv4/conf/left/forwarding",
        "ipv4/conf/right/forwarding",
        "ipv6/conf/all/forwarding",
    ] {
        std::fs::write(format!("/proc/sys/net/{file}"), "1").unwrap();
    }
    (Interface::by_name("left").unwrap(), Interface::by_name("right").unwrap())
}

impl Rig {
    /// The devices, a plane with a heartbeat, rates without limit, every worker on a device.
    pub(crate) fn new(workers: u16, change: impl FnOnce(&mut ProgramOptions)) -> Rig {
        let (left, right) = devices();
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut options = ProgramOptions { instance: format!("test-{number}"), ..ProgramOptions::default() };
        options.policer_backend_pps = u32::MAX;
        change(&mut options);
        let mut plane = LoadedPlane::load(&options, Steering::by_hash(KEY, workers)).unwrap();
        plane.configure(&snapshot()).unwrap();
        plane.attach(0, left.index, left.mac).unwrap();
        plane.attach(1, right.index, right.mac).unwrap();
        let rig = Rig { plane, options, left, right };
        rig.heartbeat();
        for service in 0..snapshot().services.len() {
            rig.plane.control().set_client_rate(service, u32::MAX);
        }
        for worker in 0..u32::from(workers) {
            rig.write("workers", &worker, &1u32);
        }
        rig
    }

    pub(crate) fn heartbeat(&self) {
        self.plane.control().heartbeat(cpu::now());
    }

    pub(crate) fn stop_beating(&self) {
        self.plane.control().heartbeat(Time::ZERO);
    }

    pub(crate) fn write<K: Bytes, V: Bytes>(&self, map: &str, key: &K, value: &V) {
        self.plane.maps().named(map).unwrap().update(key.bytes(), value.bytes(), MapFlags::ANY).unwrap();
    }

    /// Puts a rule in, as it comes from an engine but for what `change` does to it.
    pub(crate) fn put(&self, rule: &Rule, worker: u8, change: impl FnOnce(&mut RuleHead)) {
        if rule.key.is_ipv4() {
            let mut value = RuleV4::of(rule, worker);
            change(&mut value.head);
            self.write("sequence_v4", &FlowV4::of(&rule.key), &SequenceChange::of(rule, &value));
            self.plane.rule_table().write(&FlowV4::of(&rule.key), &value).unwrap();
        } else {
            let mut value = RuleV6::of(rule, worker);
            change(&mut value.head);
            self.write("sequence_v6", &FlowV6::of(&rule.key), &SequenceChange::of(rule, &value));
            self.write("rules_v6", &FlowV6::of(&rule.key), &value);
        }
    }

    /// Puts a rule in force, with a next hop at [`NEXT_HOP`] by the interface `egress` that stays good.
    pub(crate) fn settled(&self, egress: u32, mtu: u16, wrapped: bool) -> impl Fn(&mut RuleHead) + use<> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = 1 + NUMBER.fetch_add(1, Ordering::Relaxed) % (abi::NEXT_HOPS_MAX as u32 - 1);
        self.write("next_hops", &number, &abi::NextHop::lasting(egress, NEXT_HOP, mtu, wrapped));
        move |head| {
            head.flags |= abi::RULE_ACTIVE;
            head.until = ((cpu::now().as_nanos() >> 20) as u32).wrapping_add(1 << 20);
            head.next_hop = number as u16;
        }
    }

    /// The next hop of a rule; `None`: it has none yet.
    pub(crate) fn next_hop(&self, head: &RuleHead) -> Option<abi::NextHop> {
        let number = u32::from(head.next_hop);
        let value = self.plane.maps().named("next_hops").unwrap().lookup(number.bytes(), MapFlags::ANY).unwrap();
        value.filter(|_| number != 0).and_then(|value| abi::NextHop::from_bytes(&value))
    }

    /// The rule for `key` as it is now.
    pub(crate) fn head(&self, key: &FlowKey) -> RuleHead {
        if key.is_ipv4() {
            return self.plane.rule_table().find(&FlowV4::of(key)).unwrap().expect("no such rule").head;
        }
        let value = self.plane.maps().named("rules_v6").unwrap().lookup(FlowV6::of(key).bytes(), MapFlags::ANY);
        RuleHead::from_bytes(&value.unwrap().expect("no such rule")).unwrap()
    }

    /// The tickets given so far, per worker.
    pub(crate) fn tickets(&self) -> Vec<u32> {
        let cpus = self.plane.maps().named("tickets").unwrap().lookup_percpu(0u32.bytes(), MapFlags::ANY);
        let mut sums = vec![0; abi::WORKERS_MAX];
        for cpu in cpus.unwrap().unwrap() {
            for (sum, word) in sums.iter_mut().zip(cpu.as_chunks::<4>().0) {
                *sum += u32::from_ne_bytes(*word);
            }
        }
        sums
    }

    /// Runs the ingress program on a frame that arrives on `left`.
    pub(crate) fn ingress(&self, frame: &[u8]) -> Run {
        self.ingress_as(frame, Buffer::default()).unwrap()
    }

    pub(crate) fn ingress_as(&self, frame: &[u8], buffer: Buffer) -> std::io::Result<Run> {
        run(self.plane.ingress_program(), frame, self.left.index, buffer)
    }

    /// Runs the XDP program on a frame, which arrives on the loopback device: the kernel offers no other. It is a named
    /// interface here, by a slot of its own, with the address of `left`; frames may leave by it with `XDP_TX`, or not.
    pub(crate) fn xdp(&self, frame: &[u8], sends_back: bool) -> Run {
        const SLOT: u32 = 63;
        let sends_back = u8::from(sends_back);
        let entry = abi::InterfaceEntry { ifindex: LOOPBACK, address: self.left.mac, sends_back, zero: 0 };
        self.write("interfaces", &SLOT, &entry);
        self.write("slots", &LOOPBACK, &SLOT);
        let options = libbpf_sys::bpf_test_run_opts { repeat: 1, ..Default::default() };
        let (verdict, frame) = test_run(self.plane.xdp_program(), frame, options).unwrap();
        Run { verdict, frame, mark: 0 }
    }

    /// Runs the worker program on a frame that a worker has written.
    pub(crate) fn worker(&self, frame: &[u8]) -> Run {
        self.worker_as(frame, Buffer::default())
    }

    pub(crate) fn worker_as(&self, frame: &[u8], buffer: Buffer) -> Run {
        run(self.plane.worker_program(), frame, self.right.index, buffer).unwrap()
    }

    /// The events that `act` counts; zero counts are left out.
    pub(crate) fn counted<T>(&self, act: impl FnOnce() -> T) -> (T, BTreeMap<&'static str, u64>) {
        let before = self.plane.events().unwrap();
        let result = act();
        let after = self.plane.events().unwrap();
        let differences = abi::EVENTS.iter().zip(before.iter().zip(after)).map(|((name, _), (b, a))| (*name, a - b));
        (result, differences.filter(|(_, count)| *count != 0).collect())
    }
}

/// Offsets in `struct __sk_buff`.
const MARK: usize = 8;
const IFINDEX: usize = 40;
const GSO_SEGS: usize = 164;
const GSO_SIZE: usize = 176;
const SK_BUFF_BYTES: usize = 192;

const BPF_F_TEST_SKB_CHECKSUM_COMPLETE: u32 = 4;

/// Runs a program once on a frame, with what `options` say beside it: its verdict, and the frame that it leaves.
fn test_run(
    program: BorrowedFd<'_>,
    frame: &[u8],
    options: libbpf_sys::bpf_test_run_opts,
) -> std::io::Result<(i32, Vec<u8>)> {
    let mut out = vec![0u8; frame.len() + 256];
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        data_in: frame.as_ptr().cast(),
        data_size_in: frame.len() as u32,
        data_out: out.as_mut_ptr().cast(),
        data_size_out: out.len() as u32,
        ..options
    };
    // SAFETY: the options, the buffers they point to and the caller's context live through the call.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) };
    if result < 0 {
        return Err(std::io::Error::from_raw_os_error(-result));
    }
    out.truncate(options.data_size_out as usize);
    Ok((options.retval as i32, out))
}

pub(crate) fn run(program: BorrowedFd<'_>, frame: &[u8], ifindex: u32, buffer: Buffer) -> std::io::Result<Run> {
    let mut context = [0u8; SK_BUFF_BYTES];
    let mut put = |at: usize, value: u32| context[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    put(MARK, buffer.mark);
    put(IFINDEX, ifindex);
    put(GSO_SEGS, buffer.gso_segs);
    put(GSO_SIZE, buffer.gso_size);
    let mut context_out = [0u8; SK_BUFF_BYTES];
    let options = libbpf_sys::bpf_test_run_opts {
        ctx_in: context.as_ptr().cast(),
        ctx_size_in: context.len() as u32,
        ctx_out: context_out.as_mut_ptr().cast(),
        ctx_size_out: context_out.len() as u32,
        flags: if buffer.checksum_complete { BPF_F_TEST_SKB_CHECKSUM_COMPLETE } else { 0 },
        repeat: 1,
        ..Default::default()
    };
    let (verdict, frame) = test_run(program, frame, options)?;
    let mark = u32::from_ne_bytes(context_out[MARK..MARK + 4].try_into().unwrap());
    Ok(Run { verdict, frame, mark })
}
