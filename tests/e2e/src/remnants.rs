//! The objects that a Hairpin of ours leaves outside of its process and its network namespace: pins in a BPF file system,
//! shared memory. It removes them itself when it is asked to; a killed one cannot.

use crate::cleanup;
use std::path::{Path, PathBuf};

/// The directories of an instance's pins; the shared memory with its connections.
const PINS: [&str; 2] = ["/sys/fs/bpf/hairpin", "/run/hairpin/bpf"];
const MEMORY: &str = "/dev/shm";

/// An instance's remnants, noted from now on, removed when dropped.
#[derive(Debug)]
pub struct Remnants {
    instance: String,
}

impl Remnants {
    /// The remnants of the instance of that name.
    pub fn of(instance: &str) -> Remnants {
        cleanup::add_instance(instance);
        Remnants { instance: instance.to_owned() }
    }
}

impl Drop for Remnants {
    fn drop(&mut self) {
        remove(&self.instance);
        cleanup::remove_instance(&self.instance);
    }
}

/// The objects of an instance outside of its namespace and directories.
pub fn of(instance: &str) -> Vec<PathBuf> {
    let pins = PINS.iter().map(|place| Path::new(place).join(instance)).filter(|path| path.exists());
    pins.chain(memory(instance)).collect()
}

/// Files in shared memory whose name holds the instance's.
pub fn memory(instance: &str) -> Vec<PathBuf> {
    let files = std::fs::read_dir(MEMORY).into_iter().flatten().flatten().map(|entry| entry.path());
    let names_it = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.split(['-', '.']).any(|part| part == instance)
    };
    files.filter(|path| names_it(path)).collect()
}

/// Removes it.
pub fn remove(instance: &str) {
    for path in of(instance) {
        let removed = if path.is_dir() { std::fs::remove_dir_all(&path) } else { std::fs::remove_file(&path) };
        if let Err(error) = removed {
            eprintln!("could not remove {}: {error}", path.display());
        }
    }
}

/// The instance that a configuration of ours names.
pub(crate) fn instance_in(configuration: &str) -> Option<&str> {
    let line = configuration.lines().find_map(|line| line.strip_prefix("instance = \""))?;
    line.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_instance_is_read_from_its_configuration() {
        assert_eq!(instance_in("instance = \"b12\"\ninterfaces = []\n"), Some("b12"));
        assert_eq!(instance_in("interfaces = []\n"), None);
    }

    #[test]
    fn of_another_instance_nothing_is_named() {
        assert!(of("no-such-instance").is_empty());
    }
}
