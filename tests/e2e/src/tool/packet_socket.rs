//! A packet socket (packet(7)) that sends and receives whole Ethernet frames, many per system call.
//!
//! The crate's only `unsafe`: no maintained crate offers `sendmmsg` and `recvmmsg` on packet sockets.

#![allow(unsafe_code)]

use anyhow::{Context, Result};
use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// Frames handed to the kernel in one call at most.
pub const BURST_MAX: usize = 64;

/// Bytes of a received frame that are kept: the headers.
pub const SNAP: usize = 128;
/// Receive buffer asked for, in bytes.
const RECEIVE_BUFFER: libc::c_int = 64 << 20;

/// Sends frames out of one interface, past its queueing discipline; or receives what arrives there, before all others
/// drops it.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
}

impl PacketSocket {
    /// Opens one to send on `interface` of the calling thread's namespace. Needs CAP_NET_RAW.
    pub fn open(interface: &str) -> Result<PacketSocket> {
        let socket = PacketSocket::new()?;
        socket.set(libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, 1).context("PACKET_QDISC_BYPASS refused")?;
        // Protocol 0: it receives nothing.
        socket.bind(interface, 0)?;
        Ok(socket)
    }

    /// Opens one to receive all that arrives at `interface` (and nothing that leaves it) of the calling thread's
    /// namespace, and to send. Needs CAP_NET_RAW and CAP_NET_ADMIN.
    pub fn listen(interface: &str, timeout: Duration) -> Result<PacketSocket> {
        let socket = PacketSocket::new()?;
        socket.set(libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1).context("PACKET_IGNORE_OUTGOING refused")?;
        socket.set(libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, RECEIVE_BUFFER).context("SO_RCVBUFFORCE refused")?;
        let wait = libc::timeval { tv_sec: timeout.as_secs() as i64, tv_usec: i64::from(timeout.subsec_micros()) };
        socket.set(libc::SOL_SOCKET, libc::SO_RCVTIMEO, wait).context("SO_RCVTIMEO refused")?;
        socket.bind(interface, (libc::ETH_P_ALL as u16).to_be())?;
        Ok(socket)
    }

    fn new() -> Result<PacketSocket> {
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error()).context("could not open a packet socket");
        }
        // SAFETY: `fd` was just opened and has no other owner.
        Ok(PacketSocket { socket: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Sets an option whose value is a plain C type.
    fn set<T: Copy>(&self, level: libc::c_int, option: libc::c_int, value: T) -> io::Result<()> {
        let size = size_of::<T>() as u32;
        // SAFETY: the option's value lives until the call returns, and its address and size are given.
        let set = unsafe { libc::setsockopt(self.socket.as_raw_fd(), level, option, (&raw const value).cast(), size) };
        if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn bind(&self, interface: &str, protocol: u16) -> Result<()> {
        let name = CString::new(interface)?;
        // SAFETY: `name` is a string that ends in zero.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error()).with_context(|| format!("no interface {interface}"));
        }
        // SAFETY: all zeroes is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = index as i32;
        let size = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the address's type and size are what AF_PACKET expects.
        let bound = unsafe { libc::bind(self.socket.as_raw_fd(), (&raw const address).cast(), size) };
        if bound == 0 {
            return Ok(());
        }
        Err(io::Error::last_os_error()).with_context(|| format!("could not bind to {interface}"))
    }

    /// Receives up to [`BURST_MAX`] frames, their first [`SNAP`] bytes, into `frames` and hands each to `take`; returns
    /// when there were some or the timeout has passed.
    pub fn receive(&self, frames: &mut [[u8; SNAP]; BURST_MAX], mut take: impl FnMut(&[u8])) {
        // SAFETY: all zeroes is valid for both of these plain C structures.
        let (mut vectors, mut messages): ([libc::iovec; BURST_MAX], [libc::mmsghdr; BURST_MAX]) =
            unsafe { (zeroed(), zeroed()) };
        for (i, frame) in frames.iter_mut().enumerate() {
            vectors[i].iov_base = frame.as_mut_ptr().cast();
            vectors[i].iov_len = frame.len();
            messages[i].msg_hdr.msg_iov = &raw mut vectors[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        let fd = self.socket.as_raw_fd();
        // SAFETY: all messages are initialised; each points to one vector and that to a frame of `SNAP` bytes, which
        // no other code has; all of them live until the call returns.
        let received = unsafe {
            libc::recvmmsg(fd, messages.as_mut_ptr(), BURST_MAX as u32, libc::MSG_WAITFORONE, std::ptr::null_mut())
        };
        let received = received.max(0) as usize;
        for (message, frame) in messages.iter().zip(frames.iter()).take(received) {
            take(&frame[..(message.msg_len as usize).min(SNAP)]);
        }
    }

    /// Sends up to [`BURST_MAX`] frames; returns how many were taken. Fewer than given means that the device refused
    /// one (its queue is full): the caller decides whether that frame is lost.
    pub fn send(&self, frames: &[&[u8]]) -> usize {
        let count = frames.len().min(BURST_MAX);
        // SAFETY: all zeroes is valid for both of these plain C structures.
        let (mut vectors, mut messages): ([libc::iovec; BURST_MAX], [libc::mmsghdr; BURST_MAX]) =
            unsafe { (zeroed(), zeroed()) };
        for (i, frame) in frames.iter().take(count).enumerate() {
            vectors[i].iov_base = frame.as_ptr().cast_mut().cast();
            vectors[i].iov_len = frame.len();
            messages[i].msg_hdr.msg_iov = &raw mut vectors[i];
            messages[i].msg_hdr.msg_iovlen = 1;
        }
        // SAFETY: `count` messages are initialised; each points to one vector and that to a frame; all of them live
        // until the call returns, and sending only reads the frames.
        let sent = unsafe { libc::sendmmsg(self.socket.as_raw_fd(), messages.as_mut_ptr(), count as u32, 0) };
        sent.max(0) as usize
    }
}
