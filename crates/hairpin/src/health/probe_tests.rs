//! Every verdict and reason of a single check, against real servers.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use super::probe::{CheckFailure, CheckOutcome, io_failure, probe};
use super::servers::{TestServer, fresh_address, get, request_head, response, target, udp_server};
use super::{Check, CheckTarget, HttpCheck};

fn probed(target: &CheckTarget) -> CheckOutcome {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(probe(target))
}

fn check(address: SocketAddr, check: Check) -> CheckOutcome {
    probed(&target(1, address, check))
}

fn impatient(address: SocketAddr, check: Check) -> CheckOutcome {
    probed(&CheckTarget { timeout: Duration::from_millis(50), ..target(1, address, check) })
}

fn failed(reason: &str) -> CheckOutcome {
    Err(CheckFailure::Backend(reason.into()))
}

fn reason(outcome: CheckOutcome) -> String {
    match outcome {
        Err(CheckFailure::Backend(reason)) => reason,
        other => panic!("no failure of the backend: {other:?}"),
    }
}

/// Accepts, says nothing and holds on until the other end is gone.
fn mute(stream: TcpStream) {
    let _ = (&stream).read_to_end(&mut Vec::new());
}

#[test]
fn tcp_connects_and_resets() {
    let (tell, told) = mpsc::channel();
    let server = TestServer::new(move |mut stream| {
        tell.send(stream.read(&mut [0]).map_err(|error| error.kind())).unwrap();
    });
    assert_eq!(check(server.address, Check::Tcp), Ok("connected".into()));
    let seen = told.recv_timeout(Duration::from_secs(10)).unwrap();
    assert_eq!(seen, Err(std::io::ErrorKind::ConnectionReset), "FIN would leave TIME_WAIT here");
}

#[test]
fn no_server_listens() {
    for what in [Check::Tcp, Check::Http(get())] {
        assert_eq!(check(fresh_address(), what), failed("connection refused"));
    }
}

#[test]
fn a_connection_is_not_answered() {
    // A listener that accepts nothing takes up two connections here and leaves further ones without an answer.
    let address = fresh_address();
    let listener = socket_with_short_queue(address);
    let held: Vec<_> = (0..4).map(|_| TcpStream::connect_timeout(&address, Duration::from_millis(50))).collect();
    assert_eq!(impatient(address, Check::Tcp), failed("no connection within 50ms"));
    assert_eq!(impatient(address, Check::Http(get())), failed("no connection within 50ms"));
    drop((listener, held));
}

fn socket_with_short_queue(address: SocketAddr) -> TcpListener {
    use rustix::net::{AddressFamily, SocketType, bind, listen, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    bind(&socket, &address).unwrap();
    listen(&socket, 0).unwrap();
    socket.into()
}

#[test]
fn http_asks_as_configured() {
    let (tell, told) = mpsc::channel();
    let server = TestServer::http(move |head| {
        tell.send(head.to_ascii_lowercase()).unwrap();
        response(204, "")
    });
    assert_eq!(check(server.address, Check::Http(get())), Ok("HTTP status 204".into()));
    let head = told.recv().unwrap();
    assert!(head.starts_with("get /health http/1.1\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nhost: {}\r\n", server.address)), "{head}");
    assert!(head.contains("\r\nconnection: close\r\n"), "{head}");

    let special =
        HttpCheck { method: "HEAD".into(), path: "/up?deep=1".into(), host: Some("shop.example:8443".into()), ..get() };
    assert_eq!(check(server.address, Check::Http(special)), Ok("HTTP status 204".into()));
    let head = told.recv().unwrap();
    assert!(head.starts_with("head /up?deep=1 http/1.1\r\n"), "{head}");
    assert!(head.contains("\r\nhost: shop.example:8443\r\n"), "{head}");
}

#[test]
fn http_host_decides() {
    let server = TestServer::http(|head| {
        let good = head.to_ascii_lowercase().contains("host: right.example\r\n");
        response(if good { 200 } else { 404 }, "")
    });
    let with_host = |host: &str| Check::Http(HttpCheck { host: Some(host.into()), ..get() });
    assert_eq!(check(server.address, with_host("right.example")), Ok("HTTP status 200".into()));
    assert_eq!(check(server.address, with_host("wrong.example")), failed("HTTP status 404, expected 200-399"));
}

#[test]
fn http_statuses() {
    let server = TestServer::http(|_| response(503, ""));
    let expecting = |status: &str| Check::Http(HttpCheck { status: status.parse().unwrap(), ..get() });
    assert_eq!(check(server.address, expecting("200-399")), failed("HTTP status 503, expected 200-399"));
    assert_eq!(
        check(server.address, expecting("200,204,500-502")),
        failed("HTTP status 503, expected 200,204,500-502")
    );
    assert_eq!(check(server.address, expecting("200, 503")), Ok("HTTP status 503".into()));
}

#[test]
fn http_redirects_are_not_followed() {
    let (tell, told) = mpsc::channel();
    let elsewhere = TestServer::new(move |_| tell.send(()).unwrap());
    let location = elsewhere.address;
    let server = TestServer::http(move |_| {
        format!("HTTP/1.1 302 Found\r\nLocation: http://{location}/\r\nContent-Length: 0\r\n\r\n").into_bytes()
    });
    assert_eq!(check(server.address, Check::Http(get())), Ok("HTTP status 302".into()));
    assert!(told.try_recv().is_err(), "followed");
}

#[test]
fn http_bodies() {
    let looking_for = |text: &str| Check::Http(HttpCheck { body: Some(text.into()), ..get() });
    let server = TestServer::http(|_| response(200, "all is well"));
    assert_eq!(check(server.address, looking_for("is well")), Ok("HTTP status 200".into()));
    let lacks = failed("HTTP status 200, but the body lacks \"is ill\"");
    assert_eq!(check(server.address, looking_for("is ill")), lacks);

    // In chunks that tear the text apart, and without a length.
    let chunked = TestServer::http(|_| {
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nis w\r\n3\r\nell\r\n0\r\n\r\n".to_vec()
    });
    assert_eq!(check(chunked.address, looking_for("is well")), Ok("HTTP status 200".into()));
    let unbounded = TestServer::http(|_| b"HTTP/1.0 200 OK\r\n\r\nis well".to_vec());
    assert_eq!(check(unbounded.address, looking_for("is well")), Ok("HTTP status 200".into()));
}

#[test]
fn http_endless_body_is_bounded() {
    let (tell, told) = mpsc::channel();
    let server = TestServer::new(move |mut stream| {
        request_head(&stream);
        let mut sent = stream.write(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
        while let Ok(length) = stream.write(&[b'x'; 4096]) {
            sent += length;
        }
        tell.send(sent).unwrap();
    });
    let looking = Check::Http(HttpCheck { body: Some("y".into()), ..get() });
    assert_eq!(check(server.address, looking), failed("HTTP status 200, but the body lacks \"y\""));
    // The contents of the kernel's buffers come on top of the bytes read.
    assert!(told.recv_timeout(Duration::from_secs(10)).unwrap() < 32 << 20, "the connection was not closed");
    // Without a text to search for, the body is not awaited at all.
    assert_eq!(check(server.address, Check::Http(get())), Ok("HTTP status 200".into()));
}

#[test]
fn http_body_text_within_and_beyond_the_limit() {
    let padded = |padding: usize| TestServer::http(move |_| response(200, &("x".repeat(padding) + "end")));
    let looking = Check::Http(HttpCheck { body: Some("end".into()), ..get() });
    let within = padded(64 * 1024 - 3);
    assert_eq!(check(within.address, looking.clone()), Ok("HTTP status 200".into()));
    let beyond = padded(64 * 1024 - 2);
    assert_eq!(check(beyond.address, looking), failed("HTTP status 200, but the body lacks \"end\""));
}

#[test]
fn http_endless_head_is_bounded() {
    let server = TestServer::new(|mut stream| {
        request_head(&stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nX: ");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let told = reason(check(server.address, Check::Http(get())));
    assert_eq!(told, "the answer is not HTTP as it should be: message head is too large");
}

#[test]
fn http_heads_up_to_64_kib() {
    let padded = |padding: usize| {
        TestServer::http(move |_| format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(padding)).into_bytes())
    };
    let within = padded(60 * 1024);
    assert_eq!(check(within.address, Check::Http(get())), Ok("HTTP status 200".into()));
    // The last read can bring as much again.
    let beyond = padded(130 * 1024);
    let told = reason(check(beyond.address, Check::Http(get())));
    assert!(told.ends_with("message head is too large"), "{told}");
}

#[test]
fn http_broken_answers() {
    let server = TestServer::http(|_| b"SSH-2.0-OpenSSH_9.6\r\n\r\n".to_vec());
    let told = reason(check(server.address, Check::Http(get())));
    assert!(told.starts_with("the answer is not HTTP as it should be"), "{told}");

    for part in ["", "HTTP/1.1 200 OK\r\nContent-Le"] {
        let server = TestServer::http(|_| part.as_bytes().to_vec());
        assert_eq!(check(server.address, Check::Http(get())), failed("closed before the HTTP answer was complete"));
    }
    let short = TestServer::http(|_| b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort".to_vec());
    let looking = Check::Http(HttpCheck { body: Some("long".into()), ..get() });
    let told = reason(check(short.address, looking));
    assert!(told.starts_with("the HTTP answer is broken") || told.starts_with("closed before"), "{told}");
}

#[test]
fn http_reset_by_the_backend() {
    let server = TestServer::new(|stream| {
        request_head(&stream);
        rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    });
    assert_eq!(check(server.address, Check::Http(get())), failed("connection reset"));
}

#[test]
fn http_silence_at_every_stage() {
    let looking = HttpCheck { body: Some("never".into()), ..get() };
    for part in ["", "HTTP/1.1 20", "HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\nsome"] {
        let server = TestServer::new(move |mut stream| {
            request_head(&stream);
            stream.write_all(part.as_bytes()).unwrap();
            mute(stream);
        });
        let outcome = impatient(server.address, Check::Http(looking.clone()));
        assert_eq!(outcome, failed("no answer within 50ms"), "after {part:?}");
    }
    let server = TestServer::new(mute);
    assert_eq!(impatient(server.address, Check::Http(get())), failed("no answer within 50ms"));
}

#[test]
fn udp_answers() {
    let udp = |expect: Option<&[u8]>| Check::Udp { send: b"ping".to_vec(), expect: expect.map(<[u8]>::to_vec) };
    let address = udp_server(|datagram| Some([b"re: ", datagram].concat()));
    assert_eq!(check(address, udp(None)), Ok("answered".into()));
    assert_eq!(check(address, udp(Some(b"re: ping"))), Ok("answered".into()));
    assert_eq!(check(address, udp(Some(b"ping"))), Ok("answered".into()));
    assert_eq!(check(address, udp(Some(b"pong"))), failed("the answer does not contain what is expected"));
    // An empty datagram is a question as well, and an empty one an answer.
    let empty = udp_server(|_| Some(Vec::new()));
    assert_eq!(check(empty, Check::Udp { send: Vec::new(), expect: None }), Ok("answered".into()));
}

#[test]
fn udp_refused_and_silent() {
    let udp = Check::Udp { send: b"ping".to_vec(), expect: None };
    assert_eq!(check(fresh_address(), udp.clone()), failed("connection refused"));
    assert_eq!(impatient(udp_server(|_| None), udp), failed("no answer within 50ms"));
}

#[test]
fn ipv6() {
    let (tell, told) = mpsc::channel();
    let server = TestServer::at("[::1]:0".parse().unwrap(), move |mut stream| {
        tell.send(request_head(&stream).to_ascii_lowercase()).unwrap();
        stream.write_all(&response(200, "")).unwrap();
    });
    assert_eq!(check(server.address, Check::Http(get())), Ok("HTTP status 200".into()));
    let head = told.recv().unwrap();
    assert!(head.contains(&format!("\r\nhost: [::1]:{}\r\n", server.address.port())), "{head}");
}

#[test]
fn local_errors_do_not_count_against_a_backend() {
    use rustix::io::Errno;
    for lack in [Errno::MFILE, Errno::NFILE, Errno::ADDRNOTAVAIL, Errno::NOBUFS, Errno::NOMEM] {
        let failure = io_failure(&lack.into());
        assert!(
            matches!(&failure, CheckFailure::Local(reason) if reason.starts_with("this host cannot check: ")),
            "{failure:?}"
        );
    }
    for (wrong, reason) in [
        (Errno::CONNREFUSED, "connection refused"),
        (Errno::CONNRESET, "connection reset"),
        (Errno::TIMEDOUT, "connection timed out"),
        (Errno::HOSTUNREACH, "host unreachable"),
        (Errno::NETUNREACH, "network unreachable"),
    ] {
        assert_eq!(io_failure(&wrong.into()), CheckFailure::Backend(reason.into()));
    }
}
