//! The client's address in front of a backend's stream: the PROXY protocol ("The PROXY protocol, versions 1 & 2",
//! HAProxy, 2020). A header is written once per connection, before all other bytes; the configuration says which backends
//! expect it.
//!
//! Only TCP over IPv4 or IPv6 with the command PROXY is written, without additions (TLV). Of what is read additions are skipped.

use super::config::ProxyVersion;
use super::edit::{NoRoom, Out};
use super::head::ParseStatus;
use crate::flow::{Address, Endpoint};
use core::fmt::Write;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use core::str::FromStr;

/// Bytes of the longest header: version 1 with two IPv6 addresses in full.
pub const HEADER_MAX: usize = 104;

/// The signature of version 2 (section 2.2).
const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Version 2, command PROXY.
const VERSION_AND_COMMAND: u8 = 0x21;
/// TCP over IPv4.
const TCP4: u8 = 0x11;
/// TCP over IPv6.
const TCP6: u8 = 0x21;
/// No addresses that a receiver could use (AF_UNSPEC).
const UNSPECIFIED: u8 = 0;
/// Version 2, command LOCAL: the sender's own connection, such as a check.
const VERSION_AND_LOCAL: u8 = 0x20;
/// Bytes of version 2 before its addresses.
const FIXED_BYTES: usize = 16;
/// The beginning of version 1 (section 2.1).
const BEGINS: &[u8; 6] = b"PROXY ";

/// Bytes of a header of version 1 that is read, at most (section 2.1).
pub const READ_V1_MAX: usize = 107;
/// Bytes of a header that is read, at most: version 2 with additions of a few hundred bytes.
pub const READ_MAX: usize = 536;

/// A header that was read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Its bytes, at most [`READ_MAX`].
    pub bytes: usize,
    /// The client, and the end that it has connected to, of one family. `None`: the sender tells of none (LOCAL, UNKNOWN).
    pub ends: Option<(Endpoint, Endpoint)>,
}

/// What was read is no header, or one that TCP does not have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadProxyHeader;

/// Reads the header of either version that `bytes` begin with. What is decided of a beginning holds for all that continues it.
///
/// # Errors
/// They begin with no header, or one that is longer than [`READ_MAX`] ([`READ_V1_MAX`]) or for another protocol than TCP.
pub fn read(bytes: &[u8]) -> Result<ParseStatus<Received>, BadProxyHeader> {
    match bytes.first() {
        None => Ok(ParseStatus::Partial),
        Some(first) if *first == BEGINS[0] => read_v1(bytes),
        Some(_) => read_v2(bytes),
    }
}

/// Whether `bytes` are the beginning of `expected`, or begin with it.
fn agrees(bytes: &[u8], expected: &[u8]) -> bool {
    bytes.iter().zip(expected).all(|(byte, expected)| byte == expected)
}

fn read_v1(bytes: &[u8]) -> Result<ParseStatus<Received>, BadProxyHeader> {
    if !agrees(bytes, BEGINS) {
        return Err(BadProxyHeader);
    }
    let Some(feed) = bytes.iter().take(READ_V1_MAX).position(|byte| *byte == b'\n') else {
        return if bytes.len() < READ_V1_MAX { Ok(ParseStatus::Partial) } else { Err(BadProxyHeader) };
    };
    let said = bytes[..feed].strip_prefix(BEGINS).and_then(|line| line.strip_suffix(b"\r"));
    let said = said.and_then(|said| core::str::from_utf8(said).ok()).ok_or(BadProxyHeader)?;
    let ends = match said.split_once(' ').unwrap_or((said, "")) {
        // What follows is to be ignored.
        ("UNKNOWN", _) => None,
        ("TCP4", said) => Some(read_ends::<Ipv4Addr>(said)?),
        ("TCP6", said) => Some(read_ends::<Ipv6Addr>(said)?),
        _ => return Err(BadProxyHeader),
    };
    Ok(ParseStatus::Complete(Received { bytes: feed + 1, ends }))
}

/// Addresses and ports of version 1, with one space between them.
fn read_ends<A: FromStr + Into<IpAddr>>(said: &str) -> Result<(Endpoint, Endpoint), BadProxyHeader> {
    let mut words = said.split(' ');
    let mut next = || words.next().ok_or(BadProxyHeader);
    let [source, destination, source_port, destination_port] = [next()?, next()?, next()?, next()?];
    if words.next().is_some() {
        return Err(BadProxyHeader);
    }
    let end = |address: &str, number: &str| {
        let address: A = address.parse().map_err(|_| BadProxyHeader)?;
        Ok(Endpoint::new(address.into(), port(number)?))
    };
    Ok((end(source, source_port)?, end(destination, destination_port)?))
}

/// A port as version 1 has it: digits, and no zero before others.
fn port(text: &str) -> Result<u16, BadProxyHeader> {
    let is_written_so = text.bytes().all(|byte| byte.is_ascii_digit()) && (text.len() == 1 || !text.starts_with('0'));
    text.parse().ok().filter(|_| is_written_so).ok_or(BadProxyHeader)
}

fn read_v2(bytes: &[u8]) -> Result<ParseStatus<Received>, BadProxyHeader> {
    if !agrees(bytes, SIGNATURE) {
        return Err(BadProxyHeader);
    }
    let command = bytes.get(12).copied();
    let is_local = command == Some(VERSION_AND_LOCAL);
    if command.is_some_and(|command| !is_local && command != VERSION_AND_COMMAND) {
        return Err(BadProxyHeader);
    }
    // The least that the length may be; of LOCAL nothing is looked at.
    let least = match bytes.get(13) {
        Some(_) if is_local => 0,
        Some(&TCP4) => 12,
        Some(&TCP6) => 36,
        Some(&UNSPECIFIED) | None => 0,
        Some(_) => return Err(BadProxyHeader),
    };
    let Some(length) = bytes.get(14..FIXED_BYTES) else { return Ok(ParseStatus::Partial) };
    let length = usize::from(u16::from_be_bytes([length[0], length[1]]));
    let end = FIXED_BYTES + length;
    if length < least || end > READ_MAX {
        return Err(BadProxyHeader);
    }
    let Some(said) = bytes.get(FIXED_BYTES..end) else { return Ok(ParseStatus::Partial) };
    let ends = match bytes[13] {
        _ if is_local => None,
        TCP4 => binary_ends::<4>(said, Address::from_ipv4),
        TCP6 => binary_ends::<16>(said, Address),
        _ => None,
    };
    Ok(ParseStatus::Complete(Received { bytes: end, ends }))
}

/// Addresses of `N` bytes, then ports.
fn binary_ends<const N: usize>(said: &[u8], address: fn([u8; N]) -> Address) -> Option<(Endpoint, Endpoint)> {
    let (source, rest) = said.split_first_chunk::<N>()?;
    let (destination, rest) = rest.split_first_chunk::<N>()?;
    let &[a, b, c, d, ..] = rest else { return None };
    let end = |bytes: &[u8; N], port: [u8; 2]| Endpoint { address: address(*bytes), port: u16::from_be_bytes(port) };
    Some((end(source, [a, b]), end(destination, [c, d])))
}

/// Writes the header that says that `client` has connected to `vip`; says how many bytes it has, at most [`HEADER_MAX`].
/// Addresses of two families, which no connection has, are both written as IPv6.
///
/// # Errors
/// `out` is too short.
pub fn write(out: &mut [u8], version: ProxyVersion, client: Endpoint, vip: Endpoint) -> Result<usize, NoRoom> {
    let is_ipv4 = client.address.is_ipv4() && vip.address.is_ipv4();
    let mut out = Out::new(out);
    match version {
        ProxyVersion::V1 => {
            out.put(if is_ipv4 { b"PROXY TCP4" } else { b"PROXY TCP6" });
            for end in [client, vip] {
                out.put(b" ");
                text(&mut out, &end.address, is_ipv4);
            }
            for end in [client, vip] {
                out.put(b" ");
                out.number(end.port.into());
            }
            out.put(b"\r\n");
        }
        ProxyVersion::V2 => {
            out.put(SIGNATURE);
            out.put(if is_ipv4 { &[VERSION_AND_COMMAND, TCP4, 0, 12] } else { &[VERSION_AND_COMMAND, TCP6, 0, 36] });
            for end in [client, vip] {
                out.put(if is_ipv4 { &end.address.0[12..] } else { &end.address.0 });
            }
            for end in [client, vip] {
                out.put(&end.port.to_be_bytes());
            }
        }
    }
    out.end()
}

/// An address as version 1 has it (section 2.1): IPv6 in hexadecimal digits and colons only.
fn text(out: &mut Out<'_>, address: &Address, is_ipv4: bool) {
    if address.is_ipv4() && !is_ipv4 {
        let [a, b, c, d] = address.ipv4_octets().map(u16::from);
        // Room is never short of in a way that `put` does not remember.
        write!(out, "::ffff:{:x}:{:x}", a << 8 | b, c << 8 | d).unwrap_or_default();
    } else {
        out.address(address);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::string::String;
    use std::vec::Vec;

    fn end(text: &str, port: u16) -> Endpoint {
        Endpoint::new(text.parse::<IpAddr>().unwrap(), port)
    }

    fn written(version: ProxyVersion, client: Endpoint, vip: Endpoint) -> Vec<u8> {
        let mut out = [0xaa; HEADER_MAX];
        let length = write(&mut out, version, client, vip).unwrap();
        assert!(out[length..].iter().all(|&byte| byte == 0xaa));
        // It fits where there is just enough room, and nowhere less.
        let mut tight = std::vec![0; length];
        assert_eq!(write(&mut tight, version, client, vip), Ok(length));
        assert_eq!(tight, out[..length]);
        for short in 0..length {
            assert_eq!(write(&mut tight[..short], version, client, vip), Err(NoRoom));
        }
        tight
    }

    fn line(client: Endpoint, vip: Endpoint) -> String {
        String::from_utf8(written(ProxyVersion::V1, client, vip)).unwrap()
    }

    /// The examples of section 2.1, and the longest there is.
    #[test]
    fn version_1_as_specified() {
        let ipv4 = |text: &str| end(text, 65_535);
        assert_eq!(
            line(ipv4("255.255.255.255"), ipv4("255.255.255.255")),
            "PROXY TCP4 255.255.255.255 255.255.255.255 65535 65535\r\n"
        );
        assert_eq!(
            line(end("192.168.0.1", 56_324), end("192.168.0.11", 443)),
            "PROXY TCP4 192.168.0.1 192.168.0.11 56324 443\r\n"
        );
        assert_eq!(line(end("2001:db8::1", 1), end("::1", 80)), "PROXY TCP6 2001:db8::1 ::1 1 80\r\n");
        let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        assert_eq!(
            line(end(longest, 65_535), end(longest, 65_535)),
            std::format!("PROXY TCP6 {longest} {longest} 65535 65535\r\n")
        );
        assert_eq!(line(end(longest, 65_535), end(longest, 65_535)).len(), HEADER_MAX);
        assert_eq!(
            line(end("192.0.2.1", 1), end("2001:db8::1", 2)),
            "PROXY TCP6 ::ffff:c000:201 2001:db8::1 1 2\r\n",
            "no dots in an IPv6 address"
        );
    }

    #[test]
    fn version_2_as_specified() {
        let ipv4 = written(ProxyVersion::V2, end("192.0.2.1", 0x1234), end("198.51.100.7", 443));
        assert_eq!(ipv4[..16], *b"\x0d\x0a\x0d\x0a\x00\x0d\x0a\x51\x55\x49\x54\x0a\x21\x11\x00\x0c");
        assert_eq!(ipv4[16..], [192, 0, 2, 1, 198, 51, 100, 7, 0x12, 0x34, 0x01, 0xbb]);
        let ipv6 = written(ProxyVersion::V2, end("2001:db8::1", 1), end("::2", 443));
        assert_eq!(ipv6[12..16], [0x21, 0x21, 0, 36]);
        assert_eq!(ipv6[16..20], [0x20, 0x01, 0x0d, 0xb8]);
        assert_eq!(ipv6[31..], [&[1][..], &[0; 15], &[2, 0, 1, 1, 187]].concat());
        let mixed = written(ProxyVersion::V2, end("192.0.2.1", 1), end("::2", 443));
        assert_eq!(mixed[16..32], end("192.0.2.1", 1).address.0);
    }

    fn complete(bytes: usize, ends: Option<(Endpoint, Endpoint)>) -> Result<ParseStatus<Received>, BadProxyHeader> {
        Ok(ParseStatus::Complete(Received { bytes, ends }))
    }

    /// A header of version 2.
    fn binary(command: u8, family: u8, said: &[u8]) -> Vec<u8> {
        [&SIGNATURE[..], &[command, family], &(said.len() as u16).to_be_bytes(), said].concat()
    }

    #[test]
    fn version_1_is_read_up_to_its_line_feed() {
        let ends = Some((end("192.0.2.1", 56_324), end("198.51.100.7", 443)));
        let line = b"PROXY TCP4 192.0.2.1 198.51.100.7 56324 443\r\n";
        assert_eq!(read(line), complete(line.len(), ends));
        assert_eq!(read(&[line, &b"\x16\x03\x01"[..]].concat()), complete(line.len(), ends));
        let ipv6 = b"PROXY TCP6 2001:db8::1 2001:DB8::2 0 65535\r\n";
        assert_eq!(read(ipv6), complete(ipv6.len(), Some((end("2001:db8::1", 0), end("2001:db8::2", 65_535)))));
        for unknown in ["PROXY UNKNOWN\r\n", "PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", "PROXY UNKNOWN \r\n"] {
            assert_eq!(read(unknown.as_bytes()), complete(unknown.len(), None), "{unknown:?}");
        }
    }

    #[test]
    fn lines_other_than_version_1_are_refused() {
        for line in [
            "PROXY\r\n",
            "PROXY \r\n",
            "PROXY tcp4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY UDP4 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY UNKNOWNS\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 \r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 2 3\r\n",
            "PROXY TCP4  192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 2001:db8::1 1 2\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.2 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.256 1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 1 65536\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 +1 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2 01 2\r\n",
            "PROXY TCP4 192.0.2.1 192.0.2.2  2\r\n",
            "GET / HTTP/1.1\r\n",
            "\r\n\r\n\0\r\nQUIT\r",
            "\x16\x03\x01\x02\x00",
        ] {
            assert_eq!(read(line.as_bytes()), Err(BadProxyHeader), "{line:?}");
        }
        // With its line feed it has 107 bytes at most.
        let padded = |bytes: usize| std::format!("PROXY UNKNOWN {}\r\n", "x".repeat(bytes - 16));
        assert_eq!(read(padded(READ_V1_MAX).as_bytes()), complete(READ_V1_MAX, None));
        assert_eq!(read(padded(READ_V1_MAX + 1).as_bytes()), Err(BadProxyHeader));
        assert_eq!(read(&padded(READ_V1_MAX + 1).as_bytes()[..READ_V1_MAX - 1]), Ok(ParseStatus::Partial));
    }

    #[test]
    fn version_2_is_read_with_its_additions() {
        let ends = Some((end("192.0.2.1", 0x1234), end("198.51.100.7", 443)));
        let said = [192, 0, 2, 1, 198, 51, 100, 7, 0x12, 0x34, 0x01, 0xbb];
        let plain = binary(0x21, 0x11, &said);
        assert_eq!(read(&plain), complete(28, ends));
        let longest = binary(0x21, 0x11, &[&said[..], &[0xee; 508]].concat());
        assert_eq!(read(&longest), complete(READ_MAX, ends));
        assert_eq!(read(&binary(0x21, 0x11, &[&said[..], &[0xee; 509]].concat())), Err(BadProxyHeader));
        // LOCAL, whatever it says of addresses, and a sender that knows none.
        for family in [0, 0x11, 0x31, 0xff] {
            assert_eq!(read(&binary(0x20, family, &[7; 5])), complete(21, None));
        }
        assert_eq!(read(&binary(0x21, 0, &[7; 5])), complete(21, None));
    }

    #[test]
    fn version_2_for_other_than_tcp_is_refused() {
        for (command, family) in [(0x21, 0x12), (0x21, 0x22), (0x21, 0x31), (0x21, 0x41), (0x22, 0x11), (0x11, 0x11)] {
            assert_eq!(read(&binary(command, family, &[0; 216])), Err(BadProxyHeader), "{command:x} {family:x}");
        }
        assert_eq!(read(&binary(0x21, 0x11, &[0; 11])), Err(BadProxyHeader));
        assert_eq!(read(&binary(0x21, 0x21, &[0; 35])), Err(BadProxyHeader));
    }

    fn ends() -> impl Strategy<Value = Endpoint> {
        let address = prop_oneof![
            any::<u32>().prop_map(|bits| IpAddr::V4(bits.into())),
            any::<u128>().prop_map(|bits| IpAddr::V6(bits.into()))
        ];
        (address, any::<u16>()).prop_map(|(address, port)| Endpoint::new(address, port))
    }

    proptest! {
        /// Both versions, read back by what the specification says a receiver does.
        #[test]
        fn a_receiver_reads_back_what_was_said(client in ends(), vip in ends()) {
            let line = line(client, vip);
            let words: Vec<&str> = line.strip_suffix("\r\n").unwrap().split(' ').collect();
            prop_assert_eq!(words[0], "PROXY");
            let read = |address: usize, port: usize| end(words[address], words[port].parse().unwrap());
            prop_assert_eq!((read(2, 4), read(3, 5)), (client, vip));
            prop_assert_eq!(words[1] == "TCP4", words[2].parse::<core::net::Ipv4Addr>().is_ok());
            prop_assert_eq!(words[1] == "TCP4", words[3].parse::<core::net::Ipv4Addr>().is_ok());
            prop_assert!(words.len() == 6 && (words[1] == "TCP4" || words[1] == "TCP6"));

            let header = written(ProxyVersion::V2, client, vip);
            let length = usize::from(u16::from_be_bytes([header[14], header[15]]));
            prop_assert_eq!(header.len(), 16 + length);
            let size = if header[13] == 0x11 { 4 } else { 16 };
            prop_assert_eq!(length, 2 * size + 4);
            let address = |at: usize| match size {
                4 => Address::from_ipv4(header[at..at + 4].try_into().unwrap()),
                _ => Address(header[at..at + 16].try_into().unwrap()),
            };
            let port = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
            let ports = 16 + 2 * size;
            prop_assert_eq!(Endpoint { address: address(16), port: port(ports) }, client);
            prop_assert_eq!(Endpoint { address: address(16 + size), port: port(ports + 2) }, vip);
        }

        /// Of either version with anything behind it, and cut anywhere.
        #[test]
        fn what_was_written_is_read(client in ends(), vip in ends(), v1 in any::<bool>(), behind in any::<Vec<u8>>()) {
            let header = written(if v1 { ProxyVersion::V1 } else { ProxyVersion::V2 }, client, vip);
            prop_assert_eq!(read(&[&header[..], &behind].concat()), complete(header.len(), Some((client, vip))));
            for cut in 0..header.len() {
                prop_assert_eq!(read(&header[..cut]), Ok(ParseStatus::Partial));
            }
        }

        /// Bytes that begin as a header does; what is decided of them early stays.
        #[test]
        fn hostile_bytes_are_decided_once(at in 0..4usize, behind in proptest::collection::vec(any::<u8>(), 0..600)) {
            let begins: [&[u8]; 4] = [b"", b"PROXY TCP4 ", SIGNATURE, b"\r\n\r\n\0\r\nQUIT\n\x21\x11\x01"];
            let all = [begins[at], &behind].concat();
            let outcome = read(&all);
            prop_assert!(all.len() < READ_MAX || outcome != Ok(ParseStatus::Partial));
            if let Ok(ParseStatus::Complete(received)) = outcome {
                prop_assert!(received.bytes <= all.len().min(READ_MAX));
            }
            for cut in 0..all.len() {
                let early = read(&all[..cut]);
                prop_assert!(early == Ok(ParseStatus::Partial) || early == outcome, "{cut}: {early:?}, then {outcome:?}");
            }
        }
    }
}
