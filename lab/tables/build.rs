//! Compiles the C shim of rte_hash against libdpdk as hairpin-dpdk has found it. Does nothing without the feature `dpdk`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    {
        println!("cargo:rerun-if-changed=shim");
        let mut build = cc::Build::new();
        for flag in std::env::var("DEP_HAIRPIN_DPDK_CFLAGS").unwrap_or_default().split_whitespace() {
            build.flag(flag);
        }
        // Optimised as DPDK's own libraries are, also in a debug build: it stands between a benchmark and its peer.
        build.opt_level(3).std("gnu11").warnings(true).extra_warnings(true).flag("-Wno-unused-parameter");
        build.define("ALLOW_EXPERIMENTAL_API", None);
        build.files(["shim/hash.c", "shim/heap.c", "shim/transactions.c"]).compile("hairpin_tables_shim");
        for library in ["rte_hash", "rte_rcu", "rte_ring", "rte_eal"] {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
    }
}
