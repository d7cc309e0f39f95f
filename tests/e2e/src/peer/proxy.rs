//! Proxies, which end the client's connection and make another: HAProxy in TCP mode, nginx's stream module.
//!
//! Both get as many threads or processes as there are cores, and the pinning they choose themselves.

use super::{PeerService, START_TIMEOUT};
use crate::process::{Process, patience};
use crate::servers::listening;
use crate::topology::Topology;
use anyhow::{Context, Result};
use std::fmt::Write;

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get())
}

fn wait(topology: &Topology, mut process: Process, services: &[PeerService]) -> Result<Process> {
    let ports: Vec<u16> = services.iter().map(|service| service.port).collect();
    process
        .wait_until(patience(START_TIMEOUT), || listening(topology.balancer.name(), &ports))
        .context("a proxy did not start")?;
    Ok(process)
}

/// Starts HAProxy. Services must be TCP.
pub(super) fn haproxy(topology: &Topology, services: &[PeerService]) -> Result<Process> {
    let mut text = format!(
        "global\n  nbthread {}\n  maxconn 8000\ndefaults\n  mode tcp\n  maxconn 8000\n  \
         balance roundrobin\n  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n",
        cores()
    );
    for service in services {
        writeln!(text, "listen {}\n  bind {}", service.name, service.listen())?;
        for (server, end) in service.servers.iter().zip(service.server_ends()) {
            writeln!(text, "  server server{server} {end}")?;
        }
    }
    let configuration = topology.scratch.write("haproxy.cfg", &text)?;
    let mut command = topology.balancer.command("haproxy");
    command.arg("-db").arg("-f").arg(configuration);
    wait(topology, topology.balancer.start(command, &topology.scratch.file("haproxy.log"))?, services)
}

/// Starts nginx with the stream module. Services must be TCP.
pub(super) fn nginx_stream(topology: &Topology, services: &[PeerService]) -> Result<Process> {
    let directory = topology.scratch.file("nginx-stream");
    std::fs::create_dir_all(&directory)?;
    let mut text = format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\nuser root;\nworker_processes {};\n\
         worker_rlimit_nofile 65536;\npid {1}/pid;\nerror_log {1}/error.log warn;\n\
         events {{ worker_connections 16384; }}\nstream {{\n",
        cores(),
        directory.display()
    );
    for service in services {
        writeln!(text, "  upstream {} {{", service.name)?;
        for end in service.server_ends() {
            writeln!(text, "    server {end};")?;
        }
        let listen = service.listen();
        writeln!(text, "  }}\n  server {{\n    listen {listen} reuseport backlog=16384;")?;
        writeln!(text, "    proxy_pass {};\n  }}", service.name)?;
    }
    text.push_str("}\n");
    let configuration = directory.join("nginx.conf");
    std::fs::write(&configuration, text)?;
    let mut command = topology.balancer.command("nginx");
    command.arg("-c").arg(configuration).arg("-p").arg(&directory).arg("-e").arg(directory.join("error.log"));
    wait(topology, topology.balancer.start(command, &topology.scratch.file("nginx-stream.log"))?, services)
}
