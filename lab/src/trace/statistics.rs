//! What a trace is like, made or recorded.

use super::capture::frame_length;
use super::connection::TracePacket;
use crate::traffic::recording::{self, Recorded};
use crate::traffic::template::PacketEnds;
use anyhow::{Context, Result, ensure};
use hairpin_core::flow::Protocol;
use std::collections::HashMap;
use std::path::Path;

const SECOND: u64 = 1_000_000_000;
/// Seconds of a capture at least, for counts by the second.
const SECONDS_MIN: usize = 5;
/// A longer pause is one between captures that were put into one file, and counts as this: a minute.
const PAUSE_MAX: u64 = 60 * SECOND;
/// Frames up to so many bytes are small, and from so many on full.
const SMALL: u16 = 100;
const FULL: u16 = 1400;

/// A packet as it is counted.
#[derive(Clone, Copy, Debug)]
pub struct SeenPacket {
    /// Nanoseconds since the capture began.
    pub at: u64,
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Its ends.
    pub ends: PacketEnds,
    /// Bytes of its frame.
    pub length: u16,
}

impl From<&TracePacket> for SeenPacket {
    fn from(packet: &TracePacket) -> SeenPacket {
        SeenPacket { at: packet.at, protocol: packet.protocol, ends: packet.ends, length: frame_length(packet) }
    }
}

/// A flow of one direction.
#[derive(Clone, Copy, Debug)]
struct SeenFlow {
    packets: u64,
    connection: u32,
}

/// Both directions: its first packet and its last one.
#[derive(Clone, Copy, Debug)]
struct SeenConnection {
    first: u64,
    last: u64,
}

/// A capture while it is read.
#[derive(Default)]
struct Capture {
    numbers: HashMap<(Protocol, PacketEnds), u32>,
    flows: Vec<SeenFlow>,
    connections: Vec<SeenConnection>,
    end: u64,
}

/// What one or several captures are like.
#[derive(Clone, Debug, Default)]
pub struct TraceStatistics {
    /// Captures.
    pub captures: u32,
    /// Packets of each flow, largest first.
    flows: Vec<u64>,
    udp_flows: u64,
    udp_packets: u64,
    packets: u64,
    bytes: u64,
    small: u64,
    full: u64,
    seconds: f64,
    /// Seconds of each connection, shortest first.
    durations: Vec<f64>,
    /// Gaps between arrivals, in mean gaps of their capture.
    gaps: Vec<f64>,
    /// New connections by the second: sums of variance and mean, weighted by seconds.
    by_second: (f64, f64),
    open_max: u64,
    /// Connections open at a quarter, a half and three quarters of each capture's time, summed.
    open_at: [u64; 3],
}

impl TraceStatistics {
    /// Of packets in the order of their times.
    pub fn of(packets: impl Iterator<Item = SeenPacket>) -> TraceStatistics {
        let mut statistics = TraceStatistics::default();
        statistics.add(packets);
        statistics.sort();
        statistics
    }

    /// Of all capture files (`*.pcap`, `*.pcapng`) of a directory, taken together. How many could not be read, too.
    ///
    /// # Errors
    /// The directory cannot be read, or has none that can be.
    pub fn of_directory(directory: &Path) -> Result<(TraceStatistics, usize)> {
        let named = || format!("recordings in {}", directory.display());
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(directory).with_context(named)? {
            let path = entry.with_context(named)?.path();
            if path.extension().is_some_and(|ending| ending == "pcap" || ending == "pcapng") {
                paths.push(path);
            }
        }
        paths.sort();
        let mut statistics = TraceStatistics::default();
        let mut unread = 0;
        for path in paths {
            match read(&path) {
                Ok(packets) => statistics.add(packets.into_iter()),
                Err(_) => unread += 1,
            }
        }
        ensure!(statistics.packets > 0, "no capture file with TCP or UDP packets in {}", directory.display());
        statistics.sort();
        Ok((statistics, unread))
    }

    fn add(&mut self, packets: impl Iterator<Item = SeenPacket>) {
        let mut capture = Capture::default();
        for packet in packets {
            self.packets += 1;
            self.bytes += u64::from(packet.length);
            self.udp_packets += u64::from(packet.protocol == Protocol::Udp);
            self.small += u64::from(packet.length <= SMALL);
            self.full += u64::from(packet.length >= FULL);
            capture.see(&packet);
        }
        self.captures += 1;
        self.seconds += capture.end as f64 / SECOND as f64;
        self.udp_flows += capture.numbers.keys().filter(|(protocol, _)| *protocol == Protocol::Udp).count() as u64;
        self.flows.extend(capture.flows.iter().map(|flow| flow.packets));
        let lasted = |connection: &SeenConnection| (connection.last - connection.first) as f64 / SECOND as f64;
        self.durations.extend(capture.connections.iter().map(lasted));
        self.add_arrivals(&capture);
        self.add_open(&capture);
    }

    fn add_arrivals(&mut self, capture: &Capture) {
        let mut firsts: Vec<u64> = capture.connections.iter().map(|connection| connection.first).collect();
        firsts.sort_unstable();
        let gaps: Vec<f64> = firsts.windows(2).map(|pair| (pair[1] - pair[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len().max(1) as f64;
        if mean > 0.0 {
            self.gaps.extend(gaps.iter().map(|gap| gap / mean));
        }
        // The last second is not whole.
        let mut by_second = vec![0.0; (capture.end / SECOND) as usize];
        for first in firsts {
            if let Some(count) = by_second.get_mut((first / SECOND) as usize) {
                *count += 1.0;
            }
        }
        if by_second.len() >= SECONDS_MIN {
            let (mean, variance) = moments(&by_second);
            self.by_second.0 += variance * by_second.len() as f64;
            self.by_second.1 += mean * by_second.len() as f64;
        }
    }

    fn add_open(&mut self, capture: &Capture) {
        let mut changes: Vec<(u64, i64)> = Vec::with_capacity(2 * capture.connections.len());
        for connection in &capture.connections {
            changes.push((connection.first, 1));
            changes.push((connection.last + 1, -1));
        }
        changes.sort_unstable();
        let (mut open, mut most) = (0_i64, 0);
        for (_, change) in &changes {
            open += change;
            most = most.max(open);
        }
        self.open_max = self.open_max.max(most as u64);
        for (quarter, sum) in (1..).zip(&mut self.open_at) {
            let at = capture.end / 4 * quarter;
            let is_open = |connection: &&SeenConnection| (connection.first..=connection.last).contains(&at);
            *sum += capture.connections.iter().filter(is_open).count() as u64;
        }
    }

    fn sort(&mut self) {
        self.flows.sort_unstable_by(|one, other| other.cmp(one));
        self.durations.sort_unstable_by(f64::total_cmp);
    }

    /// Flows of one direction.
    pub fn flows(&self) -> u64 {
        self.flows.len() as u64
    }

    /// Packets.
    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// The packets that a part of the flows does not exceed, 0 to 1.
    pub fn packets_at(&self, part: f64) -> u64 {
        // The largest are first.
        let rank = ((1.0 - part) * self.flows.len() as f64) as usize;
        self.flows.get(rank.min(self.flows.len().saturating_sub(1))).copied().unwrap_or_default()
    }

    /// The part of all packets that the largest flows have: so great a part of flows.
    pub fn share_of_top(&self, part: f64) -> f64 {
        let count = (self.flows.len() as f64 * part).ceil() as usize;
        self.flows.iter().take(count).sum::<u64>() as f64 / self.packets.max(1) as f64
    }

    /// The coefficient of variation of the gaps between new connections: 1 for a Poisson process.
    pub fn gap_variation(&self) -> f64 {
        let (mean, variance) = moments(&self.gaps);
        variance.sqrt() / mean
    }

    /// Variance of the new connections of a second, divided by their mean: 1 for a Poisson process.
    pub fn dispersion(&self) -> f64 {
        self.by_second.0 / self.by_second.1
    }

    /// The names of the metrics of [`TraceStatistics::rows`], for files and for people.
    pub const METRICS: [(&'static str, &'static str); 23] = [
        ("captures", "captures"),
        ("seconds", "seconds"),
        ("flows", "flows, of one direction"),
        ("packets", "packets"),
        ("bytes", "bytes, MB"),
        ("udp-flows", "flows that are UDP, %"),
        ("udp-packets", "packets that are UDP, %"),
        ("packets-mean", "packets of a flow, mean"),
        ("packets-p50", "packets of a flow, median"),
        ("packets-p90", "packets of a flow, 90th percentile"),
        ("packets-p99", "packets of a flow, 99th percentile"),
        ("packets-max", "packets of a flow, most"),
        ("single", "flows of one packet, %"),
        ("top-1", "packets in the largest 1 % of flows, %"),
        ("top-10", "packets in the largest 10 % of flows, %"),
        ("frame-mean", "bytes of a frame, mean"),
        ("frame-small", "frames of up to 100 bytes, %"),
        ("frame-full", "frames of 1,400 bytes and more, %"),
        ("durations", "seconds of a connection: median, 90th, 99th percentile"),
        ("flows-per-s", "new flows a second"),
        ("gap-variation", "gaps between new connections, coefficient of variation"),
        ("dispersion", "new connections of a second, variance by mean"),
        ("open", "connections open at a quarter, half, three quarters of the time; most"),
    ];

    /// The metrics, in the order of [`TraceStatistics::METRICS`], for people.
    pub fn rows(&self) -> [String; 23] {
        let part = |count: u64, of: u64| format!("{:.1}", 100.0 * count as f64 / of.max(1) as f64);
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        let duration = |part: f64| {
            let rank = (part * self.durations.len() as f64) as usize;
            significant(
                self.durations.get(rank.min(self.durations.len().saturating_sub(1))).copied().unwrap_or_default(),
            )
        };
        let [quarter, half, three] = self.open_at.map(|open| grouped(open / u64::from(self.captures.max(1))));
        let singles = self.flows.iter().rev().take_while(|&&packets| packets == 1).count() as u64;
        let flows = self.flows();
        [
            grouped(self.captures.into()),
            significant(self.seconds),
            grouped(flows),
            grouped(self.packets),
            significant(self.bytes as f64 / 1e6),
            part(self.udp_flows, flows),
            part(self.udp_packets, self.packets),
            format!("{:.1}", self.packets as f64 / flows.max(1) as f64),
            grouped(self.packets_at(0.5)),
            grouped(self.packets_at(0.9)),
            grouped(self.packets_at(0.99)),
            grouped(self.packets_at(1.0)),
            part(singles, flows),
            percent(self.share_of_top(0.01)),
            percent(self.share_of_top(0.1)),
            format!("{:.0}", self.bytes as f64 / self.packets.max(1) as f64),
            part(self.small, self.packets),
            part(self.full, self.packets),
            format!("{}, {}, {}", duration(0.5), duration(0.9), duration(0.99)),
            significant(flows as f64 / self.seconds),
            told(self.gap_variation()),
            told(self.dispersion()),
            format!("{quarter}, {half}, {three}; {}", grouped(self.open_max)),
        ]
    }
}

impl Capture {
    fn see(&mut self, packet: &SeenPacket) {
        self.end = self.end.max(packet.at);
        let key = (packet.protocol, packet.ends);
        let number = match self.numbers.get(&key) {
            Some(&number) => number,
            None => self.begin(packet),
        };
        let Some(flow) = self.flows.get_mut(number as usize) else { return };
        flow.packets += 1;
        if let Some(connection) = self.connections.get_mut(flow.connection as usize) {
            connection.last = connection.last.max(packet.at);
        }
    }

    fn begin(&mut self, packet: &SeenPacket) -> u32 {
        let PacketEnds { source, destination, source_port, destination_port } = packet.ends;
        let back = PacketEnds {
            source: destination,
            destination: source,
            source_port: destination_port,
            destination_port: source_port,
        };
        let other = self.numbers.get(&(packet.protocol, back)).and_then(|&other| self.flows.get(other as usize));
        let connection = match other {
            Some(other) => other.connection,
            None => {
                self.connections.push(SeenConnection { first: packet.at, last: packet.at });
                self.connections.len() as u32 - 1
            }
        };
        let number = self.flows.len() as u32;
        self.flows.push(SeenFlow { packets: 0, connection });
        self.numbers.insert((packet.protocol, packet.ends), number);
        number
    }
}

/// The packets of a capture file; times count from the first one, pauses of up to [`PAUSE_MAX`].
fn read(path: &Path) -> Result<Vec<SeenPacket>> {
    let mut packets: Vec<SeenPacket> = Vec::new();
    recording::frames(path, &mut |time, _, at| {
        let Recorded { protocol, ends, length, .. } = Recorded::of(at);
        packets.push(SeenPacket { at: time.as_nanos() as u64, protocol, ends, length: length.max(60) });
        None
    })?;
    packets.sort_by_key(|packet| packet.at);
    let (mut before, mut now) = (packets.first().map_or(0, |packet| packet.at), 0);
    for packet in &mut packets {
        now += (packet.at - before).min(PAUSE_MAX);
        before = std::mem::replace(&mut packet.at, now);
    }
    ensure!(!packets.is_empty(), "{} has no TCP or UDP packet", path.display());
    Ok(packets)
}

/// Mean and variance.
fn moments(values: &[f64]) -> (f64, f64) {
    let count = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / count;
    (mean, values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / count)
}

/// A count, with a comma before each three digits.
pub(super) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A ratio, if there is one.
fn told(ratio: f64) -> String {
    if ratio.is_finite() { format!("{ratio:.1}") } else { "-".to_owned() }
}

/// A number of about three digits.
fn significant(value: f64) -> String {
    match value {
        value if value >= 1000.0 => grouped(value.round() as u64),
        value if value >= 100.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value if value >= 1.0 => format!("{value:.2}"),
        value if value >= 0.01 => format!("{value:.3}"),
        value => format!("{value:.5}"),
    }
}
