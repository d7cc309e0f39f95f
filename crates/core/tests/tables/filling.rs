//! How far tables fill, and what they take per entry.

use crate::random::Random;
use hairpin_core::table::{AnyTable, Hasher, Method, Table};

/// Puts random keys in until one finds no room; how many there were.
fn fill(table: &mut AnyTable<[u8; 16]>, random: &mut Random) -> usize {
    for value in 0.. {
        if table.insert(&random.key(), value).is_err() {
            return value as usize;
        }
    }
    unreachable!("a table takes more than 2^32 entries")
}

/// Slots there are, where entries can be moved until almost all are taken.
fn slots(table: &AnyTable<[u8; 16]>) -> Option<usize> {
    match table {
        AnyTable::CuckooPlusPlus(table) => Some(table.slots()),
        AnyTable::Inline(table) => Some(table.slots()),
        AnyTable::GlobalLock(view) => Some(view.table().with(|table| table.slots())),
        AnyTable::Concurrent(view) => Some(view.table().slots()),
        AnyTable::TwoChoice(_) | AnyTable::Untracked(_) => None,
    }
}

fn fills(method: Method, sizes: impl IntoIterator<Item = usize>) {
    let mut random = Random(method as u64 + 1);
    for size in sizes {
        let mut table = AnyTable::of(method, size, Hasher::new(random.secret()));
        let filled = fill(&mut table, &mut random);
        let capacity = Table::<[u8; 16]>::capacity(&table);
        let bytes = Table::<[u8; 16]>::bytes(&table);
        assert_eq!(Table::<[u8; 16]>::len(&table), filled);
        assert!(capacity == size && filled >= size, "{method}: the first refusal at {filled} of {size}");
        if size >= 10_000 {
            let load = slots(&table).map(|slots| filled as f64 / slots as f64);
            assert!(load.is_none_or(|load| load >= 0.95), "{method} for {size}: full at a load of {load:?}");
            println!(
                "{method} for {size}: first refusal at {:.3} of its capacity{}, {:.1} bytes per entry at capacity",
                filled as f64 / size as f64,
                load.map_or(String::new(), |load| format!(" and {load:.3} of its slots")),
                bytes as f64 / size as f64
            );
        }
    }
}

/// To the capacity at least, however small or large the table is. (`--nocapture` shows how much further.)
#[test]
#[cfg_attr(miri, ignore = "slow")]
fn tables_hold_their_capacity() {
    for &method in Method::ALL.iter().filter(|method| method.tracks_connections()) {
        fills(method, 1..130);
        fills(method, (150..3000).step_by(131));
        fills(method, [10_000, 100_000, 1 << 20]);
    }
}
