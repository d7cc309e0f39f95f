//! Plain data that outlives its process: values of fixed layout in shared memory.
//!
//! A [`Stored`] type has no padding, so every byte of it is said, and bytes that another process has left are checked
//! before they are taken for a value (`zerocopy` derives both and refuses types for which they do not hold). Enums have
//! no fields and one byte; in place of `Option` stand [`Optional`], [`OptionalPosition`] and [`OptionalNumber`].

use zerocopy::{Immutable, IntoBytes, KnownLayout, TryFromBytes};

/// A type whose values may lie in shared memory.
pub trait Stored: TryFromBytes + IntoBytes + KnownLayout + Immutable + 'static {
    /// Names how a value lies in memory: fields, their offsets and sizes. Two programs with the same number understand
    /// each other's values.
    const LAYOUT_HASH: u64;
}

/// Where hashes of layouts begin (FNV-1a).
pub(crate) const SEED: u64 = 0xcbf2_9ce4_8422_2325;

/// One step of FNV-1a, by words.
pub(crate) const fn mixed(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3)
}

/// [`mixed`] with every byte of a text.
pub(crate) const fn mixed_text(mut hash: u64, text: &str) -> u64 {
    let bytes = text.as_bytes();
    let mut i = 0;
    while i < bytes.len() {
        hash = mixed(hash, bytes[i] as u64);
        i += 1;
    }
    hash
}

/// The size of the field that a function leads to, and its type's layout.
pub(crate) const fn field<S, F: Stored>(_: fn(&S) -> &F) -> (usize, u64) {
    (size_of::<F>(), F::LAYOUT_HASH)
}

/// Implements [`Stored`] for a struct of which all fields are named.
macro_rules! stored {
    ($name:ident: $($field:ident),* $(,)?) => {
        impl $crate::stored::Stored for $name {
            const LAYOUT_HASH: u64 = {
                let mut sum = 0;
                let mut hash = $crate::stored::mixed($crate::stored::SEED, size_of::<$name>() as u64);
                $(
                    let (bytes, layout) = $crate::stored::field(|value: &$name| &value.$field);
                    sum += bytes;
                    hash = $crate::stored::mixed_text(hash, stringify!($field));
                    hash = $crate::stored::mixed(hash, core::mem::offset_of!($name, $field) as u64);
                    hash = $crate::stored::mixed(hash, layout);
                )*
                assert!(sum == size_of::<$name>(), "a field is not named");
                hash
            };
        }
    };
}
pub(crate) use stored;

/// Implements [`Stored`] for types whose name and size say all: numbers, and enums without fields. A number stands for what
/// they mean, to be raised when that changes.
macro_rules! stored_leaf {
    ($($name:ty: $version:literal),* $(,)?) => {
        $(impl $crate::stored::Stored for $name {
            const LAYOUT_HASH: u64 = $crate::stored::mixed(
                $crate::stored::mixed($crate::stored::mixed_text($crate::stored::SEED, stringify!($name)), $version),
                size_of::<$name>() as u64,
            );
        })*
    };
}
pub(crate) use stored_leaf;

stored_leaf!(bool: 1, u8: 1, u16: 1, u32: 1, u64: 1);

impl<T: Stored, const N: usize> Stored for [T; N] {
    const LAYOUT_HASH: u64 = mixed(mixed(T::LAYOUT_HASH, N as u64), 1);
}

/// A type with a value that stands for none.
pub trait Vacant {
    /// That value.
    const VACANT: Self;
    /// Whether this is it.
    fn is_vacant(&self) -> bool;
}

/// A value or none, in the value's own layout.
#[derive(Clone, Copy, Debug, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct Optional<T>(T);

impl<T: Stored> Stored for Optional<T> {
    const LAYOUT_HASH: u64 = mixed(T::LAYOUT_HASH, 2);
}

impl<T: Vacant> Optional<T> {
    /// None.
    pub const NONE: Optional<T> = Optional(T::VACANT);

    /// Whether there is a value.
    #[inline]
    pub fn is_some(&self) -> bool {
        !self.0.is_vacant()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.0.is_vacant()
    }

    /// The value, if there is one.
    #[inline]
    pub fn as_ref(&self) -> Option<&T> {
        self.is_some().then_some(&self.0)
    }

    /// The value, if there is one, to be changed.
    #[inline]
    pub fn as_mut(&mut self) -> Option<&mut T> {
        self.is_some().then_some(&mut self.0)
    }

    /// The value, if there is one; then there is none.
    #[inline]
    pub fn take(&mut self) -> Option<T> {
        self.is_some().then(|| core::mem::replace(&mut self.0, T::VACANT))
    }
}

impl<T: Vacant + Copy> Optional<T> {
    /// A copy of the value, if there is one.
    #[inline]
    pub fn get(&self) -> Option<T> {
        self.is_some().then_some(self.0)
    }
}

impl<T: Vacant> From<Option<T>> for Optional<T> {
    fn from(value: Option<T>) -> Optional<T> {
        Optional(value.unwrap_or(T::VACANT))
    }
}

impl<T: Vacant> From<T> for Optional<T> {
    fn from(value: T) -> Optional<T> {
        Optional(value)
    }
}

impl<T: Vacant> Default for Optional<T> {
    fn default() -> Optional<T> {
        Optional::NONE
    }
}

/// A position in a slab, or none. `u32::MAX` is no position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(transparent)]
pub struct OptionalPosition(u32);

impl OptionalPosition {
    /// None.
    pub const NONE: OptionalPosition = OptionalPosition(u32::MAX);

    /// The position, if there is one.
    #[inline]
    pub fn get(self) -> Option<u32> {
        (self.0 != u32::MAX).then_some(self.0)
    }

    /// The position, if there is one; then there is none.
    #[inline]
    pub fn take(&mut self) -> Option<u32> {
        core::mem::replace(self, OptionalPosition::NONE).get()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_none(self) -> bool {
        self.0 == u32::MAX
    }
}

impl From<Option<u32>> for OptionalPosition {
    fn from(position: Option<u32>) -> OptionalPosition {
        OptionalPosition(position.unwrap_or(u32::MAX))
    }
}

/// Any 32-bit number, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, TryFromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub struct OptionalNumber {
    /// 0: none.
    there: u32,
    number: u32,
}

impl OptionalNumber {
    /// The number, if there is one.
    #[inline]
    pub fn get(self) -> Option<u32> {
        (self.there != 0).then_some(self.number)
    }

    /// Whether there is none.
    #[inline]
    pub fn is_none(self) -> bool {
        self.there == 0
    }
}

impl From<Option<u32>> for OptionalNumber {
    #[inline]
    fn from(number: Option<u32>) -> OptionalNumber {
        OptionalNumber { there: number.is_some().into(), number: number.unwrap_or(0) }
    }
}

stored_leaf!(OptionalPosition: 1, OptionalNumber: 1);
