//! A table and an ordinary map, side by side: whatever is done to the one is done to the other, and they have to agree.
//!
//! Nothing here belongs to one kind of table, so any crate that has tables can include this file (`#[path]`): the fuzz
//! target does.

use hairpin_core::table::{Entries, Full, Key, Table};
use hairpin_tables::OwnTable;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

/// Something to do to a table. Numbers are hints: they are brought into range by [`ModelTest`].
#[derive(Clone, Debug)]
pub(crate) enum Op {
    /// Inserts a key (if it is not there) under a value.
    Insert(usize, u32),
    /// Inserts keys at once, under values that follow one.
    InsertBurst(Vec<usize>, u32),
    /// Takes an entry away.
    Remove(usize),
    /// Takes entries away at once; one named twice is there once.
    RemoveBurst(Vec<usize>),
    /// Takes something away that is not there.
    RemoveAbsent(usize, u32),
    /// Gives an entry another value.
    Replace(usize, u32),
    /// Gives entries other values at once, such as follow one; one named twice is there once.
    ReplaceBurst(Vec<usize>, u32),
    /// Gives another value to something that is not there.
    ReplaceAbsent(usize, u32),
    /// Looks for a key.
    Find(usize),
    /// Looks for keys at once; this many places for answers too many or too few.
    FindBurst(Vec<usize>, i8),
    /// Walks over all entries and on the way takes those away whose value has this remainder by this divisor.
    Sweep(u32, u32),
}

/// A kind of table that the suite can inspect.
pub(crate) trait Subject<K>: Table<K> {
    /// Whether it finds by asking the entries, not by keys of its own.
    const ASKS: bool = true;

    /// Panics if what must always be true inside is not.
    fn check(&mut self) {}
}

impl<K: Key> Subject<K> for OwnTable<K> {
    fn check(&mut self) {
        match self {
            OwnTable::CuckooPlusPlus(table) => assert_eq!(table.check(), Ok(())),
            OwnTable::Inline(table) => assert_eq!(table.check(), Ok(())),
            OwnTable::GlobalLock(view) => view.table().with(|table| assert_eq!(table.check(), Ok(()))),
            OwnTable::Concurrent(view) => assert_eq!(view.table_mut().map_or(Ok(()), |table| table.check()), Ok(())),
            OwnTable::TwoChoice(_) | OwnTable::Untracked(_) => {}
        }
    }
}

/// The entries that a table's values lead to. Complains about questions that no table may ask.
struct Slab<K> {
    entries: BTreeMap<u32, K>,
    /// All values ever inserted.
    known: BTreeSet<u32>,
    /// Answers "no" to everything, and writes down what it was asked about.
    denies: RefCell<Option<Vec<u32>>>,
}

impl<K: PartialEq> Entries<K> for Slab<K> {
    fn is(&self, value: u32, key: &K) -> bool {
        assert!(self.known.contains(&value), "asked about {value}, which was never inserted");
        if let Some(list) = &mut *self.denies.borrow_mut() {
            list.push(value);
            return false;
        }
        self.entries.get(&value) == Some(key)
    }

    fn prefetch(&self, value: u32) {
        assert!(self.known.contains(&value), "prefetches {value}, which was never inserted");
    }
}

/// A table (or one view of a shared one) and what should be in it.
struct Pair<K, T> {
    table: T,
    map: BTreeMap<K, u32>,
    slab: Slab<K>,
}

/// Tables and the maps beside them. The tables are views of one shared table, or a single one of its own.
pub(crate) struct ModelTest<K, T> {
    pairs: Vec<Pair<K, T>>,
    keys: Vec<K>,
    /// Values that may be used: 0 to this.
    value_max: u32,
    /// Whether an insertion may be refused before the capacity is reached: where an attacker chooses the hashes.
    may_refuse: bool,
    refused: usize,
}

impl<K, T> ModelTest<K, T>
where
    K: Key + Ord + Debug,
    T: Subject<K>,
{
    /// Empty `tables`, to be used with `keys` (at least one) and with values up to `value_max`.
    pub(crate) fn new(tables: Vec<T>, mut keys: Vec<K>, value_max: u32, may_refuse: bool) -> ModelTest<K, T> {
        keys.sort_unstable();
        keys.dedup();
        let pair = |table| Pair {
            table,
            map: BTreeMap::new(),
            slab: Slab { entries: BTreeMap::new(), known: BTreeSet::new(), denies: RefCell::new(None) },
        };
        ModelTest { pairs: tables.into_iter().map(pair).collect(), keys, value_max, may_refuse, refused: 0 }
    }

    /// Insertions that were refused.
    pub(crate) fn refused(&self) -> usize {
        self.refused
    }

    /// Does `op` with the table of number `view` (modulo their number).
    pub(crate) fn apply(&mut self, view: usize, op: &Op) {
        let view = view % self.pairs.len();
        match op {
            Op::Insert(key, value) => self.insert(view, *key, *value),
            Op::InsertBurst(keys, value) => self.insert_burst(view, keys, *value),
            Op::Remove(which) => self.pairs[view].remove(*which),
            Op::RemoveBurst(which) => self.pairs[view].remove_burst(which),
            Op::RemoveAbsent(key, value) => {
                let (key, value) = (self.key(*key), self.pairs[view].free_value(*value, self.value_max));
                assert!(!self.pairs[view].table.remove(&key, value), "{value} was not there to remove");
            }
            Op::Replace(which, value) => {
                let value = self.pairs[view].free_value(*value, self.value_max);
                self.pairs[view].replace(*which, value);
            }
            Op::ReplaceBurst(which, value) => self.pairs[view].replace_burst(which, *value, self.value_max),
            Op::ReplaceAbsent(key, value) => {
                let key = self.key(*key);
                let value = self.pairs[view].free_value(*value, self.value_max);
                assert!(!self.pairs[view].table.replace(&key, value, 0), "{value} was not there to replace");
            }
            Op::Find(key) => self.pairs[view].find(&self.key(*key)),
            Op::FindBurst(keys, more) => {
                let keys: Vec<K> = keys.iter().map(|&key| self.key(key)).collect();
                self.pairs[view].find_burst(&keys, keys.len().saturating_add_signed((*more).into()));
            }
            Op::Sweep(divisor, remainder) => self.pairs[view].sweep((*divisor).max(1), *remainder),
        }
        let pair = &mut self.pairs[view];
        assert_eq!(pair.table.len(), pair.map.len(), "entries after {op:?}");
        pair.table.check();
    }

    /// Everything that should be there is found, singly, in bursts and by walking, and nothing else is.
    pub(crate) fn check(&mut self) {
        for pair in &mut self.pairs {
            pair.table.check();
            for key in &self.keys {
                pair.find(key);
            }
            pair.find_burst(&self.keys, self.keys.len());
            pair.scan();
        }
    }

    fn key(&self, hint: usize) -> K {
        self.keys[hint % self.keys.len()]
    }

    /// All entries of all tables, and what they are made for.
    fn filling(&self) -> (usize, usize) {
        let tables = self.pairs.iter().map(|pair| &pair.table);
        tables.fold((0, 0), |(len, capacity), table| (len + table.len(), capacity + table.capacity()))
    }

    /// A refusal is right only where an enemy has chosen the keys, or when the table is full.
    fn note_refusal(&mut self, view: usize) {
        self.refused += 1;
        let (len, capacity) = self.filling();
        assert!(self.may_refuse || len >= capacity, "refused with {len} of {capacity} entries");
        self.pairs[view].scan();
        for key in &self.keys {
            self.pairs[view].find(key);
        }
    }

    fn insert(&mut self, view: usize, key: usize, value: u32) {
        let key = self.key(key);
        let value = self.pairs[view].free_value(value, self.value_max);
        let pair = &mut self.pairs[view];
        if pair.map.contains_key(&key) {
            return pair.find(&key);
        }
        pair.appears(key, value);
        match pair.table.insert(&key, value) {
            Ok(()) => {
                pair.map.insert(key, value);
            }
            Err(Full) => {
                pair.slab.entries.remove(&value);
                self.note_refusal(view);
            }
        }
    }

    fn insert_burst(&mut self, view: usize, keys: &[usize], value: u32) {
        let mut wanted = BTreeSet::new();
        let mut list = Vec::new();
        for &key in keys {
            let key = self.key(key);
            if !self.pairs[view].map.contains_key(&key) && wanted.insert(key) {
                let value = self.pairs[view].free_value(value, self.value_max);
                self.pairs[view].appears(key, value);
                list.push((key, value));
            }
        }
        let pair = &mut self.pairs[view];
        let (keys, values): (Vec<K>, Vec<u32>) = list.iter().copied().unzip();
        let added = pair.table.insert_burst(&keys, &values);
        assert!(added <= list.len());
        pair.map.extend(list[..added].iter().copied());
        for (_, value) in &list[added..] {
            pair.slab.entries.remove(value);
        }
        if added < list.len() {
            self.note_refusal(view);
        }
    }
}

impl<K, T> Pair<K, T>
where
    K: Key + Ord + Debug,
    T: Subject<K>,
{
    /// A value that leads nowhere, `hint` or the next.
    fn free_value(&self, hint: u32, max: u32) -> u32 {
        let within = |value: u32| if max == u32::MAX { value } else { value % (max + 1) };
        let mut value = within(hint);
        while self.slab.entries.contains_key(&value) {
            value = within(value.wrapping_add(1));
        }
        value
    }

    fn appears(&mut self, key: K, value: u32) {
        self.slab.known.insert(value);
        self.slab.entries.insert(value, key);
    }

    fn nth(&self, which: usize) -> Option<(K, u32)> {
        let at = which.checked_rem(self.map.len())?;
        self.map.iter().nth(at).map(|(&key, &value)| (key, value))
    }

    fn gone(&mut self, key: &K, value: u32) {
        self.map.remove(key);
        self.slab.entries.remove(&value);
    }

    fn remove(&mut self, which: usize) {
        let Some((key, value)) = self.nth(which) else { return };
        assert!(self.table.remove(&key, value), "refuses to remove {key:?} with {value}");
        assert!(!self.table.remove(&key, value), "removed {key:?} twice");
        self.gone(&key, value);
        self.find(&key);
    }

    fn remove_burst(&mut self, which: &[usize]) {
        let list: Vec<(K, u32)> = which.iter().filter_map(|&which| self.nth(which)).collect();
        let (keys, values): (Vec<K>, Vec<u32>) = list.iter().copied().unzip();
        let different = list.iter().copied().collect::<BTreeSet<_>>();
        assert_eq!(self.table.remove_burst(&keys, &values), different.len());
        for (key, value) in different {
            self.gone(&key, value);
        }
    }

    fn replace(&mut self, which: usize, new: u32) {
        let Some((key, old)) = self.nth(which) else { return };
        self.appears(key, new);
        assert!(self.table.replace(&key, old, new), "refuses to replace {old} of {key:?} by {new}");
        assert!(!self.table.replace(&key, old, new), "replaced {old} of {key:?} twice");
        self.slab.entries.remove(&old);
        self.map.insert(key, new);
        self.find(&key);
    }

    fn replace_burst(&mut self, which: &[usize], hint: u32, max: u32) {
        let (mut keys, mut old, mut new) = (Vec::new(), Vec::new(), Vec::new());
        let mut changed = BTreeMap::new();
        let list: Vec<(K, u32)> = which.iter().filter_map(|&which| self.nth(which)).collect();
        for (key, value) in list {
            let other = self.free_value(hint, max);
            self.appears(key, other);
            // The second time its value is another one already.
            changed.entry(key).or_insert((value, other));
            keys.push(key);
            old.push(value);
            new.push(other);
        }
        assert_eq!(self.table.replace_burst(&keys, &old, &new), changed.len());
        for value in new {
            self.slab.entries.remove(&value);
        }
        for (&key, &(value, other)) in &changed {
            self.slab.entries.remove(&value);
            self.slab.entries.insert(other, key);
            self.map.insert(key, other);
        }
        changed.keys().for_each(|key| self.find(key));
    }

    fn find(&self, key: &K) {
        assert_eq!(self.table.find(key, &self.slab), self.map.get(key).copied(), "{key:?}");
        if !T::ASKS {
            return;
        }
        // Whatever it is that the table asks about, it is in the table, and it asks once.
        *self.slab.denies.borrow_mut() = Some(Vec::new());
        assert_eq!(self.table.find(key, &self.slab), None, "found what the entries have denied");
        let mut asked = self.slab.denies.borrow_mut().take().unwrap_or_default();
        let times = asked.len();
        asked.sort_unstable();
        asked.dedup();
        assert_eq!(asked.len(), times, "asks about one entry twice: {asked:?}");
        assert!(asked.iter().all(|value| self.slab.entries.contains_key(value)), "asks about what is gone: {asked:?}");
        assert!(self.map.get(key).is_none_or(|value| asked.contains(value)), "does not ask about the one meant");
    }

    fn find_burst(&self, keys: &[K], places: usize) {
        const UNTOUCHED: Option<u32> = Some(0xdead_beef);
        let mut out = vec![UNTOUCHED; places];
        self.table.find_burst(keys, &self.slab, &mut out);
        for (i, found) in out.into_iter().enumerate() {
            let wanted = keys.get(i).map_or(UNTOUCHED, |key| self.map.get(key).copied());
            assert_eq!(found, wanted, "answer {i} of {}", keys.len());
        }
        let mut out = vec![UNTOUCHED; places];
        self.table.guess_burst(keys, &self.slab, &mut out);
        for (i, guess) in out.into_iter().enumerate() {
            match (keys.get(i), guess) {
                (None, guess) => assert_eq!(guess, UNTOUCHED, "guess {i} of {}", keys.len()),
                (Some(key), Some(guess)) if self.slab.is(guess, key) => assert_eq!(self.map.get(key), Some(&guess)),
                // Another key's; a caller that guessed so has to look.
                (Some(_), Some(_)) => {}
                (Some(key), None) => assert!(!self.map.contains_key(key), "guess {i} of {}: nothing", keys.len()),
            }
        }
    }

    /// A walk that `on_step` may interrupt meets each entry once.
    fn walk(&mut self, mut on_step: impl FnMut(&mut Self, &[u32])) {
        let mut wanted: BTreeSet<u32> = self.map.values().copied().collect();
        let mut from = 0;
        let mut steps = 0;
        loop {
            let mut met = Vec::new();
            let next = self.table.scan(from, &mut |value| met.push(value));
            for value in &met {
                assert!(wanted.remove(value), "the walk meets {value} twice, or though it is not there");
            }
            on_step(self, &met);
            let Some(next) = next else { break };
            from = next;
            steps += 1;
            assert!(steps < 1 << 20, "the walk does not end");
        }
        assert!(wanted.is_empty(), "the walk misses {wanted:?}");
    }

    fn scan(&mut self) {
        self.walk(|_, _| ());
    }

    fn sweep(&mut self, divisor: u32, remainder: u32) {
        self.walk(|pair, met| {
            for &value in met.iter().filter(|&value| value % divisor == remainder % divisor) {
                let key = pair.slab.entries[&value];
                assert!(pair.table.remove(&key, value), "refuses to remove {key:?} met by a walk");
                pair.gone(&key, value);
            }
        });
    }
}
