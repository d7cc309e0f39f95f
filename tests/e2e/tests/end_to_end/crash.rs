//! Killed at random instants under short connections, reloads and rules that come and go: after each, the tables are
//! whole, the offload state agrees with the engine, and in the end nothing has leaked.

use crate::combination::{Combination, Way};
use crate::network::test;
use anyhow::{Context, Result, anyhow, bail, ensure};
use hairpin_e2e::load::{self, WrkOptions};
use hairpin_e2e::peer::control;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::{http, inside};
use hairpin_e2e::topology::{Family, Topology};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::json;
use std::net::SocketAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = vec![
        test("crash: random kills tear and leak nothing", || crashes(Combination::usual(false))),
        test("crash: random kills, set up in the engine", || crashes(Combination::usual(true))),
    ];
    // `make crashes`.
    tests.extend(Combination::tests("crash: random kills", "HAIRPIN_CRASHES", crashes));
    tests
}

/// How often the process is killed, unless `HAIRPIN_CRASHES` says otherwise; half as often with set-up in the engine.
const CRASHES: usize = 30;
/// Ports of the pool, for each backend: one worker has them all.
const POOL_PORTS: usize = 48;
/// The one service by full NAT that has the pool, towards one server, to itself.
const POOL_SERVICE: u16 = 8090;
/// Connections of the load at a time.
const LOAD: usize = 32;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Short enough to wait for.
const TIMEOUTS: &str = "[timeouts]\ntcp_handshake = \"2s\"\ntcp_established = \"5s\"\ntcp_half_closed = \"2s\"\n\
                        tcp_closed = \"1s\"\ntcp_reset = \"1s\"\n";

/// Where the BPF programs set connections up, without the service that shares a server with another one: workers set up those
/// services' connections.
fn services(combination: Combination) -> Vec<PeerService> {
    if let Way::Direct(tunnel) = combination.way {
        let is_mixed = tunnel.is_some_and(|tunnel| tunnel.is_mixed);
        let service = |name, family| PeerService { is_mixed, ..PeerService::tcp(name, family, HTTP_PORT) };
        return vec![service("http4", Family::V4), service("http6", Family::V6)];
    }
    let all = vec![1, 2, 3, 4];
    let mut services = vec![
        PeerService::tcp("http4", Family::V4, HTTP_PORT),
        PeerService { servers: all, full_nat: true, ..PeerService::tcp("full-http6", Family::V6, HTTP_PORT) },
    ];
    if !combination.set_up {
        services.push(PeerService {
            servers: vec![1],
            server_port: HTTP_PORT,
            full_nat: true,
            ..PeerService::tcp("pool", Family::V4, POOL_SERVICE)
        });
    }
    services
}

struct Scene {
    load: Vec<Process>,
    hairpin: Hairpin,
    _openers: Vec<Process>,
    _servers: Servers,
    topology: Topology,
    options: HairpinOptions,
    combination: Combination,
}

impl Scene {
    fn start(combination: Combination) -> Result<Scene> {
        let (topology, openers, service) = combination.network()?;
        let servers = Servers::start(&topology)?;
        let options = HairpinOptions {
            top: "workers = 1".to_owned(),
            service,
            // Over IPv6 the short connections of the load take as many ports in a second: time_wait is short, too.
            pool: format!("ports = \"20000-{}\"\ntime_wait = \"1s\"\n", 20_000 + POOL_PORTS - 1),
            tables: format!("{TIMEOUTS}{}", combination.tables()),
            ..HairpinOptions::default()
        };
        let hairpin = Hairpin::start(&topology, &services(combination), &options)?;
        Ok(Scene { load: Vec::new(), hairpin, _openers: openers, _servers: servers, topology, options, combination })
    }

    /// wrk with a connection for each request, through both services, for longer than the test.
    fn load(&mut self) -> Result<()> {
        for (number, service) in services(self.combination).iter().take(2).enumerate() {
            let options = WrkOptions {
                page: "1k",
                connections: LOAD / 2,
                duration: Duration::from_secs(3600),
                close: number == 0,
            };
            let command = load::wrk_command(&self.topology.client, &service.listen(), 1, &options);
            let log = self.topology.scratch.file(format!("wrk-{number}"));
            self.load.push(self.topology.client.start(command, &log)?);
        }
        Ok(())
    }

    fn pause_load(&mut self) -> Result<()> {
        self.load.iter_mut().try_for_each(|process| process.pause(TIMEOUT))
    }

    fn go_on_with_load(&self) {
        self.load.iter().for_each(|process| process.signal(Signal::SIGCONT));
    }

    /// The load stands still, and what the offload state says is what the engine holds.
    fn offload_state_is_right(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let view = self.hairpin.offload()?;
            if view.unaccounted() == 0 {
                return Ok(());
            }
            if start.elapsed() > TIMEOUT {
                bail!("{} rules are not accounted for (less than zero: missing): {view:?}", view.unaccounted());
            }
            sleep(Duration::from_millis(20));
        }
    }

    /// The list of connections can be read to its end, its parts add up, and every one of them makes sense.
    fn table_is_whole(&self) -> Result<()> {
        let socket = self.hairpin.socket();
        let all = self.hairpin.connections(&json!({}))?;
        for view in &all {
            let known = services(self.combination).into_iter().find(|service| service.name == view.service);
            let known = known.with_context(|| format!("no service of ours: {view:?}"))?;
            ensure!(view.vip == known.listen(), "{view:?} is not to {}", known.listen());
            ensure!(known.full_nat == view.source.is_some(), "{view:?}");
            // Between a connection's beginning and the counting of its first packet the process may have been killed.
            let begins = view.state == "syn-sent";
            // What the programs have set up is counted by its rules alone. When it is over these go, and until the worker hears
            // of their counters, which a kill may prevent, there are none.
            let is_over = matches!(view.state.as_str(), "closed" | "reset");
            // Of direct server return they tell the worker what they have begun, without its packets.
            let is_direct = matches!(self.combination.way, Way::Direct(_));
            let goes = self.combination.set_up && (is_over || is_direct);
            let counted = view.packets[0] > 0 || begins || goes;
            ensure!(view.backend.starts_with("server") && counted, "{view:?}");
        }
        let mut sources: Vec<_> = all.iter().filter_map(|view| Some((&view.backend, view.source.as_ref()?))).collect();
        let count = sources.len();
        sources.sort_unstable();
        sources.dedup();
        ensure!(sources.len() == count, "{} ports of the pool are used twice", count - sources.len());
        let mut clients: Vec<_> = all.iter().map(|view| (&view.client, &view.vip)).collect();
        clients.sort_unstable();
        clients.dedup();
        ensure!(clients.len() == all.len(), "{} connections are there twice", all.len() - clients.len());
        // While the load stands still connections go, and no more come than its kernel tries to make again.
        let counted = control::count(&socket, &json!({}))?;
        if counted > all.len() as u64 + LOAD as u64 {
            let mut more = self.hairpin.connections(&json!({}))?;
            let listed = more.len();
            more.retain(|view| clients.binary_search(&(&view.client, &view.vip)).is_err());
            bail!(
                "{counted} are counted and {} listed, and then {listed}, {} of them new: {:?}",
                all.len(),
                more.len(),
                more.iter().take(5).collect::<Vec<_>>()
            );
        }
        let software = control::count(&socket, &json!({"offloaded": false}))?;
        let offloaded = control::count(&socket, &json!({"offloaded": true}))?;
        let sum = software + offloaded;
        ensure!(sum <= counted + LOAD as u64, "{software} in software and {offloaded} offloaded, of {counted}");
        Ok(())
    }

    /// One request through every service.
    fn works(&self) -> Result<()> {
        let page = std::fs::read(self.topology.scratch.file("pages/1k"))?;
        let ends: Vec<SocketAddr> =
            services(self.combination).iter().map(|service| service.listen().parse()).collect::<Result<_, _>>()?;
        inside::run(&self.topology.client, move || {
            for to in ends {
                http::once(to, "1k", &page, TIMEOUT).with_context(|| format!("a request to {to}"))?;
            }
            Ok(())
        })
    }

    /// Opens connections through the pool until one is refused or as many as it has ports are open; how many there were.
    fn ports(&self) -> Result<usize> {
        let Some(service) = services(self.combination).into_iter().nth(2) else { return Ok(POOL_PORTS) };
        let to: SocketAddr = service.listen().parse()?;
        inside::run(&self.topology.client, move || {
            let open = (0..POOL_PORTS).map_while(|_| {
                let mut connection = http::HttpConnection::open(to, Duration::from_secs(3)).ok()?;
                connection.get("1k", false, Duration::from_secs(3)).ok()?;
                Some(connection)
            });
            Ok(open.collect::<Vec<_>>().len())
        })
    }

    /// Waits until no connection and no rule is left.
    fn all_gone(&self) -> Result<()> {
        let start = Instant::now();
        loop {
            let (connections, view) = (self.hairpin.status()?.connections().0, self.hairpin.offload()?);
            if connections == 0 && view.rules == [0, 0] {
                return Ok(());
            }
            // The longest timeout is 5 s, and offloaded connections are sampled in between.
            if start.elapsed() > Duration::from_secs(40) {
                let left = self.hairpin.connections(&json!({}))?;
                bail!(
                    "{connections} connections are left, and {view:?}: {:?}",
                    left.iter().take(5).collect::<Vec<_>>()
                );
            }
            sleep(Duration::from_millis(200));
        }
    }

    /// Every third time the configuration has changed as well.
    fn reload(&self, number: usize) -> Result<()> {
        let mut services = services(self.combination);
        services[0].weights = vec![1 + (number % 5) as u16; 4];
        if number.is_multiple_of(2) {
            services[1].servers.truncate(3);
        }
        self.hairpin.configure(&self.topology, &services, &self.options)?;
        self.hairpin.tell(&self.topology, &["reload"]).map(drop)
    }
}

fn crashes(combination: Combination) -> Result<()> {
    let usual = if combination.set_up { CRASHES / 2 } else { CRASHES };
    let count = std::env::var("HAIRPIN_CRASHES").ok().map_or(Ok(usual), |text| text.parse())?;
    let seed = fastrand::u64(..);
    println!("{count} crashes by seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let mut scene = Scene::start(combination)?;
    let ports = scene.ports()?;
    ensure!(ports == POOL_PORTS, "of a pool of {POOL_PORTS} ports {ports} can be used");
    rest(&scene)?;
    scene.load()?;
    for number in 1..=count {
        crash(&mut scene, number, &mut random).map_err(|error| {
            anyhow!("crash {number} of seed {seed}: {error:#}\nhairpin printed:\n{}", tail(&scene.hairpin.logs()))
        })?;
    }
    scene.load.clear();
    rest(&scene).with_context(|| format!("after {count} crashes, seed {seed}"))?;
    let ports = scene.ports()?;
    ensure!(ports == POOL_PORTS, "after {count} crashes {ports} of {POOL_PORTS} ports can be used (seed {seed})");
    scene.all_gone()
}

/// Waits until nothing is left, and for as long as ports rest that were used last.
fn rest(scene: &Scene) -> Result<()> {
    scene.all_gone()?;
    sleep(Duration::from_millis(1500));
    Ok(())
}

fn crash(scene: &mut Scene, number: usize, random: &mut fastrand::Rng) -> Result<()> {
    sleep(Duration::from_micros(random.u64(20_000..300_000)));
    if number.is_multiple_of(3) {
        scene.reload(number)?;
        sleep(Duration::from_micros(random.u64(0..20_000)));
    }
    let _ = scene.hairpin.end(Signal::SIGKILL)?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    let began = scene.hairpin.status()?.began;
    ensure!(began == "restart", "it began as {began:?}");
    scene.pause_load()?;
    let right = scene.offload_state_is_right().and_then(|()| scene.table_is_whole());
    scene.go_on_with_load();
    right?;
    scene.works()
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(60)..].join("\n")
}
