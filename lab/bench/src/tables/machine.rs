//! The machine that figures come from, and large pages for all alike.

use anyhow::{Context, Result};
use std::fs::read_to_string;

/// The setting that makes glibc's malloc ask for large pages for what it maps, as our own allocator does.
const TUNABLE: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");

/// Processor, cores and kernel, in a line.
pub(crate) fn name() -> String {
    let processors = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model.trim());
    let release = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{model}, {cores} cores, Linux {}", release.trim())
}

/// How the kernel hands out large pages.
pub(super) fn pages() -> String {
    let setting = read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = setting.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(chosen, _)| chosen);
    match chosen {
        Some("always" | "madvise") => "2 MiB, transparent, asked for by all".to_owned(),
        _ => "4 KiB: the kernel gives no transparent large pages".to_owned(),
    }
}

/// Bytes of memory that could be had.
pub(super) fn memory() -> usize {
    let memory = read_to_string("/proc/meminfo").unwrap_or_default();
    let available = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = available.and_then(|line| line.trim().split(' ').next()?.parse::<usize>().ok());
    kibibytes.unwrap_or(0) << 10
}

/// Starts this program anew with malloc on large pages, unless it has been: glibc reads that only when it starts.
///
/// # Errors
/// When it cannot be started.
pub(super) fn with_large_pages() -> Result<()> {
    use std::os::unix::process::CommandExt;
    let (variable, wanted) = TUNABLE;
    let tunables = std::env::var(variable).unwrap_or_default();
    if tunables.split(':').any(|tunable| tunable == wanted) {
        return Ok(());
    }
    let tunables = if tunables.is_empty() { wanted.to_owned() } else { format!("{tunables}:{wanted}") };
    let program = std::env::current_exe().context("could not find this program")?;
    let error = std::process::Command::new(program).args(std::env::args_os().skip(1)).env(variable, tunables).exec();
    Err(error).context("could not start this program anew with malloc on large pages")
}
