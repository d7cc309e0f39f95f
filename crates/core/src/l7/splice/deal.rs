//! Spliced connections go to other workers, or into memory of another size, before a process adopts them.
//!
//! A client connection goes to the worker that its packets are steered to now, and the backend connection that it has goes
//! with it, wherever that one's packets are steered: a rule brings them (`divert.rs`). All other backend connections go to
//! their packets' worker. What the last process was changing is reset first, as on adoption.

use super::Splices;
use super::state::buffers::{Buffer, Buffers};
use super::state::entry::{BackendConn, BackendConnState, ClientConn, ClientConnState};
use super::state::memory::SplicedMemory;
use crate::flow::Steering;
use crate::keys::Secret;
use crate::l7::cookie::Cookies;
use crate::l7::trace::IdMaker;
use crate::stored::{OptionalPosition, Stored};
use crate::table::Hasher;
use crate::time::Time;
use alloc::vec;
use alloc::vec::Vec;

/// What became of the connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DealtSplices {
    /// Clients' connections that have their places.
    pub client_conns: u64,
    /// Connections for which there was no room; their ends are told when they send something.
    pub dropped: u64,
    /// Connections that are to be reset, because there was no buffer for them, or no room for the backend connection.
    pub reset: u64,
}

/// Moves what `from` holds into `to`, the empty memory of the workers of `steering`, in their order.
pub fn deal(
    now: Time,
    from: Vec<SplicedMemory>,
    to: Vec<SplicedMemory>,
    steering: &Steering,
) -> (Vec<SplicedMemory>, DealtSplices) {
    let open = |memory| {
        let cookies = Cookies::new([[0; 2]; 2]);
        // No request is read here.
        let ids = IdMaker::new(Secret::new([0; 2]), 0);
        Splices::new(memory, Hasher::new([0; 4]), steering, (cookies, ids))
    };
    let mut to: Vec<Splices> = to.into_iter().map(open).collect();
    let mut dealt = DealtSplices::default();
    let mut from: Vec<Splices> = from.into_iter().map(open).collect();
    let newest = from.iter().max_by_key(|splices| splices.configurations.number());
    if let Some(newest) = newest {
        to.iter_mut().for_each(|splices| splices.configurations.copy(&newest.configurations));
    }
    for old in &mut from {
        old.believe(now);
        Move { now, old, to: &mut to, steering, dealt: &mut dealt }.all();
    }
    to.iter_mut().for_each(Splices::finish_operation);
    (to.into_iter().map(Splices::into_memory).collect(), dealt)
}

/// How much a client's connection matters when there is not room for all.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rank {
    Busy,
    Idle,
    Over,
}

impl Rank {
    fn of(state: ClientConnState) -> Rank {
        match state {
            ClientConnState::Waiting | ClientConnState::Spliced | ClientConnState::Replying => Rank::Busy,
            ClientConnState::Reading => Rank::Idle,
            ClientConnState::Closing
            | ClientConnState::TimeWait
            | ClientConnState::Resetting
            | ClientConnState::PendingRemoval => Rank::Over,
        }
    }
}

/// One worker's connections on their way.
struct Move<'a> {
    now: Time,
    old: &'a mut Splices,
    to: &'a mut [Splices],
    steering: &'a Steering,
    dealt: &'a mut DealtSplices,
}

impl Move<'_> {
    fn all(mut self) {
        let mut has_moved = vec![false; self.old.backend_conns.reach() as usize];
        // Where there is not room for all, those with an exchange go first.
        for rank in [Rank::Busy, Rank::Idle, Rank::Over] {
            for position in 0..self.old.client_conns.reach() {
                let is_next = |client_conn: &ClientConn| Rank::of(client_conn.state) == rank;
                if self.old.client_conns.get(position).is_some_and(is_next)
                    && let Some(backend_conn) = self.client(position)
                {
                    has_moved[backend_conn as usize] = true;
                }
            }
        }
        for position in 0..self.old.backend_conns.reach() {
            if !has_moved[position as usize] {
                self.backend(position);
            }
        }
        for port in self.old.resting.all() {
            let target = usize::from(self.steering.worker(&port.source));
            self.to[target].resting.put(port);
        }
        self.to.iter_mut().for_each(|target| target.ended.take_over(self.now, &self.old.ended));
    }

    /// Moves a client connection and the backend connection that it has. Returns that one's position.
    fn client(&mut self, position: u32) -> Option<u32> {
        let client_conn = self.old.client_conns.get(position)?;
        let mut joined = client_conn.backend_conn.get();
        let target = usize::from(self.steering.worker(&client_conn.key.source));
        let mut moved: ClientConn = copied(client_conn)?;
        let place = &mut self.to[target];
        if !take_along(moved.buffers_mut(), &self.old.buffers, &mut place.buffers) {
            moved.become_reset(self.now);
            self.dealt.reset += 1;
            // A client that is reset has no backend connection: that one is moved with those that are left, and is reset.
            joined = None;
        }
        (moved.backend_conn, moved.left) = (OptionalPosition::NONE, OptionalPosition::NONE);
        moved.exchange.generation =
            place.configurations.translated(&self.old.configurations, moved.exchange.generation);
        let rule_key = moved.rule_key;
        let Some(at) = place.add_client(moved) else {
            self.dealt.dropped += 1;
            return None;
        };
        if let Some(moved) = place.client_conns.get_mut(at) {
            moved.rule_seal = place.seals.rule(moved.seal, &rule_key);
        }
        self.dealt.client_conns += 1;
        let joined = joined?;
        let backend_conn = self.backend_with(joined, target, Some(at));
        if let Some(moved) = self.to[target].client_conns.get_mut(at) {
            moved.backend_conn = backend_conn.into();
            // There was no room for the backend connection: the client is reset. Adoption frees the buffers that it had.
            if backend_conn.is_none() {
                moved.become_reset(self.now);
                self.dealt.reset += 1;
            }
        }
        Some(joined)
    }

    /// Moves a backend connection that no client connection takes along.
    fn backend(&mut self, position: u32) {
        let Some(backend_conn) = self.old.backend_conns.get(position) else { return };
        let target = usize::from(self.steering.worker(&backend_conn.own_end()));
        self.backend_with(position, target, None);
    }

    fn backend_with(&mut self, position: u32, target: usize, client_conn: Option<u32>) -> Option<u32> {
        let mut moved: BackendConn = copied(self.old.backend_conns.get(position)?)?;
        let steered = usize::from(self.steering.worker(&moved.own_end()));
        let place = &mut self.to[target];
        if !take_along(moved.buffers_mut(), &self.old.buffers, &mut place.buffers) {
            moved.become_reset(self.now);
            self.dealt.reset += 1;
        }
        // One that its client connection does not know, because that has no room, is reset.
        let is_left =
            client_conn.is_none() && matches!(moved.state, BackendConnState::Attached | BackendConnState::Connecting);
        if is_left {
            moved.become_reset(self.now);
        }
        moved.client_conn = client_conn.into();
        let (source, backend) = (moved.own_end(), moved.target());
        let Some(at) = place.add_backend(moved) else {
            self.dealt.dropped += 1;
            return None;
        };
        let client_seal = client_conn.and_then(|at| place.client_conns.get(at)).map(|client_conn| client_conn.seal);
        if let Some(moved) = place.backend_conns.get_mut(at) {
            moved.pairing = place.seals.pair(client_seal, moved.seal);
        }
        if steered != target {
            // Its port is one of another worker's.
            self.to[steered].resting.lend(self.now, source, backend);
        }
        Some(at)
    }
}

/// A copy of a stored value, byte by byte. Its buffers still belong to the value that it was copied from.
fn copied<T: Stored>(value: &T) -> Option<T> {
    T::try_read_from_bytes(value.as_bytes()).ok()
}

/// Puts copies in the place of all buffers; `false`: there is not room for them, and they are none.
fn take_along<const N: usize>(mut buffers: [Option<&mut Buffer>; N], from: &Buffers, to: &mut Buffers) -> bool {
    let mut copies: [Option<Buffer>; N] = [const { None }; N];
    let mut all = true;
    for (buffer, copy) in buffers.iter().zip(&mut copies) {
        let Some(buffer) = buffer else { continue };
        *copy = to.take(from.size(buffer));
        match copy {
            Some(copy) => all &= to.append(copy, from.bytes(buffer)) == buffer.len(),
            None => all = false,
        }
    }
    if !all {
        copies.into_iter().flatten().for_each(|copy| to.release(copy));
        return false;
    }
    for (buffer, copy) in buffers.iter_mut().zip(copies) {
        if let (Some(buffer), Some(copy)) = (buffer, copy) {
            **buffer = copy;
        }
    }
    true
}
