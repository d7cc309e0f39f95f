//! State: connections, exchanges, messages, buffers, and the lists they are in. Nothing here sends a segment.

pub(super) mod buffers;
pub(super) mod configurations;
pub(super) mod ended;
pub(super) mod entry;
pub(super) mod exchange;
pub(super) mod framing;
pub(super) mod idle;
pub(super) mod joined;
pub(super) mod memory;
pub(super) mod parts;
pub(super) mod peer;
pub(super) mod resting;
pub(super) mod seal;
pub(super) mod sizes;
pub(super) mod unmatched;
