//! `shim/fake_flow.c`, as tests call it.

use crate::flow::description::Description;
use std::ffi::CStr;

pub(super) use crate::flow::fake::FakeOptions;

/// `struct hairpin_fake_flow_state`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct FakeState {
    pub(super) live: u32,
    pub(super) pending: u32,
    pub(super) created: u32,
    pub(super) destroyed: u32,
    pub(super) refused: u32,
    pub(super) pushes: u32,
    pub(super) violations: u32,
    pub(super) templates: u32,
    first_violation: [u8; 96],
}

impl FakeState {
    pub(super) fn first_violation(&self) -> String {
        CStr::from_bytes_until_nul(&self.first_violation).unwrap_or_default().to_string_lossy().into_owned()
    }
}

unsafe extern "C" {
    fn hairpin_fake_flow_reset(port: u16, options: *const FakeOptions);
    fn hairpin_fake_flow_change(port: u16, options: *const FakeOptions);
    fn hairpin_fake_flow_state(port: u16, state: *mut FakeState);
    fn hairpin_fake_flow_hit(port: u16, rule: *const Description, packets: u64, bytes: u64) -> i32;
}

/// The ports that tests use: `HAIRPIN_FAKE_PORT` and the next.
pub(super) const PORTS: [u16; 2] = [0x8000, 0x8001];

/// A rule in a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    No,
    /// A rule with the same match and other actions.
    Other,
    Yes,
}

pub(super) fn reset(options: &FakeOptions) {
    for port in PORTS {
        // SAFETY: the options are as C has them.
        unsafe { hairpin_fake_flow_reset(port, options) }
    }
}

pub(super) fn change(options: &FakeOptions) {
    for port in PORTS {
        // SAFETY: the options are as C has them.
        unsafe { hairpin_fake_flow_change(port, options) }
    }
}

/// Both ports' state, added up.
pub(super) fn state() -> FakeState {
    let [first, second] = PORTS.map(|port| {
        let mut state = std::mem::MaybeUninit::zeroed();
        // SAFETY: writes what it was given, all of which may be zero.
        unsafe {
            hairpin_fake_flow_state(port, state.as_mut_ptr());
            state.assume_init()
        }
    });
    let mut both: FakeState = first;
    both.live += second.live;
    both.pending += second.pending;
    both.created += second.created;
    both.destroyed += second.destroyed;
    both.refused += second.refused;
    both.pushes += second.pushes;
    both.violations += second.violations;
    both.templates += second.templates;
    if first.violations == 0 {
        both.first_violation = second.first_violation;
    }
    both
}

/// Packets for a rule; 0 only queries.
pub(super) fn hit(port: u16, rule: &Description, packets: u64, bytes: u64) -> Held {
    // SAFETY: the description is as C has it.
    match unsafe { hairpin_fake_flow_hit(port, rule, packets, bytes) } {
        0 => Held::No,
        1 => Held::Other,
        _ => Held::Yes,
    }
}

pub(super) fn change_port(port: u16, options: &FakeOptions) {
    // SAFETY: the options are as C has them.
    unsafe { hairpin_fake_flow_change(port, options) }
}
