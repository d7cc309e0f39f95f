//! The requested pages: pages of five sizes, and pages whose sizes are those of flows to web-search servers.

use anyhow::Result;
use hairpin_e2e::topology::Topology;
use std::fmt::Write;
use std::path::Path;

/// Names and lengths in bytes.
pub(super) const SIZES: [(&str, usize); 5] =
    [("1k", 1 << 10), ("16k", 16 << 10), ("128k", 128 << 10), ("1m", 1 << 20), ("16m", 16 << 20)];

/// The further pages that figures ask for.
pub(super) const MORE_SIZES: [(&str, usize); 6] =
    [("64b", 64), ("256b", 256), ("4k", 4 << 10), ("64k", 64 << 10), ("256k", 256 << 10), ("4m", 4 << 20)];

/// Lengths of flows in bytes and the share of flows that are no longer: web search, as measured for DCTCP (Alizadeh and
/// others, SIGCOMM 2010).
const WEB_SEARCH: [(f64, f64); 12] = [
    (1.0, 0.0),
    (10e3, 0.15),
    (20e3, 0.2),
    (30e3, 0.3),
    (50e3, 0.4),
    (80e3, 0.53),
    (200e3, 0.6),
    (1e6, 0.7),
    (2e6, 0.8),
    (5e6, 0.9),
    (10e6, 0.97),
    (30e6, 1.0),
];

/// Pages of the mix: each has an equal share of flows.
const MIX: usize = 50;

/// The length below which this share of flows lies.
fn quantile(share: f64) -> usize {
    let above = WEB_SEARCH.iter().position(|&(_, cdf)| cdf >= share).unwrap_or(WEB_SEARCH.len() - 1).max(1);
    let ((low, from), (high, to)) = (WEB_SEARCH[above - 1], WEB_SEARCH[above]);
    (low + (high - low) * (share - from) / (to - from)) as usize
}

/// Writes all pages, and returns the script that makes wrk ask for those of the mix at random.
pub(super) fn write(topology: &Topology, directory: &Path) -> Result<std::path::PathBuf> {
    std::fs::create_dir_all(directory)?;
    let mix = (0..MIX).map(|i| (format!("mix-{i}"), quantile((i as f64 + 0.5) / MIX as f64)));
    let sizes = SIZES.iter().chain(&MORE_SIZES).map(|&(name, length)| (name.to_owned(), length));
    let block = "0123456789abcdef".repeat(4096);
    for (name, length) in sizes.chain(mix) {
        let bytes: Vec<u8> = block.bytes().cycle().take(length).collect();
        std::fs::write(directory.join(name), bytes)?;
    }
    let mut script = String::new();
    writeln!(script, "math.randomseed(1)\nrequest = function()")?;
    writeln!(script, "  return wrk.format(\"GET\", \"/mix-\" .. math.random(0, {}))\nend", MIX - 1)?;
    topology.scratch.write("mix.lua", &script)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_distribution() {
        assert_eq!(quantile(0.15), 10_000);
        assert_eq!(quantile(0.75), 1_500_000);
        assert_eq!(quantile(1.0), 30_000_000);
        let mean = (0..MIX).map(|i| quantile((i as f64 + 0.5) / MIX as f64)).sum::<usize>() / MIX;
        assert!((1_500_000..1_900_000).contains(&mean), "{mean}");
    }
}
