//! The layouts that BPF and this crate share: `crates/linux/bpf/hairpin.h` in Rust, with the same assertions on both sides.
//!
//! Fields the header calls `__be` are in network byte order, everything else in the machine's own.

mod of_core;
mod rule;
mod sequence_change;
mod set_up;

pub use rule::{
    FlowV4, FlowV6, LINE_ELSEWHERE, LINE_ELSEWHERE_ALL, LINE_PROTOCOL, LINE_VERSION, LINES, NEXT_HOPS_MAX, NextHop,
    RULE_ACTIVE, RULE_DIRECT, RULE_FENCED, RULE_FILLING, RULE_PASS, RULE_SEQUENCE, RuleBucket, RuleHead, RuleLine,
    RuleV4, RuleV6,
};
pub use sequence_change::SequenceChange;
pub use set_up::{
    END_SET_UP, END_SET_UP_BACKEND, END_SET_UP_DIRECT, PENDING_ENDED, Pending, PendingKey, REPORT_BEGUN,
    REPORT_SEGMENT, REPORT_SET_UP, REPORT_VOID, REPORTS_MAX, Report, Reports, SCHEDULE_FLOW, SCHEDULE_MAX,
    SCHEDULE_SOURCE, SCHEDULE_TURNS, SCHEDULES_MAX, Schedule, TARGET_CLOSED, TARGET_NONE, TARGET_OPEN, Target,
};

use std::mem::{offset_of, size_of};
use std::net::{Ipv4Addr, Ipv6Addr};

/// The version of the meanings: raised when something comes to mean something else without looking different
/// (`ABI_VERSION`).
pub const VERSION: u32 = 3;
/// The version of the layouts: a hash of `crates/linux/bpf/hairpin.h` without its comments. Programs, maps and process
/// belong together only if it is the same, and [`VERSION`].
pub const LAYOUT: u32 = layout(include_bytes!("../bpf/hairpin.h"));

/// FNV-1a of a C file, white space and comments counted as one space.
const fn layout(text: &[u8]) -> u32 {
    let (mut hash, mut at, mut space) = (0x811c_9dc5_u32, 0, false);
    while at < text.len() {
        if text[at] == b'/' && at + 1 < text.len() && text[at + 1] == b'*' {
            while at + 1 < text.len() && !(text[at] == b'*' && text[at + 1] == b'/') {
                at += 1;
            }
            at += 2;
            space = true;
        } else if text[at].is_ascii_whitespace() {
            at += 1;
            space = true;
        } else {
            if space {
                hash = (hash ^ b' ' as u32).wrapping_mul(0x0100_0193);
                space = false;
            }
            hash = (hash ^ text[at] as u32).wrapping_mul(0x0100_0193);
            at += 1;
        }
    }
    hash
}

/// Workers at most.
pub const WORKERS_MAX: usize = 64;
/// CPUs at most.
pub const CPUS_MAX: usize = 256;
/// Named interfaces at most.
pub const INTERFACES_MAX: usize = 64;
/// Services at most.
pub const SERVICES_MAX: usize = 1024;
/// Backends of all services at most.
pub const BACKENDS_MAX: usize = 16_384;
/// Addresses in the full-NAT pool at most.
pub const POOL_ADDRESSES_MAX: usize = 1024;
/// Cells of the `known` array; a power of two.
pub const KNOWN_CELLS: usize = 1 << 22;
/// Rules of one query at most.
pub const RULE_OPS_MAX: usize = 256;
/// Access rules of a service at most.
pub const ACCESS_RULES_MAX: usize = hairpin_core::access::RULES_MAX;

/// Bits of a ticket.
pub const TICKET_BITS: u32 = 24;
/// Nanoseconds are shifted right by this to become the ticks of a rule's clock (1.05 ms).
pub const TICK_SHIFT: u32 = 20;

/// Types that are nothing but bytes, all of them: no padding, any value is valid.
///
/// # Safety
/// An implementor is `repr(C)`, has no padding, and is valid for every value of its bytes.
pub unsafe trait Bytes: Copy + Sized {
    /// All zeros.
    fn zeroed() -> Self {
        // SAFETY: every value of the bytes is valid.
        unsafe { std::mem::zeroed() }
    }

    /// The bytes.
    fn bytes(&self) -> &[u8] {
        slice_bytes(std::slice::from_ref(self))
    }

    /// The bytes, to change.
    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the same memory, all of it initialised, any value valid, borrowed as long as `self`.
        unsafe { std::slice::from_raw_parts_mut(std::ptr::from_mut(self).cast(), size_of::<Self>()) }
    }

    /// The value whose first bytes these are; `None` if they are too few.
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut value = Self::zeroed();
        value.bytes_mut().copy_from_slice(bytes.get(..size_of::<Self>())?);
        Some(value)
    }
}

/// The bytes of several values in a row.
pub fn slice_bytes<T: Bytes>(values: &[T]) -> &[u8] {
    // SAFETY: the same memory, without padding and all of it initialised, borrowed as long as `values`.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

macro_rules! plain {
    ($($name:ty),*) => { $(
        // SAFETY: `repr(C)`, integers and arrays of integers only, and the assertions below leave no room for padding.
        unsafe impl Bytes for $name {}
    )* };
}

/// Key of `ends`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct EndKey {
    /// The address, IPv4 mapped.
    pub address: [u8; 16],
    /// The port.
    pub port: [u8; 2],
    /// IANA's protocol number.
    pub protocol: u8,
    /// Zero.
    pub zero: u8,
}

/// A service's VIP and port.
pub const END_SERVICE: u16 = 1;
/// A backend's address and port.
pub const END_BACKEND: u16 = 2;
/// For `END_SERVICE`: clients meet SYN cookies.
pub const END_SPLICED: u16 = 4;
/// For `END_SPLICED`: clients are offered timestamps.
pub const END_TIMESTAMPS: u16 = 16;
/// For `END_SPLICED`: packets of no known connection are answered with RST.
pub const END_RESETS: u16 = 8;
/// A service whose connections end at sockets of this host; it is no `END_SERVICE`.
pub const END_TERMINATED: u16 = 32;

/// For `END_SPLICED`: the acknowledgement that ends the handshake begins a connection.
pub const END_PLAIN: u16 = 1024;
/// For `END_SERVICE`: it has access rules.
pub const END_ACCESS: u16 = 512;

/// Key of a trie in `access_rules`: the clients of a service in a network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AccessKey {
    /// Bits of what follows.
    pub length: u32,
    /// The service's number.
    pub service: u32,
    /// The network's address, IPv4 mapped.
    pub client: [u8; 16],
}

/// For [`AccessValue`]: none.
pub const ACCESS_NO_RULE: u8 = 0xff;

/// Value in such a trie: rules by number, or [`ACCESS_NO_RULE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct AccessValue {
    /// The rule that refuses such clients.
    pub denied: u8,
    /// The rule that counts them.
    pub counted: u8,
    /// Zero.
    pub zero: [u8; 2],
}

/// The mark of health checks to backends of direct server return, beside the backend's number in the lower 16 bits.
pub const CHECK_MARK: u32 = 0x4850_0000;
/// The Ethernet address of the device of checks.
pub const CHECK_ADDRESS: [u8; 6] = *b"\x02HPchk";
/// Where checks are sent to whose backend is of another family than the VIP, of the VIP's family: the "dummy address" of RFC
/// 7600, and one of those that RFC 6666 has discarded. No packet on a network has them.
pub const CHECK_STAND_IN_V4: Ipv4Addr = Ipv4Addr::new(192, 0, 0, 8);
/// For IPv6, as [`CHECK_STAND_IN_V4`].
pub const CHECK_STAND_IN_V6: Ipv6Addr = Ipv6Addr::new(0x100, 0, 0, 0, 0, 0, 0x48, 0x50);

/// Value of `directs`: a backend of direct server return, IPv4 mapped; zeros: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct DirectEntry {
    /// The backend's own address.
    pub backend: [u8; 16],
    /// The VIP that it has as well.
    pub vip: [u8; 16],
    /// The source address of outer headers; zeros: not known.
    pub source: [u8; 16],
    /// The destination port of outer UDP headers.
    pub port: [u8; 2],
    /// Which outer headers there are: `ENCAPSULATION_*`.
    pub encapsulation: u8,
    /// Their bytes.
    pub overhead: u8,
    /// 1: they are of IPv6.
    pub ipv6: u8,
    /// 1: the backend is of another family than the VIP, so that nothing can be sent without outer headers.
    pub mixed: u8,
    /// Zero.
    pub zero: [u8; 10],
}

/// For [`DirectEntry::encapsulation`]: an IP header.
pub const ENCAPSULATION_IPIP: u8 = 1;
/// For [`DirectEntry::encapsulation`]: IP and UDP.
pub const ENCAPSULATION_GUE: u8 = 2;

/// Value of `ends`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct EndRoles {
    /// `END_*`.
    pub roles: u16,
    /// For `END_SERVICE`: its number.
    pub service: u16,
    /// For `END_BACKEND`: a service it serves.
    pub backend_service: u16,
    /// For `END_SET_UP`: the number of its schedule; for `END_SET_UP_BACKEND`: its own.
    pub set_up: u16,
}

/// Value of `interfaces`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct InterfaceEntry {
    /// 0: none.
    pub ifindex: u32,
    /// Its MAC address.
    pub address: [u8; 6],
    /// 1: what XDP_TX returns leaves; 0: only what is redirected does.
    pub sends_back: u8,
    /// Zero.
    pub zero: u8,
}

/// The element of `control`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ControlBlock {
    /// [`VERSION`] of what is pinned; 0: it is not complete.
    pub abi_version: u32,
    /// [`LAYOUT`] of what is pinned.
    pub abi_layout: u32,
    /// Secret of the steering hash.
    pub steering_key: [u64; 2],
    /// 1 to [`WORKERS_MAX`]; 0: not configured yet.
    pub workers: u32,
    /// The fate of the workers' packets while no process serves: a number of `programs::Absent`.
    pub absent_drop: u32,
    /// CLOCK_MONOTONIC.
    pub heartbeat_ns: u64,
    /// How old the heartbeat may be.
    pub heartbeat_timeout_ns: u64,
    /// Packets per second from backends of a service that a CPU admits; [`u32::MAX`]: all.
    pub policer_backend_pps: u32,
    /// Bound of a hand-over.
    pub handover_ms: u32,
    /// A hash of the programs that are pinned; 0: they are being replaced.
    pub programs: u64,
    /// The constant of this name in these programs.
    pub to_kernel_mark: u32,
    /// The network namespace it all belongs to, by inode number.
    pub network: u32,
    /// Keys of SYN cookies: for even and for odd epochs.
    pub cookie_keys: [[u64; 2]; 2],
    /// The last epoch that has its key.
    pub cookie_epoch: u64,
    /// The offset added to CLOCK_MONOTONIC for them, modulo 2^64: 0, or the lead of real time if keys are shared.
    pub cookie_ahead_ns: u64,
    /// How far the clock in timestamps is ahead of CLOCK_MONOTONIC, in ms, modulo 2^32.
    pub clock_ahead: u32,
    /// 1: there is a service of direct server return.
    pub direct: u32,
    /// 1: segments with SYN, FIN or RST go by their rules, and are reported.
    pub follow: u32,
    /// How long connections are set up once the heartbeat is too old.
    pub serve_ms: u32,
    /// The ifindex of the device of checks; 0: there is none.
    pub check_device: u32,
    /// Elements of `rules_v4` that are buckets.
    pub rule_buckets: u32,
    /// Of the hash that tells a flow's bucket.
    pub rule_keys: [u64; 5],
    /// Rules of IPv4 at most.
    pub rules_v4_max: u32,
    /// The other elements, with lines for rules whose buckets are full.
    pub spill_buckets: u32,
}

/// The answer of a query for a rule.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RuleCounters {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
    /// Ticks; 0: never.
    pub last_seen: u32,
    /// 0: there is no such rule. Of `rules_put`: 0 if it is in force, else an error number.
    pub found: u32,
}

/// Element of `queries`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RuleQuery {
    /// Filled in by BPF.
    pub counters: [RuleCounters; RULE_OPS_MAX],
    /// Keys: [`FlowV6`], or [`FlowV4`] packed into the first part.
    pub keys: [u8; RULE_OPS_MAX * size_of::<FlowV6>()],
    /// For `rules_put`: [`RuleV6`], or [`RuleV4`] packed into the first part.
    pub rules: [u8; RULE_OPS_MAX * size_of::<RuleV6>()],
    /// For `rules_put`, of rules with [`RULE_SEQUENCE`].
    pub changes: [SequenceChange; RULE_OPS_MAX],
}

/// Argument of `rules_put`, `rules_take`, `rules_sample` and `rules_assign`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RuleRequest {
    /// Which element of `queries`.
    pub query: u32,
    /// How many of its keys.
    pub count: u32,
    /// Which keys: 0 v4, 1 v6.
    pub ipv6: u32,
    /// For `rules_assign`: the new owner, below [`WORKERS_MAX`]; else 0.
    pub worker: u32,
}

/// Value of `totals`, per CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TotalsValue {
    /// Packets; segments of super-packets counted one by one.
    pub packets: u64,
    /// Bytes of IP packets.
    pub bytes: u64,
}

plain!(FlowV4, FlowV6, RuleHead, RuleV4, RuleV6, EndKey, EndRoles, InterfaceEntry, ControlBlock, DirectEntry);
plain!(RuleLine, RuleBucket, NextHop, AccessKey, AccessValue);
plain!(RuleCounters, RuleQuery, RuleRequest, TotalsValue, u32, u64);

const _: () = {
    assert!(size_of::<FlowV4>() == 16 && size_of::<FlowV6>() == 40);
    assert!(size_of::<RuleHead>() == 40 && size_of::<RuleV4>() == 48 && size_of::<RuleV6>() == 72);
    assert!(offset_of!(RuleHead, until) == 24 && offset_of!(RuleHead, flags) == 30);
    assert!(offset_of!(RuleHead, checksum_addresses) == 38);
    assert!(size_of::<RuleLine>() == 64 && size_of::<RuleBucket>() == 256 && size_of::<NextHop>() == 32);
    assert!(size_of::<EndKey>() == 20 && size_of::<EndRoles>() == 8 && size_of::<InterfaceEntry>() == 12);
    assert!(size_of::<DirectEntry>() == 64);
    assert!(size_of::<AccessKey>() == 24 && size_of::<AccessValue>() == 4 && ACCESS_RULES_MAX == 16);
    assert!(size_of::<ControlBlock>() == 192 && offset_of!(ControlBlock, heartbeat_ns) == 32);
    assert!(size_of::<RuleCounters>() == 24 && size_of::<RuleQuery>() == RULE_OPS_MAX * 184);
    assert!(offset_of!(RuleHead, source_port) == 32);
    assert!(size_of::<RuleRequest>() == 16 && size_of::<TotalsValue>() == 16);
};

/// The fates of packets that take no rule, the packets that were sent from XDP, and the connections set up by the
/// programs: name for people, and whether such packets are dropped. In the order of
/// `enum event`.
pub const EVENTS: [(&str, bool); 35] = [
    ("to-worker", false),
    ("policed-client", true),
    ("policed-backend", true),
    ("fragment", true),
    ("malformed", true),
    ("absent-drop", true),
    ("absent-pass", false),
    ("local-socket", false),
    ("pass-rule", false),
    ("rule-flags", false),
    ("rule-ttl", false),
    ("rule-mtu", false),
    ("rule-fenced", false),
    ("rule-no-route", false),
    ("rule-guard", false),
    ("handover-bound", false),
    ("sent", false),
    ("sent-no-route", true),
    ("sent-too-big", false),
    ("to-kernel", false),
    ("worker-malformed", true),
    ("cookie-sent", false),
    // Every handshake ends with one: nothing is lost with it.
    ("cookie-bare", false),
    ("cookie-invalid", true),
    ("absent-syn", true),
    ("xdp-sent", false),
    ("not-encapsulated", true),
    ("set-up-begun", false),
    ("set-up", false),
    ("set-up-deferred", false),
    ("followed", false),
    ("set-up-no-room", false),
    ("reports-full", false),
    ("next-hops-full", false),
    ("denied", true),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_are_no_layout() {
        let plain = layout(b"struct a {\n\t__u32 b;\n};\n");
        assert_eq!(layout(b"/* x * / */ struct a {\n\t__u32 b; /* y */\n}; /*"), layout(b" struct a { __u32 b; }; "));
        assert_ne!(plain, layout(b"struct a {\n\t__u64 b;\n};\n"));
        assert_eq!(plain, layout(b"struct a { __u32 b; };"));
    }

    #[test]
    fn the_version_is_the_headers() {
        let header = include_str!("../bpf/hairpin.h");
        assert!(header.contains(&format!("#define ABI_VERSION {VERSION}\n")));
    }
}
