//! The variables of a trial: those variables of KTH 2022 (table 3.1) and more.

use super::offload::OffloadSetting;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The device under test.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Device {
    /// None: what is sent comes back unchanged. The limit of generator and sink themselves.
    Wire,
    /// The basic forwarder: checks the IP header, swaps MAC and IP addresses, sends back.
    Forwarder,
    /// Hairpin's worker with the trial's table, behind a modelled card if the trial has one.
    #[default]
    Balancer,
}

/// How long frames are, from the Ethernet header to the end of the payload, without the frame check sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FrameSize {
    /// All of this many bytes, 64 to 9,000: shorter ones are padded, longer ones cut. (No shorter than the stamp needs: TCP
    /// over IPv6 has 82 bytes at least.)
    Fixed(u16),
    /// As recorded in the trace; of a synthetic source, full segments of 1,514 bytes and what is left of each flow.
    Natural,
}

/// How fast packets are sent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SendRate {
    /// As fast as they are taken.
    Max,
    /// Open loop, packets per second.
    Packets(f64),
    /// Open loop, bits per second of frames as [`FrameSize`] counts them.
    Bits(f64),
}

/// Which transport protocol synthetic flows use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TransportProtocol {
    /// UDP.
    #[default]
    Udp,
    /// TCP as far as a balancer sees it: a SYN first, segments, a FIN last. Neither end retransmits.
    Tcp,
}

/// How flows of a synthetic source come and go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arrivals {
    /// As many as the trial says, all the time, in turn; none ends (KTH 2022's masked trace, in effect).
    #[default]
    Fixed,
    /// As many as the trial says are open at any time; one that ends is followed by a new one.
    Closed,
    /// A Poisson process of this many new flows a second; as many as the trial says are open at most, what comes beyond
    /// is not begun and counted.
    Poisson(f64),
}

/// The masks of a recorded packet's addresses and ports: each is combined with its mask by AND, which sets how many
/// flows there are (KTH 2022, section 3.2), then the fixed part is added by OR.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Masks {
    /// Bits of the source address; of an IPv6 address its last four bytes.
    pub source: Ipv4Addr,
    /// Bits of the destination address. A balancer serves one address, so it has no bits where the device is one.
    pub destination: Ipv4Addr,
    /// Bits of the source port.
    pub source_port: u16,
    /// Bits of the destination port.
    pub destination_port: u16,
}

/// The source of packets.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PacketSource {
    /// A capture file (pcap, pcapng), loaded to memory and played again and again.
    Replay {
        /// The file.
        file: PathBuf,
        /// Which flows there are; `None`: masks that give the trial's number of flows. Either way each round of the file
        /// is other flows than the one before, within the masks, until all of the masks' are used: a short trace makes as
        /// many flows as a long one.
        masks: Option<Masks>,
        /// The payload is kept (but for the stamp); else it is zeros.
        payload: bool,
    },
    /// Made up.
    Synthetic {
        /// Which protocol.
        transport: TransportProtocol,
        /// How flows come and go.
        arrivals: Arrivals,
        /// Flow sizes, `bytes,cumulative probability` (log-linear between points); `None`: one packet each, beside SYN and
        /// FIN. Fixed flows have no size.
        #[serde(default)]
        sizes: Option<PathBuf>,
        /// IPv6 instead of IPv4.
        #[serde(default)]
        ipv6: bool,
    },
}

impl Default for PacketSource {
    fn default() -> PacketSource {
        PacketSource::Synthetic {
            transport: TransportProtocol::Udp,
            arrivals: Arrivals::Fixed,
            sizes: None,
            ipv6: false,
        }
    }
}

/// One cell of an experiment's matrix, measured once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The device under test.
    pub device: Device,
    /// The balancer's connection table by name: those of [`OwnMethod`](hairpin_tables::OwnMethod), and `rte-hash/<flags>`.
    pub table: String,
    /// The card in front of the balancer, and what it is handed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub offload: Option<OffloadSetting>,
    /// Cores of the device under test.
    pub cores: u16,
    /// Connections the balancer has room for, over all cores.
    pub table_entries: u32,
    /// Different flows (5-tuples); of sources whose flows come and go, how many are open at a time at most.
    pub flows: u32,
    /// Backends behind the balancer.
    pub backends: u16,
    /// How long frames are.
    pub packet_size: FrameSize,
    /// How fast they come.
    pub rate: SendRate,
    /// How long it is measured.
    pub duration: Duration,
    /// The source of packets.
    pub source: PacketSource,
    /// 1: the table is empty when the clock starts; 2: every flow is an established connection by then, if there was room
    /// (KTH 2022, section 3.6). Flows that come and go are new either way.
    pub run: u8,
    /// Packets go through a balancer twice, to their backend and back, and latencies are round trips. Which backend a flow has
    /// reached is not seen then.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub round_trip: bool,
    /// The seed of everything drawn.
    pub seed: u64,
}

impl Default for Trial {
    fn default() -> Trial {
        Trial {
            device: Device::Balancer,
            table: hairpin_core::table::LookupMethod::DEFAULT.name().to_owned(),
            offload: None,
            cores: 1,
            table_entries: 1 << 21,
            flows: 1000,
            backends: 4,
            packet_size: FrameSize::Fixed(64),
            rate: SendRate::Max,
            duration: Duration::from_secs(1),
            source: PacketSource::default(),
            run: 1,
            round_trip: false,
            seed: 1,
        }
    }
}

impl Default for Masks {
    fn default() -> Masks {
        Masks {
            source: Ipv4Addr::BROADCAST,
            destination: Ipv4Addr::UNSPECIFIED,
            source_port: u16::MAX,
            destination_port: 0,
        }
    }
}

/// A word that is none of those there are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    /// The text found there.
    pub word: String,
    /// The texts allowed there.
    pub wanted: &'static str,
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not {}", self.word, self.wanted)
    }
}

impl std::error::Error for UnknownWord {}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Device::Wire => "wire",
            Device::Forwarder => "forwarder",
            Device::Balancer => "balancer",
        })
    }
}

impl FromStr for Device {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Device, UnknownWord> {
        match word {
            "wire" => Ok(Device::Wire),
            "forwarder" => Ok(Device::Forwarder),
            "balancer" => Ok(Device::Balancer),
            _ => Err(UnknownWord { word: word.to_owned(), wanted: "a device: wire, forwarder, balancer" }),
        }
    }
}

impl fmt::Display for FrameSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameSize::Fixed(bytes) => bytes.fmt(f),
            FrameSize::Natural => f.pad("natural"),
        }
    }
}

impl FromStr for FrameSize {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<FrameSize, UnknownWord> {
        let unknown = || UnknownWord { word: word.to_owned(), wanted: "a frame size: natural, or 64 to 9000 bytes" };
        if word == "natural" {
            return Ok(FrameSize::Natural);
        }
        let bytes = word.parse().map_err(|_| unknown())?;
        if (64..=9000).contains(&bytes) { Ok(FrameSize::Fixed(bytes)) } else { Err(unknown()) }
    }
}

impl fmt::Display for SendRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SendRate::Max => f.pad("max"),
            SendRate::Packets(rate) => write!(f, "{rate}pps"),
            SendRate::Bits(rate) => write!(f, "{rate}bps"),
        }
    }
}

/// `max`, `2.5Mpps`, `10Gbps`, `9000pps`: a number, a power of a thousand, a unit.
impl FromStr for SendRate {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<SendRate, UnknownWord> {
        let unknown = || UnknownWord { word: word.to_owned(), wanted: "a rate such as max, 2.5Mpps, 800kpps, 10Gbps" };
        if word == "max" {
            return Ok(SendRate::Max);
        }
        let (number, bits) = match (word.strip_suffix("pps"), word.strip_suffix("bps")) {
            (Some(number), _) => (number, false),
            (_, Some(number)) => (number, true),
            _ => return Err(unknown()),
        };
        let (number, scale) = match number.chars().last() {
            Some('k' | 'K') => (&number[..number.len() - 1], 1e3),
            Some('M') => (&number[..number.len() - 1], 1e6),
            Some('G') => (&number[..number.len() - 1], 1e9),
            _ => (number, 1.0),
        };
        let rate = number.trim().parse::<f64>().map_err(|_| unknown())? * scale;
        if !(rate.is_finite() && rate > 0.0 && rate <= 1e13) {
            return Err(unknown());
        }
        Ok(if bits { SendRate::Bits(rate) } else { SendRate::Packets(rate) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written() {
        for (word, rate) in [
            ("max", SendRate::Max),
            ("2.5Mpps", SendRate::Packets(2.5e6)),
            ("800kpps", SendRate::Packets(8e5)),
            ("9000pps", SendRate::Packets(9000.0)),
            ("10Gbps", SendRate::Bits(1e10)),
        ] {
            assert_eq!(word.parse(), Ok(rate));
            assert_eq!(rate.to_string().parse(), Ok(rate));
        }
        for word in ["", "pps", "-1pps", "0pps", "infpps", "10", "1e99bps", "NaNpps", "Mpps"] {
            assert!(word.parse::<SendRate>().is_err(), "{word}");
        }
    }

    #[test]
    fn sizes_have_bounds() {
        assert_eq!("64".parse(), Ok(FrameSize::Fixed(64)));
        assert_eq!("natural".parse(), Ok(FrameSize::Natural));
        assert!(
            "63".parse::<FrameSize>().is_err()
                && "9001".parse::<FrameSize>().is_err()
                && "x".parse::<FrameSize>().is_err()
        );
    }
}
