//! The head that goes on, made of the one that came.

/// What a field's value can say of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {}
