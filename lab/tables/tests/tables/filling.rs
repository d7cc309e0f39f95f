//! How far tables fill, and what they take per entry.

use crate::random::Random;
use hairpin_core::table::{Hasher, Table};
use hairpin_tables::{OwnMethod, OwnTable};

/// Puts random keys in until one finds no room; how many there were.
fn fill(table: &mut OwnTable<[u8; 16]>, random: &mut Random) -> usize {
    for value in 0.. {
        if table.insert(&random.key(), value).is_err() {
            return value as usize;
        }
    }
    unreachable!("a table takes more than 2^32 entries")
}

/// Slots there are, where entries can be moved until almost all are taken.
fn slots(table: &OwnTable<[u8; 16]>) -> Option<usize> {
    match table {
        OwnTable::CuckooPlusPlus(table) => Some(table.slots()),
        OwnTable::Inline(table) => Some(table.slots()),
        OwnTable::GlobalLock(view) => Some(view.table().with(|table| table.slots())),
        OwnTable::Concurrent(view) => Some(view.table().slots()),
        OwnTable::TwoChoice(_) | OwnTable::Untracked(_) => None,
    }
}

fn fills(method: OwnMethod, sizes: impl IntoIterator<Item = usize>) {
    let mut random = Random(method as u64 + 1);
    for size in sizes {
        let mut table = OwnTable::of(method, size, Hasher::new(random.secret()));
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
    for &method in OwnMethod::ALL.iter().filter(|method| method.tracks_connections()) {
        fills(method, 1..130);
        fills(method, (150..3000).step_by(131));
        fills(method, [10_000, 100_000, 1 << 20]);
    }
}
