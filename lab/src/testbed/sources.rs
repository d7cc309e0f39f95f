//! A trial's sources: one for each lane.

use super::{Device, FrameSize, PacketSource, Trial};
use crate::traffic::flows::FlowLane;
use crate::traffic::recording::Recording;
use crate::traffic::replay::{ReplayOptions, ReplaySource};
use crate::traffic::sizes::FlowSizes;
use crate::traffic::synthetic::{Synthetic, SyntheticOptions};
use crate::traffic::template::LinkAddresses;
use crate::traffic::{AnyTraffic, Numbering, TrafficSource};
use anyhow::{Result, ensure};
use hairpin_core::flow::Steering;
use std::net::Ipv4Addr;

/// The sources of all lanes, and how many flows there are, or are open at a time, over all of them.
pub struct LaneSources {
    /// One for each lane.
    pub lanes: Vec<AnyTraffic>,
    /// Flows.
    pub flows: usize,
}

/// The sources of `trial`, for packets of `session` over `link`, dealt by `steering`. Generators are numbered from
/// `first_generator` on.
///
/// # Errors
/// A file that cannot be read, masks or numbers that make no sense.
pub fn sources(trial: &Trial, session: u64, steering: Steering, link: LinkAddresses) -> Result<LaneSources> {
    let lanes = (0..steering.workers.max(1)).map(|number| FlowLane { number, steering });
    let mut made: Vec<AnyTraffic> = Vec::new();
    let mut first_id = 0u32;
    match &trial.source {
        PacketSource::Replay { file, masks, payload } => {
            let recording = Recording::read(file, *payload)?;
            ensure!(
                trial.device != Device::Balancer
                    || masks
                        .is_none_or(|masks| masks.destination == Ipv4Addr::UNSPECIFIED && masks.destination_port == 0),
                "a balancer serves one address and port: the masks of the destination must be 0"
            );
            let options = ReplayOptions { masks: *masks, flows: trial.flows, length: trial.packet_size, link };
            for lane in lanes {
                let numbering = Numbering::new(session, lane.number as u8);
                let replay = ReplaySource::new(&recording, &options, lane, numbering, first_id)?;
                first_id += replay.flows() as u32;
                made.push(AnyTraffic::Replay(replay));
            }
        }
        PacketSource::Synthetic { transport, arrivals, sizes, ipv6 } => {
            let options = SyntheticOptions {
                transport: *transport,
                ipv6: *ipv6,
                arrivals: *arrivals,
                sizes: sizes.as_deref().map(FlowSizes::read).transpose()?,
                length: trial.packet_size,
                flows: trial.flows,
                known: trial.run >= 2,
                link,
            };
            for lane in lanes {
                let numbering = Numbering::new(session, lane.number as u8);
                let seed = trial.seed ^ u64::from(lane.number) << 32;
                let synthetic = Synthetic::new(options.clone(), lane, numbering, first_id, seed)?;
                first_id += synthetic.flows() as u32;
                made.push(AnyTraffic::Synthetic(synthetic));
            }
        }
    }
    let flows = made.iter().map(TrafficSource::flows).sum();
    Ok(LaneSources { lanes: made, flows })
}

/// Bytes of the longest frame of a trial.
pub fn longest(size: FrameSize) -> u16 {
    match size {
        FrameSize::Fixed(bytes) => bytes,
        FrameSize::Natural => crate::traffic::synthetic::LONGEST,
    }
}
