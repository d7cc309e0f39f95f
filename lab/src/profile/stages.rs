//! Functions, sorted into stages of a packet's path.

use crate::testbed::Profile;

/// A stage of the device's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
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

impl Stage {
    /// All of them, in the order of a packet.
    pub const ALL: [Stage; 10] = [
        Stage::Io,
        Stage::Headers,
        Stage::Table,
        Stage::Balance,
        Stage::Connections,
        Stage::Rewrite,
        Stage::Memory,
        Stage::Loop,
        Stage::Kernel,
        Stage::Other,
    ];

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Io => "packets in and out (rings, ports, mbufs)",
            Stage::Headers => "headers: parse, check",
            Stage::Table => "connection table: hash, look up, insert, locks",
            Stage::Balance => "choice of a backend",
            Stage::Connections => "connections: state, time, ageing",
            Stage::Rewrite => "rewriting, checksums",
            Stage::Memory => "copies in memory",
            Stage::Loop => "loop, and what is left of the program",
            Stage::Kernel => "kernel",
            Stage::Other => "other",
        }
    }

    /// The stage of a function, by its name.
    pub fn of(function: &str) -> Stage {
        let is = |parts: &[&str]| parts.iter().any(|part| function.contains(part));
        let found = NAMES.iter().find(|(parts, _)| is(parts));
        found.map_or(Stage::Other, |(_, stage)| *stage)
    }
}

/// Parts of functions' names; the first that fits decides.
const NAMES: [(&[&str], Stage); 10] = [
    (&["[k] "], Stage::Kernel),
    (&["hairpin_core::table::ageing", "hairpin_core::table::slab"], Stage::Connections),
    (&["hairpin_core::table::entry"], Stage::Connections),
    (&["hairpin_core::table", "hairpin_tables", "rte_hash", "rte_spinlock", "rte_rwlock"], Stage::Table),
    (&["hairpin_core::balance"], Stage::Balance),
    (&["hairpin_core::rewrite", "checksum", "cksum"], Stage::Rewrite),
    (&["hairpin_core::wire", "hairpin_core::flow", "hairpin_lab::forward"], Stage::Headers),
    (&["hairpin_core::l4", "hairpin_core::time"], Stage::Connections),
    (&["rte_", "hairpin_dpdk", "hp_", "_burst", "mbuf", "mempool", "pmd_", "hairpin_core::frame"], Stage::Io),
    (&["hairpin"], Stage::Loop),
];

/// Parts of functions' names for functions that [`NAMES`] does not place; the first that fits decides.
const LAST: [(&[&str], Stage); 2] = [
    (&["memmove", "memcpy", "memset", "memcmp", "bcmp"], Stage::Memory),
    (&["core::", "std::", "alloc::"], Stage::Loop),
];

/// A profile's shares by stage, in the order of a packet; stages without any are left out.
pub fn by_stage(profile: &Profile) -> Vec<(Stage, f64)> {
    let sort = |function: &str| match Stage::of(function) {
        Stage::Other => {
            let last = LAST.iter().find(|(parts, _)| parts.iter().any(|part| function.contains(part)));
            last.map_or(Stage::Other, |(_, stage)| *stage)
        }
        stage => stage,
    };
    let share = |stage| {
        let of_it = profile.shares.iter().filter(|(function, _)| sort(function) == stage);
        (stage, of_it.map(|(_, share)| share).sum::<f64>())
    };
    Stage::ALL.into_iter().map(share).filter(|(_, share)| *share > 0.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_sorted() {
        for (function, stage) in [
            ("<hairpin_core::table::cuckoo::CuckooPlusPlus as hairpin_core::table::Lookup<K>>::find", Stage::Table),
            ("hairpin_core::table::ageing::stamps::Stamps::due", Stage::Connections),
            ("rte_hash_lookup_with_hash", Stage::Table),
            ("hp_rx_burst", Stage::Io),
            ("rte_ring_dequeue_burst", Stage::Io),
            ("hairpin_core::wire::ipv4::Packet::check", Stage::Headers),
            ("hairpin_core::wire::checksum::sum", Stage::Rewrite),
            ("hairpin_lab::forward::Forwarder::burst", Stage::Headers),
            ("hairpin_core::worker::Worker::handle_batch", Stage::Loop),
            ("[k] native_queued_spin_lock", Stage::Kernel),
        ] {
            assert_eq!(Stage::of(function), stage, "{function}");
        }
    }

    #[test]
    fn stages_add_up_to_all_there_is() {
        let shares = [("rte_hash_lookup", 0.5), ("hp_tx_burst", 0.2), ("__memmove_avx", 0.2), ("what", 0.1)];
        let shares = shares.map(|(function, share)| (function.to_owned(), share)).to_vec();
        let stages = by_stage(&Profile { by: String::new(), shares });
        assert_eq!(stages, [(Stage::Io, 0.2), (Stage::Table, 0.5), (Stage::Memory, 0.2), (Stage::Other, 0.1)]);
    }
}
