//! A worker that goes by marks beside one that does not: both get the same packets, one of them with marks that are right,
//! old, of others, or nonsense. What they send, remember and count must be the same.

use super::fast_path::{Step, frame, heavy, packets, steps};
use super::one_worker::{OneWorker, Way, client, packet};
use crate::flow::Direction;
use crate::frame::{Frame, VecFrame};
use crate::l4::connection::Flags;
use crate::offload::Choice;
use crate::offload::OffloadState;
use crate::table::Table;
use crate::time::Duration;
use crate::wire::tcp::{ACK, FIN, PSH, SYN};
use crate::wire::{self, Parsed};
use crate::worker::Which;
use alloc::format;
use alloc::vec::Vec;
use proptest::prelude::*;

/// The mark of a frame.
#[derive(Clone, Copy, Debug)]
enum Mark {
    None,
    /// That of its own connection.
    Right,
    /// That of the same connection's other direction.
    Reverse,
    /// That of some place, used or not: another connection's, one's that has ended, another worker's.
    Of(u32),
}

fn marks() -> impl Strategy<Value = Vec<Mark>> {
    let any = prop_oneof![0u32..12, any::<u32>()];
    let mark = prop_oneof![2 => Just(Mark::None), 4 => Just(Mark::Right), 1 => Just(Mark::Reverse), 4 => any.prop_map(Mark::Of)];
    prop::collection::vec(mark, 120)
}

/// The ticket of a frame with such a mark, as things stand.
fn ticket(fixture: &OneWorker, frame: &VecFrame, mark: Mark) -> u32 {
    let key = match wire::parse(&frame.data) {
        Ok(Parsed::Transport(at)) => at.key,
        _ => return 0,
    };
    let known = fixture.worker().find(&key).map(|(position, direction)| position << 1 | direction as u32);
    match mark {
        Mark::None => 0,
        Mark::Right => known.map_or(0, |value| value + 1),
        Mark::Reverse => known.map_or(0, |value| (value ^ 1) + 1),
        Mark::Of(ticket) => ticket,
    }
}

fn check(mut stages: [OneWorker; 2], steps: &[Step], marks: &[Mark]) -> Result<(), TestCaseError> {
    stages[1].worker_mut().go_by_marks();
    let mut burst = Vec::new();
    for (number, (step, mark)) in steps.iter().zip(marks).enumerate() {
        burst.push((frame(&stages[0], step), *mark));
        if step.pause.is_none() && burst.len() < 64 && number + 1 < steps.len() {
            continue;
        }
        let marked = burst.iter().map(|(frame, mark)| {
            let mut marked = frame.clone();
            marked.meta_mut().ticket = ticket(&stages[1], frame, *mark);
            marked
        });
        let marked = marked.collect();
        let plain = core::mem::take(&mut burst).into_iter().map(|(frame, _)| frame).collect();
        let [first, second] = &mut stages;
        prop_assert_eq!(packets(first.batch(plain).frames, 14), packets(second.batch(marked).frames, 14));
        let time = Duration::from_millis(step.pause.unwrap_or(0));
        // Now and then the engine owes answers when the next packets come.
        let late = number % 3 == 0;
        stages.iter_mut().for_each(|fixture| {
            if late {
                fixture.flush();
            } else {
                fixture.settle();
                fixture.wait(time);
            }
        });
        let statistics = stages.each_ref().map(|fixture| {
            let mut statistics = fixture.worker().statistics().clone();
            (statistics.marked, statistics.mismarked) = (0, 0);
            format!("{statistics:?}")
        });
        let connections =
            stages.each_ref().map(|fixture| format!("{:?}", fixture.worker().connections().collect::<Vec<_>>()));
        prop_assert_eq!(&statistics[0], &statistics[1]);
        prop_assert_eq!(&connections[0], &connections[1]);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_mark_leads_astray((steps, marks) in (steps(), marks())) {
        check([(); 2].map(|()| OneWorker::with_policy(Choice::Never, 0)), &steps, &marks)?;
    }

    #[test]
    fn no_mark_leads_astray_beside_an_engine((steps, marks) in (steps(), marks())) {
        check([(); 2].map(|()| OneWorker::with_policy(heavy(), 6)), &steps, &marks)?;
    }

    #[test]
    fn no_mark_leads_astray_in_a_small_table((steps, marks) in (steps(), marks())) {
        check([(); 2].map(|()| OneWorker::with_capacity(false, 4, |_| {})), &steps, &marks)?;
    }
}

fn marked(mut frame: VecFrame, ticket: u32) -> VecFrame {
    frame.meta_mut().ticket = ticket;
    frame
}

#[test]
fn a_mark_takes_the_place_of_the_look_up() {
    let mut fixture = OneWorker::new(false, |_| {});
    fixture.worker_mut().go_by_marks();
    let client = client(false, 1, 40_000);
    let backend = fixture.open(client);
    let key = packet(client, fixture.vip(), Way::Tcp(ACK)).key();
    let id = fixture.rule(&key).id;
    // The index loses the connection: only the mark still leads there.
    let Some((position, direction)) = fixture.worker().find(&key) else { panic!("it is known") };
    let value = position << 1 | direction as u32;
    assert_eq!(id.0 as u32, value, "a mark is made of the rule's id");
    fixture.worker_mut().table.remove(&key, value);
    let sent = fixture.send(marked(packet(client, fixture.vip(), Way::Tcp(ACK | PSH)), value + 1)).sent();
    assert_eq!(sent.destination, backend);
    let statistics = fixture.worker().statistics();
    assert_eq!((statistics.marked, statistics.mismarked), (1, 0));
}

/// A rule that is on its way out still marks packets: those of a new connection between the same ends are not the old
/// one's.
#[test]
fn a_connection_that_has_ended_gets_no_packets_by_its_mark() {
    let mut fixture = OneWorker::new(false, |_| {});
    fixture.worker_mut().go_by_marks();
    let client = client(false, 1, 40_000);
    fixture.open(client);
    let key = packet(client, fixture.vip(), Way::Tcp(ACK)).key();
    let old = fixture.rule(&key).id.0 as u32 + 1;
    // A client that has closed need not be told.
    let number = fixture.only().backend_number;
    let backend = fixture.only().backend;
    fixture.batch(
        [packet(client, fixture.vip(), Way::Tcp(ACK | FIN)), packet(backend, client, Way::Tcp(ACK | FIN))].into(),
    );
    fixture.end_backend(number, Which::All);
    fixture.turn();
    assert!(fixture.only().flags.has(Flags::PENDING_REMOVAL) && fixture.only().pair.state() == OffloadState::Removing);
    fixture.batch([marked(packet(client, fixture.vip(), Way::Tcp(SYN)), old)].into());
    let connections: Vec<_> =
        fixture.worker().connections().filter(|known| !known.flags.has(Flags::PENDING_REMOVAL)).collect();
    assert_eq!(connections.len(), 1, "a new one beside the one that is going");
    assert_eq!(connections[0].forwarded[Direction::FromClient as usize].packets, 1);
    assert_eq!(fixture.worker().statistics().mismarked, 1);
}

/// Tickets mean something else on other planes.
#[test]
fn tickets_are_no_marks_unless_they_are_said_to_be() {
    let mut fixture = OneWorker::new(false, |_| {});
    let client = client(false, 1, 40_000);
    let backend = fixture.open(client);
    let sent = fixture.send(marked(packet(client, fixture.vip(), Way::Tcp(ACK)), 1)).sent();
    assert_eq!(sent.destination, backend);
    assert_eq!((fixture.worker().statistics().marked, fixture.worker().statistics().mismarked), (0, 0));
}
