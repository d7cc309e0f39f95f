//! The connection table in a file of a memory file system: connections that outlive their process.
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

mod header;
#[cfg(test)]
mod tests;

pub use header::{INSTANCE_MAX, TableHeader};

use crate::memory::Mapping;
use anyhow::{Context, Result, bail, ensure};
use hairpin_core::l4::connection::{Connection, Flags, State};
use hairpin_core::table::slab::{Slab, SlabView, Slot, slots_at};
use header::{CLEAN_AT, FIXED_BYTES, HEADER_BYTES, HeaderRefusal};
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The default directory of tables.
pub const DIRECTORY: &str = "/dev/shm";

/// The file of an instance's table in `directory`.
pub fn path(directory: &Path, instance: &str) -> PathBuf {
    directory.join(format!("hairpin-{instance}.connections"))
}

/// Removes the table at `path`, and what an interrupted [`SharedTable::create`] may have left; whether there was one.
///
/// # Errors
/// An error of the file system; a missing file is none.
pub fn remove(path: &Path) -> Result<bool> {
    remove_file(&unfinished(path))?;
    remove_file(path)
}

fn remove_file(path: &Path) -> Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).with_context(|| format!("cannot remove {}", path.display())),
    }
}

/// The name under which a table is made.
fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// The state of an earlier process's table.
#[derive(Debug)]
pub enum OpenedTable {
    /// A table to adopt.
    Table(SharedTable),
    /// Nothing, or a table from before the machine was started, which is nothing as well. A new one takes its place.
    Absent,
    /// Something that cannot be adopted: why, and what the operator can do about it.
    Incompatible(String),
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

/// An instance's connection table, mapped.
#[derive(Debug)]
pub struct SharedTable {
    header: TableHeader,
    path: PathBuf,
    file: File,
    mapping: ManuallyDrop<Mapping>,
    /// The mapping has to last as long as the process, because there are references into it.
    given_out: bool,
    views: Option<Vec<SlabView<Connection>>>,
}

impl SharedTable {
    /// Makes an empty table at `path`, in the place of whatever is there.
    ///
    /// # Errors
    /// There is no room for it, or it cannot be made; what was there stays.
    pub fn create(path: &Path, header: &TableHeader) -> Result<SharedTable> {
        let old = std::fs::symlink_metadata(path).map_or(0, |old| old.blocks() * 512);
        check_room(path, header.file_bytes()? as u64, old)?;
        let table = SharedTable::make(path, header)?;
        table.take_place()?;
        Ok(table)
    }

    /// Opens the table at `path` to adopt it.
    ///
    /// # Errors
    /// The message of the system when it cannot even be read.
    pub fn open(path: &Path) -> Result<OpenedTable> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENOENT) => Ok(OpenedTable::Absent),
                    Some(libc::ELOOP) => Ok(incompatible(path, "it is a symbolic link")),
                    Some(libc::EISDIR | libc::ENXIO) => Ok(incompatible(path, "it is not a file")),
                    _ => Err(error).with_context(|| format!("cannot open the connection table {}", path.display())),
                };
            }
        };
        match SharedTable::examine(path, &file)? {
            Ok(header) => {
                let about = || format!("cannot map the connection table {}", path.display());
                let mapping = Mapping::of_file(&file, header.file_bytes()?, true).with_context(about)?;
                Ok(OpenedTable::Table(SharedTable::new(header, path, file, mapping)))
            }
            Err(HeaderRefusal::OtherBoot) => Ok(OpenedTable::Absent),
            Err(HeaderRefusal::Unusable(why)) => Ok(incompatible(path, &why)),
        }
    }

    /// Looks at a file before anything of it is mapped.
    fn examine(path: &Path, file: &File) -> Result<std::result::Result<TableHeader, HeaderRefusal>> {
        let about = || format!("cannot read the connection table {}", path.display());
        let unusable = |why: String| Ok(Err(HeaderRefusal::Unusable(why)));
        let facts = file.metadata().with_context(about)?;
        // SAFETY: a plain system call.
        let ours = unsafe { libc::geteuid() };
        if !facts.is_file() {
            return unusable("it is not a file".into());
        }
        if facts.uid() != ours {
            return unusable(format!("it belongs to user {}, not {ours}", facts.uid()));
        }
        if facts.mode() & 0o7777 != 0o600 {
            return unusable(format!("its mode is {:o}, not 600: others could have written it", facts.mode() & 0o7777));
        }
        if facts.len() < HEADER_BYTES as u64 {
            return unusable(format!("it is cut off after {} bytes", facts.len()));
        }
        let mut bytes = [0; FIXED_BYTES];
        file.read_exact_at(&mut bytes, 0).with_context(about)?;
        let header = match TableHeader::decode(&bytes, &header::boot()?) {
            Ok(header) => header,
            Err(refusal) => return Ok(Err(refusal)),
        };
        match header.file_bytes() {
            Ok(bytes) if bytes as u64 == facts.len() => Ok(Ok(header)),
            Ok(bytes) => unusable(format!("it has {} bytes and should have {bytes}", facts.len())),
            Err(error) => unusable(format!("its header makes no sense: {error:#}")),
        }
    }

    /// Makes a table under another name than `path`, in the place of what an interrupted attempt may have left.
    fn make(path: &Path, header: &TableHeader) -> Result<SharedTable> {
        let (name, bytes) = (unfinished(path), header.file_bytes()?);
        let about = || format!("cannot make the connection table {}", name.display());
        remove_file(&name)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&name).with_context(about)?;
        let filled = || {
            // Whatever the umask is.
            file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
            file.set_len(bytes as u64)?;
            file.write_all_at(&header.encode(&header::boot().map_err(std::io::Error::other)?), 0)?;
            Mapping::of_file(&file, bytes, true)
        };
        match filled() {
            Ok(mapping) => Ok(SharedTable::new(header.clone(), path, file, mapping)),
            Err(error) => {
                let _ = std::fs::remove_file(&name);
                Err(error).with_context(about)
            }
        }
    }

    /// Gives a table that is whole its name.
    fn take_place(&self) -> Result<()> {
        let name = unfinished(&self.path);
        std::fs::rename(&name, &self.path).with_context(|| {
            let _ = std::fs::remove_file(&name);
            format!("cannot put the connection table at {}", self.path.display())
        })
    }

    fn new(header: TableHeader, path: &Path, file: File, mapping: Mapping) -> SharedTable {
        let mapping = ManuallyDrop::new(mapping);
        SharedTable { header, path: path.into(), file, mapping, given_out: false, views: None }
    }

    /// The parameters it was made with.
    pub fn header(&self) -> &TableHeader {
        &self.header
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of memory it takes now; untouched parts take none.
    ///
    /// # Errors
    /// The error of the file system.
    pub fn bytes_used(&self) -> std::io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    /// Whether the last process that used it ended in order; `false` for one that is in use.
    pub fn is_clean(&self) -> bool {
        self.clean_word().load(Ordering::Acquire) != 0
    }

    /// Says whether it is in use (`false`: before the first worker gets to work) or left in order (`true`: after the
    /// last one has ended).
    pub fn set_clean(&self, clean: bool) {
        self.clean_word().store(u64::from(clean), Ordering::Release);
    }

    fn clean_word(&self) -> &AtomicU64 {
        // SAFETY: within the header's page, aligned, and only ever used as an atomic.
        unsafe { &*self.mapping.start().as_ptr().add(CLEAN_AT).cast() }
    }

    /// The workers' regions, in order, to make workers of (`Worker::new`, `Worker::adopt`). Empty from the second time
    /// on: a region has one owner.
    pub fn regions(&mut self) -> Vec<&'static mut [Slot<Connection>]> {
        if std::mem::replace(&mut self.given_out, true) {
            return Vec::new();
        }
        // SAFETY: it is the first time, and the mapping will never be unmapped.
        unsafe { self.slices() }
    }

    /// # Safety
    /// No other code uses the regions as long as the slices are in use, and the mapping outlives them.
    unsafe fn slices(&self) -> Vec<&'static mut [Slot<Connection>]> {
        let start = first_slot(&self.mapping);
        let count = self.header.slots_per_worker as usize;
        let region = |worker: u16| {
            // SAFETY: the header's numbers are what the mapping's length was worked out from; the file's bytes have
            // been written or are zeroes; regions do not overlap; and the caller promises the rest.
            unsafe { slots_at(start.as_ptr().add(usize::from(worker) * count), count) }
        };
        (0..self.header.workers).map(region).collect()
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
        let about = || format!("cannot map the connection table {} for reading", self.path.display());
        let mapping = Mapping::of_file(&self.file, self.header.file_bytes()?, false).with_context(about)?;
        let start = first_slot(&ManuallyDrop::new(mapping));
        let count = self.header.slots_per_worker as usize;
        let view = |worker: u16| {
            // SAFETY: as in `slices`; the mapping is never unmapped, and no code can write through it.
            unsafe { SlabView::at(start.add(usize::from(worker) * count), count) }
        };
        let views: Vec<SlabView<Connection>> = (0..self.header.workers).map(view).collect();
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
        ensure!(!old.given_out, "the connection table {} is in use", old.path.display());
        let used = old.bytes_used().unwrap_or(0);
        // Both are there for a moment, as far as they are touched; then the old one makes room.
        check_room(path, used, 0)?;
        check_room(path, header.file_bytes()? as u64, if old.path == path { used } else { 0 })?;
        let table = SharedTable::make(path, header)?;
        // SAFETY: no other code has them, and they are dropped before the tables are.
        let (from, to) = unsafe { (old.slices(), table.slices()) };
        let dropped = deal(from, to, worker_of);
        table.take_place()?;
        Ok((table, dropped))
    }
}

impl Drop for SharedTable {
    fn drop(&mut self) {
        if !self.given_out {
            // SAFETY: once, at the end; no code has a reference into it.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}

/// The slots begin behind the header.
fn first_slot(mapping: &Mapping) -> NonNull<Slot<Connection>> {
    // SAFETY: a table's mapping is longer than its header.
    unsafe { mapping.start().add(HEADER_BYTES).cast() }
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

fn incompatible(path: &Path, why: &str) -> OpenedTable {
    OpenedTable::Incompatible(format!(
        "the connection table {} cannot be adopted: {why}. Remove what the last process left with `hairpin stop \
         --flush`, or start with `--discard`; connections that are only there end either way",
        path.display()
    ))
}

/// Fails unless the file system of `path` has room for `bytes`; `freed` bytes will become free there.
fn check_room(path: &Path, bytes: u64, freed: u64) -> Result<()> {
    let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let about = || format!("cannot use the directory {} for the connection table", directory.display());
    let opened = File::open(directory).with_context(about)?;
    // SAFETY: all zero is a valid value: integers.
    let mut facts: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and room for the answer.
    if unsafe { libc::fstatvfs(opened.as_raw_fd(), &mut facts) } != 0 {
        return Err(std::io::Error::last_os_error()).with_context(about);
    }
    let free = facts.f_bavail.saturating_mul(facts.f_frsize).saturating_add(freed);
    // A memory file system without a limit says that it has no blocks at all.
    if facts.f_blocks != 0 && free < bytes {
        const MIB: u64 = 1 << 20;
        bail!(
            "the connection table needs {} MiB and {} has {} MiB free: lower `limits.connections_max`, or make it larger \
             (`mount -o remount,size=...`)",
            bytes.div_ceil(MIB),
            directory.display(),
            free / MIB
        );
    }
    Ok(())
}
