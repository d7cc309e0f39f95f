//! The machine that figures come from.

use std::fs::read_to_string;

/// A machine, as far as results depend on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Processor, cores and kernel, in a line: results with another one are not mixed with these.
    pub name: String,
    /// Further facts, each for people.
    pub notes: Vec<String>,
}

/// This one.
pub fn machine() -> Machine {
    let processors = read_to_string("/proc/cpuinfo").unwrap_or_default();
    let of =
        |field: &str| processors.lines().find_map(|line| Some(line.strip_prefix(field)?.split_once(':')?.1.trim()));
    let release = read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let model = of("model name").unwrap_or("unknown processor");
    let name = format!("{model}, {cores} cores, Linux {}", release.trim());
    let mut notes = Vec::new();
    if of("flags").is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor")) {
        notes.push(
            "A virtual machine: its cores are threads of a host that others may use, too, and may be taken away at any \
             time. Loss and the longest latencies show that."
                .to_owned(),
        );
    }
    notes.push(memory());
    if let Ok(governor) = read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor") {
        notes.push(format!("Frequency governor: {}", governor.trim()));
    }
    let commandline = read_to_string("/proc/cmdline").unwrap_or_default();
    let isolated = commandline.split_whitespace().find(|word| word.starts_with("isolcpus="));
    notes.push(match isolated {
        Some(isolated) => format!("Cores kept free of other work: {isolated}"),
        None => "No cores are kept free of other work (isolcpus).".to_owned(),
    });
    Machine { name, notes }
}

fn memory() -> String {
    let memory = read_to_string("/proc/meminfo").unwrap_or_default();
    let of = |field: &str| {
        let line = memory.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
    };
    let huge = of("HugePages_Total");
    let pages =
        if huge > 0 { format!("{huge} huge pages of {} KiB", of("Hugepagesize")) } else { "no huge pages".to_owned() };
    format!("Memory: {:.0} GiB, {pages}", of("MemTotal") as f64 / (1 << 20) as f64)
}
