//! Sequence numbers (RFC 9293, 3.4): they wrap, and are compared within half their space.

/// Whether `a` comes before `b`.
#[inline(always)]
pub(in crate::l7::splice) fn before(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) as i32) < 0
}

/// The later of two.
#[inline(always)]
pub(in crate::l7::splice) fn later(a: u32, b: u32) -> u32 {
    if before(a, b) { b } else { a }
}

/// The earlier of two.
#[inline(always)]
pub(in crate::l7::splice) fn earlier(a: u32, b: u32) -> u32 {
    if before(a, b) { a } else { b }
}

/// How far `to` is beyond `from`; 0 if it is not.
#[inline(always)]
pub(in crate::l7::splice) fn beyond(from: u32, to: u32) -> u32 {
    if before(from, to) { to.wrapping_sub(from) } else { 0 }
}

/// How far behind the highest number one may stay that is compared with others: numbers beyond half their space would pass
/// for smaller ones, and the engine may carry a offload range of a quarter of it unseen.
const LAG_MAX: u32 = 1 << 28;

/// Moves `floor` after `highest`, so that it stays comparable however long the stream.
#[inline(always)]
pub(in crate::l7::splice) fn follow(floor: &mut u32, highest: u32) {
    if beyond(*floor, highest) > LAG_MAX {
        *floor = highest.wrapping_sub(LAG_MAX);
    }
}
