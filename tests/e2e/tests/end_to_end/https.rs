//! HTTPS services: TLS, HTTP/1.1 and HTTP/2 that end at the balancer, with real clients before and nginx behind.

use crate::lane::{self, alone};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, TransportProtocol, rebuilt_program};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::recorder::Recorder;
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
    vec![
        test("curl speaks HTTP/1.1 and HTTP/2", curl_speaks_both),
        test("an http service shares the VIP", shares_a_vip),
        test("an http service redirects to it", redirects),
        test("the PROXY protocol gives the client", takes_proxy_headers),
        test("HTTP/2 in clear text, by prior knowledge", prior_knowledge),
        test("a VIP that is only routed, IPv4 and IPv6", routed_vips),
        test("h2load and wrk get all answers", loads),
        test("three ways give a request one answer", one_answer),
        test("another certificate is served without a reload", certificate_changes),
        test("a reload keeps connections and changes routes", reload),
        test("a certificate that cannot be served changes nothing", wrong_certificates),
        alone("https: an upgrade loses no request", upgrade_under_load),
        alone("https: after a kill clients wait for the next process", killed),
    ]
}

const PORT: u16 = 443;
const NAME: &str = "web.test";
const PATIENCE: Duration = Duration::from_secs(10);

struct Scene {
    hairpin: Hairpin,
    _servers: Servers,
    certificate: PathBuf,
    topology: Topology,
    services: Vec<PeerService>,
    options: HairpinOptions,
}

impl Scene {
    fn start(more: &[PeerService], top: &str) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions::default())?;
        let servers = Servers::start(&topology)?;
        let certificate = certificate(&topology, "web.pem", &[NAME])?;
        let mut services = vec![PeerService::https("web", PORT, &certificate)];
        services.extend_from_slice(more);
        let options = HairpinOptions { top: top.to_owned(), ..HairpinOptions::default() };
        let hairpin = Hairpin::start(&topology, &services, &options)?;
        Ok(Scene { hairpin, _servers: servers, certificate, topology, services, options })
    }

    /// curl of a page, with these options: what it printed.
    fn curl(&self, options: &[&str], url: &str) -> Result<String> {
        command::output(&mut self.curl_command(options, url))
    }

    fn curl_command(&self, options: &[&str], url: &str) -> Command {
        let mut curl = self.topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--max-time", "30", "--cacert"]).arg(&self.certificate);
        curl.args(["--resolve", &format!("{NAME}:{PORT}:{}", vip(Family::V4))]);
        curl.args(options).arg(url);
        curl
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

fn url(path: &str) -> String {
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

/// Requests drawn at random go through the splice, and through TLS by HTTP/1.1 and HTTP/2: each gets one status from one
/// server, which was sent one head.
fn one_answer() -> Result<()> {
    const RECORDER_PORT: u16 = 8090;
    const ROUTES: &str = include_str!("http/routes.toml");
    let topology = Topology::create(TopologyOptions::default())?;
    let names = ["one", "two", "three"];
    let recorders = names.iter().zip(&topology.servers);
    let _recorders: Vec<Recorder> =
        recorders.map(|(name, namespace)| Recorder::start(namespace, RECORDER_PORT, name)).collect::<Result<_>>()?;
    let certificate = certificate(&topology, "web.pem", &[NAME])?;
    let of = |service: PeerService| {
        let tables = format!("{ROUTES}\n{}", service.tables);
        PeerService { servers: vec![1], server_port: RECORDER_PORT, tables, ..service }
    };
    let services = [of(PeerService::https("web", PORT, &certificate)), of(PeerService::http("plain", 80))];
    let hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
    let seed = std::env::var("HAIRPIN_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(fastrand::u64(..));
    println!("HAIRPIN_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for number in 0..60 {
        let request = DrawnRequest::new(&mut random);
        let ask = |options: &[&str], port: u16, scheme: &str| -> Result<(String, Vec<String>)> {
            let mut curl = topology.client.command("curl");
            curl.args(["--silent", "--show-error", "--max-time", "20", "--path-as-is", "--include", "--insecure"]);
            curl.args(options).args(["--connect-to", &format!("::{}:{port}", vip(Family::V4))]);
            request.add_to(&mut curl, &format!("{scheme}://{}", request.host));
            Ok(answer(&command::output(&mut curl)?))
        };
        let splice = ask(&["--http1.1"], 80, "http")?;
        for (options, way) in [(["--http1.1"], "HTTP/1.1 over TLS"), (["--http2"], "HTTP/2")] {
            let other = ask(&options, PORT, "https")?;
            ensure!(
                other == splice,
                "request {number}, seed {seed}: {request:?}\n spliced: {splice:#?}\n {way}: {other:#?}\n{}",
                hairpin.logs()
            );
        }
    }
    Ok(())
}

/// A request of those that routes tell apart.
#[derive(Debug)]
struct DrawnRequest {
    method: &'static str,
    host: &'static str,
    target: String,
    fields: Vec<String>,
    body: Option<String>,
}

impl DrawnRequest {
    fn new(random: &mut fastrand::Rng) -> DrawnRequest {
        fn one<T: Copy>(random: &mut fastrand::Rng, of: &[T]) -> T {
            of[random.usize(..of.len())]
        }
        let paths = [
            "/",
            "/echo",
            "/moved",
            "/fixed",
            "/strip/a",
            "/api/b/c",
            "/two/x",
            "/a.png",
            "/store",
            "/secret/a",
            "/a/../secret/a",
            "/%73ecret/a",
            "/guarded/",
            "/guarded;x/",
            "/a%2fb",
            "/a//b",
            "/../a",
            "/x%zz",
            "/two/../a",
            "/status/404",
            "/status/204",
            "/chunked",
            "/bytes/5000",
        ];
        let queries = ["", "?v=2", "?v=1", "?a=b&c=%20", "?"];
        let fields =
            ["X-Robot: evil-1", "X-Forwarded-For: 1.2.3.4", "X-A: b", "Accept-Language: de", "Cookie: a=b; c=d"];
        let method = one(random, &["GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]);
        let has_body = matches!(method, "POST" | "PUT") && random.bool();
        DrawnRequest {
            method,
            host: one(random, &["web.test", "three.example", "a.three.example", "other"]),
            target: format!("{}{}", one(random, &paths), one(random, &queries)),
            // Each once: of several cookies HTTP/2 makes one (RFC 9113, 8.2.3).
            fields: fields.iter().filter(|_| random.u8(..4) == 0).map(ToString::to_string).collect(),
            body: has_body.then(|| "x".repeat(random.usize(1..20_000))),
        }
    }

    fn add_to(&self, curl: &mut Command, origin: &str) {
        if self.method == "HEAD" {
            curl.arg("--head");
        } else {
            curl.args(["--request", self.method]);
        }
        for field in &self.fields {
            curl.args(["--header", field]);
        }
        if let Some(body) = &self.body {
            curl.args(["--data-binary", body]);
        }
        curl.arg(format!("{origin}{}", self.target));
    }
}

/// What curl printed, without what may differ: the status, the response's fields and the lines of its body, sorted.
fn answer(printed: &str) -> (String, Vec<String>) {
    let text = printed.replace("\r\n", "\n");
    let interim = text.starts_with("HTTP/1.1 100");
    let text = if interim { text.split_once("\n\n").map_or("", |(_, rest)| rest) } else { &text };
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    let is_of_connection = |line: &str| {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        // The recorder's response is the head it was sent, which says which protocol the client came by.
        let differs = [
            "connection",
            "transfer-encoding",
            "date",
            "keep-alive",
            "x-forwarded-proto",
            "expect",
            "content-length",
            "x-connection",
        ];
        differs.contains(&name.as_str())
    };
    let normal = |line: &str| match line.split_once(": ") {
        Some((name, value)) => format!("{}: {value}", name.to_ascii_lowercase()),
        None => line.to_owned(),
    };
    let both = lines.chain(body.lines()).filter(|line| !is_of_connection(line));
    let mut all: Vec<String> = both.map(normal).filter(|line| !line.is_empty()).collect();
    all.sort();
    (status, all)
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
