//! A part of a head, without the bytes that it lies in.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Where a part of a head starts, in bytes from the head's first, and how long it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct Span {
    pub(crate) start: u16,
    pub(crate) bytes: u16,
}

impl Span {
    /// `part`'s place in `whole`. `None`: it is not in there.
    pub(crate) fn of(part: &[u8], whole: &[u8]) -> Option<Span> {
        if part.is_empty() {
            return Some(Span::default());
        }
        let start = (part.as_ptr() as usize).checked_sub(whole.as_ptr() as usize)?;
        let is_within = start.checked_add(part.len()).is_some_and(|end| end <= whole.len());
        is_within.then_some(Span { start: u16::try_from(start).ok()?, bytes: u16::try_from(part.len()).ok()? })
    }

    #[inline]
    pub(crate) fn in_bytes(self, bytes: &[u8]) -> Option<&[u8]> {
        bytes.get(usize::from(self.start)..)?.get(..usize::from(self.bytes))
    }
}
