//! Captures packets on an interface as they come in and go out, whether a worker or a rule forwards them: the kernel
//! shows a packet to packet sockets before tc ingress, that is before a rule or a worker translates it, and again when
//! it is sent, after.
//!
//! A filter in the kernel chooses packets by address before anything is copied. Packets that are not chosen are not
//! touched, but each is examined (and each one sent is cloned first), so a capture costs every packet of the interface
//! some tens of nanoseconds while it is open. Super-packets come whole; checksums that the sender leaves to the device
//! come unfinished.

mod filter;

use crate::device::{Interface, about};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Hosts of a filter at most.
pub const HOSTS_MAX: usize = 32;
/// Bytes of a packet that can be captured at most.
pub const SNAP_LENGTH_MAX: u32 = 262_144;

/// Packets that wait to be read take so many bytes at most, by the kernel's own way of counting; it counts double. What
/// comes then is lost ([`Capture::lost`]).
const QUEUE_BYTES: libc::c_int = 16 << 20;
/// An 802.1Q tag.
const TAG_BYTES: usize = 4;
/// Ethernet addresses: what stands before a tag.
const ADDRESSES_BYTES: usize = 12;

/// The filter of a capture.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaptureFilter {
    /// Packets from or to one of these, at most [`HOSTS_MAX`]; none: all IP packets.
    pub hosts: Vec<IpAddr>,
    /// Bytes of each packet from its Ethernet header on, 1 to [`SNAP_LENGTH_MAX`]; the rest is cut off.
    pub snap_length: u32,
}

/// A packet that has come in or gone out.
#[derive(Clone, Copy, Debug)]
pub struct Captured<'a> {
    /// When the kernel saw it.
    pub timestamp: SystemTime,
    /// Its bytes from the Ethernet header on, VLAN tags included, as many as the filter lets through.
    pub bytes: &'a [u8],
    /// How many bytes it has in all.
    pub length_on_wire: usize,
    /// Whether this host sent it; else it came in.
    pub outgoing: bool,
}

/// An open capture on one interface.
#[derive(Debug)]
pub struct Capture {
    socket: OwnedFd,
    interface: String,
    /// Room for a tag that the kernel keeps beside the packet, and for the packet.
    buffer: Box<[u8]>,
    lost: u64,
}

/// Room for the control messages asked for: a time and `tpacket_auxdata`.
#[repr(C, align(8))]
struct ControlMessages([u8; 128]);

/// The contents of a packet's control messages.
#[derive(Default)]
struct Extra {
    timestamp: Option<SystemTime>,
    length: Option<usize>,
    /// The tag as it stands in a frame.
    tag: Option<[u8; TAG_BYTES]>,
}

impl Capture {
    /// Begins to capture on `interface`. Errors: `InvalidInput` if the filter has too many hosts or an impossible
    /// length, `NotFound` if there is no such interface, `PermissionDenied` without CAP_NET_RAW.
    pub fn open(interface: &str, filter: &CaptureFilter) -> io::Result<Capture> {
        let invalid = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        if filter.hosts.len() > HOSTS_MAX {
            return invalid(format!("{} hosts to capture: at most {HOSTS_MAX} are possible", filter.hosts.len()));
        }
        if !(1..=SNAP_LENGTH_MAX).contains(&filter.snap_length) {
            return invalid(format!("{} bytes to capture: 1 to {SNAP_LENGTH_MAX} are possible", filter.snap_length));
        }
        let index = Interface::by_name(interface)?.index;
        let socket = socket(index, filter).map_err(|error| about(error, "cannot capture on interface", interface))?;
        let buffer = vec![0; TAG_BYTES + filter.snap_length as usize].into();
        Ok(Capture { socket, interface: interface.to_owned(), buffer, lost: 0 })
    }

    /// The next packet; `None` if none comes within `timeout`. Errors: the interface is down or gone. It may be asked
    /// again: an interface that comes up again goes on.
    pub fn next(&mut self, timeout: Duration) -> io::Result<Option<Captured<'_>>> {
        let timeout = libc::c_int::try_from(timeout.as_millis()).unwrap_or(libc::c_int::MAX);
        let mut poll = libc::pollfd { fd: self.socket.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry, which lives through the call.
        match unsafe { libc::poll(&mut poll, 1, timeout) } {
            0 => return Ok(None),
            1.. => {}
            _ => {
                let error = io::Error::last_os_error();
                return if error.kind() == io::ErrorKind::Interrupted { Ok(None) } else { Err(self.failed(error)) };
            }
        }
        self.receive()
    }

    fn receive(&mut self) -> io::Result<Option<Captured<'_>>> {
        let mut control = ControlMessages([0; 128]);
        // SAFETY: plain integers and bytes.
        let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        let room = &mut self.buffer[TAG_BYTES..];
        let mut part = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        // SAFETY: plain integers and pointers that may be null.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = (&raw mut from).cast();
        message.msg_namelen = size_of::<libc::sockaddr_ll>() as u32;
        message.msg_iov = &mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.0.as_mut_ptr().cast();
        message.msg_controllen = control.0.len() as _;
        // SAFETY: the message describes memory that lives through the call and that nothing else uses.
        let length = unsafe { libc::recvmsg(self.socket.as_raw_fd(), &mut message, libc::MSG_DONTWAIT) };
        let Ok(length) = usize::try_from(length) else {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(None),
                _ => Err(self.failed(error)),
            };
        };
        let extra = extra(&message);
        let (start, length) = self.with_tag(length, extra.tag);
        let bytes = &self.buffer[start..start + length];
        Ok(Some(Captured {
            timestamp: extra.timestamp.unwrap_or_else(SystemTime::now),
            bytes,
            length_on_wire: (extra.length.unwrap_or(0) + TAG_BYTES - start).max(length),
            outgoing: from.sll_pkttype == libc::PACKET_OUTGOING,
        }))
    }

    /// Puts a tag where it belongs in the `length` bytes received. Returns where they begin and how many there are now.
    fn with_tag(&mut self, length: usize, tag: Option<[u8; TAG_BYTES]>) -> (usize, usize) {
        match tag {
            Some(tag) if length >= ADDRESSES_BYTES => {
                self.buffer.copy_within(TAG_BYTES..TAG_BYTES + ADDRESSES_BYTES, 0);
                self.buffer[ADDRESSES_BYTES..ADDRESSES_BYTES + TAG_BYTES].copy_from_slice(&tag);
                (0, length + TAG_BYTES)
            }
            _ => (TAG_BYTES, length),
        }
    }

    /// Packets that the filter let through so far but that found no room, as the caller did not read fast enough.
    pub fn lost(&mut self) -> u64 {
        // SAFETY: plain integers.
        let mut statistics: libc::tpacket_stats = unsafe { std::mem::zeroed() };
        let mut size = size_of::<libc::tpacket_stats>() as libc::socklen_t;
        // SAFETY: pointer and size describe `statistics`. Reading sets the kernel's counter to zero.
        let read = unsafe {
            libc::getsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_STATISTICS,
                (&raw mut statistics).cast(),
                &mut size,
            )
        };
        if read == 0 {
            self.lost += u64::from(statistics.tp_drops);
        }
        self.lost
    }

    fn failed(&self, error: io::Error) -> io::Error {
        about(error, "cannot capture on interface", &self.interface)
    }
}

/// Readable while packets wait.
impl AsFd for Capture {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A packet socket that gets what `filter` lets through on interface `index`, and nothing before that is settled.
fn socket(index: u32, filter: &CaptureFilter) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed. Protocol 0: no packets until it is bound.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let mut program = filter::program(&filter.hosts, filter.snap_length);
    let program = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // The kernel copies the program, which lives until the end of this function.
    set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
    // Above the limit for unprivileged processes, if this process may; else up to it.
    set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, &QUEUE_BYTES)
        .or_else(|_| set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &QUEUE_BYTES))?;
    set(&socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &1)?;
    set(&socket, libc::SOL_PACKET, libc::PACKET_AUXDATA, &1)?;
    // SAFETY: plain integers and bytes.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
    address.sll_ifindex = index as i32;
    let size = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: pointer and size describe `address`.
    if unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(socket)
}

fn set<T>(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: &T) -> io::Result<()> {
    let size = size_of::<T>() as libc::socklen_t;
    // SAFETY: pointer and size describe `value`, and what it may point to lives as long.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const *value).cast(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Reads the control messages of a packet received.
fn extra(message: &libc::msghdr) -> Extra {
    let mut extra = Extra::default();
    // SAFETY: the kernel has filled the message's control buffer, which lives on; null: there is none (any more).
    let mut next = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: not null, so it points to a header that lies within the buffer.
    while let Some(header) = unsafe { next.as_ref() } {
        // SAFETY: what follows a header of the kernel's.
        let data = unsafe { libc::CMSG_DATA(header) };
        match (header.cmsg_level, header.cmsg_type) {
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                // SAFETY: this is what such a message carries; it need not be aligned.
                let time = unsafe { data.cast::<libc::timespec>().read_unaligned() };
                let (seconds, nanoseconds) = (time.tv_sec.max(0) as u64, time.tv_nsec.clamp(0, 999_999_999) as u32);
                extra.timestamp = UNIX_EPOCH.checked_add(Duration::new(seconds, nanoseconds));
            }
            (libc::SOL_PACKET, libc::PACKET_AUXDATA) => {
                // SAFETY: as above.
                let data = unsafe { data.cast::<libc::tpacket_auxdata>().read_unaligned() };
                extra.length = Some(data.tp_len as usize);
                if data.tp_status & libc::TP_STATUS_VLAN_VALID != 0 {
                    let known = data.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
                    let kind = if known { data.tp_vlan_tpid } else { 0x8100 };
                    let ([a, b], [c, d]) = (kind.to_be_bytes(), data.tp_vlan_tci.to_be_bytes());
                    extra.tag = Some([a, b, c, d]);
                }
            }
            _ => {}
        }
        // SAFETY: message and header are the kernel's, as above.
        next = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    extra
}
