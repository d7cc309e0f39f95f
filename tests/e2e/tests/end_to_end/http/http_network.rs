//! The network of the HTTP tests: Hairpin's HTTP and TLS services, and all kinds of servers behind them.

use crate::dpdk::{PORTS, is_built_in, whole};
use crate::lane;
use anyhow::{Context, Result, anyhow, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, TransportProtocol};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::{HTTP_PORT, PROXIED_PORT, Servers, web};
use hairpin_e2e::tool::http::{HttpConnection, HttpResponse};
use hairpin_e2e::tool::inside;
use hairpin_e2e::tool::recorder::Recorder;
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, end, vip};
use libtest_mimic::Trial;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Long enough for whatever should answer at once, on a loaded machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// The recorders' port.
const RECORDER_PORT: u16 = 8090;

/// Ports of the services.
pub(super) const WEB: u16 = 80;
/// Routes and edits, recorders behind them.
pub(super) const ROUTES: u16 = 8001;
/// Three recorders, sticky.
pub(super) const STICKY: u16 = 8002;
/// Small limits.
pub(super) const LIMITS: u16 = 8003;
/// A service whose only backend does not listen.
pub(super) const DEAD: u16 = 8004;
/// A dead backend and one that lives.
pub(super) const HALF_DEAD: u16 = 8005;
/// One recorder, and nothing but the defaults.
pub(super) const PLAIN: u16 = 8006;
/// Requests that a proxy in front of Hairpin brings.
pub(super) const TRUSTED: u16 = 8007;
/// The other web servers.
pub(super) const APACHE: u16 = 8011;
pub(super) const PYTHON: u16 = 8012;
pub(super) const NODE: u16 = 8013;
pub(super) const WEBSOCKET: u16 = 8014;
/// A page whose resources come from several groups.
pub(super) const BROWSER: u16 = 8015;
/// Backends that learn the client's address from the PROXY protocol, version 1 and version 2.
pub(super) const PROXIED: [u16; 2] = [8016, 8017];
/// TLS by name.
pub(super) const TLS: u16 = 8443;

/// The running processes. (Dropped in this order.)
pub(super) struct HttpNetwork {
    pub(super) hairpin: Hairpin,
    pub(super) servers: Servers,
    /// On server1 to server3; they call themselves `one`, `two` and `three`.
    pub(super) recorders: Vec<Recorder>,
    _web: Vec<Process>,
    pub(super) topology: Topology,
}

/// The network a test needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// Offloading cards, large bodies through the kernel's rules.
    Gso,
    /// Plain cards, large bodies through the kernel's rules.
    Wire,
    /// Offloading cards, everything through the worker.
    Software,
    /// DPDK's ports over packet sockets; plain cards.
    Dpdk,
}

/// The network made so far; one at a time exists.
#[derive(Default)]
pub(super) struct HttpNetworks(Mutex<Option<(Which, HttpNetwork)>>);

impl HttpNetworks {
    /// A test on the network `which`, which is made if it does not exist.
    pub(super) fn test(
        self: &Arc<HttpNetworks>,
        name: &str,
        which: Which,
        body: impl FnOnce(&mut HttpNetwork) -> Result<()> + Send + 'static,
    ) -> Trial {
        let networks = self.clone();
        let on = format!("{which:?}").to_lowercase();
        let lane = if which == Which::Dpdk { &lane::SHARED } else { &lane::HTTP };
        lane.test(format!("http: {name} ({on})"), move || networks.with(which, body))
    }

    fn with(&self, which: Which, body: impl FnOnce(&mut HttpNetwork) -> Result<()>) -> Result<()> {
        if which == Which::Dpdk && !is_built_in()? {
            return Ok(());
        }
        let mut current = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if current.as_ref().is_none_or(|(have, _)| *have != which) {
            // The old one goes before the new one comes.
            *current = None;
            *current = Some((which, HttpNetwork::create(which)?));
        }
        let (_, net) = current.as_mut().ok_or_else(|| anyhow!("no network"))?;
        net.recorders.iter().for_each(Recorder::forget);
        let result = body(net).and_then(|()| net.hairpin.process().check());
        let result = result.and_then(|()| if which == Which::Dpdk { whole(&net.hairpin) } else { Ok(()) });
        net.servers.check()?;
        if let Err(error) = result {
            let status = net.hairpin.status_table().unwrap_or_else(|error| format!("no status: {error:#}"));
            let log = net.hairpin.process().log();
            // The next test gets a fresh one.
            *current = None;
            bail!("{error:#}\nhairpin printed:\n{log}\nhairpin status:\n{status}");
        }
        Ok(())
    }
}

impl HttpNetwork {
    fn create(which: Which) -> Result<HttpNetwork> {
        let cards = if matches!(which, Which::Wire | Which::Dpdk) { Cards::Wire } else { Cards::Gso };
        let topology = Topology::create(TopologyOptions { cards, ..TopologyOptions::default() })?;
        let servers = Servers::start(&topology)?;
        let names = ["one", "two", "three"];
        let recorders = names.iter().zip(&topology.servers);
        let recorders: Vec<Recorder> = recorders
            .map(|(name, namespace)| Recorder::start(namespace, RECORDER_PORT, name))
            .collect::<Result<_>>()?;
        let mut processes = web::tls(&topology)?;
        for (there, start) in available() {
            if there {
                processes.push(start(&topology)?);
            }
        }
        let policy = if matches!(which, Which::Software | Which::Dpdk) { "never" } else { "always" };
        let tables = format!("[offload]\npolicy = \"{policy}\"\n");
        let dpdk = if which == Which::Dpdk { PORTS } else { "" };
        let options = HairpinOptions { tables, dpdk, ..HairpinOptions::default() };
        let hairpin = Hairpin::start(&topology, &services(), &options)?;
        Ok(HttpNetwork { hairpin, servers, recorders, _web: processes, topology })
    }

    /// A connection from the client to a port of the VIP.
    pub(super) fn connect(&self, port: u16) -> Result<HttpConnection> {
        let to = SocketAddr::new(vip(Family::V4), port);
        inside::run(&self.topology.client, move || HttpConnection::open(to, PATIENCE))
    }

    /// Sends bytes on a connection of their own and waits for an answer.
    pub(super) fn ask(&self, port: u16, request: impl AsRef<[u8]>) -> Result<HttpResponse> {
        let mut connection = self.connect(port)?;
        connection.send(request.as_ref(), PATIENCE)?;
        let text = String::from_utf8_lossy(request.as_ref()).into_owned();
        let first = text.lines().next().unwrap_or_default().to_owned();
        connection.answer(text.starts_with("HEAD "), PATIENCE).with_context(|| format!("{first:.100} on port {port}"))
    }

    /// A GET for `target`, with more fields (lines that end in CRLF).
    pub(super) fn fetch(&self, port: u16, target: &str, fields: &str) -> Result<HttpResponse> {
        self.ask(port, format!("GET {target} HTTP/1.1\r\nHost: test\r\n{fields}\r\n"))
    }

    /// Runs curl in the client for `path` of a service; returns what it prints.
    pub(super) fn curl(&self, port: u16, path: &str, arguments: &[&str]) -> Result<String> {
        let mut curl = self.topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--globoff", "--max-time", "120", "--connect-timeout", "5"]);
        curl.args(arguments).arg(self.url(port, path));
        command::output(&mut curl)
    }

    /// A service's address and port.
    pub(super) fn socket(&self, port: u16) -> SocketAddr {
        SocketAddr::new(vip(Family::V4), port)
    }

    /// The URL of a path of a service.
    pub(super) fn url(&self, port: u16, path: &str) -> String {
        format!("http://{}{path}", end(vip(Family::V4), port))
    }

    /// A page's bytes.
    pub(super) fn page(&self, name: &str) -> Result<Vec<u8>> {
        Ok(std::fs::read(self.topology.scratch.file(format!("pages/{name}")))?)
    }

    /// Waits until `holds`, or says that it does not.
    pub(super) fn until(&self, about: &str, mut holds: impl FnMut(&HttpNetwork) -> Result<bool>) -> Result<()> {
        let start = Instant::now();
        while !holds(self)? {
            ensure!(start.elapsed() < PATIENCE, "after {PATIENCE:?}: not {about}");
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

type Start = fn(&Topology) -> Result<Process>;

/// The servers that are installed here. (What is missing was said by [`missing`].)
fn available() -> [(bool, Start); 4] {
    [
        (missing("apache").is_none(), web::apache),
        (missing("python").is_none(), web::python),
        (missing("node").is_none(), web::node),
        (missing("websockets").is_none(), web::websocket),
    ]
}

/// Why something cannot be tried here, if so.
pub(crate) fn missing(what: &str) -> Option<String> {
    let python = |module| web::is_there(web::PYTHON, &["-c", &format!("import {module}")]);
    let there = match what {
        "apache" => web::is_there("apache2", &["-v"]),
        "ab" => web::is_there("ab", &["-V"]),
        "node" => web::is_there("node", &["--version"]),
        "python" => python("http.server"),
        "browser" => web::browser().is_some(),
        module => python(module),
    };
    (!there).then(|| format!("there is no {what} on this machine (scripts/install-deps)"))
}

fn services() -> Vec<PeerService> {
    let one = |name, port, server, server_port| PeerService {
        servers: vec![server],
        server_port,
        ..PeerService::http(name, port)
    };
    let recorded =
        |name, port, tables: &str| PeerService { tables: tables.to_owned(), ..one(name, port, 1, RECORDER_PORT) };
    let proxied = |name, port, version: &str| PeerService {
        tables: format!("[service.http]\nproxy_protocol = \"{version}\"\n"),
        ..one(name, port, 1, PROXIED_PORT)
    };
    vec![
        PeerService::http("web", WEB),
        PeerService { family: Family::V6, ..PeerService::http("web6", WEB) },
        recorded("routes", ROUTES, include_str!("routes.toml")),
        PeerService {
            servers: vec![1, 2, 3],
            server_port: RECORDER_PORT,
            tables: "[service.http.sticky]\ncookie = \"backend\"\nmax_age = \"1h\"\n".to_owned(),
            ..PeerService::http("sticky", STICKY)
        },
        recorded("limits", LIMITS, include_str!("limits.toml")),
        one("dead", DEAD, 1, 9),
        PeerService {
            tables: "[[service.backend]]\naddress = \"10.0.2.2:9\"\n".to_owned(),
            ..one("half-dead", HALF_DEAD, 1, RECORDER_PORT)
        },
        recorded("plain", PLAIN, ""),
        recorded(
            "trusted",
            TRUSTED,
            "[service.http]\nserver_timing = true\n[service.http.forwarded]\ntrusted = [\"10.0.0.0/24\"]\n\
             x_real_ip = true\nforwarded = true\n",
        ),
        proxied("proxied-1", PROXIED[0], "v1"),
        proxied("proxied-2", PROXIED[1], "v2"),
        one("apache", APACHE, 1, web::APACHE_PORT),
        one("python", PYTHON, 2, web::PYTHON_PORT),
        one("node", NODE, 3, web::NODE_PORT),
        one("websocket", WEBSOCKET, 4, web::WEBSOCKET_PORT),
        PeerService {
            server_port: HTTP_PORT,
            tables: include_str!("browser.toml").to_owned(),
            ..PeerService::http("browser", BROWSER)
        },
        PeerService {
            transport: TransportProtocol::Tls,
            servers: vec![],
            tables: include_str!("tls.toml").to_owned(),
            ..PeerService::http("tls", TLS)
        },
    ]
}

/// nginx's port is the service's.
const _: () = assert!(WEB == HTTP_PORT);
