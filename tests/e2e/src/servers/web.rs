//! Web servers beside nginx: Apache, Python's, Node.js, a WebSocket echo, and nginx with TLS.

use super::{START_TIMEOUT, listening};
use crate::command;
use crate::process::{Process, patience};
use crate::topology::Topology;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Apache's port, on server1.
pub const APACHE_PORT: u16 = 8081;
/// Python's `http.server`, on server2.
pub const PYTHON_PORT: u16 = 8082;
/// Node.js, on server3.
pub const NODE_PORT: u16 = 8083;
/// The WebSocket echo, on server4.
pub const WEBSOCKET_PORT: u16 = 8084;
/// The WebSocket echo with TLS, on server4.
pub const SECURE_WEBSOCKET_PORT: u16 = 8085;
/// nginx with TLS, on server1 and server2.
pub const TLS_PORT: u16 = 8443;

/// Debian's Python, which has Debian's modules.
pub const PYTHON: &str = "/usr/bin/python3";

/// Whether a program can be run: `program arguments` ends well.
pub fn is_there(program: &str, arguments: &[&str]) -> bool {
    command::output(Command::new(program).args(arguments)).is_ok()
}

/// The installed Chromium: Debian's without a window, or the whole one.
pub fn browser() -> Option<&'static str> {
    ["chromium-headless-shell", "chromium"].into_iter().find(|program| is_there(program, &["--version"]))
}

fn started(topology: &Topology, server: usize, port: u16, name: &str, command: Command) -> Result<Process> {
    let namespace = &topology.servers[server - 1];
    let mut process = namespace.start(command, &topology.scratch.file(format!("{name}-{server}.log")))?;
    process
        .wait_until(patience(START_TIMEOUT), || listening(namespace.name(), &[port]))
        .with_context(|| format!("{name} does not listen on port {port} of server{server}"))?;
    Ok(process)
}

/// Apache with the pages.
pub fn apache(topology: &Topology) -> Result<Process> {
    let text = include_str!("apache.conf")
        .replace("PORT", &APACHE_PORT.to_string())
        .replace("DIRECTORY", &topology.scratch.file("").display().to_string());
    let file = topology.scratch.write("apache.conf", &text)?;
    let mut apache = topology.servers[0].command("apache2");
    apache.arg("-D").arg("FOREGROUND").arg("-f").arg(file);
    started(topology, 1, APACHE_PORT, "apache", apache)
}

/// Python's `http.server` with the pages.
pub fn python(topology: &Topology) -> Result<Process> {
    let mut python = topology.servers[1].command(PYTHON);
    python.args(["-m", "http.server", "--protocol", "HTTP/1.1", "--directory"]);
    python.arg(topology.scratch.file("pages")).arg(PYTHON_PORT.to_string());
    started(topology, 2, PYTHON_PORT, "python", python)
}

/// Node.js with the pages, in chunks; a request with a body is answered with its length.
pub fn node(topology: &Topology) -> Result<Process> {
    let file = topology.scratch.write("server.js", include_str!("server.js"))?;
    let mut node = topology.servers[2].command("node");
    node.arg(file).arg(NODE_PORT.to_string()).arg(topology.scratch.file("pages"));
    started(topology, 3, NODE_PORT, "node", node)
}

/// A WebSocket echo in Python.
pub fn websocket(topology: &Topology) -> Result<Process> {
    let file = topology.scratch.write("websocket_echo.py", include_str!("websocket_echo.py"))?;
    let mut echo = topology.servers[3].command(PYTHON);
    echo.arg(file).arg(WEBSOCKET_PORT.to_string());
    started(topology, 4, WEBSOCKET_PORT, "websocket", echo)
}

/// A WebSocket echo in Python that speaks TLS, with the certificate and key in this file.
pub fn secure_websocket(topology: &Topology, pem: &Path) -> Result<Process> {
    let file = topology.scratch.write("secure_websocket_echo.py", include_str!("websocket_echo.py"))?;
    let mut echo = topology.servers[3].command(PYTHON);
    echo.arg(file).arg(SECURE_WEBSOCKET_PORT.to_string()).arg(pem);
    started(topology, 4, SECURE_WEBSOCKET_PORT, "secure-websocket", echo)
}

/// Makes a certificate for these names that is signed by itself, with its key in one file of the scratch directory. The key is
/// one of P-256.
pub fn certificate(topology: &Topology, file: &str, names: &[&str]) -> Result<PathBuf> {
    let (key, chain) = (topology.scratch.file(format!("{file}.key")), topology.scratch.file(format!("{file}.crt")));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]);
    openssl.arg("-config").arg(bare(topology)?).args(["-subj", "/CN=hairpin", "-addext"]);
    let names: Vec<String> = names.iter().map(|name| format!("DNS:{name}")).collect();
    openssl.arg(format!("subjectAltName={}", names.join(",")));
    openssl.arg("-keyout").arg(&key).arg("-out").arg(&chain);
    command::output(&mut openssl)?;
    let both = [std::fs::read_to_string(&chain)?, std::fs::read_to_string(&key)?].concat();
    // Chain and key are one file from the beginning, and never half of it.
    let (made, whole) = (topology.scratch.file(format!("{file}.new")), topology.scratch.file(file));
    std::fs::write(&made, both)?;
    std::fs::rename(&made, &whole)?;
    Ok(whole)
}

/// A configuration of openssl. The extensions of the usual one would make every certificate a CA's.
fn bare(topology: &Topology) -> Result<PathBuf> {
    topology.scratch.write("openssl.cnf", "[req]\ndistinguished_name = name\n[name]\n")
}

/// nginx with TLS and the pages on server1 and server2, which say who they are in `X-Server`. The certificate, for
/// `one.example`, `*.two.example` and `unrouted.example`, is `certificate.pem` of the scratch directory.
pub fn tls(topology: &Topology) -> Result<Vec<Process>> {
    let scratch = topology.scratch.file("");
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-config"]);
    openssl.arg(bare(topology)?).args(["-subj", "/CN=hairpin", "-addext"]);
    openssl.arg("subjectAltName=DNS:one.example,DNS:*.two.example,DNS:unrouted.example");
    openssl.arg("-keyout").arg(scratch.join("key.pem")).arg("-out").arg(scratch.join("certificate.pem"));
    command::output(&mut openssl)?;
    (1..=2).map(|server| tls_server(topology, server, &scratch)).collect()
}

fn tls_server(topology: &Topology, server: usize, scratch: &Path) -> Result<Process> {
    let directory = scratch.join(format!("tls{server}"));
    std::fs::create_dir_all(&directory)?;
    let text = include_str!("tls.conf")
        .replace("PORT", &TLS_PORT.to_string())
        .replace("SERVER", &format!("server{server}"))
        .replace("SCRATCH", &scratch.display().to_string())
        .replace("DIRECTORY", &directory.display().to_string());
    std::fs::write(directory.join("nginx.conf"), text)?;
    let mut nginx = topology.servers[server - 1].command("nginx");
    nginx.arg("-c").arg(directory.join("nginx.conf")).arg("-p").arg(&directory);
    nginx.arg("-e").arg(directory.join("error.log"));
    started(topology, server, TLS_PORT, "tls", nginx)
}
