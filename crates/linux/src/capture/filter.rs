//! The classic BPF program that chooses packets in the kernel, before they are copied.

use std::net::IpAddr;

const LOAD_HALF: u16 = (libc::BPF_LD | libc::BPF_H | libc::BPF_ABS) as u16;
/// At X and a constant.
const LOAD_WORD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_IND) as u16;
const SET_X: u16 = (libc::BPF_LDX | libc::BPF_W | libc::BPF_IMM) as u16;
const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;

const VLAN: u32 = 0x8100;
const VLAN_OUTER: u32 = 0x88a8;
const IPV4: u32 = 0x0800;
const IPV6: u32 = 0x86dd;
const ETHERNET_BYTES: u32 = 14;

fn plain(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

/// Goes on `equal` instructions further if A is `k`, else `different`.
fn branch(k: u32, equal: u8, different: u8) -> libc::sock_filter {
    libc::sock_filter { code: IF_EQUAL, jt: equal, jf: different, k }
}

/// A program that admits IP packets behind up to two VLAN tags in band, `snap_length` bytes of them: from or to one of
/// `hosts`, or all. A packet too short for its addresses is none.
pub(super) fn program(hosts: &[IpAddr], snap_length: u32) -> Vec<libc::sock_filter> {
    let admit = plain(RETURN, snap_length);
    let refuse = plain(RETURN, 0);
    // X becomes what the tags take, A the type behind them.
    let mut program = vec![
        plain(SET_X, 0),
        plain(LOAD_HALF, 12),
        branch(VLAN, 1, 0),
        branch(VLAN_OUTER, 0, 6),
        plain(SET_X, 4),
        plain(LOAD_HALF, 16),
        branch(VLAN, 1, 0),
        branch(VLAN_OUTER, 0, 2),
        plain(SET_X, 8),
        plain(LOAD_HALF, 20),
    ];
    let (v4, v6) = (ipv4(hosts, admit, refuse), ipv6(hosts, admit, refuse));
    // Only unconditional jumps reach far.
    program.extend([branch(IPV4, 3, 0), branch(IPV6, 0, 1), plain(JUMP, v4.len() as u32 + 1), refuse]);
    program.extend(v4);
    program.extend(v6);
    program
}

fn ipv4(hosts: &[IpAddr], admit: libc::sock_filter, refuse: libc::sock_filter) -> Vec<libc::sock_filter> {
    if hosts.is_empty() {
        return vec![admit];
    }
    let mut program = Vec::new();
    for field in [12, 16] {
        program.push(plain(LOAD_WORD, ETHERNET_BYTES + field));
        for host in hosts {
            if let IpAddr::V4(address) = host.to_canonical() {
                program.extend([branch(address.to_bits(), 0, 1), admit]);
            }
        }
    }
    program.push(refuse);
    program
}

fn ipv6(hosts: &[IpAddr], admit: libc::sock_filter, refuse: libc::sock_filter) -> Vec<libc::sock_filter> {
    if hosts.is_empty() {
        return vec![admit];
    }
    let mut program = Vec::new();
    for host in hosts {
        let IpAddr::V6(address) = host.to_canonical() else { continue };
        for field in [8, 24] {
            for (word, bytes) in address.octets().as_chunks::<4>().0.iter().enumerate() {
                let word = word as u8;
                program.push(plain(LOAD_WORD, ETHERNET_BYTES + field + 4 * u32::from(word)));
                // On, or past the remaining words and the end of this address.
                program.push(branch(u32::from_be_bytes(*bytes), 0, (3 - word) * 2 + 1));
            }
            program.push(admit);
        }
    }
    program.push(refuse);
    program
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs such a program as the kernel does, as far as it is used here. No jump may lead outside.
    fn run(program: &[libc::sock_filter], frame: &[u8]) -> u32 {
        let (mut a, mut x, mut at) = (0u32, 0u32, 0);
        loop {
            let libc::sock_filter { code, jt, jf, k } = program[at];
            at += 1;
            let load = |from: u32, bytes: usize| -> Option<u32> {
                let field = frame.get(from as usize..from as usize + bytes)?;
                Some(field.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)))
            };
            match code {
                RETURN => return k,
                SET_X => x = k,
                JUMP => at += k as usize,
                IF_EQUAL => at += usize::from(if a == k { jt } else { jf }),
                LOAD_HALF | LOAD_WORD => {
                    let (from, bytes) = if code == LOAD_HALF { (k, 2) } else { (x + k, 4) };
                    match load(from, bytes) {
                        Some(value) => a = value,
                        None => return 0,
                    }
                }
                other => panic!("{other:#x}"),
            }
        }
    }

    fn frame(tags: usize, source: &str, destination: &str) -> Vec<u8> {
        let mut frame = vec![0; 12];
        for tag in 0..tags {
            frame.extend(if tag == 0 && tags == 2 { [0x88, 0xa8, 0, 1] } else { [0x81, 0, 0, 2] });
        }
        match (source.parse().unwrap(), destination.parse().unwrap()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                frame.extend([8, 0, 0x45]);
                frame.extend([0; 11]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                frame.extend([0x86, 0xdd, 0x60]);
                frame.extend([0; 7]);
                frame.extend(source.octets());
                frame.extend(destination.octets());
            }
            _ => unreachable!(),
        }
        frame
    }

    #[test]
    fn hosts_are_admitted_from_and_to_and_no_others() {
        let hosts: Vec<IpAddr> = (0..32)
            .map(|n| match n % 3 {
                0 => format!("10.0.0.{n}"),
                1 => format!("2001:db8::{n}"),
                _ => format!("::ffff:10.1.0.{n}"),
            })
            .map(|text| text.parse().unwrap())
            .collect();
        let chosen = program(&hosts, 96);
        assert!(chosen.len() <= 4096);
        for tags in 0..3 {
            for host in &hosts {
                let host = host.to_canonical();
                let other = if host.is_ipv4() { "10.2.0.1" } else { "2001:db8:1::1" };
                let host = host.to_string();
                assert_eq!(run(&chosen, &frame(tags, &host, other)), 96, "{host}");
                assert_eq!(run(&chosen, &frame(tags, other, &host)), 96, "{host}");
                assert_eq!(run(&chosen, &frame(tags, other, other)), 0);
                let whole = frame(tags, other, &host);
                assert_eq!(run(&chosen, &whole[..whole.len() - 1]), 0, "truncated");
            }
        }
        // One family only: nothing of the other.
        let one = program(&hosts[..1], 96);
        assert_eq!(run(&one, &frame(0, "2001:db8::1", "2001:db8::2")), 0);
        assert_eq!(run(&one, &frame(0, "10.0.0.0", "10.9.9.9")), 96);
    }

    #[test]
    fn without_hosts_all_ip_packets_are_admitted() {
        let all = program(&[], 70_000);
        for tags in 0..3 {
            assert_eq!(run(&all, &frame(tags, "10.0.0.1", "10.0.0.2")), 70_000);
            assert_eq!(run(&all, &frame(tags, "fd00::1", "fd00::2")), 70_000);
        }
        assert_eq!(run(&all, &frame(3, "10.0.0.1", "10.0.0.2")), 0);
        let mut arp = frame(0, "10.0.0.1", "10.0.0.2");
        arp[13] = 6;
        assert_eq!(run(&all, &arp), 0);
        assert_eq!(run(&all, &[0; 13]), 0);
    }
}
