//! Responses of several sizes, and the web-search mix, through whatever stands between: the counterparts of Laconic,
//! figures 8 to 10 and 12 and table 3.
//!
//! One Hairpin has three services for the same server: one that computes its threshold, one that offloads no body and
//! one that offloads all of them. Within a repetition each of Hairpin, nginx and none is started once and asked for all
//! sizes; repetitions go forwards and backwards.

use super::results::{self, FigureResults, ResultPlace};
pub(super) use super::results::{LATENCY, MIX, THRESHOLD, THROUGHPUT};
use super::{PageSizes, ProgressLines};
use crate::l7::peers::{BALANCER_CPU, BenchNetwork, Intermediary, OTHER_CPU, RunningIntermediary};
use crate::l7::processor::Cores;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::load::parse_wrk;
use hairpin_e2e::peer::status::{Status, Traffic};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::HTTP_PORT;
use hairpin_e2e::tool::paced::{self, RequestPace};
use hairpin_e2e::topology::{Cards, Family, vip};
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Connections, which all stay.
pub(super) const CONNECTIONS: u32 = 32;
/// From so many bytes on measurements take twice the time, and requests are counted by their bytes: few end in a second.
const LARGE: usize = 1 << 20;
/// How much longer than planned wrk may take.
const GRACE: Duration = Duration::from_secs(30);
/// Until counters of rules have reached the status.
const SETTLE: Duration = Duration::from_millis(300);

/// Before a paced measurement counts: connections open and their windows grow.
pub(super) const WARM_UP: Duration = Duration::from_secs(1);
/// How many times longer than others a paced measurement takes, and how many times longer for [`LARGE`] responses: those
/// come a few hundred a second, and one stall of the machine in a second would decide their mean.
const PACED_TIMES: u32 = 5;
const PACED_TIMES_LARGE: u32 = 15;

/// How long a paced measurement of such responses counts.
pub(super) fn paced_duration(duration: Duration, bytes: usize) -> Duration {
    duration * if bytes >= LARGE { PACED_TIMES_LARGE } else { PACED_TIMES }
}

/// Whom clients ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// Hairpin as it comes.
    Auto,
    /// Every body stays with the worker.
    Software,
    /// Every body goes to the engine.
    Offloaded,
    Nginx,
    Direct,
}

impl Variant {
    pub(super) const ALL: [Variant; 5] =
        [Variant::Auto, Variant::Software, Variant::Offloaded, Variant::Nginx, Variant::Direct];

    /// Its name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Variant::Auto => results::HAIRPIN,
            Variant::Software => results::SOFTWARE,
            Variant::Offloaded => results::OFFLOADED,
            Variant::Nginx => results::NGINX,
            Variant::Direct => "no balancer",
        }
    }

    /// The intermediary that has to run.
    fn peer(self) -> Intermediary {
        match self {
            Variant::Auto | Variant::Software | Variant::Offloaded => Intermediary::Hairpin,
            Variant::Nginx => Intermediary::Nginx,
            Variant::Direct => Intermediary::Direct,
        }
    }

    /// The address that clients connect to.
    pub(super) fn target(self) -> SocketAddr {
        let ours = |port| SocketAddr::new(vip(Family::V4), port);
        match self {
            Variant::Auto => ours(8000),
            Variant::Software => ours(8010),
            Variant::Offloaded => ours(8020),
            Variant::Nginx | Variant::Direct => self.peer().target(),
        }
    }

    /// The offload settings of its service's configuration, if it is Hairpin's.
    fn offload_bytes_min(self) -> Option<&'static str> {
        match self {
            Variant::Auto => Some("\"auto\""),
            Variant::Software => Some("1125899906842624"),
            Variant::Offloaded => Some("0"),
            Variant::Nginx | Variant::Direct => None,
        }
    }

    /// The name of its service.
    fn service(self) -> &'static str {
        match self {
            Variant::Auto => "auto",
            Variant::Software => "software",
            Variant::Offloaded => "offloaded",
            Variant::Nginx | Variant::Direct => "",
        }
    }
}

/// Starts the balancer of a variant, and of all that share it.
pub(super) fn start(net: &BenchNetwork, variant: Variant) -> Result<RunningIntermediary> {
    if variant.peer() != Intermediary::Hairpin {
        return net.start(variant.peer());
    }
    let ours = Variant::ALL.into_iter().filter_map(|variant| {
        let tables = format!("[service.http]\noffload_bytes_min = {}\n", variant.offload_bytes_min()?);
        let service = PeerService::http(variant.service(), variant.target().port());
        Some(PeerService { servers: vec![1], server_port: HTTP_PORT, tables, ..service })
    });
    let services: Vec<PeerService> = ours.collect();
    let options = HairpinOptions { cpus: BALANCER_CPU, ..HairpinOptions::default() };
    Ok(RunningIntermediary::Hairpin(Box::new(Hairpin::start(&net.topology, &services, &options)?)))
}

/// The requests of one repetition.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoadPlan<'a> {
    pub(super) variants: &'a [Variant],
    pub(super) sizes: PageSizes,
    /// Whether the mix is asked for as well.
    pub(super) mix: bool,
    pub(super) duration: Duration,
}

impl LoadPlan<'_> {
    /// How long a repetition takes, about: for the progress.
    pub(super) fn seconds(&self) -> f64 {
        let mix = if self.mix { 2 * self.variants.len() } else { 0 };
        let each = self.sizes.iter().map(|&(_, bytes)| if bytes >= LARGE { 2 } else { 1 }).sum::<usize>();
        let measured = (each * self.variants.len() + mix) as f64 * self.duration.as_secs_f64();
        measured + 0.4 * (self.sizes.len() * self.variants.len()) as f64 + 2.0
    }
}

/// Measures throughput once for every variant. `backwards`: from the last to the first.
pub(super) fn throughput(
    net: &BenchNetwork,
    plan: LoadPlan<'_>,
    repetition: usize,
    results: &mut FigureResults,
    progress: &ProgressLines,
) -> Result<()> {
    let mut variants = plan.variants.to_vec();
    if repetition % 2 == 1 {
        variants.reverse();
    }
    for group in variants.chunk_by(|a, b| a.peer() == b.peer()) {
        let mut running = start(net, group[0])?;
        for &(page, bytes) in plan.sizes {
            for &variant in group {
                let seconds = if bytes >= LARGE { 2 * plan.duration } else { plan.duration };
                let values = wrk(net, &running, variant, WrkRequest { page, bytes, mix: false }, seconds)
                    .with_context(|| format!("{page} through {}", variant.name()))?;
                let setting = net.topology.cards.name();
                let place = ResultPlace { part: THROUGHPUT, setting, series: variant.name(), x: bytes as u64 };
                results.add(place, repetition, &values);
                progress.line(&format!("{setting} {page} {}: {}", variant.name(), short(&values)));
            }
        }
        for &variant in group.iter().filter(|_| plan.mix) {
            let asked = WrkRequest { page: "1k", bytes: 0, mix: true };
            let values = wrk(net, &running, variant, asked, 2 * plan.duration)?;
            let setting = net.topology.cards.name();
            results.add(ResultPlace { part: MIX, setting, series: variant.name(), x: 0 }, repetition, &values);
            progress.line(&format!("{setting} mix {}: {}", variant.name(), short(&values)));
        }
        if let RunningIntermediary::Hairpin(hairpin) = &running {
            threshold(&hairpin.status()?, net.topology.cards, repetition, results);
        }
        running.check()?;
    }
    Ok(())
}

fn short(values: &[(&'static str, f64)]) -> String {
    let of = |name: &str| values.iter().find(|(what, _)| *what == name).map_or(f64::NAN, |(_, value)| *value);
    format!(
        "{:.2} Gbit/s, {:.0} responses/s, balancer's core {:.0} % busy",
        of("gbit_per_s"),
        of("responses_per_s"),
        100.0 * of("balancer_busy")
    )
}

/// The costs that a worker has derived from its measurements.
fn threshold(status: &Status, cards: Cards, repetition: usize, results: &mut FigureResults) {
    let Some(http) = &status.http else { return };
    let values = [
        ("offload_bytes_min", http.offload_bytes_min as f64),
        ("rule_pair_us", http.rule_pair_us),
        ("body_frame_us", http.body_frame_us),
        ("body_frame_bytes", http.body_frame_bytes as f64),
    ];
    results.add(
        ResultPlace { part: THRESHOLD, setting: cards.name(), series: results::HAIRPIN, x: 0 },
        repetition,
        &values,
    );
}

/// The parameters of wrk.
#[derive(Clone, Copy, Debug)]
pub(super) struct WrkRequest<'a> {
    pub(super) page: &'a str,
    /// Bytes of a response's body; 0 for the mix.
    pub(super) bytes: usize,
    pub(super) mix: bool,
}

/// Starts wrk on the core of clients and server.
pub(super) fn start_wrk(
    net: &BenchNetwork,
    variant: Variant,
    asked: WrkRequest<'_>,
    duration: Duration,
) -> Result<hairpin_e2e::process::Process> {
    let mut wrk = net.topology.client.command_on(OTHER_CPU, "wrk");
    wrk.args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{}s", duration.as_secs().max(1)), "--latency"]);
    if asked.mix {
        wrk.arg("-s").arg(&net.mix);
    }
    wrk.arg(format!("http://{}/{}", variant.target(), asked.page));
    net.topology.client.start(wrk, &net.topology.scratch.file("figures-wrk.log"))
}

/// The traffic that Hairpin has forwarded for a variant so far.
fn forwarded(running: &RunningIntermediary, variant: Variant) -> Result<Option<(Traffic, Traffic)>> {
    let RunningIntermediary::Hairpin(hairpin) = running else { return Ok(None) };
    let status = hairpin.status()?;
    let service = status.services.iter().find(|service| service.name == variant.service());
    Ok(service.map(|service| (service.software, service.offloaded)))
}

/// One measurement: requests as fast as they are answered.
fn wrk(
    net: &BenchNetwork,
    running: &RunningIntermediary,
    variant: Variant,
    asked: WrkRequest<'_>,
    duration: Duration,
) -> Result<Vec<(&'static str, f64)>> {
    let frames = || -> Result<u64> {
        let balancer = &net.topology.balancer;
        Ok(balancer.received_packets("client0")? + balancer.received_packets("server1")?)
    };
    let (carried_before, frames_before) = (forwarded(running, variant)?, frames()?);
    let (cores, start) = (Cores::now()?, Instant::now());
    let mut process = start_wrk(net, variant, asked, duration)?;
    let status = process.wait(duration + GRACE)?;
    let (cores, window) = (Cores::now()?.times_since(&cores), start.elapsed().as_secs_f64());
    ensure!(status.success(), "`{}`: {}", process.line(), process.log());
    let wrk = parse_wrk(&process.log()).with_context(|| process.log())?;
    // Of all errors only those that are no timeouts of the last, unfinished responses would be news: all are shown.
    let bytes = asked.bytes as f64;
    let seconds = duration.as_secs_f64();
    let per_s = if asked.bytes >= LARGE { wrk.bits_per_s / 8.0 / bytes } else { wrk.requests_per_s };
    let responses = per_s * seconds;
    let (balancer, other) = (cores[BALANCER_CPU.parse::<usize>()?], cores[OTHER_CPU.parse::<usize>()?]);
    let busy_seconds = (window - balancer.idle_s).max(0.0);
    let mut values = vec![
        ("responses_per_s", per_s),
        ("gbit_per_s", wrk.bits_per_s / 1e9),
        ("p99_ms", wrk.p99_ms),
        ("errors", wrk.errors as f64),
        ("balancer_busy", busy_seconds / window),
        ("balancer_softirq", balancer.softirq_s / window),
        ("other_busy", 1.0 - other.idle_s / window),
        ("core_us_per_response", busy_seconds * 1e6 / responses.max(1.0)),
        ("core_s_per_gbyte", busy_seconds / (wrk.bits_per_s / 8e9 * seconds).max(1e-9)),
        ("frames_per_s", (frames()? - frames_before) as f64 / seconds),
    ];
    sleep(SETTLE);
    if let (Some((software, offloaded)), Some((software_before, offloaded_before))) =
        (forwarded(running, variant)?, carried_before)
    {
        let new = |now: u64, before: u64| now.saturating_sub(before) as f64;
        let packets =
            [new(software.packets, software_before.packets), new(offloaded.packets, offloaded_before.packets)];
        let forwarded = [new(software.bytes, software_before.bytes), new(offloaded.bytes, offloaded_before.bytes)];
        let all = (packets[0] + packets[1]).max(1.0);
        values.push(("packets_per_s", all / seconds));
        values.push(("packets_per_busy_s", all / busy_seconds.max(1e-3)));
        values.push(("software_packets_per_s", packets[0] / seconds));
        values.push(("offloaded_packet_share", packets[1] / all));
        values.push(("offloaded_byte_share", forwarded[1] / (forwarded[0] + forwarded[1]).max(1.0)));
    }
    Ok(values)
}

/// Ways whose latency is measured.
pub(super) const PACED: [Variant; 4] = [Variant::Auto, Variant::Software, Variant::Nginx, Variant::Direct];

/// Measures latency once for every variant, at half of the rate nginx has reached in this run.
pub(super) fn latency(
    net: &BenchNetwork,
    plan: LoadPlan<'_>,
    repetition: usize,
    results: &mut FigureResults,
    progress: &ProgressLines,
) -> Result<()> {
    let setting = net.topology.cards.name();
    let mut variants = PACED.to_vec();
    if repetition % 2 == 1 {
        variants.reverse();
    }
    for group in variants.chunk_by(|a, b| a.peer() == b.peer()) {
        let mut running = start(net, group[0])?;
        for &(page, bytes) in plan.sizes {
            let place = |part, series| ResultPlace { part, setting, series, x: bytes as u64 };
            let peak = results.median(place(THROUGHPUT, Variant::Nginx.name()), "responses_per_s");
            let peak = peak.with_context(|| format!("nginx's rate at {page} was not measured"))?;
            for &variant in group {
                let pace = RequestPace {
                    to: variant.target(),
                    page,
                    connections: CONNECTIONS,
                    per_second: peak / 2.0,
                    warm_up: WARM_UP,
                    duration: paced_duration(plan.duration, bytes),
                    cpu: OTHER_CPU.parse()?,
                };
                let times = paced::run(&net.topology.client, pace)
                    .with_context(|| format!("{page} through {}", variant.name()))?;
                let values = [
                    ("mean_ms", times.mean_ms),
                    ("p50_ms", times.p50_ms),
                    ("p99_ms", times.p99_ms),
                    ("responses_per_s", times.per_second),
                ];
                results.add(place(LATENCY, variant.name()), repetition, &values);
                if let Some(part) = distribution(page) {
                    for (percent, ms) in times.percentiles_ms.iter().enumerate() {
                        let place = ResultPlace { part, setting, series: variant.name(), x: percent as u64 };
                        results.add(place, repetition, &[("ms", *ms)]);
                    }
                }
                progress.line(&format!(
                    "{setting} {page} at {:.0}/s {}: mean {:.2} ms, p99 {:.2} ms",
                    peak / 2.0,
                    variant.name(),
                    times.mean_ms,
                    times.p99_ms
                ));
            }
        }
        running.check()?;
    }
    Ok(())
}

/// The part that has the distribution of latencies for a page, where figures show it.
pub(super) fn distribution(page: &str) -> Option<&'static str> {
    match page {
        "1k" => Some("latency-distribution-1k"),
        "4m" => Some("latency-distribution-4m"),
        _ => None,
    }
}
