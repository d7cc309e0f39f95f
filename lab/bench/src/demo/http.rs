//! The demo's second half: HTTP and TLS, and connections that outlive the process. Every claim it prints is checked.

use crate::suite::report::metric;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, TransportProtocol, hairpin_program};
use hairpin_e2e::servers::{HTTP_PORT, web};
use hairpin_e2e::soak::WebSocketTalk;
use hairpin_e2e::tool::http::{HttpConnection, HttpResponse};
use hairpin_e2e::tool::inside;
use hairpin_e2e::tool::recorder::Recorder;
use hairpin_e2e::topology::{Family, Topology, end, server_address, vip};
use nix::sys::signal::Signal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Long enough for whatever should answer at once, on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(10);
/// The port of servers that answer with the head they were sent.
const RECORDER_PORT: u16 = 8090;
/// The port of the server of a WebSocket.
const TALK_PORT: u16 = 8095;
/// The TLS service's.
const TLS_PORT: u16 = 443;
/// How often 100 MB are fetched over one connection.
const DOWNLOADS: usize = 30;
/// The interval at which the status is queried meanwhile, in seconds.
const SAMPLE_EVERY_S: f64 = 0.5;

/// Shows routes, edits, a cookie, a large download and TLS.
pub(super) fn run(topology: &Topology) -> Result<()> {
    println!("\nHTTP, request by request, with routes to three groups of servers; TLS by the server's name:");
    let names = ["one", "two", "three"];
    let recorders = names.iter().zip(&topology.servers);
    let _recorders: Vec<Recorder> =
        recorders.map(|(name, server)| Recorder::start(server, RECORDER_PORT, name)).collect::<Result<_>>()?;
    let _tls = web::tls(topology)?;
    let mut hairpin = Hairpin::start(topology, &services(), &HairpinOptions::default())?;
    show(topology, &hairpin)?;
    survive(topology, &mut hairpin)?;
    hairpin.process().check()?;
    let printed = hairpin.status_table()?;
    println!("\n-- hairpin status, what it says of HTTP --\n{}\n", tables(&printed));
    Ok(())
}

fn services() -> Vec<PeerService> {
    let [two, three, four] = [2, 3, 4].map(|server| server_address(Family::V4, server));
    let shop = format!(
        r#"
[service.http]
request_headers = {{ set = {{ X-Tier = "{{service}}" }}, remove = ["X-Internal"] }}
response_headers = {{ set = {{ X-Frame-Options = "DENY" }} }}

[service.http.sticky]
cookie = "home"

[[service.group]]
name = "pictures"
backends = ["{}"]

[[service.group]]
name = "files"
backends = ["{}"]

[[service.group]]
name = "talk"
backends = ["{}"]

[[service.route]]
path = "/socket"
group = "talk"

[[service.route]]
path = "/old"
redirect = {{ status = 301, location = "https://{{host}}/new" }}

[[service.route]]
path_prefix = "/img/"
group = "pictures"

[[service.route]]
path_prefix = "/files/"
replace_prefix = "/"
group = "files"
"#,
        end(three, RECORDER_PORT),
        end(four, HTTP_PORT),
        end(two, TALK_PORT),
    );
    let tls = (1..=2).zip(["one.example", "*.two.example"]).map(|(server, name)| {
        let backend = end(server_address(Family::V4, server), web::TLS_PORT);
        format!(
            "[[service.group]]\nname = \"tls{server}\"\nbackends = [\"{backend}\"]\n\
             [[service.route]]\nsni = \"{name}\"\ngroup = \"tls{server}\"\n"
        )
    });
    vec![
        PeerService {
            servers: vec![1, 2],
            server_port: RECORDER_PORT,
            tables: shop,
            ..PeerService::http("shop", HTTP_PORT)
        },
        PeerService {
            transport: TransportProtocol::Tls,
            servers: Vec::new(),
            tables: tls.collect(),
            ..PeerService::http("secure", TLS_PORT)
        },
    ]
}

fn show(topology: &Topology, hairpin: &Hairpin) -> Result<()> {
    routes(topology)?;
    edits(topology)?;
    sticky(topology)?;
    download(topology, hairpin)?;
    names(topology)
}

/// A request on a connection of its own.
fn get(topology: &Topology, path: &str, fields: &str) -> Result<HttpResponse> {
    let to = SocketAddr::new(vip(Family::V4), HTTP_PORT);
    let mut connection = inside::run(&topology.client, move || HttpConnection::open(to, PATIENCE))?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: shop.example\r\n{fields}\r\n");
    connection.send(request.as_bytes(), PATIENCE)?;
    connection.answer(false, PATIENCE).with_context(|| format!("GET {path}"))
}

fn server(answer: &HttpResponse) -> Result<&str> {
    answer.header("X-Server").with_context(|| format!("no X-Server in {}", answer.head()))
}

fn routes(topology: &Topology) -> Result<()> {
    let (own, pictures) = (get(topology, "/", "")?, get(topology, "/img/a.png", "")?);
    let (own, pictures) = (server(&own)?, server(&pictures)?);
    ensure!(own != "three" && pictures == "three", "/ went to {own}, /img/ to {pictures}");
    println!("  GET /          -> server {own}");
    println!("  GET /img/a.png -> server {pictures}, the group \"pictures\"");
    let moved = get(topology, "/old", "")?;
    let location = moved.header("Location").unwrap_or_default();
    ensure!(moved.status == 301 && location == "https://shop.example/new", "/old: {}", moved.head());
    println!("  GET /old       -> 301, Location: {location}, by Hairpin itself");
    Ok(())
}

fn edits(topology: &Topology) -> Result<()> {
    let answer = get(topology, "/", "X-Internal: secret\r\nX-Forwarded-For: 1.2.3.4\r\n")?;
    // The server answers with the head that it was sent.
    let seen = answer.text();
    let client = "X-Forwarded-For: 10.0.0.2\r\n";
    for part in ["X-Tier: shop\r\n", client] {
        ensure!(seen.contains(part), "the server was not sent {part:?} but {seen:?}");
    }
    ensure!(!seen.contains("secret") && !seen.contains("1.2.3.4"), "the server was sent {seen:?}");
    ensure!(answer.header("X-Frame-Options") == Some("DENY"), "{}", answer.head());
    println!("  A request with \"X-Internal: secret\" and a forged X-Forwarded-For, as the server sees it:");
    for line in seen.lines().filter(|line| !line.is_empty()) {
        println!("    {line}");
    }
    println!("  and to its response was added: X-Frame-Options: DENY");
    Ok(())
}

fn sticky(topology: &Topology) -> Result<()> {
    let first = get(topology, "/", "")?;
    let home = server(&first)?.to_owned();
    let set = first.header("Set-Cookie").with_context(|| format!("no cookie in {}", first.head()))?;
    let cookie = set.split(';').next().unwrap_or_default().to_owned();
    const TIMES: usize = 8;
    for _ in 0..TIMES {
        let answer = get(topology, "/", &format!("Cookie: {cookie}\r\n"))?;
        ensure!(server(&answer)? == home, "{cookie}, set by {home}, led to {}", server(&answer)?);
    }
    println!("  {TIMES} connections with \"Cookie: {cookie}\" -> server {home}, which set it");
    Ok(())
}

fn download(topology: &Topology, hairpin: &Hairpin) -> Result<()> {
    let target = end(vip(Family::V4), HTTP_PORT);
    let page = load::curl(&topology.client, topology, &target, "files/10m", "page")?;
    let sent = std::fs::read(topology.scratch.file("pages/10m"))?;
    ensure!(std::fs::read(&page.body)? == sent, "10 MB from /files/ arrived changed");
    println!("  GET /files/10m -> 10 MB from {}, unchanged", page.header("x-server").unwrap_or("a server"));
    println!("  {DOWNLOADS} times /files/100m over one connection, and what forwards the packets meanwhile:");
    let before = forwarded(hairpin)?;
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--fail", "--output", "/dev/null", "--max-time", "60"]);
    curl.arg(format!("http://{target}/files/100m?[1-{DOWNLOADS}]"));
    let start = Instant::now();
    let mut process = topology.client.start(curl, &topology.scratch.file("download"))?;
    let (mut last, mut seconds) = (before, 0.0);
    let status = loop {
        if let Some(status) = process.status()? {
            break status;
        }
        let at = start.elapsed().as_secs_f64();
        ensure!(at < 60.0, "the download takes too long");
        std::thread::sleep(Duration::from_millis(5));
        if at < seconds + SAMPLE_EVERY_S {
            continue;
        }
        let now = forwarded(hairpin)?;
        let rate = |now: u64, last: u64| metric(now.saturating_sub(last) as f64 / (at - seconds));
        println!(
            "    {at:4.1} s: worker {:>8}packets/s, kernel {:>8}packets/s",
            rate(now.software, last.software),
            rate(now.offloaded, last.offloaded)
        );
        (last, seconds) = (now, at);
    };
    let took = start.elapsed().as_secs_f64();
    ensure!(status.success(), "curl: {}", process.log());
    // The engine's last counters are read once a second.
    std::thread::sleep(Duration::from_millis(1200));
    let after = forwarded(hairpin)?;
    let [software, offloaded] = [after.software - before.software, after.offloaded - before.offloaded];
    let share = offloaded as f64 / (offloaded + software).max(1) as f64;
    let bits = (DOWNLOADS * (100 << 20) * 8) as f64 / took;
    let handed = after.handed - before.handed;
    ensure!(handed >= DOWNLOADS as u64 / 2, "of {DOWNLOADS} large responses {handed} were handed to the kernel");
    ensure!(share > 0.5, "of the packets {:.1} % were offloaded", share * 100.0);
    println!(
        "    {}bit/s; the heads went through the worker, {handed} bodies and {:.1} % of all packets past it",
        metric(bits),
        share * 100.0
    );
    Ok(())
}

/// A download and a WebSocket go on while the process is killed and another one starts, and while a new one takes over.
fn survive(topology: &Topology, hairpin: &mut Hairpin) -> Result<()> {
    let to = SocketAddr::new(vip(Family::V4), HTTP_PORT);
    let page = topology.scratch.file("survives");
    println!("  A download of 100 MB and a WebSocket, while the process is killed and replaced:");
    let talk = WebSocketTalk::start((&topology.servers[1], TALK_PORT), &topology.client, to, "/socket")?;
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--limit-rate", "25M", "--output"]);
    curl.arg(&page).arg(format!("http://{to}/files/100m"));
    let mut download = topology.client.start(curl, &topology.scratch.file("survives.log"))?;
    let tell = |what: &str| {
        let bytes = std::fs::metadata(&page).map_or(0, |facts| facts.len());
        println!("    {what}: {:>3} MB came down, {:>3} messages came back", bytes >> 20, talk.answered());
    };
    std::thread::sleep(Duration::from_secs(1));
    tell("before                ");
    hairpin.end(Signal::SIGKILL)?;
    std::thread::sleep(Duration::from_millis(500));
    tell("kill -9, no process   ");
    hairpin.start_again(topology, &[])?;
    std::thread::sleep(Duration::from_millis(500));
    tell("another process       ");
    hairpin.upgrade(topology, &hairpin_program()?)?;
    std::thread::sleep(Duration::from_millis(500));
    tell("after an upgrade      ");
    let status = download.wait(Duration::from_secs(60))?;
    ensure!(status.success(), "curl: {}", download.log());
    tell("at its end            ");
    ensure!(std::fs::read(&page)? == std::fs::read(topology.scratch.file("pages/100m"))?, "100 MB arrived changed");
    let adopted = hairpin.status()?.adopted_http;
    ensure!(adopted.clients >= 2, "the upgrade took {} connections over", adopted.clients);
    let answered = talk.stop().context("the WebSocket broke")?;
    println!("    every byte is right, and all of {answered} messages came back");
    Ok(())
}

/// How many packets of large files software and engine forwarded, and how many bodies the engine was handed.
#[derive(Clone, Copy)]
struct ForwardedCounts {
    software: u64,
    offloaded: u64,
    handed: u64,
}

fn forwarded(hairpin: &Hairpin) -> Result<ForwardedCounts> {
    let status = hairpin.status()?;
    let files = status.service("shop/files").context("no group \"files\" in the status")?;
    let handed = status.http.as_ref().context("no HTTP in the status")?.offloaded_total;
    Ok(ForwardedCounts { software: files.software.packets, offloaded: files.offloaded.packets, handed })
}

fn names(topology: &Topology) -> Result<()> {
    for (name, server) in [("one.example", "server1"), ("a.two.example", "server2")] {
        let mut curl = topology.client.command("curl");
        curl.args(["--silent", "--show-error", "--fail", "--max-time", "20", "--output", "/dev/null"]);
        curl.arg("--cacert").arg(topology.scratch.file("certificate.pem"));
        curl.arg("--resolve").arg(format!("{name}:{TLS_PORT}:{}", vip(Family::V4)));
        curl.args(["--dump-header", "-"]).arg(format!("https://{name}/1k"));
        let head = command::output(&mut curl)?;
        let answered = head.to_ascii_lowercase().contains(&format!("x-server: {server}"));
        ensure!(answered, "https://{name} was answered {head}");
        println!("  https://{name}/ -> {server}, by the name in the ClientHello; TLS from end to end");
    }
    Ok(())
}

/// The tables of a status that are about HTTP.
fn tables(status: &str) -> String {
    let ours = |table: &&str| ["HTTP AND TLS", "SO FAR"].iter().any(|title| table.starts_with(title));
    status.split("\n\n").filter(ours).map(str::trim_end).collect::<Vec<_>>().join("\n\n")
}
