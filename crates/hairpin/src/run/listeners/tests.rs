use super::*;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

/// Endpoints that no socket has: of loopback, a network of addresses.
fn free(address: &str) -> Endpoint {
    let probe = TcpListener::bind((address, 0)).unwrap();
    let at = probe.local_addr().unwrap();
    Endpoint::new(at.ip(), at.port())
}

fn opened(endpoints: &[Endpoint], cores: usize) -> Listeners {
    let mut listeners = Listeners::inherited(Vec::new(), cores);
    listeners.open_missing(endpoints).unwrap();
    listeners
}

fn at(endpoint: &Endpoint) -> SocketAddr {
    SocketAddr::new(endpoint.address.into(), endpoint.port)
}

fn connects(endpoint: &Endpoint) -> bool {
    TcpStream::connect_timeout(&at(endpoint), Duration::from_secs(5)).is_ok()
}

fn passed(listeners: &Listeners) -> Vec<(String, OwnedFd)> {
    let copy = |descriptor: BorrowedFd<'_>| descriptor.try_clone_to_owned().unwrap();
    listeners.descriptors().into_iter().map(|(name, descriptor)| (name, copy(descriptor))).collect()
}

#[test]
fn each_core_has_a_socket_that_does_not_block() {
    let ends = [free("127.0.7.1"), free("::1")];
    let listeners = opened(&ends, 3);
    for end in &ends {
        for core in 0..3 {
            let socket = listeners.of(end, core).unwrap();
            assert_eq!(socket.local_addr().unwrap(), at(end));
            assert_eq!(socket.accept().unwrap_err().kind(), ErrorKind::WouldBlock);
            assert!(sockopt::socket_reuseport(socket).unwrap());
        }
        assert!(listeners.of(end, 3).is_none());
        assert!(connects(end));
    }
    let names: Vec<String> = listeners.descriptors().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names[3..5], [format!("{}/0", ends[0]), format!("{}/1", ends[0])]);
    assert!(names.iter().all(|name| place(name).is_some_and(|(end, core)| listeners.of(&end, core).is_some())));
}

#[test]
fn an_address_of_no_interface_can_be_listened_on() {
    let ends = ["192.0.2.1", "2001:db8::1"].map(|address| Endpoint::new(address.parse::<IpAddr>().unwrap(), 44_443));
    assert_eq!(opened(&ends, 1).descriptors().len(), 2);
}

#[test]
fn changed_endpoints_open_and_close_sockets() {
    let [first, second, third] = [free("127.0.7.2"), free("127.0.7.3"), free("127.0.7.4")];
    let mut listeners = opened(&[first, second], 2);
    let inode = |listeners: &Listeners| rustix::fs::fstat(listeners.of(&second, 1).unwrap()).unwrap().st_ino;
    let kept = inode(&listeners);
    listeners.open_missing(&[second, third]).unwrap();
    assert!([first, second, third].iter().all(connects));
    listeners.close_others(&[second, third]);
    assert_eq!([first, second, third].map(|end| connects(&end)), [false, true, true]);
    assert_eq!(inode(&listeners), kept);
}

#[test]
fn taken_port_is_an_error_that_changes_nothing() {
    let [first, taken] = [free("127.0.7.5"), free("127.0.7.6")];
    let reuses = opened(&[taken], 1);
    let plain = || TcpListener::bind(at(&taken)).unwrap();
    let mut listeners = opened(&[first], 2);
    let mut refused = || {
        let error = listeners.open_missing(&[free("127.0.7.7"), taken]).unwrap_err().to_string();
        let start = format!("cannot listen on {taken}/tcp: Address already in use (os error 98): another process");
        assert!(error.starts_with(&start) && error.contains("ss -ltnp"), "{error}");
        assert_eq!(listeners.descriptors().len(), 2);
    };
    // Also one that would share the port.
    refused();
    drop(reuses);
    let plain = plain();
    refused();
    drop(plain);
    listeners.open_missing(&[taken]).unwrap();
}

#[test]
fn inherited_sockets_are_used_and_others_stay_until_closed() {
    let [first, second, third] = [free("127.0.7.8"), free("127.0.7.9"), free("127.0.7.10")];
    let old = opened(&[first, second], 3);
    let inodes = |listeners: &Listeners, end: &Endpoint| -> Vec<u64> {
        let sockets = (0..).map_while(|core| listeners.of(end, core));
        sockets.map(|socket| rustix::fs::fstat(socket).unwrap().st_ino).collect()
    };
    let mut all = passed(&old);
    all.push(("nonsense".into(), TcpListener::bind("127.0.0.1:0").unwrap().into()));
    all.push((format!("{third}/0"), TcpListener::bind("127.0.0.1:0").unwrap().into()));
    let mut new = Listeners::inherited(all, 2);
    new.open_missing(&[second, third]).unwrap();
    assert_eq!(new.descriptors().len(), 3 + 3 + 2, "of services that are no more, of a core that is no more");
    new.close_others(&[second, third]);
    assert_eq!(inodes(&new, &second), inodes(&old, &second)[..2]);
    assert_eq!((inodes(&new, &first).len(), inodes(&new, &third).len()), (0, 2));
    // What the new process closes, the old one still has.
    assert!(connects(&first));
    drop(old);
    assert!(!connects(&first) && connects(&second) && connects(&third));
}

#[test]
fn more_cores_than_before_open_sockets() {
    let end = free("127.0.7.11");
    let old = opened(&[end], 1);
    let mut new = Listeners::inherited(passed(&old), 4);
    new.open_missing(&[end]).unwrap();
    assert_eq!(new.descriptors().len(), 4);
}

#[test]
fn messages_name_the_remedy() {
    let end = Endpoint::new("2001:db8::1".parse::<IpAddr>().unwrap(), 443);
    for (error, words) in [
        (
            Errno::ADDRINUSE,
            "Address already in use (os error 98): another process listens there: `ss -ltnp 'sport = :443'`",
        ),
        (
            Errno::ACCESS,
            "Permission denied (os error 13): ports below net.ipv4.ip_unprivileged_port_start need CAP_NET_",
        ),
        (Errno::MFILE, "Too many open files (os error 24): allow the process more open files"),
    ] {
        let text = said(&end, error);
        assert!(text.starts_with(&format!("cannot listen on [2001:db8::1]:443/tcp: {words}")), "{text}");
    }
}
