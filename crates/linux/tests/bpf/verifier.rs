//! Every program loads and is attached, in every configuration: what `make test-kernels` also asks of other kernels.

use crate::rig::{Rig, attach_modes, in_namespace};
use hairpin_core::flow::Steering;
use hairpin_linux::programs::{Absent, LoadedPlane, ProgramOptions, SetUpRoom};
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
