//! KTH 2022's testbed in virtual time: a generator that offers packets whatever becomes of them, a device under test
//! with a card, and a sink that knows where every packet has gone.
//!
//! ```text
//! Traffic -> line in -> card: a rule matches  --------------------> line out -> sink
//!                         \-> queue of a core -> Worker, in bursts -/
//! ```
//!
//! - Packets come in over a line of so many Gbit/s. The card ([`Nic`](crate::nic::Nic)) comes first: what matches a rule
//!   leaves by itself. The rest is spread by a hash of the client's end, both directions alike, into the queue of a core.
//! - A core takes what is in its queue, 32 packets at most, and gives it to the very
//!   [`Worker`](hairpin_core::worker::Worker) of the data plane, as frames. What that takes, a [`CoreProfile`] says, from
//!   what was in the burst: packets, new flows, ends. As long as that lasts the queue fills; then the packets leave, and
//!   the worker asks for rules and hears of others, which takes its time again.
//! - Packets are lost when a queue of a core is full (`receive-queue`), the card's buffer (`card`), the queue in front of
//!   the line out (`sending-queue`), and when the worker drops them (its own names). Packets that a backend would have to
//!   send before anything of their flow has reached one are lost too, as `no-backend-yet`; that is not the device's fault.
//!   Each packet offered is received or lost: [`ModelTestbed::run`] checks it.
//! - TCP's part is told by [`FlowPart`]: SYN, SYN-ACK, FIN; numbers are right as far as the worker reads them. A trace of one
//!   direction only is UDP, or TCP of nothing but [`FlowPart::Middle`], which is picked up, by Maglev's table
//!   ([`UnknownPacket::PickUp`](hairpin_core::config::UnknownPacket)): a SYN without an answer establishes nothing.
//!
//! # Scale
//!
//! At a scale of 0.1 everything that is a rate or a number of flows is a tenth: what the caller offers, its flows, the
//! table's entries (the caller's to scale), the port's Gbit/s, the card's Gbit/s, packets and rules per second and its room
//! for rules. All of a core's times, and the fixed delays of card and port, are ten times as long; what a profile says of
//! the flows in use on a core is looked up for ten times as many as there are. So each core is as busy,
//! each queue (of as many packets) as full, each flow lasts as long and each table is as short of room as at full scale;
//! but what is waited for takes ten times as long. **Latencies in [`RunResults`] are virtual time as it is: divide them by the
//! scale's inverse** (multiply by the scale) to compare them with the full scale. Timeouts, intervals, and how stale a
//! card's counters are do not change: they belong to the time of flows.
//!
//! # What is not modelled
//!
//! What a device asks of the card and what the card does are apart ([`CardOffload`]). A worker that waits for the card is
//! occupied until the card has changed all of its rules, behind those of the other cores; the packets of its burst leave after
//! that. A card that only marks goes through packets as one that forwards does (its speed while rules change is the same), and
//! they go on to the core's queue.
//!
//! Memory that cores share: a method whose table is shared ([`LookupMethod::is_shared`]) costs what its profile says, whatever
//! the other cores do. A packet that is refused for want of room costs what one of a known flow does. Reading counters
//! costs a core nothing. Polling in vain is not counted as being busy.

mod account;
pub mod bound;
mod card;
mod core;
pub mod cores;
mod costs;
mod frames;
mod results;
mod run;
#[cfg(test)]
mod tests;
mod wire;
pub mod yardstick;

pub use results::{IntervalRow, PacketLatency, RunResults};

use crate::nic;
use card::Card;
use core::ModelCore;
use cores::CoreProfile;
use costs::MethodCosts;
use fastrand::Rng;
use frames::ModelPlane;
use hairpin_core::config::Timeouts;
use hairpin_core::flow::{Address, Direction, Endpoint, FlowKey, Steering};
use hairpin_core::table::LookupMethod;
use hairpin_core::time::{Duration, Time};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use wire::Wire;
use yardstick::OffloadPlan;

/// Cores at most.
pub const CORES_MAX: u16 = 32;
/// Backends at most.
pub const BACKENDS_MAX: u16 = 1024;
/// Entries of each core at most.
const ENTRIES_EACH_MAX: usize = 1 << 26;
/// Entries of each core at least.
const ENTRIES_EACH_MIN: usize = 64;

/// The service's end, 192.0.2.1:80: where the keys of all [`ModelTraffic`] lead.
pub fn service() -> Endpoint {
    Endpoint { address: Address::from_ipv4(frames::SERVICE.to_be_bytes()), port: frames::SERVICE_PORT }
}

/// A packet that is offered to the device under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OfferedPacket {
    /// When, from the beginning of the run.
    pub at: Time,
    /// Of which flow; below [`ModelTraffic::flows`].
    pub flow: u32,
    /// Bytes from the Ethernet header on, without checksum; fewer than 60 are padded, more than 9,216 are cut.
    pub length: u16,
    /// Its sender.
    pub direction: Direction,
    /// Which of the flow's packets it is.
    pub part: FlowPart,
}

/// Which of its flow's packets one is. UDP packets are all the same on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowPart {
    /// The first one: a client's SYN, a backend's SYN-ACK, a first datagram.
    First,
    /// Any other: an acknowledgement with data.
    Middle,
    /// The last one: a FIN.
    Last,
}

/// The offered traffic.
pub trait ModelTraffic {
    /// The next packet; times never descend. `None`: the run is over.
    fn next(&mut self) -> Option<OfferedPacket>;
    /// A flow's ends, client to [`service`]: IPv4, TCP or UDP, distinct among flows, clients not in 198.18.0.0/15.
    fn key(&self, flow: u32) -> FlowKey;
    /// Flow numbers are below it.
    fn flows(&self) -> u32;
}

/// The options of the testbed.
#[derive(Clone, Debug)]
pub struct TestbedOptions {
    /// 1 for all of it; 0.1 for a tenth. See the module.
    pub scale: f64,
    /// Cores of the device under test, 1 to [`CORES_MAX`].
    pub cores: u16,
    /// The cost of a core's work, at full scale.
    pub core: CoreProfile,
    /// How packets come and go.
    pub port: ModelPort,
    /// The work of the device.
    pub device: ModelDevice,
    /// The seed of everything drawn.
    pub seed: u64,
    /// The interval of a row of the results; at least a microsecond.
    pub interval: Duration,
}

/// The device's port, at full scale.
#[derive(Clone, Copy, Debug)]
pub struct ModelPort {
    /// Gigabits per second, each way.
    pub gbit_s: f64,
    /// Packets in each core's receive queue; the line out has a queue of as many for each core.
    pub queue: u32,
    /// The time of a packet through a core between line and core, both ways together. (What the card turns round has that
    /// card's own latency instead.)
    pub latency: Duration,
}

/// The work of the device under test.
#[derive(Clone, Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each run")]
pub enum ModelDevice {
    /// KTH 2022's basic forwarder.
    Forwarder,
    /// The balancer.
    Balancer(BalancerSettings),
}

/// The balancer: round robin over backends, by connection.
#[derive(Clone, Debug)]
pub struct BalancerSettings {
    /// How connections are found.
    pub table: LookupMethod,
    /// Connections that all workers together have room for, already scaled by the caller.
    pub entries: u32,
    /// Backends, 1 to [`BACKENDS_MAX`].
    pub backends: u16,
    /// How long silent connections are remembered.
    pub timeouts: Timeouts,
    /// The offload settings of the card; `None`: there is none.
    pub offload: Option<CardOffload>,
}

/// Rules in a card.
#[derive(Clone, Debug)]
pub struct CardOffload {
    /// The card, at full scale.
    pub card: nic::CardProfile,
    /// Which flows it gets. Each worker has a policy of its own, and is told the card's whole room, as in `hairpin run`.
    pub policy: CardPolicy,
    /// What the card does with packets of flows that it has rules for.
    pub action: CardAction,
    /// Whether a worker waits for the card with its rules, as with `rte_flow_create`: it keeps the packets that it has, and
    /// takes no others, until the card has answered all it has asked for. Else it hears of them later.
    pub waits: bool,
}

/// What a card does with the packets that match.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CardAction {
    /// It rewrites them and turns them round: no core has anything to do with them.
    #[default]
    Forward,
    /// It marks them (`rte_flow` MARK): a core gets them and need not search its table, and does all the rest.
    Mark,
}

/// Which flows the card gets.
#[derive(Clone, Debug)]
pub enum CardPolicy {
    /// By one of the data plane's policies.
    Choice(hairpin_core::offload::Choice),
    /// By one that knows the future.
    Yardstick(OffloadPlan),
}

/// Mistakes the device can be told to make, so that the checks can be seen to find them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mistake {
    /// One in a thousand packets goes to another backend.
    OtherBackend,
    /// One in a thousand packets vanishes without a trace.
    Vanishes,
    /// Rules that are to be removed stay.
    KeepsRules,
}

/// The testbed.
pub struct ModelTestbed {
    options: TestbedOptions,
    costs: MethodCosts,
    steering: Steering,
    cores: Vec<ModelCore>,
    /// When each core is done with what it is at.
    until: Vec<u64>,
    card: Option<Card>,
    plane: ModelPlane,
    line_in: Wire,
    line_out: Wire,
    /// Virtual time; goes on from run to run.
    now: u64,
    /// The backend that each flow's packets have reached, [`frames::NOWHERE`] before the first.
    seen: Vec<u16>,
    /// When the run began: plans are about the time since then.
    began: Arc<AtomicU64>,
    mistake: Option<Mistake>,
}

impl ModelTestbed {
    /// A testbed in which nothing has happened yet.
    ///
    /// # Errors
    /// The contradictions in the options.
    pub fn new(options: TestbedOptions) -> Result<ModelTestbed, String> {
        check(&options)?;
        let mut random = Rng::with_seed(options.seed);
        let steering = Steering::by_hash([random.u64(..), random.u64(..)], options.cores);
        let seeds = [(); 4].map(|()| random.u64(..));
        let card = match &options.device {
            ModelDevice::Balancer(BalancerSettings { offload: Some(offload), .. }) => {
                Some(Card::new(offload, options.scale, random.fork()))
            }
            _ => None,
        };
        let began = Arc::new(AtomicU64::new(0));
        let gbit_s = options.port.gbit_s * options.scale;
        let cores = match &options.device {
            ModelDevice::Forwarder => (0..options.cores).map(|_| ModelCore::new(None)).collect(),
            ModelDevice::Balancer(balancer) => {
                let caps = card.as_ref().map(Card::caps);
                core::balancers(balancer, options.cores, steering, seeds, (caps, &began))
            }
        };
        let method = match &options.device {
            ModelDevice::Forwarder => LookupMethod::DEFAULT,
            ModelDevice::Balancer(balancer) => balancer.table,
        };
        Ok(ModelTestbed {
            costs: MethodCosts::new(options.core.clone(), method, options.scale),
            steering,
            until: vec![0; cores.len()],
            cores,
            card,
            plane: ModelPlane::new(),
            line_in: Wire::new(gbit_s, usize::MAX),
            line_out: Wire::new(gbit_s, options.port.queue as usize * usize::from(options.cores)),
            now: 0,
            seen: Vec::new(),
            began,
            mistake: None,
            options,
        })
    }

    /// Makes a mistake from now on.
    pub fn plant(&mut self, mistake: Mistake) {
        self.mistake = Some(mistake);
    }
}

/// Whether options make sense.
fn check(options: &TestbedOptions) -> Result<(), String> {
    let TestbedOptions { scale, cores, port, device, interval, .. } = options;
    if !(scale.is_finite() && (1e-6..=1.0).contains(scale)) {
        return Err(format!("the scale is 0.000001 to 1, and stands as {scale}"));
    }
    if !(1..=CORES_MAX).contains(cores) {
        return Err(format!("there are 1 to {CORES_MAX} cores, not {cores}"));
    }
    if !(port.gbit_s.is_finite() && (0.001..=10_000.0).contains(&port.gbit_s)) {
        return Err(format!("port.gbit_s is 0.001 to 10,000, and stands as {}", port.gbit_s));
    }
    if !(1..=1 << 20).contains(&port.queue) || port.latency > Duration::from_secs(1) {
        return Err("port.queue is 1 to 1,048,576, and port.latency at most a second".into());
    }
    if *interval < Duration::from_micros(1) {
        return Err("the interval is at least a microsecond".into());
    }
    let ModelDevice::Balancer(balancer) = device else { return Ok(()) };
    if !(1..=BACKENDS_MAX).contains(&balancer.backends) {
        return Err(format!("there are 1 to {BACKENDS_MAX} backends, not {}", balancer.backends));
    }
    if balancer.entries == 0 || balancer.entries as usize / usize::from(*cores) > ENTRIES_EACH_MAX {
        return Err(format!("there are 1 to {ENTRIES_EACH_MAX} entries for each core"));
    }
    if balancer.offload.is_some() && !balancer.table.tracks_connections() {
        return Err(format!("{} knows no connections that could be offloaded", balancer.table));
    }
    Ok(())
}
