//! Other web servers than nginx, and other clients than curl.

use super::stage::{APACHE, NODE, PYTHON, ROUTES, Stage, Stages, WEB, WEBSOCKET, Which, missing};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::servers::web;
use hairpin_e2e::topology::{Family, end, vip};
use libtest_mimic::Trial;
use std::sync::Arc;

pub(super) fn trials(stages: &Arc<Stages>) -> Vec<Trial> {
    let trial = |name, needs: &'static str, body: fn(&Stage) -> Result<()>| {
        stages.trial(name, Which::Gso, move |stage| match missing(needs) {
            Some(why) => {
                crate::lane::skip(why);
                Ok(())
            }
            None => body(stage),
        })
    };
    vec![
        trial("Apache", "apache", |stage| pages(stage, APACHE)),
        trial("Apache compresses", "apache", compressed),
        trial("Python's http.server", "python", |stage| pages(stage, PYTHON)),
        trial("Node.js", "node", |stage| pages(stage, NODE)),
        trial("Node.js takes uploads", "node", uploads),
        trial("a session of Python requests", "requests", session),
        trial("WebSockets", "websockets", websockets),
    ]
}

/// Pages of all sizes on one connection, and heads in between.
fn pages(stage: &Stage, port: u16) -> Result<()> {
    let out = stage.topology.scratch.file("other");
    std::fs::create_dir_all(&out)?;
    let mut arguments = Vec::new();
    for (i, name) in ["1k", "128k", "10m", "1k", "10m"].into_iter().enumerate() {
        arguments.extend(["--output".to_owned(), out.join(i.to_string()).display().to_string()]);
        arguments.push(stage.url(port, &format!("/{name}")));
    }
    arguments.push("--output".to_owned());
    arguments.push("/dev/null".to_owned());
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    stage.curl(port, "/1k", &arguments)?;
    for (i, name) in ["1k", "128k", "10m", "1k", "10m"].into_iter().enumerate() {
        ensure!(std::fs::read(out.join(i.to_string()))? == stage.page(name)?, "{name} arrived changed");
    }
    let error = stage.curl(port, "/nothing-there", &[]).err().context("a page that is not there came")?;
    ensure!(format!("{error:#}").contains("404"), "{error:#}");
    Ok(())
}

fn compressed(stage: &Stage) -> Result<()> {
    let out = stage.topology.scratch.file("compressed").display().to_string();
    stage.curl(APACHE, "/10m", &["--compressed", "--output", &out])?;
    ensure!(std::fs::read(&out)? == stage.page("10m")?, "10 MB, compressed, arrived changed");
    Ok(())
}

fn uploads(stage: &Stage) -> Result<()> {
    let file = stage.topology.scratch.file("pages/10m").display().to_string();
    for coding in ["Transfer-Encoding:", "Transfer-Encoding: chunked"] {
        let text = stage.curl(NODE, "/", &["--upload-file", &file, "--header", coding, "--header", "Expect:"])?;
        ensure!(text.trim() == (10 << 20).to_string(), "{coding}: {text}");
    }
    Ok(())
}

fn script(stage: &Stage, name: &str, text: &str, arguments: &[&str]) -> Result<String> {
    let file = stage.topology.scratch.write(name, text)?;
    let mut python = stage.topology.client.command("timeout");
    python.arg("60").arg(web::PYTHON).arg(file).args(arguments);
    command::output(&mut python)
}

fn session(stage: &Stage) -> Result<()> {
    let pages = stage.topology.scratch.file("pages").display().to_string();
    let text = script(
        stage,
        "session.py",
        include_str!("session.py"),
        &[&end(vip(Family::V4), WEB), &end(vip(Family::V4), ROUTES), &pages],
    )?;
    ensure!(text.trim() == "well", "{text}");
    Ok(())
}

fn websockets(stage: &Stage) -> Result<()> {
    let target = format!("ws://{}", end(vip(Family::V4), WEBSOCKET));
    let text = script(stage, "websocket.py", include_str!("websocket.py"), &[&target])?;
    ensure!(text.trim() == "well", "{text}");
    Ok(())
}
