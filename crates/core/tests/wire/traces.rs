//! Real traffic of the recordings in the directory that `HAIRPIN_TRACES` names.

use crate::packets::{checksums_right, transport};
use hairpin_core::flow::{Address, Endpoint};
use hairpin_core::frame::Checksum;
use hairpin_core::rewrite::Rewrite;
use hairpin_core::wire::{Parsed, parse};
use pcap_parser::{Block, PcapBlockOwned, PcapError, create_reader};
use std::path::{Path, PathBuf};

/// Whole Ethernet frames of a capture.
fn frames(path: &Path, mut each: impl FnMut(&[u8])) {
    let file = std::io::Cursor::new(std::fs::read(path).unwrap());
    let mut reader = create_reader(1 << 20, file).unwrap();
    loop {
        match reader.next() {
            Ok((offset, block)) => {
                match block {
                    PcapBlockOwned::Legacy(packet) if packet.caplen == packet.origlen => each(packet.data),
                    PcapBlockOwned::NG(Block::EnhancedPacket(packet)) if packet.caplen == packet.origlen => {
                        each(&packet.data[..packet.caplen as usize]);
                    }
                    _ => {}
                }
                reader.consume(offset);
            }
            Err(PcapError::Eof) => break,
            Err(PcapError::Incomplete(_)) => reader.refill().unwrap(),
            Err(error) => panic!("{}: {error:?}", path.display()),
        }
    }
}

#[test]
fn real_traffic_is_parsed_and_rewritten() {
    let Some(folder) = std::env::var_os("HAIRPIN_TRACES") else {
        println!("skipped: HAIRPIN_TRACES names no directory of recordings");
        return;
    };
    let paths: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    for path in paths.iter().filter(|path| path.extension().is_some_and(|extension| extension == "pcap")) {
        let (mut all, mut transports, mut malformed, mut right) = (0u32, 0u32, 0u32, 0u32);
        frames(path, |frame| {
            all += 1;
            match parse(frame) {
                Ok(Parsed::Transport(at)) => {
                    transports += 1;
                    let mut bytes = frame.to_vec();
                    let protocol = at.key.protocol as u8;
                    let was_right = checksums_right(&bytes, at.l3, at.l4, at.end, protocol);
                    right += u32::from(was_right);
                    let (a, b) = match at.key.is_ipv4() {
                        true => (Address::from_ipv4([203, 0, 113, 7]), Address::from_ipv4([198, 51, 100, 9])),
                        false => (Address([0x20; 16]), Address([0x2a; 16])),
                    };
                    let rewrite = Rewrite {
                        source: Endpoint { address: a, port: 1 },
                        destination: Endpoint { address: b, port: 2 },
                        sequence_delta: 0xffff_0000,
                        acknowledgement_delta: 0x0001_2345,
                        timestamp_delta: 0xffff_fff0,
                        echo_delta: 0x8000_0001,
                        ..Rewrite::default()
                    };
                    rewrite.apply(&mut bytes, &at, Checksum::Complete);
                    assert_eq!(transport(&bytes).key, rewrite.rewritten(&at.key));
                    assert_eq!(checksums_right(&bytes, at.l3, at.l4, at.end, protocol), was_right);
                }
                Ok(_) => {}
                Err(_) => malformed += 1,
            }
        });
        println!("{}: {all} frames, {transports} TCP and UDP, {malformed} malformed, {right} right", path.display());
        assert!(all > 50, "{}: {all} frames", path.display());
        assert!(transports * 10 > all * 7, "{}: {transports} of {all} are TCP or UDP", path.display());
        assert!(malformed * 50 < all, "{}: {malformed} of {all} are malformed", path.display());
        assert!(right > 0, "{}: no checksum is right", path.display());
    }
}
