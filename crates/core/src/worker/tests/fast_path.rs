//! The fast path beside the way that all other packets take: two workers get the same packets, one of them each with a VLAN
//! tag, which nothing plain has. What they send, remember and count must be the same.

use super::one_worker::{OneWorker, Packet, Way, client, end, packet};
use crate::flow::Endpoint;
use crate::frame::{Checksum, VecFrame};
use crate::offload::{Choice, HeavyHitter};
use crate::table::Hasher;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, RST, SYN};
use crate::worker::StatelessMethod;
use alloc::format;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Sender, payload and flags of a packet.
#[derive(Clone, Debug)]
pub(super) struct Step {
    client: u8,
    from_backend: bool,
    what: What,
    twist: Twist,
    /// The burst ends here, and so much time passes.
    pub(super) pause: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Tcp(u8),
    Data(usize),
    Udp(usize),
}

#[derive(Clone, Copy, Debug)]
enum Twist {
    None,
    LastHop,
    Partial,
    Super,
    Wrong,
    NoSum,
    Padded,
}

pub(super) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let flags = prop_oneof![
        Just(SYN),
        Just(SYN | ACK),
        Just(ACK),
        Just(ACK | PSH),
        Just(FIN | ACK),
        Just(RST),
        Just(RST | ACK),
        Just(SYN | FIN),
        Just(0)
    ];
    let what = prop_oneof![
        4 => flags.prop_map(What::Tcp),
        3 => (0usize..400).prop_map(What::Data),
        4 => (0usize..400).prop_map(What::Udp),
    ];
    let twist = prop_oneof![
        12 => Just(Twist::None),
        1 => Just(Twist::LastHop),
        1 => Just(Twist::Partial),
        1 => Just(Twist::Super),
        1 => Just(Twist::Wrong),
        1 => Just(Twist::NoSum),
        1 => Just(Twist::Padded),
    ];
    let pause = prop::option::weighted(0.3, prop_oneof![0u64..5, 1000u64..40_000]);
    let step = (0u8..5, any::<bool>(), what, twist, pause)
        .prop_map(|(client, from_backend, what, twist, pause)| Step { client, from_backend, what, twist, pause });
    prop::collection::vec(step, 1..120)
}

/// The frame of a step, as things stand.
pub(super) fn frame(fixture: &OneWorker, step: &Step) -> Packet {
    let end_of_client = client(false, step.client, 40_000);
    let (vip, way, length) = match step.what {
        What::Tcp(flags) => (fixture.vip(), Way::Tcp(flags), 0),
        What::Data(length) => (fixture.vip(), Way::Data(length), length),
        What::Udp(length) => (end(false, 1, 53), Way::Udp(length), length),
    };
    let mut known = fixture.worker().connections().filter(|known| known.client == end_of_client && known.vip == vip);
    let ends: [Endpoint; 2] = match known.next() {
        Some(known) if step.from_backend => [known.backend, known.source],
        None if step.from_backend => [end(false, 100, 8000), end_of_client],
        _ => [end_of_client, vip],
    };
    let mut frame = packet(ends[0], ends[1], way);
    match step.twist {
        Twist::None => {}
        Twist::LastHop => {
            frame.data[22] = 1;
            frame.data[24] = frame.data[24].wrapping_add(63);
            let carried = frame.data[24] < 63;
            frame.data[25] = frame.data[25].wrapping_add(u8::from(carried));
        }
        Twist::Partial => frame.meta.checksum = Checksum::Partial,
        Twist::Super => frame.meta.gso_size = 50,
        Twist::Wrong => {
            let last = frame.data.len() - 1;
            frame.data[last] ^= 1;
        }
        Twist::NoSum if matches!(step.what, What::Udp(_)) => frame.data[40..42].fill(0),
        Twist::NoSum => {}
        Twist::Padded => frame.data.resize(frame.data.len() + 60usize.saturating_sub(length), 0),
    }
    frame
}

fn tagged(frame: &VecFrame) -> VecFrame {
    let mut tagged = frame.clone();
    tagged.data.splice(12..12, [0x81, 0, 0, 5]);
    tagged
}

/// The packet that left, from the IP header on.
pub(super) fn packets(frames: Vec<VecFrame>, l3: usize) -> Vec<(Vec<u8>, Checksum)> {
    frames.into_iter().map(|frame| (frame.data[l3..].to_vec(), frame.meta.checksum)).collect()
}

fn check(mut stages: [OneWorker; 2], steps: &[Step]) -> Result<(), TestCaseError> {
    let mut burst = Vec::new();
    for (number, step) in steps.iter().enumerate() {
        burst.push(frame(&stages[0], step));
        if step.pause.is_none() && burst.len() < 64 && number + 1 < steps.len() {
            continue;
        }
        let twins = burst.iter().map(tagged).collect();
        let [plain, twin] = &mut stages;
        let left =
            [packets(plain.batch(core::mem::take(&mut burst)).frames, 14), packets(twin.batch(twins).frames, 18)];
        prop_assert_eq!(&left[0], &left[1]);
        let time = Duration::from_millis(step.pause.unwrap_or(0));
        stages.iter_mut().for_each(|fixture| {
            fixture.settle();
            fixture.wait(time);
        });
        let [statistics, connections] = [0, 1].map(|what| {
            stages.each_ref().map(|fixture| match what {
                0 => format!("{:?}", fixture.worker().statistics()),
                _ => format!("{:?}", fixture.worker().connections().collect::<Vec<_>>()),
            })
        });
        prop_assert_eq!(&statistics[0], &statistics[1]);
        prop_assert_eq!(&connections[0], &connections[1]);
    }
    Ok(())
}

pub(super) fn heavy() -> Choice {
    Choice::HeavyHitter(HeavyHitter { packets: Some(6), ..HeavyHitter::default() })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn leaves_what_the_other_way_leaves(steps in steps()) {
        let stages = [(); 2].map(|()| OneWorker::with_policy(Choice::Never, 0));
        check(stages, &steps)?;
    }

    #[test]
    fn leaves_what_the_other_way_leaves_beside_an_engine(steps in steps()) {
        check([(); 2].map(|()| OneWorker::with_policy(heavy(), 6)), &steps)?;
    }

    #[test]
    fn leaves_what_the_other_way_leaves_in_a_small_table(steps in steps()) {
        check([(); 2].map(|()| OneWorker::with_capacity(false, 4, |_| {})), &steps)?;
    }

    #[test]
    fn leaves_what_the_other_way_leaves_without_connections(steps in steps()) {
        let stateless = || StatelessMethod::Hash(Hasher::new([5, 6, 7, 8]));
        check([(); 2].map(|()| OneWorker::stateless(false, stateless(), |_| {})), &steps)?;
    }
}
