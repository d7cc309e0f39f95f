//! Network devices, by name: looking them up and setting what the plane needs on them.
//!
//! Plain `ioctl`s on a socket and files under `/proc/sys/net` and `/proc/thread-self/net`, which follow the network
//! namespace of the thread that asks. Never `/sys/class/net`: a mount of another namespace may stand there.

pub(crate) mod netlink;

use std::ffi::{CStr, c_int, c_ulong};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Bytes of an interface's name at most.
pub const NAME_BYTES_MAX: usize = libc::IFNAMSIZ - 1;

/// A network interface as it was when it was looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// Its number in its network namespace.
    pub index: u32,
    /// Its Ethernet address.
    pub mac: [u8; 6],
    /// IP bytes a frame carries at most.
    pub mtu: u32,
    /// Whether it is up (administratively).
    pub up: bool,
    /// Whether it has Ethernet headers (`ARPHRD_ETHER`); the plane works on no others.
    pub ethernet: bool,
}

impl Interface {
    /// Looks `name` up. Errors: `InvalidInput` if it cannot be a name, `NotFound` (ENODEV) if there is none.
    pub fn by_name(name: &str) -> io::Result<Interface> {
        let socket = control_socket()?;
        let address = ask(&socket, name, libc::SIOCGIFHWADDR as c_ulong)?;
        // SAFETY: the kernel has filled in `ifru_hwaddr`; any bytes are a valid `sockaddr`.
        let address = unsafe { address.ifr_ifru.ifru_hwaddr };
        let mut mac = [0; 6];
        for (to, from) in mac.iter_mut().zip(address.sa_data) {
            *to = from as u8;
        }
        let mtu = ask(&socket, name, libc::SIOCGIFMTU as c_ulong)?;
        // SAFETY: the kernel has filled in `ifru_mtu`, an integer.
        let mtu = unsafe { mtu.ifr_ifru.ifru_mtu };
        Ok(Interface {
            name: name.to_owned(),
            index: index(&socket, name)?,
            mac,
            mtu: u32::try_from(mtu).unwrap_or(0),
            up: flags(&socket, name)? & libc::IFF_UP != 0,
            ethernet: address.sa_family == libc::ARPHRD_ETHER,
        })
    }
}

/// The name of the driver of `name`, as `ethtool -i` has it. `Unsupported`: a device without one.
pub fn driver(name: &str) -> io::Result<String> {
    // `struct ethtool_drvinfo` of linux/ethtool.h: a command, the driver's name (32 bytes), and more.
    const DRVINFO_BYTES: usize = 196;
    const GET_DRVINFO: u32 = 3;
    let mut answer = [0u8; DRVINFO_BYTES];
    answer[..4].copy_from_slice(&GET_DRVINFO.to_ne_bytes());
    let mut request = request(name)?;
    request.ifr_ifru.ifru_data = answer.as_mut_ptr().cast();
    control(&control_socket()?, &mut request, libc::SIOCETHTOOL as c_ulong)
        .map_err(|e| about(e, "cannot ask for the driver of", name))?;
    let driver = CStr::from_bytes_until_nul(&answer[4..36]).map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(driver.to_string_lossy().into_owned())
}

/// Names of all interfaces of this network namespace.
pub fn names() -> io::Result<Vec<String>> {
    // SAFETY: no arguments; the result is null or an array that ends with a null name.
    let list = unsafe { libc::if_nameindex() };
    if list.is_null() {
        return Err(io::Error::last_os_error());
    }
    let mut names = Vec::new();
    for i in 0.. {
        // SAFETY: entries up to and including the one whose name is null belong to the array, and the loop ends there.
        let entry = unsafe { &*list.add(i) };
        if entry.if_name.is_null() {
            break;
        }
        // SAFETY: names are strings that end with a zero byte and live until the list is freed below.
        names.push(unsafe { CStr::from_ptr(entry.if_name) }.to_string_lossy().into_owned());
    }
    // SAFETY: `list` came from `if_nameindex` and is not used any more.
    unsafe { libc::if_freenameindex(list) };
    Ok(names)
}

/// Whether `name` is up and has a link (`IFF_RUNNING`: a carrier, as far as its driver can tell).
pub fn is_running(name: &str) -> io::Result<bool> {
    let both = libc::IFF_UP | libc::IFF_RUNNING;
    Ok(flags(&control_socket()?, name)? & both == both)
}

/// Brings `name` up or takes it down.
pub fn set_up(name: &str, up: bool) -> io::Result<()> {
    change_flags(name, if up { libc::IFF_UP } else { 0 }, if up { 0 } else { libc::IFF_UP })
}

/// Sets and clears flags (`IFF_*`) of `name`.
pub(crate) fn change_flags(name: &str, set: c_int, clear: c_int) -> io::Result<()> {
    let socket = control_socket()?;
    let new = flags(&socket, name)? & !clear | set;
    let mut request = request(name)?;
    request.ifr_ifru.ifru_flags = new as i16;
    control(&socket, &mut request, libc::SIOCSIFFLAGS as c_ulong).map_err(|e| about(e, "cannot set flags of", name))
}

/// Sets the Ethernet address of `name`.
pub(crate) fn set_mac(name: &str, mac: [u8; 6]) -> io::Result<()> {
    let mut address = libc::sockaddr { sa_family: libc::ARPHRD_ETHER, sa_data: [0; 14] };
    for (to, from) in address.sa_data.iter_mut().zip(mac) {
        *to = from as libc::c_char;
    }
    let mut request = request(name)?;
    request.ifr_ifru.ifru_hwaddr = address;
    control(&control_socket()?, &mut request, libc::SIOCSIFHWADDR as c_ulong)
        .map_err(|e| about(e, "cannot set the Ethernet address of", name))
}

/// Sets the largest IP packet `name` carries, in bytes.
pub fn set_mtu(name: &str, mtu: u32) -> io::Result<()> {
    let mut request = request(name)?;
    request.ifr_ifru.ifru_mtu = c_int::try_from(mtu).map_err(|_| io::ErrorKind::InvalidInput)?;
    control(&control_socket()?, &mut request, libc::SIOCSIFMTU as c_ulong)
        .map_err(|e| about(e, "cannot set the MTU of", name))
}

/// Sets how many packets wait in the transmit queue of `name` (for a TAP: in the ring its reader empties).
pub fn set_queue_length(name: &str, packets: u32) -> io::Result<()> {
    let mut request = request(name)?;
    // The kernel reads `ifr_qlen`, which libc does not name: it lies where the other integers of the union do.
    request.ifr_ifru.ifru_metric = c_int::try_from(packets).map_err(|_| io::ErrorKind::InvalidInput)?;
    control(&control_socket()?, &mut request, libc::SIOCSIFTXQLEN as c_ulong)
        .map_err(|e| about(e, "cannot set the queue length of", name))
}

/// An IP version, where the kernel keeps settings apart by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Whether packets that come in on `name` are forwarded. `NotFound`: no such interface, or no IPv6 on it.
pub fn forwarding(name: &str, family: Family) -> io::Result<bool> {
    let path = setting(name, family, "forwarding")?;
    fs::read_to_string(&path).map(|text| text.trim() != "0").map_err(|e| about(e, "cannot read", &path))
}

/// Sets whether packets that come in on `name` are forwarded; returns how it was, for the caller to restore.
///
/// IPv6: an interface that forwards no longer takes router advertisements unless its `accept_ra` is 2.
pub fn set_forwarding(name: &str, family: Family, on: bool) -> io::Result<bool> {
    let before = forwarding(name, family)?;
    if before != on {
        let path = setting(name, family, "forwarding")?;
        fs::write(&path, if on { "1" } else { "0" }).map_err(|e| about(e, "cannot write", &path))?;
    }
    Ok(before)
}

/// Keeps the kernel from speaking IPv6 on `name`: no link-local address, no duplicate detection, no router
/// solicitation, no multicast listener reports. A kernel without IPv6 is fine.
pub fn disable_ipv6(name: &str) -> io::Result<()> {
    let path = setting(name, Family::Ipv6, "disable_ipv6")?;
    match fs::write(&path, "1") {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(about(e, "cannot write", &path)),
        _ => Ok(()),
    }
}

/// A setting of an interface that is a number, such as `arp_ignore`. Of two that the kernel has, the one for all interfaces
/// and the interface's own, the larger. `NotFound`: no such interface, or no such protocol on it.
pub fn larger_of(name: &str, family: Family, called: &str) -> io::Result<u32> {
    let read = |name: &str| -> io::Result<u32> {
        let path = setting(name, family, called)?;
        let text = fs::read_to_string(&path).map_err(|e| about(e, "cannot read", &path))?;
        text.trim().parse().map_err(|_| io::ErrorKind::InvalidData.into())
    };
    Ok(read(name)?.max(read("all")?))
}

/// Packets the kernel could not hand to the device `name` (for a TAP: its reader was too slow, or absent).
pub fn transmit_dropped(name: &str) -> io::Result<u64> {
    checked(name)?;
    let text = fs::read_to_string("/proc/thread-self/net/dev")?;
    dropped_in(&text, name).ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, format!("no interface {name}")))
}

/// The transmit drops of `name` in the text of `/proc/net/dev`: name, colon, 8 receive columns, bytes, packets,
/// errors, drops.
fn dropped_in(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.trim_start().rsplit_once(':'))
        .find(|(device, _)| *device == name)
        .and_then(|(_, numbers)| numbers.split_ascii_whitespace().nth(11)?.parse().ok())
}

/// The file of a setting of an interface, such as `/proc/sys/net/ipv6/conf/eth0/forwarding`.
fn setting(name: &str, family: Family, setting: &str) -> io::Result<String> {
    checked(name)?;
    let family = match family {
        Family::Ipv4 => "ipv4",
        Family::Ipv6 => "ipv6",
    };
    Ok(format!("/proc/sys/net/{family}/conf/{name}/{setting}"))
}

/// `InvalidInput` unless the kernel would take `name` as an interface's name (`dev_valid_name`).
pub(crate) fn checked(name: &str) -> io::Result<&str> {
    let valid = !name.is_empty()
        && name.len() <= NAME_BYTES_MAX
        && name != "."
        && name != ".."
        && !name.bytes().any(|b| b == b'/' || b == b':' || b == 0 || b.is_ascii_whitespace() || b == 0x0b);
    if valid {
        Ok(name)
    } else {
        Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} cannot be the name of an interface")))
    }
}

/// The interface's number.
pub(crate) fn index_of(name: &str) -> io::Result<u32> {
    index(&control_socket()?, name)
}

fn index(socket: &OwnedFd, name: &str) -> io::Result<u32> {
    let answer = ask(socket, name, libc::SIOCGIFINDEX as c_ulong)?;
    // SAFETY: the kernel has filled in `ifru_ifindex`, an integer.
    Ok(unsafe { answer.ifr_ifru.ifru_ifindex } as u32)
}

fn flags(socket: &OwnedFd, name: &str) -> io::Result<c_int> {
    let answer = ask(socket, name, libc::SIOCGIFFLAGS as c_ulong)?;
    // SAFETY: the kernel has filled in `ifru_flags`, an integer.
    Ok(c_int::from(unsafe { answer.ifr_ifru.ifru_flags }))
}

fn ask(socket: &OwnedFd, name: &str, what: c_ulong) -> io::Result<libc::ifreq> {
    let mut request = request(name)?;
    control(socket, &mut request, what).map_err(|e| about(e, "cannot look up interface", name))?;
    Ok(request)
}

/// An interface request for `name`, everything else zero.
pub(crate) fn request(name: &str) -> io::Result<libc::ifreq> {
    checked(name)?;
    // SAFETY: an `ifreq` is plain bytes and integers (pointers in its union may be null): zero is valid.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from as libc::c_char;
    }
    Ok(request)
}

/// One `ioctl` with an interface request.
pub(crate) fn control(fd: &OwnedFd, request: &mut libc::ifreq, what: c_ulong) -> io::Result<()> {
    // SAFETY: every request code used with this function takes a pointer to an `ifreq`, which lives through the call, and so
    // does what it points to.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), what as _, request as *mut libc::ifreq) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A socket to ask about interfaces through.
fn control_socket() -> io::Result<OwnedFd> {
    // SAFETY: no memory is passed.
    let fd = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// `error` with what failed, and on what.
pub(crate) fn about(error: io::Error, what: &str, on: &str) -> io::Error {
    let kind = match error.raw_os_error() {
        Some(libc::ENODEV) => io::ErrorKind::NotFound,
        _ => error.kind(),
    };
    io::Error::new(kind, format!("{what} {on}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_found_and_listed() {
        let lo = Interface::by_name("lo").unwrap();
        assert_eq!(lo.mac, [0; 6]);
        assert!(!lo.ethernet && lo.index > 0);
        assert!(names().unwrap().contains(&"lo".to_owned()));
        assert!(transmit_dropped("lo").is_ok());
        assert!(forwarding("lo", Family::Ipv4).is_ok());
    }

    #[test]
    fn impossible_interface_names_are_refused() {
        for name in ["", ".", "..", "a/b", "../../lo", "sixteen-bytes-xx", "a b", "a:b", "a\0b"] {
            assert_eq!(Interface::by_name(name).unwrap_err().kind(), io::ErrorKind::InvalidInput, "{name:?}");
            assert!(forwarding(name, Family::Ipv6).is_err());
        }
        assert_eq!(Interface::by_name("no-such-device").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(transmit_dropped("no-such-device").unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn drops_are_the_fourth_transmit_column() {
        let text = concat!(
            "Inter-|   Receive\n face |bytes\n",
            "    lo: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n",
            "eth0.5:0 0 0 0 0 0 0 0 0 0 0 77 0 0 0 0\n"
        );
        assert_eq!(dropped_in(text, "lo"), Some(12));
        assert_eq!(dropped_in(text, "eth0.5"), Some(77));
        assert_eq!(dropped_in(text, "eth0"), None);
        assert_eq!(dropped_in("eth0: 1 2", "eth0"), None);
    }
}
