//! Memory that is this process's, or that outlives it, and arrays in it.

use alloc::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use alloc::sync::Arc;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use zerocopy::FromBytes;

/// Where each array begins: at a cache line.
const ALIGN: usize = 64;

/// Memory from which arrays are taken, one behind the other.
///
/// Two regions of which the same arrays are taken in the same order have them at the same places. [`Region::room`] says
/// how much memory an array takes.
pub struct Region {
    memory: Arc<Memory>,
    /// Bytes that have been taken.
    taken: usize,
}

/// The memory itself, which lasts as long as there is an array in it.
struct Memory {
    start: NonNull<u8>,
    bytes: usize,
    /// How it was allocated; `None`: it was not.
    layout: Option<Layout>,
}

// SAFETY: the memory is of no thread, and arrays in it do not overlap.
unsafe impl Send for Memory {}
// SAFETY: as above; nothing is reached through it but through an array.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: it was allocated with this layout, once, and no array is left.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}

impl Region {
    /// Memory of this process, all zeroes. Pages are touched as arrays are used. Aborts like any other allocation if there
    /// is none.
    ///
    /// # Panics
    /// `bytes` is more than the address space has. The configuration bounds it: `limits.connections_max` is at most 2^31.
    pub fn own(bytes: usize) -> Region {
        let Ok(layout) = Layout::from_size_align(bytes.max(ALIGN), ALIGN) else {
            panic!("a region of {bytes} bytes is larger than the address space");
        };
        // SAFETY: the layout's size is not zero.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { handle_alloc_error(layout) };
        Region { memory: Arc::new(Memory { start, bytes, layout: Some(layout) }), taken: 0 }
    }

    /// Memory that was mapped.
    ///
    /// # Safety
    /// `start` is aligned to 64 bytes, and `bytes` bytes from there on are mapped, readable and writable until the process
    /// ends, and nothing else writes them in that time. They have been written, or are zeroes from the kernel; what they
    /// say does not matter.
    pub unsafe fn at(start: NonNull<u8>, bytes: usize) -> Region {
        Region { memory: Arc::new(Memory { start, bytes, layout: None }), taken: 0 }
    }

    /// A region of this memory from which nothing has been taken: its arrays have what those of this region had.
    ///
    /// # Panics
    /// An array is still in use.
    pub fn again(self) -> Region {
        assert_eq!(Arc::strong_count(&self.memory), 1, "an array of the region is in use");
        Region { taken: 0, ..self }
    }

    /// Sees all of it while arrays are in use, and in the region that [`Region::again`] returns.
    #[cfg(test)]
    pub(crate) fn image(&self) -> Image {
        Image { memory: Arc::downgrade(&self.memory) }
    }

    /// Makes all of it what [`Image::copy`] has found, when no array is in use.
    #[cfg(test)]
    pub(crate) fn overwrite(&mut self, bytes: &[u8]) {
        assert_eq!(self.taken, 0, "an array of the region is in use");
        // SAFETY: of the memory's length, and no array is in use.
        unsafe { core::slice::from_raw_parts_mut(self.memory.start.as_ptr(), self.memory.bytes) }
            .copy_from_slice(bytes);
    }

    /// Bytes that an array of `count` elements takes.
    pub const fn room<T>(count: usize) -> usize {
        (count * size_of::<T>()).next_multiple_of(ALIGN)
    }

    /// The next array.
    ///
    /// # Panics
    /// The memory is too small.
    pub fn take<T: FromBytes>(&mut self, count: usize) -> Array<T> {
        const { assert!(align_of::<T>() <= ALIGN) };
        let room = Region::room::<T>(count);
        assert!(room <= self.memory.bytes - self.taken, "the region is too small");
        // SAFETY: within the memory.
        let start = unsafe { self.memory.start.add(self.taken) }.cast();
        self.taken += room;
        Array { start, count, _memory: Some(Arc::clone(&self.memory)) }
    }
}

/// Sees a region's memory while arrays are in use.
#[cfg(test)]
pub(crate) struct Image {
    memory: alloc::sync::Weak<Memory>,
}

#[cfg(test)]
impl Image {
    /// Its bytes now.
    pub(crate) fn copy(&self) -> alloc::vec::Vec<u8> {
        let memory = self.memory.upgrade().expect("the region is still there");
        let mut bytes = alloc::vec![0; memory.bytes];
        // SAFETY: of the memory's length; another process reads it so, whatever this one has borrowed.
        unsafe { core::ptr::copy_nonoverlapping(memory.start.as_ptr(), bytes.as_mut_ptr(), bytes.len()) };
        bytes
    }

    /// Its address in this process, and its length in bytes.
    #[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
    pub(crate) fn place(&self) -> (usize, usize) {
        let memory = self.memory.upgrade().expect("the region is still there");
        (memory.start.as_ptr().addr(), memory.bytes)
    }
}

/// A slice in a [`Region`], or of memory that lasts for ever.
pub struct Array<T: 'static> {
    start: NonNull<T>,
    count: usize,
    _memory: Option<Arc<Memory>>,
}

// SAFETY: it is what a box is to its content.
unsafe impl<T: Send> Send for Array<T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Array<T> {}

impl<T> Array<T> {
    /// Its first `count` elements at most.
    pub fn truncated(self, count: usize) -> Array<T> {
        Array { count: self.count.min(count), ..self }
    }
}

impl<T> Deref for Array<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the elements are in memory that lasts as long as the array, any bytes are an element, and no other
        // array has them.
        unsafe { core::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl<T> DerefMut for Array<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and the array is borrowed alone.
        unsafe { core::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

impl<T> From<&'static mut [T]> for Array<T> {
    fn from(slice: &'static mut [T]) -> Array<T> {
        let count = slice.len();
        Array { start: NonNull::from(slice).cast(), count, _memory: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrays_lie_behind_each_other_and_are_zero() {
        let bytes = Region::room::<u8>(3) + Region::room::<u64>(9);
        assert_eq!(bytes, 64 + 128);
        let mut region = Region::own(bytes);
        let (mut a, mut b) = (region.take::<u8>(3), region.take::<u64>(9));
        drop(region);
        assert!(a.iter().all(|&byte| byte == 0) && b.iter().all(|&word| word == 0));
        a.fill(1);
        b.fill(2);
        assert_eq!((a.len(), a[2], b[0], b[8]), (3, 1, 2, 2));
        assert_eq!(b.as_ptr() as usize - a.as_ptr() as usize, 64);
    }

    #[test]
    #[should_panic(expected = "too small")]
    fn an_array_beyond_the_end_is_refused() {
        Region::own(64).take::<u64>(9);
    }
}
