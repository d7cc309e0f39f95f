//! A recording played again and again, as KTH 2022 (section 3.2) does: masks set the number of flows, padding the size.
//!
//! Every packet's ends are the recorded ones, masked; without masks, those of one of as many made up flows as are wanted,
//! picked by a hash of the recorded ends. Each round of the recording goes to other flows than the one before (by a step
//! that comes round to the same ones only after all have had their turn), so a short recording makes as many flows as a
//! long one. TCP flows and UDP flows are different ones.
//!
//! Headers are made anew: IP and TCP without options, no VLAN, TCP flags ACK and PSH, as of a running connection, since
//! of a connection whose ends are mapped to others SYN and FIN come at the wrong times. The stamp takes the place of the
//! first bytes of the payload. Each lane plays a copy of its own, from a place of its own on.

use super::flows::{FlowLane, FlowSet, mask_bits, masked};
use super::recording::Recording;
use super::synthetic::LONGEST;
use super::template::{LinkAddresses, PacketEnds, PacketKind, PacketTemplate};
use super::{FilledBurst, Numbering, TrafficSource, introductions};
use crate::testbed::{FrameSize, Masks};
use anyhow::{Context, Result, ensure};
use hairpin_core::flow::Protocol;
use hairpin_core::frame::{Batch, Frame};
use hairpin_core::wire::tcp::{ACK, PSH};
use std::collections::HashMap;

/// By how many flows a round goes on: a prime, so that all get their turn (of a number of flows it does not divide).
const STEP: u64 = 2_654_435_761;

/// The parameters of a replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Which flows there are; `None`: `flows` of them.
    pub masks: Option<Masks>,
    /// How many there are where no masks say it, over all lanes.
    pub flows: u32,
    /// How long frames are.
    pub length: FrameSize,
    /// Ethernet addresses.
    pub link: LinkAddresses,
}

/// A packet as it is played.
#[derive(Clone, Copy, Debug)]
struct Played {
    template: u32,
    /// Which of its protocol's flows it goes to in the first round.
    flow: u32,
    protocol: Protocol,
}

/// A recording as a source.
pub struct ReplaySource {
    store: Vec<u8>,
    templates: Vec<PacketTemplate>,
    packets: Vec<Played>,
    at: usize,
    /// TCP's flows and UDP's, and how far the flows have moved on in this round.
    flows: [FlowSet; 2],
    offsets: [usize; 2],
    steps: [usize; 2],
    introduced: usize,
    /// A template of either protocol to introduce flows with.
    introductions: [PacketTemplate; 2],
    mean: usize,
    numbering: Numbering,
    too_long: u64,
}

fn index(protocol: Protocol) -> usize {
    usize::from(protocol == Protocol::Udp)
}

impl ReplaySource {
    /// A lane's source.
    ///
    /// # Errors
    /// Masks that leave too many flows, or no flow for this lane.
    pub fn new(
        recording: &Recording,
        options: &ReplayOptions,
        lane: FlowLane,
        numbering: Numbering,
        first_id: u32,
    ) -> Result<ReplaySource> {
        let flows = sets(recording, options, &lane, first_id)?;
        let (mut store, mut templates, mut shared) = (Vec::new(), Vec::new(), HashMap::new());
        let kind = |protocol| PacketKind { protocol, ipv6: recording.ipv6, tcp_flags: ACK | PSH };
        let length = |length: u16| match options.length {
            FrameSize::Fixed(bytes) => bytes,
            FrameSize::Natural => length.clamp(60, LONGEST),
        };
        let mut packets = Vec::with_capacity(recording.packets.len());
        let mut bytes = 0;
        for recorded in &recording.packets {
            let length = length(recorded.length);
            let (start, kept) = recorded.payload;
            let payload = recording.bytes.get(start..start + usize::from(kept)).unwrap_or_default();
            let mut make = || {
                templates.push(PacketTemplate::new(
                    &mut store,
                    kind(recorded.protocol),
                    &options.link,
                    payload,
                    length,
                ));
                templates.len() as u32 - 1
            };
            // Without payload there are as many templates as lengths, and they stay in the cache.
            let template = match payload.is_empty() {
                true => *shared.entry((recorded.protocol, length)).or_insert_with(make),
                false => make(),
            };
            let set = &flows[index(recorded.protocol)];
            let picked = match &options.masks {
                Some(masks) => masked(masks, &recorded.ends),
                None => scattered(&recorded.ends),
            };
            let flow = (picked % set.len().max(1) as u64) as u32;
            bytes += templates[template as usize].length();
            packets.push(Played { template, flow, protocol: recorded.protocol });
        }
        let mut introduction =
            |protocol| PacketTemplate::new(&mut store, kind(protocol), &options.link, &[], length(0));
        let introductions = [introduction(Protocol::Tcp), introduction(Protocol::Udp)];
        let lanes = usize::from(lane.steering.workers.max(1));
        Ok(ReplaySource {
            store,
            templates,
            at: packets.len() / lanes * usize::from(lane.number),
            mean: bytes / packets.len().max(1),
            packets,
            offsets: [0; 2],
            steps: [0, 1].map(|index| (STEP % flows[index].len().max(1) as u64) as usize),
            flows,
            introduced: 0,
            introductions,
            numbering,
            too_long: 0,
        })
    }

    /// The next round begins.
    fn turn(&mut self) {
        self.at = 0;
        for index in 0..2 {
            self.offsets[index] = (self.offsets[index] + self.steps[index]) % self.flows[index].len().max(1);
        }
    }
}

/// The flows of TCP and of UDP; none of a protocol that is not recorded.
fn sets(recording: &Recording, options: &ReplayOptions, lane: &FlowLane, first_id: u32) -> Result<[FlowSet; 2]> {
    let all = recording.packets.len();
    let tcp = recording.packets.iter().filter(|packet| packet.protocol == Protocol::Tcp).count();
    let flows = match &options.masks {
        Some(masks) => {
            let both = if tcp > 0 && tcp < all { " (of each of TCP and UDP)" } else { "" };
            let set = |first| {
                FlowSet::masked(masks, recording.ipv6, lane, first)
                    .with_context(|| format!("masks of {} bits{both}", mask_bits(masks)))
            };
            let first = if tcp > 0 { set(first_id)? } else { FlowSet::default() };
            let next = first_id + first.len() as u32;
            [first, if tcp < all { set(next)? } else { FlowSet::default() }]
        }
        None => {
            ensure!(options.flows > 0, "no flow is to be sent");
            // In proportion to the packets, but one of each at least where there are two.
            let share = (u64::from(options.flows) * tcp as u64 / all.max(1) as u64) as u32;
            let share = match (tcp > 0, tcp < all) {
                (true, true) if options.flows > 1 => share.clamp(1, options.flows - 1),
                (true, true) => 1,
                _ => share,
            };
            let first = FlowSet::clients(0, share, recording.ipv6, lane, first_id);
            let next = first_id + first.len() as u32;
            // Of a single flow each protocol has one.
            let others = if tcp < all { (options.flows - share).max(1) } else { 0 };
            [first, FlowSet::clients(share, others, recording.ipv6, lane, next)]
        }
    };
    let has = |set: &FlowSet, recorded: usize| !set.is_empty() || recorded == 0;
    ensure!(
        has(&flows[0], tcp) && has(&flows[1], all - tcp),
        "core {} has no flow of its own: more flows are needed",
        lane.number
    );
    Ok(flows)
}

/// A number that is the same for the same recorded ends, and else as good as drawn.
fn scattered(ends: &PacketEnds) -> u64 {
    let addresses = u64::from(ends.source) << 32 | u64::from(ends.destination);
    let mut x = addresses.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 31) ^ u64::from(ends.source_port) << 16 ^ u64::from(ends.destination_port))
        .wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (x ^ (x >> 29)) >> 16
}

impl TrafficSource for ReplaySource {
    fn fill<F: Frame>(&mut self, now: u64, frames: &mut Batch<F>) -> FilledBurst {
        let mut filled = FilledBurst::default();
        for frame in frames.iter_mut() {
            if self.at >= self.packets.len() {
                self.turn();
            }
            let Some(&Played { template, flow, protocol }) = self.packets.get(self.at) else { break };
            let Some(template) = self.templates.get(template as usize) else { break };
            if !frame.resize(template.length()) {
                self.too_long += 1;
                break;
            }
            self.at += 1;
            let set = &self.flows[index(protocol)];
            let mut at = flow as usize + self.offsets[index(protocol)];
            if at >= set.len() {
                at -= set.len();
            }
            let stamp = self.numbering.stamp(set.first + at as u32, now);
            template.make(&self.store, frame.bytes_mut(), &set.ends[at], &stamp);
            filled.packets += 1;
            filled.bytes += template.length();
        }
        filled
    }

    fn introduce<F: Frame>(&mut self, _: u64, frames: &mut Batch<F>) -> FilledBurst {
        let mut filled = FilledBurst::default();
        for frame in frames.iter_mut() {
            let [tcp, udp] = [Protocol::Tcp, Protocol::Udp].map(introductions);
            let of_tcp = self.flows[0].len() * tcp;
            let (set, at) = match self.introduced.checked_sub(of_tcp) {
                None => (0, self.introduced / tcp),
                Some(beyond) => (1, beyond / udp),
            };
            let Some(ends) = self.flows[set].ends.get(at) else { break };
            let template = &self.introductions[set];
            if !frame.resize(template.length()) {
                self.too_long += 1;
                break;
            }
            let stamp = self.numbering.unnumbered(self.flows[set].first + at as u32);
            template.make(&self.store, frame.bytes_mut(), ends, &stamp);
            self.introduced += 1;
            filled.packets += 1;
            filled.bytes += template.length();
        }
        filled
    }

    fn made(&self) -> u64 {
        self.numbering.next
    }

    fn refused(&self) -> Vec<(&'static str, u64)> {
        if self.too_long > 0 { vec![("frames too short", self.too_long)] } else { Vec::new() }
    }

    fn flows(&self) -> usize {
        self.flows.iter().map(FlowSet::len).sum()
    }

    fn mean_length(&self) -> usize {
        self.mean
    }
}
