//! Large zeroed arrays that the kernel hands out page by page as they are touched.

use alloc::alloc::{Layout, alloc_zeroed, handle_alloc_error};
use alloc::boxed::Box;

/// A type for which all-zero bytes are a valid value.
///
/// # Safety
/// All-zero bytes have to be a valid value of the type.
pub unsafe trait Zeroable {}

/// `count` zeroed elements. Aborts like any other allocation if there is no memory.
pub fn zeroed<T: Zeroable>(count: usize) -> Box<[T]> {
    let layout = match Layout::array::<T>(count) {
        Ok(layout) => layout,
        Err(_) => panic!("an array of {count} elements is larger than the address space"),
    };
    if layout.size() == 0 {
        return Box::new([]);
    }
    // SAFETY: the layout's size is not zero.
    let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
    if start.is_null() {
        handle_alloc_error(layout);
    }
    // SAFETY: the memory was allocated with the layout of `[T; count]`, nothing else refers to it, and it is a valid
    // `[T]` because `T: Zeroable`.
    unsafe { Box::from_raw(core::ptr::slice_from_raw_parts_mut(start, count)) }
}
