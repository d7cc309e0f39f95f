//! The routes of requests, their edits, and Hairpin's own answers.

use super::http_network::{HttpNetwork, HttpNetworks, PATIENCE, PLAIN, PROXIED, ROUTES, STICKY, TRUSTED, Which};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::tool::recorder::RecordedRequest;
use hairpin_e2e::topology::{Family, end, server_address, vip};
use libtest_mimic::Trial;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

pub(super) fn tests(networks: &Arc<HttpNetworks>) -> Vec<Trial> {
    let test = |name, body: fn(&mut HttpNetwork) -> Result<()>| networks.test(name, Which::Gso, body);
    vec![
        test("routes by path, host, method, query, header", routes),
        test("redirects, replies, access", answers),
        test("heads are edited as configured", edits),
        test("backends learn who asks", forwarded),
        test("backends learn who asks by the PROXY protocol", proxied),
        test("hop-by-hop fields end here", hop_by_hop),
        test("a cookie keeps a client with its backend", sticky),
    ]
}

fn routes(net: &mut HttpNetwork) -> Result<()> {
    for (line, fields, server) in [
        ("GET /", "Host: test", "one"),
        ("GET /two/", "Host: test", "two"),
        ("GET /two", "Host: test", "one"),
        ("GET /a/../two/%62", "Host: test", "two"),
        ("GET /", "Host: three.example", "three"),
        ("GET /", "Host: THREE.example:8001", "three"),
        ("GET /", "Host: a.b.three.example", "three"),
        ("GET /", "Host: notthree.example", "one"),
        ("GET http://three.example/", "Host: test", "three"),
        ("GET /x.png", "Host: test", "three"),
        ("GET /x.png/y", "Host: test", "one"),
        ("PUT /store", "Host: test\r\nContent-Length: 0", "two"),
        ("GET /store", "Host: test", "one"),
        ("GET /?a&v=2", "Host: test", "two"),
        ("GET /?v=20", "Host: test", "one"),
        ("GET /", "Host: test\r\nx-version:  3 ", "three"),
        ("GET /", "Host: test\r\nX-Version: 33", "one"),
    ] {
        let answer = net.ask(ROUTES, format!("{line} HTTP/1.1\r\n{fields}\r\n\r\n"))?;
        ensure!(answer.header("X-Server") == Some(server), "{line}, {fields}: {}", answer.head());
        explained(net, line, fields, server).with_context(|| format!("hairpin route {line}, {fields}"))?;
    }
    let answer = net.fetch(ROUTES, "/strip/a?b", "")?;
    ensure!(answer.text().starts_with("GET /a?b HTTP/1.1\r\n"), "/strip/a?b became {}", answer.text());
    let servers: BTreeSet<String> = (0..40)
        .map(|_| Ok(net.fetch(ROUTES, "/shared/", "")?.header("X-Server").unwrap_or("no server").to_owned()))
        .collect::<Result<_>>()?;
    ensure!(servers.iter().eq(["one", "two"]), "shared between {servers:?}");
    Ok(())
}

/// What `hairpin route` says of a request is what has become of it.
fn explained(net: &HttpNetwork, line: &str, fields: &str, server: &str) -> Result<()> {
    let Some((method, target)) = line.split_once(' ').filter(|(_, target)| target.starts_with('/')) else {
        return Ok(());
    };
    let url = format!("http://{}{target}", end(vip(Family::V4), ROUTES));
    let mut arguments = vec!["route", method, &url, "--client", "10.0.0.2", "-o", "json"];
    arguments.extend(fields.split("\r\n").flat_map(|field| ["-H", field]));
    let answer: Value = serde_json::from_str(&net.hairpin.tell(&net.topology, &arguments)?)?;
    let number = ["one", "two", "three"].iter().position(|name| *name == server).context("no such server")? + 1;
    let view = &answer["services"][0];
    let groups = view["groups"].as_array().context("no groups")?;
    let backends: Vec<&Value> = groups.iter().filter_map(|group| group["backends"].as_array()).flatten().collect();
    ensure!(view["outcome"] == "forward" && backends.len() == 1, "{view}");
    let backend = backends[0];
    let address = format!("{}:", server_address(Family::V4, number));
    ensure!(backend["address"].as_str().is_some_and(|text| text.starts_with(&address)), "{view}");
    ensure!(backend["health"].as_str().is_some_and(|health| !health.is_empty()), "{view}");
    Ok(())
}

fn answers(net: &mut HttpNetwork) -> Result<()> {
    let mut connection = net.connect(ROUTES)?;
    let patience = super::http_network::PATIENCE;
    let mut get = |target: &str, fields: &str| {
        connection.send(format!("GET {target} HTTP/1.1\r\nHost: h.example\r\n{fields}\r\n").as_bytes(), patience)?;
        connection.answer(false, patience).with_context(|| target.to_owned())
    };
    for _ in 0..3 {
        let answer = get("/moved?x=1", "")?;
        ensure!(answer.status == 301, "{}", answer.head());
        ensure!(answer.header("Location") == Some("https://h.example/new/moved?x=1"), "{}", answer.head());
        let answer = get("/fixed", "")?;
        ensure!(answer.status == 200 && answer.body == b"fixed\n", "{}", answer.head());
        ensure!(get("/secret/x", "")?.status == 404, "/secret/ is open");
        ensure!(get("/a", "X-Robot: evil-1\r\n")?.status == 403, "robots pass");
        let answer = get("/b", "")?;
        ensure!(answer.header("X-Server") == Some("one"), "{}", answer.head());
    }
    let heard = net.recorders[0].heard();
    ensure!(heard.len() == 3 && heard.iter().all(|heard| heard.line() == "GET /b HTTP/1.1"), "{heard:?}");
    Ok(())
}

fn last(net: &HttpNetwork, recorder: usize) -> Result<RecordedRequest> {
    net.recorders[recorder].heard().pop().context("nothing arrived")
}

fn edits(net: &mut HttpNetwork) -> Result<()> {
    let answer = net.fetch(ROUTES, "/edit/", "X-Gone: secret\r\nX-Set: forged\r\nX-Kept: yes\r\n")?;
    let heard = last(net, 0)?;
    let set: Vec<&str> = heard.fields("X-Set").collect();
    ensure!(set == ["10.0.0.2 server1"], "X-Set is {set:?}");
    ensure!(heard.fields("X-Add").eq(["a", "b"]), "X-Add in {}", heard.head);
    ensure!(heard.field("X-Gone").is_none() && heard.field("X-Kept") == Some("yes"), "{}", heard.head);
    let server: Vec<&str> = answer.headers("X-Server").collect();
    ensure!(server == ["hidden"], "X-Server is {server:?}");
    ensure!(answer.header("X-Frame-Options") == Some("DENY"), "{}", answer.head());
    ensure!(answer.header("X-Body").is_none(), "{}", answer.head());
    ensure!(answer.text() == heard.head, "{:?} is not {:?}", answer.text(), heard.head);
    Ok(())
}

fn forwarded(net: &mut HttpNetwork) -> Result<()> {
    let forged =
        "X-Forwarded-For: 1.2.3.4\r\nX-Forwarded-Proto: https\r\nX-Real-IP: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\n";
    net.fetch(PLAIN, "/", forged)?;
    let heard = last(net, 0)?;
    for (name, value) in [("X-Forwarded-For", "10.0.0.2"), ("X-Forwarded-Proto", "http"), ("X-Forwarded-Host", "test")]
    {
        ensure!(heard.fields(name).eq([value]), "{name} in {}", heard.head);
    }
    ensure!(!heard.head.contains("1.2.3.4"), "forged: {}", heard.head);
    let answer = net.fetch(TRUSTED, "/", forged)?;
    let heard = last(net, 0)?;
    let chain: Vec<&str> = heard.fields("X-Forwarded-For").flat_map(|value| value.split(',')).map(str::trim).collect();
    ensure!(chain == ["1.2.3.4", "10.0.0.2"], "of a trusted proxy: {}", heard.head);
    ensure!(heard.field("Forwarded").is_some_and(|value| value.contains("for=10.0.0.2")), "{}", heard.head);
    ensure!(answer.header("Server-Timing").is_some_and(|value| value.contains("server1")), "{}", answer.head());
    Ok(())
}

fn proxied(net: &mut HttpNetwork) -> Result<()> {
    for port in PROXIED {
        for _ in 0..3 {
            let mut connection = net.connect(port)?;
            let own = connection.own_end()?;
            for _ in 0..3 {
                connection.send(b"GET / HTTP/1.1\r\nHost: test\r\n\r\n", PATIENCE)?;
                let answer = connection.answer(false, PATIENCE)?;
                let told = format!("{} {}", own.ip(), own.port());
                ensure!(answer.status == 200 && answer.text() == told, "{own} on {port}: {}", answer.text());
            }
        }
    }
    Ok(())
}

fn hop_by_hop(net: &mut HttpNetwork) -> Result<()> {
    let fields = "Connection: keep-alive, X-Hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\n\
                  TE: trailers\r\nX-End: 1\r\n";
    net.fetch(PLAIN, "/", fields)?;
    let heard = last(net, 0)?;
    for name in ["X-Hop", "Keep-Alive", "Proxy-Connection", "TE"] {
        ensure!(heard.field(name).is_none(), "{name} goes on: {}", heard.head);
    }
    ensure!(heard.field("X-End") == Some("1"), "{}", heard.head);
    Ok(())
}

fn sticky(net: &mut HttpNetwork) -> Result<()> {
    let mut homes = BTreeSet::new();
    for _ in 0..9 {
        let answer = net.fetch(STICKY, "/", "")?;
        let home = answer.header("X-Server").context("no X-Server")?.to_owned();
        let set = answer.header("Set-Cookie").with_context(|| format!("no cookie: {}", answer.head()))?;
        ensure!(set.contains("HttpOnly") && set.contains("Max-Age=3600"), "{set}");
        let cookie = set.split(';').next().unwrap_or_default().to_owned();
        for _ in 0..5 {
            let answer = net.fetch(STICKY, "/", &format!("Cookie: a=b; {cookie}\r\n"))?;
            ensure!(answer.header("X-Server") == Some(&home), "{cookie} of {home} led to {}", answer.head());
        }
        homes.insert(home);
    }
    ensure!(homes.len() == 3, "only {homes:?} had clients");
    // A cookie that Hairpin has not set is as none.
    let answer = net.fetch(STICKY, "/", "Cookie: backend=0123456789abcdef\r\n")?;
    ensure!(answer.status == 200 && answer.header("Set-Cookie").is_some(), "{}", answer.head());
    Ok(())
}
