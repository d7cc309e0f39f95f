//! One worker's view of a table that all workers share.
//!
//! Every worker has a slab of its own and counts positions in it from 0. In a table for all of them, the values of view
//! `i` stand as `i * span + value`, where the span is 2^32 divided by the number of views. A view finds, changes and
//! shows only its own: about others' values it does not even ask, because what they lead to belongs to other threads.
//! So the same key may stand in the table once for each worker, and none meets another's.

use super::{BURST, Entries, Full, Lookup, SharedIndex, Table};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// A worker's view of the table `T`.
pub struct Sharded<T> {
    table: Arc<T>,
    range: Range,
    views: usize,
    len: usize,
}

/// The values that belong to a view: `base` to `base + last`.
#[derive(Clone, Copy)]
struct Range {
    base: u32,
    last: u32,
}

impl Range {
    /// The table's value for `local`; `None` if there are not so many values.
    #[inline]
    fn outside(self, local: u32) -> Option<u32> {
        (local <= self.last).then(|| self.base + local)
    }

    /// [`Range::outside`] of up to [`BURST`] values; `None` if one of them is not the view's.
    #[inline]
    fn all_outside(self, locals: &[u32]) -> Option<[u32; BURST]> {
        let mut globals = [0; BURST];
        for (global, &local) in globals.iter_mut().zip(locals) {
            *global = self.outside(local)?;
        }
        Some(globals)
    }

    /// The view's value for `global`; `None` if it is another's.
    #[inline]
    fn inside(self, global: u32) -> Option<u32> {
        let local = global.wrapping_sub(self.base);
        (local <= self.last).then_some(local)
    }
}

/// The entries of one view, as the table asks about them.
struct OwnEntries<'a, E> {
    entries: &'a E,
    range: Range,
}

impl<K, E: Entries<K>> Entries<K> for OwnEntries<'_, E> {
    #[inline]
    fn is(&self, value: u32, key: &K) -> bool {
        self.range.inside(value).is_some_and(|value| self.entries.is(value, key))
    }

    #[inline]
    fn prefetch(&self, value: u32) {
        if let Some(value) = self.range.inside(value) {
            self.entries.prefetch(value);
        }
    }
}

impl<T> Sharded<T> {
    /// The views of `views` workers (1 to 2^16) of an empty table. Each may use the values from 0 to
    /// 2^32 / `views` - 1.
    pub fn split(table: T, views: usize) -> Vec<Sharded<T>> {
        let views = views.clamp(1, 1 << 16);
        let span = (1u64 << 32) / views as u64;
        let table = Arc::new(table);
        let range = |view: usize| Range { base: (view as u64 * span) as u32, last: (span - 1) as u32 };
        (0..views).map(|view| Sharded { table: table.clone(), range: range(view), views, len: 0 }).collect()
    }

    /// The view of a single worker, who may use all values.
    pub fn whole(table: T) -> Sharded<T> {
        Sharded { table: Arc::new(table), range: Range { base: 0, last: u32::MAX }, views: 1, len: 0 }
    }

    /// The table behind all views.
    pub fn table(&self) -> &T {
        &self.table
    }

    /// The table, alone; `None` while there are other views of it.
    pub fn table_mut(&mut self) -> Option<&mut T> {
        Arc::get_mut(&mut self.table)
    }
}

impl<K, T: Lookup<K>> Lookup<K> for Sharded<T> {
    #[inline]
    fn find<E: Entries<K>>(&self, key: &K, entries: &E) -> Option<u32> {
        let found = self.table.find(key, &OwnEntries { entries, range: self.range })?;
        self.range.inside(found)
    }

    #[inline]
    fn find_burst<E: Entries<K>>(&self, keys: &[K], entries: &E, out: &mut [Option<u32>]) {
        self.table.find_burst(keys, &OwnEntries { entries, range: self.range }, out);
        for found in out.iter_mut().take(keys.len()) {
            *found = found.and_then(|value| self.range.inside(value));
        }
    }
}

/// Values beyond a view's range are refused: insertion says [`Full`], the others that there is no such entry.
impl<K, T: SharedIndex<K>> Table<K> for Sharded<T> {
    fn name(&self) -> &'static str {
        self.table.name()
    }

    /// This view's share of what the table is made for. A view may use more as long as others use less.
    fn capacity(&self) -> usize {
        self.table.capacity() / self.views
    }

    /// This view's entries.
    fn len(&self) -> usize {
        self.len
    }

    /// This view's share of the table's bytes.
    fn bytes(&self) -> usize {
        self.table.bytes() / self.views
    }

    fn insert(&mut self, key: &K, value: u32) -> Result<(), Full> {
        self.table.insert(key, self.range.outside(value).ok_or(Full)?)?;
        self.len += 1;
        Ok(())
    }

    fn insert_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let wanted = keys.len().min(values.len());
            let added = match self.range.all_outside(&values[..wanted]) {
                Some(outside) => {
                    let added = self.table.insert_burst(&keys[..wanted], &outside[..wanted]);
                    self.len += added;
                    added
                }
                None => keys.iter().zip(values).take_while(|(key, value)| self.insert(key, **value).is_ok()).count(),
            };
            count += added;
            if added < wanted {
                break;
            }
        }
        count
    }

    fn remove(&mut self, key: &K, value: u32) -> bool {
        let removed = self.range.outside(value).is_some_and(|value| self.table.remove(key, value));
        self.len -= usize::from(removed);
        removed
    }

    fn remove_burst(&mut self, keys: &[K], values: &[u32]) -> usize {
        let mut count = 0;
        for (keys, values) in keys.chunks(BURST).zip(values.chunks(BURST)) {
            let wanted = keys.len().min(values.len());
            count += match self.range.all_outside(&values[..wanted]) {
                Some(outside) => {
                    let removed = self.table.remove_burst(&keys[..wanted], &outside[..wanted]);
                    self.len -= removed;
                    removed
                }
                None => keys.iter().zip(values).filter(|(key, value)| self.remove(key, **value)).count(),
            };
        }
        count
    }

    fn replace(&mut self, key: &K, old: u32, new: u32) -> bool {
        match (self.range.outside(old), self.range.outside(new)) {
            (Some(old), Some(new)) => self.table.replace(key, old, new),
            _ => false,
        }
    }

    fn replace_burst(&mut self, keys: &[K], old: &[u32], new: &[u32]) -> usize {
        let mut count = 0;
        for ((keys, old), new) in keys.chunks(BURST).zip(old.chunks(BURST)).zip(new.chunks(BURST)) {
            let wanted = keys.len().min(old.len()).min(new.len());
            count += match (self.range.all_outside(&old[..wanted]), self.range.all_outside(&new[..wanted])) {
                (Some(old), Some(new)) => self.table.replace_burst(&keys[..wanted], &old[..wanted], &new[..wanted]),
                _ => {
                    let all = keys.iter().zip(old).zip(new);
                    all.filter(|((key, old), new)| self.replace(key, **old, **new)).count()
                }
            };
        }
        count
    }

    /// Goes through the whole table, others' entries too, and shows this view's.
    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        let range = self.range;
        self.table.scan(from, &mut |value| {
            if let Some(value) = range.inside(value) {
                visit(value);
            }
        })
    }
}
