//! The access log: a line for each exchange and connection, with sizes that are those that went over the wire.

use super::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, client_address, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::Value;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("access log: exchanges, with what the client got", exchanges),
        test("access log: exchanges of https services", terminated),
        test("access log: ids of requests, made or of trusted clients", request_ids),
        test("access log: connections, with what rules carried", connections),
        test("access log: forms, filters and samples, by reload", forms),
        test("access log: files are followed, syslog is spoken", outputs),
        test("access log: a full disk changes nothing for traffic", full_disk),
    ]
}

/// Until when a line has to be there.
const PATIENCE: Duration = Duration::from_secs(10);

fn service() -> PeerService {
    PeerService { server_port: HTTP_PORT, ..PeerService::http("web", 80) }
}

fn options(to: &Path, more: &str, service: &str) -> HairpinOptions {
    let tables = format!("[access_log]\nto = \"{}\"\n{more}\n[metrics]\nlisten = \"127.0.0.1:9560\"\n", to.display());
    HairpinOptions { tables, service: service.to_owned(), ..HairpinOptions::default() }
}

/// Waits for `count` lines of a file.
fn lines(file: &Path, count: usize) -> Result<Vec<String>> {
    let start = Instant::now();
    loop {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        if lines.len() >= count {
            ensure!(lines.len() == count, "{} lines, not {count}: {lines:#?}", lines.len());
            return Ok(lines);
        }
        ensure!(start.elapsed() < PATIENCE, "{} of {count} lines in {}: {lines:#?}", lines.len(), file.display());
        sleep(Duration::from_millis(50));
    }
}

fn parsed(lines: &[String]) -> Result<Vec<Value>> {
    lines.iter().map(|line| serde_json::from_str(line).with_context(|| line.clone())).collect()
}

/// Fetches something; what curl says of it.
fn fetch(topology: &Topology, arguments: &[&str], target: &str) -> Result<Value> {
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--max-time", "20", "--output", "/dev/null", "--write-out", "%{json}"]);
    curl.args(arguments).arg(format!("http://{}{target}", vip(Family::V4)));
    let output = curl.output()?;
    Ok(serde_json::from_slice(&output.stdout)?)
}

fn exchanges() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let log = topology.scratch.file("access.log");
    let mut hairpin = Hairpin::start(&topology, &[service()], &options(&log, "", ""))?;
    let agent = ["--user-agent", "a \"b\" \u{e9}"];
    let mut said = Vec::new();
    for (arguments, target) in [
        (&agent[..], "/1k?a=\"b\""),
        (&["--referer", "http://elsewhere/"], "/10m"),
        (&["--data-binary", "@/dev/null", "--header", "Expect:"], "/1k"),
        (&["--http1.0"], "/128k"),
        (&["--request", "BREW"], "/missing"),
    ] {
        said.push((target, fetch(&topology, arguments, target)?));
    }
    let written = parsed(&lines(&log, said.len())?)?;
    for (line, (target, curl)) in written.iter().zip(&said) {
        let number = |name: &str| curl[name].as_u64().unwrap_or_default();
        let (got, sent) = (number("size_header") + number("size_download"), number("size_request"));
        ensure!(line["bytes_out"] == got, "the client got {got} bytes: {line}");
        ensure!(line["bytes_in"] == sent + number("size_upload"), "the client sent {sent} bytes: {line}");
        ensure!(line["status"] == curl["response_code"] && line["target"] == *target, "{line}, {curl}");
        ensure!(line["client_port"] == curl["local_port"], "{line}, {curl}");
        ensure!(line["client"] == client_address(Family::V4).to_string(), "{line}");
        ensure!(line["service"] == "web" && line["ending"] == "done" && line["tries"] == 1, "{line}");
        let backend = line["backend"].as_str().unwrap_or_default();
        ensure!(backend.starts_with("server") && line["backend_address"].is_string(), "{line}");
        let [connected, answered, took] =
            ["to_backend_us", "to_response_us", "took_us"].map(|name| line[name].as_u64().unwrap_or(u64::MAX));
        ensure!(connected <= answered && answered <= took && took < 20_000_000, "{line}");
    }
    ensure!(written[0]["user_agent"] == agent[1], "{}", written[0]);
    ensure!(written[1]["referer"] == "http://elsewhere/" && written[1]["carrier"] == "engine", "{}", written[1]);
    ensure!(written[0]["carrier"] == "software", "{}", written[0]);
    ensure!(written[3]["version"] == "HTTP/1.0" && written[4]["method"] == "BREW", "{written:?}");
    // What is no HTTP is answered, and has a line as well.
    let to = SocketAddr::new(vip(Family::V4), 80);
    let mut stream = inside::run(&topology.client, move || Ok(TcpStream::connect_timeout(&to, PATIENCE)?))?;
    stream.write_all(b"GET  / HTTP/1.1\r\n\r\n")?;
    let all = parsed(&lines(&log, said.len() + 1)?)?;
    let last = all.last().context("no line")?;
    ensure!(last["status"] == 400 && last["reason"] == "malformed" && last["ending"] == "answered", "{last}");
    // A download that goes on while the process is upgraded ends in the next one's log.
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--fail", "--max-time", "30", "--limit-rate", "3M", "--output", "/dev/null"]);
    curl.arg(format!("http://{}/10m", vip(Family::V4)));
    let mut slow = topology.client.start(curl, &topology.scratch.file("slow"))?;
    sleep(Duration::from_millis(500));
    hairpin.upgrade(&topology, &hairpin_e2e::peer::hairpin_program()?)?;
    slow.wait(Duration::from_secs(30))?;
    let all = parsed(&lines(&log, said.len() + 2)?)?;
    let last = all.last().context("no line")?;
    ensure!(last["status"] == 200 && last["bytes_out"] == written[1]["bytes_out"], "{last}");
    Ok(())
}

fn terminated() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let log = topology.scratch.file("access.log");
    let pem = certificate(&topology, "log.pem", &["web.test"])?;
    let hairpin = Hairpin::start(&topology, &[PeerService::https("secure", 443, &pem)], &options(&log, "", ""))?;
    let mut said = Vec::new();
    for (version, target) in [("--http1.1", "/10m"), ("--http1.1", "/1k?a"), ("--http2", "/10m"), ("--http2", "/1k")] {
        let url = format!("https://{}{target}", vip(Family::V4));
        let mut curl = topology.client.command("curl");
        curl.args(["--silent", "--insecure", "--max-time", "20", "--output", "/dev/null", "--write-out", "%{json}"]);
        let output = curl.args([version, "--data-binary", "some text", &url]).output()?;
        said.push((version, target, serde_json::from_slice::<Value>(&output.stdout)?));
        lines(&log, said.len())?;
    }
    let written = parsed(&lines(&log, said.len())?)?;
    for (line, (version, target, curl)) in written.iter().zip(&said) {
        let number = |name: &str| curl[name].as_u64().unwrap_or_default();
        let (got, sent) = (number("size_header") + number("size_download"), number("size_request"));
        let [bytes_in, bytes_out] = ["bytes_in", "bytes_out"].map(|name| line[name].as_u64().unwrap_or_default());
        if *version == "--http1.1" {
            ensure!(line["version"] == "HTTP/1.1", "{line}");
            ensure!(bytes_out == got, "the client got {got} bytes: {line}");
            ensure!(bytes_in == sent + 9 || bytes_in == sent, "the client sent {sent} bytes: {line}");
        } else {
            // Heads count as if they were HTTP/1.1's.
            ensure!(line["version"] == "HTTP/2.0", "{line}");
            let body = number("size_download");
            ensure!(bytes_out > body && bytes_out < body + 1000 && bytes_in > 9, "{body} bytes of body: {line}");
        }
        ensure!(line["status"] == curl["response_code"] && line["target"] == *target, "{line}, {curl}");
        ensure!(line["service"] == "secure" && line["tls"] == true && line["method"] == "POST", "{line}");
        ensure!(line["ending"] == "done" && line["tries"] == 1 && line["route"].is_null(), "{line}");
        let [connected, answered, took] =
            ["to_backend_us", "to_response_us", "took_us"].map(|name| line[name].as_u64().unwrap_or(u64::MAX));
        ensure!(connected <= answered && answered <= took && took < 20_000_000, "{line}");
        let time = line["time"].as_str().unwrap_or_default();
        ensure!(time.starts_with("20"), "{line}");
    }
    // A client that breaks off.
    let mut curl = topology.client.command("curl");
    curl.args([
        "--silent",
        "--insecure",
        "--max-time",
        "1",
        "--limit-rate",
        "1M",
        "--output",
        "/dev/null",
        "--http1.1",
    ]);
    let _ = curl.arg(format!("https://{}/100m", vip(Family::V4))).output()?;
    let last = parsed(&lines(&log, said.len() + 1)?)?.pop().context("no line")?;
    ensure!(last["ending"] == "client" && last["status"] == 200, "{last}");
    drop(hairpin);
    Ok(())
}

fn request_ids() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let log = topology.scratch.file("access.log");
    let pem = certificate(&topology, "ids.pem", &["web.test"])?;
    let services = |trusted: &str| {
        let http =
            format!("[service.http]\nrequest_id = \"X-Request-Id\"\n[service.http.forwarded]\ntrusted = [{trusted}]\n");
        let secure = PeerService::https("secure", 443, &pem);
        let secure = PeerService { tables: format!("{}{http}", secure.tables), ..secure };
        [PeerService { tables: http, ..service() }, secure]
    };
    // What the backend has seen, and the line.
    let fetch = |scheme: &str, version: &str, count: usize| -> Result<(String, Value)> {
        let mut curl = topology.client.command("curl");
        curl.args([
            "--silent",
            "--insecure",
            "--fail",
            "--max-time",
            "20",
            version,
            "--header",
            "x-request-id: theirs-1",
        ]);
        curl.args(["--header", "traceparent: untouched"]);
        let output = curl.arg(format!("{scheme}://{}/marks", vip(Family::V4))).output()?;
        let seen = String::from_utf8(output.stdout)?;
        Ok((seen, parsed(&lines(&log, count)?)?.pop().context("no line")?))
    };
    let kinds = [("http", "--http1.1"), ("https", "--http1.1"), ("https", "--http2")];
    let hairpin = Hairpin::start(&topology, &services(""), &options(&log, "", ""))?;
    let mut made = Vec::new();
    for (at, (scheme, version)) in kinds.into_iter().enumerate() {
        let (seen, line) = fetch(scheme, version, at + 1)?;
        let id = line["request_id"].as_str().context("no request_id")?.to_owned();
        ensure!(id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit()), "{line}");
        ensure!(seen.trim_end() == format!("{id} untouched"), "the backend saw {seen:?}: {line}");
        ensure!(line["trace_id"].is_null() && !made.contains(&id), "{line}");
        made.push(id);
    }
    let client = client_address(Family::V4);
    hairpin.configure(&topology, &services(&format!("\"{client}/32\"")), &options(&log, "", ""))?;
    hairpin.tell(&topology, &["reload"])?;
    for (at, (scheme, version)) in kinds.into_iter().enumerate() {
        let (seen, line) = fetch(scheme, version, made.len() + at + 1)?;
        ensure!(seen.trim_end() == "theirs-1 untouched" && line["request_id"] == "theirs-1", "{seen:?}: {line}");
    }
    Ok(())
}

fn connections() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let log = topology.scratch.file("access.log");
    let tables = "[timeouts]\ntcp_closed = \"1s\"\n";
    let mut options = options(&log, "", "");
    options.tables += tables;
    let _hairpin = Hairpin::start(&topology, &[PeerService::tcp("forward", Family::V4, HTTP_PORT)], &options)?;
    let curl = fetch(&topology, &[], "/10m")?;
    let line = parsed(&lines(&log, 1)?)?.remove(0);
    ensure!(line["kind"] == "connection" && line["service"] == "forward" && line["ending"] == "done", "{line}");
    let body = curl["size_download"].as_u64().unwrap_or_default();
    let (packets, bytes) = (line["packets_out"].as_u64().unwrap_or(0), line["bytes_out"].as_u64().unwrap_or(0));
    ensure!(packets >= body / 1448 && bytes >= body && bytes < body + packets * 120, "{body} bytes of body: {line}");
    ensure!(line["carrier"] == "engine" && line["client_port"] == curl["local_port"], "{line}");
    ensure!(line["target"].is_null() && line["status"].is_null(), "{line}");
    Ok(())
}

fn forms() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let [first, second, third] = ["combined", "template", "filtered"].map(|name| topology.scratch.file(name));
    let mut hairpin = Hairpin::start(&topology, &[service()], &options(&first, "format = \"combined\"", ""))?;
    fetch(&topology, &["--user-agent", "me \"and\" you\u{e9}"], "/1k")?;
    let line = lines(&first, 1)?.remove(0);
    let client = client_address(Family::V4);
    let (start, end) = (format!("{client} - - ["), " +0000] \"GET /1k HTTP/1.1\" 200 ");
    ensure!(line.starts_with(&start) && line.contains(end), "{line}");
    ensure!(line.ends_with(r#" "-" "me \x22and\x22 you\xC3\xA9""#), "{line}");

    let template = "format = \"template\"\ntemplate = \"{method} {target} to {service}: {status} {ending}\"";
    hairpin.configure(&topology, &[service()], &options(&second, template, ""))?;
    let said = hairpin.tell(&topology, &["reload"])?;
    ensure!(said.contains("[access_log] to") && said.contains("[access_log] format"), "{said}");
    fetch(&topology, &[], "/1k")?;
    ensure!(lines(&second, 1)? == ["GET /1k to web: 200 done"], "{:?}", lines(&second, 1));
    ensure!(lines(&first, 1).is_ok(), "it went to the file of before as well");

    // One in three, and every 404.
    let fields = "fields = [\"target\", \"status\"]";
    hairpin.configure(
        &topology,
        &[PeerService { tables: "[service.access_log]\nstatus = \"200-499\"\nsample = 3\n".into(), ..service() }],
        &options(&third, fields, ""),
    )?;
    hairpin.tell(&topology, &["reload"])?;
    for _ in 0..9 {
        fetch(&topology, &[], "/1k")?;
    }
    let written = lines(&third, 3)?;
    ensure!(written.iter().all(|line| line == r#"{"target":"/1k","status":200}"#), "{written:?}");

    // None at all.
    hairpin.configure(
        &topology,
        &[PeerService { tables: "[service.access_log]\nenabled = false\n".into(), ..service() }],
        &options(&third, fields, ""),
    )?;
    hairpin.tell(&topology, &["reload"])?;
    fetch(&topology, &[], "/1k")?;
    // What a file must not say changes nothing.
    hairpin.configure(&topology, &[service()], &options(Path::new("relative.log"), "fields = [\"statsu\"]", ""))?;
    let refused = hairpin.tell(&topology, &["reload"]).err().context("a wrong file was taken")?;
    let refused = format!("{refused:#}");
    ensure!(refused.contains("did you mean `status`") && refused.contains("is no absolute path"), "{refused}");
    hairpin.end(Signal::SIGTERM)?;
    ensure!(lines(&third, 3).is_ok(), "a service without a log has lines");
    Ok(())
}

fn outputs() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let log = topology.scratch.file("access.log");
    let mut hairpin = Hairpin::start(&topology, &[service()], &options(&log, "", ""))?;
    let moved = |name: &str| -> Result<PathBuf> {
        let to = topology.scratch.file(name);
        std::fs::rename(&log, &to)?;
        Ok(to)
    };
    fetch(&topology, &[], "/1k")?;
    lines(&log, 1)?;
    // Moved away and told; moved away and not told.
    let first = moved("first")?;
    hairpin.process().signal(Signal::SIGUSR1);
    sleep(Duration::from_millis(300));
    fetch(&topology, &[], "/1k")?;
    lines(&log, 1)?;
    let second = moved("second")?;
    sleep(Duration::from_millis(1500));
    fetch(&topology, &[], "/1k")?;
    lines(&log, 1)?;
    ensure!(lines(&first, 1).is_ok() && lines(&second, 1).is_ok(), "lines are not where they were");

    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let udp = inside::run(&topology.balancer, move || Ok(UdpSocket::bind(any)?))?;
    udp.set_read_timeout(Some(PATIENCE))?;
    let to = PathBuf::from(format!("syslog+udp:{}", udp.local_addr()?));
    hairpin.configure(&topology, &[service()], &options(&to, "fields = [\"status\"]", ""))?;
    hairpin.tell(&topology, &["reload"])?;
    fetch(&topology, &[], "/1k")?;
    let mut bytes = [0; 4096];
    let length = udp.recv(&mut bytes)?;
    let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
    ensure!(message.starts_with("<134>1 20") && message.ends_with(" access - {\"status\":200}"), "{message}");

    let tcp = inside::run(&topology.balancer, move || Ok(TcpListener::bind(any)?))?;
    let to = PathBuf::from(format!("syslog+tcp:{}", tcp.local_addr()?));
    hairpin.configure(&topology, &[service()], &options(&to, "fields = [\"status\"]", ""))?;
    hairpin.tell(&topology, &["reload"])?;
    fetch(&topology, &[], "/1k")?;
    let (mut stream, _) = tcp.accept()?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = stream.read(&mut bytes)?;
    let message = String::from_utf8_lossy(&bytes[..length]).into_owned();
    let (count, message) = message.split_once(' ').context("no count of octets")?;
    ensure!(count.parse() == Ok(message.len()) && message.starts_with("<134>1 "), "{count} {message}");
    // A server that is gone loses lines, which are counted, and no request.
    drop((stream, tcp));
    for _ in 0..5 {
        let curl = fetch(&topology, &[], "/1k")?;
        ensure!(curl["response_code"] == 200, "{curl}");
        sleep(Duration::from_millis(300));
    }
    lost_lines(&topology)?;
    let events = hairpin.tell(&topology, &["events"])?;
    ensure!(events.contains("the access log loses lines"), "{events}");
    Ok(())
}

/// Waits until the metrics say that lines were lost.
fn lost_lines(topology: &Topology) -> Result<()> {
    let start = Instant::now();
    loop {
        let metrics = topology.balancer.script("curl --silent --fail http://127.0.0.1:9560/metrics")?;
        let series = metrics.lines().find_map(|line| line.strip_prefix("hairpin_access_log_lines_lost_total "));
        if series.is_some_and(|count| count != "0") {
            return Ok(());
        }
        ensure!(start.elapsed() < PATIENCE, "no line was lost: {series:?}");
        sleep(Duration::from_millis(200));
    }
}

fn full_disk() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    // Nothing can be written there: ENOSPC.
    let hairpin = Hairpin::start(&topology, &[service()], &options(Path::new("/dev/full"), "", ""))?;
    for _ in 0..20 {
        let curl = fetch(&topology, &[], "/1k")?;
        ensure!(curl["response_code"] == 200, "{curl}");
    }
    lost_lines(&topology)?;
    let mut said = command::output(hairpin.command(&topology, &["events"])?.arg("--kind").arg("limit"))?;
    said.truncate(2000);
    ensure!(said.contains("/dev/full cannot be written: No space left"), "{said}");
    Ok(())
}
