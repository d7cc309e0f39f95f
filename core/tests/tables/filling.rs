//! How far tables fill, and what they take per entry.

use crate::random::Random;
use hairpin_core::table::{AnyTable, Hasher, Method, Table};

/// Puts random keys in until one finds no room; how many there were.
fn fill(table: &mut AnyTable, random: &mut Random) -> usize {
    for value in 0.. {
        if table.insert(&random.key(), value).is_err() {
            return value as usize;
        }
    }
    unreachable!("a table takes more than 2^32 entries")
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
            println!(
                "{method} for {size}: first refusal at {:.3} of its capacity, {:.1} bytes per entry at capacity",
                filled as f64 / size as f64,
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
