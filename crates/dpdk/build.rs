//! Compiles the C shim against libdpdk, as pkg-config finds it, and links it dynamically (so that DPDK's drivers load
//! by themselves). Does nothing without the feature `dpdk`.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "dpdk")]
    shim::build();
}

#[cfg(feature = "dpdk")]
mod shim {
    use std::process::Command;

    /// The only libraries that the shim calls; whatever they need they name themselves.
    const LIBRARIES: [&str; 6] = ["rte_net_ring", "rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_eal"];
    /// The sources of the shim, one name a line so that several hands can add to it.
    #[rustfmt::skip]
    const SOURCES: &[&str] = &[
        "shim/eal.c",
        "shim/flow.c",
        "shim/flow_build.c",
        "shim/flow_dump.c",
        "shim/mbuf.c",
        "shim/port.c",
        "shim/ring.c",
    ];

    /// The device that only tests have.
    #[cfg(feature = "fake-flow")]
    const FAKE: [&str; 3] = ["shim/fake_flow.c", "shim/fake_flow_async.c", "shim/fake_flow_words.c"];

    pub(crate) fn build() {
        println!("cargo:rerun-if-changed=shim");
        println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
        let mut build = cc::Build::new();
        let flags = pkg_config("--cflags");
        // The flags for another crate with a shim over DPDK.
        println!("cargo:cflags={}", flags.join(" "));
        for flag in flags {
            build.flag(flag);
        }
        // Optimised as DPDK's own libraries are, also in a debug build: it stands between a benchmark and its peer.
        build.opt_level(3).std("gnu11").warnings(true).extra_warnings(true).flag("-Wno-unused-parameter");
        // A port's configuration can be asked for only so on 22.11, and flow templates are.
        build.define("ALLOW_EXPERIMENTAL_API", None);
        #[cfg(feature = "fake-flow")]
        build.define("HAIRPIN_FAKE_FLOW", None).files(FAKE);
        build.files(SOURCES).compile("hairpin_dpdk_shim");
        for flag in pkg_config("--libs-only-L") {
            if let Some(directory) = flag.strip_prefix("-L") {
                println!("cargo:rustc-link-search=native={directory}");
            }
        }
        for library in LIBRARIES {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
    }

    /// The output of pkg-config for libdpdk, word by word. A missing library ends the build with what to install.
    fn pkg_config(option: &str) -> Vec<String> {
        const INSTALL: &str = "the feature `dpdk` needs DPDK 22.11: install it (Debian: apt-get install \
                               libdpdk-dev pkg-config) or build without the feature";
        match Command::new("pkg-config").args([option, "libdpdk"]).output() {
            Ok(output) if output.status.success() => {
                String::from_utf8_lossy(&output.stdout).split_whitespace().map(str::to_owned).collect()
            }
            Ok(output) => stop(&format!("{INSTALL}\n{}", String::from_utf8_lossy(&output.stderr))),
            Err(error) => stop(&format!("{INSTALL}\ncannot run pkg-config: {error}")),
        }
    }

    fn stop(message: &str) -> ! {
        eprintln!("error: {message}");
        std::process::exit(1);
    }
}
