//! Every program loads and is attached, in every configuration: what `make test-kernels` also asks of other kernels.

use crate::rig::{Rig, attach_modes, command, devices, in_namespace};
use hairpin_core::flow::{Address, Steering};
use hairpin_core::l7::config::Network;
use hairpin_linux::monitor::{FlowFilter, FlowMonitor};
use hairpin_linux::programs::{Absent, LoadedPlane, ProgramOptions, SetUpRoom};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

#[test]
fn every_program_loads_in_every_configuration() {
    for mode in attach_modes() {
        for sparse in [false, true] {
            in_namespace(move || {
                let Rig { plane, .. } = Rig::new(2, |options| {
                    options.attach = mode;
                    options.rules_v6_sparse = sparse;
                    options.when_absent = if sparse { Absent::Drop } else { Absent::Pass };
                    options.keep_ttl = sparse;
                    options.set_up = sparse.then_some(SetUpRoom { pending: 4096, workers: 2 });
                });
                plane.detach().unwrap();
            });
        }
    }
}

/// A monitor's constants decide which of its code the verifier sees.
#[test]
fn monitors_load_and_attach_with_every_filter() {
    for mode in attach_modes() {
        in_namespace(move || {
            let (left, _) = devices();
            command("mount", &["-t", "bpf", "bpf", "/sys/fs/bpf"]);
            let notes = Path::new("/sys/fs/bpf/notes");
            for bits in 0..16u8 {
                let is_set = |bit: u8| bits >> bit & 1 != 0;
                let filter = FlowFilter {
                    networks: vec![Network { address: Address([0; 16]), prefix: 0 }; usize::from(is_set(0))],
                    ports: vec![1..=9; usize::from(is_set(1))],
                    protocols: vec![6; usize::from(is_set(1))],
                    handshake: is_set(2),
                    resent: is_set(3),
                };
                let mut monitor = FlowMonitor::load(&filter, 64).unwrap();
                monitor.attach(left.index, mode, notes).unwrap();
                monitor.detach().unwrap();
            }
        });
    }
}

extern "C" fn ignore(_: libc::c_int) {}

/// The kernel's verifier gives up when a signal is on its way to the thread that loads.
#[test]
fn programs_load_while_signals_arrive() {
    // SAFETY: the handler does nothing.
    assert_ne!(unsafe { libc::signal(libc::SIGUSR1, ignore as *const () as libc::sighandler_t) }, libc::SIG_ERR);
    in_namespace(|| {
        // SAFETY: names the calling thread, which outlives the other one.
        let (process, loader) = unsafe { (libc::getpid(), libc::gettid()) };
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    // SAFETY: sends a number to a thread of this process.
                    unsafe { libc::syscall(libc::SYS_tgkill, process, loader, libc::SIGUSR1) };
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let loaded = LoadedPlane::load(&ProgramOptions::default(), Steering::by_hash([1, 2], 1));
            stop.store(true, Relaxed);
            drop(loaded.unwrap());
        });
    });
}
