//! The cost of reading a frame from a TAP device and of writing it: a system call each, against bursts by io_uring.
//!
//! `sudo unshare -n target/release/examples/tap_cost` makes a device in the namespace it is started in and removes it.
//! Frames written there are not addressed to the host, so the kernel drops them at once and writes show the device's cost
//! and little more. One processor, rounds alternate, medians. io_uring gets the best it can: device registered, one
//! issuer, one call for a burst, and it knows how many frames there are to read.

use hairpin_core::time::Time;
use hairpin_linux::cpu;
use hairpin_linux::tap::{FRAME_BYTES_MAX, Tap, TapIo};
use io_uring::{IoUring, opcode, squeue, types::Fixed};
use std::io;
use std::net::UdpSocket;
use std::os::fd::{AsRawFd, RawFd};
use std::process::Command;

/// Frames per burst.
const BURSTS: [usize; 4] = [1, 4, 16, 64];
/// Rounds of each.
const ROUNDS: usize = 1000;

fn main() -> io::Result<()> {
    cpu::pin(*cpu::allowed()?.last().ok_or(io::ErrorKind::NotFound)?)?;
    println!("frame bytes  burst  plain read  ring read  plain write  ring write   (ns per frame, medians)");
    let device = TapIo::new(Tap::create("tap-cost", 4096)?, 1)?;
    let source = source()?;
    let mut ring = TapUring::new(device.as_raw_fd())?;
    let mut buffers = vec![vec![0; FRAME_BYTES_MAX + 64]; 64];
    for length in [64, 1514, 65_000] {
        for burst in BURSTS {
            let mut costs = [(); 4].map(|()| Vec::new());
            for round in 0..ROUNDS {
                for _ in 0..burst {
                    source.send(&vec![0; length - 42])?;
                }
                let (with_ring, fd) = (round % 2, device.as_raw_fd());
                let buffers = &mut buffers[..burst];
                let start = cpu::now();
                let frames = if with_ring == 1 { ring.read(buffers)? } else { read_singly(fd, buffers) };
                let read = cpu::now();
                if frames != burst {
                    return Err(io::Error::other(format!("{frames} of {burst} frames came")));
                }
                for buffer in buffers.iter_mut() {
                    buffer[10] = 0x12; // not the device's address any more
                }
                let bytes = length + 10;
                let between = cpu::now();
                let frames =
                    if with_ring == 1 { ring.write(buffers, bytes)? } else { write_singly(fd, buffers, bytes) };
                let written = cpu::now();
                if frames != burst {
                    return Err(io::Error::other(format!("{frames} of {burst} frames went")));
                }
                costs[with_ring].push(per_frame(start, read, burst));
                costs[2 + with_ring].push(per_frame(between, written, burst));
            }
            let [plain_read, ring_read, plain_write, ring_write] = costs.map(median);
            println!("{length:>11} {burst:>6} {plain_read:>11} {ring_read:>10} {plain_write:>12} {ring_write:>11}");
        }
    }
    drop(ring);
    device.into_tap().destroy()
}

/// A socket whose datagrams leave by the device, marked as BPF marks them: a device without ARP sends to its own
/// Ethernet address, so that address is made the mark.
fn source() -> io::Result<UdpSocket> {
    for arguments in [
        "link set tap-cost down",
        "link set tap-cost address 0a:03:01:00:00:2a",
        "link set tap-cost up",
        "address add 198.18.0.1/24 dev tap-cost",
    ] {
        if !Command::new("ip").args(arguments.split(' ')).status()?.success() {
            return Err(io::Error::other(format!("ip {arguments} failed")));
        }
    }
    let socket = UdpSocket::bind("198.18.0.1:0")?;
    socket.connect("198.18.0.2:9")?;
    Ok(socket)
}

/// One call a frame, and one that finds no more, as a worker needs it to know that it may sleep.
fn read_singly(fd: RawFd, buffers: &mut [Vec<u8>]) -> usize {
    let read = |buffer: &mut [u8]| {
        // SAFETY: the buffer is as long as it says.
        unsafe { libc::read(fd, buffer.as_mut_ptr().cast(), buffer.len()) > 0 }
    };
    let (most, mut frames) = (buffers.len(), 0);
    while frames < most && read(&mut buffers[frames]) {
        frames += 1;
    }
    frames + usize::from(most < 64 && read(&mut [0; 64]))
}

fn write_singly(fd: RawFd, buffers: &[Vec<u8>], bytes: usize) -> usize {
    let written = |buffer: &&Vec<u8>| {
        // SAFETY: the slice is as long as it says.
        unsafe { libc::write(fd, buffer[..bytes].as_ptr().cast(), bytes) == bytes as isize }
    };
    buffers.iter().filter(written).count()
}

/// Reads and writes in bursts, a system call a burst.
struct TapUring(IoUring);

impl TapUring {
    fn new(device: RawFd) -> io::Result<TapUring> {
        let ring = IoUring::builder().setup_single_issuer().setup_defer_taskrun().build(128)?;
        ring.submitter().register_files(&[device])?;
        Ok(TapUring(ring))
    }

    fn read(&mut self, buffers: &mut [Vec<u8>]) -> io::Result<usize> {
        let entry = |b: &mut Vec<u8>| {
            opcode::Read::new(Fixed(0), b.as_mut_ptr(), b.len() as u32).rw_flags(libc::RWF_NOWAIT).build()
        };
        self.run(buffers.iter_mut().map(entry))
    }

    fn write(&mut self, buffers: &[Vec<u8>], bytes: usize) -> io::Result<usize> {
        let entry = |b: &Vec<u8>| {
            opcode::Write::new(Fixed(0), b[..bytes].as_ptr(), bytes as u32).rw_flags(libc::RWF_NOWAIT).build()
        };
        self.run(buffers.iter().map(entry))
    }

    /// Does all of `entries`; how many went well.
    fn run(&mut self, entries: impl Iterator<Item = squeue::Entry>) -> io::Result<usize> {
        let mut count = 0;
        for entry in entries {
            // SAFETY: the buffers outlive this call, which waits for all of them.
            unsafe { self.0.submission().push(&entry) }.map_err(io::Error::other)?;
            count += 1;
        }
        self.0.submit_and_wait(count)?;
        Ok(self.0.completion().filter(|completion| completion.result() > 0).count())
    }
}

fn per_frame(from: Time, to: Time, frames: usize) -> u64 {
    to.since(from).as_nanos() as u64 / frames as u64
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values.get(values.len() / 2).copied().unwrap_or(0)
}
