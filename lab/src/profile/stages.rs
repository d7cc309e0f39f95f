//! Functions, sorted into stages of a packet's path.

use crate::testbed::TimeProfile;

/// A stage of the device's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceStage {
    /// Taking packets from rings or ports and handing them over, mbufs.
    Io,
    /// Parsing, checking headers, checksums.
    Headers,
    /// The connection table: hashing, look-up, insertion, waiting for its locks.
    Table,
    /// Choosing backends.
    Balance,
    /// Connections' states, times, ageing.
    Connections,
    /// Writing new addresses, ports and checksums.
    Rewrite,
    /// Copying and comparing memory.
    Memory,
    /// The worker's loop, and what else the program does.
    Loop,
    /// The kernel.
    Kernel,
    /// All else.
    Other,
}

impl DeviceStage {
    /// All of them, in the order of a packet.
    pub const ALL: [DeviceStage; 10] = [
        DeviceStage::Io,
        DeviceStage::Headers,
        DeviceStage::Table,
        DeviceStage::Balance,
        DeviceStage::Connections,
        DeviceStage::Rewrite,
        DeviceStage::Memory,
        DeviceStage::Loop,
        DeviceStage::Kernel,
        DeviceStage::Other,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            DeviceStage::Io => "packets in and out (rings, ports, mbufs)",
            DeviceStage::Headers => "headers: parse, check",
            DeviceStage::Table => "connection table: hash, look up, insert, locks",
            DeviceStage::Balance => "choice of a backend",
            DeviceStage::Connections => "connections: state, time, ageing",
            DeviceStage::Rewrite => "rewriting, checksums",
            DeviceStage::Memory => "copies in memory",
            DeviceStage::Loop => "loop, and what is left of the program",
            DeviceStage::Kernel => "kernel",
            DeviceStage::Other => "other",
        }
    }

    /// The stage of a function, by its name.
    pub fn of(function: &str) -> DeviceStage {
        let is = |parts: &[&str]| parts.iter().any(|part| function.contains(part));
        let found = NAMES.iter().find(|(parts, _)| is(parts));
        found.map_or(DeviceStage::Other, |(_, stage)| *stage)
    }
}

/// Parts of functions' names; the first that fits decides.
const NAMES: [(&[&str], DeviceStage); 10] = [
    (&["[k] "], DeviceStage::Kernel),
    (&["hairpin_core::table::ageing", "hairpin_core::table::slab"], DeviceStage::Connections),
    (&["hairpin_core::table::entry"], DeviceStage::Connections),
    (&["hairpin_core::table", "hairpin_tables", "rte_hash", "rte_spinlock", "rte_rwlock"], DeviceStage::Table),
    (&["hairpin_core::balance"], DeviceStage::Balance),
    (&["hairpin_core::rewrite", "checksum", "cksum"], DeviceStage::Rewrite),
    (&["hairpin_core::wire", "hairpin_core::flow", "hairpin_lab::forward"], DeviceStage::Headers),
    (&["hairpin_core::l4", "hairpin_core::time"], DeviceStage::Connections),
    (&["rte_", "hairpin_dpdk", "hp_", "_burst", "mbuf", "mempool", "pmd_", "hairpin_core::frame"], DeviceStage::Io),
    (&["hairpin"], DeviceStage::Loop),
];

/// Parts of functions' names for functions that [`NAMES`] does not place; the first that fits decides.
const LAST: [(&[&str], DeviceStage); 2] = [
    (&["memmove", "memcpy", "memset", "memcmp", "bcmp"], DeviceStage::Memory),
    (&["core::", "std::", "alloc::"], DeviceStage::Loop),
];

/// A profile's shares by stage, in the order of a packet; stages without any are left out.
pub fn by_stage(profile: &TimeProfile) -> Vec<(DeviceStage, f64)> {
    let sort = |function: &str| match DeviceStage::of(function) {
        DeviceStage::Other => {
            let last = LAST.iter().find(|(parts, _)| parts.iter().any(|part| function.contains(part)));
            last.map_or(DeviceStage::Other, |(_, stage)| *stage)
        }
        stage => stage,
    };
    let share = |stage| {
        let of_it = profile.shares.iter().filter(|(function, _)| sort(function) == stage);
        (stage, of_it.map(|(_, share)| share).sum::<f64>())
    };
    DeviceStage::ALL.into_iter().map(share).filter(|(_, share)| *share > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_sorted() {
        for (function, stage) in [
            (
                "<hairpin_core::table::cuckoo::CuckooPlusPlus as hairpin_core::table::Lookup<K>>::find",
                DeviceStage::Table,
            ),
            ("hairpin_core::table::ageing::stamps::Stamps::due", DeviceStage::Connections),
            ("rte_hash_lookup_with_hash", DeviceStage::Table),
            ("hp_rx_burst", DeviceStage::Io),
            ("rte_ring_dequeue_burst", DeviceStage::Io),
            ("hairpin_core::wire::ipv4::Packet::check", DeviceStage::Headers),
            ("hairpin_core::wire::checksum::sum", DeviceStage::Rewrite),
            ("hairpin_lab::forward::Forwarder::burst", DeviceStage::Headers),
            ("hairpin_core::worker::Worker::handle_batch", DeviceStage::Loop),
            ("[k] native_queued_spin_lock", DeviceStage::Kernel),
        ] {
            assert_eq!(DeviceStage::of(function), stage, "{function}");
        }
    }

    #[test]
    fn stages_add_up_to_all_there_is() {
        let shares = [("rte_hash_lookup", 0.5), ("hp_tx_burst", 0.2), ("__memmove_avx", 0.2), ("what", 0.1)];
        let shares = shares.map(|(function, share)| (function.to_owned(), share)).to_vec();
        let stages = by_stage(&TimeProfile { by: String::new(), shares });
        assert_eq!(
            stages,
            [(DeviceStage::Io, 0.2), (DeviceStage::Table, 0.5), (DeviceStage::Memory, 0.2), (DeviceStage::Other, 0.1)]
        );
    }
}
