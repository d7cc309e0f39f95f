//! Whose requests are taken: users and passwords.

use crate::network::test;
use anyhow::{Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{Servers, web};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("authentication: users and passwords of a file", basic)]
}

const NAME: &str = "web.test";
const PORT: u16 = 443;
const PASSWORD: &str = "open: sesame";

/// Writes a file of users with htpasswd, by which each has [`PASSWORD`].
fn write_users(file: &Path, users: &[&str]) -> Result<()> {
    std::fs::write(file, "")?;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600))?;
    for user in users {
        command::output(Command::new("htpasswd").args(["-B", "-b"]).arg(file).args([*user, PASSWORD]))?;
    }
    Ok(())
}

/// The status of a response, and the credentials that it asks for.
fn ask(topology: &Topology, certificate: &Path, arguments: &[&str]) -> Result<String> {
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--output", "/dev/null"]);
    curl.args(["--write-out", "%{http_version} %{http_code} %header{www-authenticate}"])
        .arg("--cacert")
        .arg(certificate);
    curl.args(["--resolve", &format!("{NAME}:{PORT}:{}", vip(Family::V4))]).args(arguments);
    Ok(command::output(&mut curl)?.trim().to_owned())
}

fn basic() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let certificate = web::certificate(&topology, "web.pem", &[NAME])?;
    let users = topology.scratch.file("users");
    write_users(&users, &["ann"])?;
    let service = PeerService::https("tls", PORT, &certificate);
    let tables = format!(
        "{}[service.basic]\nusers_file = {users:?}\nrealm = \"staff\"\n[[service.route]]\nquery = {{ open = \"1\" }}\nbasic.enabled = false\n",
        service.tables
    );
    let services = [PeerService { tables, ..service }];
    let mut hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
    let (url, open) = (format!("https://{NAME}/1k"), format!("https://{NAME}/1k?open=1"));
    let (ann, bob) = (format!("ann:{PASSWORD}"), format!("bob:{PASSWORD}"));
    for (version, option) in [("1.1", "--http1.1"), ("2", "--http2")] {
        let refused = format!("{version} 401 Basic realm=\"staff\", charset=\"UTF-8\"");
        let taken = format!("{version} 200");
        let met = |arguments: &[&str]| ask(&topology, &certificate, &[&[option], arguments].concat());
        for (arguments, expected) in [
            (&[&*url][..], &refused),
            (&[&url, "--user", "ann:open"], &refused),
            (&[&url, "--user", &bob], &refused),
            (&[&url, "--data", "x"], &refused),
            (&[&url, "--user", &ann], &taken),
            (&[&url, "--user", &ann], &taken),
            (&[&open], &taken),
        ] {
            let met = met(arguments)?;
            ensure!(met == *expected, "{version} {arguments:?}: {met}, not {expected}\n{}", hairpin.logs());
        }
    }
    let status = hairpin.tell(&topology, &["status", "-o", "json"])?;
    let read: Value = serde_json::from_str(&status)?;
    let refused = read["http"]["refused"]["unauthorized"]["total"].as_u64();
    ensure!(refused == Some(8), "{}", read["http"]["refused"]);
    // Those that were right are forgotten with a reload.
    write_users(&users, &["bob"])?;
    hairpin.tell(&topology, &["reload"])?;
    for option in ["--http1.1", "--http2"] {
        let met = [&ann, &bob].map(|who| ask(&topology, &certificate, &[option, &url, "--user", who]));
        let [former, now] = met;
        ensure!(former?.contains(" 401 ") && now?.ends_with(" 200"), "the reload\n{}", hairpin.logs());
    }
    // A file that cannot be taken leaves what is in force.
    std::fs::write(&users, "bob:secret\n")?;
    let told = hairpin.tell(&topology, &["reload"]);
    ensure!(
        told.is_err_and(|error| format!("{error:#}").contains("line 1 has a password")),
        "the reload is not refused"
    );
    ensure!(ask(&topology, &certificate, &[&url, "--user", &bob])?.ends_with(" 200"), "bob is not taken");
    let logs = hairpin.logs();
    ensure!(!logs.contains("sesame") && !logs.contains("secret") && !status.contains("sesame"), "{logs}");
    hairpin.process().check()
}
