//! The parts of recordings that a replay keeps: the order of packets and their flows.

use crate::trace::capture::frame_length;
use crate::trace::{Bounds, Generator, TraceModel};
use crate::traffic::recording::Recording;
use crate::traffic::template::PacketEnds;
use anyhow::{Context, Result, ensure};
use hairpin_core::flow::Protocol;
use std::collections::HashMap;
use std::path::Path;

/// One recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecordingUnit {
    /// The flow of each packet, in order; a flow has the number of the first packet's rank among flows.
    pub order: Vec<u32>,
    /// The length of each packet's frame, in bytes.
    pub lengths: Vec<u16>,
    /// Flows, each of one direction: what a hash of the 5-tuple tells apart.
    pub flows: u32,
}

/// Recordings, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Structure {
    /// Each of them.
    pub units: Vec<RecordingUnit>,
}

impl Structure {
    /// Reads all capture files of a directory, by name.
    ///
    /// # Errors
    /// It cannot be read, or has no capture file with TCP or UDP packets.
    pub fn read(directory: &Path) -> Result<Structure> {
        let named = || format!("recordings in {}", directory.display());
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(directory).with_context(named)? {
            let path = entry.with_context(named)?.path();
            if path.extension().is_some_and(|ending| ending == "pcap" || ending == "pcapng") {
                paths.push(path);
            }
        }
        paths.sort();
        // One that cannot be used is one recording less; the caller reports how many there are.
        let recordings = paths.iter().filter_map(|path| Recording::read(path, false).ok());
        let units: Vec<RecordingUnit> = recordings.map(|recording| RecordingUnit::of(&recording)).collect();
        ensure!(!units.is_empty(), "no capture file with TCP or UDP packets in {}", directory.display());
        Ok(Structure { units })
    }

    /// So many packets of a made trace, as one recording: flows are those of one direction.
    pub fn made(model: &TraceModel, packets: u64, seed: u64) -> Structure {
        let mut numbers: HashMap<(u32, bool), u32> = HashMap::new();
        let mut unit = RecordingUnit::default();
        for packet in Generator::new(model, Bounds::packets(packets.max(1)), seed) {
            let next = numbers.len() as u32;
            unit.order.push(*numbers.entry((packet.connection, packet.from_client)).or_insert(next));
            unit.lengths.push(frame_length(&packet));
        }
        unit.flows = numbers.len() as u32;
        Structure { units: vec![unit] }
    }

    /// Packets of all of them.
    pub fn packets(&self) -> u64 {
        self.units.iter().map(|unit| unit.order.len() as u64).sum()
    }

    /// Flows of all of them.
    pub fn flows(&self) -> u64 {
        self.units.iter().map(|unit| u64::from(unit.flows)).sum()
    }
}

impl RecordingUnit {
    fn of(recording: &Recording) -> RecordingUnit {
        let mut numbers: HashMap<(Protocol, PacketEnds), u32> = HashMap::new();
        let mut unit = RecordingUnit::default();
        for packet in &recording.packets {
            let next = numbers.len() as u32;
            unit.order.push(*numbers.entry((packet.protocol, packet.ends)).or_insert(next));
            unit.lengths.push(packet.length.clamp(60, 1514));
        }
        unit.flows = numbers.len() as u32;
        unit
    }
}
