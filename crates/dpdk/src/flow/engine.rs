//! The engine: a thread that has the device ([`RuleService`]), and a handle for each worker ([`RteFlowEngine`]).
//!
//! A worker never waits: requests and answers go through queues that each have room for all that a worker may have
//! under way, so that neither side finds one full. Not yet run on hardware.

use super::description::Does;
use super::device::{DeviceOutcome, FlowError, RuleDevice, Synchronous, Templates};
use super::handle::RteFlowEngine;
use super::hops::Hops;
use super::machine::RuleMachine;
use super::raw;
use super::service::{AWAITING, Inbox, RuleService};
use super::shared::{Flushes, OffloadReader, SharedRules};
use super::statistics::EngineStatistics;
use super::translate::{DeviceTerms, EnginePort, standing};
use crate::eal::Eal;
use hairpin_core::engine::{EngineCaps, OPS_MAX};
use hairpin_core::time::Time;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the device may take for the rules that stand before the flows'.
const SETTING_UP: Duration = Duration::from_secs(5);

/// How rules are submitted to rte_flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Submission {
    /// One rule at a time; the thread waits for each.
    #[default]
    Synchronous,
    /// By templates, in batches.
    Templates,
}

/// The parameters of an engine.
#[derive(Clone, Debug)]
pub struct OffloadOptions {
    /// The ports, in the order in which the plane counts them.
    pub ports: Vec<EnginePort>,
    /// Rules at most, of all workers; 2 for each connection.
    pub rules_max: u32,
    /// Slots of totals: one more than the highest [`Rule::total`](hairpin_core::engine::Rule::total). What rules of others
    /// carry is not added up.
    pub totals: u32,
    /// How many workers.
    pub workers: u16,
    /// In what terms the ports take rules: all of them alike.
    pub terms: DeviceTerms,
    /// How rules are submitted.
    pub submission: Submission,
    /// The workers' clock.
    pub clock: fn() -> Time,
    /// DPDK, with which the thread registers; without it only the fake device works.
    pub eal: Option<Eal>,
}

/// Why an engine did not start.
#[derive(Debug)]
pub enum OffloadError {
    /// The device took no template or one of the rules that have to stand before the flows'.
    Device {
        /// The attempted operation.
        what: String,
        /// The error message.
        error: FlowError,
    },
    /// The device did not answer.
    Silent,
    /// The system gave no thread.
    Thread(std::io::Error),
    /// The shim was built for something else.
    Shim,
}

impl fmt::Display for OffloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OffloadError::Device { what, error } => write!(f, "{what}: {error}"),
            OffloadError::Silent => f.write_str("the device did not answer a request to put in a rule"),
            OffloadError::Thread(error) => write!(f, "no thread for the flow engine: {error}"),
            OffloadError::Shim => f.write_str("the C shim and this library do not agree on what a rule is"),
        }
    }
}

impl std::error::Error for OffloadError {}

/// The thread. Dropping it takes every rule out of the ports and ends it; workers' requests are then refused. What an
/// earlier process has left in the ports goes when it starts.
#[derive(Debug)]
pub struct OffloadThread {
    shared: Arc<SharedRules>,
    thread: Option<JoinHandle<()>>,
}

impl OffloadThread {
    /// Sets the ports up and begins; one engine for each worker.
    ///
    /// # Errors
    /// [`OffloadError`]; nothing is left in the ports.
    pub fn start(
        options: OffloadOptions,
        hops: Box<dyn Hops>,
    ) -> Result<(OffloadThread, Vec<RteFlowEngine>), OffloadError> {
        if !raw::agrees_with_the_shim() {
            return Err(OffloadError::Shim);
        }
        match options.submission {
            Submission::Synchronous => OffloadThread::run(options, hops, Synchronous::default()),
            Submission::Templates => {
                let ports = ids(&options);
                let device = Templates::open(&ports, options.rules_max, options.terms.counts);
                let what = "preparing the ports for templates".into();
                OffloadThread::run(options, hops, device.map_err(|error| OffloadError::Device { what, error })?)
            }
        }
    }

    pub(super) fn run<D: RuleDevice + 'static>(
        options: OffloadOptions,
        hops: Box<dyn Hops>,
        mut device: D,
    ) -> Result<(OffloadThread, Vec<RteFlowEngine>), OffloadError> {
        let ids = ids(&options);
        // Rules left by a process that died would match before our rules.
        device.clear(&ids);
        if let Err(error) = set_up(&mut device, &options) {
            device.close(&ids);
            return Err(error);
        }
        let shared = Arc::new(SharedRules::new(options.rules_max, options.totals));
        let (mut inboxes, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..options.workers {
            let (request, requests) = sync_channel(OPS_MAX);
            let (answer, answers) = sync_channel(OPS_MAX);
            inboxes.push(Inbox { requests, waiting: None, answers: answer });
            ends.push((request, answers));
        }
        let machine =
            RuleMachine::new(device, options.terms, options.ports.clone(), options.rules_max, hops.generation());
        let service =
            RuleService { machine, inboxes, current: None, hops, shared: Arc::clone(&shared), clock: options.clock };
        let eal = options.eal;
        let thread = std::thread::Builder::new().name("flow engine".into()).spawn(move || {
            // Without an id of its own everything works, a little slower.
            let _registration = eal.map(|eal| eal.register_thread());
            service.run();
        });
        let thread = thread.map_err(OffloadError::Thread)?;
        let caps = caps(&options);
        let rules_max = options.rules_max;
        let engines = ends.into_iter().map(|ends| {
            let thread = thread.thread().clone();
            RteFlowEngine::new(caps, ends, (Arc::clone(&shared), thread), rules_max)
        });
        let engines = engines.collect();
        Ok((OffloadThread { shared, thread: Some(thread) }, engines))
    }

    /// Its counters.
    pub fn statistics(&self) -> EngineStatistics {
        *self.shared.statistics()
    }

    pub(super) fn flushes(&self) -> Flushes {
        self.shared.flushes.clone()
    }

    /// A handle with which other threads can query its rules; it stays of use when the engine has ended.
    pub fn reader(&self) -> OffloadReader {
        OffloadReader(Arc::clone(&self.shared))
    }
}

impl Drop for OffloadThread {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // A panic there was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// The ports that rules are put into, as DPDK numbers them.
fn ids(options: &OffloadOptions) -> Vec<u16> {
    options.ports.iter().filter(|port| port.takes_rules).map(|port| port.id).collect()
}

fn caps(options: &OffloadOptions) -> EngineCaps {
    let terms = &options.terms;
    EngineCaps {
        rules_max: options.rules_max,
        families_apart: false,
        ops_in_flight_max: OPS_MAX as u32,
        rewrites_sequence: terms.joins(),
        rewrites_sack: false,
        rewrites_window: false,
        rewrites_timestamps: false,
        checks_guards: false,
        counts: terms.counts != Does::NONE,
        judges_access: false,
    }
}

/// Puts in the rules that stand before the flows'.
fn set_up(device: &mut impl RuleDevice, options: &OffloadOptions) -> Result<(), OffloadError> {
    let until = Instant::now() + SETTING_UP;
    for port in options.ports.iter().filter(|port| port.takes_rules) {
        for rule in standing(&options.terms, port) {
            let what = || format!("putting in a rule that has to stand before the flows': {rule:?}");
            let refused = |error| OffloadError::Device { what: what(), error };
            device.create(port.id, &rule, 0).map_err(refused)?;
            device.push();
            loop {
                match device.pull() {
                    Some(DeviceOutcome::Created(..)) => break,
                    Some(_) => {
                        let error = FlowError { code: libc::EIO, kind: 0, message: String::new() };
                        return Err(OffloadError::Device { what: what(), error });
                    }
                    None if Instant::now() > until => return Err(OffloadError::Silent),
                    None => std::thread::sleep(AWAITING),
                }
            }
        }
    }
    Ok(())
}
