//! TAP devices: how frames that no rule takes reach a worker, and how what the worker sends reaches the kernel.
//!
//! One device per worker, persistent, with virtio headers: super-packets and partial checksums pass whole in both
//! directions. BPF redirects frames to the device with a mark in the Ethernet destination; what the worker writes comes in
//! from the device, where BPF reads the worker's mark (`crates/linux/bpf/hairpin.h`). The device has no addresses, and the
//! kernel says nothing on it by itself.
//!
//! A worker sleeps in `epoll` (or `poll`) on the descriptor of its [`TapIo`], which is readable while frames wait;
//! level-triggered, so that a burst that did not fit one batch wakes it again.
//!
//! One system call a frame, on purpose. io_uring was measured beside it (`examples/tap_cost.rs`; Linux 6.18 on a
//! machine whose processor needs few mitigations), with the device registered and whole bursts submitted by one call.
//! Bursts of 64 small frames: 237 ns a frame read by plain calls and 233 by io_uring, 290 and 296 ns written. Smaller
//! bursts: io_uring is slower. Frames of 64 KiB: the same, 5.0 us read and 3.1 us written, where copying is all. Its
//! own work per operation costs what the system call would, and a ring that has the device registered keeps it busy
//! for a moment after its process has died. A write runs the kernel's receive path, BPF included, before it returns,
//! so frames leave in order.

mod gro;
mod header;
mod mark;
mod pool;

pub use pool::{FRAME_BYTES_MAX, TapFrame};

use crate::device::{self, Family};
use arrayvec::ArrayVec;
use gro::Train;
use hairpin_core::frame::{BATCH_MAX, Batch, Frame, FrameIo};
use pool::{BufferPool, Rejected};
use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::AddAssign;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::rc::Rc;

/// Packets the ring between kernel and worker holds, unless told otherwise.
pub const QUEUE_PACKETS_DEFAULT: u32 = 4096;
/// Frame buffers of a worker, unless told otherwise: some batches' worth.
pub const BUFFERS_DEFAULT: usize = 256;

/// The largest MTU the kernel lets a TAP device have: 65,535 less an Ethernet header.
const MTU: u32 = 65_521;
/// The properties of a device of ours.
const FLAGS: libc::c_int = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
/// `TUNGETDEVNETNS` of linux/if_tun.h, `_IO('T', 227)`.
const TUNGETDEVNETNS: libc::Ioctl = 0x54e3;

/// A TAP device, attached to this process. Can be sent to the thread that will use it.
#[derive(Debug)]
pub struct Tap {
    fd: OwnedFd,
    name: String,
}

impl Tap {
    /// Makes the device `name`, or takes over one that an earlier process has left, with a ring of `queue_packets`;
    /// brings it up and keeps it when the process ends. One that is there keeps its ifindex, its BPF programs, and,
    /// while its settings are the wanted ones, is not stopped for a moment. Errors: no rights, another process has the
    /// device (EBUSY), or something else has the name.
    pub fn create(name: &str, queue_packets: u32) -> io::Result<Tap> {
        let tap = Tap::attach(name)?;
        tap.set(libc::TUNSETPERSIST, 1).map_err(|e| device::about(e, "cannot keep", name))?;
        device::disable_ipv6(name)?;
        device::set_queue_length(name, queue_packets)?;
        device::set_mtu(name, MTU)?;
        // The ring drops what it has no room for; a queue in front of it would only cost time.
        device::netlink::remove_queue(name)?;
        device::change_flags(name, libc::IFF_UP | libc::IFF_NOARP, libc::IFF_MULTICAST)?;
        Ok(tap)
    }

    /// Makes the persistent device `name` with the Ethernet address `mac`, or takes over one that is there, and brings it up.
    /// It has no queue and no reader: what a program at its egress does not send elsewhere is lost. What comes in there is
    /// forwarded.
    pub(crate) fn create_unread(name: &str, mac: [u8; 6]) -> io::Result<()> {
        let tap = Tap::attach(name)?;
        tap.set(libc::TUNSETPERSIST, 1).map_err(|e| device::about(e, "cannot keep", name))?;
        device::set_mac(name, mac)?;
        // What comes in there may be as long as on any interface.
        device::set_mtu(name, MTU)?;
        device::change_flags(name, libc::IFF_UP | libc::IFF_NOARP, libc::IFF_MULTICAST)?;
        for family in [Family::Ipv4, Family::Ipv6] {
            match device::set_forwarding(name, family, true) {
                // A kernel without this protocol routes none of it.
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    /// The device `name` by a descriptor that another process has opened and given away. As long as one of the two
    /// keeps its descriptor the device stays attached, and frames wait in its ring: this is how a process is replaced
    /// without losing any. Only one of them may read. Errors: `InvalidInput` if the descriptor is not of this device in
    /// this network namespace, or the device was not set up as [`Tap::create`] does.
    pub fn adopt(fd: OwnedFd, name: &str) -> io::Result<Tap> {
        let wrong = |what: &str| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the descriptor given for the TAP device {name} {what}"),
            )
        };
        let mut found = device::request(name)?;
        device::control(&fd, &mut found, libc::TUNGETIFF as _)
            .map_err(|e| wrong(&format!("is of no TAP device: {e}")))?;
        if found.ifr_name != device::request(name)?.ifr_name {
            return Err(wrong("is of another one"));
        }
        // SAFETY: the kernel has filled in `ifru_flags`, an integer.
        let flags = libc::c_int::from(unsafe { found.ifr_ifru.ifru_flags });
        if flags & (FLAGS | libc::IFF_MULTI_QUEUE) != FLAGS {
            return Err(wrong(&format!("has flags {flags:#x}, not {FLAGS:#x}")));
        }
        if !is_here(&fd)? {
            return Err(wrong("is in another network namespace"));
        }
        keep_private(&fd)?;
        let tap = Tap { fd, name: name.to_owned() };
        tap.set_offloads().map_err(|e| device::about(e, "cannot set up the TAP device", name))?;
        Ok(tap)
    }

    /// Removes the persistent device `name`; none of that name is fine. Errors: a process has it (EBUSY), or it is no
    /// TAP.
    pub fn remove(name: &str) -> io::Result<()> {
        match device::index_of(name) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
            Ok(_) => Tap::attach(name)?.destroy(),
        }
    }

    /// Removes the device `name`, even if a process has it: reads and writes of that process fail from then on. None of that
    /// name is fine.
    pub fn take_away(name: &str) -> io::Result<()> {
        device::netlink::remove_link(name)
    }

    /// Removes the device itself, at once: a device that is not persistent would stay until the last copy of its descriptor is
    /// closed, and a child process has one until it executes its program.
    pub fn destroy(self) -> io::Result<()> {
        Tap::take_away(&self.name)
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Attaches to the device, making it if it is not there, and sets what belongs to the descriptor.
    fn attach(name: &str) -> io::Result<Tap> {
        let mut request = device::request(name)?;
        request.ifr_ifru.ifru_flags = FLAGS as i16;
        let path = "/dev/net/tun";
        let file = File::options().read(true).write(true).custom_flags(libc::O_NONBLOCK).open(path);
        let fd = OwnedFd::from(file.map_err(|e| device::about(e, "cannot open", path))?);
        device::control(&fd, &mut request, libc::TUNSETIFF as _)
            .map_err(|e| device::about(e, "cannot make or attach to the TAP device", name))?;
        let tap = Tap { fd, name: name.to_owned() };
        tap.set_offloads().map_err(|e| device::about(e, "cannot set up the TAP device", name))?;
        Ok(tap)
    }

    /// Has the kernel pass super-packets and partial checksums whole: UDP ones from Linux 6.2 on.
    fn set_offloads(&self) -> io::Result<()> {
        let mut size = header::BYTES as libc::c_int;
        // SAFETY: the request takes a pointer to an int, which lives through the call.
        if unsafe { libc::ioctl(self.fd.as_raw_fd(), libc::TUNSETVNETHDRSZ, &raw mut size) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let tcp = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        let udp = libc::TUN_F_USO4 | libc::TUN_F_USO6;
        self.set(libc::TUNSETOFFLOAD, tcp | udp).or_else(|_| self.set(libc::TUNSETOFFLOAD, tcp))
    }

    /// A request that takes a number.
    fn set(&self, what: libc::Ioctl, value: libc::c_uint) -> io::Result<()> {
        // SAFETY: the requests used here (TUNSETPERSIST, TUNSETOFFLOAD) take their argument by value.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), what, libc::c_ulong::from(value)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

/// The descriptor, to give to another process ([`Tap::adopt`]).
impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Whether the device is in this thread's network namespace.
fn is_here(fd: &OwnedFd) -> io::Result<bool> {
    // SAFETY: the request takes no argument.
    let namespace = unsafe { libc::ioctl(fd.as_raw_fd(), TUNGETDEVNETNS, 0) };
    if namespace < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    let namespace = File::from(unsafe { OwnedFd::from_raw_fd(namespace) }).metadata()?;
    let here = std::fs::metadata("/proc/thread-self/ns/net")?;
    Ok((namespace.dev(), namespace.ino()) == (here.dev(), here.ino()))
}

/// Sets what [`Tap::create`] opens with: no waiting, and closed in programs this process starts.
fn keep_private(fd: &OwnedFd) -> io::Result<()> {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    // SAFETY: as above.
    if flags < 0 || unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above.
    if unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Counters of a [`TapIo`], in frames unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TapCounters {
    /// Handed to the worker; a super-packet is one.
    pub received: u64,
    /// Bytes of these, Ethernet headers included.
    pub received_bytes: u64,
    /// Taken by the kernel; a super-packet is one, one that was made on the way as many as it was made of.
    pub transmitted: u64,
    /// Bytes of these, Ethernet headers included.
    pub transmitted_bytes: u64,
    /// Of these, sent together with others as one super-packet.
    pub joined: u64,
    /// Dropped on arrival: not marked by the plane.
    pub unmarked: u64,
    /// Dropped on arrival: too short, or a device header that makes no sense.
    pub malformed: u64,
    /// Times reading stopped because no buffer was free; the frames wait in the ring.
    pub no_buffer: u64,
    /// Times reading failed (the device is down or gone).
    pub read_failed: u64,
    /// Dropped on departure: the frame contradicts its own description, or the kernel calls it invalid.
    pub refused: u64,
    /// Dropped on departure: the kernel had no memory.
    pub no_memory: u64,
    /// Dropped on departure: the device is down or gone.
    pub down: u64,
    /// Dropped on departure: any other error.
    pub write_failed: u64,
}

impl AddAssign for TapCounters {
    fn add_assign(&mut self, other: TapCounters) {
        self.received += other.received;
        self.received_bytes += other.received_bytes;
        self.transmitted += other.transmitted;
        self.transmitted_bytes += other.transmitted_bytes;
        self.joined += other.joined;
        self.unmarked += other.unmarked;
        self.malformed += other.malformed;
        self.no_buffer += other.no_buffer;
        self.read_failed += other.read_failed;
        self.refused += other.refused;
        self.no_memory += other.no_memory;
        self.down += other.down;
        self.write_failed += other.write_failed;
    }
}

/// The fate of a frame given to the kernel.
enum TapSent {
    Done,
    /// The kernel has no room now: it stays in the batch.
    Later,
}

/// A worker's end of a TAP device. Belongs to one thread.
#[derive(Debug)]
pub struct TapIo {
    tap: Tap,
    pool: Rc<BufferPool>,
    counters: TapCounters,
}

impl TapIo {
    /// Frames through `tap`, in `buffers` buffers of [`FRAME_BYTES_MAX`] bytes, most of which are touched only when used.
    /// So many frames exist at a time: received, allocated, or still in a transmit batch. With none free, `allocate` gives
    /// `None` and reading waits, the frames in the device's ring ([`TapCounters::no_buffer`]).
    pub fn new(tap: Tap, buffers: usize) -> io::Result<TapIo> {
        let pool = BufferPool::new(buffers)?;
        Ok(TapIo { tap, pool, counters: TapCounters::default() })
    }

    /// The counters so far.
    pub fn counters(&self) -> TapCounters {
        self.counters
    }

    /// Buffers not in use now.
    pub fn buffers_free(&self) -> usize {
        self.pool.free()
    }

    /// The device, to give its descriptor to another process.
    pub fn tap(&self) -> &Tap {
        &self.tap
    }

    /// Gives the device back, for another [`TapIo`] or to be destroyed. Frames still held stay valid.
    pub fn into_tap(self) -> Tap {
        self.tap
    }

    /// A free buffer to read into.
    fn buffer(&mut self) -> Option<TapFrame> {
        let frame = self.pool.take();
        self.counters.no_buffer += u64::from(frame.is_none());
        frame
    }

    /// Judges what a read has put into `frame`: `bytes`, or a negated error number. `false`: nothing more to read now.
    fn accept(&mut self, mut frame: TapFrame, result: isize, out: &mut Batch<TapFrame>) -> bool {
        let Ok(bytes) = usize::try_from(result) else {
            self.counters.read_failed += u64::from(result != -(libc::EAGAIN as isize));
            return false;
        };
        match frame.received(bytes) {
            Ok(()) => {
                self.counters.received += 1;
                self.counters.received_bytes += frame.bytes().len() as u64;
                out.push(frame);
            }
            Err(Rejected::Unmarked) => self.counters.unmarked += 1,
            Err(Rejected::Malformed) => self.counters.malformed += 1,
        }
        true
    }

    /// Counts what became of frames that were written at once: `result` as of a write, errors negated.
    fn sent(&mut self, frames: &[TapFrame], result: isize) -> TapSent {
        let error = i32::try_from(-result).unwrap_or(0);
        let count = frames.len() as u64;
        match error {
            libc::EAGAIN => return TapSent::Later,
            libc::ENOBUFS | libc::ENOMEM => self.counters.no_memory += count,
            libc::EINVAL | libc::EMSGSIZE => self.counters.refused += count,
            libc::EIO | libc::EBADFD | libc::ENODEV => self.counters.down += count,
            1.. => self.counters.write_failed += count,
            _ => {
                self.counters.transmitted += count;
                self.counters.transmitted_bytes += frames.iter().map(|frame| frame.bytes().len() as u64).sum::<u64>();
                self.counters.joined += if count > 1 { count } else { 0 };
            }
        }
        TapSent::Done
    }

    /// Reads one packet; errors negated.
    fn read(&self, frame: &mut TapFrame) -> isize {
        // SAFETY: the frame has room for so many bytes there, and no other code uses it.
        let read = || unsafe { libc::read(self.tap.fd.as_raw_fd(), frame.packet().cast(), TapFrame::PACKET_BYTES_MAX) };
        uninterrupted(read)
    }

    /// Writes a frame; errors negated, [`libc::EINVAL`] also if it contradicts its own description.
    fn write(&self, frame: &mut TapFrame) -> isize {
        let Some(bytes) = frame.seal() else { return -(libc::EINVAL as isize) };
        // SAFETY: `seal` has said that so many bytes of header and frame stand there.
        uninterrupted(|| unsafe { libc::write(self.tap.fd.as_raw_fd(), frame.packet().cast(), bytes) })
    }

    /// Writes frames as one super-packet; errors negated.
    fn write_joined(&self, train: &Train, frames: &[TapFrame]) -> isize {
        let mut head = [0; header::BYTES + gro::HEADERS_MAX];
        let Some(headers) = train.write_headers(&frames[0], &mut head) else { return -(libc::EINVAL as isize) };
        let mut parts: ArrayVec<IoSlice<'_>, { BATCH_MAX + 1 }> = ArrayVec::new();
        parts.push(IoSlice::new(&head[..header::BYTES + headers]));
        parts.extend(frames.iter().map(|frame| IoSlice::new(gro::payload_of(frame, headers))));
        // SAFETY: an `IoSlice` is an `iovec` (its documentation), of memory that lives through the call and is only read.
        let write = || unsafe { libc::writev(self.tap.fd.as_raw_fd(), parts.as_ptr().cast(), parts.len() as i32) };
        uninterrupted(write)
    }
}

impl FrameIo for TapIo {
    type Frame = TapFrame;

    fn receive(&mut self, out: &mut Batch<TapFrame>) {
        while !out.is_full() {
            let Some(mut frame) = self.buffer() else { break };
            let result = self.read(&mut frame);
            if !self.accept(frame, result, out) {
                break;
            }
        }
    }

    fn transmit(&mut self, batch: &mut Batch<TapFrame>) {
        let mut done = 0;
        while done < batch.len() {
            let train = Train::ahead(&batch[done..]);
            let frames = &mut batch[done..done + train.as_ref().map_or(1, |train| train.frames)];
            let result = match &train {
                Some(train) => self.write_joined(train, frames),
                None => self.write(&mut frames[0]),
            };
            if let TapSent::Later = self.sent(frames, result) {
                break;
            }
            done += frames.len();
        }
        batch.drain(..done);
    }

    fn allocate(&mut self) -> Option<TapFrame> {
        self.buffer()
    }
}

impl AsFd for TapIo {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tap.fd.as_fd()
    }
}

impl AsRawFd for TapIo {
    fn as_raw_fd(&self) -> i32 {
        self.tap.fd.as_raw_fd()
    }
}

/// The result of a system call that is repeated while signals interrupt it; errors as negated numbers.
fn uninterrupted(mut call: impl FnMut() -> isize) -> isize {
    loop {
        let result = call();
        if result >= 0 {
            return result;
        }
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            error => return -(error.unwrap_or(libc::EIO) as isize),
        }
    }
}
