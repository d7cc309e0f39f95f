//! Threads in a namespace.

use crate::namespace::Namespace;
use anyhow::{Context, Result, anyhow};
use nix::sched::{CloneFlags, CpuSet, sched_setaffinity, setns};
use nix::unistd::Pid;
use std::fs::File;
use std::thread::JoinHandle;

/// Runs `body` on a new thread whose sockets belong to `namespace`, on core `cpu` only if one is given.
pub fn spawn<T: Send + 'static>(
    namespace: &Namespace,
    cpu: Option<usize>,
    body: impl FnOnce() -> Result<T> + Send + 'static,
) -> JoinHandle<Result<T>> {
    let path = format!("/run/netns/{}", namespace.name());
    std::thread::spawn(move || {
        let file = File::open(&path).with_context(|| format!("could not open {path}"))?;
        setns(file, CloneFlags::CLONE_NEWNET).with_context(|| format!("could not enter {path}"))?;
        if let Some(cpu) = cpu {
            let mut set = CpuSet::new();
            set.set(cpu)?;
            // Zero names the calling thread.
            sched_setaffinity(Pid::from_raw(0), &set).with_context(|| format!("could not run on core {cpu}"))?;
        }
        body()
    })
}

/// Runs `body` in `namespace` and waits for it.
pub fn run<T: Send + 'static>(namespace: &Namespace, body: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    join(spawn(namespace, None, body))
}

/// Waits for a thread's result.
pub fn join<T>(thread: JoinHandle<Result<T>>) -> Result<T> {
    thread.join().map_err(|_| anyhow!("a thread panicked (its message is above)"))?
}
