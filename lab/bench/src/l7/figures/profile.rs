//! The distribution of the time of the balancer's core: the counterpart of Laconic, table 4.
//!
//! `perf record` samples the balancer's core some thousand times a second, by the processor's clock (a virtual machine has
//! no counters of cycles). What it finds, its callers included, is sorted into stages by names of functions: of the kernel,
//! of BPF programs and of the worker. Work of others' processes on that core is left out, and so is idling.
//!
//! The clock's interrupt waits where interrupts are off, so what such times take is found at their ends: above all what
//! it takes to be interrupted, at the start of the softirqs that follow. (A virtual machine leaves itself for each
//! interrupt that one core sends to another.)

use super::load::{self, Variant, WrkRequest};
use super::results::{FigureResults, ResultPlace};
use super::{PageSizes, ProgressLines};
use crate::l7::peers::{BALANCER_CPU, BenchNetwork, OTHER_CPU, RunningIntermediary};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use std::collections::BTreeMap;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

/// The part's name.
pub(super) const PART: &str = "profile";
/// Percent of the core's work.
pub(super) const SHARE: &str = "percent";
/// Looks a second, no divisor of the timer's.
const FREQUENCY: &str = "3989";
/// Looks at work that a profile needs at least.
const SAMPLES_MIN: usize = 100;
/// The longest that perf may take beside sampling.
const PERF_TIMEOUT: Duration = Duration::from_secs(60);
/// Until wrk's connections are there.
const WARM_UP: Duration = Duration::from_millis(500);

/// A stage of the balancer's work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stages {
    TapRead,
    TapWrite,
    Arrivals,
    Bpf,
    Interrupts,
    Wake,
    Rules,
    ParseHeads,
    WriteHeads,
    Lookup,
    Splice,
    Copies,
    Loop,
    Other,
}

impl Stages {
    /// All of them, in the order of a packet.
    pub(super) const ALL: [Stages; 14] = [
        Stages::Arrivals,
        Stages::Bpf,
        Stages::TapRead,
        Stages::Lookup,
        Stages::ParseHeads,
        Stages::WriteHeads,
        Stages::Splice,
        Stages::Copies,
        Stages::TapWrite,
        Stages::Rules,
        Stages::Interrupts,
        Stages::Wake,
        Stages::Loop,
        Stages::Other,
    ];

    /// Its name in results.
    pub(super) fn name(self) -> &'static str {
        match self {
            Stages::Arrivals => "kernel: packets arriving at the cards (softirq)",
            Stages::Bpf => "kernel: BPF programs, their look-ups of rules, routes and neighbours",
            Stages::TapRead => "TAP read: system call, copy, virtio header",
            Stages::Lookup => "connection table",
            Stages::ParseHeads => "heads: parse, route",
            Stages::WriteHeads => "heads: edit, write",
            Stages::Splice => "splice: packets' headers, numbers, segments, connections",
            Stages::Copies => "worker: copies in memory",
            Stages::TapWrite => "TAP write: system call, copy, the kernel's way to the other card",
            Stages::Rules => "flow engine: requests for rules, their counters",
            Stages::Interrupts => "kernel: interrupts between the cores",
            Stages::Wake => "kernel: sleeping, waking",
            Stages::Loop => "worker: main loop, clock, statistics",
            Stages::Other => "other",
        }
    }

    /// Its name in the paper's table, if it is there.
    pub(super) fn of_the_paper(self) -> &'static str {
        match self {
            Stages::TapRead => "DPDK_Rx",
            Stages::ParseHeads => "Parse Resp. Header",
            Stages::WriteHeads => "Insert Header Value",
            Stages::Splice => "Reassemble Packet (in part)",
            Stages::Lookup => "Lookup Hashtable",
            _ => "",
        }
    }
}

/// Functions that say what is going on, by parts of their names. The innermost that says anything decides.
const NAMES: [(&[&str], Stages); 15] = [
    (&["rules_put", "rules_take", "rules_sample", "hairpin_linux::engine", "hairpin_linux::query"], Stages::Rules),
    (&["hairpin_core::offload", "__x64_sys_bpf", "__sys_bpf"], Stages::Rules),
    (&["bpf_prog_"], Stages::Bpf),
    (&["send_IPI", "net_rps_", "_single_ipi", "generic_exec_single"], Stages::Interrupts),
    (&["try_to_wake_up", "sys_ppoll", "sys_poll", "sys_epoll", "schedule_idle"], Stages::Wake),
    (&["handle_softirqs", "__do_softirq", "do_softirq"], Stages::Arrivals),
    (&["tun_chr_read", "tun_do_read"], Stages::TapRead),
    (&["tun_chr_write", "tun_get_user"], Stages::TapWrite),
    (&["hairpin_core::l7::head", "hairpin_core::l7::route", "hairpin_core::l7::body"], Stages::ParseHeads),
    (&["hairpin_core::l7::edit", "hairpin_core::l7::reply"], Stages::WriteHeads),
    (&["hairpin_core::l7::", "hairpin_core::rewrite", "hairpin_core::wire"], Stages::Splice),
    (&["hairpin_core::table"], Stages::Lookup),
    (&["TapIo as hairpin_core::frame::FrameIo>::receive", "TapFrame::received"], Stages::TapRead),
    (&["hairpin_linux::tap"], Stages::TapWrite),
    (&["memmove", "memcpy", "memset"], Stages::Copies),
];

/// The name where nothing more telling is found: the system call, or whose code it is.
const LAST: [(&[&str], Stages); 5] = [
    (&["libc_read", "__read"], Stages::TapRead),
    (&["libc_write", "__write"], Stages::TapWrite),
    (&["ppoll"], Stages::Wake),
    (&["hairpin"], Stages::Loop),
    (&["clock_gettime", "__rust_begin_short_backtrace", "asynccancel", "arrayvec::", "core::"], Stages::Loop),
];

/// Functions in which a core idles.
const IDLE: [&str; 6] = ["default_idle", "safe_halt", "cpu_idle_poll", "mwait_idle", "acpi_idle", "intel_idle"];

/// The worker's thread, whose work is the balancer's.
const WORKER: &str = "worker-";

/// Sorts one stack, innermost function first; `None`: it is not the balancer's work. `thread` had the core.
fn sort(thread: &str, stack: &[&str]) -> Option<Stages> {
    let is = |function: &str, parts: &[&str]| parts.iter().any(|part| function.contains(part));
    let in_softirq = stack.iter().any(|function| is(function, &["handle_softirqs", "__do_softirq", "run_ksoftirqd"]));
    let ours = thread.starts_with(WORKER) || in_softirq;
    if !ours || (!in_softirq && stack.iter().any(|function| is(function, &IDLE))) {
        return None;
    }
    // The place where interrupts are let in again after one was taken: that interrupt took the time.
    if stack.first().is_some_and(|function| function.contains("handle_softirqs")) {
        return Some(Stages::Interrupts);
    }
    let decided = stack.iter().find_map(|function| {
        let named = NAMES.iter().find(|(parts, _)| is(function, parts));
        named.map(|(_, stage)| *stage)
    });
    let last = || {
        let of = |function: &&str| LAST.iter().find(|(parts, _)| is(function, parts)).map(|(_, stage)| *stage);
        // Those of libc are called exactly so.
        let plain = |function: &&str| match *function {
            "read" => Some(Stages::TapRead),
            "write" => Some(Stages::TapWrite),
            _ => of(function),
        };
        stack.iter().find_map(plain)
    };
    Some(decided.or_else(last).unwrap_or(Stages::Other))
}

/// Counts what `perf script -F comm,ip,sym` has printed: a line with the thread's name and one for each function of the
/// stack, ended by an empty line.
fn count(text: &str) -> BTreeMap<Stages, usize> {
    let mut counts = BTreeMap::new();
    for sample in text.split("\n\n") {
        let mut lines = sample.trim_matches('\n').lines();
        let Some(thread) = lines.next() else { continue };
        let stack: Vec<&str> = lines.filter_map(|line| Some(line.trim().split_once(' ')?.1)).collect();
        if let Some(stage) = sort(thread.trim(), &stack) {
            *counts.entry(stage).or_default() += 1;
        }
    }
    counts
}

/// One of the profiles.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProfileScene {
    pub(super) name: &'static str,
    variant: Variant,
    page: &'static str,
}

/// The profiled scenes.
pub(super) const SCENES: [ProfileScene; 4] = [
    ProfileScene { name: "1 KB", variant: Variant::Auto, page: "1k" },
    ProfileScene { name: "16 KB, software only", variant: Variant::Software, page: "16k" },
    ProfileScene { name: "1 MB, software only", variant: Variant::Software, page: "1m" },
    ProfileScene { name: "1 MB, offloaded", variant: Variant::Offloaded, page: "1m" },
];

/// Looks at all of them once.
pub(super) fn measure(
    net: &BenchNetwork,
    sizes: PageSizes,
    duration: Duration,
    repetition: usize,
    results: &mut FigureResults,
    progress: &ProgressLines,
) -> Result<()> {
    let mut running = load::start(net, Variant::Auto)?;
    let mut scenes = SCENES.to_vec();
    if repetition % 2 == 1 {
        scenes.reverse();
    }
    for scene in scenes {
        let bytes = sizes.iter().find(|(page, _)| *page == scene.page).map_or(0, |(_, bytes)| *bytes);
        let counts = sample(net, &running, scene, bytes, duration)?;
        let all: usize = counts.values().sum();
        ensure!(all >= SAMPLES_MIN, "{}: the balancer's core was found at work only {all} times", scene.name);
        for part in Stages::ALL {
            let share = 100.0 * counts.get(&part).copied().unwrap_or(0) as f64 / all as f64;
            let place = ResultPlace { part: PART, setting: scene.name, series: part.name(), x: bytes as u64 };
            results.add(place, repetition, &[(SHARE, share)]);
        }
        progress.line(&format!("profile of {}: {all} looks at work", scene.name));
    }
    running.check()
}

fn sample(
    net: &BenchNetwork,
    running: &RunningIntermediary,
    scene: ProfileScene,
    bytes: usize,
    duration: Duration,
) -> Result<BTreeMap<Stages, usize>> {
    debug_assert!(matches!(running, RunningIntermediary::Hairpin(_)));
    let asked = WrkRequest { page: scene.page, bytes, mix: false };
    // It is ended when enough was seen: perf takes its time to begin where others use the machine.
    let mut wrk = load::start_wrk(net, scene.variant, asked, duration + PERF_TIMEOUT)?;
    sleep(WARM_UP);
    let data = net.topology.scratch.file("figures-perf.data");
    let mut record = Command::new("taskset");
    record.args(["-c", OTHER_CPU, "perf", "record", "-C", BALANCER_CPU, "-e", "cpu-clock", "-F", FREQUENCY, "-g"]);
    record.arg("-o").arg(&data).args(["--", "sleep", &format!("{:.1}", duration.as_secs_f64())]);
    command::output(&mut record).context("Debian's package linux-perf has perf")?;
    wrk.check()?;
    wrk.stop()?;
    let mut script = Command::new("perf");
    script.arg("script").arg("-i").arg(&data).args(["-F", "comm,ip,sym", "--no-inline"]);
    Ok(count(&command::output(&mut script)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_telling_function_decides() {
        let worker = |stack: &[&str]| sort("worker-0", stack);
        let write = ["_copy_from_iter", "tun_get_user", "tun_chr_write_iter", "vfs_write", "__GI___libc_write"];
        assert_eq!(worker(&write), Some(Stages::TapWrite));
        let arrival = ["__netif_receive_skb_core", "process_backlog", "handle_softirqs", "tun_get_user"];
        assert_eq!(worker(&arrival), Some(Stages::Arrivals));
        let program = ["fib_table_lookup", "bpf_skb_fib_lookup", "bpf_prog_2e3e_route_v4", "tun_get_user"];
        assert_eq!(worker(&program), Some(Stages::Bpf));
        assert_eq!(worker(&["hairpin_core::l7::head::framing::section"]), Some(Stages::ParseHeads));
        let find = "<hairpin_core::table::cuckoo::CuckooPlusPlus as hairpin_core::table::Lookup<K>>::find";
        assert_eq!(worker(&[find]), Some(Stages::Lookup));
        assert_eq!(worker(&["do_syscall_64", "entry_SYSCALL_64_after_hwframe", "read"]), Some(Stages::TapRead));
        assert_eq!(worker(&["hairpin_core::event_loop::EventLoop<I,E,W>::iterate"]), Some(Stages::Loop));
        assert_eq!(worker(&["handle_softirqs", "__irq_exit_rcu", "read"]), Some(Stages::Interrupts));
        assert_eq!(worker(&["an_unknown_function"]), Some(Stages::Other));
    }

    #[test]
    fn work_of_others_does_not_count() {
        assert_eq!(sort("rustc", &["hairpin_core::l7::head::request"]), None);
        assert_eq!(sort("swapper", &["pv_native_safe_halt", "default_idle", "do_idle"]), None);
        assert_eq!(sort("rustc", &["veth_poll", "handle_softirqs", "irq_exit_rcu"]), Some(Stages::Arrivals));
    }

    #[test]
    fn what_perf_prints() {
        let text =
            "worker-0 \n\tffffffff81 tun_do_read\n\t  d4ad7 read\n\nsh \n\tff do_idle\n\nworker-0 \n\t4 memmove\n\n";
        assert_eq!(count(text), BTreeMap::from([(Stages::TapRead, 1), (Stages::Copies, 1)]));
    }
}
