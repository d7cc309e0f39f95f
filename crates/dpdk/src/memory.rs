//! Memory on large pages where they can be had, to be lent to DPDK.
//!
//! Without a reserve of hugepages EAL has only small ones (a memfd), on which a large table or pool is
//! slowed down by address translation.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::{fmt, io};

/// Bytes of a large page.
pub const LARGE: usize = 2 << 20;

/// The kind of pages that memory is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Reserved hugepages of 2 MiB (`vm.nr_hugepages`); enough were free.
    Huge,
    /// The kernel was asked for transparent huge pages, and gives them as far as it finds some.
    Transparent,
    /// Small ones: transparent huge pages are switched off.
    Small,
}

impl fmt::Display for Pages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pages::Huge => "reserved hugepages",
            Pages::Transparent => "transparent huge pages",
            Pages::Small => "small pages",
        })
    }
}

/// Anonymous memory, aligned to large pages. It reads as zeroes.
#[derive(Debug)]
pub struct Mapping {
    /// The address of the first byte.
    pub address: NonNull<c_void>,
    /// In bytes.
    pub length: usize,
    /// The kind of its pages.
    pub pages: Pages,
    /// It must not be unmapped.
    pub kept: bool,
}

// SAFETY: the mapping belongs to this value alone, and memory has no thread.
unsafe impl Send for Mapping {}
// SAFETY: nothing is read or written through a shared reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// At least so many bytes: as many whole large pages as they take.
    ///
    /// # Errors
    /// The system gives no memory.
    pub fn new(bytes: usize) -> io::Result<Mapping> {
        let length = bytes.next_multiple_of(LARGE);
        // Reserved pages are taken now or refused, so that there is no fault later.
        if let Ok(address) = map(length, libc::MAP_HUGETLB | libc::MAP_HUGE_2MB) {
            return Ok(Mapping { address, length, pages: Pages::Huge, kept: false });
        }
        // All of it will be touched at once, and the kernel's overcommitting promises more than there is.
        if available().is_some_and(|available| length > available) {
            return Err(io::Error::from_raw_os_error(libc::ENOMEM));
        }
        let wide = map(length + LARGE, 0)?;
        let before = wide.as_ptr().align_offset(LARGE);
        // SAFETY: the aligned part lies within what was mapped; the parts before and behind it are ours to give back.
        let address = unsafe {
            let address = wide.as_ptr().byte_add(before);
            if before > 0 {
                libc::munmap(wide.as_ptr(), before);
            }
            if before < LARGE {
                libc::munmap(address.byte_add(length), LARGE - before);
            }
            NonNull::new_unchecked(address)
        };
        // SAFETY: advises about our own mapping.
        let advised = unsafe { libc::madvise(address.as_ptr(), length, libc::MADV_HUGEPAGE) } == 0;
        let pages = if advised && transparent_pages() { Pages::Transparent } else { Pages::Small };
        Ok(Mapping { address, length, pages, kept: false })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if !self.kept {
            // SAFETY: mapped by us with this length, and there is no pointer into it any more.
            unsafe { libc::munmap(self.address.as_ptr(), self.length) };
        }
    }
}

fn map(length: usize, flags: i32) -> io::Result<NonNull<c_void>> {
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: asks for new memory anywhere.
    let address = unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    match NonNull::new(address) {
        Some(address) if address.as_ptr() != libc::MAP_FAILED => Ok(address),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Bytes that the system can give without swapping, as it estimates them.
fn available() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: usize = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Whether the kernel gives transparent huge pages on request (`madvise`).
fn transparent_pages() -> bool {
    std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").is_ok_and(|text| !text.contains("[never]"))
}
