//! A packet socket (packet(7)) that sends whole Ethernet frames, many per system call.
//!
//! The crate's only `unsafe`: no maintained crate offers `sendmmsg` on packet sockets.

#![allow(unsafe_code)]

use anyhow::{Context, Result};
use std::ffi::CString;
use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Frames handed to the kernel in one call at most.
pub const BURST_MAX: usize = 64;

/// Sends frames out of one interface, past its queueing discipline.
#[derive(Debug)]
pub struct PacketSocket {
    socket: OwnedFd,
}

impl PacketSocket {
    /// Opens one on `interface` of the calling thread's namespace. Needs CAP_NET_RAW.
    pub fn open(interface: &str) -> Result<PacketSocket> {
        let name = CString::new(interface)?;
        // SAFETY: `name` is a string that ends in zero.
        let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
        if index == 0 {
            return Err(io::Error::last_os_error()).with_context(|| format!("no interface {interface}"));
        }
        // Protocol 0: it receives nothing.
        // SAFETY: a system call without pointers.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        if fd < 0 {
            return Err(io::Error::last_os_error()).context("could not open a packet socket");
        }
        // SAFETY: `fd` was just opened and nobody else has it.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let one: libc::c_int = 1;
        // SAFETY: the option's value is an int, whose address and size are given.
        let set = unsafe {
            libc::setsockopt(
                fd,
                libc::SOL_PACKET,
                libc::PACKET_QDISC_BYPASS,
                (&raw const one).cast(),
                size_of::<libc::c_int>() as u32,
            )
        };
        if set != 0 {
            return Err(io::Error::last_os_error()).context("PACKET_QDISC_BYPASS refused");
        }
        // SAFETY: all zeroes is a valid sockaddr_ll.
        let mut address: libc::sockaddr_ll = unsafe { zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_ifindex = index as i32;
        // SAFETY: the address's type and size are what AF_PACKET expects.
        let bound = unsafe { libc::bind(fd, (&raw const address).cast(), size_of::<libc::sockaddr_ll>() as u32) };
        if bound != 0 {
            return Err(io::Error::last_os_error()).with_context(|| format!("could not bind to {interface}"));
        }
        Ok(PacketSocket { socket })
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
