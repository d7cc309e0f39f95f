//! Other web servers than nginx, and other clients than curl.

use super::http_network::{APACHE, HttpNetwork, HttpNetworks, NODE, PYTHON, ROUTES, WEB, WEBSOCKET, Which, missing};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::servers::web;
use hairpin_e2e::topology::{Family, end, vip};
use libtest_mimic::Trial;
use std::sync::Arc;

pub(super) fn tests(networks: &Arc<HttpNetworks>) -> Vec<Trial> {
    let test = |name, needs: &'static str, body: fn(&HttpNetwork) -> Result<()>| {
        networks.test(name, Which::Gso, move |net| match missing(needs) {
            Some(why) => {
                crate::lane::skip(why);
                Ok(())
            }
            None => body(net),
        })
    };
    vec![
        test("Apache", "apache", |net| pages(net, APACHE)),
        test("Apache compresses", "apache", compressed),
        test("Python's http.server", "python", |net| pages(net, PYTHON)),
        test("Node.js", "node", |net| pages(net, NODE)),
        test("Node.js takes uploads", "node", uploads),
        test("a session of Python requests", "requests", session),
        test("WebSockets", "websockets", websockets),
    ]
}

/// Pages of all sizes on one connection, and heads in between.
fn pages(net: &HttpNetwork, port: u16) -> Result<()> {
    let out = net.topology.scratch.file("other");
    std::fs::create_dir_all(&out)?;
    let mut arguments = Vec::new();
    for (i, name) in ["1k", "128k", "10m", "1k", "10m"].into_iter().enumerate() {
        arguments.extend(["--output".to_owned(), out.join(i.to_string()).display().to_string()]);
        arguments.push(net.url(port, &format!("/{name}")));
    }
    arguments.push("--output".to_owned());
    arguments.push("/dev/null".to_owned());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    net.curl(port, "/1k", &arguments)?;
    for (i, name) in ["1k", "128k", "10m", "1k", "10m"].into_iter().enumerate() {
        ensure!(std::fs::read(out.join(i.to_string()))? == net.page(name)?, "{name} arrived changed");
    }
    let error = net.curl(port, "/nothing-there", &[]).err().context("a page that is not there came")?;
    ensure!(format!("{error:#}").contains("404"), "{error:#}");
    Ok(())
}

fn compressed(net: &HttpNetwork) -> Result<()> {
    let out = net.topology.scratch.file("compressed").display().to_string();
    net.curl(APACHE, "/10m", &["--compressed", "--output", &out])?;
    ensure!(std::fs::read(&out)? == net.page("10m")?, "10 MB, compressed, arrived changed");
    Ok(())
}

fn uploads(net: &HttpNetwork) -> Result<()> {
    let file = net.topology.scratch.file("pages/10m").display().to_string();
    for coding in ["Transfer-Encoding:", "Transfer-Encoding: chunked"] {
        let text = net.curl(NODE, "/", &["--upload-file", &file, "--header", coding, "--header", "Expect:"])?;
        ensure!(text.trim() == (10 << 20).to_string(), "{coding}: {text}");
    }
    Ok(())
}

fn script(net: &HttpNetwork, name: &str, text: &str, arguments: &[&str]) -> Result<String> {
    let file = net.topology.scratch.write(name, text)?;
    let mut python = net.topology.client.command("timeout");
    python.arg("60").arg(web::PYTHON).arg(file).args(arguments);
    command::output(&mut python)
}

fn session(net: &HttpNetwork) -> Result<()> {
    let pages = net.topology.scratch.file("pages").display().to_string();
    let text = script(
        net,
        "session.py",
        include_str!("session.py"),
        &[&end(vip(Family::V4), WEB), &end(vip(Family::V4), ROUTES), &pages],
    )?;
    ensure!(text.trim() == "well", "{text}");
    Ok(())
}

fn websockets(net: &HttpNetwork) -> Result<()> {
    let target = format!("ws://{}", end(vip(Family::V4), WEBSOCKET));
    let text = script(net, "websocket.py", include_str!("websocket.py"), &[&target])?;
    ensure!(text.trim() == "well", "{text}");
    Ok(())
}
