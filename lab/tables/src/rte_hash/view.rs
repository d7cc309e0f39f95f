//! A worker's view of an rte_hash that all workers share.

use super::error::Error;
use super::shared::{HANDLES_MAX, TableReader};
use super::{BURST, SharedRteHash};
use hairpin_core::flow::FlowKey;
use hairpin_core::table::sharded::Sharded;
use hairpin_core::table::{Entries, Full, Lookup, Table};

impl SharedRteHash<FlowKey> {
    /// Views of `workers` workers, and no other way in.
    ///
    /// # Errors
    /// [`Error::TooManyHandles`] for more than 64 views of a lock-free table.
    pub(crate) fn into_views(mut self, workers: usize) -> Result<Vec<TableView>, Error> {
        let qsbr = self.raw.qsbr;
        self.viewed = true;
        // Each view has its table, so that readers signed on before an error leave before the table goes.
        let mut views: Vec<TableView> =
            Sharded::split(self, workers).into_iter().map(|table| TableView { reader: None, table }).collect();
        let Some(qsbr) = qsbr else { return Ok(views) };
        if views.len() > HANDLES_MAX {
            return Err(Error::TooManyHandles);
        }
        for (number, view) in (0..).zip(&mut views) {
            // SAFETY: the view keeps the table, and no other reader has this number.
            let reader = unsafe { TableReader::register(qsbr, number) }?;
            reader.leave();
            view.reader = Some(reader);
        }
        Ok(views)
    }
}

/// A worker's view of a table that all workers share.
///
/// For a lock-free table it has a reader's number of its own, and is within the table during calls only: so it may rest as
/// long as it wants, and signing on and off are writes to a cache line that no other reader has.
pub struct TableView {
    // Dropped in this order: the reader leaves before the table may go.
    reader: Option<TableReader>,
    table: Sharded<SharedRteHash<FlowKey>>,
}

impl TableView {
    #[inline]
    fn within<R>(&self, call: impl FnOnce(&Sharded<SharedRteHash<FlowKey>>) -> R) -> R {
        let _within = self.reader.as_ref().map(Within::new);
        call(&self.table)
    }

    #[inline]
    fn within_mut<R>(&mut self, call: impl FnOnce(&mut Sharded<SharedRteHash<FlowKey>>) -> R) -> R {
        let _within = self.reader.as_ref().map(Within::new);
        call(&mut self.table)
    }
}

/// Between entering and leaving, also when a call panics.
struct Within<'a>(&'a TableReader);

impl<'a> Within<'a> {
    #[inline]
    fn new(reader: &'a TableReader) -> Within<'a> {
        reader.enter();
        Within(reader)
    }
}

impl Drop for Within<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl Lookup<FlowKey> for TableView {
    fn find<E: Entries<FlowKey>>(&self, key: &FlowKey, entries: &E) -> Option<u32> {
        self.within(|table| table.find(key, entries))
    }

    fn find_burst<E: Entries<FlowKey>>(&self, keys: &[FlowKey], entries: &E, out: &mut [Option<u32>]) {
        for (keys, out) in keys.chunks(BURST).zip(out.chunks_mut(BURST)) {
            self.within(|table| table.find_burst(keys, entries, out));
        }
    }
}

/// Insertion is not within the table: it waits for positions that readers have left, and would wait for itself.
impl Table<FlowKey> for TableView {
    fn name(&self) -> &'static str {
        Table::<FlowKey>::name(&self.table)
    }

    fn capacity(&self) -> usize {
        Table::<FlowKey>::capacity(&self.table)
    }

    fn len(&self) -> usize {
        Table::<FlowKey>::len(&self.table)
    }

    fn bytes(&self) -> usize {
        Table::<FlowKey>::bytes(&self.table)
    }

    fn insert(&mut self, key: &FlowKey, value: u32) -> Result<(), Full> {
        self.table.insert(key, value)
    }

    fn insert_burst(&mut self, keys: &[FlowKey], values: &[u32]) -> usize {
        self.table.insert_burst(keys, values)
    }

    fn remove(&mut self, key: &FlowKey, value: u32) -> bool {
        self.within_mut(|table| table.remove(key, value))
    }

    fn remove_burst(&mut self, keys: &[FlowKey], values: &[u32]) -> usize {
        self.within_mut(|table| table.remove_burst(keys, values))
    }

    fn replace(&mut self, key: &FlowKey, old: u32, new: u32) -> bool {
        self.within_mut(|table| table.replace(key, old, new))
    }

    fn scan(&self, from: u32, visit: &mut dyn FnMut(u32)) -> Option<u32> {
        self.within(|table| Table::<FlowKey>::scan(table, from, visit))
    }
}
