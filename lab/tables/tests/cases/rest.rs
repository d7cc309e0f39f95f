//! Names, refusals, memory, threads' registration.

use super::{NotAsked, key};
use crate::eal;
use hairpin_core::table::{Lookup, SharedIndex, Table};
use hairpin_dpdk::{Eal, EalOptions};
use hairpin_tables::rte_hash::{Error, RteHash, RteHashFlags, Transactions, UnprotectedSharing};
use std::sync::Arc;

type Case = (&'static str, fn());

pub(crate) fn all() -> Vec<Case> {
    vec![
        ("names", names),
        ("EAL starts once", once),
        ("capacities", capacities),
        ("transactions work or are refused", transactions),
        ("what is unprotected has to be asked for", unprotected),
        ("handles are counted", handles),
        ("a table's memory comes back", memory_comes_back),
        ("threads are registered while they need it", registration),
        ("who drops a table needs no lcore id", dropped_elsewhere),
    ]
}

/// State that starting EAL might disturb: the thread's affinity and signal mask, the process's signal handling.
pub(crate) fn standing() -> Vec<(String, u64)> {
    /// Signals 32 and 33 are the C library's own, for threads.
    const OURS: u64 = !(3 << 31);
    let status = std::fs::read_to_string("/proc/thread-self/status").expect("/proc");
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line of each name");
        line.trim().replace(',', "")
    };
    let signals = ["SigBlk:", "SigIgn:", "SigCgt:"];
    let mut found: Vec<(String, u64)> = signals
        .iter()
        .map(|name| ((*name).to_owned(), u64::from_str_radix(&value(name), 16).expect("a mask") & OURS))
        .collect();
    found.push((value("Cpus_allowed:"), 0));
    found
}

fn names() {
    for flags in RteHashFlags::ALL {
        assert_eq!(flags.name().parse(), Ok(flags));
        assert_eq!(flags.to_string(), flags.name());
    }
    assert_eq!("rte-hash".parse(), Ok(RteHashFlags::None));
    for wrong in ["", "rte-hash/", "rte-hash/lockfree", "multi-writer", "rte-hash/lock-free+multi-writer"] {
        let error = wrong.parse::<RteHashFlags>().expect_err("no such name");
        assert!(error.to_string().contains("rte-hash/multi-writer+lock-free"), "{error}");
    }
}

fn once() {
    let error = Eal::start(EalOptions::default()).expect_err("it runs");
    assert!(matches!(error, hairpin_dpdk::Error::AlreadyStarted), "{error}");
}

fn capacities() {
    for wrong in [0, 7, (1 << 29) + 1, usize::MAX] {
        let result = RteHash::<[u8; 16]>::new(eal(), wrong, RteHashFlags::None, 0);
        assert!(matches!(result, Err(Error::Capacity(capacity)) if capacity == wrong));
    }
    for right in [8, 9, 100, 4096] {
        let table = RteHash::<[u8; 16]>::new(eal(), right, RteHashFlags::MultiWriterLockFree, 0).expect("a table");
        assert_eq!(Table::capacity(&table), right);
    }
}

/// On a machine with them the other cases use the transactional tables; here only that the answer is one and the same.
fn transactions() {
    let found = Transactions::probe();
    for flags in [RteHashFlags::Transactional, RteHashFlags::MultiWriterTransactional] {
        match RteHash::<[u8; 16]>::new(eal(), 100, flags, 0) {
            Ok(_) => assert_eq!(found, Transactions::Work),
            Err(Error::NoTransactions(refused, why)) => assert_eq!((refused, why), (flags, found)),
            Err(error) => panic!("{error}"),
        }
    }
}

fn unprotected() {
    for flags in [RteHashFlags::None, RteHashFlags::MultiWriter] {
        let table = || RteHash::<[u8; 16]>::new(eal(), 100, flags, 0).expect("a table");
        let Err(error) = table().share(UnprotectedSharing::OnlyIfSafe) else { panic!("{flags} protects no readers") };
        assert!(matches!(error, Error::Unprotected(refused) if refused == flags), "{error}");
        let shared = table().share(UnprotectedSharing::EvenIfUnsafe).expect("asked for");
        assert!(shared.is_unprotected());
        assert_eq!(shared.name(), flags.name());
    }
    // One writer at a time is enough of a rule for these, and it is kept only where safety is asked for.
    let table = || RteHash::<[u8; 16]>::new(eal(), 100, RteHashFlags::LockFree, 0).expect("a table");
    assert!(!table().share(UnprotectedSharing::OnlyIfSafe).expect("writers take turns").is_unprotected());
    assert!(table().share(UnprotectedSharing::EvenIfUnsafe).expect("asked for").is_unprotected());
}

fn handles() {
    let table = RteHash::<[u8; 16]>::new(eal(), 100, RteHashFlags::LockFree, 0).expect("a table");
    let table = Arc::new(table.share(UnprotectedSharing::OnlyIfSafe).expect("readers are protected"));
    let mut handles: Vec<_> = (0..64).map(|_| table.handle().expect("a handle")).collect();
    assert!(matches!(table.handle(), Err(Error::TooManyHandles)));
    // A thread without a number still gets through.
    assert_eq!(SharedIndex::insert(&*table, &key(1), 1), Ok(()));
    assert_eq!(table.find(&key(1), &NotAsked), Some(1));
    drop(handles.swap_remove(20));
    assert_eq!(table.handle().expect("one was given back").find(&key(1), &NotAsked), Some(1));
}

/// More tables than there are heaps, one after another, used in between.
fn memory_comes_back() {
    for round in 0..100 {
        let flags = RteHashFlags::ALL[round % 6];
        let mut table = RteHash::<[u8; 16]>::new(eal(), 20_000, flags, 0).expect("a table");
        for number in 0..1000 {
            assert_eq!(table.insert(&key(number), number), Ok(()));
        }
        let keys: Vec<[u8; 16]> = (0..500).map(key).collect();
        assert_eq!(table.remove_keys(&keys), keys.len());
    }
}

/// More threads than there are lcore ids write to a table with a cache per lcore, one after another.
fn registration() {
    let table = RteHash::<[u8; 16]>::new(eal(), 1000, RteHashFlags::MultiWriterRwConcurrency, 0).expect("a table");
    let table = table.share(UnprotectedSharing::OnlyIfSafe).expect("protected");
    for number in 0..200 {
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let registration = (number % 2 == 0).then(|| eal().register_thread().expect("an lcore id"));
                assert_eq!(table.insert(&key(number), number), Ok(()));
                drop(registration);
                assert!(table.replace(&key(number), number, number + 1));
            });
        });
    }
    assert_eq!(table.len(), 200);
}

/// Positions still wait in the defer queue when a thread that DPDK does not know drops the table.
fn dropped_elsewhere() {
    let table = RteHash::<[u8; 16]>::new(eal(), 1000, RteHashFlags::MultiWriterLockFree, 0).expect("a table");
    let table = Arc::new(table.share(UnprotectedSharing::OnlyIfSafe).expect("protected"));
    let reader = table.handle().expect("a handle");
    for number in 0..500 {
        assert_eq!(SharedIndex::insert(&*table, &key(number), number), Ok(()));
    }
    let keys: Vec<[u8; 16]> = (0..500).map(key).collect();
    assert_eq!(table.remove_keys(&keys), keys.len());
    drop(reader);
    std::thread::scope(|scope| {
        scope.spawn(|| drop(table));
    });
}
