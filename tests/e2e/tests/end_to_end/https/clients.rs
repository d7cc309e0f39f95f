//! Real clients of https services: a browser, and `openssl s_client`, which says what was agreed on; Node.js behind them.

use super::{NAME, PORT, Scene, url};
use crate::http::browser::{PageOptions, page, resources, show};
use crate::http::http_network::missing;
use crate::lane;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::PeerService;
use hairpin_e2e::servers::web::{self, NODE_PORT, WEBSOCKET_PORT, certificate};
use hairpin_e2e::topology::{Family, end, server_address, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::path::Path;

pub(super) fn tests() -> Vec<Trial> {
    let test = |name: &str, body: fn() -> Result<()>| lane::OWN.test(format!("https: {name}"), body);
    vec![
        test("a browser loads 100 resources, a WebSocket by HTTP/2", browses),
        test("Node.js is behind it", before_node),
        test("versions and ciphers are those that are served", versions_and_ciphers),
        test("names choose certificates", names_choose),
        test("sessions are resumed, also by the next process", sessions_are_resumed),
        test("client certificates are required", client_certificates),
    ]
}

/// Connections that a browser makes for a page: one for all requests, and some that it makes beforehand and never uses.
const CONNECTIONS_MAX: u64 = 4;

fn browses() -> Result<()> {
    if let Some(why) = missing("browser") {
        lane::skip(why);
        return Ok(());
    }
    let mut scene = Scene::start(&[], "")?;
    let _echo = web::websocket(&scene.topology)?;
    scene.services[0].tables.push_str(&sockets(WEBSOCKET_PORT));
    scene.reload()?;
    let (resources, pages) = (resources(), scene.topology.scratch.file("pages"));
    for resource in &resources {
        std::fs::write(pages.join(&resource.name), &resource.file)?;
    }
    let options = PageOptions { protocol: "h2", form: false, socket: true };
    std::fs::write(pages.join("browser.html"), page(&resources, options)?)?;
    let resolve = format!("--host-resolver-rules=MAP {NAME} {}", vip(Family::V4));
    let said = show(&scene.topology, &["--ignore-certificate-errors", &resolve], &url("browser.html"))?;
    ensure!(said == "well", "the page says: {said}");
    let status = scene.hairpin.status()?;
    let web = status.service("web").context("no service")?;
    ensure!(web.connections_total <= CONNECTIONS_MAX, "{} connections", web.connections_total);
    let sockets = status.service("web/sockets").context("no group")?;
    ensure!(sockets.backends.iter().any(|backend| backend.connections_total > 0), "no WebSocket was made");
    Ok(())
}

/// A route to a group with the server of WebSockets.
pub(crate) fn sockets(port: u16) -> String {
    let backend = end(server_address(Family::V4, 4), port);
    format!(
        "[[service.route]]\npath = \"/socket\"\ngroup = \"sockets\"\n\
         [[service.group]]\nname = \"sockets\"\nbackends = [\"{backend}\"]\n"
    )
}

fn before_node() -> Result<()> {
    let mut scene = Scene::start(&[], "")?;
    let _node = web::node(&scene.topology)?;
    let service = &mut scene.services[0];
    (service.servers, service.server_port) = (vec![3], NODE_PORT);
    scene.reload()?;
    let body = scene.topology.scratch.file("pages").join("128k");
    for option in ["--http1.1", "--http2"] {
        let file = scene.topology.scratch.file("from-node");
        scene.curl(&[option, "--output", &file.display().to_string()], &url("10m"))?;
        ensure!(std::fs::read(&file)? == std::fs::read(scene.topology.scratch.file("pages").join("10m"))?, "{option}");
        for length in ["Content-Length: 131072", "Transfer-Encoding: chunked"] {
            // By HTTP/2 curl leaves the second one out, and says no length.
            let said = scene
                .curl(&[option, "--header", length, "--data-binary", &format!("@{}", body.display())], &url("up"))?;
            ensure!(said.contains("131072"), "{option}, {length}: {said}");
        }
    }
    Ok(())
}

/// What `openssl s_client` prints of a request to the port.
fn s_client(scene: &Scene, port: u16, arguments: &str) -> Result<String> {
    let name = if arguments.contains("servername") { "" } else { "-servername web.test" };
    scene.topology.client.script(&format!(
        "printf 'GET /1k HTTP/1.1\\r\\nHost: {NAME}\\r\\nConnection: close\\r\\n\\r\\n' | timeout 20 openssl s_client \
         -connect {}:{port} -ign_eof {name} {arguments} 2>&1 || true\n",
        vip(Family::V4)
    ))
}

fn is_answered(said: &str) -> bool {
    said.contains("HTTP/1.1 200 ")
}

fn versions_and_ciphers() -> Result<()> {
    const STRICT: u16 = 8444;
    let scene = Scene::start(&[], "")?;
    let strict = PeerService::https("strict", STRICT, &scene.certificate);
    let scene = scene.with(PeerService { tables: strict.tables.clone() + "versions_min = \"1.3\"\n", ..strict })?;
    let trusted = format!("-verify_return_error -CAfile {}", scene.certificate.display());
    for cipher in ["ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-ECDSA-CHACHA20-POLY1305"] {
        let said = s_client(&scene, PORT, &format!("{trusted} -tls1_2 -cipher {cipher}"))?;
        ensure!(is_answered(&said) && said.contains(&format!("New, TLSv1.2, Cipher is {cipher}")), "{said}");
    }
    for suite in ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"] {
        for port in [PORT, STRICT] {
            let said = s_client(&scene, port, &format!("{trusted} -tls1_3 -ciphersuites {suite}"))?;
            ensure!(is_answered(&said) && said.contains(&format!("New, TLSv1.3, Cipher is {suite}")), "{said}");
        }
    }
    for (port, refused) in [
        // CBC, RSA key exchange, versions of old.
        (PORT, "-tls1_2 -cipher ECDHE-ECDSA-AES128-SHA256"),
        (PORT, "-tls1_2 -cipher AES128-GCM-SHA256"),
        (PORT, "-tls1_1 -cipher ALL:@SECLEVEL=0"),
        (PORT, "-tls1 -cipher ALL:@SECLEVEL=0"),
        (STRICT, "-tls1_2"),
    ] {
        let said = s_client(&scene, port, refused)?;
        ensure!(!is_answered(&said) && said.contains("alert"), "{refused} to {port}: {said}");
    }
    for (protocols, agreed) in [("h2,http/1.1", "h2"), ("http/1.1,h2", "h2"), ("http/1.1", "http/1.1")] {
        let said = s_client(&scene, PORT, &format!("-alpn {protocols}"))?;
        ensure!(said.contains(&format!("ALPN protocol: {agreed}")), "{protocols}: {said}");
    }
    Ok(())
}

fn names_choose() -> Result<()> {
    let mut scene = Scene::start(&[], "")?;
    let wild = certificate(&scene.topology, "wild.pem", &["*.wild.test"])?;
    let other = certificate(&scene.topology, "other.pem", &["other.test", "a.wild.test"])?;
    scene.services[0].tables = format!("[service.https]\ncertificates = {:?}\n", [&scene.certificate, &wild, &other]);
    scene.reload()?;
    for (name, served) in [
        ("-servername web.test", "DNS:web.test"),
        ("-servername b.wild.test", "DNS:*.wild.test"),
        ("-servername OTHER.test", "DNS:other.test"),
        // The exact name, before the wildcard.
        ("-servername a.wild.test", "DNS:other.test"),
        // A wildcard is for one label (RFC 9525, 6.3).
        ("-servername b.b.wild.test", "DNS:web.test"),
        ("-servername unknown.test", "DNS:web.test"),
        ("-noservername", "DNS:web.test"),
    ] {
        let said = s_client(&scene, PORT, name)?;
        let mut x509 = std::process::Command::new("openssl");
        x509.args(["x509", "-noout", "-ext", "subjectAltName"]);
        let names = command::output_with_input(&mut x509, &said)?;
        ensure!(names.contains(served), "{name}: {names}");
    }
    Ok(())
}

fn resumed(scene: &Scene, port: u16, session: &Path, arguments: &str) -> Result<String> {
    s_client(scene, port, &format!("-sess_in {} {arguments}", session.display()))
}

fn sessions_are_resumed() -> Result<()> {
    let mut scene = Scene::start(&[], "workers = 2")?;
    let mut sessions = Vec::new();
    for version in ["-tls1_2", "-tls1_3"] {
        let file = scene.topology.scratch.file(format!("session{version}"));
        let said = s_client(&scene, PORT, &format!("{version} -sess_out {}", file.display()))?;
        ensure!(is_answered(&said) && said.contains("New, TLSv1."), "{said}");
        // Whichever core it comes to.
        for _ in 0..4 {
            let said = resumed(&scene, PORT, &file, version)?;
            ensure!(is_answered(&said) && said.contains("Reused, TLSv1."), "{version}: {said}");
        }
        sessions.push((version, file));
    }
    scene.hairpin.end(Signal::SIGTERM)?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    for (version, file) in sessions {
        let said = resumed(&scene, PORT, &file, version)?;
        ensure!(is_answered(&said) && said.contains("Reused, TLSv1."), "{version}, by the next process: {said}");
    }
    Ok(())
}

fn client_certificates() -> Result<()> {
    const CLOSED: u16 = 8445;
    let scene = Scene::start(&[], "")?;
    let own = certificate(&scene.topology, "client.pem", &["client.test"])?;
    let foreign = certificate(&scene.topology, "foreign.pem", &["client.test"])?;
    let closed = PeerService::https("closed", CLOSED, &scene.certificate);
    let required = format!("client_certificates = \"required\"\nclient_roots = {own:?}\n");
    let scene = scene.with(PeerService { tables: closed.tables.clone() + &required, ..closed })?;
    let file = scene.topology.scratch.file("open-session");
    for version in ["-tls1_2", "-tls1_3"] {
        let with = |pem: &Path| format!("{version} -cert {0} -key {0}", pem.display());
        ensure!(is_answered(&s_client(&scene, CLOSED, &with(&own))?), "{version}: a client with its certificate");
        for (arguments, who) in [(version.to_owned(), "none"), (with(&foreign), "a foreign one")] {
            let said = s_client(&scene, CLOSED, &arguments)?;
            ensure!(!is_answered(&said) && said.contains("alert"), "{version}, {who}: {said}");
        }
        // A ticket of the service that asks for none is worth nothing here.
        let said = s_client(&scene, PORT, &format!("{version} -sess_out {}", file.display()))?;
        ensure!(is_answered(&said), "{said}");
        let said = resumed(&scene, CLOSED, &file, version)?;
        ensure!(!is_answered(&said) && !said.contains("Reused"), "{version}: {said}");
    }
    Ok(())
}
