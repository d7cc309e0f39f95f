//! Timestamps of scripted ends. With `HAIRPIN_TEST_TIMESTAMPS` in the environment all that take part in a test have some, each by
//! a clock of its own, and what each gets is checked: its values never run backwards, and its echoes are of the end's own clock.

use super::one_worker::Sent;
use crate::flow::Endpoint;
use crate::l7::splice::tcp::numbers::{before, later};
use crate::l7::splice::tcp::timestamps::Timestamps;
use crate::wire::tcp::{ACK, ALIGNED_TIMESTAMPS, RST, SYN, TIMESTAMPS};
use alloc::collections::BTreeMap;
use core::cell::RefCell;

/// An end, and the one it talks to.
type Pair = ([u8; 18], [u8; 18]);

/// What a test has seen.
#[derive(Default)]
struct Clocks {
    /// Segments sent by scripts: their clocks go on with each.
    ticks: u32,
    /// Ends that have agreed on timestamps: the highest value that each has seen.
    seen: BTreeMap<Pair, u32>,
    /// Who got the last segment with timestamps, and its number.
    last: Option<(Pair, u32)>,
    /// Whether ends have timestamps, whatever the environment says.
    are_wanted: Option<bool>,
    /// Whether what is sent may be anything.
    are_unchecked: bool,
}

std::thread_local! {
    static CLOCKS: RefCell<Clocks> = RefCell::default();
}

/// Ends of this test have timestamps.
pub(super) fn with() {
    CLOCKS.with_borrow_mut(|clocks| clocks.are_wanted = Some(true));
}

/// Ends of this test have none, for it is about sizes, which have no room for them.
pub(super) fn without() {
    CLOCKS.with_borrow_mut(|clocks| clocks.are_wanted = Some(false));
}

/// Nothing is checked: memory is damaged, or one of an earlier time.
pub(super) fn unchecked() {
    CLOCKS.with_borrow_mut(|clocks| clocks.are_unchecked = true);
}

/// An end has not agreed on timestamps with another.
pub(super) fn forget(own: Endpoint, peer: Endpoint) {
    CLOCKS.with_borrow_mut(|clocks| clocks.seen.remove(&(name(own), name(peer))));
}

fn name(end: Endpoint) -> [u8; 18] {
    let mut name = [0; 18];
    name[..16].copy_from_slice(&end.address.0);
    name[16..].copy_from_slice(&end.port.to_be_bytes());
    name
}

/// Where an end's clock begins.
fn base(end: Endpoint) -> u32 {
    name(end).iter().fold(0x811c_9dc5, |hash: u32, byte| (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193))
}

/// The timestamps of a segment that an end sends to another with these flags.
pub(super) fn of(own: Endpoint, peer: Endpoint, flags: u8) -> Option<Timestamps> {
    CLOCKS.with_borrow_mut(|clocks| {
        let is_on = || std::env::var_os("HAIRPIN_TEST_TIMESTAMPS").is_some();
        let echo = match clocks.seen.get(&(name(own), name(peer))) {
            _ if flags & (SYN | ACK) == SYN => clocks.are_wanted.unwrap_or_else(is_on).then_some(0)?,
            seen => *seen?,
        };
        clocks.ticks += 1;
        Some(Timestamps { value: base(own).wrapping_add(clocks.ticks), echo })
    })
}

/// Checks a segment that an end gets. `false`: the end drops it, since it has no timestamps; Hairpin has sent the same with
/// timestamps.
pub(super) fn check(sent: &Sent) -> bool {
    CLOCKS.with_borrow_mut(|clocks| {
        let (pair, timestamps) = ((name(sent.to), name(sent.from)), sent.segment.timestamps);
        let is_passed = clocks.seen.contains_key(&(name(sent.from), name(sent.to)));
        if timestamps.is_some() {
            clocks.last = Some((pair, sent.segment.sequence));
        }
        let is_unknown = timestamps == Some(Timestamps { value: 0, echo: 0 });
        if clocks.are_unchecked || is_passed || is_unknown {
            return true;
        }
        if sent.segment.has(SYN) {
            clocks.seen.remove(&pair);
            clocks.seen.extend(timestamps.map(|timestamps| (pair, timestamps.value)));
            return true;
        }
        let Some(seen) = clocks.seen.get_mut(&pair).filter(|_| !sent.segment.has(RST)) else {
            assert!(sent.segment.has(RST) || timestamps.is_none(), "not agreed on: {sent:?}");
            return true;
        };
        let Some(Timestamps { value, echo }) = timestamps else {
            // A question for numbers (`acknowledge_below`), right behind the one with timestamps.
            let is_question = sent.segment.flags == ACK && sent.segment.payload == 0;
            assert!(is_question && clocks.last == Some((pair, sent.segment.sequence)), "agreed on: {sent:?}");
            return false;
        };
        assert!(!before(value, *seen), "{value} after {seen}: {sent:?}");
        *seen = later(*seen, value);
        let age = base(sent.to).wrapping_add(clocks.ticks).wrapping_sub(echo);
        assert!(age <= clocks.ticks, "{echo} is {age} ticks old of {}: {sent:?}", clocks.ticks);
        true
    })
}

/// Options without the timestamps that they begin with.
pub(super) fn strip(options: &[u8]) -> &[u8] {
    options.strip_prefix(&ALIGNED_TIMESTAMPS).map_or(options, |rest| &rest[TIMESTAMPS - 4..])
}
