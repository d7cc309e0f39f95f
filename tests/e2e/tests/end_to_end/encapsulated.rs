//! Direct server return to servers that are hops away: packets are wrapped, and the servers unwrap them. Server1 is behind a
//! router, the others are on links of the balancer.

use crate::direct::{ECHO, NEVER, TIMEOUT, check, open, prepare, services, set_vips, start_echoes};
use crate::lane::skip;
use crate::network::{ATTACH_XDP, test};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::load::{self, Amount, IperfOptions};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, hairpin_program};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::{HTTP_PORT, IPERF_PORTS, Servers};
use hairpin_e2e::tool::{echo, inside};
use hairpin_e2e::topology::{Cards, Family, SERVERS, Topology, TopologyOptions, end, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("encapsulated: ipip down and up (gso)", || passes(Cards::Gso, IPIP, "")),
        test("encapsulated: ipip down and up (wire)", || passes(Cards::Wire, IPIP, "")),
        test("encapsulated: ipip down and up (xdp)", || passes(Cards::Xdp, IPIP, ATTACH_XDP)),
        test("encapsulated: ipip down and up (software)", || passes(Cards::Gso, IPIP, NEVER)),
        test("encapsulated: gue down and up (gso)", || passes(Cards::Gso, GUE, "")),
        test("encapsulated: gue down and up (wire)", || passes(Cards::Wire, GUE, "")),
        test("encapsulated: gue down and up (xdp)", || passes(Cards::Xdp, GUE, ATTACH_XDP)),
        test("encapsulated: gue down and up (software)", || passes(Cards::Gso, GUE, NEVER)),
        test("encapsulated: ipip in the other family (gso)", || passes(Cards::Gso, IPIP.mixed(), "")),
        test("encapsulated: gue in the other family (wire)", || passes(Cards::Wire, GUE.mixed(), "")),
        test("encapsulated: gue in the other family (xdp)", || passes(Cards::Xdp, GUE.mixed(), ATTACH_XDP)),
        test("encapsulated: ipip in the other family (software)", || passes(Cards::Gso, IPIP.mixed(), NEVER)),
        test("encapsulated: ipip to the kernel's tunnels", || kernel_tunnels(IPIP)),
        test("encapsulated: gue to the kernel's tunnels", || kernel_tunnels(GUE)),
        test("encapsulated: mixed ipip to the kernel's tunnels", || kernel_tunnels(IPIP.mixed())),
        test("encapsulated: mixed gue to the kernel's tunnels", || kernel_tunnels(GUE.mixed())),
        test("encapsulated: datagrams", datagrams),
        test("encapsulated: a second instance of checks is warned of", second),
        test("encapsulated: connections outlive kills", || outlives(GUE, IPIP)),
        test("encapsulated: mixed connections outlive kills", || outlives(IPIP.mixed(), GUE.mixed())),
        test("encapsulated: a server that unwraps nothing is down", unwraps_nothing),
        test("encapsulated: checks outlive their source address", source_goes),
        test("encapsulated: clients hear of the tunnel's MTU", narrow),
        test("encapsulated: clients hear of a router's MTU", narrow_behind_router),
    ]
}

/// How packets are wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tunnel {
    /// What the configuration calls it.
    pub(crate) kind: &'static str,
    /// Whether outer headers are of the other family than the VIP.
    pub(crate) is_mixed: bool,
}

const IPIP: Tunnel = Tunnel { kind: "ipip", is_mixed: false };
pub(crate) const GUE: Tunnel = Tunnel { kind: "gue", is_mixed: false };

impl Tunnel {
    /// This encapsulation, in outer headers of the other family.
    pub(crate) fn mixed(self) -> Tunnel {
        Tunnel { is_mixed: true, ..self }
    }

    /// The services, to servers whose addresses outer headers have.
    pub(crate) fn services(self, tables: &str) -> Vec<PeerService> {
        let services = services(tables).into_iter();
        services.map(|service| PeerService { is_mixed: self.is_mixed, ..service }).collect()
    }
}

/// A network whose servers have the VIP, and unwrap. (Dropped in this order.)
struct Scene {
    hairpin: Hairpin,
    openers: Vec<Process>,
    _servers: Servers,
    topology: Topology,
}

fn options(tunnel: Tunnel, tables: &str) -> HairpinOptions {
    let service = format!("mode = \"dsr\"\nencapsulation = \"{}\"", tunnel.kind);
    HairpinOptions { service, tables: tables.to_owned(), ..HairpinOptions::default() }
}

fn network(cards: Cards) -> Result<Topology> {
    let topology = Topology::create(TopologyOptions { cards, routers: true })?;
    prepare(&topology)?;
    Ok(topology)
}

/// A network for direct server return, the processes that unwrap packets in its servers, and the lines of its services'
/// configuration. `None`: packets go to neighbours, not wrapped.
pub(crate) fn prepared(cards: Cards, tunnel: Option<Tunnel>) -> Result<(Topology, Vec<Process>, String)> {
    let Some(Tunnel { kind, .. }) = tunnel else {
        let topology = Topology::create(TopologyOptions { cards, ..TopologyOptions::default() })?;
        prepare(&topology)?;
        return Ok((topology, Vec::new(), "mode = \"dsr\"".to_owned()));
    };
    let topology = network(cards)?;
    let openers = (1..=SERVERS).map(|server| start_opener(&topology, server)).collect::<Result<_>>()?;
    Ok((topology, openers, format!("mode = \"dsr\"\nencapsulation = \"{kind}\"")))
}

/// Has a server unwrap what is for the VIPs.
pub(crate) fn start_opener(topology: &Topology, server: usize) -> Result<Process> {
    let namespace = &topology.servers[server - 1];
    let program = hairpin_program()?;
    let mut command = namespace.command(program.to_str().context("the program's path is not text")?);
    let [v4, v6] = [Family::V4, Family::V6].map(vip);
    command.args([
        "decapsulate",
        "--interface",
        "eth0",
        "--vip",
        &format!("{v4},{v6}"),
        "--from",
        "10.0.0.0/8,fd00::/16",
    ]);
    let mut process = namespace.start(command, &topology.scratch.file(format!("decapsulate{server}.log")))?;
    let log = process.log_path().to_owned();
    process.wait_until(TIMEOUT, || std::fs::read_to_string(&log).is_ok_and(|text| text.contains("unwraps")))?;
    Ok(process)
}

impl Scene {
    fn start(cards: Cards, tunnel: Tunnel, tables: &str, of_services: &str) -> Result<Scene> {
        let topology = network(cards)?;
        let openers = (1..=SERVERS).map(|server| start_opener(&topology, server)).collect::<Result<_>>()?;
        Scene::with(topology, openers, tunnel, (tables, of_services))
    }

    fn with(
        topology: Topology,
        openers: Vec<Process>,
        tunnel: Tunnel,
        (tables, of_services): (&str, &str),
    ) -> Result<Scene> {
        let servers = Servers::start(&topology)?;
        let hairpin = Hairpin::start(&topology, &tunnel.services(of_services), &options(tunnel, tables))?;
        Ok(Scene { hairpin, openers, _servers: servers, topology })
    }

    /// Downloads and uploads of both families.
    fn transfer(&self) -> Result<()> {
        let expected = std::fs::read(self.topology.scratch.file("pages/10m"))?;
        for family in [Family::V4, Family::V6] {
            let mut seen = BTreeSet::new();
            // Each of the workers has the servers take turns.
            for number in 0..12 {
                let target = end(vip(family), HTTP_PORT);
                let page = load::curl(&self.topology.client, &self.topology, &target, "10m", "page")?;
                ensure!(std::fs::read(&page.body)? == expected, "download {number} by {} is damaged", family.name());
                seen.extend(page.header("x-server").map(str::to_owned));
            }
            ensure!(seen.len() == SERVERS, "by {}: {seen:?}", family.name());
            // Server1 alone, which is behind a router.
            let options = IperfOptions { amount: Amount::Megabytes(50), streams: 2, reverse: false, udp_mbit_s: None };
            let up = load::iperf(&self.topology, vip(family), IPERF_PORTS[0], &options)?;
            ensure!(up.bits_per_s > 0.0, "nothing arrived by {}", family.name());
        }
        Ok(())
    }

    fn event(&self, name: &str) -> Result<u64> {
        Ok(self.hairpin.status()?.events.get(name).map_or(0, |count| count.total))
    }

    fn await_state(&self, server: usize, state: &str) -> Result<()> {
        self.await_state_of(&["http4", "http6"], server, state)
    }

    fn await_state_of(&self, services: &[&str], server: usize, state: &str) -> Result<()> {
        let (start, name) = (Instant::now(), format!("server{server}"));
        for service in services {
            loop {
                let status = self.hairpin.status()?;
                let health = status.backend(service, &name).context("no such backend")?.health.clone();
                if health.state == state {
                    break;
                }
                ensure!(start.elapsed() < TIMEOUT, "{name} of {service} is not {state}: {health:?}");
                sleep(Duration::from_millis(50));
            }
        }
        Ok(())
    }
}

fn passes(cards: Cards, tunnel: Tunnel, tables: &str) -> Result<()> {
    let mut scene = Scene::start(cards, tunnel, tables, "")?;
    scene.transfer()?;
    let view = scene.hairpin.offload()?;
    ensure!((view.offloaded > 0) == (tables != NEVER), "{view:?}");
    if cards == Cards::Xdp {
        // Uploads of 50 MB by each family, in segments of 1,448 bytes at most. The status is as of the last second.
        sleep(Duration::from_millis(1500));
        let (sent, least) = (scene.event("kernel.xdp-sent")?, 100_000_000 / 1448);
        ensure!(sent > least * 9 / 10, "{sent} packets were sent from XDP, of {least} at least");
    }
    let status = scene.hairpin.status()?;
    let service = status.service("http4").context("no such service")?;
    ensure!(service.encapsulation.as_deref() == Some(tunnel.kind), "the status says {:?}", service.encapsulation);
    ensure!(scene.event("kernel.not-encapsulated")? == 0, "some packets were not encapsulated");
    for opener in &mut scene.openers {
        ensure!(opener.stop()?.success(), "{}", opener.log());
        ensure!(opener.log().contains("packets: unwrapped"), "{}", opener.log());
    }
    // Nothing is left of the program.
    let left = scene.topology.servers[0].script("tc filter show dev eth0 ingress\n")?;
    ensure!(!left.contains("hairpin"), "{left}");
    let links = |scene: &Scene| scene.topology.balancer.script("ip link show\n");
    let device = format!("hp-{}-hc", scene.hairpin.instance());
    ensure!(links(&scene)?.contains(&device) == tunnel.is_mixed, "the device of health checks: {}", links(&scene)?);
    scene.hairpin.stop(true)?;
    ensure!(!links(&scene)?.contains("hp-"), "devices are left: {}", links(&scene)?);
    Ok(())
}

/// The kernel's tunnels in a server, as the guide has it.
fn tunnels(topology: &Topology, server: usize, tunnel: Tunnel) -> Result<()> {
    let namespace = &topology.servers[server - 1];
    namespace.script(
        "ip link add ipip0 type ipip external\nip link set ipip0 up\n\
         ip link add ipip60 type ip6tnl external\nip link set ipip60 up\n",
    )?;
    if tunnel.is_mixed {
        // The one that the module makes takes packets from any sender.
        namespace.script("ip link set sit0 up\n")?;
    }
    if tunnel.kind == GUE.kind {
        namespace.script("ip fou add port 6080 gue\nip -6 fou add port 6080 gue\n")?;
    }
    Ok(())
}

fn kernel_tunnels(tunnel: Tunnel) -> Result<()> {
    let topology = network(Cards::Gso)?;
    // Modules are the machine's, whatever the network namespace.
    topology.servers[0].script("for module in ipip ip6_tunnel sit fou fou6; do modprobe -q $module || true; done\n")?;
    for server in 1..=SERVERS {
        if let Err(error) = tunnels(&topology, server, tunnel) {
            skip(format!("this kernel has no such tunnels (ipip, ip6_tunnel, sit, fou, fou6): {error:#}"));
            return Ok(());
        }
    }
    Scene::with(topology, Vec::new(), tunnel, ("", ""))?.transfer()
}

fn datagrams() -> Result<()> {
    for tunnel in [IPIP, GUE, IPIP.mixed(), GUE.mixed()] {
        let scene = Scene::start(Cards::Gso, tunnel, "", "")?;
        let done = Arc::new(AtomicBool::new(false));
        let echoes = start_echoes(&scene.topology, &done);
        sleep(Duration::from_millis(200));
        for family in [Family::V4, Family::V6] {
            let to = SocketAddr::new(vip(family), ECHO);
            // A machine that is busy with other work answers few in a second, and may lose some.
            let (mut answered, mut rounds) = (0, 0);
            while answered < 200 {
                let asked = echo::ask(&scene.topology.client, &[to], 0, 40, 100, Duration::from_secs(1))?;
                ensure!(
                    asked.wrong == 0 && rounds < 60,
                    "{tunnel:?} by {}: {answered} so far, {asked:?}",
                    family.name()
                );
                answered += asked.answered;
                rounds += 1;
            }
        }
        done.store(true, Ordering::Relaxed);
        let answered: Vec<u64> = echoes.into_iter().map(inside::join).collect::<Result<_>>()?;
        ensure!(answered.iter().all(|&count| count > 0), "{tunnel:?}: the servers have answered {answered:?}");
    }
    Ok(())
}

/// Checks of backends of another family use one device of the network namespace, which the first instance has.
fn second() -> Result<()> {
    let scene = Scene::start(Cards::Gso, IPIP.mixed(), "", "")?;
    let first = scene.hairpin.instance();
    let other = format!("{first}x");
    let mut text =
        std::fs::read_to_string(scene.hairpin.file())?.replace(&format!("\"{first}\""), &format!("\"{other}\""));
    for (family, vip_of_other) in [(Family::V4, "10.0.100.9"), (Family::V6, "fd00:100::9")] {
        text = text.replace(&vip(family).to_string(), vip_of_other);
    }
    let file = scene.topology.scratch.file("second.toml");
    std::fs::write(&file, text)?;
    let program = hairpin_program()?;
    let mut command = scene.topology.balancer.command(&program.to_string_lossy());
    command.args(["run", "--config"]).arg(&file);
    let log = scene.topology.scratch.file("second.log");
    let mut process = scene.topology.balancer.start(command, &log)?;
    let expected = format!("another instance has hp-{first}-hc");
    let start = Instant::now();
    while !process.log().contains(&expected) {
        process.check()?;
        ensure!(start.elapsed() < TIMEOUT, "no warning: {}", process.log());
        sleep(Duration::from_millis(100));
    }
    // Removes what it has made.
    process.signal(Signal::SIGINT);
    process.wait(TIMEOUT)?;
    Ok(())
}

fn outlives(tunnel: Tunnel, other: Tunnel) -> Result<()> {
    let mut scene = Scene::start(Cards::Gso, tunnel, "", "")?;
    let mut open = open(&scene.topology)?;
    scene.hairpin.end(Signal::SIGKILL)?;
    check(&mut open, "without a process")?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    check(&mut open, "after a kill")?;
    // The other encapsulation is in force at once, for open connections too.
    scene.hairpin.configure(&scene.topology, &other.services(""), &options(other, ""))?;
    let said = scene.hairpin.tell(&scene.topology, &["reload"])?;
    ensure!(said.contains("encapsulation: ") && said.contains(&format!("-> {}", other.kind)), "{said}");
    check(&mut open, "after a reload")
}

/// Health checks that notice within half a second.
const QUICK_CHECKS: &str = "[service.health]\ncheck = \"http\"\npath = \"/health\"\ninterval = \"200ms\"\n\
                            timeout = \"150ms\"\nfall = 2\nrise = 1\n";

fn unwraps_nothing() -> Result<()> {
    for tunnel in [IPIP, GUE, GUE.mixed()] {
        let mut scene = Scene::start(Cards::Gso, tunnel, "", QUICK_CHECKS)?;
        (1..=SERVERS).try_for_each(|server| scene.await_state(server, "up"))?;
        // Server1 is behind a router, server2 is not.
        for server in [1, 2] {
            scene.openers[server - 1].stop()?;
            scene.await_state(server, "down")?;
            scene.openers[server - 1] = start_opener(&scene.topology, server)?;
            scene.await_state(server, "up")?;
        }
        set_vips(&scene.topology, 2, "del")?;
        scene.await_state(2, "down")?;
        set_vips(&scene.topology, 2, "add")?;
        scene.await_state(2, "up")?;
    }
    Ok(())
}

/// The kernel removes an IPv4 route with the source address that it names. The one to the device of health checks comes back
/// with another source.
fn source_goes() -> Result<()> {
    let scene = Scene::start(Cards::Gso, IPIP.mixed(), "", QUICK_CHECKS)?;
    (1..=SERVERS).try_for_each(|server| scene.await_state(server, "up"))?;
    let device = format!("hp-{}-hc", scene.hairpin.instance());
    let routes = || scene.topology.balancer.script(&format!("ip -4 route show dev {device}\n"));
    let before = routes()?;
    let mut words = before.split_whitespace().skip_while(|word| *word != "src");
    let source = words.nth(1).with_context(|| format!("the route names no source: {before}"))?;
    scene
        .topology
        .balancer
        .script(&format!("set -- $(ip -4 -oneline address show to {source})\nip address del \"$4\" dev \"$2\"\n"))?;
    let names = |text: &str| text.split_whitespace().any(|word| word == source);
    ensure!(!names(&routes()?), "the kernel keeps the route: {}", routes()?);
    let start = Instant::now();
    // Routes are looked at every ten seconds.
    while routes()?.is_empty() {
        ensure!(start.elapsed() < 3 * TIMEOUT, "the route to {device} has not come back");
        sleep(Duration::from_millis(100));
    }
    ensure!(!names(&routes()?), "the route names a source that is gone: {}", routes()?);
    // The address may have been that of the network of a server, which is http6's.
    (1..=SERVERS).try_for_each(|server| scene.await_state_of(&["http4"], server, "up"))
}

/// The balancer tells the client how long its packets may be: by as much shorter as the outer headers are long.
fn narrow() -> Result<()> {
    let cases = [
        (IPIP, "", [1480, 1460]),
        (GUE, "", [1472, 1452]),
        (GUE, NEVER, [1472, 1452]),
        (IPIP.mixed(), "", [1460, 1480]),
    ];
    for (tunnel, tables, mtus) in cases {
        let scene = Scene::start(Cards::Gso, tunnel, tables, "")?;
        learns(&scene, mtus).with_context(|| format!("{tunnel:?} {tables}"))?;
    }
    Ok(())
}

/// Uploads to server1 end, and the client has learnt the MTUs of the VIPs, by family.
fn learns(scene: &Scene, mtus: [u16; 2]) -> Result<()> {
    for (family, mtu) in [Family::V4, Family::V6].into_iter().zip(mtus) {
        let options = IperfOptions { amount: Amount::Megabytes(20), streams: 1, reverse: false, udp_mbit_s: None };
        load::iperf(&scene.topology, vip(family), IPERF_PORTS[0], &options)?;
        let option = if family == Family::V4 { "-4" } else { "-6" };
        let learnt = scene.topology.client.script(&format!("ip {option} route get {}\n", vip(family)))?;
        ensure!(learnt.contains(&format!("mtu {mtu}")), "the client has learnt {learnt}");
    }
    Ok(())
}

/// The router before server1 has a narrower link than the balancer, and says so to the balancer, which tells the client.
fn narrow_behind_router() -> Result<()> {
    let cases = [
        (IPIP, "", [1380, 1360]),
        (GUE, "", [1372, 1352]),
        (GUE, NEVER, [1372, 1352]),
        (IPIP.mixed(), "", [1360, 1380]),
    ];
    for (tunnel, tables, mtus) in cases {
        let scene = Scene::start(Cards::Gso, tunnel, tables, "")?;
        let (_, router) = scene.topology.routers.as_ref().context("there are no routers")?;
        router.script("ip link set dev inner mtu 1400\n")?;
        learns(&scene, mtus).with_context(|| format!("{tunnel:?} {tables}"))?;
        // The kernel refuses what is longer only for as long as it remembers.
        scene.topology.forget_path_mtus()?;
        learns(&scene, mtus).with_context(|| format!("{tunnel:?} {tables}, once more"))?;
    }
    Ok(())
}
