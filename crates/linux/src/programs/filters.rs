//! Whether a qdisc still has filters: a dump over rtnetlink; only the first message's type counts.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// `nlmsghdr` (16), `tcmsg` (20).
const MESSAGE_BYTES: usize = 36;

/// Whether there is any filter under `parent` on the device `ifindex`.
pub(super) fn any(ifindex: u32, parent: u32) -> io::Result<bool> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let message = dump(ifindex, parent);
    // SAFETY: the pointer and the length describe `message`.
    if unsafe { libc::send(socket.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let mut answer = [0u8; 16_384];
    // SAFETY: the pointer and the length describe `answer`. The kernel has begun to answer before `send` returned.
    if unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(u16::from_ne_bytes([answer[4], answer[5]]) == libc::RTM_NEWTFILTER)
}

/// `RTM_GETTFILTER`, all of them.
fn dump(ifindex: u32, parent: u32) -> [u8; MESSAGE_BYTES] {
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_DUMP) as u16;
    let mut message = [0; MESSAGE_BYTES];
    message[..4].copy_from_slice(&(MESSAGE_BYTES as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&libc::RTM_GETTFILTER.to_ne_bytes());
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    message[20..24].copy_from_slice(&ifindex.to_ne_bytes());
    message[28..32].copy_from_slice(&parent.to_ne_bytes());
    message
}
