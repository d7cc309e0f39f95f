//! What Hairpin says in responses beside backends: CORS.

use crate::network::test;
use anyhow::{Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::{Servers, web};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use serde_json::Value;
use std::path::Path;

pub(crate) fn tests() -> Vec<Trial> {
    vec![test("responses: CORS by HTTP/1.1 and HTTP/2", cors)]
}

const NAME: &str = "web.test";
const SHOP: &str = "Origin: https://shop.example";
const PREFLIGHT: [&str; 3] = ["--request", "OPTIONS", "--header=Access-Control-Request-Method: PUT"];

/// The head of a response, its names of fields in small letters.
fn head(topology: &Topology, certificate: &Path, arguments: &[&str], path: &str) -> Result<Vec<String>> {
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--max-time", "20", "--output", "/dev/null", "--dump-header", "-"]);
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
