//! Connections of HTTP and TLS services in a file of their own, so that one table can be given up and the other kept.

use super::SharedTable;
use super::file::{OpenedTable, SharedFile, check_room, free_bytes};
use super::header::{Content, TableHeader};
use anyhow::{Result, ensure};
use hairpin_core::flow::Steering;
use hairpin_core::l7::splice::{self, DealtSplices, SplicedMemory};
use hairpin_core::table::region::Region;
use hairpin_core::time::Time;
use std::path::Path;

/// A worker has room for so many connections at least, where it can have them.
const LEAST: u32 = 64;

/// An instance's connections of HTTP and TLS services, mapped.
#[derive(Debug)]
pub struct SplicedTable {
    file: SharedFile,
}

impl SplicedTable {
    /// Makes an empty table at `path`, in the place of whatever is there. Memory that `beside` has not touched yet stays
    /// free for it.
    ///
    /// # Errors
    /// There is no room for it, or it cannot be made; what was there stays.
    pub fn create(path: &Path, header: &TableHeader, beside: &SharedTable) -> Result<SplicedTable> {
        Ok(SplicedTable { file: SharedFile::create(path, header, beside.bytes_untouched()?)? })
    }

    /// How many connections a worker may have, so that the table takes half of the room at `path` at most, beside what
    /// another has not touched yet; no more than the header says. All that it says if the file system has no limit.
    ///
    /// # Errors
    /// The room is not known.
    pub fn fitting(path: &Path, header: &TableHeader, beside: &SharedTable) -> Result<u32> {
        let Some(free) = free_bytes(path, header.content)? else { return Ok(header.connections) };
        let room = free.saturating_sub(beside.bytes_untouched()?) / 2;
        let fits = |connections: u32| {
            let header = TableHeader { connections, ..header.clone() };
            header.file_bytes().is_ok_and(|bytes| bytes as u64 <= room)
        };
        let mut connections = header.connections;
        while connections > LEAST && !fits(connections) {
            connections /= 2;
        }
        Ok(connections)
    }

    /// Opens the table at `path` to adopt it.
    ///
    /// # Errors
    /// The message of the system when it cannot even be read.
    pub fn open(path: &Path) -> Result<OpenedTable<SplicedTable>> {
        Ok(SharedFile::open(path, Content::Splices)?.map(|file| SplicedTable { file }))
    }

    /// A new table at `path` with the connections of `old`, dealt out to the workers of `steering`, for when the number of
    /// workers or of connections changes. It takes the place of the old one at `path` in one step, at the end.
    ///
    /// # Errors
    /// As [`SplicedTable::create`]; the old one stays. Also if `old` is in use.
    pub fn rebuild(
        old: SplicedTable,
        path: &Path,
        header: &TableHeader,
        beside: &SharedTable,
        (now, steering): (Time, &Steering),
    ) -> Result<(SplicedTable, DealtSplices)> {
        ensure!(!old.file.is_given_out(), "the {} {} is in use", header.content.name(), old.path().display());
        let used = old.bytes_used().unwrap_or(0);
        // Both are there for a moment, as far as they are touched; then the old one makes room.
        check_room(path, header.content, used, 0)?;
        let freed = if old.path() == path { used } else { 0 };
        let wanted = (header.file_bytes()? as u64).saturating_add(beside.bytes_untouched()?);
        check_room(path, header.content, wanted, freed)?;
        let table = SplicedTable { file: SharedFile::make(path, header)? };
        // SAFETY: no other code has them, and all are dropped before the tables are.
        let (from, to) = unsafe { (old.memory(), table.memory()) };
        let (to, dealt) = splice::deal(now, from, to, steering);
        drop(to);
        table.file.take_place()?;
        Ok((table, dealt))
    }

    /// How many connections each backend has, by its number, before they are adopted.
    ///
    /// # Errors
    /// The table is in use.
    pub fn connections_by_backend(&self) -> Result<Vec<u64>> {
        ensure!(!self.file.is_given_out(), "the {} is in use", self.header().content.name());
        let mut sum = Vec::new();
        // SAFETY: no other code has them, and each is dropped here.
        for memory in unsafe { self.memory() } {
            let (memory, counts) = memory.connections_by_backend();
            drop(memory);
            sum.resize(counts.len().max(sum.len()), 0);
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        }
        Ok(sum)
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

    /// The workers' regions, in order. Empty from the second time on: a region has one owner.
    pub fn regions(&mut self) -> Vec<SplicedMemory> {
        if !self.file.give_out() {
            return Vec::new();
        }
        // SAFETY: it is the first time, and the mapping is never unmapped from now on.
        unsafe { self.memory() }
    }

    /// # Safety
    /// No other code uses the regions as long as they are in use, and the mapping outlives them.
    unsafe fn memory(&self) -> Vec<SplicedMemory> {
        let connections = self.header().connections;
        let region = |worker: u16| {
            let (start, bytes) = self.file.region(worker);
            // SAFETY: regions do not overlap, and are aligned to a page; the file's bytes have been written or are zeroes; and
            // the caller promises the rest.
            SplicedMemory::new(unsafe { Region::at(start, bytes) }, connections)
        };
        (0..self.header().workers).map(region).collect()
    }
}
