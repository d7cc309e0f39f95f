//! The rules that a trial hands over to a modelled card, and the results.

use super::balancer::{BalancerOptions, event_loop, retire, with_engine};
use super::card::{CardEngine, DevicePort, KeptFrames};
use super::table::LabTable;
use crate::clock;
use anyhow::{Context, Result, anyhow};
use hairpin_core::event_loop::EventLoop;
use hairpin_core::frame::FrameIo;
use hairpin_core::offload::tree::{BUILT_IN, TEXT_MAX};
use hairpin_core::offload::{AnyPolicy, Choice, FirstN, HeavyHitter, Reason, Tree};
use hairpin_core::time::{Duration, Time};
use hairpin_core::worker::{OffloadStatistics, Worker};
use hairpin_sim::nic::CardProfile;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// A card in front of the balancer, and which connections go to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OffloadSetting {
    /// The profile of the card.
    pub card: CardProfile,
    /// Which connections go to it.
    pub policy: PolicySetting,
    /// The card only marks packets: the worker forwards all of them, and finds marked ones' connections without a look-up.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub marks: bool,
}

/// A policy and its numbers, as a file gives them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PolicySetting {
    /// None: the card is there, and all that comes goes through it.
    #[default]
    Never,
    /// Every established one.
    Always,
    /// As many as this.
    FirstN(u32),
    /// Those that have reached one of these, both ways together.
    HeavyHitter {
        /// Packets.
        packets: Option<u64>,
        /// Bytes of IP packets.
        bytes: Option<u64>,
        /// Time since the first packet.
        duration: Option<std::time::Duration>,
    },
    /// The fastest, with so many packets a second at least.
    FastestFlow(u32),
    /// Flows that a model expects to be long; `None`: the built-in model.
    DecisionTree(Option<PathBuf>),
    /// Those that are expected to pay.
    Auto,
}

impl PolicySetting {
    /// The data plane's.
    ///
    /// # Errors
    /// A model that cannot be read, or is none.
    pub fn choice(&self) -> Result<Choice> {
        Ok(match self {
            PolicySetting::Never => Choice::Never,
            PolicySetting::Always => Choice::Always,
            PolicySetting::FirstN(connections) => Choice::FirstN(FirstN { connections: *connections }),
            PolicySetting::HeavyHitter { packets, bytes, duration } => Choice::HeavyHitter(HeavyHitter {
                packets: *packets,
                bytes: *bytes,
                duration: duration.map(|long| Duration::from_nanos(long.as_nanos() as u64)),
                ..HeavyHitter::default()
            }),
            PolicySetting::FastestFlow(packets_per_s) => Choice::FastestFlow { packets_per_s: *packets_per_s },
            PolicySetting::DecisionTree(model) => Choice::DecisionTree(Arc::new(tree(model.as_ref())?)),
            PolicySetting::Auto => Choice::Auto,
        })
    }
}

fn tree(model: Option<&PathBuf>) -> Result<Tree> {
    let Some(path) = model else {
        return Tree::parse(BUILT_IN).map_err(|wrong| anyhow!("the model that is built in: {wrong}"));
    };
    let text =
        hairpin_diagnostics::text_of(path, TEXT_MAX as u64).with_context(|| format!("model {}", path.display()))?;
    Tree::parse(&text).map_err(|wrong| anyhow!("model {}: {wrong}", path.display()))
}

/// The fates of packets and rules, if there was a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloaded {
    /// Packets that came to the card.
    pub arrived: u64,
    /// Packets that the card turned round.
    pub packets: u64,
    /// Packets that it marked, if that is all it does.
    #[serde(default)]
    pub marked: u64,
    /// Rules in force or asked for, when the card last answered.
    pub rules: u64,
    /// The most rules in force at a time, flows that were made known before the clock started included.
    pub rules_peak: u64,
    /// Rules that came into force.
    pub installed: u64,
    /// Rules taken away.
    pub removed: u64,
    /// Rules refused because the card was full.
    pub refused_full: u64,
    /// Rules refused because the card failed, or cannot do them.
    pub refused_otherwise: u64,
    /// How often a connection was kept in software because there was no room, or too much was under way.
    pub no_room: u64,
    /// Nanoseconds that all rules together have waited, from being asked for to being confirmed.
    pub waited_ns: u64,
    /// Nanoseconds in which the worker handled packets, rules and timeouts; receiving and sending is not among them.
    pub worker_ns: u64,
    /// Nanoseconds in which the device's thread received and was the card.
    pub card_ns: u64,
}

impl Offloaded {
    /// The difference since `before`.
    pub fn since(&self, before: &Offloaded) -> Offloaded {
        Offloaded {
            arrived: self.arrived - before.arrived,
            packets: self.packets - before.packets,
            marked: self.marked - before.marked,
            rules: self.rules,
            rules_peak: self.rules_peak,
            installed: self.installed - before.installed,
            removed: self.removed - before.removed,
            refused_full: self.refused_full - before.refused_full,
            refused_otherwise: self.refused_otherwise - before.refused_otherwise,
            no_room: self.no_room - before.no_room,
            waited_ns: self.waited_ns - before.waited_ns,
            worker_ns: self.worker_ns - before.worker_ns,
            card_ns: self.card_ns - before.card_ns,
        }
    }

    /// The share of packets that it turned round, 0 to 1; 0 if none came.
    pub fn share(&self) -> f64 {
        if self.arrived == 0 { 0.0 } else { self.packets as f64 / self.arrived as f64 }
    }

    /// Rules refused, for whatever reason.
    pub fn refused(&self) -> u64 {
        self.refused_full + self.refused_otherwise
    }

    /// Nanoseconds from a rule's being asked for to its being confirmed, on average; `None` if there was none.
    pub fn mean_wait_ns(&self) -> Option<f64> {
        (self.installed > 0).then(|| self.waited_ns as f64 / self.installed as f64)
    }
}

/// The workers of a balancer behind `offload`'s card, with `tables` as many as there are.
///
/// # Errors
/// A model that cannot be read, or is none.
pub fn workers(
    options: &BalancerOptions,
    tables: Vec<LabTable>,
    offload: &OffloadSetting,
) -> Result<Vec<Worker<AnyPolicy, LabTable>>> {
    let (choice, capacity) = (offload.policy.choice()?, options.connections());
    let policy = || AnyPolicy::new(choice.clone(), capacity);
    let mut workers = with_engine(options, tables, policy, offload.card.caps());
    if offload.marks {
        workers.iter_mut().for_each(Worker::go_by_marks);
    }
    Ok(workers)
}

/// Hairpin's worker with a policy, and a card for its engine.
pub struct Offloading<IO: FrameIo> {
    event_loop: EventLoop<DevicePort<IO>, CardEngine, Worker<AnyPolicy, LabTable>>,
    worker_ns: u64,
}

impl<IO: FrameIo> Offloading<IO> {
    /// A worker that was made for the card of its port.
    ///
    /// # Panics
    /// The port has no card.
    pub fn new(worker: Worker<AnyPolicy, LabTable>, io: DevicePort<IO>) -> Offloading<IO> {
        let engine = io.engine().expect("a worker that was made for a card stands behind one");
        Offloading { event_loop: event_loop(worker, io, engine), worker_ns: 0 }
    }

    /// Its event loop.
    pub fn event_loop(&self) -> &EventLoop<DevicePort<IO>, CardEngine, Worker<AnyPolicy, LabTable>> {
        &self.event_loop
    }

    /// Its event loop, to be changed.
    pub fn event_loop_mut(&mut self) -> &mut EventLoop<DevicePort<IO>, CardEngine, Worker<AnyPolicy, LabTable>> {
        &mut self.event_loop
    }

    /// It is needed no more.
    pub fn retire(self) {
        retire(self.event_loop.worker);
    }

    /// An iteration of its event loop. Whether there may be more to do at once.
    pub fn iterate(&mut self) -> bool {
        let (began, in_port) = (clock::now(), self.event_loop.io.counts().ns);
        let busy = self.event_loop.iterate(Time::from_nanos(began), |_| {});
        if busy {
            let in_port = self.event_loop.io.counts().ns - in_port;
            self.worker_ns += clock::now().saturating_sub(began).saturating_sub(in_port);
        }
        busy
    }

    /// The fates of packets and rules so far, with the card's counters.
    pub fn offloaded(&self) -> Offloaded {
        let io = &self.event_loop.io;
        let (of, kept): (&OffloadStatistics, KeptFrames) = (&self.event_loop.worker.statistics().offload, io.kept());
        Offloaded {
            arrived: io.counts().received,
            packets: kept.turned,
            marked: kept.marked,
            rules: of.rules,
            rules_peak: io.rules_peak().into(),
            installed: of.installed,
            removed: of.removed,
            refused_full: of.refused_full,
            refused_otherwise: of.refused_unsupported + of.refused_failed,
            no_room: of.kept[Reason::Room as usize] + of.queue_full,
            waited_ns: of.latency.sum_ns,
            worker_ns: self.worker_ns,
            card_ns: kept.ns,
        }
    }
}
