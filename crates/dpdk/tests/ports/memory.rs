//! Pools and rings.

use super::{Case, Whole, child, frame};
use crate::eal;
use hairpin_core::frame::{Batch, Checksum, Frame};
use hairpin_dpdk::{Eal, EalOptions, EalPages, Error, Mbuf, MbufPool, PoolOptions, Port, PortOptions, Ring, RingKind};
use std::fs;

pub(crate) fn all() -> Vec<Case> {
    vec![
        ("a pool gives what it has and takes it back", pools),
        ("a pool that cannot be is refused", impossible_pools),
        ("a frame outlives its pool", outlived),
        ("a pool that was left is used again once it is whole", again),
        ("a frame has the room it was promised", room),
        ("rings keep order and what is known of frames", rings),
        ("a full ring leaves the rest", full_ring),
        ("what is in a ring goes back with it", dropped_ring),
        ("a ring has as many ends as it is made for", ends),
        ("threads pass frames on", threads),
        ("a thread's cached mbufs return when it ends", caches),
        ("hugepages", hugepages),
        ("no hugepages", no_hugepages),
    ]
}

fn pools() {
    let whole = Whole::new(100, 2048);
    let pool = &whole.0;
    assert_eq!((pool.size(), pool.in_use()), (100, 0));
    let mut frames: Vec<Mbuf> = std::iter::from_fn(|| pool.allocate()).collect();
    assert_eq!((frames.len(), pool.in_use()), (100, 100));
    let mut batch = Batch::new();
    assert_eq!(pool.allocate_burst(&mut batch, 10), 0, "it is empty");
    frames.truncate(93);
    assert_eq!(pool.allocate_burst(&mut batch, 10), 7, "a burst is as long as it can be");
    assert_eq!(pool.in_use(), 100);
    Mbuf::free_burst(&mut batch);
    assert_eq!((batch.len(), pool.in_use()), (0, 93));
    batch.extend(frames.drain(..64));
    assert_eq!(pool.allocate_burst(&mut batch, 1), 0, "the batch is full");
    drop(batch);
    assert_eq!(pool.in_use(), 29);
}

fn impossible_pools() {
    for (mbufs, data_room, cache) in [(0, 2048, 0), (100, 127, 0), (100, 65_001, 0), (100, 2048, 513), (100, 2048, 99)]
    {
        let options = PoolOptions { mbufs, data_room, cache, ..PoolOptions::default() };
        let error = MbufPool::create(eal(), options).expect_err("no such pool");
        assert!(matches!(error, Error::Call { .. }), "{error}");
    }
    let huge = PoolOptions { mbufs: 1 << 24, ..PoolOptions::default() };
    let error = MbufPool::create(eal(), huge).expect_err("there is no such memory").to_string();
    assert!(error.contains("pool") && error.contains("memory"), "{error}");
}

fn outlived() {
    let options = PoolOptions { mbufs: 61, cache: 0, ..PoolOptions::default() };
    let pool = MbufPool::create(eal(), options.clone()).expect("a pool");
    let mut late = frame(&pool, b"late");
    drop(pool);
    let other = MbufPool::create(eal(), options).expect("a pool");
    assert_eq!(other.in_use(), 0, "the one with a frame under way is not it");
    late.bytes_mut()[0] = b'd';
    assert_eq!(late.bytes(), b"date");
}

fn again() {
    let options = PoolOptions { mbufs: 59, cache: 0, ..PoolOptions::default() };
    // Far more than there is memory for at once.
    for _ in 0..20_000 {
        let pool = MbufPool::create(eal(), options.clone()).unwrap_or_else(|error| panic!("{error}"));
        drop(frame(&pool, b"x"));
    }
}

fn room() {
    for data_room in [128, 2048, 9018, 65_000] {
        let whole = Whole::new(64, data_room);
        let mut frame = whole.0.allocate().expect("an mbuf");
        assert!(frame.bytes().is_empty() && frame.room() >= usize::from(data_room));
        let room = frame.room();
        assert!(!frame.resize(room + 1) && frame.bytes().is_empty());
        assert!(frame.resize(room));
        frame.bytes_mut().fill(7);
        assert!(frame.resize(10) && frame.bytes() == [7; 10]);
    }
}

fn rings() {
    let whole = Whole::new(200, 128);
    let (mut sender, mut receiver) = Ring::create(eal(), 100, RingKind::OneToOne).expect("a ring");
    let mut batch = Batch::new();
    for round in 0..10u8 {
        for i in 0..50u8 {
            let mut frame = frame(&whole.0, &[round, i]);
            frame.meta_mut().port = u16::from(i);
            frame.meta_mut().ticket = 77;
            frame.meta_mut().checksum = Checksum::Partial;
            batch.push(frame);
        }
        assert_eq!((sender.send(&mut batch), batch.len(), sender.len()), (50, 0, 50));
        assert_eq!(receiver.receive(&mut batch), 50);
        for (i, frame) in batch.drain(..).enumerate() {
            assert_eq!(frame.bytes(), [round, i as u8]);
            let meta = frame.meta();
            assert_eq!((meta.port, meta.ticket, meta.checksum), (i as u16, 77, Checksum::Partial));
        }
        assert!(receiver.is_empty());
    }
}

fn full_ring() {
    let whole = Whole::new(100, 128);
    let (mut sender, mut receiver) = Ring::create(eal(), 10, RingKind::ManyToMany).expect("a ring");
    let mut batch: Batch<Mbuf> = (0..16).map(|i| frame(&whole.0, &[i])).collect();
    assert_eq!((sender.send(&mut batch), batch.len()), (10, 6));
    assert_eq!((sender.send(&mut batch), batch.len()), (0, 6));
    assert_eq!(batch[0].bytes(), [10], "the rest, in order");
    let mut out = Batch::new();
    assert_eq!(receiver.receive(&mut out), 10);
    assert_eq!(sender.send(&mut batch), 6);
    out.extend((0..51).map(|_| frame(&whole.0, &[])));
    assert_eq!((receiver.receive(&mut out), out.is_full()), (3, true), "as far as there is room");
}

fn dropped_ring() {
    let whole = Whole::new(200, 128);
    let (mut sender, receiver) = Ring::create(eal(), 150, RingKind::OneToOne).expect("a ring");
    for _ in 0..3 {
        let mut batch: Batch<Mbuf> = (0..50).map(|i| frame(&whole.0, &[i])).collect();
        sender.send(&mut batch);
    }
    assert_eq!(whole.0.in_use(), 150);
    drop(sender);
    assert_eq!(receiver.len(), 150, "the other end still is there");
    drop(receiver);
    assert_eq!(whole.0.in_use(), 0);
}

fn ends() {
    for (kind, senders, receivers) in [
        (RingKind::OneToOne, false, false),
        (RingKind::ManyToOne, true, false),
        (RingKind::OneToMany, false, true),
        (RingKind::ManyToMany, true, true),
    ] {
        let (sender, receiver) = Ring::create(eal(), 1, kind).expect("a ring");
        assert_eq!((sender.another().is_some(), receiver.another().is_some()), (senders, receivers), "{kind:?}");
    }
    for size in [0, (1 << 20) + 1] {
        assert!(Ring::create(eal(), size, RingKind::OneToOne).is_err(), "{size}");
    }
}

/// Several threads take frames from the pool and send, several receive and give back.
fn threads() {
    const EACH: u32 = 20_000;
    let whole = Whole::new(1000, 128);
    let (sender, receiver) = Ring::create(eal(), 64, RingKind::ManyToMany).expect("a ring");
    let received: u64 = std::thread::scope(|scope| {
        for thread in 0..3 {
            let (mut sender, pool) = (sender.another().expect("several"), whole.0.clone());
            scope.spawn(move || {
                let _registration = (thread > 0).then(|| eal().register_thread().expect("an lcore id"));
                let (mut batch, mut made) = (Batch::new(), 0);
                while made < EACH || !batch.is_empty() {
                    if made < EACH && batch.is_empty() {
                        let count = pool.allocate_burst(&mut batch, (EACH - made).min(16) as usize);
                        batch.iter_mut().for_each(|frame| assert!(frame.resize(1)));
                        made += count as u32;
                    }
                    sender.send(&mut batch);
                    std::thread::yield_now();
                }
            });
        }
        let receivers: Vec<_> = (0..2)
            .map(|_| {
                let mut receiver = receiver.another().expect("several");
                scope.spawn(move || {
                    let _registration = eal().register_thread().expect("an lcore id");
                    let (mut batch, mut count, mut idle) = (Batch::new(), 0, 0);
                    while idle < 20_000 {
                        let came = receiver.receive(&mut batch);
                        idle = if came == 0 { idle + 1 } else { 0 };
                        count += came as u64;
                        Mbuf::free_burst(&mut batch);
                        std::thread::yield_now();
                    }
                    count
                })
            })
            .collect();
        receivers.into_iter().map(|receiver| receiver.join().expect("it ends")).sum()
    });
    let mut left = 0;
    let (mut receiver, mut batch) = (receiver, Batch::new());
    while receiver.receive(&mut batch) > 0 {
        left += batch.len() as u64;
        Mbuf::free_burst(&mut batch);
    }
    assert_eq!(received + left, 3 * u64::from(EACH));
}

fn caches() {
    let whole = Whole::new(100, 2048);
    for _ in 0..3 {
        let pool = whole.0.clone();
        let thread = std::thread::spawn(move || {
            let _registration = eal().register_thread().expect("an lcore id");
            let frames: Vec<Mbuf> = (0..40).map_while(|_| pool.allocate()).collect();
            frames.len()
        });
        assert_eq!(thread.join().expect("it ends"), 40);
        let all: Vec<Mbuf> = std::iter::from_fn(|| whole.0.allocate()).collect();
        assert_eq!(all.len(), 100);
    }
}

const RESERVED: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// Another process, which starts EAL with hugepages. What the machine had reserved is reserved again afterwards.
fn hugepages() {
    let read = || fs::read_to_string(RESERVED).ok()?.trim().parse::<u32>().ok();
    let Some(before) = read() else { return eprintln!("skipped: the kernel has no hugepages of 2 MiB") };
    if fs::write(RESERVED, (before + 128).to_string()).is_err() {
        return eprintln!("skipped: needs root");
    }
    let status = if read() == Some(before + 128) { Some(child::spawn("huge", "").wait()) } else { None };
    fs::write(RESERVED, before.to_string()).expect("what was there before");
    match status {
        Some(status) => assert!(status.expect("it ran").success()),
        None => eprintln!("skipped: no memory for hugepages"),
    }
}

/// If none are reserved, or all are taken, EAL says so; unless it was left the choice.
fn no_hugepages() {
    let free = fs::read_to_string(RESERVED.replace("nr_", "free_"));
    if free.is_ok_and(|free| free.trim() != "0") {
        return eprintln!("skipped: there are hugepages");
    }
    for part in ["none", "auto"] {
        assert!(child::spawn(part, "").wait().expect("it ran").success(), "{part}");
    }
}

/// In the one process.
pub(crate) fn without_hugepages() {
    let options = EalOptions { pages: EalPages::Huge, ..EalOptions::default() };
    let error = Eal::start(options).expect_err("there are none").to_string();
    assert!(error.starts_with("DPDK's EAL did not start") && error.contains("huge"), "{error}");
}

/// In the other.
pub(crate) fn with_ordinary_pages() {
    let whole = Whole::new(1000, 2048);
    drop(frame(&whole.0, b"x"));
}

/// In that process.
pub(crate) fn with_hugepages() {
    let whole = Whole::new(10_000, 2048);
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let huge =
        status.lines().find_map(|line| line.strip_prefix("HugetlbPages:")?.trim().strip_suffix(" kB")?.parse().ok());
    assert!(huge.is_some_and(|kib: u32| kib > 10_000 * 2), "its memory is on hugepages: {huge:?} KiB");
    let options = PortOptions { tx_descriptors: 64, ..PortOptions::default() };
    let (first, second) = Port::pair(eal(), &options, &whole.0).expect("a pair of ports");
    let (mut out, mut back) = (first.queue(0).expect("a queue"), second.queue(0).expect("a queue"));
    let mut batch: Batch<Mbuf> = (0..10).map(|i| frame(&whole.0, &[i; 60])).collect();
    assert_eq!(out.transmit(&mut batch), 10);
    assert_eq!(back.receive(&mut batch), 10);
    assert_eq!(batch[9].bytes(), [9; 60]);
}
