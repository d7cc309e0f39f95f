//! The traffic of `generate`, by options.

use clap::{Args, ValueEnum};
use hairpin_lab::testbed::{Arrivals, FrameSize, Masks, PacketSource, SendRate, TransportProtocol};
use std::net::Ipv4Addr;
use std::path::PathBuf;

/// How flows come and go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Coming {
    /// All there all the time.
    Fixed,
    /// One that ends is followed by a new one.
    Closed,
    /// By a Poisson process.
    Poisson,
}

/// The source of packets.
#[derive(Args, Debug)]
pub(super) struct SourceArguments {
    /// Replay this capture file (pcap or pcapng), or the trace of this model (*.toml), instead of made-up flows.
    #[arg(long, value_name = "FILE", help_heading = "Source")]
    replay: Option<PathBuf>,
    /// Keep the recorded payload (but for the stamp) instead of zeros.
    #[arg(long, requires = "replay", help_heading = "Source")]
    payload: bool,
    /// The mask that recorded source addresses are combined with; with any mask the masks say how many flows there are.
    #[arg(long, value_name = "MASK", requires = "replay", help_heading = "Source")]
    source_mask: Option<Ipv4Addr>,
    /// Column of the destination address.
    #[arg(long, value_name = "MASK", requires = "replay", help_heading = "Source")]
    destination_mask: Option<Ipv4Addr>,
    /// Column of the source port.
    #[arg(long, value_name = "MASK", requires = "replay", help_heading = "Source")]
    source_port_mask: Option<u16>,
    /// Column of the destination port.
    #[arg(long, value_name = "MASK", requires = "replay", help_heading = "Source")]
    destination_port_mask: Option<u16>,
    /// Made-up flows are TCP: a SYN, segments, a FIN.
    #[arg(long, conflicts_with = "replay", help_heading = "Source")]
    tcp: bool,
    /// Made-up flows are IPv6.
    #[arg(long, conflicts_with = "replay", help_heading = "Source")]
    ipv6: bool,
    /// How made-up flows come and go.
    #[arg(long, value_name = "HOW", default_value = "fixed", conflicts_with = "replay", help_heading = "Source")]
    arrivals: Coming,
    /// New flows a second, of a Poisson process.
    #[arg(long, value_name = "N", default_value_t = 1000.0, help_heading = "Source")]
    flows_per_second: f64,
    /// Sizes of flows that end: a file of `bytes,cumulative probability`; without it they have one packet each.
    #[arg(long, value_name = "FILE", conflicts_with = "replay", help_heading = "Source")]
    sizes: Option<PathBuf>,
    /// Flows; of those that come and go, open at a time at most.
    #[arg(long, value_name = "N", default_value_t = 1000, help_heading = "Source")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) flows: u32,
    /// Bytes of a frame without its check sequence, or "natural".
    #[arg(long, value_name = "BYTES", default_value = "64", help_heading = "Source")]
    pub(super) size: FrameSize,
    /// How fast: max, 2.5Mpps, 800kpps, 10Gbps.
    #[arg(long, value_name = "RATE", default_value = "max", help_heading = "Source")]
    pub(super) rate: SendRate,
}

impl SourceArguments {
    /// The source.
    pub(super) fn source(&self) -> PacketSource {
        if let Some(file) = &self.replay {
            return PacketSource::Replay { file: file.clone(), masks: self.masks(), payload: self.payload };
        }
        PacketSource::Synthetic {
            transport: if self.tcp { TransportProtocol::Tcp } else { TransportProtocol::Udp },
            arrivals: match self.arrivals {
                Coming::Fixed => Arrivals::Fixed,
                Coming::Closed => Arrivals::Closed,
                Coming::Poisson => Arrivals::Poisson(self.flows_per_second),
            },
            sizes: self.sizes.clone(),
            ipv6: self.ipv6,
        }
    }

    /// The masks, if there is one.
    fn masks(&self) -> Option<Masks> {
        let addresses = [self.source_mask, self.destination_mask];
        let ports = [self.source_port_mask, self.destination_port_mask];
        if addresses.iter().all(Option::is_none) && ports.iter().all(Option::is_none) {
            return None;
        }
        // An address without a mask of its own is masked out.
        let none = Ipv4Addr::UNSPECIFIED;
        Some(Masks {
            source: addresses[0].unwrap_or(none),
            destination: addresses[1].unwrap_or(none),
            source_port: ports[0].unwrap_or(0),
            destination_port: ports[1].unwrap_or(0),
        })
    }
}
