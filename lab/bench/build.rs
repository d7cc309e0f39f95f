//! Compiles the shim to libcuckoo, where the feature asks for it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "libcuckoo")]
    libcuckoo();
}

#[cfg(feature = "libcuckoo")]
fn libcuckoo() {
    println!("cargo::rerun-if-changed=shim/libcuckoo.cc");
    let built = cc::Build::new()
        .cpp(true)
        .std("c++17")
        .opt_level(3)
        .warnings(false)
        .file("shim/libcuckoo.cc")
        .try_compile("hairpin_libcuckoo");
    if let Err(error) = built {
        panic!("could not compile shim/libcuckoo.cc (apt-get install g++ libcuckoo-dev): {error}");
    }
}
