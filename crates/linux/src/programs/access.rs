//! The services' access rules in the programs: a trie of all their prefixes, filled beside the one in force and then put in its
//! place, so that each packet meets the one or the other.
//!
//! A prefix takes 128 bytes of kernel memory at most, twice that while a trie is being replaced.

use super::LoadedPlane;
use crate::abi::{self, ACCESS_NO_RULE, AccessKey, AccessValue, Bytes};
use anyhow::{Context, Result};
use hairpin_core::access::AccessList;
use hairpin_core::config::{ServiceState, Snapshot};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, MapType};
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Bits of a key before the client's address.
const SERVICE_BITS: u32 = 32;
/// Prefixes that the kernel is given in one system call.
const BATCH: usize = 4096;

/// Services' rules, by number.
type Lists = Vec<(u32, Arc<AccessList>)>;

/// The rules that the programs have; `None`: those of an earlier process, which are not known.
#[derive(Debug, Default)]
pub(super) struct AccessInForce(Mutex<Option<Lists>>);

impl LoadedPlane {
    /// Has the programs judge clients by the rules of these services. Nothing happens if they do already. Services whose ends
    /// do not have [`abi::END_ACCESS`] are not judged.
    ///
    /// # Errors
    /// The kernel has no memory for the trie: the one before stays in force.
    pub(super) fn configure_access(&self, snapshot: &Snapshot) -> Result<()> {
        let wanted = lists(snapshot);
        let mut in_force = self.access.0.lock().unwrap_or_else(PoisonError::into_inner);
        if in_force.as_ref() == Some(&wanted) {
            return Ok(());
        }
        let rules = self.maps.named("access_rules")?;
        if wanted.is_empty() {
            match rules.delete(0u32.bytes()) {
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).context("cannot take the access rules away");
                }
                _ => {}
            }
        } else {
            let trie = fill(&wanted).context("cannot make the trie of access rules")?;
            let fd = trie.as_fd().as_raw_fd();
            rules.update(0u32.bytes(), &fd.to_ne_bytes(), MapFlags::ANY).context("cannot change map access_rules")?;
        }
        *in_force = Some(wanted);
        Ok(())
    }

    /// Packets that access rules have refused or counted, summed over CPUs: of the first `services` services,
    /// [`abi::ACCESS_RULES_MAX`] each.
    ///
    /// # Errors
    /// The map cannot be read.
    pub fn access_counts(&self, services: u32) -> Result<Vec<u64>> {
        self.per_cpu_sums("access_counts", services * abi::ACCESS_RULES_MAX as u32, |sum: u64, cpu| {
            sum.wrapping_add(*cpu)
        })
    }
}

/// The rules of all services that have some.
fn lists(snapshot: &Snapshot) -> Lists {
    let there = (0..).zip(&snapshot.services).filter(|(_, service)| service.state != ServiceState::Vacant);
    there.filter_map(|(number, service)| Some((number, Arc::clone(service.access.as_ref()?)))).collect()
}

/// A trie of the prefixes of all these rules.
fn fill(lists: &Lists) -> Result<MapHandle> {
    let (mut keys, mut values) = (Vec::new(), Vec::new());
    for (service, list) in lists {
        for (network, decision) in list.prefixes() {
            let length = SERVICE_BITS + u32::from(network.prefix);
            keys.push(AccessKey { length, service: *service, client: network.address.0 });
            let [denied, counted] = [decision.denied, decision.counted].map(|rule| rule.unwrap_or(ACCESS_NO_RULE));
            values.push(AccessValue { denied, counted, zero: [0; 2] });
        }
    }
    let options = libbpf_sys::bpf_map_create_opts {
        sz: size_of::<libbpf_sys::bpf_map_create_opts>() as _,
        map_flags: libbpf_sys::BPF_F_NO_PREALLOC,
        ..Default::default()
    };
    let (key, value) = (size_of::<AccessKey>() as u32, size_of::<AccessValue>() as u32);
    let trie =
        MapHandle::create(MapType::LpmTrie, Some("access_trie"), key, value, keys.len().max(1) as u32, &options)?;
    for (keys, values) in keys.chunks(BATCH).zip(values.chunks(BATCH)) {
        let (count, any) = (keys.len() as u32, MapFlags::ANY);
        trie.update_batch(abi::slice_bytes(keys), abi::slice_bytes(values), count, any, any)?;
    }
    Ok(trie)
}
