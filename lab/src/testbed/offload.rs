//! What a trial hands over to a modelled card, and what came of it.

use super::balancer::{Balancer, BalancerOptions, with_engine};
use super::card::{Front, Kept};
use super::table::LabTable;
use crate::clock;
use anyhow::{Context, Result, anyhow};
use hairpin_core::engine::{Completions, FlowEngine, Samples};
use hairpin_core::frame::{Batch, Frame, FrameIo};
use hairpin_core::l7::threshold::{Frames, Meter};
use hairpin_core::offload::tree::{BUILT_IN, TEXT_MAX};
use hairpin_core::offload::{AnyPolicy, Choice, FirstN, HeavyHitter, Reason, Tree};
use hairpin_core::time::{Duration, Time};
use hairpin_core::worker::{Asked, OffloadStatistics};
use hairpin_sim::nic::Profile;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// A card in front of the balancer, and which connections go to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Offload {
    /// What the card is like.
    pub card: Profile,
    /// Which connections go to it.
    pub policy: Policy,
}

/// A policy and its numbers, as a file gives them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
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

impl Policy {
    /// The data plane's.
    ///
    /// # Errors
    /// A model that cannot be read, or is none.
    pub fn choice(&self) -> Result<Choice> {
        Ok(match self {
            Policy::Never => Choice::Never,
            Policy::Always => Choice::Always,
            Policy::FirstN(connections) => Choice::FirstN(FirstN { connections: *connections }),
            Policy::HeavyHitter { packets, bytes, duration } => Choice::HeavyHitter(HeavyHitter {
                packets: *packets,
                bytes: *bytes,
                duration: duration.map(|long| Duration::from_nanos(long.as_nanos() as u64)),
                ..HeavyHitter::default()
            }),
            Policy::FastestFlow(packets_per_s) => Choice::FastestFlow { packets_per_s: *packets_per_s },
            Policy::DecisionTree(model) => Choice::DecisionTree(Arc::new(tree(model.as_ref())?)),
            Policy::Auto => Choice::Auto,
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

/// What became of packets and rules where there was a card.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offloaded {
    /// Packets that came to the card.
    pub arrived: u64,
    /// Packets that the card turned round.
    pub packets: u64,
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
    /// What has happened since `before`.
    pub fn since(&self, before: &Offloaded) -> Offloaded {
        Offloaded {
            arrived: self.arrived - before.arrived,
            packets: self.packets - before.packets,
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

/// Hairpin's worker with a policy and a card for its engine.
pub struct Offloading {
    balancer: Balancer<AnyPolicy>,
    completions: Completions,
    asked: Asked,
    samples: Samples,
    meter: Meter,
    worker_ns: u64,
}

/// The workers of a balancer behind `offload`'s card, with `tables` as many as there are.
///
/// # Errors
/// A model that cannot be read, or is none.
pub fn workers(options: &BalancerOptions, tables: Vec<LabTable>, offload: &Offload) -> Result<Vec<Offloading>> {
    let (choice, capacity) = (offload.policy.choice()?, options.connections());
    let policy = || AnyPolicy::new(choice.clone(), capacity);
    let workers = with_engine(options, tables, policy, offload.card.caps()).into_iter();
    Ok(workers.map(|worker| Offloading::new(Balancer::new(worker))).collect())
}

impl Offloading {
    /// A worker that was made for its card ([`EngineCaps`](hairpin_core::engine::EngineCaps)).
    fn new(balancer: Balancer<AnyPolicy>) -> Offloading {
        let (completions, asked, samples) = (Completions::new(), Asked::new(), Samples::new());
        Offloading { balancer, completions, asked, samples, meter: Meter::default(), worker_ns: 0 }
    }

    /// The worker.
    pub fn balancer(&self) -> &Balancer<AnyPolicy> {
        &self.balancer
    }

    /// It is needed no more.
    pub fn retire(self) {
        self.balancer.retire();
    }

    /// Handles a burst that came up through the card, and asks that for rules.
    pub fn iterate<IO: FrameIo>(&mut self, io: &mut Front<IO>, rx: &mut Batch<IO::Frame>, tx: &mut Batch<IO::Frame>) {
        let began = clock::now();
        let mut frames = Frames::default();
        rx.iter().for_each(|frame| frames.add(frame.bytes().len()));
        let came = !rx.is_empty();
        let mut busy = self.balancer.turn(began, io, rx, tx);
        if came {
            self.meter.frames(&frames, since(began));
        }
        if let Some(nic) = io.nic() {
            busy |= self.rules(Time::from_nanos(began), nic);
        }
        if busy {
            self.worker_ns += since(began).as_nanos() as u64;
        }
    }

    /// Whether there was anything to do.
    fn rules(&mut self, now: Time, engine: &mut impl FlowEngine) -> bool {
        let worker = self.balancer.worker();
        worker.poll_samples(&mut self.asked);
        let mut busy = !self.asked.is_empty();
        if busy {
            self.samples.clear();
            engine.sample(&self.asked, &mut self.samples);
            worker.handle_samples(now, &self.asked, &self.samples);
            self.asked.clear();
        }
        let (mut ops, mut began) = (0, 0);
        while let Some(op) = worker.poll_op() {
            if ops == 0 {
                began = clock::now();
            }
            if let Err(op) = engine.submit(now, op) {
                worker.return_op(op);
                break;
            }
            ops += 1;
        }
        if ops > 0 {
            engine.flush(now);
        }
        engine.poll(now, &mut self.completions);
        busy |= ops > 0 || !self.completions.is_empty();
        for completion in self.completions.drain(..) {
            worker.handle_completion(now, &completion);
        }
        if ops > 0 {
            self.meter.ops(ops, since(began));
        }
        if self.meter.conclude().is_some() {
            worker.set_costs(self.meter.costs());
        }
        busy
    }

    /// What has become of `arrived` packets and of rules so far, with what the card says.
    pub fn offloaded(&self, arrived: u64, kept: &Kept, rules_peak: u32) -> Offloaded {
        let of: &OffloadStatistics = self.balancer.offload();
        Offloaded {
            arrived,
            packets: kept.turned,
            rules: of.rules,
            rules_peak: rules_peak.into(),
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

fn since(began: u64) -> Duration {
    Duration::from_nanos(clock::now().saturating_sub(began))
}
