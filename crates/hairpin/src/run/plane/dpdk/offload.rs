//! The flow engine of the ports, where they have one: what probing has found, the thread that has their rules, and what is
//! said of it. **Not yet run on hardware** (docs/guide/offload-nic.md).

use super::super::{EngineWords, MARKS, NO_ENGINE, RuleQueries};
use super::engine::WorkerEngine;
use crate::config::{BACKENDS_MAX, PolicyChoice, PortSettings, Settings};
use crate::run::log;
use anyhow::{Context, Result};
use hairpin_core::engine::Counters;
use hairpin_core::flow::FlowKey;
use hairpin_core::l4::connection::Volume;
use hairpin_core::link::{LinkPlan, Neighbours};
use hairpin_core::time::Time;
use hairpin_dpdk::flow::{
    Agreement, DeviceTerms, EgressAction, EnginePort, Findings, LinkHops, OffloadOptions, OffloadReader, OffloadThread,
    ProbeDepth, Probed, RteFlowEngine, Submission,
};
use hairpin_dpdk::{Eal, MbufPool, Port, PortOptions};
use hairpin_linux::cpu;
use std::cell::{Cell, RefCell};
use std::sync::Arc;

/// Slots of totals: two for each backend that there can be.
const TOTALS: u32 = 2 * BACKENDS_MAX as u32;

/// Why the ports were not even asked.
fn unwanted(settings: &Settings) -> Option<&'static str> {
    match settings.policy {
        PolicyChoice::Never => Some("the policy is `never`"),
        _ if !settings.connection_table.tracks_connections() => Some("connections are not tracked"),
        _ => None,
    }
}

/// See the module's documentation.
pub(super) struct PortEngine {
    /// Why there is none, before or instead of probing.
    why_not: Option<String>,
    /// The findings for each port; none where ports were not probed.
    findings: Vec<Findings>,
    agreement: Option<Agreement>,
    rules_max: u32,
    /// Whether marks are wanted where there is nothing better.
    marks: bool,
    hops: LinkHops,
    /// The thread, while there is one.
    running: Option<RunningEngine>,
    /// Its failure has been said.
    told: Cell<bool>,
}

struct RunningEngine {
    offload: OffloadThread,
    submission: Submission,
    /// The totals of slots when backends got their numbers.
    base: RefCell<Vec<Volume>>,
}

impl PortEngine {
    /// Tries what the ports' devices can do. Ports may be closed and opened again for it.
    pub(super) fn probe(
        (eal, settings): (&Eal, &Settings),
        ports: Vec<(Port, PortOptions)>,
        pool: &MbufPool,
        (plan, neighbours): (&Arc<LinkPlan>, &Arc<Neighbours>),
    ) -> Result<(PortEngine, Vec<Port>)> {
        let why_not = unwanted(settings).map(str::to_string);
        let (mut open, mut findings) = (Vec::new(), Vec::new());
        let ids: Vec<u16> = ports.iter().map(|(port, _)| port.id()).collect();
        for (number, (port, options)) in (0..).zip(ports) {
            #[cfg(feature = "fake-flow")]
            crate::fake_flow::stand_in(&port)?;
            if why_not.is_some() {
                open.push(port);
                continue;
            }
            // No worker uses the ports yet, so rules may be put in to see whether they are taken.
            let others: Vec<u16> = ids.iter().copied().filter(|id| *id != port.id()).collect();
            let probed = Probed::of(eal, port, (&options, pool), (number, ProbeDepth::Create), &others);
            let probed = probed.with_context(|| {
                format!("cannot open {} again with what its driver says that it has", options.device)
            })?;
            if let Some(error) = probed.no_hairpins {
                log(&format!(
                    "no hairpin queue on {}, though its driver says that there are some: {error}",
                    options.device
                ));
            }
            open.push(probed.port);
            findings.push(probed.findings);
        }
        let agreement = Agreement::of(&findings);
        let engine = PortEngine {
            why_not,
            findings,
            agreement,
            rules_max: settings.rules_max,
            marks: settings.dpdk.as_ref().is_some_and(|dpdk| dpdk.marks),
            hops: LinkHops::new(Arc::clone(plan), Arc::clone(neighbours)),
            running: None,
            told: Cell::new(false),
        };
        Ok((engine, open))
    }

    /// Begins, if the ports have what it takes: an engine for each of `workers`.
    pub(super) fn start(
        &mut self,
        eal: Eal,
        ports: &[Port],
        settings: &[PortSettings],
        workers: u16,
    ) -> Vec<WorkerEngine> {
        // An earlier one takes its rules out before the next begins.
        self.running = None;
        match self.try_start(eal, ports, settings, workers) {
            Some((running, engines)) => {
                self.running = Some(running);
                log(&format!(
                    "flow engine {}: {}; it has not been run on hardware yet: policy = \"never\" does without it",
                    self.name(),
                    self.words().detail
                ));
                engines.into_iter().map(|engine| WorkerEngine::Rules(Box::new(engine))).collect()
            }
            None => (0..workers).map(|_| WorkerEngine::default()).collect(),
        }
    }

    fn try_start(
        &mut self,
        eal: Eal,
        ports: &[Port],
        settings: &[PortSettings],
        workers: u16,
    ) -> Option<(RunningEngine, Vec<RteFlowEngine>)> {
        let agreement = self.agreement.as_ref().filter(|_| self.marks || !self.only_marks())?;
        let port = |(number, ((port, settings), takes_rules)): (u16, ((&Port, &PortSettings), &bool))| EnginePort {
            takes_rules: *takes_rules,
            // The link layer uses it, too.
            mtu: port.mtu().min(settings.mtu),
            ..EnginePort::of(number, port)
        };
        let options = OffloadOptions {
            ports: (0..).zip(ports.iter().zip(settings).zip(&agreement.takes_part)).map(port).collect(),
            rules_max: self.rules_max,
            totals: TOTALS,
            workers,
            terms: agreement.terms,
            submission: if agreement.templates { Submission::Templates } else { Submission::Synchronous },
            clock: cpu::now,
            eal: Some(eal),
        };
        let mut started = OffloadThread::start(options.clone(), Box::new(self.hops.clone()));
        let mut submission = options.submission;
        if let (Err(error), Submission::Templates) = (&started, submission) {
            log(&format!("no rules by template: {error}; they go in one at a time"));
            submission = Submission::Synchronous;
            started = OffloadThread::start(OffloadOptions { submission, ..options }, Box::new(self.hops.clone()));
        }
        match started {
            Ok((offload, engines)) => Some((RunningEngine { offload, submission, base: RefCell::default() }, engines)),
            Err(error) => {
                log(&format!("no flow engine, connections stay in software: {error}"));
                self.why_not = Some(format!("it did not start: {error}"));
                None
            }
        }
    }

    /// In what terms there are rules of this engine's in a port, or will be once it has started.
    pub(super) fn terms_of(&self, number: usize) -> Option<&DeviceTerms> {
        let failed = self.offload().is_some_and(|offload| offload.statistics().failed > 0);
        let agreement = self.agreement.as_ref().filter(|_| self.why_not.is_none() && !failed)?;
        let takes_part = agreement.takes_part.get(number).is_some_and(|takes_part| *takes_part);
        (takes_part && (self.marks || !self.only_marks())).then_some(&agreement.terms)
    }

    /// The thread that has its rules.
    pub(super) fn offload(&self) -> Option<&OffloadThread> {
        self.running.as_ref().map(|running| &running.offload)
    }

    /// Goes by other addresses and routes from now on.
    pub(super) fn set_plan(&self, plan: &Arc<LinkPlan>) {
        self.hops.set_plan(Arc::clone(plan));
    }

    pub(super) fn name(&self) -> &'static str {
        match &self.running {
            None => NO_ENGINE,
            Some(_) if self.only_marks() => MARKS,
            Some(_) => "rte_flow",
        }
    }

    /// Whether all that can be had of the ports is marks.
    fn only_marks(&self) -> bool {
        self.agreement.as_ref().is_some_and(|agreement| agreement.terms.egress == EgressAction::Mark)
    }

    /// Rules of both families together.
    pub(super) fn rules_max(&self) -> u32 {
        if self.running.is_some() { self.rules_max } else { 0 }
    }

    /// Says it once if the engine has failed.
    pub(super) fn heartbeat(&self) {
        if let Some(running) = &self.running
            && running.offload.statistics().failed > 0
            && !self.told.replace(true)
        {
            log(
                "warning: the flow engine has failed (see above); it has taken its rules out, and everything goes through \
                 the workers until the next start",
            );
        }
    }

    pub(super) fn words(&self) -> EngineWords {
        let Some(RunningEngine { offload, submission, .. }) = &self.running else {
            return EngineWords { detail: self.why_none(), ..EngineWords::default() };
        };
        let counted = offload.statistics();
        let counts = vec![
            ("put-in", counted.created),
            ("taken-out", counted.destroyed),
            ("refused", counted.refused),
            ("not-let-go", counted.stuck),
            ("lost", counted.lost),
            ("failed", counted.failed),
        ];
        let submission = match submission {
            Submission::Synchronous => "one rule at a time",
            Submission::Templates => "templates",
        };
        let terms = self.agreement.as_ref().map(|agreement| agreement.terms.to_string()).unwrap_or_default();
        let detail = match counted.failed {
            0 => format!("{terms}; {submission}"),
            _ => "it has failed: its rules were taken out, everything goes through the workers".to_string(),
        };
        // Of the ports that take part each may lack something else: what one lacks is not done.
        let mut software: Vec<(&'static str, String)> = Vec::new();
        for findings in self.taking_part() {
            for (kind, why) in findings.services() {
                match why {
                    Some(why) if !software.iter().any(|(known, _)| *known == kind) => software.push((kind, why)),
                    _ => {}
                }
            }
        }
        EngineWords { detail, counts, software }
    }

    fn why_none(&self) -> String {
        match (&self.why_not, &self.agreement) {
            (Some(why), _) => why.clone(),
            (None, Some(_)) => "the ports can mark packets, not turn them round (`marks` in [dpdk])".to_string(),
            (None, None) => "no port takes rules".to_string(),
        }
    }

    fn taking_part(&self) -> impl Iterator<Item = &Findings> {
        let takes_part = self.agreement.iter().flat_map(|agreement| &agreement.takes_part);
        self.findings.iter().zip(takes_part).filter(|(_, takes_part)| **takes_part).map(|(findings, _)| findings)
    }

    /// Describes one port.
    pub(super) fn of_port(&self, number: usize) -> String {
        let Some(findings) = self.findings.get(number) else { return self.why_none() };
        let takes_part = self.agreement.as_ref().and_then(|agreement| agreement.takes_part.get(number));
        let why = || findings.services().into_iter().find_map(|(_, why)| why).unwrap_or_default();
        match (&findings.terms, takes_part) {
            (None, _) => format!("no rules: {}", why()),
            (Some(terms), Some(true)) if terms.egress == EgressAction::Mark => format!("rules: {terms} ({})", why()),
            (Some(terms), Some(true)) => format!("rules: {terms}"),
            (Some(terms), _) => format!("no rules, since other ports do it in another way: {terms}"),
        }
    }

    pub(super) fn reader(&self) -> Option<Arc<dyn RuleQueries>> {
        self.running
            .as_ref()
            .map(|running| Arc::new(EngineRuleReader(running.offload.reader())) as Arc<dyn RuleQueries>)
    }

    /// Traffic that rules have forwarded, by slot, since backends got their numbers.
    pub(super) fn totals(&self) -> Vec<Volume> {
        let Some(RunningEngine { offload, base, .. }) = &self.running else { return Vec::new() };
        let base = base.borrow();
        let since = |(slot, (packets, bytes)): (usize, (u64, u64))| {
            let before = base.get(slot).copied().unwrap_or_default();
            Volume { packets: packets.saturating_sub(before.packets), bytes: bytes.saturating_sub(before.bytes) }
        };
        offload.reader().totals().into_iter().enumerate().map(since).collect()
    }

    /// Lets counters of backends that are new under their numbers begin at zero.
    pub(super) fn begin_backends(&self, numbers: &[u16]) {
        let Some(RunningEngine { offload, base, .. }) = &self.running else { return };
        let (now, mut base) = (offload.reader().totals(), base.borrow_mut());
        base.resize(now.len(), Volume::default());
        for slot in numbers.iter().flat_map(|number| [0, 1].map(|submission| usize::from(*number) * 2 + submission)) {
            if let (Some(base), Some((packets, bytes))) = (base.get_mut(slot), now.get(slot)) {
                *base = Volume { packets: *packets, bytes: *bytes };
            }
        }
    }
}

/// The engine's rules, for people.
struct EngineRuleReader(OffloadReader);

impl RuleQueries for EngineRuleReader {
    fn count(&self) -> Result<[u64; 3]> {
        let [ipv4, ipv6] = self.0.rules();
        Ok([ipv4, ipv6, 0])
    }

    fn counters(&self, key: &FlowKey, _: Time) -> Result<Option<Counters>> {
        Ok(self.0.counters(key))
    }
}
