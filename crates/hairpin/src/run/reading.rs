//! Computes a status from raw counters at two moments.

pub(crate) mod http;
mod limits;

use crate::config::words::spoken;
use crate::config::{SettingWord, Settings};
use crate::control::{LatencyView, SizeView};
use crate::status::{
    AccessStatus, BackendStatus, Count, Histogram, HttpsStatus, OffloadStatus, RequestSizesStatus, RequestTimesStatus,
    ServiceStatus, Status, Traffic, WorkerStatus,
};
use hairpin_core::access::{AccessAction, RULES_MAX};
use hairpin_core::config::{
    Algorithm, Backend, BackendState, Encapsulation, Forwarding, Service, ServiceState, Snapshot,
};
use hairpin_core::flow::Address;
use hairpin_core::l4::connection::Volume;
use hairpin_core::l7::config::Kind;
use hairpin_core::offload::Reason;
use hairpin_core::wire::Malformed;
use hairpin_core::worker::{BackendStatistics, Drop, Latency, OffloadStatistics, ServiceStatistics, Sizes, Statistics};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// The values that a worker has published.
#[derive(Clone, Debug)]
pub(crate) struct WorkerReading {
    /// The core it runs on.
    pub(crate) cpu: usize,
    /// Processor time it has used.
    pub(crate) busy: Duration,
    /// Its own numbers.
    pub(crate) statistics: Statistics,
    /// Frames dropped on its device, by reason.
    pub(crate) device_drops: Vec<(&'static str, u64)>,
    /// Further counters of the plane.
    pub(crate) device_events: Vec<(&'static str, u64)>,
}

/// All counters at a moment.
#[derive(Clone, Debug)]
pub(crate) struct Reading {
    /// Since the start of the process.
    pub(crate) uptime: Duration,
    /// Every worker's.
    pub(crate) workers: Vec<WorkerReading>,
    /// Traffic that rules forwarded since the programs were loaded: slot by slot, a backend's number times two plus direction.
    pub(crate) totals: Vec<Volume>,
    /// Packets that the engine has judged by access rules: of each service [`RULES_MAX`], by rule.
    pub(crate) access: Vec<u64>,
    /// The terminating path's counters beside those that are added to the workers': handshakes, resumed ones, and other events
    /// by name.
    pub(crate) https: HttpsReading,
    /// Counts of packets in the BPF programs by fate, and whether that fate is a drop.
    pub(crate) events: Vec<(&'static str, u64, bool)>,
}

/// What the terminating path has counted, of all cores.
#[derive(Clone, Debug, Default)]
pub(crate) struct HttpsReading {
    pub(crate) handshakes: u64,
    pub(crate) resumed: u64,
    pub(crate) events: BTreeMap<&'static str, u64>,
}

impl HttpsReading {
    /// The rates and totals between two readings.
    fn status(per_s: ReadingRates, before: &HttpsReading, now: &HttpsReading) -> HttpsStatus {
        let count = |before: u64, total: u64| Count { total, per_s: per_s.of(before, total) };
        let events = now
            .events
            .iter()
            .filter(|(_, total)| **total > 0)
            .map(|(name, total)| (name.to_string(), count(before.events.get(name).copied().unwrap_or(0), *total)));
        HttpsStatus {
            handshakes: count(before.handshakes, now.handshakes),
            resumed: count(before.resumed, now.resumed),
            events: events.collect(),
            certificates: Vec::new(),
        }
    }
}

/// The status that follows from two readings, the earlier one first.
pub(crate) fn status(settings: &Settings, snapshot: &Snapshot, before: &Reading, now: &Reading) -> Status {
    let seconds = now.uptime.saturating_sub(before.uptime).as_secs_f64();
    let per_s = ReadingRates { seconds };
    let mut status = Status {
        version: env!("CARGO_PKG_VERSION").to_string(),
        instance: settings.instance.clone(),
        pid: std::process::id(),
        uptime_s: now.uptime.as_secs_f64(),
        interfaces: settings.devices(),
        plane: settings.plane.name().to_string(),
        connection_table: settings.connection_table.name().to_string(),
        workers: workers(per_s, before, now),
        services: Vec::new(),
        offload: offload(settings, per_s, before, now),
        http: http::status(snapshot, per_s, before, now),
        https: snapshot
            .services
            .iter()
            .any(|service| service.kind.is_terminated())
            .then(|| HttpsReading::status(per_s, &before.https, &now.https)),
        drops: BTreeMap::new(),
        events: BTreeMap::new(),
        ..Status::default()
    };
    for (number, service) in shown(snapshot) {
        let mut shown = service_status(settings, per_s, (number, service), before, now);
        // Requests reach a group's backends as they reach its service's, behind which it stands.
        if let (Some(name), Some(of)) = (&shown.group_of, status.services.last())
            && (of.name == *name || of.group_of.as_ref() == Some(name))
        {
            shown.mode.clone_from(&of.mode);
        }
        status.services.push(shown);
    }
    http::count_connections(&mut status);
    let counts_before: BTreeMap<String, u64> = counts(before).map(|(name, total, _)| (name, total)).collect();
    for (name, total, dropped) in counts(now).filter(|(_, total, _)| *total > 0) {
        let earlier = counts_before.get(&name).copied().unwrap_or(0);
        let count = Count { total, per_s: per_s.of(earlier, total) };
        let counts = if dropped { &mut status.drops } else { &mut status.events };
        counts.insert(name, count);
    }
    status
}

#[derive(Clone, Copy)]
struct ReadingRates {
    seconds: f64,
}

impl ReadingRates {
    fn of(self, before: u64, now: u64) -> f64 {
        if self.seconds > 0.0 { now.saturating_sub(before) as f64 / self.seconds } else { 0.0 }
    }

    fn traffic(self, before: Volume, now: Volume) -> Traffic {
        Traffic {
            packets: now.packets,
            bytes: now.bytes,
            packets_per_s: self.of(before.packets, now.packets),
            bits_per_s: self.of(before.bytes, now.bytes) * 8.0,
        }
    }
}

/// Everything that is counted by name, and whether it means a drop.
fn counts(reading: &Reading) -> impl Iterator<Item = (String, u64, bool)> {
    let sum = |of: &dyn Fn(&Statistics) -> u64| reading.workers.iter().map(|worker| of(&worker.statistics)).sum();
    let mut all: Vec<(String, u64, bool)> = Vec::new();
    for (index, reason) in Drop::ALL.iter().enumerate() {
        all.push((format!("worker.{}", reason.name()), sum(&|s| s.drops[index]), true));
    }
    for (index, reason) in Malformed::ALL.iter().enumerate() {
        all.push((format!("worker.malformed.{}", reason.name()), sum(&|s| s.malformed[index]), true));
    }
    all.push(("worker.evicted".to_string(), sum(&|s| s.evicted), false));
    all.push(("worker.revived".to_string(), sum(&|s| s.revived), false));
    all.push(("worker.ended".to_string(), sum(&|s| s.ended), false));
    all.push(("worker.marked".to_string(), sum(&|s| s.marked), false));
    all.push(("worker.mismarked".to_string(), sum(&|s| s.mismarked), false));
    let mut device: BTreeMap<(&str, bool), u64> = BTreeMap::new();
    for worker in &reading.workers {
        let dropped = worker.device_drops.iter().map(|count| (count, true));
        for (&(name, frames), dropped) in dropped.chain(worker.device_events.iter().map(|count| (count, false))) {
            *device.entry((name, dropped)).or_default() += frames;
        }
    }
    all.extend(device.into_iter().map(|((name, dropped), frames)| (format!("device.{name}"), frames, dropped)));
    all.extend(reading.events.iter().map(|(name, packets, dropped)| (format!("kernel.{name}"), *packets, *dropped)));
    all.into_iter()
}

fn workers(per_s: ReadingRates, before: &Reading, now: &Reading) -> Vec<WorkerStatus> {
    let worker = |(id, (before, now)): (usize, (&WorkerReading, &WorkerReading))| {
        let statistics = &now.statistics;
        let busy = now.busy.saturating_sub(before.busy).as_secs_f64();
        WorkerStatus {
            id: id as u16,
            cpu: now.cpu,
            busy_share: if per_s.seconds > 0.0 { (busy / per_s.seconds).min(1.0) } else { 0.0 },
            busy_s: now.busy.as_secs_f64(),
            connections: statistics.open_now,
            entries: statistics.connections_now + statistics.passes_now,
            connections_max: statistics.connections_max,
            passes: statistics.passes_now,
            frames: statistics.frames,
            frames_per_s: per_s.of(before.statistics.frames, statistics.frames),
            forwarded: statistics.forwarded,
            to_kernel: statistics.to_kernel,
            answered: statistics.answered,
            icmp_errors: statistics.icmp_errors,
            fragmented: statistics.fragmented,
            revived: statistics.revived,
            evicted: statistics.evicted,
        }
    };
    before.workers.iter().zip(&now.workers).enumerate().map(worker).collect()
}

fn offload(settings: &Settings, per_s: ReadingRates, before: &Reading, now: &Reading) -> OffloadStatus {
    type Number = fn(&Statistics) -> u64;
    let sum =
        |reading: &Reading, of: Number| -> u64 { reading.workers.iter().map(|worker| of(&worker.statistics)).sum() };
    let reasons: [(&str, Number); 6] = [
        ("engine-full", |s| s.offload.refused_full),
        ("engine-unsupported", |s| s.offload.refused_unsupported),
        ("engine-failed", |s| s.offload.refused_failed),
        ("queue-full", |s| s.offload.queue_full),
        ("passes-full", |s| s.offload.passes_full),
        ("rule-lost", |s| s.offload.lost),
    ];
    let not_offloaded = reasons.iter().map(|(name, of)| (name.to_string(), sum(now, *of)));
    let reasons = |of: fn(&OffloadStatistics) -> &[u64; Reason::ALL.len()]| -> BTreeMap<String, u64> {
        let total = |reason: Reason| {
            now.workers.iter().map(|worker| of(&worker.statistics.offload)[reason as usize]).sum::<u64>()
        };
        let named = Reason::ALL.into_iter().map(|reason| (reason.name().to_string(), total(reason)));
        named.filter(|(_, count)| *count > 0).collect()
    };
    let installed = [before, now].map(|reading| sum(reading, |s| s.offload.installed));
    let removed = [before, now].map(|reading| sum(reading, |s| s.offload.removed));
    OffloadStatus {
        policy: settings.policy.name().to_string(),
        rules: sum(now, |s| s.offload.rules),
        rules_max: u64::from(settings.rules_max),
        installed_total: installed[1],
        installed_per_s: per_s.of(installed[0], installed[1]),
        removed_total: removed[1],
        removed_per_s: per_s.of(removed[0], removed[1]),
        not_offloaded: not_offloaded.filter(|(_, count)| *count > 0).collect(),
        kept: reasons(|offload| &offload.kept),
        evicted: reasons(|offload| &offload.evicted),
        latency: histogram(now, |statistics| Some(&statistics.offload.latency)).buckets,
        latency_sum_s: sum(now, |s| s.offload.latency.sum_ns) as f64 / 1e9,
        ..OffloadStatus::default()
    }
}

/// What the workers have measured together.
fn histogram(reading: &Reading, of: impl Fn(&Statistics) -> Option<&Latency>) -> Histogram {
    let mut all = Latency::default();
    reading.workers.iter().filter_map(|worker| of(&worker.statistics)).for_each(|latency| all.merge(latency));
    let upper = |bucket: usize| (1u64 << bucket) as f64 / 1e6;
    let buckets = all.buckets.iter().enumerate().map(|(bucket, count)| (upper(bucket), *count)).collect();
    Histogram { buckets, sum: all.sum_ns as f64 / 1e9 }
}

/// How long the requests of an HTTP service or group took.
fn request_times(reading: &Reading, number: usize, is_https: bool) -> RequestTimesStatus {
    let of = |which: fn(&ServiceStatistics) -> &Latency| {
        histogram(reading, |statistics| statistics.services.get(number).map(which))
    };
    let mut histograms = [
        of(|service| &service.times.to_backend),
        of(|service| &service.times.to_response),
        of(|service| &service.times.in_all),
        if is_https { of(|service| &service.handshakes) } else { Histogram::default() },
    ];
    let views = histograms.each_ref().map(|one| LatencyView::of(&one.buckets));
    let [to_backend_us, to_response_us, in_all_us, tls_handshake_us] = views;
    let counted = |one: &Histogram| one.buckets.iter().copied().filter(|(_, count)| *count > 0).collect();
    let [to_backend_buckets, to_response_buckets, in_all_buckets, _] = histograms.each_ref().map(counted);
    histograms.iter_mut().for_each(open_end);
    RequestTimesStatus {
        to_backend_us,
        to_response_us,
        in_all_us,
        to_backend_buckets,
        to_response_buckets,
        in_all_buckets,
        tls_handshake_us: is_https.then_some(tls_handshake_us),
        histograms,
    }
}

/// What is in the last bucket has no upper end.
fn open_end(histogram: &mut Histogram) {
    histogram.buckets.last_mut().into_iter().for_each(|(upper, _)| *upper = f64::INFINITY);
}

/// How many bytes the requests of an HTTP service or group had, and their responses.
fn request_sizes(reading: &Reading, number: usize) -> RequestSizesStatus {
    let mut all = [Sizes::default(); 2];
    for service in reading.workers.iter().filter_map(|worker| worker.statistics.services.get(number)) {
        all.iter_mut().zip(&service.sizes).for_each(|(into, from)| into.merge(from));
    }
    let mut histograms = all.map(|sizes| {
        let upper = |bucket: usize| (64u64 << (2 * bucket)) as f64;
        let buckets = sizes.buckets.iter().enumerate().map(|(bucket, count)| (upper(bucket), *count)).collect();
        Histogram { buckets, sum: sizes.sum as f64 }
    });
    let [request_bytes, response_bytes] = histograms.each_ref().map(|one| SizeView::of(&one.buckets));
    histograms.iter_mut().for_each(open_end);
    RequestSizesStatus { request_bytes, response_bytes, histograms }
}

/// Responses of Hairpin's own to clients of a service, by class.
fn replies(reading: &Reading, number: usize) -> BTreeMap<String, u64> {
    let services = || reading.workers.iter().filter_map(|worker| worker.statistics.services.get(number));
    let count = |class: usize| services().map(|service| service.replies[class]).sum();
    (1..5).map(|class| (format!("{}xx", class + 1), count(class))).collect()
}

/// The word of the configuration.
const DENY: &str = "deny";

/// What access rules that refuse or count have done.
fn access(reading: &Reading, number: usize, service: &Service) -> Vec<AccessStatus> {
    let Some(list) = &service.access else { return Vec::new() };
    let by_workers = |rule: usize| -> u64 {
        let services = reading.workers.iter().filter_map(|worker| worker.statistics.services.get(number));
        services.filter_map(|service| service.access.get(rule)).sum()
    };
    let by_engine = |rule: usize| reading.access.get(number * RULES_MAX + rule).copied().unwrap_or(0);
    let said = list.actions().iter().enumerate().filter_map(|(rule, action)| {
        let action = match action {
            AccessAction::Allow => return None,
            AccessAction::Deny => DENY,
            AccessAction::Count => "count",
        };
        let packets = by_workers(rule) + by_engine(rule);
        Some(AccessStatus { rule: rule as u16 + 1, action: action.to_string(), packets_total: packets })
    });
    said.collect()
}

/// The services there are, with their numbers: each with its groups behind it.
pub(crate) fn shown(snapshot: &Snapshot) -> Vec<(usize, &Service)> {
    let there = snapshot.services.iter().enumerate().filter(|(_, service)| service.state != ServiceState::Vacant);
    let (groups, services): (Vec<_>, Vec<_>) = there.partition(|(_, service)| service.kind.is_group());
    // The address keeps apart services of one name: one that was removed, and the one that has its name now.
    let mut by_service: HashMap<(&str, Address), Vec<(usize, &Service)>> = HashMap::new();
    for (number, group) in groups {
        let of = (group_of(group).unwrap_or_default(), group.endpoint.address);
        by_service.entry(of).or_default().push((number, group));
    }
    let mut shown = Vec::with_capacity(snapshot.services.len());
    for (number, service) in services {
        shown.push((number, service));
        shown.extend(by_service.remove(&(&*service.name, service.endpoint.address)).unwrap_or_default());
    }
    let mut left: Vec<_> = by_service.into_values().flatten().collect();
    left.sort_unstable_by_key(|(number, _)| *number);
    shown.extend(left);
    shown
}

/// The service that a group belongs to.
pub(crate) fn group_of(group: &Service) -> Option<&str> {
    group.kind.is_group().then(|| group.name.rsplit_once('/').map_or("", |(service, _)| service))
}

fn mode(service: &Service) -> &'static str {
    match service.forwarding {
        _ if service.kind.is_terminated() => "terminated",
        Forwarding::Nat => "nat",
        Forwarding::FullNat => "full-nat",
        Forwarding::Direct => "dsr",
    }
}

/// What packets to its backends are wrapped in.
fn encapsulation(service: &Service) -> Option<&'static str> {
    match service.outer.encapsulation {
        Encapsulation::None => None,
        Encapsulation::Ipip => Some("ipip"),
        Encapsulation::Gue => Some("gue"),
    }
}

fn service_status(
    settings: &Settings,
    per_s: ReadingRates,
    (number, service): (usize, &Service),
    before: &Reading,
    now: &Reading,
) -> ServiceStatus {
    let sum = |reading: &Reading, of: fn(&ServiceStatistics) -> u64| -> u64 {
        reading.workers.iter().filter_map(|worker| worker.statistics.services.get(number)).map(of).sum()
    };
    let created = [before, now].map(|reading| sum(reading, |s| s.created));
    // A group may be one of a TLS service, which has no requests: its histograms stay empty.
    let has_requests = service.kind.http().is_some() || service.kind.is_group();
    let requests = [before, now].map(|reading| sum(reading, |s| s.requests));
    let access = access(now, number, service);
    let denied: u64 = access.iter().filter(|rule| rule.action == DENY).map(|rule| rule.packets_total).sum();
    let mut status = ServiceStatus {
        name: service.name.to_string(),
        listen: match service.kind {
            Kind::Group => String::new(),
            _ => format!("{}/{}", service.endpoint, spoken(service)),
        },
        protocol: spoken(service).to_string(),
        group_of: group_of(service).map(str::to_string),
        mode: mode(service).to_string(),
        encapsulation: encapsulation(service).map(str::to_string),
        balance: balance(settings, service.algorithm).to_string(),
        connections_total: created[1],
        connections_per_s: per_s.of(created[0], created[1]),
        established_total: sum(now, |s| s.established),
        refused_total: sum(now, |s| s.refused) + denied,
        requests: service
            .kind
            .is_layer7()
            .then(|| Count { total: requests[1], per_s: per_s.of(requests[0], requests[1]) }),
        times: has_requests.then(|| request_times(now, number, spoken(service) == "https")),
        sizes: has_requests.then(|| request_sizes(now, number)),
        access,
        limits: limits::of(now, number, service),
        replies: service.kind.http().map(|_| replies(now, number)).unwrap_or_default(),
        state: if service.state == ServiceState::Removed { "removed" } else { "active" }.to_string(),
        ..ServiceStatus::default()
    };
    for backend in &service.backends {
        let backend = backend_status(per_s, service, backend, before, now);
        status.connections += backend.connections;
        status.software += backend.software;
        status.offloaded += backend.offloaded;
        status.backends.push(backend);
    }
    if service.kind.is_layer7() {
        // Clients' connections; those to backends are others.
        status.connections = sum(now, |s| s.client_conns_now);
    }
    let packets = status.software.packets + status.offloaded.packets;
    if packets > 0 {
        status.offloaded_share = status.offloaded.packets as f64 / packets as f64;
    }
    status
}

fn backend_status(
    per_s: ReadingRates,
    service: &Service,
    backend: &Backend,
    before: &Reading,
    now: &Reading,
) -> BackendStatus {
    let number = usize::from(backend.number);
    let [earlier, statistics] = [before, now].map(|reading| backend_statistics(reading, number));
    let [offloaded_before, offloaded] = [before, now].map(|reading| offloaded(reading, number));
    BackendStatus {
        name: backend.name.to_string(),
        address: backend.endpoint.to_string(),
        weight: backend.weight,
        state: match backend.state {
            BackendState::Enabled => "enabled",
            BackendState::Draining => "drain",
            BackendState::Disabled => "disabled",
            BackendState::Removed => "removed",
        }
        .to_string(),
        backup: backend.is_backup,
        connections_max: backend.connections_max,
        connections: statistics.open_now,
        connections_total: statistics.connections,
        connections_per_s: per_s.of(earlier.connections, statistics.connections),
        responses: match service.kind {
            Kind::Http(_) | Kind::Terminated(_) | Kind::Group => http::by_class(&statistics.responses),
            _ => BTreeMap::new(),
        },
        software: per_s.traffic(both(earlier.software), both(statistics.software)),
        offloaded: per_s.traffic(offloaded_before, offloaded),
        ..BackendStatus::default()
    }
}

fn backend_statistics(reading: &Reading, number: usize) -> BackendStatistics {
    let mut sum = BackendStatistics::default();
    for one in reading.workers.iter().filter_map(|worker| worker.statistics.backends.get(number)) {
        sum.connections += one.connections;
        sum.open_now += one.open_now;
        sum.responses.iter_mut().zip(one.responses).for_each(|(sum, one)| *sum += one);
        for (sum, one) in sum.software.iter_mut().zip(one.software) {
            sum.add(one.packets, one.bytes);
        }
    }
    sum
}

fn offloaded(reading: &Reading, number: usize) -> Volume {
    let slot = |slot: usize| reading.totals.get(slot).copied().unwrap_or_default();
    both([slot(number * 2), slot(number * 2 + 1)])
}

fn both([mut sum, other]: [Volume; 2]) -> Volume {
    sum.add(other.packets, other.bytes);
    sum
}

/// The word of the configuration; where connections are not tracked, that of the method by which packets are spread.
pub(crate) fn balance(settings: &Settings, algorithm: Algorithm) -> &'static str {
    if !settings.connection_table.tracks_connections() {
        return settings.connection_table.name();
    }
    algorithm.word()
}

#[cfg(test)]
mod tests;
