//! What Hairpin says in responses beside backends: CORS, and bodies of its own.

use crate::authentication::write_users;
use crate::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{HTTP_PORT, Servers, web};
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, end, server_address, vip};
use libtest_mimic::Trial;
use serde_json::Value;
use std::net::TcpListener;
use std::path::Path;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("responses: CORS by HTTP/1.1 and HTTP/2", cors),
        test("responses: error pages by HTTP/1.1 and HTTP/2", error_pages),
        test("responses: pages of 401, 413, 429 and 504", pages_of_refusals),
    ]
}

/// What one client may ask in the test of refusals.
const REQUESTS: u32 = 7;
const SILENT_PORT: u16 = 8099;
const HTML: &str = "text/html; charset=utf-8";
const NOT_FOUND: &str = "<h1>Not here</h1>\n";
const GONE: &str = "<h1>Gone</h1>\n";
const NAME: &str = "web.test";
const SHOP: &str = "Origin: https://shop.example";
const PREFLIGHT: [&str; 3] = ["--request", "OPTIONS", "--header=Access-Control-Request-Method: PUT"];

/// The head of a response, its names of fields in small letters.
fn head(topology: &Topology, certificate: &Path, arguments: &[&str], path: &str) -> Result<Vec<String>> {
    head_and_body(topology, certificate, Path::new("/dev/null"), arguments, path)
}

/// [`head`], with the body of the response in the file `body`.
fn head_and_body(
    topology: &Topology,
    certificate: &Path,
    body: &Path,
    arguments: &[&str],
    path: &str,
) -> Result<Vec<String>> {
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--dump-header", "-", "--output"]).arg(body);
    curl.arg("--cacert").arg(certificate).args(["--resolve", &format!("{NAME}:443:{}", vip(Family::V4))]);
    for argument in arguments {
        match argument.split_once('=') {
            Some((option, value)) if option.starts_with("--") => curl.args([option, value]),
            _ => curl.arg(argument),
        };
    }
    let text = command::output(curl.arg(format!("https://{NAME}/{path}")))?;
    let lower = |line: &str| match line.trim_end().split_once(": ") {
        Some((name, value)) => format!("{}: {value}", name.to_ascii_lowercase()),
        None => line.trim_end().to_owned(),
    };
    Ok(text.lines().map(lower).filter(|line| !line.is_empty()).collect())
}

/// The status, and what the head says of CORS.
fn said(head: &[String]) -> Vec<&str> {
    let status = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let of_cors = |line: &&String| line.starts_with("access-control-") || line.starts_with("vary");
    std::iter::once(status).chain(head.iter().filter(of_cors).map(String::as_str)).collect()
}

fn cors() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let certificate = web::certificate(&topology, "web.pem", &[NAME])?;
    let tables = "[service.cors]\norigins = [\"https://shop.example\"]\nmethods = [\"PUT\"]\nexpose = [\"X-Server\"]\n\
                  credentials = true\n[[service.route]]\npath = \"/4k\"\ncors.origins = []\n\
                  response_headers.set = { Access-Control-Allow-Origin = \"backend\" }\n\
                  [[service.route]]\npath = \"/1k\"\nresponse_headers.set = { Access-Control-Allow-Origin = \"backend\" }\n\
                  [[service.access]]\naction = \"deny\"\npath = \"/secret\"\n";
    let service = PeerService::https("tls", 443, &certificate);
    let mut services = [PeerService { tables: format!("{tables}{}", service.tables), ..service }];
    let options = HairpinOptions::default();
    let mut hairpin = Hairpin::start(&topology, &services, &options)?;
    let preflight = |origin: &str, version: &str, path: &str| {
        let header = format!("--header={origin}");
        head(&topology, &certificate, &[&PREFLIGHT[..], &[&header, version]].concat(), path)
    };
    for version in ["--http1.1", "--http2"] {
        let got = preflight(SHOP, version, "1k")?;
        let expected = [
            "204",
            "access-control-allow-origin: https://shop.example",
            "access-control-allow-credentials: true",
            "access-control-allow-methods: PUT",
            "access-control-max-age: 600",
            "vary: Origin",
        ];
        ensure!(said(&got) == expected, "{version}: {got:?}");
        ensure!(!got.iter().any(|line| line.starts_with("x-server")), "a preflight reached a backend: {got:?}");
        let got = preflight("Origin: https://evil.example", version, "1k")?;
        ensure!(said(&got) == ["204", "vary: Origin"], "{version}: {got:?}");
        let got = preflight(SHOP, version, "secret")?;
        ensure!(said(&got) == ["403"], "{version}: {got:?}");
        let got = head(&topology, &certificate, &[version, "--header", SHOP], "1k")?;
        let expected = [
            "200",
            "access-control-allow-origin: https://shop.example",
            "access-control-allow-credentials: true",
            "access-control-expose-headers: X-Server",
            "vary: Origin",
        ];
        ensure!(said(&got) == expected, "{version}: {got:?}");
        let got = head(&topology, &certificate, &[version], "1k")?;
        ensure!(said(&got) == ["200", "vary: Origin"], "{version}: {got:?}");
        // Here the backend speaks for itself.
        let got = head(&topology, &certificate, &[version, "--header", SHOP], "4k")?;
        ensure!(said(&got)[1..] == ["access-control-allow-origin: backend"], "{version}: {got:?}");
        let got = preflight(SHOP, version, "4k")?;
        ensure!(said(&got)[0] == "405", "nginx answers OPTIONS for a file so: {got:?}");
    }
    let status: Value = serde_json::from_str(&hairpin.tell(&topology, &["status", "-o", "json"])?)?;
    ensure!(status["https"]["events"]["cors-preflights"]["total"] == 4, "{}", status["https"]);
    services[0].tables = services[0].tables.replace("shop.example", "other.example");
    hairpin.configure(&topology, &services, &options)?;
    hairpin.tell(&topology, &["reload"])?;
    let got = preflight(SHOP, "--http2", "1k")?;
    ensure!(said(&got) == ["204", "vary: Origin"], "after a reload: {got:?}");
    hairpin.process().check()
}

/// Each refusal has the page for its body, and keeps its own fields.
fn pages_of_refusals() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    // It takes connections, and never answers.
    let _silent = inside::run(&topology.servers[1], || Ok(TcpListener::bind(("0.0.0.0", SILENT_PORT))?))?;
    let certificate = web::certificate(&topology, "web.pem", &[NAME])?;
    let [page, users] = ["page.html", "users"].map(|name| topology.scratch.file(name));
    std::fs::write(&page, GONE)?;
    write_users(&users, &["ann"], "sesame")?;
    let tables = format!(
        "error_pages = {{ 401 = {page:?}, 413 = {page:?}, 429 = {page:?}, 504 = {page:?} }}\n\
         [service.http.limits]\nbody_bytes_max = 1000\nresponse_timeout = \"300ms\"\n\
         [[service.limit]]\nrequests = {REQUESTS}\nwithin = \"1h\"\n\
         [[service.group]]\nname = \"silent\"\nbackends = [\"{}\"]\nhealth.check = \"none\"\n\
         [[service.group]]\nname = \"live\"\nbackends = [\"{}\"]\n\
         [[service.route]]\npath_prefix = \"/silent\"\ngroup = \"silent\"\n\
         [[service.route]]\npath_prefix = \"/staff\"\ngroup = \"live\"\nbasic = {{ users_file = {users:?} }}\n\
         [[service.route]]\ngroup = \"live\"\n",
        end(server_address(Family::V4, 2), SILENT_PORT),
        end(server_address(Family::V4, 1), HTTP_PORT),
    );
    let service = PeerService::https("tls", 443, &certificate);
    let services = [PeerService { servers: Vec::new(), tables: format!("{tables}{}", service.tables), ..service }];
    let mut hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
    let got = topology.scratch.file("got");
    let meets = |arguments: &[&str], path: &str, status: &str, field: &str| -> Result<()> {
        let head = head_and_body(&topology, &certificate, &got, arguments, path)?;
        let met = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
        let has_fields = [field, "content-length: 14", "cache-control: no-store"]
            .iter()
            .all(|wanted| head.iter().any(|line| line.starts_with(wanted)));
        let text = std::fs::read_to_string(&got)?;
        ensure!(met == status && has_fields && text == GONE, "{arguments:?} {path}: {head:?} {text:.100}");
        Ok(())
    };
    let long = format!("--data={}", "x".repeat(1001));
    for version in ["--http1.1", "--http2"] {
        meets(&[version], "staff", "401", "www-authenticate: Basic")?;
        meets(&[version, &long], "1k", "413", "content-type: text/html")?;
        meets(&[version], "silent", "504", "content-type: text/html")?;
    }
    let head = head_and_body(&topology, &certificate, &got, &[], "1k")?;
    ensure!(head[0].contains("200"), "within every limit: {head:?}");
    for version in ["--http1.1", "--http2"] {
        meets(&[version], "1k", "429", "retry-after: ")?;
    }
    hairpin.process().check()
}

fn error_pages() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let certificate = web::certificate(&topology, "web.pem", &[NAME])?;
    let [not_found, broken, api] = ["404.html", "5xx.html", "api.json"].map(|name| topology.scratch.file(name));
    std::fs::write(&not_found, NOT_FOUND)?;
    // The longest, for which heads of Hairpin's own have no room.
    let long = "<p>back soon</p>".repeat(4096);
    std::fs::write(&broken, &long)?;
    std::fs::write(&api, "{\"error\": 502}\n")?;
    let server = server_address(Family::V4, 1);
    let tables = format!(
        "error_pages = {{ 404 = {not_found:?}, 5xx = {broken:?} }}\n\
         [[service.group]]\nname = \"dead\"\nbackends = [\"{server}:9\"]\nhealth.check = \"none\"\n\
         [[service.group]]\nname = \"live\"\nbackends = [\"{server}:{HTTP_PORT}\"]\n\
         [[service.route]]\npath_prefix = \"/dead/\"\ngroup = \"dead\"\n\
         [[service.route]]\npath_prefix = \"/api/\"\ngroup = \"dead\"\nerror_pages = {{ 502 = {api:?} }}\n\
         [[service.route]]\npath_prefix = \"/own/\"\nreply = {{ status = 404, body = \"mine\" }}\n\
         [[service.route]]\npath_prefix = \"/live/\"\ngroup = \"live\"\nreplace_prefix = \"/\"\n"
    );
    let service = PeerService::https("tls", 443, &certificate);
    let services = [PeerService { servers: Vec::new(), tables: format!("{tables}{}", service.tables), ..service }];
    let options = HairpinOptions::default();
    let mut hairpin = Hairpin::start(&topology, &services, &options)?;
    let got = topology.scratch.file("got");
    // The status and the fields about the body, and the body.
    let ask = |arguments: &[&str], path: &str| -> Result<(Vec<String>, String)> {
        let head = head_and_body(&topology, &certificate, &got, arguments, path)?;
        let status = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
        let of_page = ["content-type", "content-length", "cache-control"];
        let fields = head.into_iter().filter(|line| of_page.iter().any(|name| line.starts_with(name)));
        Ok((std::iter::once(status).chain(fields).collect(), std::fs::read_to_string(&got)?))
    };
    let page = |status: &str, kind: &str, length: usize| {
        let [kind, length] = [format!("content-type: {kind}"), format!("content-length: {length}")];
        vec![status.to_owned(), kind, length, "cache-control: no-store".to_owned()]
    };
    for version in ["--http1.1", "--http2"] {
        let meets = |arguments: &[&str], path: &str, head: &[String], body: &str| -> Result<()> {
            std::fs::write(&got, "")?;
            let (met, text) = ask(&[&[version], arguments].concat(), path)?;
            // curl writes the head of the response to HEAD as its body.
            let is_right = if arguments == ["--head"] { !text.contains('<') } else { text == body };
            ensure!(met == head && is_right, "{version} {arguments:?} {path}: {met:?} {text:.100}");
            Ok(())
        };
        let not_found = page("404", HTML, NOT_FOUND.len());
        meets(&[], "nowhere", &not_found, NOT_FOUND)?;
        meets(&["--data", "x"], "nowhere", &not_found, NOT_FOUND)?;
        meets(&["--head"], "nowhere", &not_found, "")?;
        meets(&[], "dead/1", &page("502", HTML, long.len()), &long)?;
        meets(&["--head"], "dead/1", &page("502", HTML, long.len()), "")?;
        meets(&[], "api/1", &page("502", "application/json", 15), "{\"error\": 502}\n")?;
        // A text of its own stays, and what backends say does.
        let (own, text) = ask(&[version], "own/1")?;
        ensure!(own == ["404", "content-type: text/plain", "content-length: 4"] && text == "mine", "{own:?} {text}");
        let (backend, text) = ask(&[version], "live/nowhere")?;
        ensure!(backend[0] == "404" && text.contains("nginx"), "{version}: a backend's 404: {backend:?} {text}");
    }
    std::fs::write(&not_found, GONE)?;
    let (_, before) = ask(&["--http2"], "nowhere")?;
    ensure!(before == NOT_FOUND, "a page changes without a reload: {before}");
    let said = hairpin.tell(&topology, &["reload"])?;
    ensure!(said.contains("error_pages"), "what changes is not told: {said}");
    for version in ["--http1.1", "--http2"] {
        let (head, text) = ask(&[version], "nowhere")?;
        ensure!((&*head[0], &*text) == ("404", GONE), "after a reload: {head:?} {text}");
    }
    std::fs::remove_file(&not_found)?;
    let refused = hairpin.tell(&topology, &["reload"]).err().context("a reload without the file was taken")?;
    ensure!(format!("{refused:#}").contains("404.html\": cannot read it"), "{refused:#}");
    let (head, text) = ask(&["--http2"], "nowhere")?;
    ensure!((&*head[0], &*text) == ("404", GONE), "after a reload that was refused: {head:?} {text}");
    hairpin.process().check()
}
