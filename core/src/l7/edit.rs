//! The head that goes on, made of the one that came.

mod value;

pub use value::{NAME_BYTES_MAX, Piece, VALUE_BYTES_MAX, Value, Variable, location};
