//! Names of functions in this program, inlined ones included.

use addr2line::Loader;
use std::fs::{read_link, read_to_string};
use std::path::Path;

/// The program's own crates, by their directories: debug information without types names functions without their path,
/// so the path is made of the source file's.
const CRATES: [(&str, &str); 5] = [
    ("/core/src/", "hairpin_core"),
    ("/dpdk/src/", "hairpin_dpdk"),
    ("/lab/src/", "hairpin_lab"),
    ("/linux/src/", "hairpin_linux"),
    ("/hairpin/src/", "hairpin"),
];
/// The directories of the standard library's sources and of other crates.
const FOREIGN: [&str; 3] = ["/rustc/", "/registry/", "/library/"];

/// This program's debug information and where it is in memory.
pub(super) struct Symbols {
    loader: Loader,
    /// Address ranges of the program's file.
    ranges: Vec<(u64, u64)>,
    /// The difference between an address in memory and the one in the file.
    bias: u64,
}

impl Symbols {
    /// This program's; `None` if they cannot be read, and then perf's own names must do.
    pub(super) fn own() -> Option<Symbols> {
        let program = read_link("/proc/self/exe").ok()?;
        let (ranges, bias) = mapped(&read_to_string("/proc/self/maps").ok()?, &program)?;
        Some(Symbols { loader: Loader::new(&program).ok()?, ranges, bias })
    }

    /// The function at an address; `None` if it is not this program's or has no name.
    pub(super) fn name(&self, address: u64) -> Option<String> {
        if !self.ranges.iter().any(|(start, end)| (*start..*end).contains(&address)) {
            return None;
        }
        let address = address.checked_sub(self.bias)?;
        let mut frames = self.loader.find_frames(address).ok()?;
        let mut innermost = None;
        while let Ok(Some(frame)) = frames.next() {
            // Debug information of lines alone names inlined functions only; the others' names are those of symbols.
            let name = match frame.function.as_ref().map(|function| function.demangle()) {
                Some(name) => short(&name.ok()?),
                None => short(&addr2line::demangle_auto(self.loader.find_symbol(address)?.into(), None)),
            };
            let module = frame.location.and_then(|location| location.file).and_then(module);
            match module {
                Some(module) if name.contains(&module) => return Some(name),
                Some(module) => return Some(format!("{module}::{name}")),
                None => innermost.get_or_insert(name),
            };
        }
        innermost
    }
}

/// The module of one of our source files; `None` if the file is the standard library's or another crate's: a function
/// of theirs says nothing of what is done, its caller does.
fn module(file: &str) -> Option<String> {
    if FOREIGN.iter().any(|part| file.contains(part)) {
        return None;
    }
    // Paths may begin with the crate's directory.
    let file = format!("/{file}");
    let (name, path) = CRATES.iter().find_map(|(directory, name)| Some((name, file.rsplit_once(directory)?.1)))?;
    let path = path.strip_suffix(".rs")?;
    let path = path.strip_suffix("/mod").unwrap_or(path);
    let path = if path == "lib" || path == "main" { String::new() } else { format!("::{}", path.replace('/', "::")) };
    Some(format!("{name}{path}"))
}

/// The program's ranges and its bias, from what `/proc/self/maps` says.
fn mapped(maps: &str, program: &Path) -> Option<(Vec<(u64, u64)>, u64)> {
    let mut ranges = Vec::new();
    let mut bias = None;
    for line in maps.lines() {
        let mut words = line.split_whitespace();
        let (range, offset) = (words.next()?, words.nth(1)?);
        if words.nth(2).is_none_or(|path| path != program.as_os_str().to_string_lossy()) {
            continue;
        }
        let (start, end) = range.split_once('-')?;
        let [start, end, offset] = [start, end, offset].map(|number| u64::from_str_radix(number, 16));
        let (start, end, offset) = (start.ok()?, end.ok()?, offset.ok()?);
        // A position-independent program's first segment is at its bias.
        if offset == 0 {
            bias.get_or_insert(start);
        }
        ranges.push((start, end));
    }
    Some((ranges, bias?))
}

/// Without the hash at its end.
fn short(name: &str) -> String {
    match name.rsplit_once("::h") {
        Some((front, hash)) if hash.len() == 16 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => {
            front.to_owned()
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bias_is_where_the_file_begins() {
        let maps = "5500000-5600000 r--p 00000000 fe:00 42   /bin/x\n5600000-5700000 r-xp 00100000 fe:00 42   /bin/x\n\
                    7f00000-7f10000 r-xp 00000000 fe:00 43   /lib/libc.so\n7f20000-7f30000 rw-p 00000000 00:00 0\n";
        let (ranges, bias) = mapped(maps, Path::new("/bin/x")).unwrap();
        assert_eq!((ranges, bias), (vec![(0x550_0000, 0x560_0000), (0x560_0000, 0x570_0000)], 0x550_0000));
        assert!(mapped(maps, Path::new("/bin/y")).is_none());
    }

    #[test]
    fn hashes_are_cut_off() {
        assert_eq!(short("a::b::h0123456789abcdef"), "a::b");
        assert_eq!(short("a::halt"), "a::halt");
    }

    #[test]
    fn modules_are_those_of_source_files() {
        assert_eq!(module("/x/core/src/table/cuckoo.rs").unwrap(), "hairpin_core::table::cuckoo");
        assert_eq!(module("core/src/table/mod.rs").unwrap(), "hairpin_core::table");
        assert_eq!(module("/x/lab/src/lib.rs").unwrap(), "hairpin_lab");
        assert_eq!(module("/rustc/59/library/core/src/slice/mod.rs"), None);
        assert_eq!(module("/root/.cargo/registry/src/index/arrayvec-0.7.6/src/arrayvec.rs"), None);
    }

    #[test]
    fn our_own_functions_are_found() {
        // A function of this very program, as a sample of the profiler would show it.
        let Some(symbols) = Symbols::own() else { panic!("no debug information can be read") };
        let name = symbols.name(super::super::by_stage as *const () as usize as u64 + 1);
        assert_eq!(name.as_deref(), Some("hairpin_lab::profile::stages::by_stage"));
    }
}
