//! Invariant 4: the same frame under the same rule gives the same bytes above layer 2 in BPF and in software.

use crate::packet::{Packet, ends, packet, parsed, v4};
use crate::rig::{Buffer, NEXT_HOP, REDIRECT, Rig, in_namespace};
use hairpin_core::engine::Rule;
use hairpin_core::flow::{Endpoint, Protocol};
use hairpin_core::frame::Checksum;
use hairpin_core::rewrite::Rewrite;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

/// A packet and a rule for it: new ends of its family, deltas, a shift.
pub(crate) fn case() -> impl Strategy<Value = (Packet, Rewrite)> {
    let delta = prop_oneof![Just(0), any::<u32>(), Just(u32::MAX), Just(1)];
    packet().prop_flat_map(move |packet| {
        let ipv6 = !packet.key.is_ipv4();
        let new_ends = prop_oneof![8 => ends(ipv6).boxed(), 1 => Just(same(&packet)).boxed()];
        let shift = prop_oneof![2 => Just(0i8), 3 => -14i8..=14];
        let numbers = (delta.clone(), delta.clone(), shift, delta.clone(), delta.clone());
        (Just(packet), new_ends, numbers).prop_map(|(packet, ends, numbers)| {
            let (sequence, acknowledgement, shift, timestamp, echo) = numbers;
            let tcp = packet.key.protocol == Protocol::Tcp;
            let rewrite = Rewrite {
                source: ends.0,
                destination: ends.1,
                sequence_delta: if tcp { sequence } else { 0 },
                acknowledgement_delta: if tcp { acknowledgement } else { 0 },
                window_shift: if tcp { shift } else { 0 },
                timestamp_delta: if tcp { timestamp } else { 0 },
                echo_delta: if tcp { echo } else { 0 },
            };
            (packet, rewrite)
        })
    })
}

fn same(packet: &Packet) -> (Endpoint, Endpoint) {
    (packet.key.source, packet.key.destination)
}

#[test]
fn bpf_and_software_rewrite_alike() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(3000) });
        runner.run(&case(), |(packet, rewrite)| compare(&rig, packet, rewrite, false)).unwrap();
    });
}

/// A checksum that comes out as zero is sent as 0xffff over UDP, and as it is over TCP: random packets rarely get
/// there.
#[test]
fn a_checksum_of_zero_comes_out_alike() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let new = v4([10, 9, 8, 7], 4321, [10, 2, 0, 2], 8080, Protocol::Udp);
        let rewrite = Rewrite { source: new.source, destination: new.destination, ..Rewrite::default() };
        for (protocol, zero) in [(Protocol::Udp, [0xff, 0xff]), (Protocol::Tcp, [0, 0])] {
            let packet = Packet::new(v4([10, 1, 0, 2], 1234, [192, 0, 2, 10], 80, protocol)).to(rig.left.mac);
            let comes_out_as_zero = |word: &u16| {
                let mut frame = Packet { payload: word.to_be_bytes().to_vec(), ..packet.clone() }.frame();
                let at = parsed(&frame);
                rewrite.apply(&mut frame, &at, Checksum::Complete);
                frame[at.checksum_offset()..][..2] == zero
            };
            let word = (0..=u16::MAX).find(comes_out_as_zero).expect("every sum is reached");
            compare(&rig, Packet { payload: word.to_be_bytes().to_vec(), ..packet }, rewrite, false).unwrap();
        }
    });
}

/// Random packets in a socket buffer that knows the sum of its bytes (CHECKSUM_COMPLETE): the kernel compares after
/// the run.
#[test]
fn the_sum_a_socket_buffer_knows_is_kept_right() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        let probe = rig.ingress_as(&[0; 64], Buffer { checksum_complete: true, ..Buffer::default() });
        if probe.is_err_and(|error| error.raw_os_error() == Some(libc::EINVAL)) {
            eprintln!("skipped: this kernel cannot run programs on buffers with CHECKSUM_COMPLETE");
            return;
        }
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(2000) });
        runner.run(&case(), |(packet, rewrite)| compare(&rig, packet, rewrite, true)).unwrap();
    });
}

fn compare(rig: &Rig, packet: Packet, rewrite: Rewrite, checksum_complete: bool) -> Result<(), TestCaseError> {
    let frame = packet.to(rig.left.mac).frame();
    let at = parsed(&frame);
    let rule = Rule { key: at.key, rewrite, ..Rule::default() };
    rig.put(&rule, 0, rig.settled(1, 1500, false));
    let run = rig.ingress_as(&frame, Buffer { checksum_complete, ..Buffer::default() });
    let run = run.map_err(|error| TestCaseError::fail(format!("{error}: the sum is no longer right")))?;
    let mut expected = frame.clone();
    rewrite.apply(&mut expected, &at, Checksum::Complete);
    expected[..12].copy_from_slice(&NEXT_HOP);
    prop_assert_eq!(run.verdict, REDIRECT);
    prop_assert_eq!(&run.frame, &expected, "bpf left, software right; before: {:?}", frame);
    let head = rig.head(&at.key);
    prop_assert_eq!((head.packets, head.bytes), (1, (at.end - at.l3) as u64));
    Ok(())
}

pub(crate) fn ticks() -> u32 {
    (hairpin_linux::cpu::now().as_nanos() >> 20) as u32
}
