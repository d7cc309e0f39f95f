//! What `hairpin connections` tells of HTTP and TLS services.

use super::stage::{PATIENCE, PLAIN, Stage, Stages, TLS, WEB, Which};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::peer::control;
use hairpin_e2e::tool::http::Connection;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) fn trials(stages: &Arc<Stages>) -> Vec<Trial> {
    let trial = |name, body: fn(&mut Stage) -> Result<()>| stages.trial(name, Which::Gso, body);
    vec![
        trial("connections are listed, filtered, counted", listed),
        trial("a listing in small pages has each connection once, whatever happens meanwhile", paged),
        trial("a download that the engine carries is explained", offloaded),
        trial("of a download by who takes no SACK the engine carries one way", one_way),
        trial("a request that waits is listed with its method, route and backend", waiting),
    ]
}

/// The lines of `hairpin connections` with these filters.
fn list(stage: &Stage, filters: &[&str]) -> Result<Vec<Value>> {
    let lines = stage.hairpin.tell(&stage.topology, &[&["connections", "--all", "-o", "json"], filters].concat())?;
    lines.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn count(stage: &Stage, filters: &[&str]) -> Result<usize> {
    let text = stage.hairpin.tell(&stage.topology, &[&["connections", "--count"], filters].concat())?;
    text.trim().parse().with_context(|| format!("no count: {text}"))
}

/// So many kept connections, each with an answer.
fn open(stage: &Stage, port: u16, many: usize) -> Result<Vec<Connection>> {
    let one = |_| {
        let mut connection = stage.connect(port)?;
        connection.send(b"GET /1k HTTP/1.1\r\nHost: test\r\n\r\n", PATIENCE)?;
        connection.answer(false, PATIENCE)?;
        Ok(connection)
    };
    (0..many).map(one).collect()
}

fn listed(stage: &mut Stage) -> Result<()> {
    let open = open(stage, WEB, 60)?;
    // The client's acknowledgement of the last answer is what gives its backend's connection to others.
    stage.until("all at rest", |stage| Ok(count(stage, &["--service", "web", "--state", "spliced"])? == 0))?;
    let all = list(stage, &["--service", "web"])?;
    for connection in &open {
        let end = connection.own_end()?.to_string();
        let mine: Vec<&Value> = all.iter().filter(|view| view["client"] == *end).collect();
        ensure!(mine.len() == 1, "{end} is listed {} times", mine.len());
        let view = mine[0];
        let spliced = &view["spliced"];
        ensure!(spliced["end"] == "client" && spliced["speaks"] == "http" && spliced["requests"] == 1, "{view}");
        ensure!(view["state"] == "reading" && view["service"] == "web" && view["protocol"] == "tcp", "{view}");
        ensure!(view["bytes"][1].as_u64() > Some(1024) && view["packets_offloaded"] == json!([0, 0]), "{view}");
    }
    let idle = list(stage, &["--service", "web", "--state", "idle"])?;
    ensure!(!idle.is_empty(), "no connection to a backend is kept");
    for view in &idle {
        let is_so = view["client"] == "" && view["spliced"]["end"] == "backend" && view["source"].is_string();
        ensure!(is_so && view["backend"].as_str().is_some_and(|name| name.starts_with("server")), "{view}");
    }
    let client = open[5].own_end()?.to_string();
    let one = list(stage, &["--client", &client])?;
    ensure!(one.len() == 1 && one[0]["client"] == *client, "{one:?}");
    ensure!(count(stage, &["--client", &client])? == 1, "one is counted otherwise");
    ensure!(count(stage, &["--client", &client, "--offloaded"])? == 0, "an idle one is offloaded");
    ensure!(count(stage, &["--service", "tls"])? == 0, "no client has asked for TLS");
    let table = stage.hairpin.tell(&stage.topology, &["connections", "--client", &client])?;
    ensure!(table.contains("REQUESTS") && table.contains("no request is under way"), "{table}");
    // TLS: a connection that has not said what it wants.
    let mut tls = stage.connect(TLS)?;
    tls.send(&[22, 3, 1, 2], PATIENCE)?;
    let view = list(stage, &["--service", "tls"])?;
    ensure!(view.len() == 1 && view[0]["spliced"]["speaks"] == "tls" && view[0]["state"] == "reading", "{view:?}");
    Ok(())
}

fn paged(stage: &mut Stage) -> Result<()> {
    let open = open(stage, WEB, 200)?;
    let mut passing = Vec::new();
    for limit in [1, 7, 64] {
        let (mut seen, mut cursor, mut pages) = (Vec::new(), None, 0_u32);
        loop {
            let query = json!({"request": "connections", "service": "web", "limit": limit, "cursor": cursor});
            let page = control::ask(&stage.hairpin.socket(), &query)?["connections"].clone();
            let some = page["connections"].as_array().context("no connections")?;
            ensure!(some.len() <= limit, "{} on a page of {limit}", some.len());
            seen.extend(some.iter().filter_map(|view| view["client"].as_str()).map(str::to_owned));
            pages += 1;
            cursor = page["next"].as_u64();
            if cursor.is_none() {
                break;
            }
            // Others come and go.
            if pages.is_multiple_of(20) {
                passing = vec![stage.connect(WEB)?];
                passing[0].send(b"GET /1k HTTP/1.1\r\nHost: test\r\n\r\n", PATIENCE)?;
            }
        }
        let clients: Vec<&String> = seen.iter().filter(|client| !client.is_empty()).collect();
        let each: BTreeSet<_> = clients.iter().collect();
        ensure!(each.len() == clients.len(), "pages of {limit}: {} lines for {} clients", clients.len(), each.len());
        for connection in &open {
            let end = connection.own_end()?.to_string();
            ensure!(seen.contains(&end), "pages of {limit}: {end} is missing");
        }
    }
    drop(passing);
    Ok(())
}

fn offloaded(stage: &mut Stage) -> Result<()> {
    let mut curl = stage.topology.client.command("curl");
    curl.args(["--silent", "--limit-rate", "10M", "--output", "/dev/null"]).arg(stage.url(WEB, "/100m"));
    let _curl = stage.topology.client.start(curl, &stage.topology.scratch.file("listed-curl.log"))?;
    let carried = |view: &Value| view["packets_offloaded"][1].as_u64() > Some(100);
    let filters = ["--service", "web", "--offloaded"];
    stage.until("a download carried by the engine", |stage| Ok(list(stage, &filters)?.iter().any(carried)))?;
    let view = list(stage, &filters)?.into_iter().find(carried).context("it is over already")?;
    let exchange = &view["spliced"]["exchange"];
    ensure!(view["state"] == "spliced" && view["offload"] == "offloaded" && exchange["method"] == "GET", "{view}");
    ensure!(exchange["request"] == "nothing" && exchange["response"] == "bytes", "{view}");
    ensure!(exchange["group"] == "web" && exchange["route"].is_null(), "no route took it: {view}");
    ensure!(view["bytes_offloaded"][1].as_u64() > Some(100_000), "{view}");
    ensure!(view["backend"].as_str().is_some_and(|name| name.starts_with("server")), "{view}");
    let client = view["client"].as_str().context("no client")?;
    let why = stage.hairpin.tell(&stage.topology, &["offload", "--client", client])?;
    ensure!(why.contains("requests: 1; now GET to web") && why.contains("offloaded"), "{why}");
    let all: Value = serde_json::from_str(&stage.hairpin.tell(&stage.topology, &["offload", "-o", "json"])?)?;
    ensure!(all["offloaded"].as_u64() >= Some(1), "{all}");
    Ok(())
}

/// A client that takes no SACK, before servers that do: the engine carries what they send, the worker what it answers.
fn one_way(stage: &mut Stage) -> Result<()> {
    let sack = |stage: &Stage, on: u8| stage.topology.client.script(&format!("sysctl -qw net.ipv4.tcp_sack={on}\n"));
    sack(stage, 0)?;
    let result = carried_one_way(stage);
    sack(stage, 1)?;
    result
}

fn carried_one_way(stage: &mut Stage) -> Result<()> {
    let mut curl = stage.topology.client.command("curl");
    curl.args(["--silent", "--limit-rate", "10M", "--output", "/dev/null"]).arg(stage.url(WEB, "/100m"));
    let _curl = stage.topology.client.start(curl, &stage.topology.scratch.file("one-way-curl.log"))?;
    let carried = |view: &Value| view["packets_offloaded"][1].as_u64() > Some(100);
    let filters = ["--service", "web", "--offloaded"];
    stage.until("a download carried by the engine", |stage| Ok(list(stage, &filters)?.iter().any(carried)))?;
    let view = list(stage, &filters)?.into_iter().find(carried).context("it is over already")?;
    ensure!(view["packets_offloaded"][0] == 0, "{view}");
    // Requests follow each other on one connection, each when the rule of the one before is gone.
    let page = stage.page("10m")?;
    let mut connection = stage.connect(WEB)?;
    for i in 0..5 {
        let answer = connection.get("10m", false, PATIENCE).with_context(|| format!("request {i}"))?;
        ensure!(answer.body == page, "request {i}: 10 MB arrived changed");
    }
    Ok(())
}

fn waiting(stage: &mut Stage) -> Result<()> {
    let mut connection = stage.connect(PLAIN)?;
    connection.send(b"PUT /silent HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello", PATIENCE)?;
    let client = connection.own_end()?.to_string();
    stage.until("the request at its backend", |stage| {
        Ok(list(stage, &["--client", &client])?.iter().any(|view| view["state"] == "spliced"))
    })?;
    let view = list(stage, &["--client", &client])?.remove(0);
    let exchange = &view["spliced"]["exchange"];
    ensure!(exchange["method"] == "PUT" && exchange["version"] == "1.1" && exchange["response"] == "head", "{view}");
    ensure!(view["offload"] == "no body is under way" && view["source"].is_string(), "{view}");
    // The one that its backend has.
    let same = list(stage, &["--client", &client, "--backend", view["backend"].as_str().unwrap_or_default()])?;
    ensure!(same.len() == 1, "not found by its backend {}", view["backend"]);
    Ok(())
}
