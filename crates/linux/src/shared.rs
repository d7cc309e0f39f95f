//! Connections that outlive their process: tables in files of a memory file system, one for layer 4 and one for the
//! connections of HTTP and TLS services. A third one has the clients of limits.
//!
//! The file has one page of header (what it is, for whom, with what steering key) and then, for each worker, a region of
//! slots. It is made whole under another name and then renamed, so that there is always either the old table or the new
//! one. Pages come into being when they are first touched.
//!
//! Nothing in it is used unchecked: its owner, mode and length, the header's checksum, the layout of a
//! connection, the boot, and, on adoption, every entry. [`SharedTable::open`] refuses what it cannot use with a reason.
//!
//! # What can still end the process
//! A page of the file that the file system has no room for ends the process when it is touched (SIGBUS). Making a table
//! fails unless there is room for all of it, but nothing keeps others from filling the file system later, or the memory
//! limit of a control group from being reached. Only the file's owner can shorten it under our eyes.
//!
//! # Not
//! A lock: who may use a table is settled by the instance's lock.

mod file;
mod header;
mod limits;
mod spliced;
#[cfg(test)]
mod tests;

pub use file::{OpenedTable, remove};
pub use header::{Content, INSTANCE_MAX, TableHeader};
pub use limits::limit_table;
pub use spliced::SplicedTable;

use anyhow::{Context, Result, ensure};
use file::{SharedFile, check_room};
use hairpin_core::l4::connection::{Connection, Flags, State};
use hairpin_core::table::slab::{Slab, SlabView, Slot, slots_at};
use std::path::{Path, PathBuf};

/// The default directory of tables.
pub const DIRECTORY: &str = "/dev/shm";

/// The file of an instance's table in `directory`.
pub fn path(directory: &Path, instance: &str, content: Content) -> PathBuf {
    directory.join(format!("hairpin-{instance}.{}", content.extension()))
}

/// Entries that had no room in a rebuilt table, or were invalid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdoptionLosses {
    /// Established connections.
    pub established: u64,
    /// Others, Pass entries and connections on their way out among them.
    pub others: u64,
    /// Entries that made no sense.
    pub invalid: u64,
}

/// An instance's connection table of layer 4, mapped.
#[derive(Debug)]
pub struct SharedTable {
    file: SharedFile,
    views: Option<Vec<SlabView<Connection>>>,
}

impl SharedTable {
    /// Makes an empty table at `path`, in the place of whatever is there.
    ///
    /// # Errors
    /// There is no room for it, or it cannot be made; what was there stays.
    pub fn create(path: &Path, header: &TableHeader) -> Result<SharedTable> {
        Ok(SharedTable::new(SharedFile::create(path, header, 0)?))
    }

    /// Opens the table at `path` to adopt it.
    ///
    /// # Errors
    /// The message of the system when it cannot even be read.
    pub fn open(path: &Path) -> Result<OpenedTable<SharedTable>> {
        Ok(SharedFile::open(path, Content::Connections)?.map(SharedTable::new))
    }

    fn new(file: SharedFile) -> SharedTable {
        SharedTable { file, views: None }
    }

    /// The parameters it was made with.
    pub fn header(&self) -> &TableHeader {
        self.file.header()
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    /// Bytes of memory it takes now; untouched parts take none.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn bytes_used(&self) -> std::io::Result<u64> {
        self.file.bytes_used()
    }

    /// Bytes of memory that it may still come to take.
    pub(crate) fn bytes_untouched(&self) -> Result<u64> {
        let about = || format!("cannot see how large the connection table {} is", self.path().display());
        let used = self.bytes_used().with_context(about)?;
        Ok((self.header().file_bytes()? as u64).saturating_sub(used))
    }

    /// Whether the last process that used it ended in order; `false` for one that is in use.
    pub fn is_clean(&self) -> bool {
        self.file.is_clean()
    }

    /// Says whether it is in use (`false`: before the first worker gets to work) or left in order (`true`: after the
    /// last one has ended).
    pub fn set_clean(&self, clean: bool) {
        self.file.set_clean(clean);
    }

    /// The workers' regions, in order, to make workers of (`Worker::new`, `Worker::adopt`). Empty from the second time
    /// on: a region has one owner.
    pub fn regions(&mut self) -> Vec<&'static mut [Slot<Connection>]> {
        if !self.file.give_out() {
            return Vec::new();
        }
        // SAFETY: it is the first time, and the mapping will never be unmapped.
        unsafe { self.slices() }
    }

    /// # Safety
    /// No other code uses the regions as long as the slices are in use, and the mapping outlives them.
    unsafe fn slices(&self) -> Vec<&'static mut [Slot<Connection>]> {
        let count = self.header().connections as usize;
        let region = |worker: u16| {
            // SAFETY: a region has as many slots as the header says; the file's bytes have been written or are zeroes;
            // regions do not overlap; and the caller promises the rest.
            unsafe { slots_at(self.file.region(worker).0.as_ptr().cast(), count) }
        };
        (0..self.header().workers).map(region).collect()
    }

    /// Views of the workers' regions, in order, for listing connections while they are in use. They go by another
    /// mapping, which may only be read.
    ///
    /// # Errors
    /// The file cannot be mapped once more.
    pub fn views(&mut self) -> Result<Vec<SlabView<Connection>>> {
        if let Some(views) = &self.views {
            return Ok(views.clone());
        }
        let count = self.header().connections as usize;
        // SAFETY: as in `slices`; the mapping is never unmapped, and no code can write through it.
        let view = |start: std::ptr::NonNull<u8>| unsafe { SlabView::at(start.cast(), count) };
        let views: Vec<SlabView<Connection>> = self.file.map_again()?.into_iter().map(view).collect();
        Ok(self.views.insert(views).clone())
    }

    /// A new table at `path` with the connections of `old`, dealt out to the workers that `worker_of` names (one that is
    /// out of range counts as having no room), for when the number of workers or of connections changes. It takes the
    /// place of the old one at `path` in one step, at the end.
    ///
    /// Entries that do not fit are dropped and counted: established connections go first, then other live ones, then those on
    /// their way out (their rules are found without them). What the engine holds of dropped ones has no owner.
    ///
    /// # Errors
    /// As [`SharedTable::create`]; the old one stays as it was. Also if `old` is in use.
    pub fn rebuild(
        old: SharedTable,
        path: &Path,
        header: &TableHeader,
        worker_of: impl Fn(&Connection) -> u16,
    ) -> Result<(SharedTable, AdoptionLosses)> {
        ensure!(!old.file.is_given_out(), "the connection table {} is in use", old.path().display());
        let used = old.bytes_used().unwrap_or(0);
        // Both are there for a moment, as far as they are touched; then the old one makes room.
        check_room(path, header.content, used, 0)?;
        let freed = if old.path() == path { used } else { 0 };
        check_room(path, header.content, header.file_bytes()? as u64, freed)?;
        let table = SharedTable::new(SharedFile::make(path, header)?);
        // SAFETY: no other code has them, and they are dropped before the tables are.
        let (from, to) = unsafe { (old.slices(), table.slices()) };
        let dropped = deal(from, to, worker_of);
        table.file.take_place()?;
        Ok((table, dropped))
    }
}

/// Copies connections, the most important ones first.
fn deal(
    from: Vec<&'static mut [Slot<Connection>]>,
    to: Vec<&'static mut [Slot<Connection>]>,
    worker_of: impl Fn(&Connection) -> u16,
) -> AdoptionLosses {
    let mut dropped = AdoptionLosses::default();
    let mut from: Vec<Slab<Connection>> = from
        .into_iter()
        .map(|region| {
            let (slab, invalid) = Slab::adopt(region);
            dropped.invalid += invalid as u64;
            slab
        })
        .collect();
    let mut to: Vec<Slab<Connection>> = to.into_iter().map(Slab::new).collect();
    for wanted in [Rank::Established, Rank::Live, Rank::Going] {
        for slab in &mut from {
            for connection in slab.positions().map(|position| slab.at(position)) {
                if Rank::of(connection) == wanted {
                    let place = to.get_mut(usize::from(worker_of(connection)));
                    if place.and_then(|slab| slab.insert(*connection)).is_none() {
                        match wanted {
                            Rank::Established => dropped.established += 1,
                            Rank::Live | Rank::Going => dropped.others += 1,
                        }
                    }
                }
            }
        }
    }
    dropped
}

/// How much a connection matters when there is not room for all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rank {
    Established,
    Live,
    Going,
}

impl Rank {
    fn of(connection: &Connection) -> Rank {
        match connection.state {
            _ if connection.flags.has(Flags::PENDING_REMOVAL) => Rank::Going,
            State::Pass => Rank::Going,
            state if state.is_established() => Rank::Established,
            _ => Rank::Live,
        }
    }
}
