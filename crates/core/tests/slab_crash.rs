//! A process killed at any instant leaves a slab whose every entry is whole or absent.
//!
//! The test does not wait for chance: a child works on a slab in shared memory one machine instruction at a time
//! (`PTRACE_SINGLESTEP`), and after each one the parent checks the memory, which is then just as SIGKILL would
//! leave it, and adopts a copy. What it finds has to be what was there before the operation under way or after it.
#![cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]

use hairpin_core::table::Position;
use hairpin_core::table::slab::{Slab, Slot, boxed, slots_at};
use std::collections::BTreeSet;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};

/// Larger than a cache line and than any store.
type Entry = [u64; 17];

const CAPACITY: usize = 6;

/// A whole entry: every word follows from the number.
fn entry(number: u64) -> Entry {
    std::array::from_fn(|i| number.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(i as u32) | 1)
}

#[derive(Clone, Copy)]
enum Op {
    Insert(u64),
    Remove(Position),
}

/// Fills the slab, and then empties and reuses positions in turn; the last insertion finds no room.
fn script() -> Vec<Op> {
    let mut ops: Vec<Op> = (1..=6).map(Op::Insert).collect();
    for round in 0..6 {
        ops.extend([Op::Remove(round), Op::Insert(10 + u64::from(round))]);
        ops.extend([Op::Remove((round + 1) % 6), Op::Remove((round + 3) % 6)]);
        ops.extend([Op::Insert(20 + u64::from(round)), Op::Insert(30 + u64::from(round))]);
    }
    ops.push(Op::Insert(99));
    ops
}

fn apply(slab: &mut Slab<Entry>, op: Op) {
    match op {
        Op::Insert(number) => {
            slab.insert(std::hint::black_box(entry(number)));
        }
        Op::Remove(position) => {
            std::hint::black_box(slab.remove(position));
        }
    }
}

fn held(slab: &Slab<Entry>) -> BTreeSet<Entry> {
    slab.positions().map(|position| *slab.at(position)).collect()
}

/// The contents of a slab before the script and after each of its steps.
fn states(ops: &[Op]) -> Vec<BTreeSet<Entry>> {
    let mut slab = Slab::new(boxed(CAPACITY));
    let mut states = vec![held(&slab)];
    for &op in ops {
        apply(&mut slab, op);
        states.push(held(&slab));
    }
    states
}

/// Shared with the child.
#[repr(C)]
struct Shared {
    slots: [Slot<Entry>; CAPACITY],
    /// Operations the child has finished.
    done: AtomicU32,
}

fn share() -> *mut Shared {
    let (protection, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, of whole pages, which replaces no other.
    let memory = unsafe { libc::mmap(std::ptr::null_mut(), size_of::<Shared>(), protection, flags, -1, 0) };
    assert_ne!(memory, libc::MAP_FAILED);
    memory.cast()
}

/// Runs the script under the parent's eyes; never returns. Calls nothing that another thread of the test may have
/// held a lock of when this process was forked.
fn child(slab: &mut Slab<Entry>, ops: &[Op], done: &AtomicU32) -> ! {
    // SAFETY: plain system calls of a process with one thread.
    unsafe {
        if libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) != 0 {
            libc::_exit(77);
        }
        libc::raise(libc::SIGSTOP);
    }
    for &op in ops {
        apply(slab, op);
        done.fetch_add(1, Ordering::Release);
    }
    // SAFETY: ends the process, whatever it is in the middle of.
    unsafe { libc::_exit(0) }
}

/// Waits for the child; `Some` with its exit status when it has ended.
fn wait(child: libc::pid_t) -> Option<i32> {
    let mut status = 0;
    // SAFETY: `status` is there to be written to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert!(!libc::WIFSIGNALED(status), "the child died of signal {}", libc::WTERMSIG(status));
    libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
}

#[test]
fn whole_or_absent_after_every_instruction() {
    let ops = script();
    let states = states(&ops);
    let shared = share();
    // SAFETY: zeroed shared memory, mapped until the process ends; in this process only the child's slab refers to it.
    let mut slab = Slab::new(unsafe { slots_at((&raw mut (*shared).slots).cast(), CAPACITY) });
    // SAFETY: a field of the mapping, initialized by its zero bytes.
    let done = unsafe { &(*shared).done };

    // SAFETY: the child makes system calls and uses memory it has; it does not allocate or take locks.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        child(&mut slab, &ops, done);
    }
    if let Some(status) = wait(pid) {
        assert_eq!(status, 77);
        eprintln!("skipped: this machine does not allow ptrace");
        return;
    }

    let copy: *mut Slot<Entry> = ManuallyDrop::new(boxed::<Entry>(CAPACITY)).as_mut_ptr();
    const BYTES: usize = size_of::<[Slot<Entry>; CAPACITY]>();
    let mut last = [1u8; BYTES];
    let (mut steps, mut images) = (0u64, 0u32);
    loop {
        let mut image = [0u8; BYTES];
        // SAFETY: the mapping is that large, and the child stands still.
        unsafe { std::ptr::copy_nonoverlapping(shared.cast::<u8>(), image.as_mut_ptr(), BYTES) };
        let finished = done.load(Ordering::Acquire) as usize;
        if image != last {
            last = image;
            images += 1;
            // SAFETY: the copy is as large, and no slab is using it now.
            unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), copy.cast::<u8>(), BYTES) };
            // SAFETY: what a slab of entries left; the slab is dropped before the copy is written again.
            let (adopted, invalid) = Slab::adopt(unsafe { slots_at(copy, CAPACITY) });
            assert_eq!(invalid, 0);
            let found = held(&adopted);
            let allowed = &states[finished..(finished + 2).min(states.len())];
            assert!(allowed.contains(&found), "after {steps} instructions, in operation {finished}: {found:x?}");
            assert_eq!(adopted.len(), found.len());
        }
        // SAFETY: the child is ours, traced and stopped.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, pid, 0, 0) }, 0);
        if let Some(status) = wait(pid) {
            assert_eq!(status, 0);
            break;
        }
        steps += 1;
    }
    assert_eq!(done.load(Ordering::Acquire) as usize, ops.len());
    // An entry is too large for one store or two, and its commit word is another.
    assert!(images as usize > 2 * ops.len(), "only {images} different images in {steps} instructions");
}
