//! The table under several threads, and against what its documentation says of buckets.

use super::*;
use core::sync::atomic::AtomicBool;
use std::thread;
use std::vec::Vec;

fn address(number: u16) -> Address {
    let [high, low] = number.to_be_bytes();
    Address::from_ipv4([10, 0, high, low])
}

const SEGMENT: LinkSegment = LinkSegment::untagged(3);

fn claim(address: Address, mac: [u8; 6]) -> Claim {
    Claim { address, segment: SEGMENT, mac: Some(mac), solicited: true, overrides: true, learn: false }
}

/// Entries whose Ethernet address and time belong together are never seen mixed, and no neighbour gets another's.
#[test]
fn readers_see_whole_entries() {
    const ADDRESSES: u16 = 6;
    // A machine that has better things to do may run the writers without a reader in between, or one of them while
    // another holds the lock: they go on until enough was seen.
    const ROUNDS: u64 = 30_000;
    const ROUNDS_MAX: u64 = 100 * ROUNDS;
    const SEEN: u64 = 100;
    let table = Neighbours::new(8, [3; 4]);
    let done = AtomicBool::new(false);
    let seen = [AtomicU64::new(0), AtomicU64::new(0)];
    let enough = || seen.iter().all(|seen| seen.load(Ordering::Relaxed) >= SEEN);
    let mac = |number: u16, round: u64| [2, number as u8, round as u8, round as u8, round as u8, round as u8];
    thread::scope(|scope| {
        for seen in &seen {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    for number in 0..ADDRESSES {
                        if let NeighbourFound::At { mac, until } = table.find(&address(number), SEGMENT)
                            && until != FAR
                            && until != Time::ZERO
                        {
                            let seconds = (until.as_nanos() / 1_000_000_000).wrapping_sub(REACHABLE.as_secs());
                            let [two, whose, a, b, c, d] = mac;
                            assert_eq!([two, whose], [2, number as u8], "the frame of another packet");
                            assert_eq!([a, b, c, d], [(seconds / 2) as u8; 4], "mixed");
                            seen.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            });
        }
        let writers = [0, 1].map(|writer| {
            let (table, enough) = (&table, &enough);
            scope.spawn(move || {
                for round in (0..ROUNDS_MAX).take_while(|round| *round < ROUNDS || !enough()) {
                    // far enough apart that another's word counts
                    let now = Time::ZERO + Duration::from_secs(2 * round);
                    let number = writer + 2 * (round % 3) as u16;
                    table.need(now, &address(number), SEGMENT);
                    table.hear(now, &claim(address(number), mac(number, round)));
                }
            })
        });
        let ended = writers.map(|writer| writer.join());
        done.store(true, Ordering::Relaxed);
        ended.into_iter().for_each(|ended| ended.unwrap());
    });
    assert!(enough(), "{seen:?} entries were seen");
    // No writer is in the way any more: an address for which the lock was taken each time gets in now.
    let late = Time::ZERO + Duration::from_secs(2 * ROUNDS_MAX);
    for number in 0..ADDRESSES {
        assert_ne!(table.need(late, &address(number), SEGMENT), NeedOutcome::Full);
    }
    assert_eq!(table.entries().count(), usize::from(ADDRESSES));
}

#[test]
fn a_version_changes_behind_every_change() {
    let table = Neighbours::new(64, [3; 4]);
    let (now, one) = (Time::from_nanos(5), address(1));
    let before = table.version();
    assert!(matches!(table.need(now, &one, SEGMENT), NeedOutcome::Ask(_)));
    let asked = table.version();
    assert_ne!(asked, before);
    assert_eq!((table.need(now, &one, SEGMENT), table.version()), (NeedOutcome::Known, asked));
    assert!(!table.hear(now, &claim(address(2), [2; 6])));
    assert_eq!(table.version(), asked);
    assert!(table.hear(now, &claim(one, [2; 6])));
    assert_ne!(table.version(), asked);
}

#[test]
fn a_lock_held_too_long_is_not_waited_for() {
    let table = Neighbours::new(64, [3; 4]);
    let one = address(1);
    let writing = table.lock(1).unwrap();
    assert_eq!(table.need(Time::ZERO, &one, SEGMENT), NeedOutcome::Busy);
    assert!(!table.keep(Time::ZERO, &[(one, 3)]));
    table.sweep(Time::ZERO, &mut Asks::new());
    assert_eq!((table.contended(), table.entries().count()), (2, 0));
    drop(writing);
    assert!(table.keep(Time::ZERO, &[(one, 3)]));
    assert_eq!(table.entries().count(), 1);
}

/// A table of one bucket: whom a new one replaces.
#[test]
fn eviction_order() {
    let second = |seconds| Time::ZERO + Duration::from_secs(seconds);
    let table = Neighbours::new(BUCKET_SIZE, [3; 4]);
    let there = |number| table.find(&address(number), SEGMENT) != NeighbourFound::Unknown;
    // six that answer
    for number in 0..6 {
        table.need(second(1), &address(number), SEGMENT);
        assert!(table.hear(second(1), &claim(address(number), [2; 6])));
    }
    // two that do not, and no room for another
    for number in 10..12 {
        assert!(matches!(table.need(second(u64::from(number)), &address(number), SEGMENT), NeedOutcome::Ask(_)));
    }
    assert_eq!(table.need(second(12), &address(12), SEGMENT), NeedOutcome::Full);
    // who failed gives way
    let mut asks = Asks::new();
    for at in 11..40 {
        table.sweep(second(at), &mut asks);
        asks.clear();
        if table.find(&address(10), SEGMENT) == NeighbourFound::Failed {
            break;
        }
    }
    assert!(matches!(table.need(second(15), &address(12), SEGMENT), NeedOutcome::Ask(_)));
    assert!(!there(10) && there(11) && there(12));
    // failed entries before those not heard of for long
    for at in [32, 33] {
        table.sweep(second(at), &mut asks);
    }
    let answering = || (0..6).filter(|number| there(*number)).count();
    assert!(matches!(table.need(second(34), &address(13), SEGMENT), NeedOutcome::Ask(_)));
    assert!(!there(11) && there(12) && answering() == 6);
    assert!(matches!(table.need(second(34), &address(14), SEGMENT), NeedOutcome::Ask(_)));
    assert!(there(12) && there(13) && answering() == 5);
    // the kept one always finds a place, and keeps it
    assert!(table.keep(second(35), &[(address(20), 3)]));
    for number in 30..200 {
        table.need(second(36), &address(number), SEGMENT);
    }
    assert!(there(20));
}

/// While a link is down no neighbour answers over it. Once it is back no request waits until it would have been time to
/// ask again.
#[test]
fn who_did_not_answer_is_asked_anew() {
    let second = |seconds| Time::ZERO + Duration::from_secs(seconds);
    let table = Neighbours::new(64, [3; 4]);
    let [needed, kept, waiting, answering] = [1, 2, 3, 4].map(address);
    let elsewhere = LinkSegment::untagged(4);
    table.need(second(0), &needed, SEGMENT);
    table.need(second(0), &needed, elsewhere);
    assert!(table.keep(second(0), &[(kept, 3)]));
    let mut asks = Asks::new();
    for at in 1..=4 {
        table.sweep(second(at), &mut asks);
        asks.clear();
    }
    table.need(second(4), &answering, SEGMENT);
    assert!(table.hear(second(4), &claim(answering, [2; 6])));
    table.need(second(4), &waiting, SEGMENT);
    assert_eq!([needed, kept].map(|address| table.find(&address, SEGMENT)), [NeighbourFound::Failed; 2]);
    let before = table.find(&answering, SEGMENT);
    let now = second(4) + Duration::from_millis(500);
    table.ask_anew(now, 3);
    assert_eq!(table.find(&needed, SEGMENT), NeighbourFound::Unknown);
    assert!(matches!(table.need(now, &needed, SEGMENT), NeedOutcome::Ask(_)));
    assert_eq!([kept, waiting].map(|address| table.find(&address, SEGMENT)), [NeighbourFound::Asked; 2]);
    assert_eq!((table.find(&answering, SEGMENT), table.find(&needed, elsewhere)), (before, NeighbourFound::Failed));
    table.sweep(now, &mut asks);
    let asked: Vec<Address> = asks.iter().map(|ask| ask.address).collect();
    assert!(asked.contains(&kept) && asked.contains(&waiting) && asked.len() == 2, "{asked:?}");
    // all of their tries are before them
    for (at, tries) in [(6, 2), (7, 2), (8, 0)] {
        asks.clear();
        table.sweep(second(at), &mut asks);
        assert_eq!(asks.iter().filter(|ask| [kept, waiting].contains(&ask.address)).count(), tries, "{at} s");
    }
}

#[test]
fn the_same_address_elsewhere_is_another() {
    let table = Neighbours::new(BUCKET_SIZE, [3; 4]);
    let one = address(1);
    table.need(Time::ZERO, &one, SEGMENT);
    let elsewhere = LinkSegment::untagged(4);
    assert_eq!(
        (table.find(&one, SEGMENT), table.find(&one, elsewhere)),
        (NeighbourFound::Asked, NeighbourFound::Unknown)
    );
    assert!(!table.hear(Time::ZERO, &Claim { segment: elsewhere, ..claim(one, [2; 6]) }));
    assert_eq!(table.find(&one, SEGMENT), NeighbourFound::Asked);
}

/// Twice as many places as neighbours are enough for all of them, kept or not.
#[test]
fn half_full_is_room_for_all() {
    let table = Neighbours::new(4096, [3; 4]);
    let mut kept: Vec<(Address, u16)> = (0..1024).map(|number| (address(number), 3)).collect();
    kept.sort_unstable();
    assert!(table.keep(Time::ZERO, &kept));
    for number in 1024..2048 {
        let now = Time::from_nanos(u64::from(number));
        assert!(matches!(table.need(now, &address(number), SEGMENT), NeedOutcome::Ask(_)), "{number}");
        assert!(table.hear(now, &claim(address(number), [2; 6])));
    }
    assert_eq!(table.entries().filter(|entry| entry.kept).count(), 1024);
    assert_eq!(table.entries().count(), 2048);
}
