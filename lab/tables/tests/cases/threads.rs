//! Shared by threads.

use super::{NotAsked, key};
use crate::eal;
use hairpin_core::table::{Full, Lookup, SharedIndex, Table};
use hairpin_tables::rte_hash::{RteHash, RteHashFlags, SharedRteHash, TableHandle, UnprotectedSharing};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

type Bytes = [u8; 16];

/// Keys that stay.
const STAYING: u32 = 500;
/// Keys of each writer, that come and go.
const OWN: u32 = 1000;

/// Rounds of each writer; `HAIRPIN_ROUNDS` sets more.
fn rounds() -> u32 {
    std::env::var("HAIRPIN_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(4)
}

/// Two writers churn, one of them without a handle, while readers never miss what stays, nor find another value.
pub(crate) fn churn(flags: RteHashFlags) {
    let table = RteHash::new(eal(), (STAYING + 2 * OWN) as usize, flags, 5).expect("a table");
    let table = Arc::new(table.share(UnprotectedSharing::OnlyIfSafe).expect("readers are protected"));
    assert!(!table.is_unprotected());
    for number in 0..STAYING {
        assert_eq!(SharedIndex::insert(&*table, &key(number), number), Ok(()));
    }
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let by_handle = table.handle().expect("a handle");
        let readers = [scope.spawn(|| read(by_handle, &over)), scope.spawn(|| read(Arc::clone(&table), &over))];
        let writers = [
            scope.spawn(|| write(table.handle().expect("a handle"), STAYING)),
            scope.spawn(|| write(Arc::clone(&table), STAYING + OWN)),
        ];
        let written = writers.map(|writer| writer.join());
        over.store(true, Ordering::Relaxed);
        for result in written.into_iter().chain(readers.map(|reader| reader.join())) {
            result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    assert_eq!(SharedIndex::len(&*table), STAYING as usize);
    let mut seen = 0;
    let mut from = Some(0);
    while let Some(at) = from {
        from = SharedIndex::scan(&*table, at, &mut |value| seen += u32::from(value < STAYING));
    }
    assert_eq!(seen, STAYING);
}

fn read(table: impl Table<Bytes>, over: &AtomicBool) {
    let keys: Vec<Bytes> = (0..STAYING + 2 * OWN).map(key).collect();
    let mut out = vec![None; keys.len()];
    let mut passes = 0;
    while passes == 0 || !over.load(Ordering::Relaxed) {
        passes += 1;
        table.find_burst(&keys, &NotAsked, &mut out);
        for (number, found) in (0..).zip(&out) {
            assert!(found.is_none_or(|value| value == number), "{number} has {found:?}");
            assert!(number >= STAYING || found.is_some(), "{number} was missed");
        }
        for number in 0..STAYING / 10 {
            assert_eq!(table.find(&key(number), &NotAsked), Some(number));
        }
        // DPDK's locks prefer readers: writers starve beside those that never rest.
        std::thread::yield_now();
    }
}

/// Fills and empties its part; what it did, it sees. Removed positions become free as the readers go on: where there are
/// none for a moment, it waits.
fn write(mut table: impl Table<Bytes>, first: u32) {
    let numbers: Vec<u32> = (first..first + OWN).collect();
    let keys: Vec<Bytes> = numbers.iter().map(|&number| key(number)).collect();
    for round in 0..rounds() {
        for (keys, values) in keys.chunks(32).zip(numbers.chunks(32)) {
            let mut done = 0;
            while done < keys.len() {
                done += table.insert_burst(&keys[done..], &values[done..]);
                std::thread::yield_now();
            }
        }
        let mut out = vec![None; keys.len()];
        table.find_burst(&keys, &NotAsked, &mut out);
        assert!(out.iter().zip(&numbers).all(|(found, number)| *found == Some(*number)));
        let at = (round as usize * 37) % keys.len();
        assert!(table.replace(&keys[at], numbers[at], numbers[at]));
        assert_eq!(table.remove_burst(&keys, &numbers), keys.len());
        table.find_burst(&keys, &NotAsked, &mut out);
        assert!(out.iter().all(Option::is_none));
    }
}

/// A table without room, and how many entries it took.
fn full(flags: RteHashFlags) -> (Arc<SharedRteHash<Bytes>>, TableHandle<Bytes>, u32) {
    let table = RteHash::new(eal(), 1000, flags, 6).expect("a table");
    let table = Arc::new(table.share(UnprotectedSharing::OnlyIfSafe).expect("readers are protected"));
    let mut writer = table.handle().expect("a handle");
    let mut count = 0;
    while writer.insert(&key(count), count).is_ok() {
        count += 1;
    }
    (table, writer, count)
}

/// A position is used again only once every reader that was online has been quiescent.
pub(crate) fn positions_wait_for_readers(flags: RteHashFlags) {
    if flags.protects_writers() {
        // Its spare positions outnumber its slots, so that it never lacks one: only that it works is shown.
        let (table, mut writer, _) = full(flags);
        let reader = table.handle().expect("a handle");
        for _ in 0..20_000 {
            assert!(writer.remove(&key(0), 0));
            assert_eq!(reader.find(&key(0), &NotAsked), None);
            assert_eq!(writer.insert(&key(0), 0), Ok(()));
        }
        return;
    }
    let (table, mut writer, count) = full(flags);
    let mut reader = table.handle().expect("a handle");
    assert!(writer.remove(&key(0), 0));
    assert_eq!(writer.insert(&key(count), count), Err(Full), "the reader may be looking at it");
    reader.quiescent();
    assert_eq!(writer.insert(&key(count), count), Ok(()));
    // An offline thread is not waited for.
    reader.offline(|| {
        assert!(writer.remove(&key(1), 1));
        assert_eq!(writer.insert(&key(0), 0), Ok(()));
    });
    // Nor is a reader that has left.
    drop(reader);
    assert!(writer.remove(&key(2), 2));
    assert_eq!(writer.insert(&key(1), 1), Ok(()));
}
