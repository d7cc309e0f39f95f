//! HTTPS services: TLS, HTTP/1.1 and HTTP/2 that end at the balancer, with real clients before and nginx behind.

mod agreed;
mod backends;
mod certified;
pub(crate) mod clients;
mod sharing;
mod survival;

use crate::lane::{self, alone};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, TransportProtocol, rebuilt_program};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    let test = |name: &str, body: fn() -> Result<()>| lane::OWN.test(format!("https: {name}"), body);
    let mut tests = vec![
        test("curl speaks HTTP/1.1 and HTTP/2", curl_speaks_both),
        test("an http service shares the VIP", shares_a_vip),
        test("an http service redirects to it", redirects),
        test("the PROXY protocol gives the client", takes_proxy_headers),
        test("HTTP/2 in clear text, by prior knowledge", prior_knowledge),
        test("backends are told a client's certificate", certified::are_told),
        test("a VIP that is only routed, IPv4 and IPv6", routed_vips),
        test("h2load and wrk get all answers", loads),
        test("three ways give a request one answer", agreed::one_answer),
        test("an http service shares routes and backends", sharing::shares),
        test("another certificate is served without a reload", certificate_changes),
        test("a reload keeps connections and changes routes", reload),
        test("a certificate that cannot be served changes nothing", wrong_certificates),
        alone("https: an upgrade loses no request", upgrade_under_load),
        alone("https: after a kill clients wait for the next process", killed),
    ];
    tests.extend(clients::tests());
    tests.extend(backends::tests());
    tests.extend(survival::tests());
    tests
}

const PORT: u16 = 443;
const NAME: &str = "web.test";
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct Scene {
    pub(crate) hairpin: Hairpin,
    /// None where a test has its own.
    _servers: Option<Servers>,
    certificate: PathBuf,
    pub(crate) topology: Topology,
    services: Vec<PeerService>,
    options: HairpinOptions,
}

impl Scene {
    pub(crate) fn start(more: &[PeerService], top: &str) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions::default())?;
        let servers = Servers::start(&topology)?;
        let certificate = certificate(&topology, "web.pem", &[NAME])?;
        let mut services = vec![PeerService::https("web", PORT, &certificate)];
        services.extend_from_slice(more);
        let options = HairpinOptions { top: top.to_owned(), ..HairpinOptions::default() };
        let hairpin = Hairpin::start(&topology, &services, &options)?;
        Ok(Scene { hairpin, _servers: Some(servers), certificate, topology, services, options })
    }

    /// curl of a page, with these options: what it printed.
    pub(crate) fn curl(&self, options: &[&str], url: &str) -> Result<String> {
        command::output(&mut self.curl_command(options, url))
    }

    pub(crate) fn curl_command(&self, options: &[&str], url: &str) -> Command {
        let mut curl = self.topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--max-time", "30", "--cacert"]).arg(&self.certificate);
        curl.args(["--resolve", &format!("{NAME}:{PORT}:{}", vip(Family::V4))]);
        curl.args(options).arg(url);
        curl
    }

    /// Loads its services as they are now.
    fn reload(&self) -> Result<()> {
        self.hairpin.configure(&self.topology, &self.services, &self.options)?;
        self.hairpin.tell(&self.topology, &["reload"]).map(drop)
    }

    /// With another service.
    fn with(mut self, service: PeerService) -> Result<Scene> {
        self.services.push(service);
        self.reload()?;
        Ok(self)
    }

    /// The names of the certificate that is served.
    fn served_names(&self) -> Result<String> {
        let line = format!(
            "openssl s_client -connect {}:{PORT} -servername {NAME} </dev/null 2>/dev/null | openssl x509 -noout -ext \
             subjectAltName",
            vip(Family::V4)
        );
        self.topology.client.script(&line)
    }
}

pub(crate) fn url(path: &str) -> String {
    format!("https://{NAME}/{path}")
}

fn curl_speaks_both() -> Result<()> {
    let scene = Scene::start(&[], "")?;
    for (option, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        for (page, bytes) in [("1k", 1 << 10), ("128k", 128 << 10), ("10m", 10 << 20)] {
            let file = scene.topology.scratch.file(format!("curl-{version}-{page}"));
            let out = file.display().to_string();
            let wanted = "%{http_code} %{http_version} %{size_download}";
            let said = scene.curl(&[option, "--output", &out, "--write-out", wanted], &url(page))?;
            ensure!(said == format!("200 {version} {bytes}"), "{option} {page}: {said}");
            let original = std::fs::read(scene.topology.scratch.file("pages").join(page))?;
            ensure!(std::fs::read(&file)? == original, "{option}: {page} is not the page");
        }
        let head = scene.curl(&[option, "--head"], &url("1k"))?;
        ensure!(head.to_ascii_lowercase().contains("content-length: 1024"), "{option}: {head}");
        let missing = scene.curl(&[option, "--output", "/dev/null", "--write-out", "%{http_code}"], &url("none"))?;
        ensure!(missing == "404", "{option}: {missing}");
    }
    let status = scene.hairpin.status_table()?;
    ensure!(status.contains("443/https") && status.contains("terminated"), "{status}");
    let told = scene.curl(&["--http1.1"], &format!("http://{NAME}:{PORT}/1k"));
    let told = match told {
        Ok(text) => text,
        Err(error) => format!("{error:#}"),
    };
    ensure!(told.contains("this port speaks TLS"), "{told}");
    Ok(())
}

fn shares_a_vip() -> Result<()> {
    let http = PeerService { server_port: HTTP_PORT, ..PeerService::http("plain", 80) };
    let scene = Scene::start(&[http], "workers = 2")?;
    for round in 0..10 {
        let plain = format!("http://{}/128k", vip(Family::V4));
        for (options, url) in [(&["--http2"][..], url("128k")), (&["--http1.1"], url("128k")), (&[], plain)] {
            let out = ["--output", "/dev/null", "--write-out", "%{http_code} %{size_download}"];
            let said = scene.curl(&[options, &out].concat(), &url)?;
            ensure!(said == "200 131072", "round {round}, {url}: {said}");
        }
    }
    let status = scene.hairpin.status()?;
    let connections = |name: &str| {
        status.services.iter().find(|service| service.name == name).map(|service| service.connections_total)
    };
    ensure!(connections("web") == Some(20) && connections("plain") == Some(10), "{:?}", status.services);
    Ok(())
}

fn redirects() -> Result<()> {
    let tables = "[service.http]\nredirect_to_https = true\n[[service.route]]\npath_prefix = \
                  \"/.well-known/\"\nreply = { status = 200, body = \"here\" }\n";
    let plain = PeerService { servers: Vec::new(), tables: tables.to_owned(), ..PeerService::http("plain", 80) };
    let scene = Scene::start(&[plain], "")?;
    let resolve = format!("{NAME}:80:{}", vip(Family::V4));
    let followed = scene.curl(
        &[
            "--resolve",
            &resolve,
            "--location",
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code} %{num_redirects} %{url_effective} %{size_download}",
        ],
        &format!("http://{NAME}/1k?a=b"),
    )?;
    ensure!(followed == format!("200 1 https://{NAME}/1k?a=b 1024"), "{followed}");
    let head = scene.curl(&["--resolve", &resolve, "--data", "a", "--include"], &format!("http://{NAME}:80/1k"))?;
    ensure!(head.starts_with("HTTP/1.1 308 ") && head.contains(&format!("Location: https://{NAME}/1k\r\n")), "{head}");
    let here = scene.curl(&["--resolve", &resolve], &format!("http://{NAME}/.well-known/x"))?;
    ensure!(here == "here", "{here}");
    Ok(())
}

/// A client behind a proxy: a header of the PROXY protocol, version 1, then a request over TLS, whose answer it prints.
const PROXIED: &str = r#"
import socket, ssl, sys
address, port, name, path = sys.argv[1:]
tcp = socket.create_connection((address, int(port)), 10)
tcp.sendall(b"PROXY TCP4 192.0.2.77 198.51.100.1 1234 443\r\n")
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
tls = context.wrap_socket(tcp, server_hostname=name)
tls.sendall(f"GET {path} HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode())
while data := tls.recv(4096):
    sys.stdout.write(data.decode())
"#;

fn takes_proxy_headers() -> Result<()> {
    let mut scene = Scene::start(&[], "")?;
    let tables = &mut scene.services[0].tables;
    tables.push_str("accept_proxy = [\"0.0.0.0/0\"]\n[[service.route]]\npath = \"/mine\"\nclient = \"192.0.2.77\"\n");
    tables.push_str("reply = { status = 200, body = \"yours\" }\n");
    scene.hairpin.configure(&scene.topology, &scene.services, &scene.options)?;
    scene.hairpin.tell(&scene.topology, &["reload"])?;
    let out = ["--output", "/dev/null", "--write-out", "%{http_code} %{size_download}"];
    for option in ["--http1.1", "--http2"] {
        let said = scene.curl(&[&[option, "--haproxy-protocol"][..], &out].concat(), &url("128k"))?;
        ensure!(said == "200 131072", "{option}: {said}");
    }
    let mut proxied = scene.topology.client.command("python3");
    proxied.args(["-c", PROXIED, &vip(Family::V4).to_string(), &PORT.to_string(), NAME, "/mine"]);
    let said = command::output(&mut proxied)?;
    ensure!(said.starts_with("HTTP/1.1 200 ") && said.ends_with("yours"), "{said}");
    ensure!(scene.curl(&out, &url("1k")).is_err(), "a connection without a header is answered");
    let status = scene.hairpin.status_table()?;
    ensure!(status.contains("proxy-header-invalid"), "{status}");
    Ok(())
}

fn prior_knowledge() -> Result<()> {
    let tables = "[service.http]\nhttp2 = true\n".to_owned();
    let spliced = PeerService { server_port: HTTP_PORT, ..PeerService::http("plain", 80) };
    let terminated = PeerService { tables, ..spliced.clone() };
    let mut scene = Scene::start(std::slice::from_ref(&spliced), "")?;
    let get = |scene: &Scene| {
        let out = ["--output", "/dev/null", "--write-out", "%{http_code}"];
        scene.curl(&out, &format!("http://{}/128k", vip(Family::V4)))
    };
    // From the splice to the host's sockets, and back again in the end.
    ensure!(get(&scene)? == "200", "spliced");
    scene.services[1] = terminated;
    scene.hairpin.configure(&scene.topology, &scene.services, &scene.options)?;
    let told = scene.hairpin.tell(&scene.topology, &["reload"])?;
    ensure!(told.contains("bodies copied in user space"), "{told}");
    for (option, version) in [("--http2-prior-knowledge", "2"), ("--http1.1", "1.1"), ("--http2", "1.1")] {
        for (page, bytes) in [("1k", 1 << 10), ("10m", 10 << 20)] {
            let out = ["--output", "/dev/null", "--write-out", "%{http_code} %{http_version} %{size_download}"];
            let said = scene.curl(&[&[option][..], &out].concat(), &format!("http://{}/{page}", vip(Family::V4)))?;
            ensure!(said == format!("200 {version} {bytes}"), "{option} {page}: {said}");
        }
    }
    let status = scene.hairpin.status_table()?;
    ensure!(status.contains(":80/http ") && status.contains(":443/https"), "{status}");
    scene.services[1] = spliced;
    scene.hairpin.configure(&scene.topology, &scene.services, &scene.options)?;
    scene.hairpin.tell(&scene.topology, &["reload"])?;
    ensure!(get(&scene)? == "200", "spliced again");
    Ok(())
}

fn routed_vips() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let certificate = certificate(&topology, "web.pem", &[NAME])?;
    let of = |name, family| PeerService { family, ..PeerService::https(name, PORT, &certificate) };
    let services = [of("web4", Family::V4), of("web6", Family::V6)];
    // The VIPs are routed to the balancer, which owns them no more.
    let vips = [vip(Family::V4), vip(Family::V6)];
    for vip in vips {
        let length = if vip.is_ipv4() { 32 } else { 128 };
        topology.balancer.script(&format!("ip address delete {vip}/{length} dev lo"))?;
    }
    let mut hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
    let get = |vip: IpAddr| {
        let mut curl = topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--max-time", "10", "--cacert"]).arg(&certificate);
        let address = if vip.is_ipv4() { vip.to_string() } else { format!("[{vip}]") };
        curl.args(["--resolve", &format!("{NAME}:{PORT}:{address}"), "--output", "/dev/null"]);
        curl.args(["--write-out", "%{http_code}"]).arg(url("1k"));
        command::output(&mut curl)
    };
    for vip in vips {
        let said = get(vip).with_context(|| hairpin.logs())?;
        ensure!(said == "200", "{vip}: {said}");
    }
    let routes = || topology.balancer.script("ip route show table local; ip -6 route show table local");
    ensure!(vips.iter().all(|vip| routes().is_ok_and(|routes| routes.contains(&vip.to_string()))), "{}", routes()?);
    // A service that a reload removes: its route stays until the request that its client has is answered.
    let mut slow = topology.client.command("curl");
    slow.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--limit-rate", "2M", "--cacert"]);
    slow.arg(&certificate).args(["--resolve", &format!("{NAME}:{PORT}:{}", vips[0]), "--output", "/dev/null"]);
    let log = topology.scratch.file("slow.log");
    let mut download = topology.client.start(
        {
            slow.arg(url("10m"));
            slow
        },
        &log,
    )?;
    std::thread::sleep(Duration::from_millis(500));
    hairpin.configure(&topology, &services[1..], &HairpinOptions::default())?;
    hairpin.tell(&topology, &["reload"])?;
    ensure!(routes()?.contains(&vips[0].to_string()), "the route is gone: {}", routes()?);
    ensure!(download.wait(PATIENCE)?.success(), "{}", download.log());
    let soon = 3 * PATIENCE;
    eventually("the route of the removed service goes", soon, || Ok(!routes()?.contains(&vips[0].to_string())))?;
    ensure!(get(vips[1])? == "200", "the other service");
    hairpin.stop(true)?;
    ensure!(!vips.iter().any(|vip| routes().is_ok_and(|routes| routes.contains(&vip.to_string()))), "{}", routes()?);
    Ok(())
}

fn loads() -> Result<()> {
    let scene = Scene::start(&[], "")?;
    let target = format!("https://{}:{PORT}/1k", vip(Family::V4));
    let mut wrk = scene.topology.client.command("wrk");
    wrk.args(["-t1", "-c20", "-d2s", &target]);
    let said = command::output(&mut wrk)?;
    ensure!(!said.contains("Socket errors") && !said.contains("Non-2xx"), "{said}");
    if !has_h2load() {
        lane::skip("h2load is not installed (nghttp2-client)");
        return Ok(());
    }
    for (page, count) in [("1k", "5000"), ("128k", "500"), ("10m", "20")] {
        let mut h2load = scene.topology.client.command("h2load");
        let target = format!("https://{}:{PORT}/{page}", vip(Family::V4));
        h2load.args(["-c10", "-m10", "-n", count, &target]);
        let said = command::output(&mut h2load)?;
        let whole = format!("{count} succeeded, 0 failed, 0 errored, 0 timeout");
        ensure!(said.contains(&whole), "{page}: {said}");
    }
    Ok(())
}

fn has_h2load() -> bool {
    Command::new("h2load").arg("--version").output().is_ok_and(|output| output.status.success())
}

fn certificate_changes() -> Result<()> {
    let scene = Scene::start(&[], "")?;
    ensure!(scene.served_names()?.contains("DNS:web.test"), "{}", scene.served_names()?);
    certificate(&scene.topology, "web.pem", &[NAME, "second.test"])?;
    eventually("the new certificate is served", Duration::from_secs(30), || {
        Ok(scene.served_names()?.contains("DNS:second.test"))
    })?;
    // One that cannot be read changes nothing.
    scene.topology.scratch.write("web.pem", "nothing\n")?;
    eventually("the log tells of it", Duration::from_secs(30), || {
        Ok(scene.hairpin.logs().contains("cannot be served, so the old ones are"))
    })?;
    ensure!(scene.served_names()?.contains("DNS:second.test"), "{}", scene.served_names()?);
    Ok(())
}

pub(crate) fn eventually(what: &str, within: Duration, mut done: impl FnMut() -> Result<bool>) -> Result<()> {
    let until = Instant::now() + within;
    while !done()? {
        ensure!(Instant::now() < until, "not within {} s: {what}", within.as_secs());
        sleep(Duration::from_millis(100));
    }
    Ok(())
}

fn reload() -> Result<()> {
    let scene = Scene::start(&[], "")?;
    let mut slow = scene.topology.client.start(
        scene.curl_command(
            &[
                "--http2",
                "--limit-rate",
                "20M",
                "--output",
                "/dev/null",
                "--write-out",
                "%{http_code} %{size_download}",
            ],
            // The buffers of the sockets take 10 MB at once.
            &url("100m"),
        ),
        &scene.topology.scratch.file("slow.log"),
    )?;
    let mut listed = String::new();
    slow.wait_until(PATIENCE, || {
        let line = ["connections", "--service", "web", "--state", "forwarding"];
        listed = scene.hairpin.tell(&scene.topology, &line).unwrap_or_default();
        listed.contains("forwarding")
    })?;
    ensure!(listed.contains("forwarding") && listed.contains("TLS or HTTP/2 ends here"), "{listed}");
    let offload = scene.hairpin.tell(&scene.topology, &["offload"])?;
    ensure!(offload.contains("software: TLS or HTTP/2 ends here"), "{offload}");
    let mut services = scene.services.clone();
    services[0].tables.push_str("[[service.route]]\npath = \"/new\"\nreply = { status = 200, body = \"new\" }\n");
    scene.hairpin.configure(&scene.topology, &services, &scene.options)?;
    scene.hairpin.tell(&scene.topology, &["reload"])?;
    for option in ["--http1.1", "--http2"] {
        let said = scene.curl(&[option], &url("new"))?;
        ensure!(said == "new", "{option}: {said}");
    }
    slow.wait(PATIENCE)?;
    ensure!(slow.log() == format!("200 {}", 100 << 20), "{}", slow.log());
    // Without the service its port is the kernel's again.
    let http =
        PeerService { transport: TransportProtocol::Http, port: 81, tables: String::new(), ..services[0].clone() };
    scene.hairpin.configure(&scene.topology, &[http], &scene.options)?;
    scene.hairpin.tell(&scene.topology, &["reload"])?;
    let refused = scene.curl(&["--output", "/dev/null"], &url("1k"));
    let said = refused.map_or_else(|error| format!("{error:#}"), |_| "it was answered".to_owned());
    ensure!(said.contains("Connection refused") || said.contains("connect to"), "{said}");
    Ok(())
}

fn wrong_certificates() -> Result<()> {
    let scene = Scene::start(&[], "")?;
    let wrong = scene.topology.scratch.write("wrong.pem", "nothing\n")?;
    let services = [PeerService::https("web", PORT, &wrong)];
    scene.hairpin.configure(&scene.topology, &services, &scene.options)?;
    let Err(refused) = scene.hairpin.tell(&scene.topology, &["reload"]) else { bail!("it was accepted") };
    let refused = format!("{refused:#}");
    ensure!(refused.contains("wrong.pem") && refused.contains("no certificate"), "{refused}");
    let said = scene.curl(&["--output", "/dev/null", "--write-out", "%{http_code}"], &url("1k"))?;
    ensure!(said == "200", "{said}");
    Ok(())
}

/// Requests one after the other, each over a connection of its own, until told to end; none may fail.
fn steady(scene: &Scene, number: usize) -> Result<Process> {
    let stop = scene.topology.scratch.file("stop");
    let curl = command::display(&scene.curl_command(
        &[
            "--output",
            "/dev/null",
            "--write-out",
            "%{http_code}\\n",
            if number.is_multiple_of(2) { "--http2" } else { "--http1.1" },
        ],
        &url("1k"),
    ));
    // The command is one inside of the namespace already.
    let lines = format!("while [ ! -e {} ]; do {curl} || echo failed; done", stop.display());
    let mut shell = Command::new("sh");
    shell.args(["-c", &lines]);
    Process::start(shell, &scene.topology.scratch.file(format!("steady-{number}.log")))
}

/// Ends them: how many requests there were, all of which were answered with 200.
fn ended(scene: &Scene, steady: Vec<Process>) -> Result<usize> {
    scene.topology.scratch.write("stop", "")?;
    let mut requests = 0;
    for mut process in steady {
        process.wait(Duration::from_secs(40))?;
        let log = process.log();
        if let Some(other) = log.lines().find(|line| *line != "200") {
            bail!("a request ended with {other}: {log}\n{}", scene.hairpin.logs());
        }
        requests += log.lines().count();
    }
    Ok(requests)
}

fn upgrade_under_load() -> Result<()> {
    let mut scene = Scene::start(&[], "")?;
    let steady: Vec<Process> = (0..4).map(|number| steady(&scene, number)).collect::<Result<_>>()?;
    sleep(Duration::from_millis(500));
    for number in 1..=3 {
        let program = rebuilt_program(&scene.topology, number)?;
        scene.hairpin.upgrade(&scene.topology, &program).with_context(|| format!("upgrade {number}"))?;
        sleep(Duration::from_millis(500));
        scene.hairpin.configure(&scene.topology, &scene.services, &scene.options)?;
        scene.hairpin.tell(&scene.topology, &["reload"])?;
        sleep(Duration::from_millis(300));
    }
    let requests = ended(&scene, steady)?;
    ensure!(requests > 50, "only {requests} requests were made");
    Ok(())
}

fn killed() -> Result<()> {
    let mut scene = Scene::start(&[], "")?;
    let options = ["--output", "/dev/null", "--write-out", "%{http_code}"];
    ensure!(scene.curl(&options, &url("1k"))? == "200", "it serves");
    scene.hairpin.end(Signal::SIGKILL)?;
    // Its SYN is dropped, so it asks again: it is not refused.
    let mut waiting =
        scene.topology.client.start(scene.curl_command(&options, &url("1k")), &scene.topology.scratch.file("waits"))?;
    sleep(Duration::from_millis(700));
    ensure!(waiting.status()?.is_none(), "it ended: {}", waiting.log());
    scene.hairpin.start_again(&scene.topology, &[])?;
    let started = Instant::now();
    waiting.wait(PATIENCE)?;
    ensure!(waiting.log() == "200", "{}", waiting.log());
    // Its SYNs come 1, 3 and 7 seconds after the first.
    ensure!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    let said = scene.curl(&options, &url("1k"))?;
    ensure!(said == "200", "{said}");
    Ok(())
}
