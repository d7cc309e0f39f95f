//! Two nodes that both have the VIP, between two routers that spread packets over them: examples/bird.

use super::network::{Network, Node, Plan, Port};
use super::traffic::{Traffic, new_connections};
use super::{is_installed, wait_until};
use crate::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::process::Process;
use hairpin_e2e::tool::{http, inside};
use hairpin_e2e::topology::SYSCTLS;
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

const HAIRPIN: &str = include_str!("../../../../../examples/bird/hairpin.toml");
const ANNOUNCE: &str = include_str!("../../../../../examples/bird/hairpin-announce");
const NODE: &str = include_str!("../../../../../examples/bird/node.conf");
const ROUTERS: [(&str, &str, &str); 2] = [
    (
        "outer",
        include_str!("../../../../../examples/bird/outer.conf"),
        include_str!("../../../../../examples/bird/outer.sysctl.conf"),
    ),
    (
        "inner",
        include_str!("../../../../../examples/bird/inner.conf"),
        include_str!("../../../../../examples/bird/inner.sysctl.conf"),
    ),
];
/// The example's interval times fall, less a check that may have failed just before.
const FALL: Duration = Duration::from_secs(8);
/// New connections to each VIP: that none of a hundred reaches one of two nodes will not happen by chance.
const CONNECTIONS: usize = 100;

pub(super) fn tests() -> Vec<Trial> {
    vec![
        test("availability: ecmp, two nodes, a restart moves nothing", both_serve),
        test("availability: ecmp, nodes leave, come back and die", nodes_leave),
        test("availability: ecmp, a node that lost one side leaves", one_sided),
    ]
}

fn vips() -> Result<Vec<SocketAddr>> {
    Ok(vec!["203.0.113.10:80".parse()?, "[2001:db8:113::10]:80".parse()?])
}

fn plan() -> Plan<'static> {
    Plan {
        configuration: HAIRPIN,
        client: Port {
            interface: "eth0",
            bridge: "clients",
            addresses: vec!["198.51.100.100/24".into(), "2001:db8:51::100/64".into()],
            routes: vec!["default via 198.51.100.1", "default via 2001:db8:51::1"],
        },
        node: |number| {
            let host = number + 1;
            let addresses = |v4: &str, v6: &str| vec![format!("{v4}.{host}/24"), format!("{v6}::{host}/64")];
            let port = |interface, bridge, addresses, routes| Port { interface, bridge, addresses, routes };
            let routes = vec!["10.0.2.0/24 via 10.0.1.1", "fd00:2::/64 via fd00:1::1"];
            vec![
                port(
                    "eth0",
                    "outside",
                    addresses("192.0.2", "2001:db8"),
                    vec!["default via 192.0.2.1", "default via 2001:db8::1"],
                ),
                port("eth1", "inside", addresses("10.0.1", "fd00:1"), routes),
            ]
        },
        server: |number| Port {
            interface: "eth0",
            bridge: "servers",
            addresses: vec![format!("10.0.2.1{number}/24"), format!("fd00:2::1{number}/64")],
            routes: vec!["default via 10.0.2.1", "default via fd00:2::1"],
        },
    }
}

/// A router's ports.
fn ports(router: &str) -> [Port<'static>; 2] {
    let port = |interface, bridge, v4: &str, v6: &str| Port {
        interface,
        bridge,
        addresses: vec![format!("{v4}/24"), format!("{v6}/64")],
        routes: vec![],
    };
    match router {
        "outer" => [
            port("clients", "clients", "198.51.100.1", "2001:db8:51::1"),
            port("nodes", "outside", "192.0.2.1", "2001:db8::1"),
        ],
        _ => [port("nodes", "inside", "10.0.1.1", "fd00:1::1"), port("servers", "servers", "10.0.2.1", "fd00:2::1")],
    }
}

/// The routers with their BIRDs, and the nodes with theirs. (Dropped in this order.)
struct Net {
    _birds: Vec<Process>,
    outer: Namespace,
    inner: Namespace,
    nodes: Network,
}

/// Everything, once both nodes are announced; `None` without BIRD.
fn start() -> Result<Option<Net>> {
    if !is_installed("bird", "bird2") {
        return Ok(None);
    }
    let mut nodes = Network::new(&plan())?;
    let mut routers = Vec::new();
    let mut birds = Vec::new();
    for (router, configuration, sysctl) in ROUTERS {
        let namespace = Namespace::create(&format!("{}-{router}", nodes.prefix))?;
        namespace.script(SYSCTLS)?;
        ports(router).iter().try_for_each(|port| nodes.switch.plug(&namespace, port))?;
        let file = nodes.scratch.write(&format!("{router}.sysctl"), sysctl)?;
        // Kernels before 6.11 have no seed; here all namespaces have the same random key then.
        namespace.script(&format!("sysctl --quiet --ignore --load={}\n", file.display()))?;
        let file = nodes.scratch.write(&format!("{router}.conf"), configuration)?;
        let mut bird = namespace.command("bird");
        bird.args(bird_arguments(&file, &nodes.scratch.file(format!("{router}.ctl"))));
        birds.push(namespace.start(bird, &nodes.scratch.file(format!("{router}.log")))?);
        routers.push(namespace);
    }
    for node in &mut nodes.nodes {
        node.namespace.script("ip address add 203.0.113.10/32 dev lo\nip address add 2001:db8:113::10/128 dev lo\n")?;
        let socket = node.scratch.file("bird.ctl");
        node.wrap("birdc", &format!("/usr/sbin/birdc -s {} \"$@\"", socket.display()))?;
        let file = node.scratch.write("bird.conf", NODE)?;
        node.daemon("bird", &bird_arguments(&file, &socket))?;
        node.scratch.write("hairpin-announce", ANNOUNCE)?;
        announce(node)?;
    }
    let inner = routers.pop().context("routers")?;
    let outer = routers.pop().context("routers")?;
    let mut net = Net { _birds: birds, outer, inner, nodes };
    let result = net.announced([true, true]).and_then(|()| net.nodes.await_health());
    let result = result.and_then(|()| net.nodes.await_service(&vips()?));
    net.nodes.judge(result)?;
    Ok(Some(net))
}

fn bird_arguments(file: &Path, socket: &Path) -> Vec<String> {
    let pid = socket.with_extension("pid");
    let files = [("-c", file), ("-s", socket), ("-P", &pid)];
    let files = files.iter().flat_map(|(option, path)| [(*option).to_owned(), path.display().to_string()]);
    std::iter::once("-f".to_owned()).chain(files).collect()
}

/// Starts the script that decides what a node announces.
fn announce(node: &mut Node) -> Result<()> {
    let script = node.scratch.file("hairpin-announce");
    node.daemon("sh", &[script.display().to_string()])
}

impl Net {
    /// Whether both routers have routes by way of these nodes and no others, for both families.
    fn routes_are(&self, nodes: [bool; 2]) -> Result<bool> {
        for (router, routes, next_hops) in [
            (&self.outer, "-4 route show 203.0.113.10", ["192.0.2.2", "192.0.2.3"]),
            (&self.outer, "-6 route show 2001:db8:113::10", ["2001:db8::2", "2001:db8::3"]),
            (&self.inner, "-4 route show default", ["10.0.1.2", "10.0.1.3"]),
            (&self.inner, "-6 route show default", ["fd00:1::2", "fd00:1::3"]),
        ] {
            let shown = router.script(&format!("ip {routes}\n"))?;
            let has = next_hops.map(|hop| shown.contains(&format!("via {hop} ")));
            if has != nodes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for that.
    fn announced(&self, nodes: [bool; 2]) -> Result<()> {
        wait_until(&format!("the routers have routes to {nodes:?}"), || self.routes_are(nodes))
    }

    fn traffic(&self) -> Result<Traffic> {
        Traffic::start(&self.nodes.client, &self.nodes.scratch, &vips()?)
    }

    fn new_connections(&self, count: usize) -> Result<()> {
        new_connections(&self.nodes.client, &self.nodes.scratch, &vips()?, count)
    }

    /// Runs a test's body.
    fn play(body: fn(&mut Net) -> Result<()>) -> Result<()> {
        let Some(mut net) = start()? else { return Ok(()) };
        let result = body(&mut net);
        net.nodes.judge(result)
    }
}

fn both_serve() -> Result<()> {
    Net::play(|net| {
        net.new_connections(CONNECTIONS)?;
        for node in &net.nodes.nodes {
            for service in ["web", "web6"] {
                let total = node.connections_total(service)?;
                ensure!(total > 0, "{service}: a node had no connection, of {CONNECTIONS}");
            }
        }
        let traffic = net.traffic()?;
        for signal in [Signal::SIGTERM, Signal::SIGKILL] {
            let begun = Instant::now();
            net.nodes.nodes[0].end_hairpin(signal)?;
            net.nodes.nodes[0].start_hairpin()?;
            let took = begun.elapsed();
            net.nodes.await_health()?;
            net.new_connections(10).with_context(|| format!("after {signal}"))?;
            ensure!(took > FALL || net.routes_are([true, true])?, "node 1 was withdrawn after {signal} and {took:?}");
        }
        traffic.judge()?;
        asymmetric(net)
    })
}

/// That all of this hangs on both routers' choosing alike: with another seed at one of them connections fail.
fn asymmetric(net: &Net) -> Result<()> {
    if net.inner.script("sysctl --quiet net.ipv4.fib_multipath_hash_seed\n").is_err() {
        println!("not tried on this kernel, which has no seed (Linux 6.11): routers that choose differently");
        return Ok(());
    }
    net.inner.script("sysctl -qw net.ipv4.fib_multipath_hash_seed=1\n")?;
    let to = vips()?[0];
    let failed = inside::run(&net.nodes.client, move || {
        let tries = (0..CONNECTIONS).map(|_| http::HttpConnection::open(to, Duration::from_secs(2)));
        Ok(tries.filter(|tried| tried.is_err()).take(1).count())
    })?;
    ensure!(failed > 0, "the routers choose differently, and all connections work");
    Ok(())
}

fn nodes_leave() -> Result<()> {
    Net::play(|net| {
        let traffic = net.traffic()?;
        net.nodes.nodes[0].end_hairpin(Signal::SIGKILL)?;
        net.announced([false, true]).context("Hairpin has ended, and does not come back")?;
        net.new_connections(10)?;
        traffic.judge().context("Hairpin has ended, and does not come back")?;

        let traffic = net.traffic()?;
        net.nodes.nodes[0].start_hairpin()?;
        net.announced([true, true]).context("Hairpin is back")?;
        net.new_connections(10)?;
        traffic.judge().context("Hairpin is back")?;

        let traffic = net.traffic()?;
        let mut script = net.nodes.nodes[1].daemons.pop().context("the script")?;
        script.stop()?;
        net.announced([true, false]).context("a node was withdrawn by hand")?;
        net.new_connections(10)?;
        traffic.judge().context("a node was withdrawn by hand")?;

        announce(&mut net.nodes.nodes[1])?;
        net.announced([true, true]).context("a node is announced again")?;
        let traffic = Traffic::start(&net.nodes.client, &net.nodes.scratch, &vips()?)?;
        net.nodes.nodes[1].cables("down")?;
        net.announced([true, false]).context("a node is dead")?;
        net.new_connections(10)?;
        traffic.judge().context("a node is dead")
    })
}

/// Half of the answers would go to a node that gets no questions.
fn one_sided() -> Result<()> {
    Net::play(|net| {
        let traffic = Traffic::start(&net.nodes.client, &net.nodes.scratch, &vips()?)?;
        net.nodes.nodes[0].namespace.script("ip link set dev eth0 down\n")?;
        net.announced([false, true]).context("a node has lost its outer side")?;
        net.new_connections(10)?;
        traffic.judge()
    })
}
