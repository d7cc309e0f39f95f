use super::*;
use crate::flow::{Address, Endpoint};
use crate::frame::{Egress, VecFrame};
use crate::wire::{Parsed, parse};
use proptest::collection::vec;
use proptest::prelude::*;
use std::vec::Vec;

const KEYS: [[u64; 2]; 2] =
    [[0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908], [0x1716_1514_1312_1110, 0x1f1e_1d1c_1b1a_1918]];
/// Nanoseconds of a count.
const COUNT: u64 = 1 << COUNT_SHIFT;

fn at_count(count: u64) -> Time {
    Time::from_nanos(count * COUNT + COUNT / 3)
}

fn flow(ipv4: bool) -> FlowKey {
    let end = |text: &str, port| Endpoint::new(text.parse::<core::net::IpAddr>().unwrap(), port);
    match ipv4 {
        true => {
            FlowKey { source: end("10.1.0.2", 40_000), destination: end("192.0.2.10", 80), protocol: Protocol::Tcp }
        }
        false => FlowKey { source: end("fd01::2", 40_000), destination: end("2001:db8::10", 80), ..flow(true) },
    }
}

fn offers() -> impl Strategy<Value = Offer> {
    let mss = prop_oneof![any::<u16>(), Just(1460), Just(1459), Just(536), Just(535), Just(1220), Just(1219), Just(0)];
    (mss, proptest::option::of(0u8..=14), any::<bool>()).prop_map(|(mss, scale, sack)| Offer { mss, scale, sack })
}

fn flows() -> impl Strategy<Value = FlowKey> {
    let end = |ipv4: bool| {
        let address = any::<[u8; 16]>().prop_map(move |bytes| match ipv4 {
            true => Address::from_ipv4([bytes[0], bytes[1], bytes[2], bytes[3]]),
            false => Address([[0x20; 8], bytes[8..].try_into().unwrap()].concat().try_into().unwrap()),
        });
        (address, any::<u16>()).prop_map(|(address, port)| Endpoint { address, port })
    };
    any::<bool>().prop_flat_map(move |ipv4| (end(ipv4), end(ipv4))).prop_map(|(source, destination)| FlowKey {
        source,
        destination,
        protocol: Protocol::Tcp,
    })
}

/// The cookie of this build's keys stays what it is: a process that is upgraded checks what the one before has made.
#[test]
fn is_what_it_has_always_been() {
    let cookies = Cookies::new(KEYS);
    let offer = Offer { mss: 1460, scale: Some(7), sack: true };
    assert_eq!(cookies.make(at_count(5), &flow(true), 0x0102_0304, &offer) & 0x1ff, 1 << 7 | 1 << 6 | 7 << 2 | 3);
    // SipHash-1-3 with the key 00 to 0f of the 48 bytes that the layout says, worked out apart.
    assert_eq!(cookies.make(at_count(5), &flow(true), 0x0102_0304, &offer), 0x645f_b2df);
    assert_eq!(cookies.make(at_count(64 + 5), &flow(false), 0xffff_ffff, &offer), 0xdee2_9edf);
}

proptest! {
    #[test]
    fn tells_the_offer_in_classes(flow in flows(), offer in offers(), sequence: u32, now in 0u64..1 << 28) {
        let cookies = Cookies::new(KEYS);
        let now = at_count(now);
        let found = cookies.check(now, &flow, sequence, cookies.make(now, &flow, sequence, &offer)).unwrap();
        prop_assert_eq!((found.scale, found.sack), (offer.scale, offer.sack));
        let classes = classes(flow.is_ipv4());
        prop_assert!(classes.contains(&found.mss));
        prop_assert!(found.mss <= offer.mss.max(classes[0]));
        prop_assert!(classes.iter().all(|&class| class <= found.mss || class > offer.mss));
    }

    #[test]
    fn is_good_for_four_counts(flow in flows(), offer in offers(), sequence: u32, made in 0u64..200) {
        let cookies = Cookies::new(KEYS);
        let cookie = cookies.make(at_count(made), &flow, sequence, &offer);
        for later in 0..=8 {
            let found = cookies.check(at_count(made + later), &flow, sequence, cookie);
            prop_assert_eq!(found.is_some(), later <= 3, "{} later", later);
        }
        // A checker whose clock is a little behind.
        let early = Time::from_nanos((made * COUNT).saturating_sub(1));
        prop_assert!(cookies.check(early, &flow, sequence, cookie).is_some());
        if made >= 2 {
            prop_assert!(cookies.check(at_count(made - 2), &flow, sequence, cookie).is_none());
        }
    }

    #[test]
    fn options_of_any_kind_are_read_like_the_kernel_does(options in vec(any::<u8>(), 0..=40), ipv4: bool) {
        let read = offer(&options, ipv4);
        prop_assert_eq!(read, reference(&options, ipv4));
    }

    #[test]
    fn anything_can_be_asked_to_be_answered(bytes in vec(any::<u8>(), 0..120), l4 in 0usize..130, payload in 0usize..130) {
        let mut frame = VecFrame::new(&bytes);
        let at = Transport { key: flow(true), l3: 14, l4, payload, end: payload, tcp_flags: tcp::SYN, ttl: 1 };
        answer(&mut frame, &at, &Cookies::new(KEYS), Time::ZERO, None);
    }
}

/// `tcp_parse_options` of the kernel, as far as it is about SYNs and this; with this module's defaults.
fn reference(options: &[u8], ipv4: bool) -> Offer {
    let mut found = Offer { mss: if ipv4 { 536 } else { 1220 }, scale: None, sack: false };
    let mut at = 0;
    while at < options.len() {
        match options[at] {
            0 => break,
            1 => at += 1,
            kind => {
                let Some(&size) = options.get(at + 1) else { break };
                if size < 2 || at + usize::from(size) > options.len() {
                    break;
                }
                match (kind, size, options.get(at + 2), options.get(at + 3)) {
                    (2, 4, Some(&a), Some(&b)) if (a, b) != (0, 0) => found.mss = u16::from(a) << 8 | u16::from(b),
                    (3, 3, Some(&scale), _) => found.scale = Some(if scale > 14 { 14 } else { scale }),
                    (4, 2, ..) => found.sack = true,
                    _ => {}
                }
                at += usize::from(size);
            }
        }
    }
    found
}

/// A small generator, for many cases fast: the same at every run.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) ^ self.0 << 20
    }
}

/// Each is a guess that 2^-23 of the time is right: 0.02 of these.
#[test]
fn a_bit_flipped_anywhere_makes_it_bad() {
    let (cookies, mut draw, mut good) = (Cookies::new(KEYS), Draw(1), 0);
    for round in 0..500u64 {
        let mut flow = flow(round % 2 == 0);
        flow.source.address.0[12..].copy_from_slice(&(draw.next() as u32).to_be_bytes());
        flow.source.port = draw.next() as u16;
        let (sequence, now) = (draw.next() as u32, at_count(draw.next() % 1000));
        let offer = Offer { mss: 1400, scale: Some((round % 15) as u8), sack: round % 3 == 0 };
        let cookie = cookies.make(now, &flow, sequence, &offer);
        let mut check = |flow: FlowKey, sequence: u32, cookie: u32| {
            good += u32::from(cookies.check(now, &flow, sequence, cookie).is_some());
        };
        for bit in 0..32 {
            check(flow, sequence ^ 1 << bit, cookie);
            check(flow, sequence, cookie ^ 1 << bit);
        }
        for bit in 0..128 {
            let (mut from, mut to) = (flow, flow);
            from.source.address.0[bit / 8] ^= 1 << (bit % 8);
            to.destination.address.0[bit / 8] ^= 1 << (bit % 8);
            check(from, sequence, cookie);
            check(to, sequence, cookie);
        }
        for bit in 0..16 {
            let (mut from, mut to) = (flow, flow);
            from.source.port ^= 1 << bit;
            to.destination.port ^= 1 << bit;
            check(from, sequence, cookie);
            check(to, sequence, cookie);
        }
        check(flow.reversed(), sequence, cookie);
    }
    assert!(good <= 1, "{good} of {} changed cookies are good", 500 * 353);
}

/// 2^21 guesses: 0.25 to 0.5 are expected to be right; 10 or more are so in one of 10^15 runs.
#[test]
fn guessing_hardly_ever_succeeds() {
    let (cookies, mut draw) = (Cookies::new(KEYS), Draw(2));
    let mut guess = || cookies.check(at_count(100), &flow(true), draw.next() as u32, draw.next() as u32).is_some();
    assert!((0..1 << 21).filter(|_| guess()).count() < 10);
}

/// Keys of two epochs ago are gone: what they made is refused, what the last two made within its time is not.
#[test]
fn keys_are_renewed_when_no_cookie_needs_them() {
    let mut keys = KEYS;
    let (flow, offer) = (flow(true), Offer { mss: 1460, scale: None, sack: false });
    let mut drawn = 1;
    let mut made = Vec::new();
    for count in 0u64..1000 {
        let now = at_count(count);
        if let Some(next) = Cookies::renewal(now)
            && next > drawn
        {
            keys[(next % 2) as usize] = [next, next];
            drawn = next;
        }
        let cookies = Cookies::new(keys);
        made.push(cookies.make(now, &flow, 7, &offer));
        for (at, &cookie) in made.iter().enumerate() {
            let is_good = cookies.check(now, &flow, 7, cookie).is_some();
            assert_eq!(is_good, at as u64 + 3 >= count, "made at {at}, checked at {count}");
        }
    }
    assert_eq!(drawn, 16, "one each epoch");
    assert_eq!(Cookies::epoch(at_count(1000)), 15);
}

const SECRET: Secret = Secret::new([1, 2]);
/// Real time of the beginning of an epoch, and how far a machine's own clock is behind it.
const EPOCH: u64 = 410_000;
const BEHIND: [u64; 2] = [EPOCH * 64 * COUNT - 5000, 77];

/// At `count` of EPOCH by real time, a balancer whose keys these are: its cookies, and its own clock.
fn balancer(which: usize, keys: &EpochKeys, count: u64) -> (Cookies, Time) {
    let own = Time::from_nanos((EPOCH * 64 + count) * COUNT + COUNT / 3 - BEHIND[which]);
    (Cookies::new(keys.keys).ahead(BEHIND[which]), own)
}

fn real(count: u64) -> Time {
    at_count(EPOCH * 64 + count)
}

#[test]
fn two_that_share_a_secret_share_cookies() {
    let (flow, offer) = (flow(true), Offer { mss: 1460, scale: Some(7), sack: true });
    for start in [0, 3, 7, 8, 40, 62, 63] {
        // The one has run for long, the other starts now.
        let mut old = EpochKeys::of(&SECRET, real(0));
        for count in 0..=start {
            old = old.renewed(&SECRET, real(count));
        }
        let mut new = EpochKeys::of(&SECRET, real(start));
        for later in 0..=5 {
            let ((a, a_now), (b, b_now)) = (balancer(0, &old, start), balancer(1, &new, start + later));
            let cookie = a.make(a_now, &flow, 7, &offer);
            assert_eq!(b.check(b_now, &flow, 7, cookie).is_some(), later <= 3, "made at {start}, {later} later");
            new = new.renewed(&SECRET, real(start + later + 1));
        }
        let other = EpochKeys::of(&Secret::new([1, 3]), real(start));
        let ((a, a_now), (b, b_now)) = (balancer(0, &old, start), balancer(1, &other, start));
        assert!(b.check(b_now, &flow, 7, a.make(a_now, &flow, 7, &offer)).is_none(), "of another secret");
    }
}

#[test]
fn another_secret_makes_the_next_epoch() {
    let (flow, offer) = (flow(false), Offer { mss: 1440, scale: None, sack: false });
    let other = Secret::new([3, 4]);
    for change in [0, 5, 7, 8, 30, 63] {
        let mut keys = EpochKeys::of(&SECRET, real(0));
        let mut made: Vec<u32> = Vec::new();
        for count in 0..200 {
            let secret = if count < change { SECRET } else { other };
            keys = keys.renewed(&secret, real(count));
            let (cookies, now) = balancer(0, &keys, count);
            made.push(cookies.make(now, &flow, 7, &offer));
            let oldest = (count as usize).saturating_sub(3);
            for cookie in &made[oldest..] {
                assert!(cookies.check(now, &flow, 7, *cookie).is_some(), "changed at {change}, checked at {count}");
            }
        }
        let of_new = EpochKeys::of(&other, real(64 + 20));
        let (cookies, now) = balancer(1, &of_new, 64 + 20);
        assert_eq!(cookies.make(now, &flow, 7, &offer), made[64 + 20], "changed at {change}");
    }
}

/// The clock is set, forwards or backwards; or no process was there for long.
#[test]
fn keys_of_another_time_are_not_kept() {
    for (from, to) in [(100, 100 + 130), (500, 20), (30, 64 * 7), (64 * 2 + 1, 0)] {
        let stale = EpochKeys { keys: [[5, 6], [7, 8]], ..EpochKeys::of(&SECRET, real(from)) };
        assert_eq!(stale.renewed(&SECRET, real(to)), EpochKeys::of(&SECRET, real(to)), "from {from} to {to}");
    }
}

/// A SYN with these options.
fn syn(ipv4: bool, tags: &[u8], options: &[u8], payload: &[u8]) -> (VecFrame, Transport) {
    let key = flow(ipv4);
    let mut segment = [0; 20];
    segment[..2].copy_from_slice(&key.source.port.to_be_bytes());
    segment[2..4].copy_from_slice(&key.destination.port.to_be_bytes());
    segment[4..8].copy_from_slice(&u32::MAX.to_be_bytes());
    segment[12] = ((20 + options.len()) / 4) as u8 * 16;
    segment[13] = tcp::SYN | 0xc0;
    let segment = [&segment[..], options, payload].concat();
    let mut bytes = std::vec![2; 12];
    bytes.extend(tags);
    let (source, destination) = (&key.source.address, &key.destination.address);
    if ipv4 {
        bytes.extend([8, 0]);
        let (from, to) = (source.ipv4_octets(), destination.ipv4_octets());
        bytes.extend(crate::wire::ipv4::header(from, to, 6, 0x10, 50, segment.len()));
    } else {
        bytes.extend([0x86, 0xdd]);
        bytes.extend(crate::wire::ipv6::header(source, destination, 6, 50, segment.len()));
    }
    bytes.extend(segment);
    let Ok(Parsed::Transport(at)) = parse(&bytes) else { panic!("no packet") };
    at.fill_checksum(&mut bytes);
    bytes.extend([0; 6]);
    (VecFrame::new(&bytes), at)
}

const ALL: [u8; 20] = [2, 4, 5, 0xb4, 4, 2, 8, 10, 1, 2, 3, 4, 0, 0, 0, 0, 1, 3, 3, 9];

#[test]
fn a_syn_becomes_its_answer() {
    let cookies = Cookies::new(KEYS);
    let cases: [(&[u8], &[u8]); 5] = [
        (&ALL, &[4, 2, 1, 1, 1, 3, 3, 7]),
        (&[2, 4, 5, 0xb4], &[]),
        (&[], &[]),
        (&[4, 2, 0, 0], &[4, 2, 1, 1]),
        (&[3, 3, 15, 0], &[1, 3, 3, 7]),
    ];
    for (options, answered) in cases {
        for (ipv4, tags) in [(true, &[][..]), (false, &[]), (true, &[0x81, 0, 0, 7])] {
            let (mut frame, at) = syn(ipv4, tags, options, b"");
            let offered = offer(options, ipv4);
            frame.meta.gso_size = 3;
            assert!(answer(&mut frame, &at, &cookies, at_count(77), None));
            let bytes = frame.bytes();
            let Ok(Parsed::Transport(back)) = parse(bytes) else { panic!("no packet: {bytes:02x?}") };
            assert_eq!((back.key, back.l3, back.end), (at.key.reversed(), at.l3, bytes.len()));
            assert_eq!((back.tcp_flags, back.ttl), (tcp::SYN | tcp::ACK, 64));
            let checksum = u16_at(bytes, back.checksum_offset());
            assert_eq!(back.transport_checksum(bytes), checksum);
            assert_eq!(u32_at(bytes, back.l4 + 8), Some(0), "the number after 2^32 - 1");
            assert_eq!(bytes[back.l4 + 14..back.l4 + 16], [0xff, 0xff]);
            let mss = if ipv4 { [2, 4, 5, 0xb4] } else { [2, 4, 5, 0xa0] };
            assert_eq!(bytes[back.l4 + 20..], [&mss, answered].concat());
            let found = cookies.check(at_count(79), &at.key, u32::MAX, u32_at(bytes, back.l4 + 4).unwrap());
            assert_eq!(found.map(|found| (found.scale, found.sack)), Some((offered.scale, offered.sack)));
            assert_eq!((frame.meta.checksum, frame.meta.egress), (Checksum::Complete, Egress::Route));
            assert_eq!((frame.meta.gso_size, &bytes[..12]), (0, &[2; 12][..]));
            etherparse::SlicedPacket::from_ethernet(bytes).unwrap();
        }
    }
}

#[test]
fn what_is_no_syn_is_left_alone() {
    let (frame, at) = syn(true, &[], &ALL, b"");
    for flags in [0, tcp::ACK, tcp::SYN | tcp::ACK, tcp::SYN | tcp::RST, tcp::SYN | tcp::FIN, tcp::FIN] {
        let mut same = frame.clone();
        assert!(!answer(&mut same, &Transport { tcp_flags: flags, ..at }, &Cookies::new(KEYS), Time::ZERO, None));
        assert_eq!(same.data, frame.data);
    }
}

#[test]
fn wrong_checksum_is_refused_partial_is_accepted() {
    let cookies = Cookies::new(KEYS);
    let (mut frame, at) = syn(false, &[], &ALL, b"early data");
    frame.data[at.l4 + 23] ^= 1;
    let before = frame.data.clone();
    assert!(!answer(&mut frame, &at, &cookies, Time::ZERO, None));
    assert_eq!(frame.data, before);
    frame.meta.checksum = Checksum::Partial;
    assert!(answer(&mut frame, &at, &cookies, Time::ZERO, None));
    assert_eq!(frame.data.len(), 14 + 40 + 32);
}
