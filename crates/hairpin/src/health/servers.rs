//! Servers on loopback for the tests: real sockets, one address each.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{Check, CheckTarget, HttpCheck};

/// An address of loopback that no other test uses, nor any ordinary program.
pub(super) fn fresh_address() -> SocketAddr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let low = NEXT.fetch_add(1, Ordering::Relaxed);
    assert_ne!(low, 0, "more than 255 addresses; widen their part");
    // The process in it keeps test binaries apart that run side by side.
    let [.., high, middle] = std::process::id().to_be_bytes();
    (Ipv4Addr::new(127, 64 | (high & 63), middle, low), 8080).into()
}

/// A target with short intervals and a patient timeout.
pub(super) fn target(backend: u16, address: SocketAddr, check: Check) -> CheckTarget {
    CheckTarget {
        backend,
        service: "shop".into(),
        name: format!("b{backend}"),
        address,
        direct: false,
        stand_in: None,
        check,
        tls: None,
        http2: false,
        rise: 2,
        fall: 3,
        interval: Duration::from_millis(20),
        timeout: Duration::from_secs(5),
        slow_start: Duration::ZERO,
        passive: None,
    }
}

/// `GET /health`, any good status.
pub(super) fn get() -> HttpCheck {
    HttpCheck {
        method: "GET".into(),
        path: "/health".into(),
        host: None,
        status: super::StatusRanges::default(),
        body: None,
    }
}

/// Waits until `done`, for at most ten seconds.
pub(super) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !done() {
        assert!(Instant::now() < deadline, "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A TCP server that gives each connection to a closure on a thread of its own; dropping it closes the port.
pub(super) struct TestServer {
    pub(super) address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    pub(super) fn at(address: SocketAddr, serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, serve) = (Arc::clone(&stop), Arc::new(serve));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if stopped.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), serve) = (stream, Arc::clone(&serve)) else { continue };
                std::thread::spawn(move || serve(stream));
            }
        });
        TestServer { address, stop, thread: Some(thread) }
    }

    pub(super) fn new(serve: impl Fn(TcpStream) + Send + Sync + 'static) -> Self {
        TestServer::at(fresh_address(), serve)
    }

    /// One that answers every HTTP request with these bytes, given its head, and closes.
    pub(super) fn http(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + 'static) -> Self {
        TestServer::new(move |mut stream| {
            let head = request_head(&stream);
            // The checker may have gone away.
            let _ = stream.write_all(&answer(&head));
        })
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        drop(TcpStream::connect(self.address));
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// Reads a client's request up to the empty line.
pub(super) fn request_head(stream: &TcpStream) -> String {
    let mut head = String::new();
    let mut reader = BufReader::new(stream);
    while reader.read_line(&mut head).is_ok_and(|length| length > 2) {}
    head
}

/// An answer with this status and body.
pub(super) fn response(status: u16, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status} Whatever\r\nContent-Length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

/// A UDP server that answers as the closure says, for as long as the test runs.
pub(super) fn udp_server(answer: impl Fn(&[u8]) -> Option<Vec<u8>> + Send + 'static) -> SocketAddr {
    let socket = UdpSocket::bind(fresh_address()).unwrap();
    let address = socket.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut datagram = [0; 2048];
        while let Ok((length, from)) = socket.recv_from(&mut datagram) {
            if let Some(answer) = answer(&datagram[..length]) {
                socket.send_to(&answer, from).unwrap();
            }
        }
    });
    address
}
