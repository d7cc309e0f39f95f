//! Large memory straight from the kernel: zeroed, touched only where it is used or told to be there, in huge pages where
//! they are to be had.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;

/// The minimum alignment of a mapping.
const PAGE_BYTES: usize = 4096;

/// An anonymous mapping, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

impl Mapping {
    /// Maps `bytes` (at least one) of zeroes. Pages come into being when first touched.
    pub(crate) fn zeroed(bytes: usize) -> io::Result<Mapping> {
        let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags | libc::MAP_NORESERVE, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // Huge pages save TLB misses; without them (no THP in the kernel) everything works all the same.
        // SAFETY: the range is the mapping just made; the advice does not change its contents.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        NonNull::new(start.cast())
            .map(|start| Mapping { start, bytes })
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Maps the first `bytes` (at least one) of a file, which have to be there: touching a page beyond its end would
    /// end the process. What is written is the file's at once, and stays when the process dies.
    pub(crate) fn of_file(file: impl AsFd, bytes: usize, writable: bool) -> io::Result<Mapping> {
        let protection = libc::PROT_READ | if writable { libc::PROT_WRITE } else { 0 };
        let flags = libc::MAP_SHARED | libc::MAP_NORESERVE;
        let file = file.as_fd().as_raw_fd();
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory of ours.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, file, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the range is the mapping just made; the advice does not change its contents.
        unsafe { libc::madvise(start, bytes, libc::MADV_HUGEPAGE) };
        NonNull::new(start.cast())
            .map(|start| Mapping { start, bytes })
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    /// Has the kernel put memory behind its first `bytes`, so that a thread that touches them does not wait for it.
    pub(crate) fn populate(&self, bytes: usize) {
        // SAFETY: the range is part of the mapping.
        unsafe { populate(self.start.as_ptr(), bytes.min(self.bytes)) };
    }

    /// Its first byte; aligned to a page.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone, and each holder of pointers into it keeps it alive.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Has the kernel put memory behind `bytes` from `start` on: otherwise the thread that touches them first waits, for a
/// huge page about 0.25 ms, and 5 in a virtual machine that never had it before (by `perf record`, 2026-11-25). Nothing
/// becomes of it before Linux 5.14, or without memory.
///
/// # Safety
/// They are part of a mapping, and `start` is aligned to a page. What is in them stays.
pub(crate) unsafe fn populate(start: *mut u8, bytes: usize) {
    // SAFETY: as the caller promises; the advice does not change what is there.
    unsafe { libc::madvise(start.cast(), bytes, libc::MADV_POPULATE_WRITE) };
}

/// `count` zeroed values that live as long as the process, in memory that is touched only where it is used.
///
/// Errors: `InvalidInput` if `count` values cannot be addressed or are aligned to more than a page, `OutOfMemory` if
/// the kernel has no room.
///
/// # Safety
///
/// A `T` all of whose bytes are zero must be a valid value.
pub unsafe fn zeroed<T: 'static>(count: usize) -> io::Result<&'static mut [T]> {
    let start = lasting(count, size_of::<T>(), align_of::<T>())?;
    // SAFETY: aligned and long enough, never unmapped, no other code has a pointer to it, and zeroes are valid values
    // of `T` by this function's own contract.
    Ok(unsafe { std::slice::from_raw_parts_mut(start.as_ptr().cast(), count) })
}

/// A mapping for `count` things that is never given back.
fn lasting(count: usize, size: usize, alignment: usize) -> io::Result<NonNull<u8>> {
    let bytes = count.checked_mul(size).filter(|&bytes| bytes <= isize::MAX as usize && alignment <= PAGE_BYTES);
    let Some(bytes) = bytes else {
        let text = format!("{count} entries of {size} bytes are more than memory can hold");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    };
    Ok(std::mem::ManuallyDrop::new(Mapping::zeroed(bytes.max(1))?).start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_writable_and_touched_lazily() {
        // 64 GiB: more than the machine has, so this works only as long as untouched pages cost nothing.
        // SAFETY: zero is a valid `u64`.
        let words = unsafe { zeroed::<u64>(1 << 33) }.unwrap();
        let last = words.len() - 1;
        assert_eq!((words[0], words[last]), (0, 0));
        words[last] = 7;
        assert_eq!((words[last], words[last - 1]), (7, 0));
    }

    #[test]
    fn what_cannot_be_had_is_an_error() {
        // SAFETY: zero is a valid `u64`; no memory comes of it.
        assert!(unsafe { zeroed::<u64>(usize::MAX / 4) }.is_err());
        // SAFETY: as above.
        assert!(unsafe { zeroed::<u64>(1 << 58) }.is_err());
        // SAFETY: as above.
        assert!(unsafe { zeroed::<u64>(0) }.unwrap().is_empty());
    }
}
