//! SYN cookies made and checked by the programs: the same ones as core's, and clients that meet them.

use crate::adoption::adopted;
use crate::packet::{ACK, FIN, Packet, RST, SYN, parsed, v4, v6};
use crate::rig::{Buffer, CLIENT, KEY, OK, REDIRECT, Rig, SHOT, VIP, in_namespace, snapshot};
use crate::wire::{Link, Vnet};
use hairpin_core::config::{Snapshot, UnknownPacket};
use hairpin_core::flow::{FlowKey, Protocol, Steering};
use hairpin_core::frame::{Checksum, VecFrame};
use hairpin_core::keys::Secret;
use hairpin_core::l7::config::{Kind, Tls};
use hairpin_core::l7::cookie::{self, Cookies, EpochKeys, Offer};
use hairpin_core::time::{Duration, Time};
use hairpin_core::wire::tcp::timestamps;
use hairpin_linux::capture::{Capture, CaptureFilter};
use hairpin_linux::cpu;
use hairpin_linux::programs::Absent;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use std::sync::atomic::Ordering;

/// Nanoseconds of a time count.
const COUNT: u64 = 1 << 36;
pub(crate) const VIP6: &str = "2001:db8::10";

pub(crate) fn client(port: u16, ipv4: bool) -> FlowKey {
    match ipv4 {
        true => v4(CLIENT, port, VIP, 80, Protocol::Tcp),
        false => v6("fd01::2", port, VIP6, 80, Protocol::Tcp),
    }
}

/// A rig whose services of TCP port 80, one of each family, are spliced.
pub(crate) fn rig(workers: u16) -> Rig {
    let rig = Rig::new(workers, |_| ());
    splice(&rig);
    rig
}

pub(crate) fn splice(rig: &Rig) {
    splice_with(rig, UnknownPacket::Drop);
}

pub(crate) fn splice_with(rig: &Rig, unknown: UnknownPacket) {
    splice_as(rig, unknown, true);
}

fn splice_as(rig: &Rig, unknown: UnknownPacket, timestamps: bool) {
    rig.plane.configure(&spliced(unknown, timestamps)).unwrap();
}

/// The rig's services, those of TCP port 80 spliced.
pub(crate) fn spliced(unknown: UnknownPacket, timestamps: bool) -> Snapshot {
    let mut spliced = snapshot();
    for service in [0, 2] {
        spliced.services[service].unknown = unknown;
        spliced.services[service].kind = Kind::Tls(Box::new(Tls {
            routes: [].into(),
            proxy_protocol: None,
            is_plain: false,
            hello_bytes_max: 512,
            hello_timeout: Duration::from_secs(1),
            connect_timeout: Duration::from_secs(1),
            connect_tries: 1,
            offload_bytes_min: None,
            timestamps,
        }));
    }
    spliced
}

pub(crate) fn cookies(rig: &Rig) -> Cookies {
    rig.plane.control().cookies()
}

/// The time, at a point at which neither clock is about to go on to another count.
pub(crate) fn at_ease() -> Time {
    at_ease_by(0)
}

/// The time, at a point at which a clock that is `ahead_ns` ahead is not about to go on to another count.
fn at_ease_by(ahead_ns: u64) -> Time {
    loop {
        let now = cpu::now();
        if (COUNT / 1000..COUNT / 1000 * 999).contains(&(now.as_nanos().wrapping_add(ahead_ns) % COUNT)) {
            return now;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// TCP options of a SYN: what belongs there, in any order and number, what does not, nonsense.
fn options() -> impl Strategy<Value = Vec<u8>> {
    let mss = prop_oneof![
        any::<u16>(),
        prop::sample::select(vec![0u16, 48, 535, 536, 1219, 1220, 1299, 1300, 1359, 1360, 1439, 1440, 1459, 1460])
    ];
    let option = prop_oneof![
        4 => mss.prop_map(|mss| [&[2, 4], &mss.to_be_bytes()[..]].concat()),
        3 => (0u8..=16).prop_map(|scale| vec![3, 3, scale]),
        3 => Just(vec![4, 2]),
        2 => any::<[u8; 8]>().prop_map(|stamps| [&[8, 10], &stamps[..]].concat()),
        3 => Just(vec![1]),
        1 => Just(vec![0]),
        1 => (any::<u8>(), 0u8..12).prop_map(|(kind, length)| vec![kind, length, 7, 7]),
        1 => (2u8..=4, 0u8..8).prop_map(|(kind, length)| vec![kind, length]),
    ];
    let list = vec(option, 0..7).prop_map(|options| options.concat());
    prop_oneof![6 => list, 1 => vec(any::<u8>(), 0..=40)].prop_map(|mut options: Vec<u8>| {
        options.truncate(40);
        options.resize(options.len().next_multiple_of(4), 0);
        options
    })
}

/// A SYN of any client of the rig's services, addressed `to` an interface; and whether its checksum is wrong, which is not read
/// of one with data.
pub(crate) fn syn(to: [u8; 6]) -> impl Strategy<Value = (Vec<u8>, bool)> {
    let numbers = prop_oneof![any::<u32>(), Just(u32::MAX), Just(0)];
    let payload = prop_oneof![3 => Just(Vec::new()), 1 => vec(any::<u8>(), 1..64)];
    let client = (any::<bool>(), any::<u32>(), any::<u16>());
    (client, numbers, options(), payload, 0u8..16, 0usize..7).prop_map(
        move |(client, sequence, options, rest, harm, padding)| {
            let (ipv4, host, port) = client;
            let mut key = self::client(port, ipv4);
            key.source.address.0[13..].copy_from_slice(&host.to_be_bytes()[1..]);
            let packet =
                Packet { flags: SYN | 0xc8, sequence, tcp_options: options, payload: rest, ..Packet::new(key) };
            let mut frame = packet.to(to).frame();
            frame[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
            let (at, whole) = (parsed(&frame), frame.len());
            let harmed = harm == 0 && at.payload == at.end;
            if harmed {
                frame[at.l4 + 8] ^= 1;
            }
            frame.resize(whole + padding, 0);
            (frame, harmed)
        },
    )
}

/// Core's answer to a SYN, with this in its timestamps.
fn answer(rig: &Rig, frame: &[u8], now: Time, clock: u32) -> Option<Vec<u8>> {
    let mut answered = VecFrame::new(frame);
    cookie::answer(&mut answered, &parsed(frame), &cookies(rig), now, Some(clock)).then_some(answered.data)
}

/// Checks the frame that a program has made of a SYN just after `now`.
pub(crate) fn assert_answer(rig: &Rig, syn: &[u8], frame: &[u8], now: Time) -> Result<(), TestCaseError> {
    let clock = ((now.as_nanos() / 1_000_000) as u32).wrapping_add(Steering::by_hash(KEY, 1).clock_ahead());
    // The programs' clock is some milliseconds behind, more on an emulated machine, and time passes.
    let told = stamped(frame).unwrap_or(clock);
    prop_assert!(told.wrapping_sub(clock).wrapping_add(1000) < 6000, "{told} is not {clock}");
    let expected = answer(rig, syn, now, told);
    prop_assert_eq!(Some(&frame[12..]), expected.as_ref().map(|expected| &expected[12..]));
    prop_assert_eq!((&frame[..6], &frame[6..12]), (&syn[6..12], &syn[..6]));
    let back = parsed(frame);
    let written = [frame[back.checksum_offset()], frame[back.checksum_offset() + 1]];
    prop_assert_eq!(back.transport_checksum(frame), Some(u16::from_be_bytes(written)));
    Ok(())
}

#[test]
fn answers_are_cores() {
    in_namespace(|| {
        let rig = rig(1);
        let mut runner = TestRunner::new(Config { failure_persistence: None, ..Config::with_cases(2000) });
        let outcome = runner.run(&(syn(rig.left.mac), any::<bool>()), |((frame, harmed), complete)| {
            let now = at_ease();
            let expected = answer(&rig, &frame, now, 0);
            prop_assert_eq!(expected.is_none(), harmed);
            // The kernel forgets the sum of a packet whose length changes, and a test run takes that for a mistake.
            let complete = complete && expected.is_none_or(|expected| expected.len() == frame.len());
            let buffer = Buffer { checksum_complete: complete, ..Buffer::default() };
            // All cases together may take longer than a worker may be silent.
            rig.heartbeat();
            let (run, counted) = rig.counted(|| rig.ingress_as(&frame, buffer).unwrap());
            if harmed {
                prop_assert_eq!((run.verdict, counted), (SHOT, [("malformed", 1)].into()));
                return Ok(());
            }
            prop_assert_eq!((run.verdict, counted), (REDIRECT, [("cookie-sent", 1)].into()));
            assert_answer(&rig, &frame, &run.frame, now)
        });
        outcome.unwrap();
    });
}

/// The value of a frame's timestamps.
pub(crate) fn stamped(frame: &[u8]) -> Option<u32> {
    let at = parsed(frame);
    let options = &frame[at.l4 + 20..at.payload];
    let value = timestamps(options).last()?;
    Some(u32::from_be_bytes(options[value..value + 4].try_into().unwrap()))
}

#[test]
fn a_service_without_timestamps_answers_without() {
    in_namespace(|| {
        let rig = rig(1);
        for (ipv4, offered) in [(true, true), (false, true), (true, false), (false, false)] {
            splice_as(&rig, UnknownPacket::Drop, offered);
            let tcp_options = [&[2, 4, 5, 0xb4, 4, 2, 8, 10][..], &[7; 8], &[1, 3, 3, 7]].concat();
            let packet = Packet { flags: SYN, tcp_options, payload: Vec::new(), ..Packet::new(client(9, ipv4)) };
            let run = rig.ingress(&packet.to(rig.left.mac).frame());
            assert_eq!((run.verdict, stamped(&run.frame).is_some()), (REDIRECT, offered), "{ipv4}");
        }
    });
}

/// The fate of a packet: verdict, worker, events other than that it went to a worker.
pub(crate) fn offer(rig: &Rig, packet: &Packet) -> (i32, Option<u16>, Vec<&'static str>) {
    let before = rig.tickets();
    let frame = packet.clone().to(rig.left.mac).frame();
    let (run, counted) = rig.counted(|| rig.ingress(&frame));
    let worker = before.iter().zip(&rig.tickets()).position(|(b, a)| a > b).map(|worker| worker as u16);
    if run.verdict == REDIRECT && worker.is_some() {
        assert_eq!(run.frame[6..], frame[6..], "as it came");
    }
    (run.verdict, worker, counted.into_keys().filter(|event| *event != "to-worker").collect())
}

/// The first data of a client whose SYN had the number before `sequence`.
pub(crate) fn data(key: FlowKey, sequence: u32, cookie: u32) -> Packet {
    let acknowledgement = cookie.wrapping_add(1);
    Packet { flags: ACK | 8, sequence: sequence.wrapping_add(1), acknowledgement, ..Packet::new(key) }
}

const DROPPED: (i32, Option<u16>) = (SHOT, None);

#[test]
fn only_data_with_a_valid_cookie_reaches_its_worker() {
    in_namespace(|| {
        let rig = rig(8);
        let steering = Steering::by_hash(KEY, 8);
        // A valid cookie passes the policer by.
        (0..4).for_each(|service| rig.plane.control().set_client_rate(service, 0));
        let cookies = cookies(&rig);
        let given = Offer { mss: 1460, scale: Some(9), sack: true };
        for round in 0..300u32 {
            let (key, sequence) = (client(1000 + round as u16, round % 2 == 0), round.wrapping_mul(0x1234_5677));
            let now = at_ease();
            let cookie = cookies.make(now, &key, sequence, &given);
            let mut wrong = vec![
                data(key, sequence, cookie ^ 1 << (round % 32)),
                data(key, sequence ^ 1 << (round % 32), cookie),
                data(client(999, key.is_ipv4()), sequence, cookie),
                data(key, sequence, round),
            ];
            let made = |later: i64| {
                let then = now.as_nanos().checked_add_signed(later * COUNT as i64)?;
                Some(cookies.make(Time::from_nanos(then), &key, sequence, &given))
            };
            wrong.extend([-4, -5, 2].iter().filter_map(|&later| Some(data(key, sequence, made(later)?))));
            for packet in wrong {
                let (verdict, worker, events) = offer(&rig, &packet);
                assert_eq!(((verdict, worker), &events[..]), (DROPPED, &["cookie-invalid"][..]), "{packet:?}");
            }
            let later = [0, -3, -2, -1, 1][round as usize % 5];
            let mut right = data(key, sequence, made(later).unwrap_or(cookie));
            right.flags |= if round % 3 == 0 { FIN } else { 0 };
            let to_worker = (REDIRECT, Some(steering.worker(&key.source)), Vec::new());
            assert_eq!(offer(&rig, &right), to_worker, "count {later}");
        }
    });
}

#[test]
fn segments_after_the_first_data_are_admitted() {
    in_namespace(|| {
        let rig = rig(1);
        let key = client(5000, true);
        let cookie = cookies(&rig).make(at_ease(), &key, 7, &Offer { mss: 1460, scale: None, sack: true });
        let next = Packet { sequence: 2000, ..data(key, 7, cookie) };
        let finish = Packet { flags: FIN | ACK, payload: Vec::new(), ..next.clone() };
        assert_eq!(offer(&rig, &next).2, ["cookie-invalid"]);
        assert_eq!(offer(&rig, &finish).2, ["cookie-bare"]);
        assert_eq!(offer(&rig, &data(key, 7, cookie)).1, Some(0));
        for packet in [&next, &finish] {
            assert_eq!(offer(&rig, packet), (REDIRECT, Some(0), Vec::new()));
        }
        assert_eq!(offer(&rig, &Packet { key: client(5001, true), ..next.clone() }).2, ["cookie-invalid"]);
        // Not for ever: by then its worker knows it.
        std::thread::sleep(Duration::from_millis(1400));
        rig.heartbeat();
        assert_eq!(offer(&rig, &next).2, ["cookie-invalid"]);
    });
}

#[test]
fn early_fin_needs_a_valid_cookie() {
    in_namespace(|| {
        let rig = rig(1);
        for ipv4 in [true, false] {
            let key = client(5000, ipv4);
            let cookie = cookies(&rig).make(at_ease(), &key, 7, &Offer { mss: 1460, scale: None, sack: true });
            let finish = Packet { flags: FIN | ACK, payload: Vec::new(), ..data(key, 7, cookie) };
            assert_eq!(offer(&rig, &finish), (REDIRECT, Some(0), Vec::new()));
            let wrong = [
                Packet { key: client(5001, ipv4), ..finish.clone() },
                Packet { sequence: finish.sequence.wrapping_add(1), ..finish.clone() },
                Packet { flags: FIN, ..finish.clone() },
                Packet { flags: FIN | RST | ACK, ..finish.clone() },
            ];
            for packet in wrong {
                assert_eq!(offer(&rig, &packet), (SHOT, None, vec!["cookie-bare"]), "{packet:?}");
            }
            // It begins nothing, so nothing else of it is let in.
            let next = Packet { sequence: 2000, ..data(key, 7, cookie) };
            assert_eq!(offer(&rig, &next).2, ["cookie-invalid"]);
        }
    });
}

#[test]
fn packets_without_data_need_a_known_connection() {
    in_namespace(|| {
        let rig = rig(1);
        let steering = Steering::by_hash(KEY, 1);
        for (number, ipv4) in [(1, true), (2, false)] {
            let key = client(number, ipv4);
            let bare = Packet { payload: Vec::new(), ..Packet::new(key) };
            let cookie = cookies(&rig).make(at_ease(), &key, 7, &Offer { mss: 1460, scale: None, sack: true });
            let with_data = data(key, 7, cookie);
            let packets = [
                bare.clone(),
                Packet { payload: Vec::new(), ..with_data.clone() },
                Packet { flags: FIN | ACK, ..bare.clone() },
                Packet { flags: RST, ..bare.clone() },
                Packet { flags: RST | ACK, ..with_data.clone() },
                Packet { flags: SYN | ACK, ..with_data.clone() },
                Packet { flags: 0, ..with_data.clone() },
                Packet { flags: FIN, ..bare.clone() },
            ];
            for packet in &packets {
                assert_eq!(offer(&rig, packet), (SHOT, None, vec!["cookie-bare"]), "{packet:?}");
            }
            let known = rig.plane.control().known();
            known[steering.hash(&key.source) as usize & (known.len() - 1)].store(1, Ordering::Relaxed);
            for packet in &packets {
                assert_eq!(offer(&rig, packet), (REDIRECT, Some(0), Vec::new()), "{packet:?}");
            }
            // But a SYN is answered whatever its source address is.
            assert_eq!(offer(&rig, &Packet { flags: SYN, ..bare.clone() }), (REDIRECT, None, vec!["cookie-sent"]));
            for flags in [SYN | FIN, SYN | RST] {
                assert_eq!(offer(&rig, &Packet { flags, ..bare.clone() }).2, ["malformed"]);
            }
        }
    });
}

#[test]
fn unmatched_packets_are_policed_and_reach_a_worker() {
    in_namespace(|| {
        let rig = Rig::new(1, |_| ());
        splice_with(&rig, UnknownPacket::Reset);
        for ipv4 in [true, false] {
            let key = client(3, ipv4);
            let cookie = cookies(&rig).make(at_ease(), &key, 7, &Offer { mss: 1460, scale: None, sack: true });
            let other = data(key, 7, cookie.wrapping_add(1));
            let bare = Packet { payload: Vec::new(), ..other.clone() };
            let ours = [other.clone(), bare.clone(), Packet { flags: FIN | ACK, ..bare.clone() }];
            for packet in &ours {
                assert_eq!(offer(&rig, packet), (REDIRECT, Some(0), Vec::new()), "{packet:?}");
            }
            let ends_handshake = Packet { payload: Vec::new(), ..data(key, 7, cookie) };
            let reset = Packet { flags: RST | ACK, ..other.clone() };
            for packet in [ends_handshake, reset, Packet { flags: FIN, ..bare.clone() }] {
                assert_eq!(offer(&rig, &packet), (SHOT, None, vec!["cookie-bare"]), "{packet:?}");
            }
        }
        (0..4).for_each(|service| rig.plane.control().set_client_rate(service, 0));
        std::thread::sleep(Duration::from_millis(10));
        let other = Packet { payload: Vec::new(), ..Packet::new(client(4, true)) };
        let dropped = (0..100).filter(|_| offer(&rig, &other).2 == ["cookie-bare"]).count();
        assert!(dropped > 50, "{dropped} dropped");
    });
}

#[test]
fn syns_of_another_form_are_the_workers_and_policed() {
    in_namespace(|| {
        let rig = rig(1);
        let syn = |ipv4: bool| Packet { flags: SYN, payload: Vec::new(), ..Packet::new(client(9, ipv4)) };
        let packets = [
            Packet { tags: vec![[0x81, 0, 0, 7]], ..syn(true) },
            Packet { tags: vec![[0x88, 0xa8, 0, 7], [0x81, 0, 0, 9]], ..syn(false) },
            Packet { ip_options: vec![1; 4], ..syn(true) },
            Packet { extensions: vec![6, 0, 1, 4, 0, 0, 0, 0], ..syn(false) },
        ];
        for packet in &packets {
            assert_eq!(offer(&rig, packet), (REDIRECT, Some(0), Vec::new()), "{packet:?}");
        }
        (0..4).for_each(|service| rig.plane.control().set_client_rate(service, 0));
        std::thread::sleep(Duration::from_millis(10));
        let dropped = |packet: &Packet| (0..100).filter(|_| offer(&rig, packet).2 == ["policed-client"]).count();
        assert!(packets.iter().map(dropped).sum::<usize>() > 100);
        // Other services' SYNs are as they were.
        rig.plane.control().set_client_rate(3, u32::MAX);
        let other = Packet { flags: SYN, ..Packet::new(v4(CLIENT, 9, VIP, 81, Protocol::Tcp)) };
        assert_eq!(offer(&rig, &other), (REDIRECT, Some(0), Vec::new()));
    });
}

#[test]
fn no_syn_is_answered_where_none_can_be() {
    in_namespace(|| {
        let rig = rig(1);
        let from4 = [[0, 1, 2, 3], [127, 0, 0, 1], [224, 0, 0, 1], [255, 255, 255, 255], VIP];
        let keys4 = from4.map(|from| v4(from, 9, VIP, 80, Protocol::Tcp));
        let keys6 = ["::", "::1", "ff02::1", VIP6, "::ffff:10.1.0.2"].map(|from| v6(from, 9, VIP6, 80, Protocol::Tcp));
        for key in keys4.into_iter().chain(keys6) {
            let mut frame = Packet { flags: SYN, payload: Vec::new(), ..Packet::new(client(9, true)) }.frame();
            if !key.is_ipv4() || !key.destination.address.is_ipv4() {
                frame = Packet { flags: SYN, payload: Vec::new(), ..Packet::new(client(9, false)) }.frame();
                frame[22..38].copy_from_slice(&key.source.address.0);
            } else {
                frame[26..30].copy_from_slice(&key.source.address.ipv4_octets());
            }
            frame[..6].copy_from_slice(&rig.left.mac);
            let (run, counted) = rig.counted(|| rig.ingress(&frame));
            assert_eq!((run.verdict, counted), (SHOT, [("malformed", 1)].into()), "{key:?}");
        }
        // A header checksum that is wrong.
        let mut frame = Packet { flags: SYN, ..Packet::new(client(9, true)) }.to(rig.left.mac).frame();
        frame[24] ^= 1;
        assert_eq!(rig.ingress(&frame).verdict, SHOT);
    });
}

#[test]
fn no_syn_is_answered_without_a_process() {
    for absent in [Absent::Pass, Absent::Drop] {
        in_namespace(move || {
            let drop = absent == Absent::Drop;
            let rig = Rig::new(1, |options| options.when_absent = absent);
            splice(&rig);
            rig.stop_beating();
            let (verdict, event) = if drop { (SHOT, "absent-drop") } else { (OK, "absent-pass") };
            for flags in [SYN, ACK] {
                let packet = Packet { flags, ..Packet::new(client(9, true)) };
                assert_eq!(offer(&rig, &packet), (verdict, None, vec![event]));
            }
        });
    }
}

#[test]
fn keys_are_renewed_once_an_epoch_and_stay_when_a_process_goes() {
    in_namespace(|| {
        let rig = rig(1);
        let control = rig.plane.control();
        let (first, now) = (control.cookie_keys(), cpu::now());
        assert!(first.as_flattened().iter().all(|&word| word != 0));
        let epoch = Cookies::epoch(now);
        let at = |epoch: u64, count: u64| Time::from_nanos((epoch * 64 + count) * COUNT);
        for count in 0..64 {
            assert!(!control.renew_cookie_key(at(epoch, count)).unwrap(), "drawn at the start");
        }
        for next in epoch + 1..epoch + 4 {
            let before = control.cookie_keys();
            let drawn: Vec<u64> = (0..64).filter(|&count| control.renew_cookie_key(at(next, count)).unwrap()).collect();
            assert_eq!(drawn, [8]);
            let (after, here) = (control.cookie_keys(), (next % 2) as usize);
            assert_eq!(after[here], before[here], "in use");
            assert_ne!(after[1 - here], before[1 - here]);
        }
        let last = control.cookie_keys();
        let Rig { plane, options, .. } = rig;
        drop(plane);
        assert_eq!(adopted(&options).control().cookie_keys(), last);
    });
}

/// Real time as it is, and wrong by 30 years: programs that share their keys count it, and check what another machine's
/// balancer makes, whose monotonic clock is another one.
#[test]
fn programs_that_share_keys_count_real_time() {
    const ANOTHER_CLOCK: u64 = 3_600_000_000_000_000;
    in_namespace(|| {
        let rig = rig(1);
        let control = rig.plane.control();
        for (number, ahead) in
            [cpu::real_ahead(), cpu::real_ahead() / 4, u64::MAX - ANOTHER_CLOCK].into_iter().enumerate()
        {
            let secret = Secret::new([7, number as u64]);
            let now = at_ease_by(ahead);
            control.share_cookies(&secret, now, ahead);
            let other_now = Time::from_nanos(now.as_nanos().wrapping_add(ANOTHER_CLOCK));
            let other_ahead = ahead.wrapping_sub(ANOTHER_CLOCK);
            let real = Time::from_nanos(now.as_nanos().wrapping_add(ahead));
            let other = Cookies::new(EpochKeys::of(&secret, real).keys).ahead(other_ahead);
            for ipv4 in [true, false] {
                let key = client(4000 + number as u16, ipv4);
                let syn = Packet { flags: SYN, sequence: 100, payload: Vec::new(), ..Packet::new(key) };
                let run = rig.ingress(&syn.to(rig.left.mac).frame());
                assert_eq!(run.verdict, REDIRECT);
                let at = parsed(&run.frame).l4 + 4;
                let cookie = u32::from_be_bytes(run.frame[at..at + 4].try_into().unwrap());
                assert!(other.check(other_now, &key, 100, cookie).is_some(), "made by the programs, {ahead} ahead");
                assert!(Cookies::new(control.cookie_keys()).check(now, &key, 100, cookie).is_none(), "of another time");
                let made = other.make(other_now, &key, 100, &Offer { mss: 1460, scale: None, sack: true });
                assert_eq!(offer(&rig, &data(key, 100, made ^ 1 << 20)).2, ["cookie-invalid"]);
                assert_eq!(offer(&rig, &data(key, 100, made)).1, Some(0), "made elsewhere, {ahead} ahead");
            }
        }
        // From now on it has its own again.
        let shared = control.cookie_keys();
        assert!(control.renew_cookie_key(cpu::now()).unwrap());
        assert!(control.cookie_keys().iter().all(|key| !shared.contains(key)));
        assert!(!control.renew_cookie_key(cpu::now()).unwrap());
    });
}

#[test]
fn a_process_that_adopts_keeps_shared_keys_that_are_in_use() {
    in_namespace(|| {
        let rig = rig(1);
        let (old, new, now, ahead) = (Secret::new([1, 2]), Secret::new([3, 4]), cpu::now(), cpu::real_ahead());
        rig.plane.control().share_cookies(&old, now, ahead);
        let Rig { plane, options, .. } = rig;
        drop(plane);
        let plane = adopted(&options);
        plane.control().share_cookies(&new, now, ahead);
        let real = Time::from_nanos(now.as_nanos().wrapping_add(ahead));
        let epoch = Cookies::epoch(real);
        let held = plane.control().cookie_keys();
        assert_eq!(held[(epoch % 2) as usize], old.of_epoch(epoch));
        if let Some(next) = Cookies::renewal(real) {
            assert_eq!(held[(next % 2) as usize], new.of_epoch(next));
        }
    });
}

/// Checksums that are not finished, as a guest's or a container's, and headers outside the linear part.
#[test]
fn unfinished_checksums_stay_unfinished() {
    in_namespace(|| {
        let rig = rig(1);
        let near = Link::open("left-peer");
        for (ipv4, linear) in [(true, 0), (false, 0), (true, 14), (true, 40), (false, 50)] {
            let options = vec![2, 4, 5, 0xb4, 4, 2, 1, 3, 3, 7, 0, 0];
            let packet =
                Packet { flags: SYN, tcp_options: options, payload: Vec::new(), ..Packet::new(client(9, ipv4)) };
            let mut frame = packet.to(rig.left.mac).frame();
            frame[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
            let header = match linear {
                0 => crate::traffic::make_partial(&mut frame),
                headers => Vnet { headers, ..Vnet::default() },
            };
            let now = at_ease();
            near.send(&header, &frame);
            let back = std::iter::from_fn(|| near.receive()).find(|(_, frame)| frame[..6] == [2, 9, 9, 9, 9, 9]);
            let (vnet, back) = back.unwrap_or_else(|| panic!("no answer, {linear} bytes linear"));
            let mut expected = VecFrame::new(&frame);
            expected.meta.checksum = Checksum::Partial;
            assert!(cookie::answer(&mut expected, &parsed(&frame), &cookies(&rig), now, None));
            if linear == 0 {
                assert_eq!((vnet.flags, vnet.checksum_start), (header.flags, header.checksum_start));
                crate::traffic::make_partial(&mut expected.data);
            }
            assert_eq!(back[12..], expected.data[12..]);
        }
    });
}

/// A VLAN tag lies in the socket buffer's metadata, and goes out again with the answer.
#[test]
fn an_answer_goes_back_into_the_vlan_the_syn_came_from() {
    in_namespace(|| {
        let rig = rig(1);
        let near = Link::open("left-peer");
        let mut seen = Capture::open("left-peer", &CaptureFilter { hosts: Vec::new(), snap_length: 200 }).unwrap();
        for ipv4 in [true, false] {
            let tags = vec![[0x81, 0, 0, 7]];
            let packet = Packet { flags: SYN, tags, payload: Vec::new(), ..Packet::new(client(9, ipv4)) };
            let mut frame = packet.to(rig.left.mac).frame();
            frame[6..12].copy_from_slice(&[2, 9, 9, 9, 9, 9]);
            let (_, counted) = rig.counted(|| near.send(&Vnet::default(), &frame));
            assert_eq!(counted, [("cookie-sent", 1)].into());
            let answer = loop {
                let next = seen.next(Duration::from_secs(5)).unwrap().expect("no answer");
                if !next.outgoing && next.bytes[..6] == [2, 9, 9, 9, 9, 9] {
                    break next.bytes.to_vec();
                }
            };
            assert_eq!((&answer[6..12], &answer[12..16]), (&rig.left.mac[..], &[0x81, 0, 0, 7][..]));
            assert_eq!(parsed(&answer).key, parsed(&frame).key.reversed());
        }
    });
}
