//! Hairpin, nginx and HAProxy, each of which ends TLS on one core.

use crate::l7::peers::{BALANCER_CPU, OTHER_CPU, server, steer_all};
use anyhow::{Context, Result};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::servers::{HTTP_PORT, listening};
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, end, server_address, vip};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const START_TIMEOUT: Duration = Duration::from_secs(20);
/// The name that clients ask for.
pub(super) const NAME: &str = "web.test";
/// The server's port for TLS, by HTTP/1.1 or HTTP/2.
const TLS_PORT: u16 = 443;

/// How the balancer speaks to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Behind {
    /// By HTTP/1.1 in clear text.
    ClearText,
    /// By HTTP/1.1 over TLS, whose certificate is verified.
    Tls,
    /// By HTTP/2 over TLS, whose certificate is verified.
    Http2,
}

impl Behind {
    /// What a case's name says of it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Behind::ClearText => "",
            Behind::Tls => ", TLS behind",
            Behind::Http2 => ", HTTP/2 behind",
        }
    }
}

/// What a peer serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) behind: Behind,
    /// Certificates beside that of [`NAME`], each for a name of its own.
    pub(super) certificates: usize,
}

/// The process that ends TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Terminator {
    Hairpin,
    Nginx,
    Haproxy,
}

impl Terminator {
    pub(super) const ALL: [Terminator; 3] = [Terminator::Hairpin, Terminator::Nginx, Terminator::Haproxy];

    /// Its name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Terminator::Hairpin => "hairpin",
            Terminator::Nginx => "nginx",
            Terminator::Haproxy => "haproxy",
        }
    }

    /// Whether it can speak so to servers: nginx speaks HTTP/2 to none but gRPC's.
    pub(super) fn can(self, behind: Behind) -> bool {
        self != Terminator::Nginx || behind != Behind::Http2
    }

    fn port(self) -> u16 {
        match self {
            Terminator::Hairpin => 8443,
            Terminator::Nginx => 8444,
            Terminator::Haproxy => 8445,
        }
    }

    /// The address that clients connect to.
    pub(super) fn target(self) -> SocketAddr {
        SocketAddr::new(vip(Family::V4), self.port())
    }
}

/// The network with its server.
pub(super) struct HttpsNetwork {
    _servers: [Process; 2],
    pub(super) certificate: PathBuf,
    pub(super) topology: Topology,
}

/// A peer that runs; gone when dropped.
pub(super) enum RunningTerminator {
    Process(Process),
    Hairpin(Box<Hairpin>),
}

impl RunningTerminator {
    /// Its process. (nginx: the one that serves.)
    pub(super) fn process(&mut self) -> &mut Process {
        match self {
            RunningTerminator::Process(process) => process,
            RunningTerminator::Hairpin(hairpin) => hairpin.process(),
        }
    }
}

impl HttpsNetwork {
    /// Makes it.
    pub(super) fn create() -> Result<HttpsNetwork> {
        let topology = Topology::create(TopologyOptions { cards: Cards::Gso, ..TopologyOptions::default() })?;
        steer_all(&topology)?;
        let certificate = certificate(&topology, "web.pem", &[NAME])?;
        let (server, _) = server(&topology)?;
        let tls = tls_server(&topology, &certificate)?;
        Ok(HttpsNetwork { _servers: [server, tls], certificate, topology })
    }

    /// Certificates for names of their own, each with its key in a file: made at the first call.
    fn certificates(&self, count: usize) -> Result<PathBuf> {
        let directory = self.topology.scratch.file(format!("certificates-{count}"));
        if !directory.is_dir() {
            std::fs::create_dir_all(&directory)?;
            for number in 0..count {
                let made = rcgen::generate_simple_self_signed([format!("{number}.test")])?;
                let both = made.cert.pem() + &made.signing_key.serialize_pem();
                std::fs::write(directory.join(format!("{number}.pem")), both)?;
            }
        }
        Ok(directory)
    }

    /// Starts a peer on the balancer's core.
    pub(super) fn start(&self, peer: Terminator, site: Site) -> Result<RunningTerminator> {
        self.timed_start(peer, site).map(|(running, _)| running)
    }

    /// As [`start`](HttpsNetwork::start), with the time until its port listens.
    pub(super) fn timed_start(&self, peer: Terminator, site: Site) -> Result<(RunningTerminator, Duration)> {
        let topology = &self.topology;
        let many = if site.certificates > 0 { Some(self.certificates(site.certificates)?) } else { None };
        let port = if site.behind == Behind::ClearText { HTTP_PORT } else { TLS_PORT };
        let server = end(server_address(Family::V4, 1), port);
        let configured = |text: &str, name: &str| {
            let directory = topology.scratch.file(format!("https-{}", peer.name()));
            std::fs::create_dir_all(&directory)?;
            let text = text
                .replace("LISTEN", &peer.target().to_string())
                .replace("SERVER", &server)
                .replace("CERTIFICATE", &self.certificate.display().to_string())
                .replace("DIRECTORY", &directory.display().to_string());
            topology.scratch.write(name, &text)
        };
        let command = match peer {
            Terminator::Hairpin => {
                let service = hairpin_service(peer.port(), &self.certificate, many.as_deref(), (site.behind, &server));
                let options = HairpinOptions { cpus: BALANCER_CPU, ..HairpinOptions::default() };
                let began = Instant::now();
                let hairpin = Hairpin::start(topology, &[service], &options)?;
                return Ok((RunningTerminator::Hairpin(Box::new(hairpin)), began.elapsed()));
            }
            Terminator::Nginx => {
                let mut nginx = topology.balancer.command_on(BALANCER_CPU, "nginx");
                let text = nginx_text(many.as_deref(), site);
                nginx.arg("-c").arg(configured(&text, "https-nginx.conf")?);
                nginx.arg("-e").arg(topology.scratch.file("https-nginx.error.log"));
                nginx
            }
            Terminator::Haproxy => {
                let mut haproxy = topology.balancer.command_on(BALANCER_CPU, "haproxy");
                let text = haproxy_text(many.as_deref(), site.behind);
                haproxy.arg("-db").arg("-f").arg(configured(&text, "https-haproxy.cfg")?);
                haproxy
            }
        };
        let log = topology.scratch.file(format!("https-{}.log", peer.name()));
        let began = Instant::now();
        let mut process = topology.balancer.start(command, &log)?;
        let name = topology.balancer.name().to_owned();
        process.wait_until(START_TIMEOUT, || listening(&name, &[peer.port()])).context(peer.name())?;
        Ok((RunningTerminator::Process(process), began.elapsed()))
    }

    /// The client's core.
    pub(super) fn client_cpu() -> &'static str {
        OTHER_CPU
    }
}

/// nginx with the pages over TLS, by HTTP/1.1 and HTTP/2, on the core of the client.
fn tls_server(topology: &Topology, certificate: &Path) -> Result<Process> {
    let directory = topology.scratch.file("https-server");
    std::fs::create_dir_all(&directory)?;
    let text = include_str!("server.conf")
        .replace("LISTEN", &TLS_PORT.to_string())
        .replace("CERTIFICATE", &certificate.display().to_string())
        .replace("PAGES", &topology.scratch.file("l7-pages").display().to_string())
        .replace("DIRECTORY", &directory.display().to_string());
    let file = topology.scratch.write("https-server.conf", &text)?;
    let mut nginx = topology.servers[0].command_on(OTHER_CPU, "nginx");
    nginx.arg("-c").arg(file).arg("-e").arg(topology.scratch.file("https-server.error.log"));
    let mut server = topology.servers[0].start(nginx, &topology.scratch.file("https-server.log"))?;
    let name = topology.servers[0].name().to_owned();
    server.wait_until(START_TIMEOUT, || listening(&name, &[TLS_PORT])).context("the server with TLS")?;
    Ok(server)
}

fn hairpin_service(port: u16, certificate: &Path, many: Option<&Path>, behind: (Behind, &str)) -> PeerService {
    let service = PeerService { servers: vec![1], ..PeerService::https("https", port, certificate) };
    let (behind, server) = behind;
    let mut tables = match many {
        Some(many) => format!("[service.https]\ncertificates = [{certificate:?}, {many:?}]\n"),
        None => service.tables.clone(),
    };
    if behind == Behind::ClearText {
        return PeerService { tables, ..service };
    }
    let protocol = if behind == Behind::Http2 { "backend_protocol = \"h2\"\n" } else { "" };
    tables += &format!(
        "[[service.group]]\nname = \"all\"\n{protocol}backends = [\"{server}\"]\n\
         backend_tls = {{ roots = {certificate:?}, name = \"{NAME}\" }}\n\
         [[service.route]]\npath_prefix = \"/\"\ngroup = \"all\"\n"
    );
    PeerService { servers: Vec::new(), tables, ..service }
}

fn nginx_text(many: Option<&Path>, site: Site) -> String {
    let text = include_str!("nginx.conf");
    let text = match site.behind {
        Behind::ClearText => text.to_owned(),
        Behind::Tls | Behind::Http2 => text.replace(
            "proxy_pass http://server;",
            "proxy_pass https://server;\n      proxy_ssl_verify on;\n      proxy_ssl_trusted_certificate CERTIFICATE;\n      \
             proxy_ssl_server_name on;\n      proxy_ssl_name web.test;\n      proxy_ssl_protocols TLSv1.3;",
        ),
    };
    // A server for each name, as nginx wants it.
    let server = |number: usize| {
        let file = many.map(|many| many.join(format!("{number}.pem")).display().to_string()).unwrap_or_default();
        format!(
            "  server {{ listen LISTEN ssl http2; server_name {number}.test; ssl_certificate {file}; \
             ssl_certificate_key {file}; }}\n"
        )
    };
    let servers: String = (0..site.certificates).map(server).collect();
    let end = text.trim_end().strip_suffix('}').unwrap_or(&text);
    format!("{end}  server_names_hash_max_size 65536;\n{servers}}}\n")
}

fn haproxy_text(many: Option<&Path>, behind: Behind) -> String {
    let text = include_str!("haproxy.cfg");
    let text = match many {
        Some(many) => text.replace("crt CERTIFICATE", &format!("crt CERTIFICATE crt {}", many.display())),
        None => text.to_owned(),
    };
    let tls = |more: &str| {
        let verified = format!("SERVER ssl verify required ca-file CERTIFICATE sni str({NAME}) {more}");
        text.replace("server server SERVER", &format!("server server {verified}"))
    };
    match behind {
        Behind::ClearText => text,
        Behind::Tls => tls("alpn http/1.1"),
        Behind::Http2 => tls("alpn h2"),
    }
}
