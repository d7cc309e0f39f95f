//! How a port spreads flows over its queues (receive side scaling): what is asked for and what the device does.

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
pub enum Spread {
    /// There is one queue.
    OneQueue,
    /// The driver knows nothing of it: what comes on which queue is decided elsewhere, if at all.
    Unknown,
    /// By a hash of addresses and ports, each direction of a flow by itself.
    Hash,
    /// The same, but both directions alike.
    Symmetric,
    /// By the source address alone.
    Source,
    /// By the destination address alone.
    Destination,
}

/// `RTE_ETH_RSS_L3_SRC_ONLY`.
const SOURCE_ONLY: u64 = 1 << 63;
/// `RTE_ETH_RSS_L3_DST_ONLY`.
const DESTINATION_ONLY: u64 = 1 << 62;

impl Spread {
    /// What was set, by what the driver says now.
    pub(crate) fn of(wanted: Rss, info: &RawInfo) -> Spread {
        if info.queues <= 1 {
            return Spread::OneQueue;
        }
        match info.rss_set {
            0 => Spread::Unknown,
            set if set & SOURCE_ONLY != 0 => Spread::Source,
            set if set & DESTINATION_ONLY != 0 => Spread::Destination,
            _ if wanted == Rss::Symmetric && info.rss_key_symmetric != 0 => Spread::Symmetric,
            _ => Spread::Hash,
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Spread::OneQueue => "one queue",
            Spread::Unknown => "not by the driver",
            Spread::Hash => "by a hash of the flow, each direction by itself",
            Spread::Symmetric => "by a hash of the flow, both directions alike",
            Spread::Source => "by the source address",
            Spread::Destination => "by the destination address",
        })
    }
}
