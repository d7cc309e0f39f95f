//! The whole: a checker's thread against real servers.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use super::servers::{TestServer, eventually, fresh_address, get, request_head, response, target, udp_server};
use super::{
    Change, Check, CheckTarget, Checker, Health, HealthState, HttpCheck, IN_FLIGHT_MAX, ObservedTotals, Passive,
};

/// A checker and what it tells.
fn started(targets: Vec<CheckTarget>) -> (Checker, mpsc::Receiver<Change>) {
    let (tell, told) = mpsc::channel();
    let checker = Checker::start(targets, None, move |changes| {
        for change in changes {
            // The test may be over.
            let _ = tell.send(change);
        }
    });
    (checker.unwrap(), told)
}

fn next(told: &mpsc::Receiver<Change>) -> (u16, Health, String) {
    let change = told.recv_timeout(Duration::from_secs(10)).unwrap();
    (change.backend, change.to, change.reason)
}

fn state(checker: &Checker, backend: u16) -> HealthState {
    checker.states().into_iter().find(|state| state.backend == backend).unwrap()
}

fn available(checker: &Checker) -> Vec<u16> {
    checker
        .backends_health()
        .iter()
        .filter(|backend_health| backend_health.available)
        .map(|backend_health| backend_health.backend)
        .collect()
}

#[test]
fn down_when_the_server_stops_and_up_when_it_returns() {
    let address = fresh_address();
    let server = TestServer::at(address, |_| {});
    let (checker, told) = started(vec![target(1, address, Check::Tcp)]);
    assert_eq!(next(&told), (1, Health::Up, "connected".into()));
    assert_eq!(available(&checker), [1]);
    drop(server);
    let (_, health, reason) = next(&told);
    assert_eq!(health, Health::Down);
    // The last connection may have been accepted by the queue of a socket that was closed then.
    assert!(reason.starts_with("connection re"), "{reason}");
    assert_eq!(available(&checker), [0_u16; 0]);
    let failed = state(&checker, 1).failures;
    assert!(failed >= 3, "down after {failed} failures");
    let server = TestServer::at(address, |_| {});
    assert_eq!(next(&told), (1, Health::Up, "connected".into()));
    let seen = state(&checker, 1);
    assert!(seen.last_duration.is_some() && seen.checks > seen.failures, "{seen:?}");
    drop(server);
}

#[test]
fn every_kind_of_check_and_its_reason() {
    let good = TestServer::http(|_| response(200, "fine"));
    let ill = TestServer::http(|_| response(503, "ill"));
    let mute = TestServer::new(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let echo = udp_server(|datagram| Some(datagram.to_vec()));
    let udp = Check::Udp { send: b"x".to_vec(), expect: None };
    let wrong_body = HttpCheck { body: Some("nice".into()), ..get() };
    let impatient = Duration::from_millis(300);
    let targets = vec![
        target(1, good.address, Check::Http(get())),
        target(2, ill.address, Check::Http(get())),
        CheckTarget { timeout: impatient, ..target(3, mute.address, Check::Http(get())) },
        target(4, good.address, Check::Http(wrong_body)),
        target(5, echo, udp.clone()),
        target(6, fresh_address(), udp),
        target(7, fresh_address(), Check::None),
    ];
    let (checker, told) = started(targets);
    let seen: BTreeMap<_, _> =
        (0..6).map(|_| next(&told)).map(|(backend, health, reason)| (backend, (health, reason))).collect();
    let expected = [
        (Health::Up, "HTTP status 200"),
        (Health::Down, "HTTP status 503, expected 200-399"),
        (Health::Down, "no answer within 300ms"),
        (Health::Down, "HTTP status 200, but the body lacks \"nice\""),
        (Health::Up, "answered"),
        (Health::Down, "connection refused"),
    ];
    assert_eq!(seen, (1..).zip(expected.map(|(health, reason)| (health, reason.to_string()))).collect());
    assert_eq!((state(&checker, 7).health, state(&checker, 7).checks), (Health::Unknown, 0));
    assert_eq!(available(&checker), [1, 5, 7]);
}

#[test]
fn results_are_counted_as_rise_and_fall_say() {
    // Good, then three bad ones, then good ones: as the server, which knows how often it was asked, decides.
    let asked = Arc::new(AtomicU16::new(0));
    let count = Arc::clone(&asked);
    let server = TestServer::http(move |_| match count.fetch_add(1, Ordering::Relaxed) {
        0 | 3 | 7.. => response(200, ""),
        _ => response(500, ""),
    });
    let (checker, told) = started(vec![target(1, server.address, Check::Http(get()))]);
    assert_eq!(next(&told).1, Health::Up);
    assert_eq!(next(&told).1, Health::Down, "after the fourth to sixth; the first and second did not suffice");
    assert!(asked.load(Ordering::Relaxed) >= 7);
    assert_eq!(next(&told).1, Health::Up);
    let seen = state(&checker, 1);
    assert_eq!((seen.failures, seen.checks >= 9), (5, true), "{seen:?}");
}

#[test]
fn an_update_keeps_state_and_drops_what_is_gone() {
    let server = TestServer::new(|_| {});
    let gone = fresh_address();
    let (checker, _told) =
        started(vec![target(1, server.address, Check::Tcp), target(2, gone, Check::Tcp), target(3, gone, Check::Tcp)]);
    eventually("three verdicts", || checker.states().iter().all(|state| state.settled));
    let before = state(&checker, 2);
    let slower = CheckTarget { name: "other".into(), fall: 9, ..target(2, gone, Check::Tcp) };
    checker.update(vec![target(1, server.address, Check::Tcp), slower]).unwrap();
    let after = state(&checker, 2);
    assert_eq!((after.health, after.since), (Health::Down, before.since));
    assert!(after.checks >= before.checks);
    assert_eq!(checker.states().len(), 2);
    // At its new address a server listens: unknown at first, which counts as up, and then up.
    checker.update(vec![target(2, server.address, Check::Tcp)]).unwrap();
    assert_eq!(available(&checker), [2]);
    eventually("up at its new address", || state(&checker, 2).health == Health::Up);
}

#[test]
fn clients_failures_are_told_and_tried_again() {
    let passive = Some(Passive { failures: 4, retry: Duration::from_millis(20) });
    let (checker, told) = started(vec![CheckTarget { passive, ..target(1, fresh_address(), Check::None) }]);
    let mut failed = 0;
    checker.observe([(1, ObservedTotals { established: 0, failed })]);
    for _ in 0..3 {
        failed += 4;
        checker.observe([(1, ObservedTotals { established: 0, failed })]);
        assert_eq!(next(&told), (1, Health::Down, "passive: 4 failures in a row".into()));
        assert_eq!(next(&told), (1, Health::Unknown, "passive: on trial".into()));
    }
    checker.observe([(1, ObservedTotals { established: 1, failed })]);
    assert_eq!(next(&told).1, Health::Up);
}

#[test]
fn states_go_through_a_restart() {
    let address = fresh_address();
    let once = || vec![CheckTarget { interval: Duration::from_secs(3600), ..target(1, address, Check::Http(get())) }];
    let (checker, told) = started(once());
    assert_eq!(next(&told), (1, Health::Down, "connection refused".into()));
    let saved = serde_json::to_string(&checker.saved()).unwrap();
    drop(checker);

    // Answers only when the state has been given back: the first result would have decided at once otherwise.
    let (allow, allowed) = mpsc::channel();
    let allowed = Mutex::new(allowed);
    let server = TestServer::at(address, move |mut stream| {
        request_head(&stream);
        allowed.lock().unwrap().recv().unwrap();
        stream.write_all(&response(200, "")).unwrap();
    });
    let (checker, told) = started(once());
    checker.restore(&serde_json::from_str::<Vec<_>>(&saved).unwrap());
    assert_eq!(available(&checker), [0_u16; 0]);
    allow.send(()).unwrap();
    eventually("a check", || state(&checker, 1).checks == 1);
    let seen = state(&checker, 1);
    assert_eq!((seen.health, seen.reason.as_str(), seen.against), (Health::Down, "connection refused", 1));
    assert!(told.try_recv().is_err(), "what was known before is no change");
    drop(server);
}

/// A server that holds answers back until as many questions as can be are open, and counts them.
fn hesitant_udp_server(most: Arc<AtomicU16>) -> SocketAddr {
    let socket = UdpSocket::bind(fresh_address()).unwrap();
    let address = socket.local_addr().unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    std::thread::spawn(move || {
        let mut open = Vec::new();
        loop {
            match socket.recv_from(&mut [0; 64]) {
                Ok((_, from)) => open.push(from),
                Err(_) => {
                    most.fetch_max(open.len() as u16, Ordering::Relaxed);
                    for from in open.drain(..) {
                        // A check may have been dropped.
                        let _ = socket.send_to(b"ok", from);
                    }
                }
            }
        }
    });
    address
}

#[test]
fn thousands_of_targets_are_checked_a_few_at_a_time() {
    let most = Arc::new(AtomicU16::new(0));
    let address = hesitant_udp_server(Arc::clone(&most));
    let udp = Check::Udp { send: b"?".to_vec(), expect: Some(b"ok".to_vec()) };
    let all = || (0..2000).map(|n| CheckTarget { timeout: Duration::from_secs(60), ..target(n, address, udp.clone()) });
    let (checker, _told) = started(all().collect());
    eventually("two thousand verdicts", || checker.states().iter().all(|state| state.checks > 0));
    assert!(checker.states().iter().all(|state| state.health == Health::Up));
    let totals = checker.totals();
    assert_eq!(totals.in_flight_peak, IN_FLIGHT_MAX);
    assert!(totals.late > 0 && totals.local_errors == 0, "{totals:?}");
    let most = usize::from(most.load(Ordering::Relaxed));
    assert!((IN_FLIGHT_MAX / 2..=IN_FLIGHT_MAX).contains(&most), "{most} questions were open at once");
}

/// The sockets of this host whose other end is `peer`, by state as the kernel writes it.
fn sockets_towards(peer: SocketAddr, table: &str) -> Vec<String> {
    let SocketAddr::V4(peer) = peer else { panic!("only IPv4") };
    let peer = format!("{:08X}:{:04X}", u32::from_le_bytes(peer.ip().octets()), peer.port());
    let table = fs::read_to_string(table).unwrap();
    let fields = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    fields.filter(|fields| fields[2] == peer).map(|fields| fields[3].to_string()).collect()
}

#[test]
fn no_socket_is_left() {
    const TCP: &str = "/proc/thread-self/net/tcp";
    const UDP: &str = "/proc/thread-self/net/udp";
    let plain = TestServer::new(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let http = TestServer::http(|_| response(200, "fine"));
    // Answers for ever, so that every check is cut off.
    let endless = TestServer::new(|mut stream| {
        request_head(&stream);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let mute = TestServer::new(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let silent = udp_server(|_| None);
    let looking = HttpCheck { body: Some("never".into()), ..get() };
    let hasty = Duration::from_millis(30);
    let targets = vec![
        target(1, plain.address, Check::Tcp),
        target(2, http.address, Check::Http(get())),
        target(3, endless.address, Check::Http(looking)),
        CheckTarget { timeout: hasty, ..target(4, mute.address, Check::Http(get())) },
        CheckTarget { timeout: hasty, ..target(5, silent, Check::Udp { send: b"?".to_vec(), expect: None }) },
    ];
    let (checker, _told) = started(targets);
    eventually("twenty checks of each", || checker.states().iter().all(|state| state.checks >= 20));
    for address in [plain.address, http.address, endless.address, mute.address] {
        let open = sockets_towards(address, TCP);
        // One, but the table can show its predecessor as well if it is read while one takes the other's place.
        assert!(open.len() < 5, "sockets towards {address}: {open:?}");
    }
    assert!(sockets_towards(silent, UDP).len() < 5);
    drop(checker);
    for address in [plain.address, http.address, endless.address, mute.address] {
        assert_eq!(sockets_towards(address, TCP), [""; 0], "after the end, not even TIME_WAIT, towards {address}");
    }
    assert_eq!(sockets_towards(silent, UDP), [""; 0]);
}

#[test]
fn a_callback_may_ask_the_checker_and_even_drop_it() {
    let (give, given) = mpsc::channel::<Checker>();
    let (tell, told) = mpsc::channel();
    let given = Mutex::new(given);
    let address = fresh_address();
    let checker = Checker::start(vec![target(1, address, Check::Tcp)], None, move |changes| {
        let Ok(checker) = given.lock().unwrap().recv() else { return };
        tell.send((changes[0].to, checker.states()[0].health)).unwrap();
        drop(checker);
    });
    give.send(checker.unwrap()).unwrap();
    assert_eq!(told.recv_timeout(Duration::from_secs(10)).unwrap(), (Health::Down, Health::Down));
}

#[test]
fn a_bad_target_is_refused_at_the_start() {
    let bad = CheckTarget { rise: 0, ..target(1, fresh_address(), Check::Tcp) };
    let error = Checker::start(vec![bad], None, |_| {}).unwrap_err();
    assert!(format!("{error:#}").contains("rise is 0"), "{error:#}");
}
