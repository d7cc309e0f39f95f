//! Backends by name, with a real name server whose zone changes.

use crate::network::test;
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::peer::status::{NameStatus, ResolverStatus};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::nsd::{self, Nsd};
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT, Servers};
use hairpin_e2e::tool::requests::OpenLoop;
use hairpin_e2e::tool::{echo, http, inside};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, end, server_address, vip};
use libtest_mimic::Trial;
use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("names: addresses come and go, no request is lost", come_and_go),
        test("names: the last answer holds while no server answers", no_server),
        test("names: SRV records give ports, weights, priority", services),
        test("names: a name that is gone is empty, and returns", gone),
        test("names: a start without an answer, then a hostile one", late_and_hostile),
        test("names: a group over HTTP, UDP over IPv6", groups_and_udp),
        test("names: a reload waits for the answer of a new name", reloaded),
    ]
}

const PATIENCE: Duration = Duration::from_secs(30);
const STEP: Duration = Duration::from_millis(50);
const TIMEOUT: Duration = Duration::from_secs(10);

struct Scene {
    hairpin: Hairpin,
    nsd: Option<Nsd>,
    _servers: Servers,
    topology: Topology,
    options: HairpinOptions,
}

/// A service of no servers but those that `tables` name.
fn service(tables: &str) -> PeerService {
    PeerService {
        name: "web",
        servers: Vec::new(),
        tables: tables.to_owned(),
        ..PeerService::tcp("", Family::V4, HTTP_PORT)
    }
}

fn named(name: &str) -> String {
    format!("[[service.backend]]\naddress = \"{name}.{}:{HTTP_PORT}\"\n", nsd::ZONE)
}

/// Addresses of a name, by servers' numbers.
fn addresses(name: &str, servers: &[usize]) -> String {
    let line = |server: &usize| format!("{name} 1 IN A {}\n", server_address(Family::V4, *server));
    servers.iter().map(line).collect()
}

impl Scene {
    fn start(records: Option<&str>, services: &[PeerService]) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions::default())?;
        let servers = Servers::start(&topology)?;
        let nsd = records.map(|records| Nsd::start(&topology, records)).transpose()?;
        let resolver = format!(
            "[resolver]\nservers = {:?}\nttl_min = \"1s\"\nttl_max = \"2s\"\ntimeout = \"500ms\"\nhold = \"1s\"\nstate = {:?}\n",
            nsd::address(),
            topology.scratch.file("names")
        );
        let options = HairpinOptions { tables: resolver, ..HairpinOptions::default() };
        let hairpin = Hairpin::start(&topology, services, &options)?;
        Ok(Scene { hairpin, nsd, _servers: servers, topology, options })
    }

    fn serve(&mut self, records: &str) -> Result<()> {
        self.nsd.as_mut().context("no name server")?.serve(&self.topology, records)
    }

    fn resolver(&self) -> Result<ResolverStatus> {
        self.hairpin.status()?.resolver.context("the status says nothing about names")
    }

    /// Waits until this holds for what is said about names.
    fn await_resolver(&self, what: &str, holds: impl Fn(&ResolverStatus) -> bool) -> Result<()> {
        let start = Instant::now();
        loop {
            let resolver = self.resolver()?;
            if holds(&resolver) {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                bail!("{what}: not after {PATIENCE:?}: {resolver:?}\n{}", self.hairpin.logs());
            }
            sleep(STEP);
        }
    }

    fn await_name(&self, what: &str, holds: impl Fn(&NameStatus) -> bool) -> Result<()> {
        self.await_resolver(what, |resolver| resolver.names.first().is_some_and(&holds))
    }

    /// Waits until the backends that take connections are these, named by their addresses.
    fn await_backends(&self, service: &str, servers: &[usize]) -> Result<()> {
        let ends = servers.iter().map(|server| end(server_address(Family::V4, *server), HTTP_PORT));
        self.await_ends(service, &ends.collect::<Vec<_>>())
    }

    fn await_ends(&self, service: &str, expected: &[String]) -> Result<()> {
        let start = Instant::now();
        loop {
            let status = self.hairpin.status()?;
            let there = &status.service(service).context("no such service")?.backends;
            let mut names: Vec<&str> =
                there.iter().filter(|backend| backend.state == "enabled").map(|backend| &*backend.name).collect();
            names.sort_unstable();
            if names == expected {
                return Ok(());
            }
            if start.elapsed() > PATIENCE {
                bail!("{service} has {names:?}, not {expected:?}: {:?}\n{}", status.resolver, self.hairpin.logs());
            }
            sleep(STEP);
        }
    }

    /// Which servers answer so many requests, one connection each, none of which may fail.
    fn answers(&self, count: usize) -> Result<BTreeMap<String, usize>> {
        let page = std::fs::read(self.topology.scratch.file("pages/1k"))?;
        let to = to();
        inside::run(&self.topology.client, move || {
            let mut answers = BTreeMap::new();
            for i in 0..count {
                let server = http::once(to, "1k", &page, TIMEOUT).with_context(|| format!("request {i}"))?;
                *answers.entry(server).or_default() += 1;
            }
            Ok(answers)
        })
    }

    fn answered_by(&self, expected: &[&str]) -> Result<()> {
        let answers = self.answers(20)?;
        ensure!(answers.keys().map(String::as_str).eq(expected.iter().copied()), "{expected:?}: {answers:?}");
        Ok(())
    }

    fn is_refused(&self) -> Result<bool> {
        inside::run(&self.topology.client, || Ok(TcpStream::connect_timeout(&to(), Duration::from_secs(2)).is_err()))
    }
}

fn to() -> SocketAddr {
    SocketAddr::new(vip(Family::V4), HTTP_PORT)
}

fn come_and_go() -> Result<()> {
    let mut scene = Scene::start(Some(&addresses("web", &[1, 2])), &[service(&named("web"))])?;
    // The start has waited for the answer.
    scene.await_backends("web", &[1, 2])?;
    let page = Arc::new(std::fs::read(scene.topology.scratch.file("pages/1k"))?);
    let traffic = OpenLoop::start(&scene.topology.client, vec![to()], 100, "1k", page, TIMEOUT);
    for servers in [&[1, 2, 3][..], &[3, 4], &[2], &[1, 2, 3, 4]] {
        scene.serve(&addresses("web", servers))?;
        scene.await_backends("web", servers)?;
        let names: Vec<String> = servers.iter().map(|server| format!("server{server}")).collect();
        scene.answered_by(&names.iter().map(String::as_str).collect::<Vec<_>>())?;
    }
    // The same addresses again and again change nothing.
    let before = scene.resolver()?;
    scene.await_resolver("five more answers", |now| now.lookups_found_total >= before.lookups_found_total + 5)?;
    let (after, reloads) = (scene.resolver()?, scene.hairpin.status()?.reloads);
    let lost: Vec<_> = traffic.stop()?.into_iter().filter(|request| request.result.is_err()).collect();
    ensure!(lost.is_empty(), "{} requests were lost: {:?}", lost.len(), lost.first());
    ensure!(before.changes_applied_total == 4, "{before:?}");
    ensure!(after.changes_applied_total == 4 && after.changes_refused_total == 0, "{after:?}");
    ensure!(reloads.succeeded_total + reloads.failed_total == 0, "{reloads:?}");
    let events = scene.hairpin.tell(&scene.topology, &["events"])?;
    ensure!(events.contains("backend 10.0.3.2:80 added"), "{events}");
    Ok(())
}

fn no_server() -> Result<()> {
    let mut scene = Scene::start(Some(&addresses("web", &[1, 2])), &[service(&named("web"))])?;
    scene.await_name("resolved", |name| name.state == "resolved")?;
    scene.nsd = None;
    scene.await_name("stale", |name| name.state == "stale" && name.addresses.len() == 2)?;
    scene.answered_by(&["server1", "server2"])?;
    // What an earlier process has heard holds in the next one.
    scene.hairpin.stop(true)?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    scene.answered_by(&["server1", "server2"])?;
    scene.await_name("stale again", |name| name.state == "stale")?;
    scene.nsd = Some(Nsd::start(&scene.topology, &addresses("web", &[3]))?);
    scene.await_backends("web", &[3])?;
    scene.answered_by(&["server3"])
}

fn services() -> Result<()> {
    let hosts: String = (1..=4).map(|server| addresses(&format!("s{server}"), &[server])).collect();
    let record = |priority: u16, weight: u16, server: usize| {
        format!("_http._tcp 1 IN SRV {priority} {weight} {HTTP_PORT} s{server}.{}.\n", nsd::ZONE)
    };
    let first = record(10, 30, 1) + &record(10, 10, 2) + &record(20, 50, 3);
    let tables = format!("[[service.backend]]\nsrv = \"_http._tcp.{}\"\n", nsd::ZONE);
    let service = PeerService { balance: "weighted-round-robin", ..service(&tables) };
    let mut scene = Scene::start(Some(&(hosts.clone() + &first)), &[service])?;
    scene.await_backends("web", &[1, 2])?;
    let answers = scene.answers(80)?;
    let [often, seldom] = ["server1", "server2"].map(|server| answers.get(server).copied().unwrap_or(0));
    ensure!(answers.len() == 2 && often >= 2 * seldom && seldom > 0, "weights 30 and 10: {answers:?}");
    let weights: Vec<u16> = scene.hairpin.status()?.services[0].backends.iter().map(|backend| backend.weight).collect();
    ensure!(weights == [30, 10] || weights == [10, 30], "{weights:?}");
    // The best priority is gone: the next one serves.
    scene.serve(&(hosts + &record(20, 50, 3) + &record(20, 0, 4)))?;
    scene.await_backends("web", &[3, 4])
}

fn gone() -> Result<()> {
    let mut scene = Scene::start(Some(&addresses("web", &[1])), &[service(&named("web"))])?;
    scene.await_backends("web", &[1])?;
    scene.serve("")?;
    scene.await_name("empty", |name| name.state == "empty" && name.addresses.is_empty())?;
    scene.await_backends("web", &[])?;
    ensure!(scene.is_refused()?, "a connection was made, and there is no backend");
    let not_ready = scene.hairpin.status()?.services[0].not_ready.clone();
    ensure!(not_ready == "its names have no address", "{not_ready:?}");
    scene.serve(&addresses("web", &[1, 2]))?;
    scene.await_backends("web", &[1, 2])?;
    scene.answered_by(&["server1", "server2"])
}

fn late_and_hostile() -> Result<()> {
    let mut scene = Scene::start(None, &[service(&named("web"))])?;
    ensure!(scene.is_refused()?, "a connection was made, and there is no backend");
    scene.await_name("waiting", |name| name.state == "waiting")?;
    let hostile: String = ["0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.1", &vip(Family::V4).to_string()]
        .iter()
        .map(|address| format!("web 1 IN A {address}\n"))
        .collect();
    // An alias that leads to itself beside it, which is no concern of this name.
    let looped = "loop 1 IN CNAME loop2\nloop2 1 IN CNAME loop\n";
    scene.nsd = Some(Nsd::start(&scene.topology, &(hostile + looped + &addresses("web", &[2])))?);
    scene.await_backends("web", &[2])?;
    scene.await_name("refused", |name| name.refused == 5)?;
    scene.answered_by(&["server2"])?;
    // The name itself in a loop is an answer without addresses, or none.
    scene.serve(&("web 1 IN CNAME loop\n".to_owned() + looped))?;
    scene.await_resolver("a loop", |resolver| resolver.lookups_failed_total + resolver.lookups_empty_total >= 3)?;
    scene.serve(&addresses("web", &[3]))?;
    scene.await_backends("web", &[3])?;
    scene.answered_by(&["server3"])
}

fn groups_and_udp() -> Result<()> {
    let group = format!(
        "[[service.route]]\npath_prefix = \"/\"\ngroup = \"named\"\n[[service.group]]\nname = \"named\"\n\
         backends = [\"web.{}:{HTTP_PORT}\"]\n",
        nsd::ZONE
    );
    let http = PeerService { name: "web", servers: Vec::new(), tables: group, ..PeerService::http("web", HTTP_PORT) };
    let udp = PeerService {
        servers: Vec::new(),
        tables: format!("[[service.backend]]\naddress = \"echo.{}:{ECHO_PORT}\"\n", nsd::ZONE),
        ..PeerService::udp("echo", Family::V6, ECHO_PORT)
    };
    let echo_at = |server| format!("echo 1 IN AAAA {}\n", server_address(Family::V6, server));
    let mut scene = Scene::start(Some(&(addresses("web", &[1, 2]) + &echo_at(1))), &[http, udp])?;
    scene.await_backends("web/named", &[1, 2])?;
    scene.answered_by(&["server1", "server2"])?;
    let to = SocketAddr::new(vip(Family::V6), ECHO_PORT);
    let asked = |scene: &Scene| echo::ask(&scene.topology.client, &[to], 0, 20, 100, Duration::from_secs(1));
    asked(&scene)?;
    let echoed = scene._servers.echoed();
    ensure!(echoed[0] > 0 && echoed[1..] == [0, 0, 0], "{echoed:?}");
    scene.serve(&(addresses("web", &[3]) + &echo_at(2)))?;
    scene.await_backends("web/named", &[3])?;
    scene.answered_by(&["server3"])?;
    scene.await_ends("echo", &[end(server_address(Family::V6, 2), ECHO_PORT)])?;
    asked(&scene)?;
    ensure!(scene._servers.echoed()[1] > 0, "{:?}", scene._servers.echoed());
    Ok(())
}

fn reloaded() -> Result<()> {
    let scene = Scene::start(Some(&(addresses("web", &[1]) + &addresses("new", &[2]))), &[service(&named("web"))])?;
    scene.await_backends("web", &[1])?;
    let page = Arc::new(std::fs::read(scene.topology.scratch.file("pages/1k"))?);
    let traffic = OpenLoop::start(&scene.topology.client, vec![to()], 100, "1k", page, TIMEOUT);
    scene.hairpin.configure(&scene.topology, &[service(&named("new"))], &scene.options)?;
    let said = scene.hairpin.tell(&scene.topology, &["reload"])?;
    // The one and the other in one change.
    ensure!(said.contains("backend 10.0.2.2:80 added") && said.contains("backend 10.0.1.2:80 removed"), "{said}");
    scene.answered_by(&["server2"])?;
    let lost = traffic.stop()?.into_iter().filter(|request| request.result.is_err()).count();
    ensure!(lost == 0, "{lost} requests were lost");
    Ok(())
}
