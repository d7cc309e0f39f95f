//! Automatic certificates, by Pebble, a real ACME server: both challenges, renewal, restart, upgrade, a CA that is away.

use crate::lane;
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, TransportProtocol, rebuilt_program};
use hairpin_e2e::servers::pebble::{self, Pebble};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    let test = |name: &str, body: fn() -> Result<()>| {
        lane::OWN.test(format!("acme: {name}"), move || match pebble::program() {
            Some(_) => body(),
            None => {
                lane::skip("there is no Pebble (apt-get install pebble, or HAIRPIN_PEBBLE)");
                Ok(())
            }
        })
    };
    vec![
        test("http-01, served, renewed, kept by a restart", http_01),
        test("tls-alpn-01, and an upgrade keeps it", tls_alpn_01),
        test("a CA that is away is tried again", away),
        test("a CA that has lost its accounts gets another", forgetful),
    ]
}

const NAMES: [&str; 2] = ["web.test", "www.web.test"];
const PATIENCE: Duration = Duration::from_secs(60);
const STEP: Duration = Duration::from_millis(200);

struct Scene {
    hairpin: Hairpin,
    _servers: Servers,
    state: PathBuf,
    topology: Topology,
}

/// A service whose clients are sent to HTTPS, and most of which may not even ask.
fn plain() -> PeerService {
    let tables = "[service.http]\nredirect_to_https = true\n[[service.access]]\naction = \"deny\"\n".to_owned();
    PeerService { servers: Vec::new(), tables, ..PeerService::http("plain", 80) }
}

fn secure() -> PeerService {
    let tables = format!("[service.https]\nacme = {NAMES:?}\n");
    let service = PeerService { server_port: HTTP_PORT, tables, ..PeerService::http("web", 443) };
    PeerService { transport: TransportProtocol::Https, ..service }
}

impl Scene {
    fn start(topology: Topology, services: &[PeerService]) -> Result<Scene> {
        let servers = Servers::start(&topology)?;
        let state = topology.scratch.file("acme");
        let tables = format!(
            "[acme]\nterms_agreed = true\ncontact = \"admin@web.test\"\ndirectory = {:?}\ndirectory_roots = {:?}\nstate = {state:?}\n",
            pebble::directory(),
            pebble::server_certificate(&topology)?
        );
        let options = HairpinOptions { tables, ..HairpinOptions::default() };
        let hairpin = Hairpin::start(&topology, services, &options)?;
        Ok(Scene { hairpin, _servers: servers, state, topology })
    }

    /// The status of a page that curl gets over TLS by this root; none: it verifies nothing.
    fn get(&self, name: &str, root: Option<&Path>) -> Result<String> {
        let mut curl = self.topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--max-time", "10", "--output", "/dev/null"]);
        curl.args(["--write-out", "%{http_code}", "--resolve", &format!("{name}:443:{}", vip(Family::V4))]);
        match root {
            Some(root) => curl.arg("--cacert").arg(root),
            None => curl.arg("--insecure"),
        };
        command::output(curl.arg(format!("https://{name}/1k")))
    }

    fn serial(&self, name: &str) -> Result<String> {
        let vip = vip(Family::V4);
        let served = format!("openssl s_client -connect {vip}:443 -servername {name} </dev/null 2>/dev/null");
        self.topology.client.script(&format!("{served} | openssl x509 -noout -serial"))
    }

    fn acme(&self) -> Result<Value> {
        let status = self.hairpin.tell(&self.topology, &["status", "-o", "json"])?;
        let status: Value = serde_json::from_str(&status)?;
        Ok(status["acme"].clone())
    }

    /// Waits until clients that know Pebble's root are served all names.
    fn await_served(&self, pebble: &Pebble) -> Result<PathBuf> {
        let root = pebble.root(&self.topology)?;
        self.until("no certificate is served", || {
            Ok(NAMES.iter().all(|name| self.get(name, Some(&root)).is_ok_and(|status| status == "200")))
        })?;
        Ok(root)
    }

    fn until(&self, what: &str, mut is_so: impl FnMut() -> Result<bool>) -> Result<()> {
        let until = Instant::now() + 2 * PATIENCE;
        while !is_so()? {
            if Instant::now() > until {
                let said = std::fs::read_to_string(pebble::log(&self.topology)).unwrap_or_default();
                bail!("{what}; acme is {}; log: {}; Pebble's log: {said}", self.acme()?, self.hairpin.logs());
            }
            sleep(STEP);
        }
        Ok(())
    }

    fn account(&self) -> Result<(PathBuf, String)> {
        let find = format!("find {} -name account.json", self.state.display());
        let found = self.topology.client.script(&find)?;
        ensure!(found.lines().count() == 1, "accounts: {found}");
        let file = PathBuf::from(found.trim());
        Ok((file.clone(), std::fs::read_to_string(&file)?))
    }
}

fn topology() -> Result<Topology> {
    Topology::create(TopologyOptions::default())
}

fn http_01() -> Result<()> {
    const VALIDITY_S: u32 = 45;
    let topology = topology()?;
    let pebble = Pebble::start(&topology, &NAMES, VALIDITY_S)?;
    let mut scene = Scene::start(topology, &[plain(), secure()])?;
    ensure!(scene.get(NAMES[0], None)? == "200", "it does not serve before it has a certificate");
    scene.await_served(&pebble)?;
    let acme = scene.acme()?;
    ensure!(acme["names"][0]["challenge"] == "http-01" && acme["names"][0]["state"] == "held", "{acme}");
    let status = scene.hairpin.status_table()?;
    ensure!(status.contains("automatic certificates by") && status.contains("web.test"), "{status}");

    let (file, account) = scene.account()?;
    let keys = scene.topology.client.script(&format!("find {} -type f -perm /077", scene.state.display()))?;
    let mode = std::fs::metadata(file.parent().context("no parent")?)?.permissions().mode() & 0o777;
    ensure!(keys.is_empty() && mode == 0o700, "others may read {keys}, mode {mode:o}");

    // Another process goes on with what there is: no other account, no other order.
    let serial = scene.serial(NAMES[0])?;
    scene.hairpin.end(Signal::SIGTERM)?;
    let topology = &scene.topology;
    scene.hairpin.start_again(topology, &[])?;
    ensure!(scene.serial(NAMES[0])? == serial, "a restart has changed the certificate");

    scene.until("it is not renewed", || Ok(scene.serial(NAMES[0])? != serial))?;
    scene.await_served(&pebble)?;
    ensure!(scene.account()?.1 == account, "there is another account");
    let log = scene.hairpin.logs();
    ensure!(log.matches("made the account").count() == 1, "{log}");
    Ok(())
}

fn tls_alpn_01() -> Result<()> {
    let topology = topology()?;
    let pebble = Pebble::start(&topology, &NAMES, 86_400)?;
    let mut scene = Scene::start(topology, &[secure()])?;
    scene.await_served(&pebble)?;
    let acme = scene.acme()?;
    ensure!(acme["names"][0]["challenge"] == "tls-alpn-01", "{acme}");
    let (serial, account) = (scene.serial(NAMES[0])?, scene.account()?);
    let program = rebuilt_program(&scene.topology, 1)?;
    scene.hairpin.upgrade(&scene.topology, &program)?;
    let root = scene.await_served(&pebble)?;
    scene.until("the new process does not look after certificates", || {
        Ok(scene.acme()?["names"][1]["state"] == "held")
    })?;
    ensure!(scene.serial(NAMES[0])? == serial && scene.account()? == account, "the upgrade has changed something");
    ensure!(scene.acme()?["obtained_total"] == 0, "{}", scene.acme()?);
    // Outside of a challenge no client is given that protocol.
    let offered = format!("openssl s_client -connect {}:443 -alpn acme-tls/1 </dev/null 2>&1 || true", vip(Family::V4));
    let said = scene.topology.client.script(&offered)?;
    ensure!(said.contains("no application protocol") || said.contains("alert"), "{said}");
    ensure!(scene.get(NAMES[1], Some(&root))? == "200", "www.web.test is not served");
    Ok(())
}

fn away() -> Result<()> {
    let scene = Scene::start(topology()?, &[plain(), secure()])?;
    scene.until("its failure is not shown", || Ok(scene.acme()?["failed_total"] == 1))?;
    let acme = scene.acme()?;
    ensure!(acme["error"].as_str().is_some_and(|error| error.contains("cannot connect to")), "{acme}");
    ensure!(scene.get(NAMES[0], None)? == "200", "it does not serve without the CA");
    // It is not tried again before a minute is over, and then it works.
    let pebble = Pebble::start(&scene.topology, &NAMES, 86_400)?;
    ensure!(scene.acme()?["failed_total"] == 1, "{acme}");
    scene.await_served(&pebble)?;
    scene.until("the failure is still shown", || Ok(scene.acme()?["error"] == ""))
}

/// Pebble keeps its accounts in memory, so another process of it knows none.
fn forgetful() -> Result<()> {
    let topology = topology()?;
    let pebble = Pebble::start(&topology, &NAMES, 86_400)?;
    let mut scene = Scene::start(topology, &[plain(), secure()])?;
    scene.await_served(&pebble)?;
    let (file, first) = scene.account()?;
    drop(pebble);
    let pebble = Pebble::start(&scene.topology, &NAMES, 86_400)?;
    // Both certificates are gone, so both names are ordered again, by an account that the CA does not know.
    scene.hairpin.end(Signal::SIGTERM)?;
    scene.topology.client.script(&format!("find {} -name '*.pem' -delete", scene.state.display()))?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    scene.await_served(&pebble)?;
    let (_, second) = scene.account()?;
    ensure!(first != second, "the account is still {first}");
    let aside = std::fs::read_to_string(file.with_extension("json.unknown"))?;
    ensure!(aside == first, "the old account was not put aside: {aside}");
    ensure!(scene.hairpin.logs().contains("does not know the account"), "the log does not say so");
    Ok(())
}
