//! TLS passed through: by the name that the client asks for, end to end.

use super::http_network::{HttpNetwork, HttpNetworks, TLS, Which};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::hairpin_program;
use hairpin_e2e::process::Process;
use hairpin_e2e::topology::{Family, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

pub(super) fn tests(networks: &Arc<HttpNetworks>) -> Vec<Trial> {
    let test = |name, body: fn(&mut HttpNetwork) -> Result<()>| networks.test(name, Which::Gso, body);
    vec![
        test("TLS goes to the server of its name", names),
        test("TLS goes to the server of its protocol", protocols),
        test("TLS without a route, or not TLS, is reset", refused),
        test("TLS outlives restart, kill and upgrade", outlives),
    ]
}

fn curl(net: &HttpNetwork, name: &str, page: &str, arguments: &[&str]) -> Command {
    let mut curl = net.topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "60", "--connect-timeout", "5"]);
    curl.arg("--cacert").arg(net.topology.scratch.file("certificate.pem"));
    curl.arg("--resolve").arg(format!("{name}:{TLS}:{}", vip(Family::V4))).args(arguments);
    curl.arg(format!("https://{name}:{TLS}/{page}"));
    curl
}

fn names(net: &mut HttpNetwork) -> Result<()> {
    let body = net.topology.scratch.file("tls");
    let out = body.display().to_string();
    for version in ["--http1.1", "--http2", "--tls-max=1.2"] {
        for (name, server) in [("one.example", "server1"), ("a.two.example", "server2")] {
            for page in ["1k", "10m"] {
                let text = command::output(&mut curl(
                    net,
                    name,
                    page,
                    &[version.split('=').next().unwrap_or_default()]
                        .into_iter()
                        .chain(version.split('=').nth(1))
                        .chain(["--output", &out, "--dump-header", "-"])
                        .collect::<Vec<_>>(),
                ))
                .with_context(|| format!("{version}, {name}, {page}"))?;
                let answered = text.to_ascii_lowercase().contains(&format!("x-server: {server}"));
                ensure!(answered, "{version}: {name} was answered {text}");
                ensure!(std::fs::read(&body)? == net.page(page)?, "{page} arrived changed");
            }
        }
    }
    Ok(())
}

/// Downloads that last for three seconds, through the ends of three processes.
fn outlives(net: &mut HttpNetwork) -> Result<()> {
    const CLIENTS: usize = 20;
    Process::inherit_orphans()?;
    let page = net.page("10m")?;
    let out = |number: usize| net.topology.scratch.file(format!("tls-{number}"));
    let start = |number: usize| {
        let (path, name) = (out(number).display().to_string(), ["one.example", "a.two.example"][number % 2]);
        let command = curl(net, name, "10m", &["--limit-rate", "3500k", "--output", &path]);
        net.topology.client.start(command, &net.topology.scratch.file(format!("tls-{number}.log")))
    };
    let mut clients: Vec<Process> = (0..CLIENTS).map(start).collect::<Result<_>>()?;
    let outs: Vec<_> = (0..CLIENTS).map(out).collect();
    net.until("all downloads under way", |_| {
        Ok(outs.iter().all(|out| out.metadata().is_ok_and(|facts| facts.len() > 0)))
    })?;
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        net.hairpin.end(signal)?;
        net.hairpin.start_again(&net.topology, &[])?;
        let adopted = net.hairpin.status()?.adopted_http;
        ensure!(adopted.clients + adopted.interrupted >= CLIENTS as u64, "{signal}: {adopted:?}");
    }
    net.hairpin.upgrade(&net.topology, &hairpin_program()?)?;
    let workers = net.hairpin.status()?.workers.len();
    let mut broken = Vec::new();
    for (number, (client, out)) in clients.iter_mut().zip(&outs).enumerate() {
        let status = client.wait(Duration::from_secs(60))?;
        if !status.success() {
            broken.push(format!("client {number}: {}", client.log()));
        } else {
            ensure!(std::fs::read(out)? == page, "client {number} got other bytes");
        }
    }
    ensure!(broken.len() <= workers, "a kill breaks one at most for each worker: {broken:?}");
    Ok(())
}

fn protocols(net: &mut HttpNetwork) -> Result<()> {
    for (arguments, server) in [
        (&["--http2"][..], "server1"),
        // The client's offers are in the ClientHello; its protocol without ALPN is not.
        (&["--http1.1"], "server2"),
        (&["--http2", "--no-alpn"], "server2"),
    ] {
        let asked = [arguments, &["--head"]].concat();
        let text = command::output(&mut curl(net, "alpn.two.example", "1k", &asked))?;
        let answered = text.to_ascii_lowercase().contains(&format!("x-server: {server}"));
        ensure!(answered, "{arguments:?} was answered {text}");
    }
    Ok(())
}

fn refused(net: &mut HttpNetwork) -> Result<()> {
    let error =
        command::output(&mut curl(net, "unrouted.example", "1k", &[])).err().context("no route, and answered")?;
    ensure!(format!("{error:#}").contains("curl: (35)"), "{error:#}");
    let mut connection = net.connect(TLS)?;
    let patience = super::http_network::PATIENCE;
    connection.send(b"GET / HTTP/1.1\r\nHost: one.example\r\n\r\n", patience)?;
    let rest = connection.rest(patience)?;
    ensure!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
    Ok(())
}
