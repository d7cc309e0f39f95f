//! Data of no known connection: when it was first seen.
//!
//! Such data may be of a connection whose first segment the network has lost or delayed: the client sends that again,
//! after 1 s at the latest (RFC 6298, 2.1), and it brings the cookie. What still comes of no known connection after
//! that is of one that there is not any more.

use crate::flow::FlowKey;
use crate::table::{Hasher, Key};
use crate::time::{Duration, Time};
use alloc::boxed::Box;
use alloc::vec;

/// Connections that are remembered at most: one that comes into the place of another begins anew, and where there are too
/// many some get no answer.
pub const PLACES: usize = 4096;
/// How long data of a connection must have come.
const LASTS: Duration = Duration::from_secs(1);
/// After so long, another connection between the same ends may have the same number.
const REMEMBERED_FOR: Duration = Duration::from_secs(60);

/// A flow whose data arrived and belongs to no connection here; a place with a fingerprint of 0 is free.
#[derive(Clone, Copy, Debug, Default)]
struct UnmatchedFlow {
    fingerprint: u64,
    first: Time,
}

/// The flows whose data arrived and belongs to no connection here.
pub(in crate::l7::splice) struct Unmatched {
    seen: Box<[UnmatchedFlow]>,
    hasher: Hasher,
}

impl Unmatched {
    pub(in crate::l7::splice) fn new(hasher: Hasher) -> Unmatched {
        Unmatched { seen: vec![UnmatchedFlow::default(); PLACES].into(), hasher }
    }

    /// Notes data of a connection, which acknowledges this number: says whether it has come for long enough.
    pub(in crate::l7::splice) fn has_lasted(&mut self, now: Time, key: &FlowKey, acknowledgement: u32) -> bool {
        let mixed = (key.hash(&self.hasher).0 ^ u64::from(acknowledgement)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let fingerprint = mixed.max(1);
        let seen = &mut self.seen[(mixed >> 32) as usize & (PLACES - 1)];
        if seen.fingerprint != fingerprint || now.since(seen.first) >= REMEMBERED_FOR {
            *seen = UnmatchedFlow { fingerprint, first: now };
        }
        now.since(seen.first) >= LASTS
    }
}
