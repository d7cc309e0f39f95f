//! The entries of HTTP and TLS services in `hairpin connections`.

use super::http_network::{HttpNetwork, HttpNetworks, PATIENCE, PLAIN, TLS, WEB, Which};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::peer::control;
use hairpin_e2e::tool::http::HttpConnection;
use libtest_mimic::Trial;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) fn tests(networks: &Arc<HttpNetworks>) -> Vec<Trial> {
    let test = |name, body: fn(&mut HttpNetwork) -> Result<()>| networks.test(name, Which::Gso, body);
    vec![
        test("connections are listed, filtered, counted", listed),
        test("small pages list each connection once", paged),
        test("an offloaded download is explained", offloaded),
        test("without SACK one direction is offloaded", one_way),
        test("a waiting request is listed with its route", waiting),
    ]
}

/// The lines of `hairpin connections` with these filters.
fn list(net: &HttpNetwork, filters: &[&str]) -> Result<Vec<Value>> {
    let lines = net.hairpin.tell(&net.topology, &[&["connections", "--all", "-o", "json"], filters].concat())?;
    lines.lines().map(|line| Ok(serde_json::from_str(line)?)).collect()
}

fn count(net: &HttpNetwork, filters: &[&str]) -> Result<usize> {
    let text = net.hairpin.tell(&net.topology, &[&["connections", "--count"], filters].concat())?;
    text.trim().parse().with_context(|| format!("no count: {text}"))
}

/// So many kept connections, each with an answer.
fn open(net: &HttpNetwork, port: u16, many: usize) -> Result<Vec<HttpConnection>> {
    let one = |_| {
        let mut connection = net.connect(port)?;
        connection.send(b"GET /1k HTTP/1.1\r\nHost: test\r\n\r\n", PATIENCE)?;
        connection.answer(false, PATIENCE)?;
        Ok(connection)
    };
    (0..many).map(one).collect()
}

fn listed(net: &mut HttpNetwork) -> Result<()> {
    let open = open(net, WEB, 60)?;
    // The client's acknowledgement of the last answer is what gives its backend's connection to others.
    net.until("all at rest", |net| Ok(count(net, &["--service", "web", "--state", "spliced"])? == 0))?;
    let all = list(net, &["--service", "web"])?;
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
    let idle = list(net, &["--service", "web", "--state", "idle"])?;
    ensure!(!idle.is_empty(), "no connection to a backend is kept");
    for view in &idle {
        let is_so = view["client"] == "" && view["spliced"]["end"] == "backend" && view["source"].is_string();
        ensure!(is_so && view["backend"].as_str().is_some_and(|name| name.starts_with("server")), "{view}");
    }
    let client = open[5].own_end()?.to_string();
    let one = list(net, &["--client", &client])?;
    ensure!(one.len() == 1 && one[0]["client"] == *client, "{one:?}");
    ensure!(count(net, &["--client", &client])? == 1, "one is counted otherwise");
    ensure!(count(net, &["--client", &client, "--offloaded"])? == 0, "an idle one is offloaded");
    ensure!(count(net, &["--service", "tls"])? == 0, "no client has asked for TLS");
    let table = net.hairpin.tell(&net.topology, &["connections", "--client", &client])?;
    ensure!(table.contains("REQUESTS") && table.contains("no request is under way"), "{table}");
    // TLS: a connection that has not said what it wants.
    let mut tls = net.connect(TLS)?;
    tls.send(&[22, 3, 1, 2], PATIENCE)?;
    let view = list(net, &["--service", "tls"])?;
    ensure!(view.len() == 1 && view[0]["spliced"]["speaks"] == "tls" && view[0]["state"] == "reading", "{view:?}");
    Ok(())
}

fn paged(net: &mut HttpNetwork) -> Result<()> {
    let open = open(net, WEB, 200)?;
    let mut passing = Vec::new();
    for limit in [1, 7, 64] {
        let (mut seen, mut cursor, mut pages) = (Vec::new(), None, 0_u32);
        loop {
            let query = json!({"request": "connections", "service": "web", "limit": limit, "cursor": cursor});
            let page = control::ask(&net.hairpin.socket(), &query)?["connections"].clone();
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
                passing = vec![net.connect(WEB)?];
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

fn offloaded(net: &mut HttpNetwork) -> Result<()> {
    let mut curl = net.topology.client.command("curl");
    curl.args(["--silent", "--limit-rate", "10M", "--output", "/dev/null"]).arg(net.url(WEB, "/100m"));
    let _curl = net.topology.client.start(curl, &net.topology.scratch.file("listed-curl.log"))?;
    let forwarded = |view: &Value| view["packets_offloaded"][1].as_u64() > Some(100);
    let filters = ["--service", "web", "--offloaded"];
    net.until("a download forwarded by the engine", |net| Ok(list(net, &filters)?.iter().any(forwarded)))?;
    let view = list(net, &filters)?.into_iter().find(forwarded).context("it is over already")?;
    let exchange = &view["spliced"]["exchange"];
    ensure!(view["state"] == "spliced" && view["offload"] == "offloaded" && exchange["method"] == "GET", "{view}");
    ensure!(exchange["request"] == "nothing" && exchange["response"] == "bytes", "{view}");
    ensure!(exchange["group"] == "web" && exchange["route"].is_null(), "no route took it: {view}");
    ensure!(view["bytes_offloaded"][1].as_u64() > Some(100_000), "{view}");
    ensure!(view["backend"].as_str().is_some_and(|name| name.starts_with("server")), "{view}");
    let client = view["client"].as_str().context("no client")?;
    let why = net.hairpin.tell(&net.topology, &["offload", "--client", client])?;
    ensure!(why.contains("requests: 1; now GET to web") && why.contains("offloaded"), "{why}");
    let all: Value = serde_json::from_str(&net.hairpin.tell(&net.topology, &["offload", "-o", "json"])?)?;
    ensure!(all["offloaded"].as_u64() >= Some(1), "{all}");
    Ok(())
}

/// A client that takes no SACK, before servers that do: the engine forwards what they send, the worker what it answers.
fn one_way(net: &mut HttpNetwork) -> Result<()> {
    let sack = |net: &HttpNetwork, on: u8| net.topology.client.script(&format!("sysctl -qw net.ipv4.tcp_sack={on}\n"));
    sack(net, 0)?;
    let result = one_direction_offloaded(net);
    sack(net, 1)?;
    result
}

fn one_direction_offloaded(net: &mut HttpNetwork) -> Result<()> {
    let mut curl = net.topology.client.command("curl");
    curl.args(["--silent", "--limit-rate", "10M", "--output", "/dev/null"]).arg(net.url(WEB, "/100m"));
    let _curl = net.topology.client.start(curl, &net.topology.scratch.file("one-way-curl.log"))?;
    let forwarded = |view: &Value| view["packets_offloaded"][1].as_u64() > Some(100);
    let filters = ["--service", "web", "--offloaded"];
    net.until("a download forwarded by the engine", |net| Ok(list(net, &filters)?.iter().any(forwarded)))?;
    let view = list(net, &filters)?.into_iter().find(forwarded).context("it is over already")?;
    ensure!(view["packets_offloaded"][0] == 0, "{view}");
    // Requests follow each other on one connection, each when the rule of the one before is gone.
    let page = net.page("10m")?;
    let mut connection = net.connect(WEB)?;
    for i in 0..5 {
        let answer = connection.get("10m", false, PATIENCE).with_context(|| format!("request {i}"))?;
        ensure!(answer.body == page, "request {i}: 10 MB arrived changed");
    }
    Ok(())
}

fn waiting(net: &mut HttpNetwork) -> Result<()> {
    let mut connection = net.connect(PLAIN)?;
    connection.send(b"PUT /silent HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\nhello", PATIENCE)?;
    let client = connection.own_end()?.to_string();
    net.until("the request at its backend", |net| {
        Ok(list(net, &["--client", &client])?.iter().any(|view| view["state"] == "spliced"))
    })?;
    let view = list(net, &["--client", &client])?.remove(0);
    let exchange = &view["spliced"]["exchange"];
    ensure!(exchange["method"] == "PUT" && exchange["version"] == "1.1" && exchange["response"] == "head", "{view}");
    ensure!(view["offload"] == "no body is under way" && view["source"].is_string(), "{view}");
    // The one that its backend has.
    let same = list(net, &["--client", &client, "--backend", view["backend"].as_str().unwrap_or_default()])?;
    ensure!(same.len() == 1, "not found by its backend {}", view["backend"]);
    Ok(())
}
