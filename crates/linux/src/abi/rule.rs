//! Rules, their keys, and the next hops that they share.

/// A flow of IPv4; key of `spilled_v4` and `sequence_v4`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct FlowV4 {
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
    /// Source port.
    pub source_port: [u8; 2],
    /// Destination port.
    pub destination_port: [u8; 2],
    /// IANA's protocol number.
    pub protocol: u8,
    /// Zeros.
    pub zero: [u8; 3],
}

/// Key of `rules_v6` and `sequence_v6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(C)]
pub struct FlowV6 {
    /// Source address.
    pub source: [u8; 16],
    /// Destination address.
    pub destination: [u8; 16],
    /// Source port.
    pub source_port: [u8; 2],
    /// Destination port.
    pub destination_port: [u8; 2],
    /// IANA's protocol number.
    pub protocol: u8,
    /// Zeros.
    pub zero: [u8; 3],
}

/// Fate: leave the packet to the kernel.
pub const RULE_PASS: u8 = 1;
/// Sequence numbers are translated, by the entry of `sequence_v4` or `sequence_v6` under the same key.
pub const RULE_SEQUENCE: u8 = 2;
/// Nothing is rewritten but the hops; the new destination is the backend, whose MAC the frame gets.
pub const RULE_DIRECT: u8 = 4;
/// Hand-over is done (set by BPF).
pub const RULE_ACTIVE: u8 = 16;
/// Alone: its line is being written, and no packet takes it.
pub const RULE_FILLING: u8 = 8;
/// Hand-over is under way (set by BPF).
pub const RULE_FENCED: u8 = 32;

/// The part of a rule that is the same in both families.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RuleHead {
    /// Packets; segments of super-packets counted one by one.
    pub packets: u64,
    /// Bytes of IP packets, headers of every segment included.
    pub bytes: u64,
    /// Ticks; 0: never.
    pub last_seen: u32,
    /// The ticket to wait for and, in the upper 8 bits, the CPU that gave it.
    pub fence: u32,
    /// Ticks: next hop good until; while fenced: hand over at the latest.
    pub until: u32,
    /// Of an ACTIVE rule: its number in `next_hops`; 0: not looked up yet, and `until` is any number.
    pub next_hop: u16,
    /// `RULE_*`.
    pub flags: u8,
    /// Gets the packets the rule does not take.
    pub worker: u8,
    /// New source port.
    pub source_port: [u8; 2],
    /// New destination port.
    pub destination_port: [u8; 2],
    /// Index into `totals`.
    pub total: u16,
    /// The difference that new addresses make to a sum, 1 to 0xffff.
    pub checksum_addresses: u16,
}

/// A rule of IPv4.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RuleV4 {
    /// The common part of both families.
    pub head: RuleHead,
    /// New source address.
    pub source: [u8; 4],
    /// New destination address.
    pub destination: [u8; 4],
}

/// Value of `rules_v6`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RuleV6 {
    /// The common part of both families.
    pub head: RuleHead,
    /// New source address.
    pub source: [u8; 16],
    /// New destination address.
    pub destination: [u8; 16],
}

/// A rule of IPv4 with its key.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RuleLine {
    /// Source address.
    pub source: [u8; 4],
    /// Destination address.
    pub destination: [u8; 4],
    /// Source port.
    pub source_port: [u8; 2],
    /// Destination port.
    pub destination_port: [u8; 2],
    /// The protocol in [`LINE_PROTOCOL`], 0: the line is free; of a bucket's first line, what the header says beside.
    pub state: u32,
    /// The rule.
    pub rule: RuleV4,
}

/// The bits of [`RuleLine::state`] with the protocol.
pub const LINE_PROTOCOL: u32 = 0xff;
/// Of a bucket's first line, times the number of its rules that lie behind all buckets.
pub const LINE_ELSEWHERE: u32 = 0x200;
/// All of that number.
pub const LINE_ELSEWHERE_ALL: u32 = 0xfe00;
/// Times how often the line has been written.
pub const LINE_VERSION: u32 = 0x10000;
/// Lines of a bucket.
pub const LINES: usize = 4;

/// Element of `rules_v4`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct RuleBucket {
    /// The lines.
    pub lines: [RuleLine; LINES],
}

/// Element of `next_hops`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct NextHop {
    /// ifindex of the egress interface.
    pub egress: u32,
    /// Destination MAC, source MAC.
    pub addresses: [u8; 12],
    /// Bytes of IP packet the egress takes.
    pub mtu: u16,
    /// 1: it is that of packets in outer headers.
    pub wrapped: u16,
    /// Ticks: last found by a route lookup; 0: never, 1: being written.
    pub used: u32,
    /// Zeros.
    pub zero: [u32; 2],
}

/// Elements of `next_hops`, of which number 0 is none.
pub const NEXT_HOPS_MAX: usize = 65_536;
