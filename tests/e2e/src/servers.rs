//! The servers: nginx with pages, iperf3, UDP echo.

pub mod collector;
pub mod grpc;
pub mod nsd;
pub mod pebble;
pub mod web;

use crate::command;
use crate::namespace::{Namespace, Scratch};
use crate::process::{Process, patience};
use crate::tool::echo::UdpEcho;
use crate::topology::Topology;
use anyhow::{Context, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// nginx's port, on both families.
pub const HTTP_PORT: u16 = 80;
/// nginx's port for connections that begin with the PROXY protocol, on both families. Page `/` is the client's end.
pub const PROXIED_PORT: u16 = 8096;
/// Ports of the iperf3 servers, on both families, TCP and UDP.
pub const IPERF_PORTS: [u16; 2] = [5201, 5202];
/// The UDP echo's port (RFC 862).
pub const ECHO_PORT: u16 = 7;

/// The pages and their lengths in bytes.
pub const PAGES: [(&str, usize); 4] = [("1k", 1 << 10), ("128k", 128 << 10), ("10m", 10 << 20), ("100m", 100 << 20)];

/// Longest time a server may take to listen.
const START_TIMEOUT: Duration = Duration::from_secs(10);

/// The page `/health` of a healthy server.
pub const WELL: &str = "all is well\n";

/// The running servers, ended when dropped.
#[derive(Debug)]
pub struct Servers {
    nginx: Vec<Process>,
    iperf: Vec<Process>,
    echoes: Vec<Option<UdpEcho>>,
}

impl Servers {
    /// Starts them in every server namespace. Answers carry the server's name in `X-Server`, the number of the
    /// connection at that server in `X-Connection` and the peer's address in `X-Client`.
    pub fn start(topology: &Topology) -> Result<Servers> {
        Servers::start_in(&topology.servers, &topology.scratch)
    }

    /// Starts the servers in these namespaces, with their files in this directory.
    pub fn start_in(namespaces: &[Namespace], scratch: &Scratch) -> Result<Servers> {
        let pages = scratch.file("pages");
        write_pages(&pages)?;
        let mut servers = Servers { nginx: Vec::new(), iperf: Vec::new(), echoes: Vec::new() };
        for (i, namespace) in (1..).zip(namespaces) {
            let directory = directory(scratch, i);
            std::fs::create_dir_all(&directory)?;
            std::fs::write(directory.join("nginx.conf"), nginx(i, &pages, &directory))?;
            std::fs::write(directory.join("health"), WELL)?;
            servers.nginx.push(start_nginx(namespace, scratch, i)?);
            for port in IPERF_PORTS {
                let mut iperf = namespace.command_on(server_cpu(), "iperf3");
                iperf.args(["--server", "--port", &port.to_string()]);
                servers.iperf.push(namespace.start(iperf, &directory.join(format!("iperf3-{port}")))?);
            }
            servers.echoes.push(Some(UdpEcho::start(namespace, ECHO_PORT)?));
        }
        for (i, namespace) in (1..).zip(namespaces) {
            let ports: Vec<u16> = IPERF_PORTS.into_iter().chain([HTTP_PORT]).collect();
            servers.await_ports(namespace, i, &ports)?;
        }
        Ok(servers)
    }

    fn await_ports(&mut self, namespace: &Namespace, server: usize, ports: &[u16]) -> Result<()> {
        self.nginx(server)
            .wait_until(patience(START_TIMEOUT), || listening(namespace.name(), ports))
            .with_context(|| format!("server{server} does not listen on {ports:?}"))
    }

    /// Fails if one of them has ended.
    pub fn check(&mut self) -> Result<()> {
        self.nginx.iter_mut().chain(&mut self.iperf).try_for_each(Process::check)
    }

    /// Datagrams each server's UDP echo has answered.
    pub fn echoed(&self) -> Vec<u64> {
        self.echoes.iter().map(|echo| echo.as_ref().map_or(0, UdpEcho::answered)).collect()
    }

    /// The nginx of a server, 1 to 4.
    pub fn nginx(&mut self, server: usize) -> &mut Process {
        &mut self.nginx[server - 1]
    }

    /// Starts a server's nginx again after its end.
    pub fn start_nginx(&mut self, topology: &Topology, server: usize) -> Result<()> {
        let namespace = &topology.servers[server - 1];
        self.nginx[server - 1] = start_nginx(namespace, &topology.scratch, server)?;
        self.await_ports(namespace, server, &[HTTP_PORT])
    }

    /// Ends a server's UDP echo: its port answers with an ICMP error then.
    pub fn stop_echo(&mut self, server: usize) {
        self.echoes[server - 1] = None;
    }

    /// Starts it again.
    pub fn start_echo(&mut self, topology: &Topology, server: usize) -> Result<()> {
        self.echoes[server - 1] = Some(UdpEcho::start(&topology.servers[server - 1], ECHO_PORT)?);
        Ok(())
    }

    /// Sets a server's page `/health` from now on; `None`: it answers 503.
    pub fn say(&self, topology: &Topology, server: usize, health: Option<&str>) -> Result<()> {
        let directory = directory(&topology.scratch, server);
        match health {
            Some(text) => {
                std::fs::write(directory.join("health"), text)?;
                let _ = std::fs::remove_file(directory.join("unwell"));
            }
            None => std::fs::write(directory.join("unwell"), "")?,
        }
        Ok(())
    }
}

fn directory(scratch: &Scratch, server: usize) -> PathBuf {
    scratch.file(format!("server{server}"))
}

fn start_nginx(namespace: &Namespace, scratch: &Scratch, server: usize) -> Result<Process> {
    let directory = directory(scratch, server);
    let mut nginx = namespace.command("nginx");
    nginx.arg("-c").arg(directory.join("nginx.conf")).arg("-p").arg(&directory);
    nginx.arg("-e").arg(directory.join("error.log"));
    namespace.start(nginx, &directory.join("nginx.out"))
}

/// The core iperf3's servers run on (its clients run on core 0): the last one.
pub fn server_cpu() -> &'static str {
    if std::thread::available_parallelism().is_ok_and(|cores| cores.get() > 1) { "1" } else { "0" }
}

/// Whether something listens on all of these TCP ports in the namespace.
pub fn listening(namespace: &str, ports: &[u16]) -> bool {
    let mut ss = Command::new("nsenter");
    ss.arg(format!("--net=/run/netns/{namespace}")).args(["--", "ss", "-Hltn"]);
    command::output(&mut ss).is_ok_and(|sockets| {
        let has = |port: &u16| sockets.lines().any(|line| line.contains(&format!(":{port} ")));
        ports.iter().all(has)
    })
}

/// Pages of bytes that do not repeat (so that a lost or doubled segment shows), the same in every run.
fn write_pages(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    for (name, length) in PAGES {
        let mut random = fastrand::Rng::with_seed(length as u64);
        let mut page = BufWriter::new(File::create(directory.join(name))?);
        let mut block = [0; 4096];
        let mut left = length;
        while left > 0 {
            let part = left.min(block.len());
            random.fill(&mut block[..part]);
            page.write_all(&block[..part])?;
            left -= part;
        }
        page.flush()?;
    }
    Ok(())
}

fn nginx(server: usize, pages: &Path, directory: &Path) -> String {
    let (pages, directory) = (pages.display(), directory.display());
    format!(
        "daemon off;
user root;
worker_processes 1;
worker_rlimit_nofile 65536;
pid {directory}/pid;
error_log {directory}/error.log warn;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  sendfile on;
  tcp_nopush on;
  keepalive_requests 1000000;
  keepalive_timeout 300s;
  types {{ text/html html; text/css css; text/javascript js; image/bmp bmp; }}
  default_type application/octet-stream;
  client_body_temp_path {directory}/body;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  server {{
    listen {HTTP_PORT} backlog=16384;
    listen [::]:{HTTP_PORT} backlog=16384;
    root {pages};
    add_header X-Server server{server};
    add_header X-Connection $connection;
    add_header X-Client $remote_addr;
    location = /marks {{ return 200 \"$http_x_request_id $http_traceparent $http_tracestate\"; }}
    location = /health {{
      if (-f {directory}/unwell) {{ return 503; }}
      alias {directory}/health;
    }}
  }}
  server {{
    listen {PROXIED_PORT} proxy_protocol;
    listen [::]:{PROXIED_PORT} proxy_protocol;
    root {pages};
    location = / {{ return 200 \"$proxy_protocol_addr $proxy_protocol_port\"; }}
  }}
}}
"
    )
}

/// Whether a TCP connection to `end` can be made from this thread's namespace.
pub fn accepts(end: &str) -> bool {
    TcpStream::connect(end).is_ok()
}
