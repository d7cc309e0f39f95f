//! Looking at a slab while its owner works on it.

use super::super::entry::Adoptable;
use super::{PRESENT, Position, Slot};
use core::marker::PhantomData;
use core::mem::{MaybeUninit, offset_of};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering, fence};

/// How often an entry is read again that was replaced meanwhile.
const TRIES_MAX: usize = 4;

/// Read-only access to a slab for threads and processes other than its owner, which is not disturbed: no lock, no store.
///
/// Positions do not move, so a caller that pages through a slab that changes by ascending position meets every entry
/// that is there all the time exactly once.
#[derive(Debug)]
pub struct SlabView<T> {
    start: NonNull<Slot<T>>,
    count: usize,
    values: PhantomData<fn() -> T>,
}

// SAFETY: a view only reads, by atomic loads; `at` has its memory readable until the process ends.
unsafe impl<T> Send for SlabView<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for SlabView<T> {}

impl<T> Clone for SlabView<T> {
    fn clone(&self) -> SlabView<T> {
        *self
    }
}

impl<T> Copy for SlabView<T> {}

impl<T: Adoptable> SlabView<T> {
    /// A view of the `count` slots at `start`.
    ///
    /// # Safety
    /// `start` is aligned for `Slot<T>`, and `count` slots from there on are mapped and readable until the process
    /// ends; their bytes have been written, or are zeroes from the kernel. Through these addresses this process writes
    /// by atomic stores only, while there are views: the slab itself is another process's, or works on another mapping
    /// of the same memory.
    pub unsafe fn at(start: NonNull<Slot<T>>, count: usize) -> SlabView<T> {
        SlabView { start, count: count.min(1 << 31), values: PhantomData }
    }

    /// Positions there are.
    pub fn capacity(&self) -> usize {
        self.count
    }

    /// Positions that have ever been used: all entries are below. Touches few slots beyond that, so that memory which
    /// was never used stays unused.
    pub fn used(&self) -> usize {
        // Commit words of used positions are not zero, those of the others are: the border is sought with strides that
        // double, and then by halving.
        let is_used = |position: usize| self.commit(position).load(Ordering::Relaxed) != 0;
        let (mut low, mut stride) = (0, 1);
        while low + stride <= self.count && is_used(low + stride - 1) {
            low += stride;
            stride *= 2;
        }
        let mut high = (low + stride - 1).min(self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_used(middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    /// The entry at `position` with its generation; `None` if there is none. Of fields that the owner is changing just
    /// now, some may be old and some new; entries are never mixed up. (`None` also if the position is filled anew
    /// again and again while it is being read.)
    pub fn read(&self, position: Position) -> Option<(u32, T)> {
        if position as usize >= self.count {
            return None;
        }
        let commit = self.commit(position as usize);
        for _ in 0..TRIES_MAX {
            // Relaxed and fences: other loads are not allowed on memory that is mapped for reading only.
            let before = commit.load(Ordering::Relaxed);
            if before & PRESENT == 0 {
                return None;
            }
            fence(Ordering::Acquire);
            let value = self.copy(position as usize);
            // The owner takes the commit word back before it puts another value there.
            fence(Ordering::Acquire);
            if commit.load(Ordering::Relaxed) == before {
                // SAFETY: the copy fills the value, which has no padding.
                let bytes = unsafe { core::slice::from_raw_parts(value.as_ptr().cast(), size_of::<T>()) };
                // SAFETY: the bytes are a value's.
                return T::is_valid(bytes).then(|| ((before >> 1) as u32, unsafe { value.assume_init() }));
            }
        }
        None
    }

    fn commit(&self, position: usize) -> &AtomicU64 {
        assert!(position < self.count, "no position {position}");
        // SAFETY: within the slots; atomics may be shared.
        unsafe { &(*self.start.as_ptr().add(position)).commit }
    }

    /// The value's bytes, word by word.
    fn copy(&self, position: usize) -> MaybeUninit<T> {
        const { assert!(size_of::<T>().is_multiple_of(8) && align_of::<T>() <= 8 && offset_of!(Slot<T>, value) == 8) };
        let mut value = MaybeUninit::<T>::uninit();
        let out = value.as_mut_ptr().cast::<u64>();
        let words = self.start.as_ptr().cast_const().wrapping_add(position).cast::<AtomicU64>().wrapping_add(1);
        for i in 0..size_of::<T>() / 8 {
            // SAFETY: the value begins at the slot's second word and is whole words long; so is the copy, which may be
            // aligned to less than a word.
            unsafe { out.add(i).write_unaligned((*words.add(i)).load(Ordering::Relaxed)) };
        }
        value
    }
}
