//! Compiles the BPF programs with clang; the objects are embedded in the crate.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    println!("cargo:rerun-if-env-changed=CLANG");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for name in ["hairpin", "reference", "frames", "decapsulate", "monitor"] {
        compile(&Path::new("bpf").join(name).with_extension("c"), &out.join(name).with_extension("bpf.o"));
    }
}

fn compile(source: &Path, object: &Path) {
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_string());
    let mut command = Command::new(&clang);
    command.args(["-O2", "-g", "-target", "bpf", "-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"]);
    // libbpf's headers, as libbpf-sys unpacked them.
    if let Some(include) = env::var_os("DEP_BPF_INCLUDE") {
        command.arg("-I").arg(include);
    }
    // asm/types.h and its like live where the host's compiler finds them; -target bpf does not look there.
    if let Some(directory) = multiarch() {
        command.arg("-idirafter").arg(directory);
    }
    command.arg("-c").arg(source).arg("-o").arg(object);
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("{clang} did not compile {}: {status}; its messages are above", source.display()),
        Err(error) => panic!(
            "cannot run {clang} to compile {}: {error}. Install clang (Debian: apt-get install clang linux-libc-dev), \
             or name another one in the environment variable CLANG",
            source.display()
        ),
    }
}

/// The include directory of the target's own headers on multiarch systems; the host's where a cross compiler has no such
/// directory. The programs use types and byte order of them, in which x86-64 and arm64 agree.
fn multiarch() -> Option<PathBuf> {
    let target = env::var("CARGO_CFG_TARGET_ARCH").ok();
    let machines = target.into_iter().chain([env::consts::ARCH.to_owned()]);
    machines
        .map(|machine| PathBuf::from(format!("/usr/include/{machine}-linux-gnu")))
        .find(|directory| directory.is_dir())
}
