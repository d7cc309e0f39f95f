//! Clients with the kernel's TCP that meet SYN cookies.

use crate::cookie::{self, VIP6};
use crate::rig::{VIP, command, in_namespace};
use hairpin_core::l7;
use hairpin_core::wire::tcp::TIMESTAMPS;
use std::io::Write;
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

/// `TCP_INFO`, as far as it is about what was agreed on.
struct Agreed {
    options: u8,
    scales: u8,
    mss: u32,
}

fn agreed(socket: &TcpStream) -> Agreed {
    let mut info = [0u8; 64];
    let mut size = info.len() as u32;
    // SAFETY: pointer and size describe `info`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &mut size)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    // tcpi_options, tcpi_snd_wscale and tcpi_rcv_wscale, tcpi_snd_mss.
    Agreed { options: info[5], scales: info[6], mss: u32::from_ne_bytes(info[16..20].try_into().unwrap()) }
}

/// SYNs that the kernel has sent again in this thread's network namespace: on a busy machine an answer takes longer than a
/// second.
fn syns_sent_again() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap().split(' '), lines.next().unwrap().split(' '));
    names.zip(values).find(|(name, _)| *name == "TCPSynRetrans").unwrap().1.parse().unwrap()
}

#[test]
fn a_kernels_client_connects() {
    connect(false);
}

/// Unfinished checksums, which a driver does not know for such, are tc's to answer.
#[test]
fn a_kernels_client_connects_by_xdp() {
    connect(true);
}

/// Clients with the kernel's TCP in a namespace of their own, with unfinished checksums and with finished ones; no worker is
/// behind the programs.
fn connect(by_xdp: bool) {
    in_namespace(move || {
        const OPTION_TIMESTAMPS: u8 = 1;
        const OPTION_SACK: u8 = 2;
        const OPTION_SCALE: u8 = 4;
        let mut rig = cookie::rig(1);
        if by_xdp {
            command("ethtool", &["-K", "left-peer", "gro", "on"]);
            rig.plane.attach_xdp(&[(0, rig.left.clone())]).unwrap();
        }
        let left = rig.left.mac.map(|byte| format!("{byte:02x}")).join(":");
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (go, is_moved) = std::sync::mpsc::channel::<()>();
        let client = std::thread::spawn(move || {
            // SAFETY: changes this thread alone.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNET) }, 0);
            // SAFETY: no memory is passed.
            ready.send(unsafe { libc::gettid() }).unwrap();
            is_moved.recv().unwrap();
            let ip = |line: &str| command("ip", &line.split_whitespace().collect::<Vec<_>>());
            ip("link set left-peer up");
            let connect = |device: &str| {
                ip(&format!("link set {device} up"));
                ip(&format!("addr add 10.1.0.2/24 dev {device}"));
                ip(&format!("addr add fd01::2/64 dev {device} nodad"));
                ip(&format!("neigh replace 10.1.0.1 lladdr {left} dev {device}"));
                ip(&format!("neigh replace fd01::1 lladdr {left} dev {device}"));
                ip("route replace default via 10.1.0.1");
                ip("-6 route replace default via fd01::1");
                let vips = [SocketAddr::from((VIP, 80)), (VIP6.parse::<Ipv6Addr>().unwrap(), 80).into()];
                for vip in vips {
                    let socket = TcpStream::connect_timeout(&vip, Duration::from_secs(5)).unwrap();
                    let agreed = agreed(&socket);
                    assert_eq!(agreed.options & 7, OPTION_TIMESTAMPS | OPTION_SACK | OPTION_SCALE);
                    assert_eq!(agreed.scales & 0xf, l7::cookie::SCALE);
                    let most = if vip.is_ipv4() { l7::cookie::MSS_V4 } else { l7::cookie::MSS_V6 };
                    assert_eq!(agreed.mss, u32::from(most) - TIMESTAMPS as u32);
                    (&socket).write_all(b"GET / HTTP/1.1\r\n").unwrap();
                }
                ip(&format!("addr flush dev {device}"));
            };
            connect("left-peer");
            command("ethtool", &["-K", "left-peer", "tx", "off"]);
            connect("left-peer");
            syns_sent_again()
        });
        let thread = is_ready.recv().unwrap();
        command("ip", &["link", "set", "left-peer", "netns", &thread.to_string()]);
        rig.heartbeat();
        let (outcome, counted) = rig.counted(|| {
            go.send(()).unwrap();
            // On a slow machine the client's commands take longer than one sign of life is good for.
            while !client.is_finished() {
                rig.heartbeat();
                std::thread::sleep(Duration::from_millis(50));
            }
            client.join()
        });
        let again =
            outcome.unwrap_or_else(|panic| panic!("{:?}; counted: {counted:?}", panic.downcast_ref::<String>()));
        let sent = counted["cookie-sent"];
        assert!((4..=4 + again).contains(&sent), "{again} SYNs were sent again, {counted:?}");
        let by_driver = counted.get("xdp-sent").copied().unwrap_or(0);
        let expected = if by_xdp { 2..=2 + again } else { 0..=0 };
        assert!(expected.contains(&by_driver), "{again} SYNs were sent again, {counted:?}");
        assert_eq!(counted.get("cookie-invalid"), None, "{counted:?}");
        assert!(counted["cookie-bare"] >= 4 && counted["to-worker"] >= 4, "{counted:?}");
    });
}
