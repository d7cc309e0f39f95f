//! TLS to real backends: nginx, and a server of WebSockets.

use super::clients::sockets;
use super::{NAME, Scene, url};
use crate::http::http_network::missing;
use crate::lane;
use anyhow::{Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::servers::HTTP_PORT;
use hairpin_e2e::servers::web::{self, PYTHON, SECURE_WEBSOCKET_PORT, TLS_PORT};
use hairpin_e2e::topology::{Family, vip};
use libtest_mimic::Trial;
use std::path::Path;

pub(super) fn tests() -> Vec<Trial> {
    let test = |name: &str, body: fn() -> Result<()>| lane::OWN.test(format!("https: {name}"), body);
    vec![
        test("nginx behind it speaks TLS, and is verified", verifies_nginx),
        test("a WebSocket goes to a backend with TLS", websocket_over_tls),
    ]
}

/// Has the service's backends on `port` speak TLS.
fn speak(scene: &mut Scene, port: u16, roots: &Path, name: &str) -> Result<()> {
    let service = &mut scene.services[0];
    (service.servers, service.server_port) = (vec![1, 2], port);
    let plain = service.tables.split("[service.backend_tls]").next().unwrap_or_default();
    service.tables = format!("{plain}[service.backend_tls]\nroots = {roots:?}\nname = {name:?}\n");
    scene.reload()
}

fn verifies_nginx() -> Result<()> {
    let mut scene = Scene::start(&[], "")?;
    let _nginx = web::tls(&scene.topology)?;
    let roots = scene.topology.scratch.file("certificate.pem");
    // The second name is one of a wildcard.
    for name in ["one.example", "a.two.example"] {
        speak(&mut scene, TLS_PORT, &roots, name)?;
        for option in ["--http1.1", "--http2"] {
            let head = scene.curl(&[option, "--include", "--output", "-"], &url("1k"))?;
            ensure!(head.to_ascii_lowercase().contains("x-server: server"), "{name}, {option}: {head}");
            let file = scene.topology.scratch.file("from-nginx");
            scene.curl(&[option, "--output", &file.display().to_string()], &url("10m"))?;
            let page = std::fs::read(scene.topology.scratch.file("pages").join("10m"))?;
            ensure!(std::fs::read(&file)? == page, "{name}, {option}: the page is another one");
        }
    }
    let unreachable = |scene: &Scene| scene.hairpin.status_table();
    let own = scene.certificate.clone();
    for (port, roots, name, what) in [
        (TLS_PORT, &roots, "other.example", "a certificate for another name"),
        (TLS_PORT, &own, "one.example", "a certificate by another CA"),
        (HTTP_PORT, &roots, "one.example", "no TLS"),
    ] {
        speak(&mut scene, port, roots, name)?;
        for option in ["--http1.1", "--http2"] {
            let said = scene.curl(&[option, "--output", "/dev/null", "--write-out", "%{http_code}"], &url("1k"))?;
            ensure!(said == "502", "{what}, {option}: {said}\n{}", unreachable(&scene)?);
        }
    }
    speak(&mut scene, TLS_PORT, &roots, "one.example")?;
    let said = scene.curl(&["--output", "/dev/null", "--write-out", "%{http_code}"], &url("1k"))?;
    ensure!(said == "200", "with the right settings again: {said}");
    Ok(())
}

fn websocket_over_tls() -> Result<()> {
    if let Some(why) = missing("websockets") {
        lane::skip(why);
        return Ok(());
    }
    let mut scene = Scene::start(&[], "")?;
    let _echo = web::secure_websocket(&scene.topology, &scene.certificate)?;
    let tables = format!(
        "{}[service.group.backend_tls]\nroots = {:?}\nname = {NAME:?}\n",
        sockets(SECURE_WEBSOCKET_PORT),
        scene.certificate
    );
    scene.services[0].tables.push_str(&tables);
    scene.reload()?;
    let script = scene.topology.scratch.write("websocket.py", include_str!("../http/websocket.py"))?;
    let mut client = scene.topology.client.command(PYTHON);
    client.env("SSL_CERT_FILE", &scene.certificate);
    client.arg(script).args([format!("wss://{NAME}/socket"), vip(Family::V4).to_string()]);
    let said = command::output(&mut client)?;
    ensure!(said == "well\n", "{said}");
    Ok(())
}
