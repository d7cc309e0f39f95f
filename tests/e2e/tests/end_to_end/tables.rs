//! Every connection table serves real traffic, another one takes over its connections, and where none are tracked every
//! packet finds its backend all the same.

use super::network::{FULL_NAT_HTTP_PORT, services, test};
use super::{lane, transfer};
use anyhow::{Context, Result, bail, ensure};
use hairpin_core::table::LookupMethod;
use hairpin_e2e::load::{self, Amount, IperfOptions, WrkOptions};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, hairpin_program};
use hairpin_e2e::process::threads;
use hairpin_e2e::remnants;
use hairpin_e2e::servers::{HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::tool::{http, inside};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::json;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(10);

pub(crate) fn tests() -> Vec<Trial> {
    let own =
        METHODS.iter().map(|&method| lane::SHARED.test(format!("tables: {method} serves"), move || serves(method)));
    let others = [
        test("tables: connections outlive a change of the table", change_of_table),
        test("tables: maglev moves few connections of other backends", one_backend_less),
        test("tables: a tracked table picks up maglev connections", picked_up),
        test("tables: a reload does not switch connection tracking", no_reload),
    ];
    own.chain(others).collect()
}

/// A connection table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Table {
    name: &'static str,
    is_tracked: bool,
}

const METHODS: [Table; LookupMethod::ALL.len()] = {
    let mut all = [Table::of(LookupMethod::DEFAULT); LookupMethod::ALL.len()];
    let mut i = 0;
    while i < all.len() {
        all[i] = Table::of(LookupMethod::ALL[i]);
        i += 1;
    }
    all
};

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Table {
    const DEFAULT: Table = Table::of(LookupMethod::DEFAULT);
    const STATELESS: Table = Table::of(LookupMethod::Stateless);
    const MAGLEV: Table = Table::of(LookupMethod::Maglev);

    const fn of(method: LookupMethod) -> Table {
        Table { name: method.name(), is_tracked: method.tracks_connections() }
    }
}

/// A network with a Hairpin of two workers.
struct Scene {
    hairpin: Hairpin,
    servers: Servers,
    topology: Topology,
    services: Vec<PeerService>,
}

impl Scene {
    fn start(method: Table, service_lines: &str) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions::default())?;
        let servers = Servers::start(&topology)?;
        let services = served(method);
        let hairpin = Hairpin::start(&topology, &services, &options(method, service_lines))?;
        Ok(Scene { hairpin, servers, topology, services })
    }

    /// Writes another configuration; the process does not read it yet.
    fn configure(&mut self, method: Table, service_lines: &str) -> Result<()> {
        self.services = served(method);
        self.hairpin.configure(&self.topology, &self.services, &options(method, service_lines))
    }

    /// Runs `body`; what Hairpin printed goes with an error.
    fn play(mut self, body: impl FnOnce(&mut Scene) -> Result<()>) -> Result<()> {
        let result = body(&mut self);
        self.servers.check()?;
        let status = self.hairpin.status_table().unwrap_or_else(|error| format!("no status: {error:#}"));
        result.with_context(|| format!("hairpin printed:\n{}\nits status:\n{status}", self.hairpin.logs()))
    }

    fn is(&self, method: Table) -> Result<()> {
        let status = self.hairpin.status()?;
        ensure!(status.connection_table == method.name, "the table is {}, not {method}", status.connection_table);
        ensure!(status.workers.len() == 2, "{} workers", status.workers.len());
        Ok(())
    }

    /// Pages arrive whole, many clients at once, over both families and both protocols.
    fn works(&self, method: Table) -> Result<()> {
        let topology = &self.topology;
        let page = std::fs::metadata(topology.scratch.file("pages/10m"))?.len();
        let mut targets = Vec::new();
        for http in self.services.iter().filter(|service| service.server_port == HTTP_PORT) {
            let got = load::curl(&topology.client, topology, &http.listen(), "10m", "body")?;
            let length = std::fs::metadata(&got.body)?.len();
            ensure!(length == page, "{length} bytes of {page} through {}", http.name);
            targets.push(http.listen());
        }
        let wrk = WrkOptions { page: "1k", connections: 100, duration: Duration::from_secs(1), close: true };
        let wrk = load::wrk(topology, &targets, &wrk)?;
        ensure!(wrk.requests > 100 && wrk.errors == 0, "with {method}: {wrk:?}");
        for name in ["echo4", "echo6"] {
            transfer::echoes(topology, name, 16, 100, 17)?;
        }
        for reverse in [false, true] {
            let options = IperfOptions { streams: 2, amount: Amount::Megabytes(50), udp_mbit_s: None, reverse };
            load::iperf(topology, vip(Family::V4), IPERF_PORTS[0], &options)
                .with_context(|| format!("with {method}"))?;
        }
        Ok(())
    }
}

/// The services that a method can serve: without tracking, all by NAT, and no backend in two of them.
fn served(method: Table) -> Vec<PeerService> {
    let named = |service: &PeerService| match method.is_tracked {
        true => service.port < 9000,
        false => ["http4", "http6", "echo4", "echo6", "iperf4", "iperf6"].contains(&service.name),
    };
    let mut services: Vec<PeerService> = services().into_iter().filter(named).collect();
    if !method.is_tracked {
        services.iter_mut().for_each(|service| service.balance = "");
    }
    services
}

fn options(method: Table, service_lines: &str) -> HairpinOptions {
    // If connections are not tracked, nothing is held back either, whatever the file says.
    let policed = "[linux]\npolicer_floor = 1\npolicer_ceiling = 1\npolicer_backend = 1\n";
    let (policy, linux) = if method.is_tracked { ("always", "") } else { ("never", policed) };
    HairpinOptions {
        top: format!("workers = 2\nconnection_table = \"{method}\""),
        tables: format!("[offload]\npolicy = \"{policy}\"\n[limits]\nconnections_max = 40000\n{linux}"),
        service: service_lines.to_owned(),
        ..HairpinOptions::default()
    }
}

fn serves(method: Table) -> Result<()> {
    Scene::start(method, "")?.play(|scene| {
        scene.is(method)?;
        scene.works(method)?;
        let status = scene.hairpin.status()?;
        let tracked = method.is_tracked;
        ensure!((status.capacity.connections_peak > 0) == tracked, "there were {:?}", status.capacity);
        let words = if tracked {
            format!("; connection table {method}: ")
        } else {
            format!("not tracked: every packet finds its backend by {method}")
        };
        let text = scene.hairpin.status_table()?;
        ensure!(text.contains(&words), "the status does not say {words:?}");
        pinned(status.pid)?;
        if tracked {
            // Whatever a table brings along, signals are still the program's own.
            let ended = scene.hairpin.end(Signal::SIGINT)?;
            ensure!(ended.success(), "it ended with {ended}");
            let left = remnants::memory(scene.hairpin.instance());
            return if left.is_empty() { Ok(()) } else { bail!("{left:?} is left") };
        }
        ensure!(status.offload.rules == 0, "there are rules: {:?}", status.offload);
        ensure!(scene.hairpin.connections(&json!({}))?.is_empty(), "connections are listed");
        // Nothing is known of a connection, so it does not matter who serves it, with how many workers.
        let mut idle = Idle::open(&scene.topology, &[HTTP_PORT], 32)?;
        ensure!(scene.hairpin.end(Signal::SIGTERM)?.success(), "it did not end well");
        let mut options = options(method, "");
        options.top = options.top.replace("workers = 2", "workers = 3");
        scene.hairpin.configure(&scene.topology, &scene.services, &options)?;
        scene.hairpin.start_again(&scene.topology, &[])?;
        idle.check("after a restart with another number of workers")
    })
}

/// Every worker has a core of its own.
fn pinned(process: u32) -> Result<()> {
    let mut workers = 0;
    for status in threads(process)? {
        let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        if field("Name:").is_some_and(|name| name.starts_with("worker-")) {
            let cores = field("Cpus_allowed_list:").context("no list of cores")?;
            ensure!(cores.parse::<u32>().is_ok(), "a worker runs on cores {cores}");
            workers += 1;
        }
    }
    ensure!(workers == 2, "{workers} workers' threads");
    Ok(())
}

/// Connections that have had an answer, and who gave it.
pub(crate) struct Idle(Vec<(http::HttpConnection, String)>);

impl Idle {
    /// So many to these ports of both families' VIPs.
    pub(crate) fn open(topology: &Topology, ports: &'static [u16], count: usize) -> Result<Idle> {
        let one = move |i: usize| {
            let family = if i.is_multiple_of(2) { Family::V4 } else { Family::V6 };
            let to = SocketAddr::new(vip(family), ports[i / 2 % ports.len()]);
            let mut connection = http::HttpConnection::open(to, TIMEOUT)?;
            let server = connection.get("1k", false, TIMEOUT)?.server()?.to_owned();
            Ok((connection, server))
        };
        Ok(Idle(inside::run(&topology.client, move || (0..count).map(one).collect())?))
    }

    /// All of them are answered by who answered before.
    pub(crate) fn check(&mut self, when: &str) -> Result<()> {
        self.0.iter_mut().try_for_each(|one| Idle::check_one(one, when))
    }

    /// All but a few, which are given up.
    fn check_most(&mut self, few: usize, when: &str) -> Result<()> {
        let mut errors = Vec::new();
        self.0.retain_mut(|one| Idle::check_one(one, when).map_err(|error| errors.push(format!("{error:#}"))).is_ok());
        ensure!(errors.len() <= few, "more than {few} connections: {errors:#?}");
        Ok(())
    }

    fn check_one((connection, server): &mut (http::HttpConnection, String), when: &str) -> Result<()> {
        let end = connection.own_end()?;
        let answer = connection.get("1k", false, TIMEOUT).with_context(|| format!("{end}, {when}"))?;
        ensure!(answer.server()? == server, "{end}, {when}: {} answers, not {server}", answer.server()?);
        Ok(())
    }
}

fn tracked() -> impl Iterator<Item = Table> {
    METHODS.into_iter().filter(|method| method.is_tracked)
}

/// From each table to the next by upgrades, back to the first by a restart.
fn change_of_table() -> Result<()> {
    let first = tracked().next().context("no table")?;
    Scene::start(first, "")?.play(|scene| {
        let mut idle = Idle::open(&scene.topology, &[HTTP_PORT, FULL_NAT_HTTP_PORT], 40)?;
        for method in tracked().skip(1) {
            scene.configure(method, "")?;
            let later = scene.hairpin.tell(&scene.topology, &["reload"])?;
            ensure!(later.contains(&format!("-> {method}")), "the reload does not name what waits: {later}");
            idle.check("after the reload")?;
            upgrade(scene)?;
            scene.is(method)?;
            let adopted = scene.hairpin.status()?.adopted_connections;
            ensure!(adopted >= 40, "{method} took over {adopted} connections");
            idle.check(&format!("with {method}"))?;
        }
        scene.configure(first, "")?;
        scene.hairpin.end(Signal::SIGTERM)?;
        scene.hairpin.start_again(&scene.topology, &[])?;
        scene.is(first)?;
        idle.check("after the restart")?;
        Idle::open(&scene.topology, &[HTTP_PORT, FULL_NAT_HTTP_PORT], 8).map(drop)
    })
}

fn upgrade(scene: &mut Scene) -> Result<()> {
    let program = std::fs::canonicalize(hairpin_program()?)?;
    scene.hairpin.upgrade(&scene.topology, Path::new(&program))
}

/// A backend drains and comes back: its own connections have to go elsewhere meanwhile, of the others hardly any does.
///
/// Without server2, 29 of the 65,537 entries of Maglev's table (45 over IPv6) change beside its own. So of these 48
/// connections one moves in every 28th run; four do in one of ten million.
fn one_backend_less() -> Result<()> {
    Scene::start(Table::MAGLEV, "")?.play(|scene| {
        let mut idle = Idle::open(&scene.topology, &[HTTP_PORT], 64)?;
        for service in ["http4", "http6"] {
            scene.hairpin.tell(&scene.topology, &["backend", "drain", service, "server2"])?;
        }
        let all = idle.0.len();
        let (mut its, others): (Vec<_>, Vec<_>) = idle.0.into_iter().partition(|(_, server)| server == "server2");
        ensure!(!its.is_empty() && its.len() < all / 2, "server2 has {} of {all} connections", its.len());
        idle = Idle(others);
        idle.check_most(3, "while server2 drains")?;
        let moved = its.pop().context("server2 has none")?.0.get("1k", false, TIMEOUT);
        ensure!(moved.is_err(), "a server that knows nothing of a connection answers on it");
        for service in ["http4", "http6"] {
            scene.hairpin.tell(&scene.topology, &["backend", "reset", service, "server2"])?;
        }
        idle.0.extend(its);
        idle.check("after server2 is back")
    })
}

/// A table takes up connections that Maglev has spread, connection by connection, as Maglev would have it.
fn picked_up() -> Result<()> {
    Scene::start(Table::MAGLEV, "")?.play(|scene| {
        let mut idle = Idle::open(&scene.topology, &[HTTP_PORT], 40)?;
        scene.configure(Table::DEFAULT, "unknown = \"pick-up\"")?;
        upgrade(scene)?;
        scene.is(Table::DEFAULT)?;
        idle.check("picked up")?;
        let listed = scene.hairpin.connections(&json!({}))?.len();
        ensure!(listed >= 40, "{listed} connections are tracked");
        // And back: rules go, and Maglev names the backends that they have.
        scene.configure(Table::MAGLEV, "")?;
        upgrade(scene)?;
        idle.check("not tracked any more")?;
        let view = scene.hairpin.offload()?;
        ensure!(view.rules == [0, 0], "rules are left: {view:?}");
        Ok(())
    })
}

fn no_reload() -> Result<()> {
    Scene::start(Table::DEFAULT, "")?.play(|scene| {
        scene.configure(Table::STATELESS, "")?;
        let refused = scene.hairpin.tell(&scene.topology, &["reload"]).err().context("the reload was taken")?;
        let refused = format!("{refused:#}");
        ensure!(refused.contains("apply it by `hairpin upgrade`"), "it says {refused}");
        scene.is(Table::DEFAULT)?;
        scene.services = served(Table::DEFAULT);
        scene.works(Table::DEFAULT)
    })
}
