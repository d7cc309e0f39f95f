//! The client's address in front of a backend's stream: the PROXY protocol ("The PROXY protocol, versions 1 & 2",
//! HAProxy, 2020). A header is written once per connection, before all other bytes; the configuration says which backends
//! expect it.
//!
//! Only TCP over IPv4 or IPv6 with the command PROXY is written, without additions (TLV).

use super::config::ProxyVersion;
use super::edit::{NoRoom, Out};
use crate::flow::{Address, Endpoint};
use core::fmt::Write;

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
    use core::net::IpAddr;
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
    }
}
