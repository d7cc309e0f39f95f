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
        self.per_cpu_sums("totals", count, |sum: abi::TotalsValue, cpu| abi::TotalsValue {
            packets: sum.packets.wrapping_add(cpu.packets),
            bytes: sum.bytes.wrapping_add(cpu.bytes),
        })
    }

    /// The first `count` elements of an array that has one for each CPU, each summed by `add`. One system call.
    pub(super) fn per_cpu_sums<T: Bytes + Default>(
        &self,
        name: &str,
        count: u32,
        add: impl Fn(T, &T) -> T + Copy,
    ) -> Result<Vec<T>> {
        // The kernel rounds a CPU's value up to so many bytes.
        const { assert!(size_of::<T>().is_multiple_of(8)) };
        let map = self.maps.named(name)?;
        ensure!(count <= map.max_entries(), "{count} elements of map {name}: there are {}", map.max_entries());
        if count == 0 {
            return Ok(Vec::new());
        }
        let cpus = libbpf_rs::num_possible_cpus().context("cannot count CPUs")?;
        let mut keys = vec![0u32; count as usize];
        let mut values = vec![T::default(); count as usize * cpus];
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
            result => drop(result.with_context(|| format!("cannot read map {name}"))?),
        }
        ensure!(read == count, "map {name} gave {read} of {count} elements");
        Ok(values.chunks_exact(cpus).map(|all| all.iter().fold(T::default(), add)).collect())
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
