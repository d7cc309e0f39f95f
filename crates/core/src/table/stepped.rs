//! For tests: the memory as a process leaves it that is killed at any instant of an operation.
//!
//! A child performs the operation one machine instruction at a time (`PTRACE_SINGLESTEP`). After each one its memory is
//! what SIGKILL would leave.

use super::region::Image;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::vec::Vec;

/// The child's exit status where ptrace is not allowed.
const FORBIDDEN: i32 = 77;

/// The child's exit status when the operation panicked.
const FAILED: i32 = 70;

/// Instructions after which all of the memory is looked at.
const ALL_AFTER: u64 = 64;

/// Performs the operation in a child, and hands its memory to `visit` before the first instruction and whenever it has
/// changed: its first `front` bytes are looked at after each instruction, the others only now and then. Returns the number of
/// instructions; `None`: this machine does not allow ptrace. The operation may allocate, and must not take a lock that
/// another thread may hold.
pub(crate) fn step_through(
    image: &Image,
    front: usize,
    operation: impl FnOnce(),
    mut visit: impl FnMut(&[u8]),
) -> Option<u64> {
    let (address, length) = image.place();
    // SAFETY: the child calls nothing but the operation and system calls; glibc's fork leaves its allocator usable.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "cannot fork");
    if pid == 0 {
        // SAFETY: plain system calls of a process with one thread.
        unsafe {
            if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
                libc::_exit(FORBIDDEN);
            }
            libc::raise(libc::SIGSTOP);
        }
        // An operation that panics must not go on as a second run of the tests.
        let done = catch_unwind(AssertUnwindSafe(operation));
        // SAFETY: ends the process, whatever else is going on in it.
        unsafe { libc::_exit(if done.is_ok() { 0 } else { FAILED }) }
    }
    if let Some(status) = wait(pid) {
        assert_eq!(status, FORBIDDEN);
        return None;
    }
    let (mut last, mut now, mut steps) = (Vec::new(), std::vec![0; length], 0);
    loop {
        read(pid, address, &mut now[..front]);
        if last.get(..front) != Some(&now[..front]) || steps % ALL_AFTER == 0 {
            read(pid, address, &mut now);
            if now != last {
                visit(&now);
                last.clone_from(&now);
            }
        }
        // SAFETY: the child is ours, traced and stopped.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0) }, 0);
        if let Some(status) = wait(pid) {
            assert_eq!(status, 0, "the operation panicked");
            return Some(steps);
        }
        steps += 1;
    }
}

/// Reads the child's memory, which lies where the parent's does.
fn read(child: libc::pid_t, address: usize, bytes: &mut [u8]) {
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let there = libc::iovec { iov_base: address as *mut _, iov_len: bytes.len() };
    // SAFETY: the kernel writes as many bytes as there are here; it checks the other address.
    let count = unsafe { libc::process_vm_readv(child, &here, 1, &there, 1, 0) };
    assert_eq!(count, bytes.len() as isize, "the child has the memory of its parent");
}

/// Waits for the child; `Some` with its exit status when it has ended.
fn wait(child: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is there to be written to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(!libc::WIFSIGNALED(status), "the child died of signal {}", libc::WTERMSIG(status));
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}
