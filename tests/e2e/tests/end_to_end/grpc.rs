//! gRPC through Hairpin: grpcio at both ends.

use crate::lane;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::{listening, web};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, end, server_address, vip};
use libtest_mimic::Trial;
use std::path::PathBuf;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    let test = |name: &str, body: fn() -> Result<()>| lane::OWN.test(format!("https: {name}"), body);
    vec![
        test("gRPC, over TLS before and in clear text behind", tls_before),
        test("gRPC, in clear text before and over TLS behind", tls_behind),
    ]
}

const PORT: u16 = 443;
const SERVER_PORT: u16 = 50_051;
const PATIENCE: Duration = Duration::from_secs(20);
/// Calls of one client whose servers are counted.
const CALLS: usize = 40;

struct Scene {
    hairpin: Hairpin,
    servers: Vec<Process>,
    topology: Topology,
    script: PathBuf,
}

impl Scene {
    /// A service whose calls go to two servers of gRPC; over TLS with this certificate and key.
    fn start(service: PeerService, topology: Topology, tls: Option<&PathBuf>) -> Result<Scene> {
        let script = topology.scratch.write("grpc_calls.py", include_str!("grpc_calls.py"))?;
        let mut servers = Vec::new();
        for number in [1, 2] {
            let namespace = &topology.servers[number - 1];
            let mut python = namespace.command(web::PYTHON);
            python.arg(&script).arg("serve").arg(end(server_address(Family::V4, number), SERVER_PORT));
            python.arg(format!("server{number}")).args(tls);
            let mut process = namespace.start(python, &topology.scratch.file(format!("grpc-{number}.log")))?;
            process.wait_until(PATIENCE, || listening(namespace.name(), &[SERVER_PORT]))?;
            servers.push(process);
        }
        let backends = [1, 2].map(|number| format!("{:?}", end(server_address(Family::V4, number), SERVER_PORT)));
        let roots = tls.map(|file| format!("backend_tls = {{ roots = {file:?}, name = \"web.test\" }}\n"));
        let group = format!(
            "[[service.group]]\nname = \"cart\"\nbackend_protocol = \"h2\"\nbackends = [{}]\n{}\
             health = {{ check = \"grpc\", interval = \"200ms\", timeout = \"200ms\" }}\n\
             [[service.route]]\npath_prefix = \"/shop.Cart/\"\ngroup = \"cart\"\n",
            backends.join(", "),
            roots.unwrap_or_default()
        );
        let service = PeerService { servers: Vec::new(), tables: format!("{}{group}", service.tables), ..service };
        let hairpin = Hairpin::start(&topology, &[service], &HairpinOptions::default())?;
        Ok(Scene { hairpin, servers, topology, script })
    }

    /// What the client says of its calls, all of which must be right; over TLS with this CA.
    fn ask(&self, tls: Option<&PathBuf>) -> Result<String> {
        let mut python = self.topology.client.command(web::PYTHON);
        python.arg(&self.script).arg("ask").arg(end(vip(Family::V4), PORT)).arg(CALLS.to_string()).args(tls);
        command::output(&mut python)
    }
}

/// Every kind of call, and whether calls of one channel are balanced one by one; then with one server alone.
fn all_calls(mut scene: Scene, tls: Option<&PathBuf>) -> Result<()> {
    let said = scene.ask(tls)?;
    let half = CALLS / 2;
    ensure!(said.trim() == format!("server1={half} server2={half}"), "calls were answered so: {said}");
    scene.servers.pop().context("a server")?.stop()?;
    let is_down = || Ok(scene.hairpin.status_table()?.contains("down"));
    crate::https::eventually("a server that has ended is down", PATIENCE, is_down)?;
    let said = scene.ask(tls)?;
    ensure!(said.trim() == format!("server1={CALLS}"), "calls were answered so: {said}");
    Ok(())
}

fn tls_before() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let certificate = web::certificate(&topology, "web.pem", &["web.test"])?;
    let scene = Scene::start(PeerService::https("web", PORT, &certificate), topology, None)?;
    all_calls(scene, Some(&certificate))
}

fn tls_behind() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let certificate = web::certificate(&topology, "server.pem", &["web.test"])?;
    let tables = "[service.http]\nhttp2 = true\n".to_string();
    let service = PeerService { tables, ..PeerService::http("web", PORT) };
    let scene = Scene::start(service, topology, Some(&certificate))?;
    all_calls(scene, None)
}
