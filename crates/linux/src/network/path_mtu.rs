//! The MTUs of paths to backends that get packets with outer headers. A router on the way that has a narrower link answers such
//! a packet with an ICMP error, which quotes the outer headers. The kernel keeps the MTU of an error, as a route's exception
//! that `bpf_fib_lookup` finds, only while there is a socket for what the error quotes. Hairpin's BPF programs send without
//! one, so that [`PathMtu`] opens them: raw sockets, which receive nothing.

use hairpin_core::config::{Encapsulation, Forwarding, ServiceState, Snapshot};
use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Packets by their outer headers: the address family, and the protocol in the IP header.
type Outer = (i32, i32);

/// Has the kernel keep path MTUs for packets with outer headers.
#[derive(Debug, Default)]
pub struct PathMtu {
    sockets: Vec<(Outer, OwnedFd)>,
}

impl PathMtu {
    /// Has the kernel keep them for what the services of `snapshot` send, and for nothing else.
    ///
    /// Errors: `PermissionDenied` without CAP_NET_RAW.
    pub fn follow(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let wanted = outer_headers(snapshot);
        self.sockets.retain(|(outer, _)| wanted.contains(outer));
        for outer in wanted {
            if !self.sockets.iter().any(|(there, _)| *there == outer) {
                self.sockets.push((outer, open(outer)?));
            }
        }
        Ok(())
    }
}

fn outer_headers(snapshot: &Snapshot) -> BTreeSet<Outer> {
    let direct = snapshot
        .services
        .iter()
        .filter(|service| service.forwarding == Forwarding::Direct && service.state != ServiceState::Vacant);
    let pairs = direct.flat_map(|service| service.backends.iter().map(move |backend| (service, backend)));
    pairs
        .filter_map(|(service, backend)| {
            let outer_is_ipv4 = backend.endpoint.address.is_ipv4();
            let family = if outer_is_ipv4 { libc::AF_INET } else { libc::AF_INET6 };
            match service.outer.encapsulation {
                Encapsulation::None => None,
                Encapsulation::Ipip if service.endpoint.address.is_ipv4() => Some((family, libc::IPPROTO_IPIP)),
                Encapsulation::Ipip => Some((family, libc::IPPROTO_IPV6)),
                Encapsulation::Gue => Some((family, libc::IPPROTO_UDP)),
            }
        })
        .collect()
}

fn open((family, protocol): Outer) -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(family, libc::SOCK_RAW | libc::SOCK_CLOEXEC, protocol) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // No packet is received: this filter keeps 0 bytes of each. Errors do not pass it.
    let mut nothing = libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 };
    let filter = libc::sock_fprog { len: 1, filter: &raw mut nothing };
    set(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &filter)?;
    if family == libc::AF_INET6 {
        // A raw socket of IPv6 is told of errors, and the kernel keeps their MTU, only if it asks for them. They wait in its
        // queue, which this bounds, and are never read; the MTU is kept when the queue is full, too.
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, &0)?;
        set(&socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &1)?;
    }
    Ok(socket)
}

/// Sets an option whose value in C is a `T`.
fn set<T>(socket: &OwnedFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    // SAFETY: the pointer and the length describe `value`; the kernel copies it, and the program a filter points to.
    let failed = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            option,
            std::ptr::from_ref(value).cast(),
            size_of::<T>() as libc::socklen_t,
        )
    };
    if failed != 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
