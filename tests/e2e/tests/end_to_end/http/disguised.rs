//! Paths, fields and responses that can be read in more than one way: what gets through, and how.

use super::http_network::{HttpNetwork, HttpNetworks, PATIENCE, PLAIN, ROUTES, Which};
use anyhow::{Context, Result, ensure};
use libtest_mimic::Trial;
use std::fmt::Write as _;
use std::sync::Arc;

pub(super) fn tests(networks: &Arc<HttpNetworks>) -> Vec<Trial> {
    let test = |name, body: fn(&mut HttpNetwork) -> Result<()>| networks.test(name, Which::Gso, body);
    vec![
        test("path parameters do not get round access rules", parameters),
        test("a replaced prefix leaves the rest of the path", prefix),
        test("fields that CGI takes for ours are dropped", lookalikes),
        test("Max-Forwards counts on TRACE and OPTIONS", max_forwards),
        test("responses with odd framing go on when clear", responses),
        test("responses that stay ambiguous are refused", ambiguous),
    ]
}

fn parameters(net: &mut HttpNetwork) -> Result<()> {
    for path in ["/guarded/x", "/guarded;x/y", "/guarded;a=b/x", "/;a/guarded/x", "/guarded%3bx/y", "/a/..;/guarded/x"]
    {
        let answer = net.fetch(ROUTES, path, "")?;
        ensure!(matches!(answer.status, 400 | 403), "{path} was answered {}", answer.head());
    }
    ensure!(net.recorders[0].heard().is_empty(), "something got through: {:?}", net.recorders[0].heard());
    for path in ["/open;x/guarded/y", "/open;a=b"] {
        let answer = net.fetch(ROUTES, path, "")?;
        ensure!(answer.status == 200, "{path} was answered {}", answer.head());
        let line = format!("GET {path} HTTP/1.1");
        ensure!(answer.text().starts_with(&line), "{path} became {}", answer.text());
    }
    Ok(())
}

fn prefix(net: &mut HttpNetwork) -> Result<()> {
    for (path, expected) in [
        ("/api/admin", "/v2/admin"),
        ("/api//admin", "/v2//admin"),
        ("//api///a//b/", "/v2///a//b/"),
        ("/api/x/../%61", "/v2/a"),
        ("/strip//x", "/x"),
    ] {
        let answer = net.fetch(ROUTES, path, "")?;
        let line = format!("GET {expected} HTTP/1.1\r\n");
        ensure!(answer.text().starts_with(&line), "{path} became {}", answer.text());
    }
    Ok(())
}

fn lookalikes(net: &mut HttpNetwork) -> Result<()> {
    let lies = "X.Forwarded.For: 1.2.3.4\r\nX_Forwarded_For: 1.2.3.4\r\nx~forwarded+proto: 1.2.3.4\r\n\
                X.Real.IP: 1.2.3.4\r\nX|Forwarded'Port: 1.2.3.4\r\nX-Kept.too: 1\r\n";
    let answer = net.fetch(PLAIN, "/", lies)?;
    ensure!(!answer.text().contains("1.2.3.4"), "went on: {}", answer.text());
    ensure!(answer.text().contains("X-Kept.too: 1"), "lost: {}", answer.text());
    for field in ["Content.Length: 5", "Transfer.Encoding: chunked", "Content_Length: 5"] {
        let answer = net.fetch(PLAIN, "/", &format!("{field}\r\n"))?;
        ensure!(answer.status == 400, "{field} was answered {}", answer.head());
    }
    Ok(())
}

fn max_forwards(net: &mut HttpNetwork) -> Result<()> {
    let ask = |net: &mut HttpNetwork, method: &str, fields: &str| {
        net.ask(PLAIN, format!("{method} /a HTTP/1.1\r\nHost: test\r\n{fields}\r\n"))
    };
    for method in ["TRACE", "OPTIONS"] {
        let answer = ask(net, method, "Max-Forwards: 10\r\n")?;
        ensure!(answer.text().contains("Max-Forwards: 9\r\n"), "{method}: {}", answer.text());
        let answer = ask(net, method, "")?;
        ensure!(!answer.text().contains("Max-Forwards"), "{method}: {}", answer.text());
        for bad in ["x", "-1", "1, 2", ""] {
            let answer = ask(net, method, &format!("Max-Forwards: {bad}\r\n"))?;
            ensure!(answer.status == 400, "{method} with {bad:?} was answered {}", answer.head());
        }
    }
    let answer = ask(net, "GET", "Max-Forwards: 0\r\n")?;
    ensure!(answer.text().contains("Max-Forwards: 0\r\n"), "GET: {}", answer.text());
    let heard = net.recorders[0].heard().len();
    for (method, status) in [("OPTIONS", 200), ("TRACE", 501)] {
        let answer = ask(net, method, "Max-Forwards: 0\r\n")?;
        ensure!(answer.status == status && answer.header("X-Server").is_none(), "{method}: {}", answer.head());
    }
    ensure!(net.recorders[0].heard().len() == heard, "a request went further than it may");
    Ok(())
}

/// A target to which the backend answers with these bytes.
fn raw(answer: &str, close: bool) -> String {
    let mut target = if close { "/raw-close?" } else { "/raw?" }.to_owned();
    for byte in answer.bytes() {
        let _ = write!(target, "%{byte:02X}");
    }
    target
}

fn responses(net: &mut HttpNetwork) -> Result<()> {
    for (response, close, status, body, length) in [
        ("204 No Content\r\nContent-Length: 5\r\n\r\nhello", false, 204, "", None),
        ("204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false, 204, "", None),
        ("200 OK\r\nContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello", false, 200, "hello", Some("5")),
        ("200 OK\r\nContent-Length: 5, 5\r\n\r\nhello", false, 200, "hello", Some("5")),
        ("200 OK\r\nContent-Length: 005\r\n\r\nhello", false, 200, "hello", Some("5")),
        ("200 OK\r\nTransfer-Encoding: identity\r\nContent-Length: 5\r\n\r\nhello", false, 200, "hello", Some("5")),
        ("200 OK\r\nTransfer-Encoding: identity\r\n\r\nhello", true, 200, "hello", None),
        ("600 Own\r\nContent-Length: 5\r\n\r\nhello", false, 600, "hello", Some("5")),
        ("999 Denied\r\nContent-Length: 5\r\n\r\nhello", false, 999, "hello", Some("5")),
    ] {
        let mut connection = net.connect(PLAIN)?;
        let target = raw(&format!("HTTP/1.1 {response}"), close);
        connection.send(format!("GET {target} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes(), PATIENCE)?;
        let answer = connection.answer(false, PATIENCE).with_context(|| response.to_owned())?;
        ensure!((answer.status, &*answer.text()) == (status, body), "{response} became {}", answer.head());
        ensure!(answer.headers("Content-Length").eq(length), "{response} became {}", answer.head());
        ensure!(answer.header("Transfer-Encoding").is_none(), "{response} became {}", answer.head());
        if close {
            continue;
        }
        // The next answer follows on the client's connection.
        connection.send(b"GET /next HTTP/1.1\r\nHost: test\r\n\r\n", PATIENCE)?;
        let answer = connection.answer(false, PATIENCE).with_context(|| format!("behind {response}"))?;
        ensure!(answer.text().starts_with("GET /next "), "behind {response}: {}", answer.head());
    }
    Ok(())
}

fn ambiguous(net: &mut HttpNetwork) -> Result<()> {
    for response in [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5, 6\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nContent-Length: 5,\r\n\r\nhello",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: identity, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nhello",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 099 Odd\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 1000 Odd\r\nContent-Length: 5\r\n\r\nhello",
        "HTTP/1.1 103 Hints\r\nContent-Length: 5\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ] {
        let answer = net.fetch(PLAIN, &raw(response, false), "").with_context(|| response.to_owned())?;
        ensure!(answer.status == 502, "{response} became {}", answer.head());
    }
    let chunked = raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", false);
    let answer = net.ask(PLAIN, format!("GET {chunked} HTTP/1.0\r\nHost: test\r\n\r\n"))?;
    ensure!(answer.status == 502, "chunks for an HTTP/1.0 client became {}", answer.head());
    Ok(())
}
