//! The network, the traffic that runs through it all the time, and what is asked of that in the end.

use crate::network::{ATTACH_XDP, FULL_NAT_HTTP_PORT, service};
use crate::scale::{scaled, share};
use anyhow::{Context, Result, anyhow, bail, ensure};
use hairpin_e2e::peer::control::ConnectionView;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::tool::requests::{OpenLoop, RequestRecord, Sessions};
use hairpin_e2e::tool::transfers::{TransferLane, Transfers};
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, vip};
use serde_json::json;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The services whose backends come and go.
pub(super) const HTTP: [&str; 4] = ["http4", "full-http4", "http6", "full-http6"];

/// What Hairpin is told to do with connections.
#[derive(Clone, Copy)]
pub(super) struct Variant {
    pub(super) policy: &'static str,
    /// The BPF programs set connections up.
    pub(super) set_up: bool,
    pub(super) cards: Cards,
    /// Direct server return, instead of NAT and full NAT.
    pub(super) direct: bool,
}

impl Variant {
    pub(super) fn with_policy(policy: &'static str) -> Variant {
        Variant { policy, set_up: false, cards: Cards::Gso, direct: false }
    }

    /// The HTTP services. Workers set up connections to servers that two services share.
    fn http(self) -> &'static [&'static str] {
        if self.set_up || self.direct { &["http4", "http6"] } else { &HTTP }
    }

    fn options(self) -> HairpinOptions {
        let service = if self.direct { "mode = \"dsr\"" } else { "" };
        HairpinOptions { service: service.to_owned(), tables: self.tables(), ..HairpinOptions::default() }
    }

    fn tables(self) -> String {
        let set_up = if self.set_up { "set_up = \"engine\"\n" } else { "" };
        let attach = if self.cards == Cards::Xdp { ATTACH_XDP } else { "" };
        format!("[offload]\npolicy = \"{}\"\n{set_up}{attach}", self.policy)
    }

    /// HTTP and iperf3 over both families: by NAT and full NAT, or all by direct server return.
    pub(super) fn services(self) -> Vec<PeerService> {
        let mut services: Vec<PeerService> = self.http().iter().map(|name| service(name)).collect();
        for service in &mut services {
            service.balance = "weighted-round-robin";
            service.weights = vec![1; 4];
        }
        services.push(PeerService { servers: vec![1], ..PeerService::tcp("iperf", Family::V4, IPERF_PORTS[0]) });
        services.push(PeerService {
            servers: vec![2],
            full_nat: !self.direct,
            ..PeerService::tcp("full-iperf", Family::V6, IPERF_PORTS[1])
        });
        services
    }

    /// The ends of the HTTP services, in their order.
    fn ends(self) -> Vec<SocketAddr> {
        let end = |name: &&str| {
            let family = if name.ends_with('4') { Family::V4 } else { Family::V6 };
            let port = if name.starts_with("full-") { FULL_NAT_HTTP_PORT } else { HTTP_PORT };
            SocketAddr::new(vip(family), port)
        };
        self.http().iter().map(end).collect()
    }
}

/// The processes that run at every moment.
#[derive(Clone, Copy)]
struct Load {
    /// Transfers: these lanes of curl, and two lanes of iperf3 with this many streams.
    curl_lanes: usize,
    iperf_streams: usize,
    requests_per_s: u32,
    sessions: usize,
}

impl Load {
    /// As much as this machine can forward.
    fn of_machine() -> Load {
        Load {
            curl_lanes: scaled(40, 4),
            iperf_streams: scaled(5, 1),
            requests_per_s: scaled(200, 8) as u32,
            sessions: scaled(16, 4),
        }
    }

    fn transfers(&self) -> usize {
        self.curl_lanes + 2 * self.iperf_streams
    }
}

/// How long a request may take: SYNs are sent again after 1, 3, 7, 15 and 31 s. On an emulated machine a process takes two seconds
/// to start, and the first four of them may find none.
fn request_timeout() -> Duration {
    Duration::from_secs(if share() < 1.0 { 60 } else { 20 })
}

/// How long the first transfers may take to begin.
const BEGINNING: Duration = Duration::from_secs(60);
/// After a reload has been answered, workers may still be at work on a batch by the configuration before.
const SETTLING: Duration = Duration::from_millis(100);

fn lanes(load: &Load, ends: &[SocketAddr]) -> Vec<TransferLane> {
    let curl =
        |number: usize| TransferLane::Curl { target: ends[number % ends.len()].to_string(), page: "10m", rate: "900k" };
    let mut lanes: Vec<TransferLane> = (0..load.curl_lanes).map(curl).collect();
    for (i, (family, reverse)) in [(Family::V4, false), (Family::V6, true)].into_iter().enumerate() {
        let (to, port) = (vip(family), IPERF_PORTS[i]);
        lanes.push(TransferLane::Iperf { to, port, streams: load.iperf_streams, mbit_s: 8, reverse, seconds: 10 });
    }
    lanes
}

/// A network with Hairpin and running traffic.
pub(super) struct LoadedNetwork {
    transfers: Option<Transfers>,
    requests: Option<OpenLoop>,
    sessions: Option<Sessions>,
    pub(super) hairpin: Hairpin,
    servers: Servers,
    pub(super) topology: Topology,
    pub(super) variant: Variant,
    options: HairpinOptions,
    load: Load,
    start: Instant,
    /// Moments without a process, from and to.
    absent: Vec<(Instant, Instant)>,
    /// No request that began between these may have met this server.
    away: Vec<(Instant, Instant, String)>,
}

impl LoadedNetwork {
    /// Starts everything, plays `acts`, ends the traffic and judges it.
    pub(super) fn play(variant: Variant, acts: impl FnOnce(&mut LoadedNetwork) -> Result<()>) -> Result<()> {
        let mut net = LoadedNetwork::start(variant)?;
        let before = net.connections_of_sessions().context("before")?;
        let result = acts(&mut net).and_then(|()| net.judge(&before));
        result.map_err(|error| {
            let status = net.hairpin.status_table().unwrap_or_else(|error| format!("no status: {error:#}"));
            let log = net.hairpin.logs();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(100)..].join("\n");
            anyhow!("{error:#}\nhairpin printed last:\n{last}\nits status:\n{status}")
        })
    }

    fn start(variant: Variant) -> Result<LoadedNetwork> {
        let topology = Topology::create(TopologyOptions { cards: variant.cards, ..TopologyOptions::default() })?;
        if variant.direct {
            crate::direct::prepare(&topology)?;
        }
        let servers = Servers::start(&topology)?;
        let options = variant.options();
        let hairpin = Hairpin::start(&topology, &variant.services(), &options)?;
        let (load, ends) = (Load::of_machine(), variant.ends());
        let transfers = Transfers::start(&topology, lanes(&load, &ends));
        let page = Arc::new(std::fs::read(topology.scratch.file("pages/1k"))?);
        let sessions = Sessions::start(
            &topology.client,
            &ends,
            load.sessions,
            "1k",
            Duration::from_millis(200),
            request_timeout(),
        )?;
        let requests = OpenLoop::start(&topology.client, ends, load.requests_per_s, "1k", page, request_timeout());
        let mut net = LoadedNetwork {
            transfers: Some(transfers),
            requests: Some(requests),
            sessions: Some(sessions),
            hairpin,
            servers,
            topology,
            variant,
            options,
            load,
            start: Instant::now(),
            absent: Vec::new(),
            away: Vec::new(),
        };
        net.under_way()?;
        Ok(net)
    }

    /// Waits until all transfers have begun and, with a policy that offloads, the engine has rules.
    fn under_way(&mut self) -> Result<()> {
        let transfers = self.load.transfers() as u64;
        let directions = self.directions() as u64;
        let offloads = self.variant.policy != "never";
        let began = Instant::now();
        while began.elapsed() < BEGINNING {
            let status = self.hairpin.status()?;
            let (connections, _) = status.connections();
            // iperf3 has a connection for control beside its streams.
            if connections >= transfers + 2 + self.load.sessions as u64
                && (!offloads || status.offload.rules >= directions * transfers)
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("the transfers have not begun: {}", self.hairpin.status_table()?)
    }

    /// Directions of a connection that pass the balancer.
    fn directions(&self) -> usize {
        if self.variant.direct { 1 } else { 2 }
    }

    /// Writes a configuration, which has yet to be loaded.
    pub(super) fn configure(&mut self, services: &[PeerService]) -> Result<()> {
        self.hairpin.configure(&self.topology, services, &self.options)
    }

    /// From `from`, when a reload was answered, until now no request may have met this server.
    pub(super) fn no_request_went_to(&mut self, server: &str, from: Instant) {
        self.away.push((from + SETTLING, Instant::now(), server.to_owned()));
    }

    /// There was no process between these.
    pub(super) fn no_process_ran(&mut self, from: Instant, to: Instant) {
        self.absent.push((from, to));
    }

    /// The process has begun like this and has adopted the long connections.
    pub(super) fn adopted(&mut self, began: &str) -> Result<()> {
        let status = self.hairpin.status()?;
        ensure!(status.began == began, "it began as {:?}, not {began:?}", status.began);
        // Each lane has one of its streams' connections at most moments; a lane may be between two transfers.
        let least = (self.load.curl_lanes + self.load.sessions) as u64 / 2;
        ensure!(status.adopted_connections >= least, "it adopted {} connections only", status.adopted_connections);
        Ok(())
    }

    /// The connections that stay, by both ends: one client's port may be in use towards several services.
    fn connections_of_sessions(&self) -> Result<BTreeMap<String, ConnectionView>> {
        let ends: Vec<String> =
            self.sessions.iter().flat_map(Sessions::ends).map(|(from, to)| name(from, to)).collect();
        let all = self.hairpin.connections(&json!({}))?.into_iter().map(|view| (name(&view.client, &view.vip), view));
        let found: BTreeMap<String, ConnectionView> = all.filter(|(name, _)| ends.contains(name)).collect();
        let sessions = self.load.sessions;
        ensure!(found.len() == sessions, "{} of {sessions} connections that stay are listed", found.len());
        Ok(found)
    }

    fn judge(&mut self, before: &BTreeMap<String, ConnectionView>) -> Result<()> {
        self.hairpin.process().check()?;
        self.servers.check()?;
        let after = self.connections_of_sessions().context("after")?;
        for (name, old) in before {
            let new = after.get(name).with_context(|| format!("{name} is not there any more"))?;
            ensure!(old.backend == new.backend, "{name} was with {}, is with {}", old.backend, new.backend);
            ensure!(old.source == new.source, "{name} was {:?} to its backend, is {:?}", old.source, new.source);
            let on = (0..self.directions())
                .all(|side| new.packets[side] > old.packets[side] && new.bytes[side] > old.bytes[side]);
            ensure!(on && new.age_s > old.age_s, "counters did not go on: {old:?}, then {new:?}");
        }
        let outcomes = self.requests.take().context("no requests")?.stop()?;
        self.judge_requests(&outcomes)?;
        for session in self.sessions.take().context("no sessions")?.stop()? {
            if let Some((_, why)) = &session.failed {
                bail!("a connection that stays failed after {} answers: {why}; {session:?}", session.answered);
            }
            ensure!(session.servers.len() == 1, "one connection met {:?}", session.servers);
        }
        let lanes = self.transfers.take().context("no transfers")?.stop()?;
        let broken: Vec<&String> = lanes.iter().flat_map(|lane| &lane.broken).collect();
        ensure!(broken.is_empty(), "{} transfers broke: {broken:#?}", broken.len());
        ensure!(lanes.iter().all(|lane| lane.transfers > 0), "a lane has brought nothing to its end");
        Ok(())
    }

    fn judge_requests(&self, outcomes: &[RequestRecord]) -> Result<()> {
        let spent = self.start.elapsed().as_secs() as usize;
        // Less than planned would be no load to speak of.
        let least = spent.saturating_sub(request_timeout().as_secs() as usize) * self.load.requests_per_s as usize / 2;
        ensure!(outcomes.len() >= least, "only {} requests in {spent} s", outcomes.len());
        let excused =
            |outcome: &RequestRecord| self.absent.iter().any(|(from, to)| outcome.start < *to && outcome.end > *from);
        let failed: Vec<&RequestRecord> = outcomes.iter().filter(|outcome| outcome.result.is_err()).collect();
        let lost: Vec<String> =
            failed.iter().filter(|outcome| !excused(outcome)).map(|outcome| self.describe(outcome)).collect();
        ensure!(lost.is_empty(), "{} of {} requests were lost: {:#?}", lost.len(), outcomes.len(), first(&lost));
        let failed: Vec<String> = failed.iter().map(|outcome| self.describe(outcome)).collect();
        ensure!(failed.is_empty(), "{} requests failed for want of a process: {:#?}", failed.len(), first(&failed));
        for (from, to, server) in &self.away {
            let mut meanwhile = outcomes.iter().filter(|outcome| outcome.start > *from && outcome.end < *to);
            let wrong = meanwhile
                .find(|outcome| outcome.result.as_ref() == Ok(server) && !self.goes_on_half_closed(outcome, outcomes));
            ensure!(wrong.is_none(), "a request went to {server}, which had been removed: {wrong:?}");
        }
        Ok(())
    }

    /// Whether the client's port is one from which it was answered by this server before. Of direct server return the backend's FIN is
    /// not seen: until the connection before has timed out, a SYN from that port goes to its backend, whose connection it may be.
    fn goes_on_half_closed(&self, outcome: &RequestRecord, outcomes: &[RequestRecord]) -> bool {
        let is_before = |other: &RequestRecord| {
            let same = (other.target, other.from, &other.result) == (outcome.target, outcome.from, &outcome.result);
            same && other.end <= outcome.start
        };
        self.variant.direct && outcomes.iter().any(is_before)
    }

    fn describe(&self, outcome: &RequestRecord) -> String {
        let at = |instant: Instant| instant.saturating_duration_since(self.start).as_secs_f64();
        let (from, to) = (at(outcome.start), at(outcome.end));
        format!("{}, {from:.3} s to {to:.3} s: {:?}", self.variant.http()[outcome.target], outcome.result)
    }
}

fn name(client: impl Display, vip: impl Display) -> String {
    format!("{client} to {vip}")
}

fn first(failures: &[String]) -> &[String] {
    &failures[..failures.len().min(10)]
}
