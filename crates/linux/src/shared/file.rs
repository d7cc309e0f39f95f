//! A file of a memory file system, with a region for each worker behind a header: memory that outlives its process.

use super::header::{CLEAN_AT, Content, FIXED_BYTES, HEADER_BYTES, HeaderRefusal, TableHeader, boot};
use crate::memory::Mapping;
use anyhow::{Context, Result, bail};
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::mem::ManuallyDrop;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// The state of an earlier process's table.
#[derive(Debug)]
pub enum OpenedTable<T> {
    /// A table to adopt.
    Table(T),
    /// Nothing, or a table from before the machine was started, which is nothing as well. A new one takes its place.
    Absent,
    /// A file that cannot be adopted, and the reason.
    Incompatible(String),
}

impl<T> OpenedTable<T> {
    /// Applies `change` to the table, if there is one to adopt.
    pub(super) fn map<U>(self, change: impl FnOnce(T) -> U) -> OpenedTable<U> {
        match self {
            OpenedTable::Table(table) => OpenedTable::Table(change(table)),
            OpenedTable::Absent => OpenedTable::Absent,
            OpenedTable::Incompatible(why) => OpenedTable::Incompatible(why),
        }
    }
}

/// An instance's file, mapped.
#[derive(Debug)]
pub(super) struct SharedFile {
    header: TableHeader,
    path: PathBuf,
    file: File,
    mapping: ManuallyDrop<Mapping>,
    /// The mapping has to last as long as the process, because there are references into it.
    given_out: bool,
}

impl SharedFile {
    /// Makes an empty table at `path`, in the place of whatever is there. `promised` bytes of the file
    /// system are others' to take.
    ///
    /// # Errors
    /// There is no room for it, or it cannot be made; what was there stays.
    pub(super) fn create(path: &Path, header: &TableHeader, promised: u64) -> Result<SharedFile> {
        let old = std::fs::symlink_metadata(path).map_or(0, |old| old.blocks() * 512);
        check_room(path, header.content, (header.file_bytes()? as u64).saturating_add(promised), old)?;
        let made = SharedFile::make(path, header)?;
        made.take_place()?;
        Ok(made)
    }

    /// Opens the table at `path` to adopt it.
    ///
    /// # Errors
    /// The message of the system when it cannot even be read.
    pub(super) fn open(path: &Path, content: Content) -> Result<OpenedTable<SharedFile>> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
        let file = match options.open(path) {
            Ok(file) => file,
            Err(error) => {
                return match error.raw_os_error() {
                    Some(libc::ENOENT) => Ok(OpenedTable::Absent),
                    Some(libc::ELOOP) => Ok(incompatible(path, content, "it is a symbolic link")),
                    Some(libc::EISDIR | libc::ENXIO) => Ok(incompatible(path, content, "it is not a file")),
                    _ => Err(error).with_context(|| format!("cannot open the {} {}", content.name(), path.display())),
                };
            }
        };
        match SharedFile::examine(path, content, &file)? {
            Ok(header) => {
                let about = || format!("cannot map the {} {}", content.name(), path.display());
                let mapping = Mapping::of_file(&file, header.file_bytes()?, true).with_context(about)?;
                Ok(OpenedTable::Table(SharedFile::new(header, path, file, mapping)))
            }
            Err(HeaderRefusal::OtherBoot) => Ok(OpenedTable::Absent),
            Err(HeaderRefusal::Unusable(why)) => Ok(incompatible(path, content, &why)),
        }
    }

    /// Looks at a file before anything of it is mapped.
    fn examine(path: &Path, content: Content, file: &File) -> Result<std::result::Result<TableHeader, HeaderRefusal>> {
        let about = || format!("cannot read the {} {}", content.name(), path.display());
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
        let header = match TableHeader::decode(content, &bytes, &boot()?) {
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
    pub(super) fn make(path: &Path, header: &TableHeader) -> Result<SharedFile> {
        let (name, bytes) = (unfinished(path), header.file_bytes()?);
        let about = || format!("cannot make the {} {}", header.content.name(), name.display());
        remove_file(&name)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(&name).with_context(about)?;
        let filled = || {
            // Whatever the umask is.
            file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
            file.set_len(bytes as u64)?;
            file.write_all_at(&header.encode(&boot().map_err(std::io::Error::other)?), 0)?;
            Mapping::of_file(&file, bytes, true)
        };
        match filled() {
            Ok(mapping) => Ok(SharedFile::new(header.clone(), path, file, mapping)),
            Err(error) => {
                let _ = std::fs::remove_file(&name);
                Err(error).with_context(about)
            }
        }
    }

    /// Gives a table that is whole its name.
    pub(super) fn take_place(&self) -> Result<()> {
        let name = unfinished(&self.path);
        std::fs::rename(&name, &self.path).with_context(|| {
            let _ = std::fs::remove_file(&name);
            format!("cannot put the {} at {}", self.header.content.name(), self.path.display())
        })
    }

    fn new(header: TableHeader, path: &Path, file: File, mapping: Mapping) -> SharedFile {
        let mapping = ManuallyDrop::new(mapping);
        SharedFile { header, path: path.into(), file, mapping, given_out: false }
    }

    /// The parameters it was made with.
    pub(super) fn header(&self) -> &TableHeader {
        &self.header
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of memory it takes now; untouched parts take none.
    ///
    /// # Errors
    /// The error of the file system.
    pub(super) fn bytes_used(&self) -> std::io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    /// Whether the last process that used it ended in order; `false` for one that is in use.
    pub(super) fn is_clean(&self) -> bool {
        self.clean_word().load(Ordering::Acquire) != 0
    }

    /// Says whether it is in use (`false`: before the first worker gets to work) or left in order (`true`: after the
    /// last one has ended).
    pub(super) fn set_clean(&self, clean: bool) {
        self.clean_word().store(u64::from(clean), Ordering::Release);
    }

    fn clean_word(&self) -> &AtomicU64 {
        // SAFETY: within the header's page, aligned, and only ever used as an atomic.
        unsafe { &*self.mapping.start().as_ptr().add(CLEAN_AT).cast() }
    }

    /// Says that there are references into the mapping from now on; whether it is the first time.
    pub(super) fn give_out(&mut self) -> bool {
        !std::mem::replace(&mut self.given_out, true)
    }

    /// Whether it has done so.
    pub(super) fn is_given_out(&self) -> bool {
        self.given_out
    }

    /// A worker's region and its bytes.
    ///
    /// # Panics
    /// There is no such worker.
    pub(super) fn region(&self, worker: u16) -> (NonNull<u8>, usize) {
        region(&self.mapping, &self.header, worker)
    }

    /// Maps it once more, for as long as the process lasts, and only to be read: the start of each worker's region.
    pub(super) fn map_again(&self) -> Result<Vec<NonNull<u8>>> {
        let about = || format!("cannot map the {} {} for reading", self.header.content.name(), self.path.display());
        let mapping = Mapping::of_file(&self.file, self.header.file_bytes()?, false).with_context(about)?;
        let mapping = ManuallyDrop::new(mapping);
        Ok((0..self.header.workers).map(|worker| region(&mapping, &self.header, worker).0).collect())
    }
}

impl Drop for SharedFile {
    fn drop(&mut self) {
        if !self.given_out {
            // SAFETY: once, at the end; no code has a reference into it.
            unsafe { ManuallyDrop::drop(&mut self.mapping) };
        }
    }
}

/// A worker's region in a mapping of a file with this header.
fn region(mapping: &Mapping, header: &TableHeader, worker: u16) -> (NonNull<u8>, usize) {
    assert!(worker < header.workers, "there is no worker {worker}");
    let bytes = header.content.region_bytes(header.connections).unwrap_or(0);
    // SAFETY: the mapping has as many bytes as `TableHeader::file_bytes` says: the header and a region for each worker.
    (unsafe { mapping.start().add(HEADER_BYTES + usize::from(worker) * bytes) }, bytes)
}

/// Removes the table at `path`, and what an attempt to make one that was interrupted may have left; whether there was one.
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
pub(super) fn unfinished(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn incompatible<T>(path: &Path, content: Content, why: &str) -> OpenedTable<T> {
    OpenedTable::Incompatible(format!("the {} {} cannot be adopted: {why}", content.name(), path.display()))
}

/// The directory of a file.
fn directory(path: &Path) -> &Path {
    path.parent().filter(|directory| !directory.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Bytes that are free in the file system of `path`; `None`: it has no limit.
pub(super) fn free_bytes(path: &Path, content: Content) -> Result<Option<u64>> {
    let directory = directory(path);
    let about = || format!("cannot use the directory {} for the {}", directory.display(), content.name());
    let opened = File::open(directory).with_context(about)?;
    // SAFETY: all zero is a valid value: integers.
    let mut facts: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, and room for the answer.
    if unsafe { libc::fstatvfs(opened.as_raw_fd(), &mut facts) } != 0 {
        return Err(std::io::Error::last_os_error()).with_context(about);
    }
    // A memory file system without a limit says that it has no blocks at all.
    Ok((facts.f_blocks != 0).then(|| facts.f_bavail.saturating_mul(facts.f_frsize)))
}

/// Fails unless the file system of `path` has room for `bytes`; `freed` bytes will become free there.
pub(super) fn check_room(path: &Path, content: Content, bytes: u64, freed: u64) -> Result<()> {
    let Some(free) = free_bytes(path, content)?.map(|free| free.saturating_add(freed)) else { return Ok(()) };
    if free < bytes {
        const MIB: u64 = 1 << 20;
        bail!(
            "the {} needs {} MiB and {} has {} MiB free: lower `limits.{}`, or make it larger \
             (`mount -o remount,size=...`)",
            content.name(),
            bytes.div_ceil(MIB),
            directory(path).display(),
            free / MIB,
            content.limit()
        );
    }
    Ok(())
}
