//! Health checks against real servers that stop, and operators' overrides.

use crate::network::test;
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::load::{self, WrkOptions};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{ECHO_PORT, HTTP_PORT, Servers, WELL};
use hairpin_e2e::tool::requests::OpenLoop;
use hairpin_e2e::tool::{echo, http, inside};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("health: a server that stands still leaves and returns (http)", stands_still),
        test("health: a server that is gone leaves and returns (tcp)", gone),
        test("health: another status, another body (http)", unwell),
        test("health: a UDP server that is gone leaves and returns", udp),
        test("health: no backend is up", no_backend_up),
        test("health: passive checks alone", passive),
        test("backend: drained under load, nothing is lost", drained),
        test("backend: disabled, weighted, reset", backends_overridden),
        test("backend: drain limit ends its connections", drain_limit),
        test("backend: one that returns starts slowly", slow_start),
    ]
}

const INTERVAL: Duration = Duration::from_millis(500);
const FALL: u32 = 3;
const RISE: u32 = 2;
/// Beside interval and timeout: a busy machine.
const SLACK: Duration = Duration::from_secs(3);
const TIMEOUT: Duration = Duration::from_secs(10);

struct Scene {
    hairpin: Hairpin,
    servers: Servers,
    topology: Topology,
    to: SocketAddr,
}

/// Lines of `[service.health]` with the times above.
fn health(lines: &str) -> String {
    let interval = INTERVAL.as_millis();
    format!(
        "[service.health]\ninterval = \"{interval}ms\"\ntimeout = \"400ms\"\nfall = {FALL}\nrise = {RISE}\n{lines}\n"
    )
}

impl Scene {
    /// One service, `web`, of all servers.
    fn start(service: PeerService, lines: &str, tables: &str) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions::default())?;
        let servers = Servers::start(&topology)?;
        let service = PeerService { name: "web", tables: tables.to_owned(), ..service };
        let options = HairpinOptions { service: lines.to_owned(), ..HairpinOptions::default() };
        let to = service.listen().parse()?;
        let hairpin = Hairpin::start(&topology, &[service], &options)?;
        Ok(Scene { hairpin, servers, topology, to })
    }

    fn http(tables: &str) -> Result<Scene> {
        Scene::start(PeerService::tcp("", Family::V4, HTTP_PORT), "", tables)
    }

    /// Waits until a backend's health is this; how long that took.
    fn await_state(&self, server: usize, state: &str, bound: Duration) -> Result<Duration> {
        let name = format!("server{server}");
        let start = Instant::now();
        loop {
            let status = self.hairpin.status()?;
            let health = status.backend("web", &name).context("no such backend")?.health.clone();
            if health.state == state {
                ensure!(!health.reason.is_empty(), "no reason is given: {health:?}");
                return Ok(start.elapsed());
            }
            if start.elapsed() > bound {
                bail!("{name} is not {state} after {:?}: {health:?}", start.elapsed());
            }
            sleep(Duration::from_millis(20));
        }
    }

    fn await_all_up(&self) -> Result<()> {
        (1..=4).try_for_each(|server| self.await_state(server, "up", SLACK + INTERVAL * RISE).map(drop))
    }

    /// Which servers answer so many requests, one connection each, none of which may fail.
    fn answers(&self, count: usize) -> Result<BTreeMap<String, usize>> {
        let to = self.to;
        let page = std::fs::read(self.topology.scratch.file("pages/1k"))?;
        inside::run(&self.topology.client, move || {
            let mut answers = BTreeMap::new();
            for i in 0..count {
                let server = http::once(to, "1k", &page, TIMEOUT).with_context(|| format!("request {i}"))?;
                *answers.entry(server).or_default() += 1;
            }
            Ok(answers)
        })
    }

    /// All servers but this one answer.
    fn all_but(&self, server: usize) -> Result<()> {
        let answers = self.answers(40)?;
        let name = format!("server{server}");
        ensure!(!answers.contains_key(&name) && answers.len() == 3, "{name} is away, and the answers are {answers:?}");
        Ok(())
    }

    fn all(&self) -> Result<()> {
        let answers = self.answers(40)?;
        ensure!(answers.len() == 4, "all are well, and the answers are {answers:?}");
        Ok(())
    }

    /// The fate of a new connection.
    fn connect(&self) -> Result<Option<ErrorKind>> {
        let to = self.to;
        inside::run(&self.topology.client, move || {
            Ok(TcpStream::connect_timeout(&to, Duration::from_secs(2)).err().map(|error| error.kind()))
        })
    }

    fn change_backend(&self, arguments: &[&str]) -> Result<String> {
        let all: Vec<&str> = ["backend"].into_iter().chain(arguments.iter().copied()).collect();
        self.hairpin.tell(&self.topology, &all)
    }
}

/// Longest time until a server that has stopped is down: one check has just succeeded, and the last one fails late.
fn fall_bound() -> Duration {
    INTERVAL * (FALL + 1) + SLACK
}

fn rise_bound() -> Duration {
    INTERVAL * (RISE + 1) + SLACK
}

/// SIGSTOP: the kernel goes on accepting connections, the server answers none.
fn stands_still() -> Result<()> {
    let mut scene = Scene::http(&health("check = \"http\"\npath = \"/health\""))?;
    scene.await_all_up()?;
    scene.all()?;
    scene.servers.nginx(2).signal_group(Signal::SIGSTOP);
    scene.await_state(2, "down", fall_bound())?;
    scene.all_but(2)?;
    scene.servers.nginx(2).signal_group(Signal::SIGCONT);
    scene.await_state(2, "up", rise_bound())?;
    scene.all()
}

fn gone() -> Result<()> {
    let mut scene = Scene::http(&health("check = \"tcp\""))?;
    scene.await_all_up()?;
    scene.servers.nginx(3).stop()?;
    scene.await_state(3, "down", fall_bound())?;
    let status = scene.hairpin.status()?;
    let reason = status.backend("web", "server3").context("gone")?.health.reason.clone();
    ensure!(reason.contains("refused"), "the reason is {reason:?}");
    scene.all_but(3)?;
    scene.servers.start_nginx(&scene.topology, 3)?;
    scene.await_state(3, "up", rise_bound())?;
    scene.all()
}

fn unwell() -> Result<()> {
    let body = format!("body = {:?}", WELL.trim());
    let scene = Scene::http(&health(&format!("check = \"http\"\npath = \"/health\"\nstatus = \"200\"\n{body}")))?;
    scene.await_all_up()?;
    for (server, says, about) in [(1, None, "503"), (4, Some("not so well"), "body")] {
        scene.servers.say(&scene.topology, server, says)?;
        scene.await_state(server, "down", fall_bound())?;
        let status = scene.hairpin.status()?;
        let reason = status.backend("web", &format!("server{server}")).context("gone")?.health.reason.clone();
        ensure!(reason.contains(about), "the reason does not name {about}: {reason:?}");
        scene.all_but(server)?;
        scene.servers.say(&scene.topology, server, Some(WELL))?;
        scene.await_state(server, "up", rise_bound())?;
    }
    scene.all()
}

fn udp() -> Result<()> {
    let checks = health("check = \"udp\"\nsend = \"ping\"\nexpect = \"ping\"");
    let mut scene = Scene::start(PeerService::udp("", Family::V4, ECHO_PORT), "", &checks)?;
    scene.await_all_up()?;
    scene.servers.stop_echo(1);
    scene.await_state(1, "down", fall_bound())?;
    // New flows are spread over the others: every datagram comes back.
    let asked = echo::ask(&scene.topology.client, &[scene.to], 0, 40, 100, Duration::from_millis(500))?;
    ensure!(asked.answered > 40 && asked.lost == 0, "with server1 away: {asked:?}");
    scene.servers.start_echo(&scene.topology, 1)?;
    scene.await_state(1, "up", rise_bound())?;
    let asked = echo::ask(&scene.topology.client, &[scene.to], 0, 40, 100, Duration::from_millis(500))?;
    ensure!(asked.lost == 0, "with server1 back: {asked:?}");
    // Checks of half a second make a few answers; forty flows over four servers make more.
    ensure!(scene.servers.echoed()[0] >= 8, "server1 has answered {:?}", scene.servers.echoed());
    Ok(())
}

/// All down: refused, as the default says; or given to all of them, if the service says so.
fn no_backend_up() -> Result<()> {
    for (all_down, expected) in [("", Some(ErrorKind::ConnectionRefused)), ("all_down = \"use-all\"", None)] {
        let checks = health("check = \"http\"\npath = \"/health\"");
        let scene = Scene::start(PeerService::tcp("", Family::V4, HTTP_PORT), all_down, &checks)?;
        scene.await_all_up()?;
        (1..=4).try_for_each(|server| scene.servers.say(&scene.topology, server, None))?;
        (1..=4).try_for_each(|server| scene.await_state(server, "down", fall_bound()).map(drop))?;
        let met = scene.connect()?;
        ensure!(met == expected, "with {all_down:?} a new connection met {met:?}, not {expected:?}");
        if expected.is_none() {
            scene.all()?;
        }
        (1..=4).try_for_each(|server| scene.servers.say(&scene.topology, server, Some(WELL)))?;
        scene.await_all_up()?;
        scene.all()?;
    }
    Ok(())
}

/// No check but what clients' own connections meet.
fn passive() -> Result<()> {
    let checks = "[service.health]\npassive = 3\npassive_retry = \"3s\"\n";
    let mut scene = Scene::http(checks)?;
    scene.all()?;
    scene.servers.nginx(2).stop()?;
    let page = Arc::new(std::fs::read(scene.topology.scratch.file("pages/1k"))?);
    let clients = OpenLoop::start(&scene.topology.client, vec![scene.to], 50, "1k", page, TIMEOUT);
    scene.await_state(2, "down", Duration::from_secs(10))?;
    let failed = clients.stop()?.iter().filter(|outcome| outcome.result.is_err()).count();
    ensure!(failed >= 3, "{failed} requests failed; three in a row were to take server2 away");
    scene.all_but(2)?;
    scene.servers.start_nginx(&scene.topology, 2)?;
    // Tried again after its time, and taken back.
    let start = Instant::now();
    while scene.answers(8)?.len() < 4 {
        ensure!(start.elapsed() < Duration::from_secs(30), "server2 has not come back");
        sleep(Duration::from_millis(200));
    }
    Ok(())
}

/// Drained under keep-alive and short requests: nothing fails, connections stay where they are, new ones go elsewhere.
fn drained() -> Result<()> {
    let scene = Scene::http("")?;
    let page = Arc::new(std::fs::read(scene.topology.scratch.file("pages/1k"))?);
    let requests = OpenLoop::start(&scene.topology.client, vec![scene.to], 200, "1k", page, TIMEOUT);
    let wrk = WrkOptions { page: "1k", connections: 32, duration: Duration::from_secs(4), close: false };
    let command = load::wrk_command(&scene.topology.client, &scene.to.to_string(), 1, &wrk);
    let mut wrk = scene.topology.client.start(command, &scene.topology.scratch.file("wrk-drain"))?;
    sleep(Duration::from_secs(1));
    let said = scene.change_backend(&["drain", "web", "server2"])?;
    ensure!(said.contains("server2"), "it says {said:?}");
    // Workers may still be at work on a batch of before.
    sleep(Duration::from_millis(100));
    let (from, held) = (Instant::now(), scene.hairpin.status()?);
    let held = held.backend("web", "server2").context("no server2")?.clone();
    ensure!(held.state == "drain" && held.connections > 0, "server2 is {held:?}");
    let ended = wrk.wait(Duration::from_secs(30))?;
    let text = wrk.log();
    let harmed = text.contains("Socket errors") || text.contains("Non-2xx");
    ensure!(ended.success() && !harmed, "wrk: {text}");
    let outcomes = requests.stop()?;
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.result.is_err()).collect();
    ensure!(failed.is_empty(), "{} of {} requests failed: {:?}", failed.len(), outcomes.len(), failed.first());
    let mut later = outcomes.iter().filter(|outcome| outcome.start > from);
    ensure!(later.clone().count() > 200, "too few requests after it was drained");
    let wrong = later.find(|outcome| outcome.result.as_deref() == Ok("server2"));
    ensure!(wrong.is_none(), "drained, and it got a new connection: {wrong:?}");
    scene.all_but(2)?;
    scene.change_backend(&["enable", "web", "server2"])?;
    sleep(Duration::from_millis(100));
    scene.all()
}

/// Connections of a draining backend go on until the limit, and no longer.
fn drain_limit() -> Result<()> {
    let scene = Scene::start(PeerService::tcp("", Family::V4, HTTP_PORT), "drain_limit = \"3s\"", "")?;
    let to = scene.to;
    let mut open = inside::run(&scene.topology.client, move || {
        let one = |_| {
            let mut connection = http::HttpConnection::open(to, TIMEOUT)?;
            let server = connection.get("1k", false, TIMEOUT)?.server()?.to_owned();
            Ok((connection, server))
        };
        (0..8).map(one).collect::<Result<Vec<_>>>()
    })?;
    scene.change_backend(&["drain", "web", "server2"])?;
    let begun = Instant::now();
    let mut late = None;
    while late.is_none() && begun.elapsed() < Duration::from_secs(3) + SLACK {
        for (connection, server) in &mut open {
            match connection.get("1k", false, Duration::from_secs(1)) {
                Ok(answer) => ensure!(answer.server()? == server, "{server} was it, and {} answers", answer.server()?),
                Err(error) if server == "server2" => late = Some((begun.elapsed(), error)),
                Err(error) => return Err(error).context(format!("{server} was not drained")),
            }
        }
        sleep(Duration::from_millis(100));
    }
    let (after, _) = late.context("connections of the drained backend never ended")?;
    // The limit is kept in whole seconds.
    ensure!(after > Duration::from_millis(1900), "it ended after {after:?} already");
    let left = scene.hairpin.status()?.backend("web", "server2").context("no server2")?.connections;
    ensure!(left == 0, "server2 still has {left} connections");
    Ok(())
}

fn slow_start() -> Result<()> {
    let tables = health("check = \"tcp\"\nslow_start = \"8s\"");
    let service = PeerService { balance: "weighted-round-robin", ..PeerService::tcp("", Family::V4, HTTP_PORT) };
    let mut scene = Scene::start(service, "", &tables)?;
    scene.await_all_up()?;
    scene.servers.nginx(2).stop()?;
    scene.await_state(2, "down", fall_bound())?;
    scene.servers.start_nginx(&scene.topology, 2)?;
    scene.await_state(2, "up", rise_bound())?;
    let share = |scene: &Scene| -> Result<f64> {
        Ok(scene.hairpin.status()?.backend("web", "server2").context("no server2")?.health.weight_share)
    };
    let (first, answers) = (share(&scene)?, scene.answers(80)?);
    // A full share is 20 of 80.
    let few = answers.get("server2").copied().unwrap_or(0);
    ensure!(first < 0.5 && few <= 12, "with a share of {first} of its weight it answers {few} of 80");
    let deadline = Instant::now() + Duration::from_secs(8) + SLACK;
    while share(&scene)? < 1.0 {
        ensure!(Instant::now() < deadline, "it has only {} of its weight", share(&scene)?);
        sleep(Duration::from_millis(100));
    }
    let answers = scene.answers(80)?;
    let even = answers.get("server2").copied().unwrap_or(0);
    ensure!((16..=24).contains(&even), "with all of its weight it answers {even} of 80");
    Ok(())
}

fn backends_overridden() -> Result<()> {
    let mut scene = Scene::start(
        PeerService { balance: "weighted-round-robin", ..PeerService::tcp("", Family::V4, HTTP_PORT) },
        "",
        "",
    )?;
    scene.change_backend(&["weight", "web", "server1", "5"])?;
    sleep(Duration::from_millis(100));
    let answers = scene.answers(80)?;
    // Five of eight, by each worker for itself.
    let first = answers.get("server1").copied().unwrap_or(0);
    ensure!((44..=56).contains(&first), "with weight 5 beside 1, 1 and 1: {answers:?}");
    scene.change_backend(&["disable", "web", "server3"])?;
    sleep(Duration::from_millis(100));
    scene.all_but(3)?;
    // An override outlives the process.
    scene.hairpin.end(Signal::SIGTERM)?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    scene.all_but(3).context("after a restart")?;
    scene.change_backend(&["reset", "web", "server3"])?;
    scene.change_backend(&["reset", "web", "server1"])?;
    sleep(Duration::from_millis(100));
    let answers = scene.answers(80)?;
    ensure!(answers.values().all(|count| (16..=24).contains(count)) && answers.len() == 4, "reset: {answers:?}");
    let wrong =
        scene.change_backend(&["drain", "web", "server5"]).err().context("server5 was drained, which is none")?;
    ensure!(format!("{wrong:#}").contains("server5"), "{wrong:#}");
    Ok(())
}
