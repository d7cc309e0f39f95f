//! Shared memory between two ports of one process, and of two.

use super::{Case, Whole, child, device, frame, packets, receive, send};
use crate::eal;
use hairpin_core::frame::{Batch, Frame, FrameIo};
use hairpin_dpdk::{Mbuf, Port, PortIo, PortOptions};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) fn all() -> Vec<Case> {
    vec![
        ("memif within a process", within),
        ("memif between processes", between),
        ("memif: a client asks again, before its server is there and after it went", again),
        ("memif: a server's queues are left alone until a client is there", alone),
        ("memif with dpdk-testpmd at the other end", testpmd),
    ]
}

/// An abstract socket, so that nothing of it stays.
fn socket(name: &str) -> String {
    format!("hairpin-ports-{}-{name}", std::process::id())
}

fn open(role: &str, socket: &str, queues: u16, whole: &Whole) -> Port {
    let device = device("net_memif", &format!("role={role},socket-abstract=yes,socket={socket},rsize=8"));
    let options = PortOptions { device, queues, ..PortOptions::default() };
    Port::open(eal(), &options, &whole.0).unwrap_or_else(|error| panic!("{error}"))
}

/// The ends find each other in the background.
fn connected(port: &Port) {
    let start = Instant::now();
    while !port.is_up() {
        assert!(start.elapsed() < super::PATIENCE, "no peer at the other end");
        std::thread::yield_now();
    }
}

fn within() {
    let whole = Whole::new(5000, 2048);
    let socket = socket("within");
    let ports = [open("server", &socket, 2, &whole), open("client", &socket, 2, &whole)];
    ports.iter().for_each(connected);
    for direction in 0..2 {
        for index in 0..2 {
            let mut from = ports[direction].queue(index).expect("a queue");
            let mut to = ports[1 - direction].queue(index).expect("a queue");
            // A client offers its buffers when it looks for frames.
            assert_eq!(to.receive(&mut Batch::new()), 0);
            let mut batch: Batch<Mbuf> = (0..60).map(|i| frame(&whole.0, &packets::udp(&[i; 100]))).collect();
            send(&mut from, &mut batch);
            let came = receive(&mut to, |_| true, 60);
            assert!(came.iter().zip(0..).all(|(frame, i)| frame.bytes() == packets::udp(&[i; 100])));
        }
    }
    // More than its ring of 256 holds: what does not go stays.
    let (mut from, mut to) = (ports[0].queue(0).expect("a queue"), ports[1].queue(0).expect("a queue"));
    let (mut went, mut left) = (0, Batch::new());
    for _ in 0..10 {
        left.extend((left.len()..64).map(|i| frame(&whole.0, &packets::udp(&[i as u8; 30]))));
        went += from.transmit(&mut left);
    }
    assert!((200..=256).contains(&went) && left.len() == 64, "{went}");
    assert_eq!(receive(&mut to, |_| true, 64).len(), 64);
    let room = from.transmit(&mut left);
    assert!(room > 0, "there is room again");
    let mut rest = went + room - 64;
    while rest > 0 {
        rest -= receive(&mut to, |_| true, rest.min(64)).len();
    }
    assert_eq!(ports[0].statistics().transmitted, 60 * 2 + (went + room) as u64);
}

/// The client is there first; then its server goes, and comes back.
fn again() {
    let whole = Whole::new(5000, 2048);
    let socket = socket("again");
    let client = [open("client", &socket, 1, &whole)];
    let mut io = PortIo::of(&client, 0, whole.0.clone()).expect("a client's queue may come later");
    let becomes = |up: bool, io: &mut PortIo| {
        let start = Instant::now();
        while client[0].seek() != up {
            assert!(start.elapsed() < super::PATIENCE, "the link is not what it is to be: {up}");
            io.renew();
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    for count in 1..4 {
        becomes(false, &mut io);
        let mut server = child::spawn("memif-server", &socket);
        becomes(true, &mut io);
        let (start, mut came, mut out) = (Instant::now(), Batch::new(), Batch::new());
        out.push(frame(&whole.0, &[[1; 14].as_slice(), &[count, 2, 3]].concat()));
        while came.is_empty() {
            assert!(start.elapsed() < super::PATIENCE, "nothing comes back");
            io.renew();
            io.transmit(&mut out);
            io.receive(&mut came);
        }
        assert_eq!(came[0].bytes(), [[1; 14].as_slice(), &[3, 2, count]].concat());
        server.kill().expect("it runs");
        server.wait().expect("it ran");
    }
    becomes(false, &mut io);
    let mut server = child::spawn("memif-server", &socket);
    becomes(true, &mut io);
    drop(io);
    // A thread that has a queue that cannot be called back keeps it: the server is not asked.
    let kept = client[0].queue(0).expect("a queue");
    server.kill().expect("it runs");
    server.wait().expect("it ran");
    let mut server = child::spawn("memif-server", &socket);
    let start = Instant::now();
    while client[0].is_up() || start.elapsed() < Duration::from_secs(3) {
        assert!(start.elapsed() < super::PATIENCE && client[0].queue(0).is_none());
        client[0].seek();
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(kept);
    let start = Instant::now();
    while !client[0].seek() {
        assert!(start.elapsed() < super::PATIENCE, "the client reached no server");
        std::thread::sleep(Duration::from_millis(1));
    }
    server.kill().expect("it runs");
    server.wait().expect("it ran");
}

/// A worker that read a server's queues while a client is let in could read memory that is not there yet.
fn alone() {
    let whole = Whole::new(5000, 2048);
    let socket = socket("alone");
    let server = [open("server", &socket, 2, &whole)];
    let mut io = PortIo::of(&server, 1, whole.0.clone()).expect("its second queue");
    for _ in 0..2 {
        io.renew();
        assert!(server[0].queue(1).is_some(), "a worker has a queue without a peer");
        let client = open("client", &socket, 2, &whole);
        [&server[0], &client].into_iter().for_each(connected);
        io.renew();
        assert!(server[0].queue(1).is_none(), "no worker has the queue");
        let mut queue = client.queue(1).expect("a queue");
        let mut batch: Batch<Mbuf> = (0..60).map(|i| frame(&whole.0, &packets::udp(&[i; 100]))).collect();
        send(&mut queue, &mut batch);
        let (start, mut came) = (Instant::now(), Batch::new());
        while came.len() < 60 {
            assert!(start.elapsed() < super::PATIENCE, "{} of 60 came", came.len());
            io.receive(&mut came);
        }
        drop((queue, client));
        while server[0].is_up() {
            assert!(start.elapsed() < super::PATIENCE, "the link stays up");
            std::thread::yield_now();
        }
    }
}

/// A process at the other end sends every frame back, its payload turned over.
fn between() {
    const FRAMES: usize = 10_000;
    let whole = Whole::new(5000, 2048);
    let socket = socket("between");
    let port = open("server", &socket, 1, &whole);
    let mut other = child::spawn("memif", &format!("{socket} {FRAMES}"));
    connected(&port);
    let mut queue = port.queue(0).expect("a queue");
    let (mut sent, mut came) = (0_usize, 0_usize);
    let (mut out, mut back) = (Batch::new(), Batch::new());
    let start = Instant::now();
    while came < FRAMES {
        assert!(start.elapsed() < super::PATIENCE, "{sent} sent, {came} came: {:?}", port.statistics());
        while sent < FRAMES && sent < came + 128 && !out.is_full() {
            out.push(frame(&whole.0, &[[1; 14].as_slice(), &sent.to_be_bytes()].concat()));
            sent += 1;
        }
        queue.transmit(&mut out);
        queue.receive(&mut back);
        for frame in back.drain(..) {
            let mut number = came.to_be_bytes();
            number.reverse();
            assert_eq!(frame.bytes(), [[1; 14].as_slice(), &number].concat());
            came += 1;
        }
    }
    assert_eq!((port.statistics().received, port.statistics().transmitted), (FRAMES as u64, FRAMES as u64));
    // It goes when this end has gone.
    out.clear();
    drop((port, queue));
    assert!(other.wait().expect("it ran").success());
}

/// DPDK's own program sends every frame back, its Ethernet addresses swapped.
fn testpmd() {
    let whole = Whole::new(5000, 2048);
    let socket = socket("testpmd");
    let port = open("server", &socket, 1, &whole);
    let client = format!("--vdev=net_memif0,role=client,socket-abstract=yes,socket={socket},rsize=8");
    let prefix = format!("--file-prefix={socket}");
    let mut command = Command::new("dpdk-testpmd");
    command.args(["--no-huge", "-m", "128", "--no-pci", "--no-telemetry", "--no-shconf", "--iova-mode=va"]);
    command.args(["--lcores", "(0,1)@(0-1)", &client, &prefix, "--"]);
    command.args(["--forward-mode=macswap", "--port-topology=loop", "--total-num-mbufs=4096", "--nb-cores=1"]);
    // It ends when it reads something.
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut other) = command.spawn() else { return eprintln!("skipped: there is no dpdk-testpmd") };
    connected(&port);
    let mut queue = port.queue(0).expect("a queue");
    let sent = packets::udp(b"to be swapped");
    let start = Instant::now();
    let (mut batch, mut came) = (Batch::new(), 0);
    while came < 1000 {
        assert!(start.elapsed() < super::PATIENCE, "{came} came back");
        if batch.is_empty() {
            batch.push(frame(&whole.0, &sent));
        }
        queue.transmit(&mut batch);
        let mut back: Batch<Mbuf> = Batch::new();
        came += queue.receive(&mut back);
        for frame in &back {
            let bytes = frame.bytes();
            assert_eq!((&bytes[..6], &bytes[6..12], &bytes[12..]), (&sent[6..12], &sent[..6], &sent[12..]));
        }
    }
    drop(other.stdin.take());
    // This end stays until the other has gone: DPDK 22.11's driver unmaps what the ends share under a thread that polls it,
    // and testpmd's still does.
    assert!(other.wait().expect("it ran").success());
    drop((port, queue));
    // It leaves an empty directory.
    std::fs::remove_dir(format!("/run/dpdk/{socket}")).ok();
}

/// In a process that serves until it is ended.
pub(crate) fn serve(socket: &str) {
    let whole = Whole::new(5000, 2048);
    let port = open("server", socket, 1, &whole);
    let mut queue = port.queue(0).expect("a queue");
    let mut batch = Batch::new();
    loop {
        let before = batch.len();
        queue.receive(&mut batch);
        for frame in &mut batch[before..] {
            frame.bytes_mut()[14..].reverse();
        }
        queue.transmit(&mut batch);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// In that process.
pub(crate) fn echo(rest: &str) {
    let (socket, frames) = rest.split_once(' ').expect("a socket and a number");
    let frames: usize = frames.parse().expect("a number");
    let whole = Whole::new(5000, 2048);
    let port = open("client", socket, 1, &whole);
    connected(&port);
    let mut queue = port.queue(0).expect("a queue");
    let (mut sent, mut batch) = (0, Batch::new());
    let start = Instant::now();
    while sent < frames {
        assert!(start.elapsed() < super::PATIENCE, "{sent} of {frames}");
        let before = batch.len();
        queue.receive(&mut batch);
        for frame in &mut batch[before..] {
            frame.bytes_mut()[14..].reverse();
        }
        sent += queue.transmit(&mut batch);
    }
    // The other end has to fetch the last of them before this one goes.
    while port.is_up() && start.elapsed() < super::PATIENCE {
        std::thread::yield_now();
    }
}
