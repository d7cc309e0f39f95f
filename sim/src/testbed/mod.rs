//! papers/001's testbed in virtual time.

pub mod cores;
