//! A process that adopts memory in which bytes were changed.

use super::crashes::{Conversation, STEPS};
use super::one_worker::{OneWorker, SPLICES_MAX, Script, Sent};
use super::stamped;
use super::{REQUEST, only};
use crate::engine::{Completion, Refusal, RuleOp};
use crate::flow::Endpoint;
use crate::l7::splice::state::configurations::WORDS;
use crate::l7::splice::state::entry::{BackendConn, BackendConnState, ClientConn};
use crate::l7::splice::state::peer::Peer;
use crate::l7::splice::{AdoptedSplices, SplicedMemory};
use crate::table::numbered::Numbered;
use crate::table::region::Region;
use crate::table::slab::Slot;
use crate::time::Duration;
use crate::wire::tcp::SYN;
use alloc::vec::Vec;
use core::mem::offset_of;
use proptest::prelude::RngExt;
use proptest::test_runner::{TestRng, TestRunner};

/// Random changes.
const CASES: usize = 2000;
/// Bytes in front of the entry in its slot: the commit word, and the number of the operation.
const FRONT: usize = 16;

/// Where client connections begin: behind the number of what is done, and the names of configurations.
const FIRST: usize = Region::room::<u64>(1) + Region::room::<u64>(WORDS);

/// Where a client connection's entry begins in the memory.
fn client_at(position: usize) -> usize {
    FIRST + position * size_of::<Slot<Numbered<ClientConn>>>() + FRONT
}

/// Where a backend connection's entry begins in the memory.
fn backend_at(position: usize) -> usize {
    let clients = Region::room::<Slot<Numbered<ClientConn>>>(SPLICES_MAX as usize);
    FIRST + clients + position * size_of::<Slot<Numbered<BackendConn>>>() + FRONT
}

/// Two conversations, the first in the midst of a response and the second after so many steps; each has the client
/// connection and the backend connection of its position.
struct Damaged {
    fixture: OneWorker,
    talks: [Conversation; 2],
    image: Vec<u8>,
}

impl Damaged {
    fn new(steps: usize) -> Damaged {
        let mut fixture = OneWorker::new(|_| {});
        fixture.restarts = false;
        let mut talks = [Conversation::new(&mut fixture, 2000), Conversation::new(&mut fixture, 1000)];
        (0..3).for_each(|step| drop(talks[0].step(&mut fixture, step)));
        (0..steps).for_each(|step| drop(talks[1].step(&mut fixture, step)));
        let image = fixture.worker.spliced_image().copy();
        Damaged { fixture, talks, image }
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.image[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn swap(&mut self, a: usize, b: usize, bytes: usize) {
        (0..bytes).for_each(|at| self.image.swap(a + at, b + at));
    }

    fn adopt(&mut self) -> AdoptedSplices {
        self.fixture.restart_from(Some(&self.image))
    }

    /// Time passes: no frame goes to any but the two ends of this conversation.
    fn speaks_to_these_alone(&mut self, conversation: Option<usize>) {
        let sent = self.fixture.wait(Duration::from_secs(20));
        let ends: Vec<Endpoint> = conversation
            .into_iter()
            .flat_map(|at| {
                let talk = &self.talks[at];
                [Some(talk.client.script.own), talk.backend.as_ref().map(|backend| backend.script.own)]
            })
            .flatten()
            .collect();
        assert!(sent.iter().all(|sent| ends.contains(&sent.to)), "{ends:?}: {sent:?}");
    }

    /// The conversation goes on as if nothing had happened.
    fn goes_on(&mut self, conversation: usize) {
        let sent = self.talks[conversation].step(&mut self.fixture, 3);
        assert_eq!(only(sent).text(), "56789");
    }
}

#[test]
fn an_entry_with_other_ends_is_forgotten_without_a_word() {
    let fields = [
        (0, "the client's address"),
        (12, "the client's IPv4 address"),
        (16, "the client's port"),
        (33, "the VIP's address"),
        (34, "the VIP's port"),
        (offset_of!(ClientConn, service), "the service"),
        (offset_of!(ClientConn, port), "the interface"),
        (offset_of!(ClientConn, first), "the first number"),
        (offset_of!(ClientConn, created), "when it was created"),
        (offset_of!(ClientConn, is_tls), "its service's protocol"),
        (offset_of!(ClientConn, seal), "the seal"),
    ];
    for (offset, what) in fields {
        let mut damaged = Damaged::new(3);
        damaged.image[client_at(1) + offset] ^= 1;
        let adopted = damaged.adopt();
        let found = (adopted.unsealed, adopted.invalid, adopted.interrupted, adopted.client_conns);
        assert_eq!(found, (1, 0, 1, 1), "{what}: {adopted:?}");
        damaged.goes_on(0);
        // Its backend is reset: that knows of it.
        let sent = damaged.fixture.wait(Duration::from_secs(1));
        let backend = damaged.talks[1].backend.as_mut().unwrap();
        assert!(!sent.is_empty() && sent.iter().all(|sent| sent.to == backend.script.own), "{what}: {sent:?}");
        assert!(backend.is_reset(&mut damaged.fixture), "{what}");
        damaged.fixture.over();
    }
    for offset in [15, 17, 30, 35, offset_of!(BackendConn, number), offset_of!(BackendConn, created)] {
        let mut damaged = Damaged::new(3);
        damaged.image[backend_at(1) + offset] ^= 1;
        let adopted = damaged.adopt();
        assert_eq!((adopted.unsealed, adopted.interrupted, adopted.backend_conns), (1, 1, 1), "{offset}: {adopted:?}");
        let sent = damaged.fixture.wait(Duration::from_secs(1));
        let client = damaged.talks[1].client.script.own;
        assert!(!sent.is_empty() && sent.iter().all(|sent| sent.to == client), "{offset}: {sent:?}");
        damaged.fixture.over();
    }
}

#[test]
fn a_torn_entry_with_other_ends_is_forgotten_without_a_word() {
    for offset in [12, 16, 33, offset_of!(ClientConn, first), offset_of!(ClientConn, seal)] {
        let mut damaged = Damaged::new(3);
        damaged.put(client_at(1) - 8, &u64::MAX.to_ne_bytes());
        damaged.image[client_at(1) + offset] ^= 1;
        let adopted = damaged.adopt();
        assert_eq!((adopted.unsealed, adopted.interrupted), (1, 1), "{offset}: {adopted:?}");
        let sent = damaged.fixture.wait(Duration::from_secs(1));
        let backend = damaged.talks[1].backend.as_ref().unwrap().script.own;
        assert!(sent.iter().all(|sent| sent.to == backend), "{sent:?}");
    }
}

#[test]
fn an_entry_at_another_position_is_forgotten() {
    let mut damaged = Damaged::new(3);
    damaged.swap(client_at(0), client_at(1), size_of::<ClientConn>());
    damaged.swap(backend_at(0), backend_at(1), size_of::<BackendConn>());
    let adopted = damaged.adopt();
    assert_eq!((adopted.unsealed, adopted.client_conns, adopted.backend_conns), (4, 0, 0), "{adopted:?}");
    damaged.speaks_to_these_alone(None);
}

#[test]
fn connections_that_were_never_joined_are_parted() {
    let mut damaged = Damaged::new(3);
    let (client_conn, backend_conn) = (offset_of!(BackendConn, client_conn), offset_of!(ClientConn, backend_conn));
    damaged.swap(client_at(0) + backend_conn, client_at(1) + backend_conn, 4);
    damaged.swap(backend_at(0) + client_conn, backend_at(1) + client_conn, 4);
    // Not even with what said before whose they are.
    damaged.swap(backend_at(0) + offset_of!(BackendConn, pairing), backend_at(1) + offset_of!(BackendConn, pairing), 8);
    let adopted = damaged.adopt();
    assert_eq!((adopted.forgotten(), adopted.interrupted, adopted.client_conns), (0, 4, 0), "{adopted:?}");
    for talk in &mut damaged.talks {
        assert!(talk.client.is_reset(&mut damaged.fixture));
        assert!(talk.backend.as_mut().unwrap().is_reset(&mut damaged.fixture));
    }
    damaged.fixture.over();
}

#[test]
fn a_backend_connection_in_use_does_not_become_idle() {
    let mut damaged = Damaged::new(3);
    let at = backend_at(1);
    damaged.put(at + offset_of!(BackendConn, state), &[BackendConnState::Idle as u8]);
    damaged.put(at + offset_of!(BackendConn, client_conn), &u32::MAX.to_ne_bytes());
    let adopted = damaged.adopt();
    assert_eq!((adopted.unsealed, adopted.interrupted), (1, 1), "{adopted:?}");
    // The next request goes over another one, though its port may be chosen again.
    let mut other = Script::client(&mut damaged.fixture, 3000);
    let sent = other.sends(&mut damaged.fixture, REQUEST);
    let backend = damaged.talks[1].backend.as_ref().unwrap();
    assert!(sent.iter().all(|sent| sent.from != backend.script.peer || sent.segment.flags == SYN), "{sent:?}");
    damaged.fixture.over();
}

#[test]
fn bytes_that_others_had_in_a_buffer_are_not_its_owners() {
    let input = offset_of!(ClientConn, input);
    // Its size, its tag, its number and its length.
    for (offset, value) in [(0, 1), (1, 9), (2, 9), (4, 3), (8, 200), (9, 1)] {
        let mut damaged = Damaged::new(4);
        let mut slow = Script::client(&mut damaged.fixture, 3000);
        slow.sends(&mut damaged.fixture, &REQUEST[..20]);
        damaged.image = damaged.fixture.worker.spliced_image().copy();
        let at = client_at(2) + input + offset;
        damaged.image[at] = damaged.image[at].wrapping_add(value);
        let adopted = damaged.adopt();
        assert_eq!((adopted.without_buffer, adopted.client_conns), (1, 2), "{offset}: {adopted:?}");
        let sent = slow.sends(&mut damaged.fixture, &REQUEST[20..]);
        assert!(sent.iter().all(|sent| sent.bytes.is_empty()), "{sent:?}");
        damaged.fixture.over();
    }
    // Two that have the same one: neither does.
    let mut damaged = Damaged::new(4);
    for (port, length) in [(3000, 20), (3001, 20)] {
        Script::client(&mut damaged.fixture, port).sends(&mut damaged.fixture, &REQUEST[..length]);
    }
    damaged.image = damaged.fixture.worker.spliced_image().copy();
    damaged.image.copy_within(client_at(2) + input..client_at(2) + input + 12, client_at(3) + input);
    let adopted = damaged.adopt();
    assert_eq!((adopted.without_buffer, adopted.client_conns), (2, 2), "{adopted:?}");
    damaged.fixture.over();
}

#[test]
fn where_the_number_of_what_is_done_is_nonsense_all_are_reset() {
    stamped::unchecked();
    for done in [0, 1 << 62, u64::MAX] {
        let mut damaged = Damaged::new(3);
        damaged.put(0, &u64::to_ne_bytes(done));
        let adopted = damaged.adopt();
        assert_eq!((adopted.forgotten(), adopted.interrupted, adopted.client_conns), (0, 4, 0), "{adopted:?}");
        for talk in &mut damaged.talks {
            assert!(talk.client.is_reset(&mut damaged.fixture));
        }
        damaged.fixture.over();
        assert_eq!(damaged.fixture.restart().interrupted, 0);
    }
}

#[test]
fn what_cannot_be_is_no_connection() {
    let (peer, mss) = (offset_of!(ClientConn, peer), offset_of!(Peer, mss));
    let mut damaged = Damaged::new(3);
    damaged.put(client_at(1) + peer + mss, &[0, 0]);
    let adopted = damaged.adopt();
    assert_eq!((adopted.invalid, adopted.interrupted), (1, 1), "{adopted:?}");
    let mut damaged = Damaged::new(3);
    damaged.put(client_at(1) + offset_of!(ClientConn, state), &[99]);
    let adopted = damaged.adopt();
    assert_eq!((adopted.invalid, adopted.interrupted), (1, 1), "{adopted:?}");
    damaged.fixture.over();
}

#[test]
fn no_connection_stays_for_ever() {
    // In the midst of a response, and with an idle backend connection.
    for steps in [3, 5] {
        let mut damaged = Damaged::new(steps);
        for at in 0..2 {
            damaged.put(client_at(at) + offset_of!(ClientConn, deadline), &(u64::MAX / 2).to_ne_bytes());
            damaged.put(backend_at(at) + offset_of!(BackendConn, deadline), &(u64::MAX / 2).to_ne_bytes());
        }
        assert_eq!(damaged.adopt().forgotten(), 0);
        damaged.fixture.over();
    }
}

#[test]
fn memory_of_another_steering_key_is_forgotten() {
    let mut damaged = Damaged::new(3);
    let mut other = OneWorker::new(|_| {});
    other.secrets = [9; 4];
    let adopted = other.restart_from(Some(&damaged.image));
    assert_eq!((adopted.unsealed, adopted.forgotten(), adopted.interrupted), (4, 4, 0), "{adopted:?}");
    assert!(other.wait(Duration::from_secs(20)).is_empty());
    damaged.goes_on(0);
}

/// The engine answers what it was asked: it has no room, and no rule any more.
fn engine_refuses(fixture: &mut OneWorker) {
    while let Some(op) = fixture.worker.poll_op() {
        let answer = match op {
            RuleOp::Install(rule) => Completion::Rejected(rule.id, Refusal::Full),
            RuleOp::Remove { id, .. } => Completion::Removed(id, None),
        };
        fixture.worker.handle_completion(fixture.now, &answer);
    }
}

/// Adopts memory of which some bytes were changed, and has all ends go on.
fn adopts_damage(random: &mut TestRng, steps: usize) {
    let mut damaged = Damaged::new(steps);
    let entries = backend_at(SPLICES_MAX as usize);
    let reach = [damaged.image.len(), entries, client_at(3), 300][random.random_range(0..4)];
    for _ in 0..[1, 3, 30, 300][random.random_range(0..4)] {
        let at = random.random_range(0..reach);
        let image = &mut damaged.image;
        image[at] = match random.random_range(0..5) {
            0 => 0,
            1 => 255,
            2 => image[at] ^ 1 << random.random_range(0..8),
            3 => random.random_range(0..8),
            _ => random.random(),
        };
    }
    let adopted = damaged.adopt();
    let Damaged { mut fixture, mut talks, .. } = damaged;
    let again = fixture.restart();
    assert_eq!((again.forgotten(), again.interrupted), (0, 0), "{adopted:?}, then {again:?}");
    let mut all = Vec::new();
    for round in 0..3 {
        for talk in &mut talks {
            let ends = [Some(&mut talk.client), talk.backend.as_mut()];
            for end in ends.into_iter().flatten() {
                all.extend(end.script.acknowledges(&mut fixture));
                if round == 1 {
                    all.extend(end.script.sends(&mut fixture, REQUEST));
                }
            }
        }
        engine_refuses(&mut fixture);
        all.extend(fixture.wait(Duration::from_millis(700)));
    }
    all.extend(Script::client(&mut fixture, 3000).sends(&mut fixture, REQUEST));
    all.extend(fixture.wait(Duration::from_secs(5)));
    let clients = [1000, 2000, 3000].map(|port| super::one_worker::end(false, 10, port));
    let is_known = |sent: &Sent| match sent.from == fixture.vip {
        true => clients.contains(&sent.to),
        false => sent.from.address == super::one_worker::end(false, 50, 0).address && sent.to.port == 8080,
    };
    assert!(all.iter().all(is_known), "{all:?}");
    // As long as a tunnel may be silent.
    for _ in 0..2 {
        engine_refuses(&mut fixture);
        fixture.wait(Duration::from_secs(3600));
    }
    let mut left = Vec::with_capacity(8);
    fixture.worker.snapshot_splices(fixture.now, 0, &mut left);
    assert!(left.is_empty(), "{left:?}");
    fixture.over();
}

#[test]
fn whatever_was_changed_nothing_panics_or_reaches_strangers() {
    stamped::unchecked();
    let mut random = TestRunner::deterministic().new_rng();
    let fails = |&round: &usize| {
        let case = std::panic::AssertUnwindSafe(|| adopts_damage(&mut random, round % STEPS));
        std::panic::catch_unwind(case).is_err()
    };
    let failed: Vec<usize> = (0..CASES).filter(fails).collect();
    assert!(failed.is_empty(), "of {CASES} cases these have failed: {failed:?}");
}

#[test]
fn the_memory_is_laid_out_as_these_tests_take_it() {
    assert!(backend_at(SPLICES_MAX as usize) < SplicedMemory::bytes(SPLICES_MAX));
    let damaged = Damaged::new(3);
    let port = |at: usize| u16::from_ne_bytes([damaged.image[at + 16], damaged.image[at + 17]]);
    assert_eq!([client_at(0), client_at(1)].map(port), [2000, 1000]);
    assert_eq!([backend_at(0), backend_at(1)].map(port), [8080, 8080]);
}
