//! gRPC through Hairpin: grpcio at both ends.

use crate::lane;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::{grpc, web};
use hairpin_e2e::topology::{Topology, TopologyOptions};
use libtest_mimic::Trial;
use std::path::Path;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    let test = |name: &str, body: fn() -> Result<()>| lane::OWN.test(format!("https: {name}"), body);
    vec![
        test("gRPC, over TLS before and in clear text behind", tls_before),
        test("gRPC, in clear text before and over TLS behind", tls_behind),
    ]
}

const PORT: u16 = 443;
const NAME: &str = "web.test";
const PATIENCE: Duration = Duration::from_secs(20);
/// Calls of one client whose servers are counted.
const CALLS: usize = 40;

struct Scene {
    hairpin: Hairpin,
    servers: Vec<Process>,
    target: String,
    topology: Topology,
}

impl Scene {
    /// A service whose calls go to two servers of gRPC; over TLS with this certificate and key.
    fn start(service: PeerService, topology: Topology, tls: Option<&Path>) -> Result<Scene> {
        let servers = grpc::start(&topology, tls)?;
        let roots = tls.map(|file| format!("backend_tls = {{ roots = {file:?}, name = {NAME:?} }}\n"));
        let tables = format!("{}{}", service.tables, grpc::tables(&roots.unwrap_or_default()));
        let service = PeerService { servers: Vec::new(), tables, ..service };
        let hairpin = Hairpin::start(&topology, std::slice::from_ref(&service), &HairpinOptions::default())?;
        Ok(Scene { hairpin, servers, target: service.listen(), topology })
    }

    /// How often each server answered, if all calls are right; over TLS with this CA.
    fn ask(&self, tls: Option<&Path>) -> Result<String> {
        grpc::ask(&self.topology, &self.target, CALLS, tls.map(|certificate| (certificate, NAME)))
    }
}

/// Every kind of call, and whether calls of one channel are balanced one by one; then with one server alone.
fn all_calls(mut scene: Scene, tls: Option<&Path>) -> Result<()> {
    let said = scene.ask(tls)?;
    let half = CALLS / 2;
    ensure!(said == format!("server1={half} server2={half}"), "calls were answered so: {said}");
    scene.servers.pop().context("a server")?.stop()?;
    let is_down = || Ok(scene.hairpin.status_table()?.contains("down"));
    crate::https::eventually("a server that has ended is down", PATIENCE, is_down)?;
    let said = scene.ask(tls)?;
    ensure!(said == format!("server1={CALLS}"), "calls were answered so: {said}");
    Ok(())
}

fn tls_before() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let certificate = web::certificate(&topology, "web.pem", &[NAME])?;
    let scene = Scene::start(PeerService::https("web", PORT, &certificate), topology, None)?;
    all_calls(scene, Some(&certificate))
}

fn tls_behind() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let certificate = web::certificate(&topology, "server.pem", &[NAME])?;
    let tables = "[service.http]\nhttp2 = true\n".to_string();
    let service = PeerService { tables, ..PeerService::http("web", PORT) };
    let scene = Scene::start(service, topology, Some(&certificate))?;
    all_calls(scene, None)
}
