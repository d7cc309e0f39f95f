//! How a port spreads flows over its queues (receive side scaling): the request, and what the device does.

use crate::ffi::port::RawInfo;
use std::fmt;

/// How flows are to be spread over a port's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Rss {
    /// Not at all, as far as the device asks us.
    #[default]
    None,
    /// With the driver's own key.
    Device,
    /// Both directions of a flow to the same queue: a key of one repeated word (0x6d5a), under which source and
    /// destination can be exchanged (Woo and Park, "Scalable TCP session monitoring with symmetric receive-side
    /// scaling").
    Symmetric,
    /// By the source address alone.
    Source,
    /// By the destination address alone.
    Destination,
}

/// How a port spreads flows, as far as its driver says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortSpread {
    /// There is one queue.
    OneQueue,
    /// The driver knows nothing of it: what comes on which queue is decided elsewhere, if at all.
    Unknown,
    /// By a hash of addresses and ports, each direction of a flow by itself.
    Hash,
    /// By a hash of addresses and ports, both directions of a flow alike.
    Symmetric,
    /// By the source address alone.
    Source,
    /// By the destination address alone.
    Destination,
}

/// By what a device can spread flows, as its driver says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpreadAbilities {
    /// Addresses.
    pub addresses: bool,
    /// Addresses and ports of TCP and UDP.
    pub ports: bool,
    /// One address alone. It may still be refused for some kinds of packet.
    pub one_address: bool,
    /// A key of ours in place of its own, of so many bytes; 0: the driver does not say, and 40 is what is tried.
    pub key_bytes: u8,
}

/// `RTE_ETH_RSS_IPV4` and `RTE_ETH_RSS_IPV6`.
const ADDRESSES: u64 = 1 << 2 | 1 << 8;
/// `RTE_ETH_RSS_NONFRAG_IPV4_TCP` and so on: TCP and UDP over both.
const PORTS: u64 = 1 << 4 | 1 << 5 | 1 << 10 | 1 << 11;

impl SpreadAbilities {
    /// Those of a port.
    pub(crate) fn of(info: &RawInfo) -> SpreadAbilities {
        let all = |types: u64| info.rss_types & types == types;
        SpreadAbilities {
            addresses: all(ADDRESSES),
            ports: all(PORTS),
            one_address: all(SOURCE_ONLY | DESTINATION_ONLY),
            key_bytes: info.rss_key_length,
        }
    }
}

/// `RTE_ETH_RSS_L3_SRC_ONLY`.
const SOURCE_ONLY: u64 = 1 << 63;
/// `RTE_ETH_RSS_L3_DST_ONLY`.
const DESTINATION_ONLY: u64 = 1 << 62;

impl PortSpread {
    /// The active settings, as the driver reports them now.
    pub(crate) fn of(wanted: Rss, info: &RawInfo) -> PortSpread {
        if info.queues <= 1 {
            return PortSpread::OneQueue;
        }
        match info.rss_set {
            0 => PortSpread::Unknown,
            set if set & SOURCE_ONLY != 0 => PortSpread::Source,
            set if set & DESTINATION_ONLY != 0 => PortSpread::Destination,
            _ if wanted == Rss::Symmetric && info.rss_key_symmetric != 0 => PortSpread::Symmetric,
            _ => PortSpread::Hash,
        }
    }
}

impl fmt::Display for PortSpread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PortSpread::OneQueue => "one queue",
            PortSpread::Unknown => "not by the driver",
            PortSpread::Hash => "by a hash of the flow, each direction by itself",
            PortSpread::Symmetric => "by a hash of the flow, both directions alike",
            PortSpread::Source => "by the source address",
            PortSpread::Destination => "by the destination address",
        })
    }
}
