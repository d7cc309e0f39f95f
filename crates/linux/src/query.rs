//! Reading, taking away and passing on many rules in one system call, by programs that run in the kernel
//! (`crates/linux/bpf/query.h`).

use crate::abi::{Bytes, FlowV4, FlowV6, RULE_OPS_MAX, RuleHead, RuleRequest, RuleV4, RuleV6, slice_bytes};
use crate::control::QuerySlot;
use crate::programs::checked;
use hairpin_core::flow::FlowKey;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Key of a rule map.
pub(crate) trait RuleKey: Bytes {
    /// Which keys of a [`RuleRequest`] these are.
    const IPV6: u32;

    /// The flow; `None` if the protocol is none of ours.
    fn flow(&self) -> Option<FlowKey>;
}

impl RuleKey for FlowV4 {
    const IPV6: u32 = 0;

    fn flow(&self) -> Option<FlowKey> {
        FlowV4::flow(self)
    }
}

impl RuleKey for FlowV6 {
    const IPV6: u32 = 1;

    fn flow(&self) -> Option<FlowKey> {
        FlowV6::flow(self)
    }
}

/// Value of the rule map with keys `K`.
pub(crate) trait RuleValue<K>: Bytes {
    /// The part that both families have.
    fn head(&self) -> &RuleHead;
}

impl RuleValue<FlowV4> for RuleV4 {
    fn head(&self) -> &RuleHead {
        &self.head
    }
}

impl RuleValue<FlowV6> for RuleV6 {
    fn head(&self) -> &RuleHead {
        &self.head
    }
}

/// Runs `program`, one of the queries, on up to [`RULE_OPS_MAX`] keys. The answers are in `slot`. `worker` is the new
/// owner of rules that are passed on, else 0.
pub(crate) fn query<K: RuleKey>(program: &OwnedFd, slot: &mut QuerySlot, keys: &[K], worker: u8) -> io::Result<()> {
    debug_assert!(keys.len() <= RULE_OPS_MAX);
    slot.write_keys(slice_bytes(keys));
    let worker = u32::from(worker);
    let mut request = RuleRequest { query: slot.index(), count: keys.len() as u32, ipv6: K::IPV6, worker };
    let mut options = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as _,
        ctx_in: (&raw mut request).cast(),
        ctx_size_in: size_of::<RuleRequest>() as u32,
        ..Default::default()
    };
    // SAFETY: the options and the request they point to live through the call.
    checked(unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &mut options) })?;
    if options.retval == 0 { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

/// Runs `program` on any number of keys. Returns how many rules it found.
pub(crate) fn query_all<K: RuleKey>(
    program: &OwnedFd,
    slot: &mut QuerySlot,
    keys: &[K],
    worker: u8,
) -> io::Result<u64> {
    let mut found = 0;
    for chunk in keys.chunks(RULE_OPS_MAX) {
        query(program, slot, chunk, worker)?;
        found += (0..chunk.len()).filter(|&at| slot.counters(at).found != 0).count() as u64;
    }
    Ok(found)
}
