//! TLS passed through: by the name that the client asks for, end to end.

use super::http_network::{HttpNetwork, HttpNetworks, TLS, Which};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::topology::{Family, vip};
use libtest_mimic::Trial;
use std::process::Command;
use std::sync::Arc;

pub(super) fn tests(networks: &Arc<HttpNetworks>) -> Vec<Trial> {
    let test = |name, body: fn(&mut HttpNetwork) -> Result<()>| networks.test(name, Which::Gso, body);
    vec![
        test("TLS goes to the server of its name", names),
        test("TLS goes to the server of its protocol", protocols),
        test("TLS without a route, or not TLS, is reset", refused),
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
