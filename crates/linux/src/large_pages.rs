//! A global allocator that gives large allocations huge pages: connection tables are read in random order, and with
//! pages of 4 KiB nearly every read of a large one misses the TLB too.

use crate::memory::populate;
use mimalloc::MiMalloc;
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{NonNull, null_mut};

/// Allocations of so many bytes or more are mapped by themselves.
pub const LARGE_BYTES: usize = 4 << 20;

/// The alignment of large allocations: the size of a huge page on x86-64 and (with pages of 4 KiB) on arm64.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// How much of each large allocation is there from the start: the first connections touch the beginning of every table, and
/// should not wait for all of them.
const AHEAD_BYTES: usize = 2 * HUGE_PAGE_BYTES;

/// The unit in which the kernel maps and unmaps. (Where its pages are larger, some untouched address space stays mapped.)
const PAGE_BYTES: usize = 4096;

/// The allocator of the system, but for allocations of [`LARGE_BYTES`] or more: those are mapped for themselves,
/// aligned to huge pages, and the kernel is asked for huge pages (`madvise`: it may have none, then they are ordinary
/// ones). Behind the first 4 MiB, memory that was never touched takes no room; what is freed goes back to the kernel at once.
///
/// ```
/// #[global_allocator]
/// static ALLOCATOR: hairpin_linux::large_pages::LargePages = hairpin_linux::large_pages::LargePages;
/// # fn main() {}
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct LargePages;

/// Whether an allocation is mapped for itself. Depends on nothing but the layout, so that freeing knows as well.
fn is_large(layout: Layout) -> bool {
    layout.size() >= LARGE_BYTES && layout.align() <= HUGE_PAGE_BYTES
}

/// The bytes mapped for an allocation of `size` bytes; `None`: more than there can be.
fn mapped_bytes(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(PAGE_BYTES)
}

/// Maps `size` bytes of zeroes; null if there is no memory.
fn map(size: usize) -> *mut u8 {
    let Some(bytes) = mapped_bytes(size) else { return null_mut() };
    let spare = HUGE_PAGE_BYTES - PAGE_BYTES;
    let Some(all) = bytes.checked_add(spare) else { return null_mut() };
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh anonymous mapping at an address of the kernel's choice touches no memory of ours.
    let start = unsafe { libc::mmap(null_mut(), all, protection, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return null_mut();
    }
    let start = start.cast::<u8>();
    let before = start.addr().next_multiple_of(HUGE_PAGE_BYTES) - start.addr();
    // SAFETY: `before` is at most `spare`, so the aligned address lies in the mapping, with `bytes` from there on; what
    // is unmapped lies in it as well, before and behind that, and nothing refers to it.
    unsafe {
        let aligned = start.add(before);
        unmap(start, before);
        unmap(aligned.add(bytes), spare - before);
        // Without huge pages (none in the kernel, or none free) everything works all the same.
        libc::madvise(aligned.cast(), bytes, libc::MADV_HUGEPAGE);
        populate(aligned, bytes.min(AHEAD_BYTES));
        aligned
    }
}

/// Unmaps `bytes` from `start` on; nothing if they are none.
///
/// # Safety
/// They are a part, no longer used, of a mapping made by [`map`].
unsafe fn unmap(start: *mut u8, bytes: usize) {
    if bytes != 0 {
        // SAFETY: as the caller promises. A failure (the kernel may run out of mappings) leaves unused memory mapped.
        unsafe { libc::munmap(start.cast(), bytes) };
    }
}

/// Makes the mapping of `old` bytes at `start` one for `new` bytes without moving it; whether that could be done.
///
/// # Safety
/// `start` came from [`map`], for `old` bytes, and if fewer are wanted, the rest is no longer used.
unsafe fn resize(start: *mut u8, old: usize, new: usize) -> bool {
    let (Some(old), Some(new)) = (mapped_bytes(old), mapped_bytes(new)) else { return false };
    if new > old {
        // SAFETY: the mapping is the caller's; it stays where it is, and what it grows over is not mapped.
        let grown = unsafe { libc::mremap(start.cast(), old, new, 0) } != libc::MAP_FAILED;
        return grown;
    }
    // SAFETY: what lies behind `new` bytes is an unused part of the mapping.
    unsafe { unmap(start.add(new), old - new) };
    true
}

// SAFETY: every method hands a layout to one of two allocators, always to the same one, since the choice depends on the
// layout only. The system's is one. Mappings are unique, live until they are unmapped, are large enough, and are
// aligned to `HUGE_PAGE_BYTES`, which is what `is_large` asks of a layout. Nothing here panics or allocates.
unsafe impl GlobalAlloc for LargePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's promise.
        unsafe { MiMalloc.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if is_large(layout) {
            return map(layout.size());
        }
        // SAFETY: the caller's promise.
        unsafe { MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if is_large(layout) {
            // SAFETY: it came from `map` with this size (or was resized to it), and the caller is done with it.
            return unsafe { unmap(start, mapped_bytes(layout.size()).unwrap_or(0)) };
        }
        // SAFETY: the caller's promise.
        unsafe { MiMalloc.dealloc(start, layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller promises a size that is valid with this alignment.
        let new_layout = unsafe { Layout::from_size_align_unchecked(new_size, layout.align()) };
        match (is_large(layout), is_large(new_layout)) {
            // SAFETY: the caller's promise.
            (false, false) => return unsafe { MiMalloc.realloc(start, layout, new_size) },
            // SAFETY: it came from `map`; what lies behind the new size is no longer used.
            (true, true) if unsafe { resize(start, layout.size(), new_size) } => return start,
            _ => {}
        }
        // SAFETY: the size is not 0, as the caller promises.
        let Some(moved) = NonNull::new(unsafe { self.alloc(new_layout) }) else { return null_mut() };
        // SAFETY: both are that long, they do not overlap, and the caller is done with the old one.
        unsafe {
            start.copy_to_nonoverlapping(moved.as_ptr(), layout.size().min(new_size));
            self.dealloc(start, layout);
        }
        moved.as_ptr()
    }
}

#[cfg(test)]
mod tests {
    use super::{AHEAD_BYTES, HUGE_PAGE_BYTES, LARGE_BYTES, LargePages};
    use std::alloc::{GlobalAlloc, Layout};

    const BLOCK: usize = 64;

    fn layout(size: usize) -> Layout {
        Layout::from_size_align(size, 64).expect("a layout")
    }

    /// Bytes of `start..start + size` that take memory.
    fn resident(start: *const u8, size: usize) -> usize {
        let mut pages = vec![0u8; size.div_ceil(4096)];
        // SAFETY: the range is mapped, and there is a byte for each of its pages.
        let done = unsafe { libc::mincore(start.cast_mut().cast(), size, pages.as_mut_ptr()) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        pages.iter().filter(|&&page| page & 1 != 0).count() * 4096
    }

    /// Whether the kernel takes that advice (5.14): of nothing at all it does.
    fn can_populate() -> bool {
        // SAFETY: there are no bytes.
        unsafe { libc::madvise(std::ptr::null_mut(), 0, libc::MADV_POPULATE_WRITE) == 0 }
    }

    /// Writes the number of every block into it.
    fn fill(start: *mut u8, from: usize, to: usize) {
        for block in from / BLOCK..to / BLOCK {
            // SAFETY: the tests pass what they have allocated.
            unsafe { start.add(block * BLOCK).cast::<u64>().write(block as u64 + 1) };
        }
    }

    fn assert_filled(start: *const u8, to: usize) {
        for block in 0..to / BLOCK {
            // SAFETY: as above.
            assert_eq!(unsafe { start.add(block * BLOCK).cast::<u64>().read() }, block as u64 + 1, "block {block}");
        }
    }

    #[test]
    fn large_memory_is_aligned_zeroed_and_lazy() {
        for size in [LARGE_BYTES, LARGE_BYTES + 1, 9 * HUGE_PAGE_BYTES - 64] {
            // SAFETY: the size is not 0; what is freed is what was allocated, used within its bounds.
            unsafe {
                let start = LargePages.alloc_zeroed(layout(size));
                assert!(!start.is_null() && start.addr().is_multiple_of(HUGE_PAGE_BYTES));
                let there = resident(start, size);
                assert!(there <= AHEAD_BYTES, "memory is touched before its time: {there}");
                assert!(there == AHEAD_BYTES || !can_populate(), "the first connections will wait: {there}");
                assert!((0..size).step_by(4096).all(|at| start.add(at).read() == 0));
                start.add(size - 1).write(1);
                LargePages.dealloc(start, layout(size));
            }
        }
    }

    /// From each size to each, over the border in both directions, nothing of the shorter one is lost.
    #[test]
    fn resized_memory_keeps_what_is_in_it() {
        let sizes =
            [64, 4096, LARGE_BYTES - 64, LARGE_BYTES, LARGE_BYTES + 64, 3 * LARGE_BYTES, 3 * LARGE_BYTES + 8192];
        for from in sizes {
            for to in sizes {
                // SAFETY: sizes are not 0; what is resized and freed is what was allocated, used within its bounds.
                unsafe {
                    let start = LargePages.alloc(layout(from));
                    fill(start, 0, from);
                    let start = LargePages.realloc(start, layout(from), to);
                    assert!(!start.is_null());
                    assert_filled(start, from.min(to));
                    fill(start, from.min(to), to);
                    assert_filled(start, to);
                    LargePages.dealloc(start, layout(to));
                }
            }
        }
    }

    /// Bytes of address space this process has mapped.
    fn mapped() -> usize {
        let statm = std::fs::read_to_string("/proc/self/statm").expect("there is /proc");
        let pages = statm.split(' ').next().and_then(|pages| pages.parse::<usize>().ok());
        pages.expect("its first number") * 4096
    }

    /// A quarter of a TiB is mapped and given back, in pieces.
    fn churn() {
        for round in 0..2000 {
            let (first, second) = (layout(LARGE_BYTES * (1 + round % 64)), LARGE_BYTES * (1 + round % 7));
            // SAFETY: sizes are not 0; what is resized and freed is what was allocated; it is not used.
            unsafe {
                let start = LargePages.alloc(first);
                assert!(!start.is_null());
                let start = match second <= first.size() {
                    true => LargePages.realloc(start, first, second),
                    false => start,
                };
                LargePages.dealloc(start, layout(first.size().min(second)));
            }
        }
    }

    /// Other tests of this process may map as much meanwhile, but not each time.
    #[test]
    fn what_is_freed_is_unmapped() {
        let grown = (0..8).map(|_| {
            let before = mapped();
            churn();
            mapped().saturating_sub(before)
        });
        let least = grown.min().unwrap_or(usize::MAX);
        assert!(least < 1 << 30, "{least} bytes of address space more each time");
    }

    #[test]
    fn what_cannot_be_had_is_refused() {
        let size = isize::MAX as usize - (1 << 20);
        // SAFETY: the size is not 0; nothing is used that was not given.
        unsafe {
            assert!(LargePages.alloc(layout(size)).is_null());
            let start = LargePages.alloc(layout(LARGE_BYTES));
            fill(start, 0, LARGE_BYTES);
            assert!(LargePages.realloc(start, layout(LARGE_BYTES), size).is_null());
            assert_filled(start, LARGE_BYTES);
            LargePages.dealloc(start, layout(LARGE_BYTES));
        }
    }

    #[test]
    fn alignments_beyond_a_huge_page_are_the_systems() {
        let layout = Layout::from_size_align(LARGE_BYTES, 2 * HUGE_PAGE_BYTES).expect("a layout");
        // SAFETY: as above.
        unsafe {
            let start = LargePages.alloc_zeroed(layout);
            assert!(!start.is_null() && start.addr().is_multiple_of(2 * HUGE_PAGE_BYTES));
            start.add(LARGE_BYTES - 1).write(1);
            LargePages.dealloc(start, layout);
        }
    }
}
