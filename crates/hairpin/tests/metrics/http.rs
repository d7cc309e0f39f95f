//! Ordinary use.

use crate::client::{Client, PATIENCE, get, serve, server};
use crate::exposition::full_status;
use hairpin::metrics;
use hairpin::status::{ServiceStatus, Status};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;

#[test]
fn paths_and_methods() {
    let server = server(full_status());
    let ask = |request: &str| {
        let mut client = Client::connect(server.address());
        client.send(request);
        client.response(request.starts_with("HEAD")).expect("an answer")
    };
    let index = ask("GET / HTTP/1.1\r\nHost: h\r\n\r\n");
    assert!(index.code == 200 && index.body.starts_with("<!doctype html>"));
    assert_eq!(ask("GET /metrics?a=b HTTP/1.1\r\nHost: h\r\n\r\n").code, 200);
    assert_eq!(ask("GET http://h/status HTTP/1.1\r\nHost: h\r\n\r\n").code, 200);
    assert_eq!(ask("GET /metrics HTTP/1.0\r\n\r\n").code, 200);
    for path in [
        "/metrics/",
        "//metrics",
        "/../metrics",
        "/Metrics",
        "/favicon.ico",
        "/%6detrics",
        "/page",
        "/page/",
        "/page/../metrics",
        "/page/main.js/",
    ] {
        assert_eq!(ask(&format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n")).code, 404, "{path}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "FETCH"] {
        let response = ask(&format!("{method} /metrics HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!((response.code, response.header("allow")), (405, Some("GET, HEAD")), "{method}");
        let response = ask(&format!("{method} / HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n"));
        assert_eq!((response.code, response.header("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    for path in ["/", "/page/main.js", "/metrics", "/status", "/events", "/healthz"] {
        let mut client = Client::connect(server.address());
        client.send(format!("HEAD {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let head = client.response(true).expect("an answer");
        assert_eq!(head.code, 200);
        assert_ne!(head.header("content-length"), Some("0"));
        // The next answer begins where the head ended.
        let body = client.get("/status").expect("an answer").body;
        assert!(serde_json::from_str::<Status>(&body).is_ok());
    }
}

#[test]
fn ready_says_which_service_is_not_and_why() {
    let mut status = full_status();
    let ready = |service: &mut ServiceStatus, why: &str| {
        (service.ready, service.not_ready) = (why.is_empty(), why.to_string());
    };
    status.services.iter_mut().for_each(|service| ready(service, ""));
    let all = server(status.clone());
    assert_eq!((get(all.address(), "/ready").code, &*get(all.address(), "/ready").body), (200, "ready\n"));
    ready(&mut status.services[0], "all 2 backends are down");
    let name = status.services[0].name.clone();
    let one = get(server(status.clone()).address(), "/ready");
    assert_eq!((one.code, one.body), (503, format!("not ready: service {name}: all 2 backends are down\n")));
    status.services[0].state = "removed".into();
    assert_eq!(get(server(status).address(), "/ready").code, 200, "a service that is no longer configured");
}

#[test]
fn a_connection_takes_a_hundred_requests() {
    let server = server(full_status());
    let mut client = Client::connect(server.address());
    for number in 1..=100 {
        let response = client.get("/status").expect("an answer");
        assert_eq!(response.code, 200);
        assert_eq!(response.header("connection") == Some("close"), number == 100, "{number}");
    }
    assert!(client.is_closed());
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let server = server(full_status());
    let mut client = Client::connect(server.address());
    client.send("GET /nowhere HTTP/1.1\r\nHost: h\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n".repeat(10));
    for _ in 0..10 {
        assert_eq!(client.response(false).expect("an answer").code, 404);
        assert_eq!(client.response(false).expect("an answer").code, 200);
    }
}

#[test]
fn statuses_are_shared() {
    let (calls, at_work, twice) =
        (Arc::new(AtomicUsize::new(0)), AtomicUsize::new(0), Arc::new(AtomicBool::new(false)));
    let (at_work, seen, counted) = (Arc::new(at_work), Arc::clone(&twice), Arc::clone(&calls));
    let server = serve(move || {
        seen.fetch_or(at_work.fetch_add(1, Ordering::SeqCst) > 0, Ordering::SeqCst);
        counted.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(std::time::Duration::from_millis(5));
        at_work.fetch_sub(1, Ordering::SeqCst);
        Ok(full_status())
    });
    let address = server.address();
    let began = Instant::now();
    let clients: Vec<_> = (0..8)
        .map(|number| {
            let path = if number % 2 == 0 { "/metrics" } else { "/status" };
            std::thread::spawn(move || {
                let mut client = Client::connect(address);
                (0..50).for_each(|_| assert_eq!(client.get(path).expect("an answer").code, 200));
            })
        })
        .collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let most = began.elapsed().as_millis() as usize / 100 + 1;
    let calls = calls.load(Ordering::SeqCst);
    assert!(calls <= most && calls > 0, "{calls} statuses, {most} at most");
    assert!(!twice.load(Ordering::SeqCst), "two statuses were being made at once");
}

#[test]
fn a_slow_status_stalls_no_other_request() {
    let (gate, wait) = mpsc::channel();
    let (called, calls) = mpsc::channel();
    let wait = Arc::new(Mutex::new(wait));
    let server = serve(move || {
        let _ = called.send(());
        wait.lock().unwrap().recv_timeout(PATIENCE).map_err(|error| error.to_string())?;
        Ok(full_status())
    });
    let mut waiting: Vec<Client> = (0..5).map(|_| Client::connect(server.address())).collect();
    for client in &mut waiting {
        client.send("GET /status HTTP/1.1\r\nHost: h\r\n\r\n");
    }
    calls.recv_timeout(PATIENCE).unwrap();
    assert_eq!(get(server.address(), "/").code, 200);
    // Clients that give up waiting change nothing.
    waiting.drain(..2);
    assert_eq!(get(server.address(), "/nowhere").code, 404);
    gate.send(()).unwrap();
    for client in &mut waiting {
        assert_eq!(client.response(false).expect("an answer").code, 200);
    }
    assert!(calls.try_recv().is_err(), "one status was enough");
}

#[test]
fn without_a_status_the_answer_says_why() {
    let broken = serve(|| Err("it is stopping".to_string()));
    for path in ["/metrics", "/status", "/healthz", "/ready"] {
        let response = get(broken.address(), path);
        assert_eq!((response.code, &*response.body), (503, "no status: it is stopping\n"));
    }
    let calls = AtomicUsize::new(0);
    let calls = Arc::new(calls);
    let panics_once = serve(move || {
        assert!(calls.fetch_add(1, Ordering::SeqCst) > 0, "this panic is part of the test");
        Ok(full_status())
    });
    assert_eq!(get(panics_once.address(), "/status").code, 503);
    let deadline = Instant::now() + PATIENCE;
    while get(panics_once.address(), "/status").code != 200 {
        assert!(Instant::now() < deadline, "a status that panics once must not be the end");
    }
}

#[test]
fn dropping_the_server_stops_it() {
    let (_gate, wait) = mpsc::channel::<()>();
    let wait = Arc::new(Mutex::new(wait));
    // An address of its own, where no other test can happen to take the port.
    let server = metrics::serve("127.0.0.42:0".parse().unwrap(), move || {
        let _ = wait.lock().unwrap().recv_timeout(PATIENCE);
        Err("too late".to_string())
    })
    .unwrap();
    let address = server.address();
    let mut waiting = Client::connect(address);
    waiting.send("GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n");
    let mut idle = Client::connect(address);
    assert_eq!(idle.get("/").expect("an answer").code, 200);
    let dropped = Instant::now();
    drop(server);
    // A status that hangs is not waited for.
    assert!(dropped.elapsed() < PATIENCE / 2);
    assert!(waiting.is_closed() && idle.is_closed());
    assert!(TcpStream::connect(address).is_err());
    drop(metrics::serve(address, || Ok(Status::default())).expect("the address is free again"));
}

#[test]
fn an_address_that_cannot_be_had_is_named_with_the_remedy() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let said =
        |address: std::net::SocketAddr| metrics::serve(address, || Ok(Status::default())).unwrap_err().to_string();
    let wrong = said(address);
    assert!(wrong.starts_with(&format!("cannot serve metrics on {address}: Address already in use")), "{wrong}");
    assert!(wrong.contains(&format!("ss -ltnp sport = :{}", address.port())), "{wrong}");
    let wrong = said("192.0.2.77:9100".parse().unwrap());
    assert!(wrong.ends_with("choose one of its own, such as 127.0.0.1"), "{wrong}");
}
