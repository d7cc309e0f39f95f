//! The counters of a run, and their invariants: every packet is received or lost, and the workers and the card know of the
//! same rules.

use super::core::TestbedWorker;
use super::frames::ModelPacket;
use super::results::{IntervalRows, RunResults};
use super::{CardAction, ModelTestbed};
use crate::nic::CardTally;
use hairpin_core::offload::Reason;
use hairpin_core::time::Duration;
use hairpin_core::wire::Malformed;
use hairpin_core::worker::{Drop, Statistics};

/// Why a packet is lost but for the worker's reasons.
#[derive(Clone, Copy)]
pub(super) enum Loss {
    ReceiveQueue,
    SendingQueue,
    Card,
    NoBackendYet,
    NoSuchFlow,
    NotTheServices,
    Unexplained,
}

const LOSSES: [(Loss, &str); 7] = [
    (Loss::ReceiveQueue, "receive-queue"),
    (Loss::SendingQueue, "sending-queue"),
    (Loss::Card, "card"),
    (Loss::NoBackendYet, "no-backend-yet"),
    (Loss::NoSuchFlow, "no-such-flow"),
    (Loss::NotTheServices, "not-the-service's"),
    (Loss::Unexplained, "unexplained"),
];

/// The counters of a run.
pub(super) struct RunCounts {
    pub(super) rows: IntervalRows,
    pub(super) offered: u64,
    pub(super) received: u64,
    pub(super) received_bytes: u64,
    lost: [u64; LOSSES.len()],
    pub(super) drops: [u64; Drop::ALL.len()],
    pub(super) malformed: [u64; Malformed::ALL.len()],
    pub(super) unfaithful: u64,
    /// When the last packet has left.
    pub(super) last: u64,
    /// Rules, times nanoseconds, until then.
    pub(super) rules: (f64, u64),
    pub(super) rules_peak: u32,
}

/// The counters of workers and card before the run.
pub(super) struct Before {
    busy: Vec<u64>,
    kept: [u64; Reason::ALL.len()],
    evicted: [u64; Reason::ALL.len()],
    established: u64,
    card: CardTally,
}

/// The drops of a worker.
pub(super) type WorkerDrops = ([u64; Drop::ALL.len()], [u64; Malformed::ALL.len()]);

/// The drops of a worker so far.
pub(super) fn dropped(statistics: &Statistics) -> WorkerDrops {
    (statistics.drops, statistics.malformed)
}

impl RunCounts {
    /// A run begins.
    pub(super) fn new(began: u64, interval: Duration, rules: u32) -> RunCounts {
        RunCounts {
            rows: IntervalRows::new(began, interval),
            offered: 0,
            received: 0,
            received_bytes: 0,
            lost: [0; LOSSES.len()],
            drops: [0; Drop::ALL.len()],
            malformed: [0; Malformed::ALL.len()],
            unfaithful: 0,
            last: began,
            rules: (0.0, began),
            rules_peak: rules,
        }
    }

    pub(super) fn lose(&mut self, now: u64, packet: &ModelPacket, why: Loss) {
        self.lost[why as usize] += 1;
        self.rows.lost(now, packet.length);
    }

    /// Packets have not come out of a worker, which had dropped so many `before`. (It can count one twice: an answer to what
    /// it refuses may be one too many.)
    pub(super) fn dropped<'a>(
        &mut self,
        now: u64,
        packets: impl Iterator<Item = &'a ModelPacket>,
        before: &WorkerDrops,
        statistics: &Statistics,
    ) {
        let Statistics { drops, malformed, .. } = statistics;
        let mut dropped = (0..drops.len()).flat_map(|why| (before.0[why]..drops[why]).map(move |_| why));
        let mut broken = (0..malformed.len()).flat_map(|why| (before.1[why]..malformed[why]).map(move |_| why));
        for packet in packets {
            if let Some(why) = dropped.next() {
                self.drops[why] += 1;
            } else if let Some(why) = broken.next() {
                self.malformed[why] += 1;
            } else {
                self.lost[Loss::Unexplained as usize] += 1;
            }
            self.rows.lost(now, packet.length);
        }
    }

    /// Adds everything up, and checks it.
    pub(super) fn results(self, bed: &ModelTestbed, began: u64, before: &Before) -> RunResults {
        let after = bed.counted();
        let RunCounts { rows, offered, received, received_bytes, lost, drops, malformed, unfaithful, last, .. } = self;
        let (rows, latency) = rows.finish();
        let own = LOSSES.iter().map(|&(why, name)| (name, lost[why as usize]));
        let dropped = Drop::ALL.iter().map(|&why| (why.name(), drops[why as usize]));
        let broken = Malformed::ALL.iter().map(|&why| (why.name(), malformed[why.index()]));
        let lost: Vec<(&'static str, u64)> = own.chain(dropped).chain(broken).filter(|&(_, count)| count > 0).collect();
        let verdicts = |after: &[u64], before: &[u64]| {
            let each = Reason::ALL.iter().map(|&why| (why.name(), after[why as usize] - before[why as usize]));
            each.filter(|&(_, count)| count > 0).collect()
        };
        let (mean, since) = (self.rules.0, self.rules.1 - began);
        let (matched, bytes) = (after.card.forwarded - before.card.forwarded, after.card.bytes - before.card.bytes);
        let forwards = bed.card.as_ref().is_none_or(|card| card.action == CardAction::Forward);
        let results = RunResults {
            rows,
            offered,
            received,
            received_bytes,
            duration: Duration::from_nanos(last - began),
            latency,
            offloaded_packets: if forwards { matched } else { 0 },
            marked_packets: if forwards { 0 } else { matched },
            offloaded_bytes: if forwards { bytes } else { 0 },
            rules_mean: if since == 0 { 0.0 } else { mean / since as f64 },
            rules_peak: if after.card.rules_peak > before.card.rules_peak {
                after.card.rules_peak
            } else {
                self.rules_peak
            },
            inserted: after.card.inserted - before.card.inserted,
            deleted: after.card.deleted - before.card.deleted,
            refused: (after.card.full + after.card.failed) - (before.card.full + before.card.failed),
            busy: bed
                .cores
                .iter()
                .zip(&before.busy)
                .map(|(core, was)| core.busy_ns - was)
                .map(Duration::from_nanos)
                .collect(),
            kept: verdicts(&after.kept, &before.kept),
            evicted: verdicts(&after.evicted, &before.evicted),
            established: after.established - before.established,
            unfaithful,
            lost,
            failures: Vec::new(),
        };
        let failures = bed.failures(&results);
        RunResults { failures, ..results }
    }
}

impl ModelTestbed {
    /// The counters of workers and card so far.
    pub(super) fn counted(&self) -> Before {
        let mut before = Before {
            busy: self.cores.iter().map(|core| core.busy_ns).collect(),
            kept: [0; Reason::ALL.len()],
            evicted: [0; Reason::ALL.len()],
            established: 0,
            card: self.card.as_ref().map(|card| card.nic.tally()).unwrap_or_default(),
        };
        for statistics in self.cores.iter().filter_map(|core| core.worker.as_ref()).map(TestbedWorker::statistics) {
            let offload = &statistics.offload;
            for reason in Reason::ALL {
                before.kept[reason as usize] += offload.kept[reason as usize];
                before.evicted[reason as usize] += offload.evicted[reason as usize];
            }
            before.established += statistics.services.iter().map(|service| service.established).sum::<u64>();
        }
        before
    }

    /// The inconsistencies in a run's results.
    fn failures(&self, results: &RunResults) -> Vec<String> {
        let mut failures = Vec::new();
        let lost: u64 = results.lost.iter().map(|(_, count)| count).sum();
        if results.offered != results.received + lost {
            let (offered, received) = (results.offered, results.received);
            failures.push(format!("{offered} packets were offered, {received} received and {lost} lost"));
        }
        if let Some((_, count)) = results.lost.iter().find(|(why, _)| *why == "unexplained") {
            failures.push(format!("{count} packets did not come out of a worker, which does not say why"));
        }
        let Some(card) = self.card.as_ref().filter(|card| card.nic.is_idle()) else { return failures };
        let workers = || self.cores.iter().filter_map(|core| core.worker.as_ref());
        let offload_state: usize = workers().map(|worker| worker.rules_known().count()).sum();
        if offload_state != card.nic.rules() {
            failures.push(format!("the workers know of {offload_state} rules, the card has {}", card.nic.rules()));
        }
        let unknown = workers().flat_map(|worker| worker.rules_known()).filter(|key| !card.nic.holds(key)).count();
        if unknown > 0 {
            failures.push(format!("of the rules that the workers know of, the card has not got {unknown}"));
        }
        failures
    }
}
