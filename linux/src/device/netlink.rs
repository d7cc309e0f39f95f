//! The one thing that only rtnetlink can do: replacing a device's queueing discipline. A message of fixed shape, so it
//! is written out here instead of depending on a netlink library.

use super::{about, index_of};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The whole message: `nlmsghdr` (16), `tcmsg` (20), attribute header (4), "noqueue" with its zero (8).
const MESSAGE_BYTES: usize = 48;

/// Takes the queueing discipline of `name` away, so that a packet goes straight to the device: for devices that never
/// push back a queue in front only costs time.
pub(crate) fn remove_queue(name: &str) -> io::Result<()> {
    let message = no_queue(index_of(name)?);
    acknowledged(&message).map_err(|e| about(e, "cannot remove the queueing discipline of", name))
}

/// `RTM_NEWQDISC` at the root of the interface `index`, kind `noqueue`, replacing what is there.
fn no_queue(index: u32) -> [u8; MESSAGE_BYTES] {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE) as u16;
    let mut message = [0; MESSAGE_BYTES];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        message[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&(MESSAGE_BYTES as u32).to_ne_bytes());
    put(&libc::RTM_NEWQDISC.to_ne_bytes());
    put(&flags.to_ne_bytes());
    put(&[0; 8]); // sequence number, port: the kernel's answer repeats them
    put(&[0; 4]); // family, padding
    put(&index.to_ne_bytes());
    put(&0u32.to_ne_bytes()); // handle: the kernel chooses
    put(&u32::MAX.to_ne_bytes()); // parent: TC_H_ROOT
    put(&0u32.to_ne_bytes());
    put(&12u16.to_ne_bytes()); // the attribute's length with its header
    put(&libc::TCA_KIND.to_ne_bytes());
    put(b"noqueue\0");
    message
}

/// Sends a message that asks for an acknowledgement and returns the error it carries.
fn acknowledged(message: &[u8]) -> io::Result<()> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the pointer and the length describe `message`.
    if unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = [0u8; 512];
    // SAFETY: the pointer and the length describe `answer`. The kernel has answered before `send` returned.
    let length = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    // `nlmsghdr`, then the negated error number.
    match answer.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes) {
        _ if length < 0 => Err(io::Error::last_os_error()),
        Some(0) if length >= 20 => Ok(()),
        Some(error) if length >= 20 => Err(io::Error::from_raw_os_error(-error)),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
