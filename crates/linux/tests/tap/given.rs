//! A device given to another process while frames wait in it, and devices that others have left.

use crate::wire::{Link, Packet, Vnet, command, in_namespace, received};
use crate::{MARK_RECEIVED, child, device};
use hairpin_core::frame::Frame;
use hairpin_linux::device::Interface;
use hairpin_linux::tap::{QUEUE_PACKETS_DEFAULT, Tap, TapIo};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;

/// Room for one control message with one descriptor.
#[repr(C, align(8))]
struct Rights([u8; 24]);

fn message(parts: &mut libc::iovec, rights: &mut Rights) -> libc::msghdr {
    // SAFETY: plain integers and pointers that may be null.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts;
    message.msg_iovlen = 1;
    message.msg_control = rights.0.as_mut_ptr().cast();
    message.msg_controllen = rights.0.len() as _;
    message
}

fn give(socket: &UnixStream, fd: BorrowedFd<'_>) {
    let mut byte = [0u8];
    let mut parts = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut rights = Rights([0; 24]);
    let message = message(&mut parts, &mut rights);
    // SAFETY: the message has room for a header and a descriptor, and everything lives through the call.
    let sent = unsafe {
        let header = libc::CMSG_FIRSTHDR(&message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd.as_raw_fd());
        libc::sendmsg(socket.as_raw_fd(), &message, 0)
    };
    assert_eq!(sent, 1, "{}", io::Error::last_os_error());
}

fn take(socket: BorrowedFd<'_>) -> OwnedFd {
    let mut byte = [0u8];
    let mut parts = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: 1 };
    let mut rights = Rights([0; 24]);
    let mut message = message(&mut parts, &mut rights);
    // SAFETY: the parts describe memory that lives through the call; the header is read only if it is there; the
    // descriptor is fresh, and nothing else owns it.
    unsafe {
        assert_eq!(libc::recvmsg(socket.as_raw_fd(), &mut message, 0), 1, "{}", io::Error::last_os_error());
        let header = libc::CMSG_FIRSTHDR(&message);
        assert!(!header.is_null() && (*header).cmsg_type == libc::SCM_RIGHTS);
        OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<i32>().read_unaligned())
    }
}

/// Sizes say which frame it is.
fn send(link: &Link, numbers: std::ops::Range<usize>) {
    for number in numbers {
        link.send(&Vnet::default(), &Packet::udp4(100 + number).destined(MARK_RECEIVED).bytes);
    }
}

fn numbers(io: &mut TapIo, count: usize) -> Vec<usize> {
    received(io, count).iter().map(|frame| frame.bytes().len() - 142).collect()
}

#[test]
fn given_to_another_process_it_loses_no_frame() {
    in_namespace(|| {
        let (mut io, link) = device(8);
        let before = Interface::by_name("tap-0").unwrap().index;
        send(&link, 0..50);
        assert_eq!(numbers(&mut io, 8), (0..8).collect::<Vec<_>>());
        let (mut here, there) = UnixStream::pair().unwrap();
        let mut other = child::start("given::takes_a_device", OwnedFd::from(there));
        give(&here, io.tap().as_fd());
        // It says when it has it; until then, and between the two, no process reads.
        here.read_exact(&mut [0]).unwrap();
        send(&link, 50..70);
        drop(io);
        assert!(Tap::create("tap-0", QUEUE_PACKETS_DEFAULT).is_err(), "the other one has it");
        send(&link, 70..100);
        here.write_all(&[1]).unwrap();
        let mut said = String::new();
        other.stdout.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(other.wait().unwrap().success(), "{said}");
        let expected = (8..100).map(|number| number.to_string()).collect::<Vec<_>>().join(",");
        assert!(said.contains(&format!("frames:{expected};")), "{said}");
        // Both are gone; the device is not.
        let tap = Tap::create("tap-0", QUEUE_PACKETS_DEFAULT).unwrap();
        assert_eq!(Interface::by_name("tap-0").unwrap().index, before);
        let mut io = TapIo::new(tap, 8).unwrap();
        send(&link, 100..101);
        assert_eq!(numbers(&mut io, 1), [100]);
    });
}

/// The other process.
#[test]
#[ignore = "part of another test"]
fn takes_a_device() {
    if !child::is_one() {
        return;
    }
    let socket = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    let tap = Tap::adopt(take(socket.as_fd()), "tap-0").unwrap();
    let mut io = TapIo::new(tap, 8).unwrap();
    (&socket).write_all(&[1]).unwrap();
    (&socket).read_exact(&mut [0]).unwrap();
    let mut all = Vec::new();
    while all.len() < 92 {
        all.extend(numbers(&mut io, (92 - all.len()).min(8)));
    }
    let all: Vec<String> = all.iter().map(usize::to_string).collect();
    println!("frames:{};", all.join(","));
}

#[test]
fn only_the_device_it_is_said_to_be_is_taken() {
    in_namespace(|| {
        let tap = Tap::create("tap-0", 16).unwrap();
        let copy = || tap.as_fd().try_clone_to_owned().unwrap();
        let refused = |fd: OwnedFd, name: &str| Tap::adopt(fd, name).unwrap_err().to_string();
        assert!(refused(copy(), "tap-1").contains("another one"));
        assert!(refused(std::fs::File::open("/dev/null").unwrap().into(), "tap-0").contains("no TAP device"));
        assert!(refused(UnixStream::pair().unwrap().0.into(), "tap-0").contains("no TAP device"));
        let fresh = || std::fs::File::options().read(true).write(true).open("/dev/net/tun").unwrap();
        assert!(refused(fresh().into(), "tap-0").contains("no TAP device"));
        let other = copy();
        let elsewhere = std::thread::spawn(move || {
            // SAFETY: changes this thread alone.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            Tap::adopt(other, "tap-0").unwrap_err().to_string()
        });
        assert!(elsewhere.join().unwrap().contains("another network namespace"));
        Tap::adopt(copy(), "tap-0").unwrap();
    });
}

#[test]
fn what_others_left_is_set_up_or_refused() {
    in_namespace(|| {
        for line in ["tuntap add dev tap-0 mode tap", "link set tap-0 mtu 1400 txqueuelen 7 multicast on up"] {
            command("ip", &line.split(' ').collect::<Vec<_>>());
        }
        command("tc", &["qdisc", "replace", "dev", "tap-0", "root", "pfifo"]);
        let before = Interface::by_name("tap-0").unwrap().index;
        let tap = Tap::create("tap-0", 1234).unwrap();
        let found = Interface::by_name("tap-0").unwrap();
        assert!(found.up && found.mtu == 65_521 && found.index == before, "{found:?}");
        let shown = command("ip", &["-d", "link", "show", "tap-0"]);
        for part in ["NOARP", "qdisc noqueue", "qlen 1234", "vnet_hdr on", "pi off", "persist on"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
        assert!(!shown.contains("MULTICAST"), "{shown}");
        let (mut io, link) = (TapIo::new(tap, 8).unwrap(), Link::open("tap-0"));
        send(&link, 0..3);
        assert_eq!(numbers(&mut io, 3), [0, 1, 2]);

        command("ip", &["tuntap", "add", "dev", "tap-1", "mode", "tap", "multi_queue"]);
        let refused = Tap::create("tap-1", 16).unwrap_err().to_string();
        assert!(refused.contains("tap-1"), "{refused}");
    });
}
