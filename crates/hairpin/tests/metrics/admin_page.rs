//! The page for people and what it asks for.

use crate::client::{Client, Response, get, get_with, server};
use crate::exposition::full_status;
use hairpin::control::OffloadView;
use hairpin::metrics::{self, MetricsServer, Sources};
use hairpin::status::Status;
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/metrics/page");

/// The files of the page, by their names.
fn files() -> BTreeSet<String> {
    let files = std::fs::read_dir(DIRECTORY).unwrap();
    files.map(|file| file.unwrap().file_name().into_string().unwrap()).filter(|name| name != "index.html").collect()
}

#[test]
fn every_file_is_served_as_it_is_and_asks_for_nothing_else() {
    let server = server(full_status());
    let mut named = BTreeSet::new();
    for name in files().iter().map(String::as_str).chain(["index.html"]) {
        let path = if name == "index.html" { "/".to_owned() } else { format!("/page/{name}") };
        let answer = get(server.address(), &path);
        let text = std::fs::read_to_string(Path::new(DIRECTORY).join(name)).unwrap();
        assert_eq!((answer.code, &answer.body), (200, &text), "{path}");
        let kind = match name.rsplit('.').next() {
            Some("js") => "text/javascript; charset=utf-8",
            Some("css") => "text/css; charset=utf-8",
            Some("svg") => "image/svg+xml",
            _ => "text/html; charset=utf-8",
        };
        assert_eq!(answer.header("content-type"), Some(kind), "{path}");
        // The name of SVG's namespace is no request.
        let text = text.replace("http://www.w3.org/2000/svg", "");
        assert!(!text.contains("://") && !text.contains("@import"), "{name} names another host");
        for way in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"] {
            assert!(!text.contains(way), "{name}: {way} makes markup or code of text");
        }
        let quoted = text.split(['"', '\'']).map(|word| word.trim_start_matches("./").trim_start_matches("page/"));
        named.extend(quoted.filter(|word| files().contains(*word)).map(str::to_owned));
    }
    assert_eq!(named, files(), "each file is asked for by another one");
}

#[test]
fn every_answer_is_guarded() {
    let server = server(full_status());
    for path in ["/", "/page/page.css", "/status", "/metrics", "/events", "/offload", "/healthz", "/nowhere"] {
        let answer = get(server.address(), path);
        let policy = answer.header("content-security-policy").unwrap_or_default();
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "trusted-types 'none'"] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("x-frame-options", "DENY"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(answer.header(name), Some(value), "{path}");
        }
        assert!(answer.headers.iter().all(|(name, _)| !name.starts_with("access-control-")), "{path}");
    }
}

/// The answer to a request for the page at this host.
fn ask_host(to: SocketAddr, host: &str) -> Response {
    let mut client = Client::connect(to);
    client.send(format!("GET /status HTTP/1.1\r\n{host}Connection: close\r\n\r\n"));
    client.response(false).expect("an answer")
}

#[test]
fn other_sites_cannot_have_their_names_lead_to_loopback() {
    let server = server(full_status());
    for host in ["127.0.0.1", "127.0.0.1:9560", "localhost", "localhost:9560", "[::1]:9560", "edge-1:9560", "192.0.2.1"]
    {
        assert_eq!(ask_host(server.address(), &format!("Host: {host}\r\n")).code, 200, "{host}");
    }
    for host in
        ["evil.example", "evil.example:9560", "127.0.0.1.evil.example", "[evil.example]", "a@evil.example", "x."]
    {
        let answer = ask_host(server.address(), &format!("Host: {host}\r\n"));
        assert!(answer.code == 421 && answer.body.contains("localhost"), "{host}: {answer:?}");
    }
    let mut client = Client::connect(server.address());
    client.send("GET http://evil.example/status HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert_eq!(client.response(false).expect("an answer").code, 421);
}

#[test]
fn other_sites_cannot_have_their_names_lead_elsewhere_either() {
    let sources = || Sources {
        status: Box::new(|| Ok(full_status())),
        offload: Box::new(|_: &Status| Ok(OffloadView::default())),
        events: None,
    };
    let server = |listen: &str| {
        let hosts = ["edge.example.com".to_owned()];
        metrics::serve_all(listen.parse().unwrap(), &hosts, sources()).unwrap()
    };
    let code = |to: SocketAddr, path: &str, host: &str| {
        let mut client = Client::connect(to);
        client.send(format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"));
        client.response(false).expect("an answer").code
    };
    let [everywhere, loopback] = ["0.0.0.0:0", "127.0.0.1:0"].map(server);
    let port = everywhere.address().port();
    let everywhere = SocketAddr::from(([127, 0, 0, 1], port));
    for path in ["/", "/page/main.js", "/status", "/offload", "/events", "/metrics", "/healthz", "/ready"] {
        let is_for_monitoring = ["/metrics", "/healthz", "/ready"].contains(&path);
        let answered = if path == "/ready" { code(everywhere, path, "192.0.2.1") } else { 200 };
        for to in [everywhere, loopback.address()] {
            for host in ["192.0.2.1:9560", "edge", "Edge.Example.COM", "edge.example.com:443"] {
                assert_eq!(code(to, path, host), answered, "{path} for {host}");
            }
            let other = if is_for_monitoring && to == everywhere { answered } else { 421 };
            for host in ["evil.example", "edge.example.com.evil.example", "a.edge.example.com"] {
                assert_eq!(code(to, path, host), other, "{path} for {host}");
            }
        }
    }
}

/// A file of events of one test's own.
struct EventsFile(PathBuf);

impl EventsFile {
    fn new(name: &str) -> EventsFile {
        let name = format!("hairpin-page-{name}-{}.events", std::process::id());
        EventsFile(std::env::temp_dir().join(name))
    }

    fn tell(&self, message: &str) {
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&self.0).unwrap();
        let event = serde_json::json!({
            "time": "2026-11-30T10:00:00.000Z", "level": "info", "kind": "other", "pid": 7, "message": message,
        });
        writeln!(file, "{event}").unwrap();
    }
}

impl Drop for EventsFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A server that knows of everything; how often it was asked for what is offloaded.
fn whole(events: &EventsFile, offload: Result<OffloadView, String>) -> (MetricsServer, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let sources = Sources {
        status: Box::new(|| Ok(full_status())),
        offload: Box::new(move |_: &Status| {
            counted.fetch_add(1, Ordering::SeqCst);
            offload.clone()
        }),
        events: Some(events.0.clone()),
    };
    (metrics::serve_all("127.0.0.1:0".parse().unwrap(), &[], sources).unwrap(), asked)
}

fn messages(to: SocketAddr) -> Vec<String> {
    let answer: Value = serde_json::from_str(&get(to, "/events").body).unwrap();
    let events = answer["events"].as_array().unwrap().iter();
    events.map(|event| event["message"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_newest_hundred_events_are_told_and_more_as_they_come() {
    let events = EventsFile::new("newest");
    let (server, _) = whole(&events, Ok(OffloadView::default()));
    assert_eq!(messages(server.address()), [""; 0]);
    (0..250).for_each(|number| events.tell(&format!("number {number}")));
    let deadline = std::time::Instant::now() + crate::client::PATIENCE;
    let shows = |last: &str| messages(server.address()).last().is_some_and(|message| message == last);
    // An answer is as good as new for half a second.
    while !shows("number 249") {
        assert!(std::time::Instant::now() < deadline, "the events are not shown");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let told = messages(server.address());
    assert_eq!((told.len(), &*told[0]), (100, "number 150"));
    events.tell("</script><script>\u{1}\"\n  token = \"secret\"");
    while !shows("</script><script>\u{1}\"") {
        assert!(std::time::Instant::now() < deadline, "a new event is not shown");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(messages(server.address()).len(), 100);
    // As JSON, which no browser takes for markup or for a script.
    let answer = get(server.address(), "/events");
    assert_eq!(answer.header("content-type"), Some("application/json"));
}

#[test]
fn what_is_offloaded_is_asked_for_once_by_many_clients() {
    let events = EventsFile::new("offload");
    let view = OffloadView { offloaded: 42, in_software: vec![("closing".into(), 3)], ..OffloadView::default() };
    let (server, asked) = whole(&events, Ok(view.clone()));
    let began = std::time::Instant::now();
    let to = server.address();
    let clients: Vec<_> = (0..8).map(|_| std::thread::spawn(move || get(to, "/offload"))).collect();
    for client in clients {
        let answer = client.join().unwrap();
        assert_eq!(answer.code, 200);
        assert_eq!(serde_json::from_str::<OffloadView>(&answer.body).unwrap(), view);
    }
    let most = began.elapsed().as_secs() as usize / 2 + 1;
    assert!(asked.load(Ordering::SeqCst) <= most, "asked {} times, {most} at most", asked.load(Ordering::SeqCst));
    let (broken, _) = whole(&events, Err("worker 1 does not say".into()));
    let answer = get_with(broken.address(), "/offload", "");
    assert_eq!((answer.code, &*answer.body), (503, "no offload: worker 1 does not say\n"));
}
