//! Which backends requests and connections get: by what requests say, by how soon backends answer; backups;
//! outliers; limits.

use crate::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::{Process, patience};
use hairpin_e2e::servers::{HTTP_PORT, Servers, WELL, listening, web};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, end, server_address, vip};
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("backends: chosen by field, cookie and path", by_parts_of_requests),
        test("backends: a slow one is left", least_latency),
        test("backends: backups serve while no other does", backups),
        test("backends: those that fail or are slow are ejected", outliers),
        test("backends: limits refuse, and queues wait", limits),
    ]
}

const NAME: &str = "web.test";
const HTTPS_PORT: u16 = 443;
/// The slow server's port, on server4.
const SLOW_PORT: u16 = 8098;

/// An HTTP service, spliced, and an HTTPS service, terminated.
struct Scene {
    hairpin: Hairpin,
    servers: Servers,
    certificate: PathBuf,
    services: Vec<PeerService>,
    topology: Topology,
}

impl Scene {
    /// `lines`: of each service; `tables`: behind its backends.
    fn start(balance: &'static str, lines: &str, servers: &[usize], tables: &str) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions::default())?;
        let running = Servers::start(&topology)?;
        let certificate = web::certificate(&topology, "web.pem", &[NAME])?;
        let services = [PeerService::http("plain", HTTP_PORT), PeerService::https("tls", HTTPS_PORT, &certificate)];
        let services = services.map(|service| PeerService {
            balance,
            servers: servers.to_vec(),
            tables: format!("{tables}[service.http]\nserver_timing = true\n{}", service.tables),
            ..service
        });
        let services = services.to_vec();
        let options = HairpinOptions { service: lines.to_owned(), ..HairpinOptions::default() };
        let hairpin = Hairpin::start(&topology, &services, &options)?;
        Ok(Scene { hairpin, servers: running, certificate, services, topology })
    }

    fn reload(&mut self, balance: &'static str, lines: &str) -> Result<()> {
        self.services.iter_mut().for_each(|service| service.balance = balance);
        let options = HairpinOptions { service: lines.to_owned(), ..HairpinOptions::default() };
        self.hairpin.configure(&self.topology, &self.services, &options)?;
        self.hairpin.tell(&self.topology, &["reload"]).map(drop)
    }

    /// The status of a response, and the backend that it is from.
    fn ask(&self, scheme: &str, path: &str, field: &str) -> Result<(String, String)> {
        let port = if scheme == "https" { HTTPS_PORT } else { HTTP_PORT };
        let mut curl = self.topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20", "--output", "/dev/null", "--dump-header", "-"]);
        curl.arg("--cacert").arg(&self.certificate);
        curl.args(["--resolve", &format!("{NAME}:{port}:{}", vip(Family::V4)), "--header", field]);
        let head = command::output(curl.arg(format!("{scheme}://{NAME}/{path}")))?;
        let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let named = head.lines().find_map(|line| line.split_once("desc=\""));
        let backend = named.and_then(|(_, name)| name.split('"').next()).unwrap_or_default();
        Ok((status, backend.to_owned()))
    }

    /// The ejections of a backend of the service at this place, as status has them.
    fn ejection(&self, service: usize, backend: &str) -> Result<Value> {
        let status: Value = serde_json::from_str(&self.hairpin.tell(&self.topology, &["status", "-o", "json"])?)?;
        let all = status["services"][service]["backends"].as_array().context("no backends")?;
        let one = all.iter().find(|have| have["name"] == backend).with_context(|| format!("no {backend}: {status}"))?;
        Ok(one["ejection"].clone())
    }

    fn backend(&self, scheme: &str, path: &str, field: &str) -> Result<String> {
        let (_, backend) = self.ask(scheme, path, field)?;
        ensure!(!backend.is_empty(), "no backend answered {scheme} {path} {field}\n{}", self.hairpin.logs());
        Ok(backend)
    }
}

type PartOf = fn(usize, usize) -> (String, String);

/// Path and field of a request whose part has value `i`, and whose other parts differ by `other`.
const PARTS: [(&str, &str, PartOf); 3] = [
    ("header-hash", "hash_name = \"X-Tenant\"\n", |i, other| (format!("{other}"), format!("x-tenant: t{i}"))),
    ("cookie-hash", "hash_name = \"user\"\n", |i, other| (format!("{other}"), format!("Cookie: a={other}; user=u{i}"))),
    ("path-hash", "", |i, other| (format!("page/{i}?v={other}"), format!("X-Other: {other}"))),
];
/// Values that are tried.
const VALUES: usize = 16;

fn by_parts_of_requests() -> Result<()> {
    let mut scene = Scene::start("round-robin", "", &[1, 2, 3, 4], "")?;
    for (balance, lines, part) in PARTS {
        scene.reload(balance, lines)?;
        let backends = |scene: &Scene| -> Result<Vec<String>> {
            let of = |i| {
                let mut met = BTreeSet::new();
                for (other, scheme) in ["http", "https", "http"].into_iter().enumerate() {
                    let (path, field) = part(i, other);
                    met.insert(scene.backend(scheme, &path, &field)?);
                }
                ensure!(met.len() == 1, "{balance}: value {i} met {met:?}");
                met.pop_first().context("no backend")
            };
            (0..VALUES).map(of).collect()
        };
        let before = backends(&scene)?;
        // That two of four get all of 16 values has a chance of 6 in 2^16.
        ensure!(BTreeSet::from_iter(&before).len() >= 3, "{balance}: {before:?}");
        for service in ["plain", "tls"] {
            scene.hairpin.tell(&scene.topology, &["backend", "drain", service, "server1"])?;
        }
        let after = backends(&scene)?;
        ensure!(!after.iter().any(|backend| backend == "server1"), "{balance}: {after:?}");
        // The drained backend has no entries any more, so that a few of the others' are given anew, too.
        let moved = before.iter().zip(&after).filter(|(was, is)| *was != "server1" && was != is).count();
        ensure!(moved <= 2, "{balance}: {moved} values moved for nothing: {before:?}, {after:?}");
        for service in ["plain", "tls"] {
            scene.hairpin.tell(&scene.topology, &["backend", "reset", service, "server1"])?;
        }
    }
    scene.servers.check()?;
    scene.hairpin.process().check()
}

/// Answers GET after 300 ms, and those of `/500` at once, with that status.
const SLOW: &str = "\
import http.server, sys, time
class Slow(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        fails = self.path.startswith('/500')
        time.sleep(0 if fails else 0.3)
        self.send_response(500 if fails else 200)
        self.send_header('Content-Length', '0')
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(('', int(sys.argv[1])), Slow).serve_forever()
";

fn slow_server(topology: &Topology) -> Result<Process> {
    let namespace = &topology.servers[3];
    let mut python = namespace.command(web::PYTHON);
    python.arg(topology.scratch.write("slow.py", SLOW)?).arg(SLOW_PORT.to_string());
    let mut process = namespace.start(python, &topology.scratch.file("slow.log"))?;
    process.wait_until(patience(Duration::from_secs(10)), || listening(namespace.name(), &[SLOW_PORT]))?;
    Ok(process)
}

/// A `[[service.backend]]` with more fields.
fn backend_table(name: &str, server: usize, port: u16, fields: &str) -> String {
    let address = end(server_address(Family::V4, server), port);
    format!("[[service.backend]]\nname = \"{name}\"\naddress = \"{address}\"\n{fields}")
}

fn least_latency() -> Result<()> {
    let mut scene = Scene::start("least-latency", "", &[1, 2], &backend_table("slow", 4, SLOW_PORT, ""))?;
    let mut slow = slow_server(&scene.topology)?;
    for scheme in ["http", "https"] {
        let mut met: BTreeMap<String, usize> = BTreeMap::new();
        for i in 0..60 {
            let (status, backend) = scene.ask(scheme, "1k", "X-A: b")?;
            ensure!(status == "200", "{scheme}: request {i} met {status}");
            *met.entry(backend).or_default() += 1;
        }
        // In turns it would get 20.
        ensure!((1..=4).contains(&met.get("slow").copied().unwrap_or(0)), "{scheme}: {met:?}");
        ensure!(met.len() == 3, "{scheme}: {met:?}");
    }
    slow.check()?;
    scene.hairpin.process().check()
}

/// Which servers answer requests of a client, a connection each.
fn answers(topology: &Topology, url: &str) -> Result<BTreeSet<String>> {
    let ask = |_| {
        let mut curl = topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20", "--output", "/dev/null", "--dump-header", "-"]);
        let head = command::output(curl.arg(url))?;
        let server = head.lines().find_map(|line| line.strip_prefix("X-Server: "));
        Ok(server.with_context(|| format!("no server in {head:?}"))?.trim().to_owned())
    };
    (0..8).map(ask).collect()
}

fn backups() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let mut servers = Servers::start(&topology)?;
    let spare = backend_table("spare", 3, HTTP_PORT, "backup = true\n");
    let health =
        "[service.health]\ncheck = \"http\"\npath = \"/health\"\ninterval = \"200ms\"\ntimeout = \"200ms\"\nfall = 2\n";
    let tcp = PeerService { server_port: HTTP_PORT, ..PeerService::tcp("tcp", Family::V4, 8081) };
    let services = [tcp, PeerService::http("http", HTTP_PORT)].map(|service| PeerService {
        servers: vec![1, 2],
        tables: format!("{spare}{health}"),
        ..service
    });
    let urls = services.clone().map(|service| format!("http://{}/1k", service.listen()));
    let mut hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
    let meets = |hairpin: &Hairpin, expected: &[&str], uses: bool| -> Result<()> {
        let start = Instant::now();
        loop {
            let met = urls.iter().map(|url| answers(&topology, url)).collect::<Result<Vec<_>>>();
            let status: Value = serde_json::from_str(&hairpin.tell(&topology, &["status", "-o", "json"])?)?;
            let said = [0, 1].map(|at| status["services"][at]["uses_backups"].as_bool());
            let is = met
                .as_ref()
                .is_ok_and(|met| met.iter().all(|met| met.iter().map(String::as_str).eq(expected.iter().copied())));
            if is && said == [Some(uses); 2] {
                return Ok(());
            }
            ensure!(start.elapsed() < patience(Duration::from_secs(30)), "{met:?}, {said:?}\n{}", hairpin.logs());
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    meets(&hairpin, &["server1", "server2"], false)?;
    // By checks, and by an operator.
    servers.say(&topology, 1, None)?;
    meets(&hairpin, &["server2"], false)?;
    servers.say(&topology, 2, None)?;
    meets(&hairpin, &["server3"], true)?;
    let table = hairpin.status_table()?;
    ensure!(table.contains("on backups") && table.contains("enabled, backup"), "{table}");
    servers.say(&topology, 1, Some(WELL))?;
    meets(&hairpin, &["server1"], false)?;
    for service in ["tcp", "http"] {
        hairpin.tell(&topology, &["backend", "drain", service, "server1"])?;
    }
    meets(&hairpin, &["server3"], true)?;
    let events = hairpin.tell(&topology, &["events"])?;
    for part in ["service http: its backups are used, since no other", "service tcp: its backups are used no longer"] {
        ensure!(events.contains(part), "no {part:?} in {events}");
    }
    servers.check()?;
    hairpin.process().check()
}

fn outliers() -> Result<()> {
    let outlier = "[service.outlier]\nconsecutive = 5\nlatency_factor = 5\nrequests_min = 4\ninterval = \"3s\"\nejection_time = \
                   \"3s\"\n";
    let tables = backend_table("slow", 4, SLOW_PORT, "") + outlier;
    let mut scene = Scene::start("round-robin", "", &[1, 2], &tables)?;
    let mut slow = slow_server(&scene.topology)?;
    for (place, scheme) in ["http", "https"].into_iter().enumerate() {
        // (Of server1 and server2, `/500` is a page that is not there: 404.)
        for (path, why) in [("500", " failures in a row"), ("1k", "the others' median ")] {
            let start = Instant::now();
            let ejection = loop {
                let ejection = scene.ejection(place, "slow")?;
                if ejection["ejected"] == true && ejection["reason"].as_str().is_some_and(|reason| reason.contains(why))
                {
                    break ejection;
                }
                ensure!(
                    start.elapsed() < patience(Duration::from_secs(60)),
                    "{scheme} {path}: not ejected: {ejection}\n{}",
                    scene.hairpin.logs()
                );
                scene.ask(scheme, path, "X-A: b")?;
            };
            ensure!(ejection["ejections_total"].as_u64() >= Some(1), "{ejection}");
            ensure!(scene.hairpin.status_table()?.contains("enabled, ejected"), "{}", scene.hairpin.status_table()?);
            while scene.ejection(place, "slow")?["ejected"] == true {
                let backend = scene.backend(scheme, path, "X-A: b")?;
                let still = scene.ejection(place, "slow")?["ejected"] == true;
                ensure!(backend != "slow" || !still, "{scheme}: an ejected backend got a request");
            }
        }
        // It is not ejected while it is the only one.
        let service = ["plain", "tls"][place];
        for server in ["server1", "server2"] {
            scene.hairpin.tell(&scene.topology, &["backend", "drain", service, server])?;
        }
        for _ in 0..12 {
            let (status, _) = scene.ask(scheme, "500", "X-A: b")?;
            ensure!(status == "500", "{scheme}: the last backend's responses are {status}");
            std::thread::sleep(Duration::from_millis(100));
        }
        let ejection = scene.ejection(place, "slow")?;
        ensure!(ejection["ejected"] == false && ejection["prevented_total"].as_u64() >= Some(1), "{ejection}");
    }
    let events = scene.hairpin.tell(&scene.topology, &["events"])?;
    for part in ["service plain: backend slow is ejected for", " failures in a row", "slow returns from its ejection"] {
        ensure!(events.contains(part), "no {part:?} in {events}");
    }
    slow.check()?;
    scene.hairpin.process().check()
}

/// Statuses of so many requests at once, a connection each, in order.
fn at_once(topology: &Topology, url: &str, count: usize) -> Result<Vec<String>> {
    let mut script = String::new();
    for number in 0..count {
        let form = "%{http_code} %header{retry-after}\\n";
        script.push_str(&format!(
            "curl --silent --max-time 20 --output /dev/null --write-out '{form}' '{url}?{number}' &\n"
        ));
    }
    let mut shell = topology.client.command("sh");
    let text = command::output(shell.args(["-c", &format!("{script}wait")]))?;
    let mut all: Vec<String> = text.lines().map(|line| line.trim().to_owned()).collect();
    all.sort();
    Ok(all)
}

fn limits() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let mut slow = slow_server(&topology)?;
    let limited = backend_table("slow", 4, SLOW_PORT, "connections_max = 2\n");
    let of = |service: PeerService, tables: &str| PeerService {
        servers: Vec::new(),
        tables: format!("{limited}{tables}"),
        ..service
    };
    let queue = "[service.queue]\nrequests_max = 100\ntimeout = \"20s\"\n";
    let services = [
        of(PeerService::http("spliced", 8081), ""),
        of(PeerService::http("ended", 8082), "[service.http]\nhttp2 = true\n"),
        of(PeerService::http("queued", 8083), queue),
        of(PeerService::tcp("tcp", Family::V4, 8084), ""),
    ];
    let mut hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
    let url = |at: usize| format!("http://{}/1k", services[at].listen());
    for at in [0, 1] {
        // 12 at once take 300 ms each, of which two may be there at a time.
        let met = at_once(&topology, &url(at), 12)?;
        let refused = met.iter().filter(|met| *met == "503 1").count();
        let served = met.iter().filter(|met| *met == "200").count();
        ensure!(served + refused == 12 && served >= 2 && refused >= 1, "{}: {met:?}", services[at].name);
    }
    let met = at_once(&topology, &url(2), 12)?;
    ensure!(met == ["200"; 12], "queued: {met:?}\n{}", hairpin.logs());
    let met = at_once(&topology, &url(3), 12)?;
    let served = met.iter().filter(|met| *met == "200").count();
    ensure!(served >= 2 && met.contains(&"000".to_owned()), "tcp: {met:?}");
    let status: Value = serde_json::from_str(&hairpin.tell(&topology, &["status", "-o", "json"])?)?;
    ensure!(status["drops"]["worker.backends-full"]["total"].as_u64() >= Some(1), "{}", status["drops"]);
    ensure!(status["http"]["refused"]["backends-full"]["total"].as_u64() >= Some(1), "{}", status["http"]);
    ensure!(status["https"]["events"]["queued"]["total"].as_u64() >= Some(1), "{}", status["https"]);
    let all = status["services"].as_array().context("no services")?;
    ensure!(all.iter().all(|service| service["backends"][0]["load"] == 0), "loads are left: {all:?}");
    slow.check()?;
    hairpin.process().check()
}
