//! A trace for people: the last frames in a line each, and all frames as a capture.

use crate::segments::{acknowledgement, sequence};
use hairpin_core::flow::Protocol;
use hairpin_core::frame::VecFrame;
use hairpin_core::time::Time;
use hairpin_core::wire::tcp::{self, ACK, FIN, PSH, RST, SYN};
use hairpin_core::wire::{self, Parsed};
use pcap_file::pcap::{PcapPacket, PcapWriter};
use std::collections::VecDeque;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::PathBuf;

/// Frames kept, unless `HAIRPIN_SIM_TRACE` says how many.
const LAST: usize = 60;
/// Bytes kept of each.
const HEADERS: usize = 134;

/// The point at which a frame was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracePoint {
    /// Arriving in the middle.
    In,
    /// Handed to the worker.
    Worker,
    /// Carried by a rule of the engine.
    Engine,
    /// Left to the middle's kernel.
    Kernel,
    /// Leaving the middle.
    Out,
}

/// The last frames, and a capture of all if one is wanted.
#[derive(Default)]
pub struct Trace {
    last: VecDeque<(Time, TracePoint, Vec<u8>, usize, u16)>,
    capture: Option<PcapWriter<File>>,
    notes: VecDeque<String>,
    kept: usize,
}

impl Trace {
    /// A trace; with `HAIRPIN_SIM_PCAP=1` in the environment what goes in and out is captured to `target/sim/NAME.pcap`.
    pub fn new(name: &str) -> Trace {
        let wanted = std::env::var_os("HAIRPIN_SIM_PCAP").is_some_and(|value| value == "1");
        let capture = if wanted { capture(name) } else { None };
        let kept = std::env::var("HAIRPIN_SIM_TRACE").ok().and_then(|text| text.parse().ok()).unwrap_or(LAST);
        Trace { capture, kept, ..Trace::default() }
    }

    /// Notes a frame.
    pub fn frame(&mut self, now: Time, place: TracePoint, frame: &VecFrame) {
        if self.last.len() >= self.kept {
            self.last.pop_front();
        }
        let headers = frame.data[..frame.data.len().min(HEADERS)].to_vec();
        self.last.push_back((now, place, headers, frame.data.len(), frame.meta.gso_size));
        if let (Some(writer), TracePoint::In | TracePoint::Out) = (&mut self.capture, place) {
            let at = core::time::Duration::from_nanos(now.as_nanos());
            let length = frame.data.len().min(65_535);
            // A capture that cannot be written shows nothing; the run does not depend on it.
            let _ = writer.write_packet(&PcapPacket::new(at, frame.data.len() as u32, &frame.data[..length]));
        }
    }

    /// Notes something else.
    pub fn note(&mut self, now: Time, text: &str) {
        if self.notes.len() == LAST {
            self.notes.pop_front();
        }
        self.notes.push_back(format!("{} {text}", seconds(now)));
    }

    /// The last frames, a line each.
    pub fn lines(&self) -> String {
        let mut out = String::new();
        for (at, place, headers, length, gso) in &self.last {
            let _ = writeln!(out, "{} {:>6} {}", seconds(*at), format!("{place:?}"), line(headers, *length, *gso));
        }
        for note in &self.notes {
            let _ = writeln!(out, "{note}");
        }
        out
    }
}

fn capture(name: &str) -> Option<PcapWriter<File>> {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/sim"));
    fs::create_dir_all(&folder).ok()?;
    PcapWriter::new(File::create(folder.join(format!("{name}.pcap"))).ok()?).ok()
}

fn seconds(at: Time) -> String {
    format!("{:>11.6}", at.as_nanos() as f64 / 1e9)
}

/// A frame in a line. `headers` may lack its end.
fn line(headers: &[u8], length: usize, gso: u16) -> String {
    let mut whole = headers.to_vec();
    whole.resize(length, 0);
    let at = match wire::parse(&whole) {
        Ok(Parsed::Transport(at)) => at,
        Ok(Parsed::IcmpError(error)) => return format!("ICMP {:?} about {:?}", error.kind, error.quoted),
        Ok(_) => return format!("{length} bytes of something else"),
        Err(malformed) => return format!("{length} bytes, {malformed}"),
    };
    let ends = format!("{} > {}", at.key.source, at.key.destination);
    let payload = at.end - at.payload;
    if at.key.protocol == Protocol::Udp {
        return format!("{ends} UDP {payload}");
    }
    let names = [(SYN, 'S'), (FIN, 'F'), (RST, 'R'), (PSH, 'P'), (ACK, '.')];
    let flags: String = names.iter().filter(|(bit, _)| at.tcp_flags & bit != 0).map(|(_, name)| name).collect();
    let window = u16::from_be_bytes([whole[at.l4 + 14], whole[at.l4 + 15]]);
    let (sequence, acknowledgement) = (sequence(&whole, &at), acknowledgement(&whole, &at));
    let mut text = format!("{ends} [{flags}] seq {sequence} ack {acknowledgement} win {window} len {payload}");
    if gso > 0 {
        let _ = write!(text, " gso {gso}");
    }
    let edges: Vec<u32> = tcp::sack_edges(&whole[at.l4 + 20..at.payload])
        .map(|edge| at.l4 + 20 + edge)
        .map(|edge| u32::from_be_bytes([whole[edge], whole[edge + 1], whole[edge + 2], whole[edge + 3]]))
        .collect();
    if !edges.is_empty() {
        let _ = write!(text, " sack {edges:?}");
    }
    text
}
