//! Two ports that are each other's wire: what every port does, whatever is behind it.

use super::{Case, Whole, frame, packets};
use crate::eal;
use hairpin_core::frame::{Batch, Checksum, Frame, FrameIo, Meta};
use hairpin_core::wire::{self, Parsed};
use hairpin_dpdk::{Mbuf, MbufPool, Port, PortIo, PortOptions, PortQueue, PortSpread, Rss};

pub(crate) fn all() -> Vec<Case> {
    vec![
        ("frames go through a wire both ways", both_ways),
        ("a queue is given once", queues),
        ("a full wire leaves the rest", full),
        ("what is under way comes back when a port is closed", closed),
        ("a port that is used is not closed", used),
        ("checksums are completed", checksums),
        ("super-packets are cut", super_packets),
        ("of a super-packet that finds no room the rest is sent later", no_room),
        ("of a super-packet that finds no mbufs the rest is sent later", no_mbufs),
        ("a worker's queues are one source and one sink", io),
        ("pairs of ports come and go", come_and_go),
        ("whatever is done, no frame is lost, doubled or kept", drawn),
    ]
}

fn pair(pool: &MbufPool, queues: u16, size: u16) -> (Port, Port) {
    let options = PortOptions { queues, tx_descriptors: size, ..PortOptions::default() };
    Port::pair(eal(), &options, pool).unwrap_or_else(|error| panic!("{error}"))
}

/// The first queues of a pair; the ports stay open by them.
fn ends(pool: &MbufPool, size: u16) -> (PortQueue, PortQueue) {
    let (first, second) = pair(pool, 1, size);
    (first.queue(0).expect("a queue"), second.queue(0).expect("a queue"))
}

fn both_ways() {
    let whole = Whole::new(500, 2048);
    let (first, second) = pair(&whole.0, 2, 64);
    assert_eq!((first.driver(), first.queues(), second.queues()), ("net_ring", 2, 2));
    assert_ne!((first.id(), first.name()), (second.id(), second.name()));
    assert!(first.is_up() && second.is_up());
    for index in 0..2 {
        let mut ends = [first.queue(index).expect("a queue"), second.queue(index).expect("a queue")];
        for direction in 0..2 {
            let [from, to] = if direction == 0 { [0, 1] } else { [1, 0] };
            let mut batch: Batch<Mbuf> = (0..40).map(|i| frame(&whole.0, &[i, direction, index as u8])).collect();
            batch[0].meta_mut().ticket = 9;
            assert_eq!(ends[from].transmit(&mut batch), 40);
            assert_eq!(ends[from].receive(&mut batch), 0);
            assert_eq!(ends[to].receive(&mut batch), 40);
            assert!(batch.iter().zip(0..).all(|(frame, i)| frame.bytes() == [i, direction, index as u8]));
            assert_eq!(batch[0].meta().ticket, 0, "what the sender knew is the sender's");
        }
    }
    let statistics = first.statistics();
    assert_eq!((statistics.received, statistics.transmitted), (80, 80));
}

fn queues() {
    let whole = Whole::new(100, 2048);
    let (first, _second) = pair(&whole.0, 2, 64);
    let queue = first.queue(1).expect("a queue");
    assert_eq!((queue.index(), queue.port()), (1, first.id()));
    assert!(first.queue(1).is_none() && first.queue(2).is_none());
    drop(queue);
    assert!(first.queue(1).is_some());
    assert_eq!(first.rss(), PortSpread::Unknown);
    let options = PortOptions { queues: 0, ..PortOptions::default() };
    assert!(Port::pair(eal(), &options, &whole.0).is_err());
}

fn full() {
    let whole = Whole::new(500, 2048);
    let (mut from, mut to) = ends(&whole.0, 100);
    let mut batch: Batch<Mbuf> = (0..64).map(|i| frame(&whole.0, &[i])).collect();
    assert_eq!(from.transmit(&mut batch), 64);
    batch.extend((0..64).map(|i| frame(&whole.0, &[i])));
    assert_eq!((from.transmit(&mut batch), batch.len()), (36, 28));
    assert_eq!(from.transmit(&mut batch), 0);
    assert_eq!(batch[0].bytes(), [36]);
    let mut out = Batch::new();
    to.receive(&mut out);
    assert_eq!((out.len(), from.transmit(&mut batch), batch.len()), (64, 28, 0));
}

fn closed() {
    let whole = Whole::new(500, 2048);
    let (first, second) = pair(&whole.0, 3, 64);
    for port in [&first, &second] {
        for index in 0..3 {
            let mut batch: Batch<Mbuf> = (0..50).map(|i| frame(&whole.0, &[i])).collect();
            port.queue(index).expect("a queue").transmit(&mut batch);
        }
    }
    assert_eq!(whole.0.in_use(), 300);
    drop(first);
    drop(second);
    assert_eq!(whole.0.in_use(), 0);
}

fn used() {
    let whole = Whole::new(100, 2048);
    let (mut from, mut to) = ends(&whole.0, 10);
    let mut batch: Batch<Mbuf> = [frame(&whole.0, b"still there")].into_iter().collect();
    assert_eq!(from.transmit(&mut batch), 1);
    assert_eq!(to.receive(&mut batch), 1);
}

fn partial(pool: &MbufPool, bytes: &[u8], gso_size: u16) -> Mbuf {
    let mut frame = frame(pool, bytes);
    (frame.meta_mut().checksum, frame.meta_mut().gso_size) = (Checksum::Partial, gso_size);
    frame
}

fn checksums() {
    let whole = Whole::new(100, 2048);
    let (mut from, mut to) = ends(&whole.0, 64);
    let sent = [packets::udp(b"one"), packets::tcp(b"three"), packets::udp(&[])];
    let mut batch = Batch::new();
    for bytes in &sent {
        let unfinished = packets::unfinished(bytes.clone());
        assert!(!packets::is_right(&unfinished));
        batch.push(partial(&whole.0, &unfinished, 0));
        batch.push(frame(&whole.0, bytes));
    }
    // It is not known where the checksum of such a frame would be.
    batch.push(partial(&whole.0, &[0xab; 60], 0));
    assert_eq!(from.transmit(&mut batch), 7);
    assert_eq!(to.receive(&mut batch), 7);
    for (pair, bytes) in batch.chunks(2).zip(&sent) {
        assert!(pair.iter().all(|frame| frame.bytes() == bytes));
    }
    assert_eq!(batch[6].bytes(), [0xab; 60]);
}

/// The payloads of TCP packets in order, each in good order.
fn payloads(batch: &Batch<Mbuf>) -> Vec<(u32, Vec<u8>)> {
    let read = |frame: &Mbuf| {
        let bytes = frame.bytes();
        assert!(packets::is_right(bytes));
        let Ok(Parsed::Transport(at)) = wire::parse(bytes) else { panic!("no packet") };
        let number = bytes[at.l4 + 4..at.l4 + 8].iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        (number, bytes[at.payload..at.end].to_vec())
    };
    batch.iter().map(read).collect()
}

fn sequence(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i % 253) as u8).collect()
}

fn super_packets() {
    let whole = Whole::new(500, 9018);
    let (mut from, mut to) = ends(&whole.0, 200);
    let long = sequence(3000);
    let mut batch = Batch::new();
    batch.push(frame(&whole.0, &packets::tcp(b"before")));
    batch.push(partial(&whole.0, &packets::unfinished(packets::tcp(&long)), 1460));
    batch.push(partial(&whole.0, &packets::unfinished(packets::tcp(b"between")), 1460));
    // More segments than a batch holds.
    batch.push(partial(&whole.0, &packets::tcp(&long), 30));
    batch.push(frame(&whole.0, &packets::tcp(b"after")));
    assert_eq!((from.transmit(&mut batch), batch.len()), (5, 0));
    let mut all = Vec::new();
    while to.receive(&mut batch) > 0 {
        all.extend(payloads(&batch));
        batch.clear();
    }
    assert_eq!(all.len(), 1 + 3 + 1 + 100 + 1);
    assert_eq!((&all[0].1[..], &all[4].1[..], &all[105].1[..]), (&b"before"[..], &b"between"[..], &b"after"[..]));
    for (segments, size) in [(&all[1..4], 1460), (&all[5..105], 30)] {
        let numbers: Vec<u32> = segments.iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, (0..segments.len()).map(|i| 1 + (i * size) as u32).collect::<Vec<_>>());
        assert_eq!(segments.iter().flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>(), long);
    }
}

/// Sends a super-packet of 100 segments while the way out takes some now and then; all must come, once and in order.
fn trickle(whole: &Whole, size: u16, receive_each: usize) {
    let (mut from, mut to) = ends(&whole.0, size);
    let long = sequence(3000);
    let mut batch = Batch::new();
    batch.push(partial(&whole.0, &packets::tcp(&long), 30));
    batch.push(frame(&whole.0, &packets::tcp(b"after")));
    let (mut all, mut out, mut rounds) = (Vec::new(), Batch::new(), 0);
    while !batch.is_empty() || out.is_empty() && all.len() < 101 {
        from.transmit(&mut batch);
        for _ in 0..receive_each {
            to.receive(&mut out);
            all.extend(payloads(&out));
            out.clear();
        }
        rounds += 1;
        assert!(rounds < 1000, "{} came", all.len());
    }
    assert!(rounds > 1, "it took several turns");
    assert_eq!(all.pop().map(|(_, bytes)| bytes), Some(b"after".to_vec()));
    assert_eq!(all.into_iter().flat_map(|(_, bytes)| bytes).collect::<Vec<_>>(), long);
}

fn no_room() {
    trickle(&Whole::new(500, 9018), 7, 1);
}

fn no_mbufs() {
    let whole = Whole::new(100, 9018);
    let mut held = Vec::new();
    while whole.0.in_use() < 100 - 12 {
        held.extend(whole.0.allocate());
    }
    trickle(&whole, 200, 1);
}

fn io() {
    let whole = Whole::new(500, 2048);
    let wires: Vec<(Port, Port)> = (0..3).map(|_| pair(&whole.0, 1, 64)).collect();
    let queues = wires.iter().map(|(near, _)| near.queue(0).expect("a queue")).collect();
    let mut far: Vec<PortQueue> = wires.iter().map(|(_, far)| far.queue(0).expect("a queue")).collect();
    let mut io = PortIo::new(queues, whole.0.clone());
    assert_eq!((io.room(), io.allocate().map(|frame| frame.room())), (2048, Some(2048)));

    // From all of them.
    for (place, queue) in far.iter_mut().enumerate() {
        let mut batch: Batch<Mbuf> = (0..5).map(|i| frame(&whole.0, &[place as u8, i])).collect();
        queue.transmit(&mut batch);
    }
    let mut batch = Batch::new();
    io.receive(&mut batch);
    assert_eq!(batch.len(), 15);
    assert!(batch.iter().all(|frame| frame.meta().port == u16::from(frame.bytes()[0])));

    // To each its own, in order; what is to go nowhere is dropped.
    for frame in &mut batch {
        let place = (frame.bytes()[0] + frame.bytes()[1]) % 4;
        *frame.meta_mut() = Meta { port: u16::from(place), ..Meta::default() };
    }
    let nowhere = batch.iter().filter(|frame| frame.meta().port == 3).count() as u64;
    io.transmit(&mut batch);
    assert_eq!((batch.len(), io.misrouted()), (0, nowhere));
    for (place, queue) in far.iter_mut().enumerate() {
        queue.receive(&mut batch);
        assert!(!batch.is_empty() && batch.is_sorted_by_key(|frame| frame.bytes().to_vec()));
        assert!(batch.iter().all(|frame| usize::from((frame.bytes()[0] + frame.bytes()[1]) % 4) == place));
        batch.clear();
    }

    // Frames that one port cannot send stay; the other ports' frames go.
    for _ in 0..2 {
        let mut batch: Batch<Mbuf> = (0..60).map(|i| frame(&whole.0, &[i])).collect();
        for (frame, i) in batch.iter_mut().zip(0..) {
            frame.meta_mut().port = if i < 50 { 1 } else { 2 };
        }
        io.transmit(&mut batch);
        assert!(batch.is_empty() || batch.len() == 36 && batch.iter().all(|frame| frame.meta().port == 1));
    }
    let mut nowhere: Batch<Mbuf> = [frame(&whole.0, b"x")].into_iter().collect();
    nowhere[0].meta_mut().port = u16::MAX;
    io.transmit(&mut nowhere);
    assert!(nowhere.is_empty());
    assert_eq!(Rss::default(), Rss::None);
}

fn come_and_go() {
    let whole = Whole::new(500, 2048);
    for _ in 0..100 {
        let (first, second) = pair(&whole.0, 4, 64);
        let mut batch: Batch<Mbuf> = [frame(&whole.0, b"x")].into_iter().collect();
        assert_eq!(first.queue(3).expect("a queue").transmit(&mut batch), 1);
        assert_eq!(second.queue(3).expect("a queue").receive(&mut batch), 1);
    }
}

/// Drawn by number: two wires with too little room, a pool with too few mbufs. Every frame that is sent comes once, in
/// order, or is where it is expected to be.
fn drawn() {
    for seed in 0..150 {
        let mut draw = fastrand::Rng::with_seed(seed);
        let whole = Whole::new(draw.u32(50..120), 2048);
        let wires: Vec<(Port, Port)> = (0..2).map(|_| pair(&whole.0, 1, draw.u16(1..40))).collect();
        let near = wires.iter().map(|(near, _)| near.queue(0).expect("a queue")).collect();
        let mut far: Vec<PortQueue> = wires.iter().map(|(_, far)| far.queue(0).expect("a queue")).collect();
        let mut io = PortIo::new(near, whole.0.clone());
        let (mut next, mut last) = ([1_u32; 2], [0_u32; 2]);
        let (mut came, mut thrown) = (0, 0);
        let (mut out, mut held) = (Batch::<Mbuf>::new(), Vec::new());
        for step in 0..400 {
            match draw.u32(0..6) {
                // Some more to send, as far as there are mbufs and room.
                0 | 1 => {
                    for _ in 0..draw.usize(0..=out.remaining_capacity()) {
                        let Some(mut frame) = io.allocate() else { break };
                        let direction = draw.usize(0..2);
                        assert!(frame.resize(64));
                        frame.bytes_mut()[..4].copy_from_slice(&next[direction].to_be_bytes());
                        frame.meta_mut().port = direction as u16;
                        next[direction] += 1;
                        out.push(frame);
                    }
                }
                2 | 3 => io.transmit(&mut out),
                4 if !out.is_empty() => {
                    out.remove(draw.usize(0..out.len()));
                    thrown += 1;
                }
                4 => held.clear(),
                _ => {
                    let direction = draw.usize(0..2);
                    came += take(&mut far[direction], &mut last[direction], &mut held, (seed, step));
                }
            }
        }
        let left = out.len() as u32;
        for (queue, last) in far.iter_mut().zip(&mut last) {
            while let more @ 1.. = take(queue, last, &mut held, (seed, 400)) {
                came += more;
            }
        }
        assert_eq!(came + thrown + left, next[0] + next[1] - 2, "seed {seed}");
    }
}

/// Receives some, whose numbers must go up, and returns how many.
fn take(queue: &mut PortQueue, last: &mut u32, held: &mut Vec<Batch<Mbuf>>, at: (u64, u32)) -> u32 {
    let mut batch = Batch::new();
    queue.receive(&mut batch);
    for frame in &batch {
        let number = frame.bytes()[..4].iter().fold(0, |number, &byte| number << 8 | u32::from(byte));
        assert!(number > *last, "seed and step {at:?}: {number} after {last}");
        *last = number;
    }
    let count = batch.len() as u32;
    held.push(batch);
    count
}
