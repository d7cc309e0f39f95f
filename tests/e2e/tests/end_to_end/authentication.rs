//! Whose requests are taken: users and passwords.

use crate::http::http_network::missing;
use crate::https::clients::sockets;
use crate::lane;
use crate::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::{Process, patience};
use hairpin_e2e::servers::web::{self, PYTHON, WEBSOCKET_PORT};
use hairpin_e2e::servers::{Servers, grpc, listening};
use hairpin_e2e::tool::recorder::Recorder;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, end, server_address, vip};
use libtest_mimic::Trial;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("authentication: users and passwords of a file", basic),
        test("authentication: a server is asked", forward_auth),
        test("authentication: WebSockets and calls of gRPC", streams),
    ]
}

const NAME: &str = "web.test";
const PORT: u16 = 443;
const PASSWORD: &str = "open: sesame";

/// Writes a file of users with htpasswd, who all have this password.
pub(crate) fn write_users(file: &Path, users: &[&str], password: &str) -> Result<()> {
    std::fs::write(file, "")?;
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600))?;
    for user in users {
        command::output(Command::new("htpasswd").args(["-B", "-b"]).arg(file).args([*user, password]))?;
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
    write_users(&users, &["ann"], PASSWORD)?;
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
    write_users(&users, &["bob"], PASSWORD)?;
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

/// The port of nginx, which lets WebSockets, gRPC and clients with a cookie pass, tells others where to go, and has no good word for some.
const GATE_PORT: u16 = 8077;
const RECORDER_PORT: u16 = 8090;

fn gate(topology: &Topology) -> Result<Process> {
    let directory = topology.scratch.file("gate");
    std::fs::create_dir_all(&directory)?;
    let file = directory.join("nginx.conf");
    let text = format!(
        "daemon off;\nuser root;\npid {0}/pid;\nerror_log {0}/error.log warn;\nevents {{ }}\nhttp {{\n  access_log off;\n  \
         server {{\n    listen {GATE_PORT};\n    location = /check {{\n      if ($http_x_key = wrong) {{ return 401 \
         \"go away\"; }}\n      if ($http_x_forwarded_uri ~ ^/(socket|shop)) {{ return 204; }}\n      \
         if ($http_cookie !~ \"session=good\") {{ return 302 \"https://login.test/?to=$http_x_forwarded_uri\"; }}\n      add_header X-User \"ann by $http_x_forwarded_method of \
         $http_x_forwarded_uri\";\n      add_header X-Secret none;\n      return 204;\n    }}\n  }}\n}}\n",
        directory.display()
    );
    std::fs::write(&file, text)?;
    let server = &topology.servers[1];
    let mut nginx = server.command("nginx");
    nginx.arg("-c").arg(file).arg("-p").arg(&directory).arg("-e").arg(directory.join("error.log"));
    let mut process = server.start(nginx, &directory.join("nginx.out"))?;
    process.wait_until(patience(Duration::from_secs(10)), || listening(server.name(), &[GATE_PORT]))?;
    Ok(process)
}

fn forward_auth() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let recorder = Recorder::start(&topology.servers[0], RECORDER_PORT, "backend")?;
    let mut gate = gate(&topology)?;
    let certificate = web::certificate(&topology, "web.pem", &[NAME])?;
    let service = PeerService::https("tls", PORT, &certificate);
    let tables = format!(
        "[service.forward_auth]\ngroup = \"gate\"\npath = \"/check\"\ntimeout = \"1s\"\ncopy_headers = \
         [\"X-User\"]\n[[service.group]]\nname = \"gate\"\nbackends = [\"{}\"]\n[[service.route]]\npath = \
         \"/open\"\nforward_auth.enabled = false\n{}",
        end(server_address(Family::V4, 2), GATE_PORT),
        service.tables
    );
    let services = [PeerService { tables, servers: vec![1], server_port: RECORDER_PORT, ..service }];
    let mut hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
    let get = |arguments: &[&str]| {
        let mut curl = topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--max-time", "20", "--write-out"]);
        curl.arg(" %{http_code} %header{location} %header{x-secret}").arg("--cacert").arg(&certificate);
        curl.args(["--resolve", &format!("{NAME}:{PORT}:{}", vip(Family::V4))]).args(arguments);
        command::output(&mut curl)
    };
    let [url, open] = ["a/b?c=d", "open"].map(|path| format!("https://{NAME}/{path}"));
    for option in ["--http1.1", "--http2"] {
        recorder.forget();
        let met = get(&[option, &url])?;
        ensure!(met.trim_end().ends_with(" 302 https://login.test/?to=/a/b?c=d none"), "{option}: {met}");
        let met = get(&[option, &url, "--header", "X-Key: wrong"])?;
        ensure!(met.trim_end() == "go away 401", "{option}: {met}");
        let met = get(&[option, "--head", &url, "--header", "X-Key: wrong"])?;
        ensure!(!met.contains("go away") && met.contains(" 401"), "{option}: {met}");
        ensure!(recorder.heard().is_empty(), "{option}: {:?}", recorder.heard());
        let body = ["--data", "body", "--header", "X-User: forged"];
        let met = get(&[&[option, &*url, "--cookie", "session=good"], &body[..]].concat())?;
        ensure!(met.contains("200") && !met.contains(" none"), "{option}: {met}");
        let heard = recorder.heard().pop().context("no request")?;
        let users: Vec<&str> = heard.fields("X-User").collect();
        ensure!(users == ["ann by POST of /a/b?c=d"] && heard.body_bytes == 4, "{option}: {}", heard.head);
        ensure!(get(&[option, &open])?.contains(" 200"), "{option}: a route that asks no server");
    }
    // Without the server nothing passes, and with it again all is well.
    gate.stop()?;
    for option in ["--http1.1", "--http2"] {
        let met = get(&[option, &url, "--cookie", "session=good"])?;
        ensure!(met.contains(" 503"), "{option}: {met}");
        ensure!(get(&[option, &open])?.contains(" 200"), "{option}: a route that asks no server");
    }
    let status: Value = serde_json::from_str(&hairpin.tell(&topology, &["status", "-o", "json"])?)?;
    let refused = &status["http"]["refused"];
    ensure!(refused["authentication-failed"]["total"] == 2 && refused["unauthorized"]["total"] == 6, "{refused}");
    hairpin.process().check()
}

/// The password of users who are named in a URL, where [`PASSWORD`] would have to be quoted.
const PLAIN_PASSWORD: &str = "sesame";
/// The credentials of ann with it.
const ANN: &str = "Basic YW5uOnNlc2FtZQ==";

/// Of each stream the user's password is checked, and then a server is asked; without that server none passes.
fn streams() -> Result<()> {
    for what in ["websockets", "grpc"] {
        if let Some(why) = missing(what) {
            lane::skip(why);
            return Ok(());
        }
    }
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = grpc::start(&topology, None)?;
    let _echo = web::websocket(&topology)?;
    let mut gate = gate(&topology)?;
    let certificate = web::certificate(&topology, "web.pem", &[NAME])?;
    let users = topology.scratch.file("users");
    write_users(&users, &["ann"], PLAIN_PASSWORD)?;
    let service = PeerService::https("tls", PORT, &certificate);
    let tables = format!(
        "{}[service.basic]\nusers_file = {users:?}\n[service.forward_auth]\ngroup = \"gate\"\npath = \
         \"/check\"\n[[service.group]]\nname = \"gate\"\nbackends = [\"{}\"]\n{}{}",
        service.tables,
        end(server_address(Family::V4, 2), GATE_PORT),
        sockets(WEBSOCKET_PORT),
        grpc::tables("")
    );
    let services = [PeerService { servers: Vec::new(), tables, ..service }];
    let hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
    let script = topology.scratch.write("websocket.py", include_str!("http/websocket.py"))?;
    let socket = |who: &str| {
        let mut client = topology.client.command(PYTHON);
        client.env("SSL_CERT_FILE", &certificate).arg(&script);
        client.args([format!("wss://{who}{NAME}/socket"), vip(Family::V4).to_string()]);
        command::output(&mut client)
    };
    let mine = format!("ann:{PLAIN_PASSWORD}@");
    for who in ["", "ann:wrong@"] {
        let met = socket(who).err().context("a WebSocket without the password is taken")?;
        ensure!(format!("{met:#}").contains("401"), "{met:#}");
    }
    let met = socket(&mine)?;
    ensure!(met == "well\n", "{met}\n{}", hairpin.logs());
    let (target, tls) = (services[0].listen(), (&*certificate, NAME));
    let code = grpc::code(&topology, &target, tls)?;
    ensure!(code == "UNAUTHENTICATED", "a call without a password ends with {code}");
    let met = grpc::ask_with(&topology, &target, 4, tls, ANN)?;
    ensure!(met == "server1=2 server2=2", "{met}\n{}", hairpin.logs());
    gate.stop()?;
    let met = socket(&mine).err().context("a WebSocket is taken that no server was asked about")?;
    ensure!(format!("{met:#}").contains("503"), "{met:#}");
    let met = grpc::ask_with(&topology, &target, 4, tls, ANN)
        .err()
        .context("a call is taken that no server was asked about")?;
    ensure!(format!("{met:#}").contains("UNAVAILABLE"), "{met:#}");
    Ok(())
}
