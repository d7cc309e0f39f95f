//! Pebble, an ACME server for tests (github.com/letsencrypt/pebble), in the client's namespace.

use super::{START_TIMEOUT, listening};
use crate::command;
use crate::process::{Process, patience};
use crate::topology::{Family, Topology, client_address, vip};
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::process::Command;

const PORT: u16 = 14000;
const MANAGEMENT_PORT: u16 = 15000;

/// A running Pebble. It looks names up in a file of its own, in which all of `names` lead to the VIP.
#[derive(Debug)]
pub struct Pebble {
    /// Its process.
    pub process: Process,
}

/// The program: `HAIRPIN_PEBBLE`, or the one that is installed. `None`: there is none.
pub fn program() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("HAIRPIN_PEBBLE") {
        return Some(path.into());
    }
    ["/usr/bin/pebble", "/usr/local/bin/pebble"].into_iter().map(PathBuf::from).find(|path| path.is_file())
}

/// The URL of its directory.
pub fn directory() -> String {
    format!("https://{}:{PORT}/dir", client_address(Family::V4))
}

/// The file that it logs to.
pub fn log(topology: &Topology) -> PathBuf {
    topology.scratch.file("pebble.log")
}

/// The certificate of its server, which signs itself: made at the first call.
pub fn server_certificate(topology: &Topology) -> Result<PathBuf> {
    let (key, chain) = (topology.scratch.file("pebble.key"), topology.scratch.file("pebble.crt"));
    if !chain.is_file() {
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
        let bare = topology.scratch.write("pebble.cnf", "[req]\ndistinguished_name = name\n[name]\n")?;
        openssl.arg("-config").arg(bare).args(["-days", "2", "-subj", "/CN=pebble", "-addext"]);
        openssl.arg(format!("subjectAltName=IP:{}", client_address(Family::V4)));
        openssl.arg("-keyout").arg(&key).arg("-out").arg(&chain);
        command::output(&mut openssl)?;
    }
    Ok(chain)
}

impl Pebble {
    /// Starts it. Its certificates are valid for `validity_s` seconds.
    pub fn start(topology: &Topology, names: &[&str], validity_s: u32) -> Result<Pebble> {
        let chain = server_certificate(topology)?;
        let text = format!(
            r#"{{"pebble": {{"listenAddress": "0.0.0.0:{PORT}", "managementListenAddress": "0.0.0.0:{MANAGEMENT_PORT}",
"certificate": {chain:?}, "privateKey": {:?}, "httpPort": 80, "tlsPort": 443, "ocspResponderURL": "",
"externalAccountBindingRequired": false, "retryAfter": {{"authz": 1, "order": 1}}, "keyAlgorithm": "ecdsa",
"certificateValidityPeriod": {validity_s},
"profiles": {{"default": {{"description": "the only one", "validityPeriod": {validity_s}}}}}}}}}"#,
            topology.scratch.file("pebble.key"),
        );
        let config = topology.scratch.write("pebble.json", &text)?;
        let lines: String = names.iter().map(|name| format!("{} {name}\n", vip(Family::V4))).collect();
        let hosts = topology.scratch.write("pebble.hosts", &format!("127.0.0.1 localhost\n{lines}"))?;
        let script = format!(
            "mount --bind {} /etc/hosts && exec {} -config {}",
            hosts.display(),
            program().context("there is no Pebble")?.display(),
            config.display()
        );
        let mut command = topology.client.command("unshare");
        // A part of nonces is refused, and no proof is taken twice: clients must bear it.
        command.args(["--mount", "sh", "-c", &script]);
        command.env("PEBBLE_VA_NOSLEEP", "1").env("PEBBLE_AUTHZREUSE", "0").env("PEBBLE_WFE_NONCEREJECT", "20");
        let mut process = topology.client.start(command, &log(topology))?;
        process
            .wait_until(patience(START_TIMEOUT), || listening(topology.client.name(), &[PORT, MANAGEMENT_PORT]))
            .context("Pebble does not listen")?;
        Ok(Pebble { process })
    }

    /// The root that its certificates lead to, in a file.
    pub fn root(&self, topology: &Topology) -> Result<PathBuf> {
        let url = format!("https://127.0.0.1:{MANAGEMENT_PORT}/roots/0");
        let mut curl = topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--insecure", "--max-time", "10", &url]);
        topology.scratch.write("pebble-root.pem", &command::output(&mut curl)?)
    }
}
