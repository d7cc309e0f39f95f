//! Netlink requests: replacing a device's queueing discipline, removing a device, and what [`crate::network`] sends. Messages
//! of fixed shape, so they are written out here instead of depending on a netlink library.

use super::{about, index_of};
use std::ffi::c_int;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// The whole message: `nlmsghdr` (16), `tcmsg` (20), attribute header (4), "noqueue" with its zero (8).
const MESSAGE_BYTES: usize = 48;

/// A message about a link: `nlmsghdr` (16), `ifinfomsg` (16).
const LINK_BYTES: usize = 32;
/// A message's header.
pub(crate) const HEADER_BYTES: usize = 16;
/// Room for a part of a list: the kernel sends 32 KiB at most at once.
const DUMP_BYTES: usize = 65_536;
/// The queueing discipline of a device that has none.
const NONE: &[u8] = b"noqueue\0";

/// Takes the queueing discipline of `name` away, so that a packet goes straight to the device: for devices that never
/// push back a queue in front only costs time. One that has none is left alone: even replacing nothing by nothing would
/// stop the device for some milliseconds.
pub(crate) fn remove_queue(name: &str) -> io::Result<()> {
    let index = index_of(name)?;
    let text = "cannot remove the queueing discipline of";
    if queueing(index).map_err(|e| about(e, text, name))?.as_deref() == Some(NONE) {
        return Ok(());
    }
    acknowledged(&no_queue(index)).map_err(|e| about(e, text, name))
}

/// The name of the queueing discipline of the interface `index`, as the kernel writes it.
fn queueing(index: u32) -> io::Result<Option<Vec<u8>>> {
    let message = link(libc::RTM_GETLINK, libc::NLM_F_REQUEST as u16, index);
    let mut answer = [0; 16_384];
    let answer = asked(&message, &mut answer)?;
    if answer.get(4..6) != Some(&libc::RTM_NEWLINK.to_ne_bytes()) {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok(attribute(answer.get(LINK_BYTES..).unwrap_or_default(), libc::IFLA_QDISC))
}

/// Removes the interface `name`, also one that a process holds open; none of that name is fine.
pub(crate) fn remove_link(name: &str) -> io::Result<()> {
    let index = match index_of(name) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        index => index?,
    };
    let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
    acknowledged(&link(libc::RTM_DELLINK, flags, index)).map_err(|e| about(e, "cannot remove", name))
}

/// A message about the link `index`.
fn link(kind: u16, flags: u16, index: u32) -> [u8; LINK_BYTES] {
    let mut message = [0; LINK_BYTES];
    message[..4].copy_from_slice(&(LINK_BYTES as u32).to_ne_bytes());
    message[4..6].copy_from_slice(&kind.to_ne_bytes());
    message[6..8].copy_from_slice(&flags.to_ne_bytes());
    message[20..24].copy_from_slice(&index.to_ne_bytes());
    message
}

/// The contents of the first attribute of this type: each is a length with its header (2), a type (2), and contents
/// filled up to a multiple of four bytes.
pub(crate) fn attribute(mut bytes: &[u8], wanted: u16) -> Option<Vec<u8>> {
    while let [a, b, c, d, rest @ ..] = bytes {
        let length = usize::from(u16::from_ne_bytes([*a, *b])).checked_sub(4)?;
        if u16::from_ne_bytes([*c, *d]) == wanted {
            return rest.get(..length).map(<[u8]>::to_vec);
        }
        bytes = rest.get(length.next_multiple_of(4)..)?;
    }
    None
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
pub(crate) fn acknowledged(message: &[u8]) -> io::Result<()> {
    let mut answer = [0; 512];
    let answer = asked(message, &mut answer)?;
    if answer.len() < 20 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    refusal(answer).map_or(Ok(()), Err)
}

/// Sends a message and returns the answer, as much of it as there is room for.
fn asked<'a>(message: &[u8], answer: &'a mut [u8]) -> io::Result<&'a [u8]> {
    Netlink::open(libc::NETLINK_ROUTE)?.ask(message, answer)
}

/// A netlink socket, in the network namespace of the thread that has opened it.
pub(crate) struct Netlink(OwnedFd);

impl Netlink {
    /// `family`: which part of the kernel answers (`NETLINK_*`).
    pub(crate) fn open(family: c_int) -> io::Result<Netlink> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, family) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor that nothing else owns.
        Ok(Netlink(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Sends a message and returns the answer, as much of it as there is room for.
    pub(crate) fn ask<'a>(&self, message: &[u8], answer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        self.send(message)?;
        self.receive(answer)
    }

    /// Sends a message that asks for a list, and passes each message of the answer on, with its header.
    pub(crate) fn dump(&self, message: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        self.send(message)?;
        let mut room = vec![0; DUMP_BYTES];
        loop {
            let mut rest = self.receive(&mut room)?;
            if rest.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            while let Some((message, behind)) = first_message(rest) {
                match i32::from(message_type(message)) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => {
                        return Err(refusal(message).unwrap_or_else(|| io::ErrorKind::InvalidData.into()));
                    }
                    _ => each(message),
                }
                rest = behind;
            }
        }
    }

    fn send(&self, message: &[u8]) -> io::Result<()> {
        // SAFETY: the pointer and the length describe `message`.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), message.as_ptr().cast(), message.len(), 0) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn receive<'a>(&self, answer: &'a mut [u8]) -> io::Result<&'a [u8]> {
        // SAFETY: the pointer and the length describe `answer`. The kernel has answered before `send` returned.
        let length = unsafe { libc::recv(self.0.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
        let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
        Ok(&answer[..length.min(answer.len())])
    }
}

/// The first message of an answer, with its header, and what is behind it.
fn first_message(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?) as usize;
    let message = bytes.get(..length).filter(|message| message.len() >= HEADER_BYTES)?;
    Some((message, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

/// The type of a message.
pub(crate) fn message_type(message: &[u8]) -> u16 {
    message.get(4..6).and_then(|bytes| bytes.try_into().ok()).map_or(0, u16::from_ne_bytes)
}

/// The error that a message of the type `NLMSG_ERROR` carries: behind its header the negated error number.
pub(crate) fn refusal(message: &[u8]) -> Option<io::Error> {
    let error = message.get(16..20).and_then(|bytes| bytes.try_into().ok()).map(i32::from_ne_bytes)?;
    (error != 0).then(|| io::Error::from_raw_os_error(error.saturating_neg()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_found_and_bounded() {
        let bytes =
            |length: u16, kind: u16, rest: &[u8]| [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), rest].concat();
        let two = [bytes(5, 1, b"a\0\0\0"), bytes(7, 2, b"bcd\0")].concat();
        assert_eq!(attribute(&two, 1).as_deref(), Some(&b"a"[..]));
        assert_eq!(attribute(&two, 2).as_deref(), Some(&b"bcd"[..]));
        assert_eq!(attribute(&two, 3), None);
        for hostile in [bytes(0, 1, b""), bytes(3, 2, b""), bytes(400, 2, b"x"), bytes(400, 1, b"x"), vec![1, 2]] {
            assert_eq!(attribute(&hostile, 2), None);
        }
    }

    #[test]
    fn loopback_has_no_queue() {
        assert_eq!(queueing(index_of("lo").unwrap()).unwrap().as_deref(), Some(NONE));
        assert!(queueing(u32::MAX >> 1).is_err());
    }
}
