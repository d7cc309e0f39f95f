//! Reading what the programs count, in one system call each: it is asked for often.

use super::{LoadedPlane, checked, raw};
use crate::abi::{self, Bytes};
use anyhow::{Context, Result, ensure};
use libbpf_rs::{MapCore, MapFlags};
use std::os::fd::AsFd;

impl LoadedPlane {
    /// The fates of packets that took no rule, summed over CPUs: in the order of [`abi::EVENTS`].
    pub fn events(&self) -> Result<[u64; abi::EVENTS.len()]> {
        let mut sums = [0; abi::EVENTS.len()];
        let found = self.maps.named("events")?.lookup_percpu(0u32.bytes(), MapFlags::ANY);
        for cpu in found.context("cannot read map events")?.context("map events has no element")? {
            for (sum, word) in sums.iter_mut().zip(cpu.as_chunks::<8>().0) {
                *sum += u64::from_ne_bytes(*word);
            }
        }
        Ok(sums)
    }

    /// Traffic that rules have forwarded, summed over CPUs: of the first `count` values of
    /// [`hairpin_core::engine::Rule::total`], at most twice [`abi::BACKENDS_MAX`]. One system call.
    pub fn totals(&self, count: u32) -> Result<Vec<abi::TotalsValue>> {
        let map = self.maps.named("totals")?;
        ensure!(count <= map.max_entries(), "{count} totals: there are {}", map.max_entries());
        if count == 0 {
            return Ok(Vec::new());
        }
        let cpus = libbpf_rs::num_possible_cpus().context("cannot count CPUs")?;
        let mut keys = vec![0u32; count as usize];
        let mut values = vec![abi::TotalsValue::default(); count as usize * cpus];
        let mut read = count;
        let mut next = 0u32;
        let options = libbpf_sys::bpf_map_batch_opts {
            sz: size_of::<libbpf_sys::bpf_map_batch_opts>() as _,
            ..Default::default()
        };
        // SAFETY: there is room for `read` keys, for as many values for each CPU, and for the key to go on from; all
        // live through the call, and any bytes are valid for them.
        let result = unsafe {
            libbpf_sys::bpf_map_lookup_batch(
                raw(map.as_fd()),
                std::ptr::null_mut(),
                (&raw mut next).cast(),
                keys.as_mut_ptr().cast(),
                values.as_mut_ptr().cast(),
                &mut read,
                &options,
            )
        };
        match checked(result) {
            // There are no more than these.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            result => drop(result.context("cannot read map totals")?),
        }
        ensure!(read == count, "map totals gave {read} of {count} elements");
        let sum = |sum: abi::TotalsValue, cpu: &abi::TotalsValue| abi::TotalsValue {
            packets: sum.packets.wrapping_add(cpu.packets),
            bytes: sum.bytes.wrapping_add(cpu.bytes),
        };
        Ok(values.chunks_exact(cpus).map(|all| all.iter().fold(abi::TotalsValue::default(), sum)).collect())
    }

    /// Sets totals to zero, for backends that are new under an old one's number. Rules that still count there, count
    /// on.
    pub fn clear_totals(&self, totals: &[u32]) -> Result<()> {
        let cpus = libbpf_rs::num_possible_cpus().context("cannot count CPUs")?;
        let zeros = vec![abi::TotalsValue::default().bytes().to_vec(); cpus];
        let map = self.maps.named("totals")?;
        totals.iter().try_for_each(|total| {
            let cleared = map.update_percpu(total.bytes(), &zeros, MapFlags::ANY);
            cleared.with_context(|| format!("cannot clear element {total} of map totals"))
        })
    }
}
