//! Backend connections whose packets are steered to another worker: after the number of workers has changed, the worker of a
//! client's connection goes on with the backend connection that this has.
//!
//! A rule whose guard admits nothing brings their packets, because what a rule does not take goes to the worker that has
//! installed it. It stands as long as the backend connection does. While the engine carries a body, the pair's own rule is
//! in its place.

use super::rules::RULE_BIT;
use super::state::entry::BackendConn;
use super::{Context, Splices};
use crate::engine::{Fate, Guard, Rule, RuleId, RuleOp};
use crate::flow::Direction;
use crate::rewrite::Rewrite;

/// The name of all these rules: no client connection has such a place, so nothing waits for the engine's answers.
const ID: RuleId = RuleId(RULE_BIT | 1 << 32 | u32::MAX as u64);
/// The largest distance between two sequence numbers: half their space.
const FAR: u32 = 1 << 31;

/// The rule that brings a backend connection's packets to this worker.
fn rule(backend_conn: &BackendConn) -> Rule {
    // No real segment has numbers half the sequence space ahead of what was sent, so the guard admits none.
    let guard = Guard {
        sequence: backend_conn.peer.highest.wrapping_add(FAR),
        sequence_length: 0,
        acknowledgement: backend_conn.peer.sent.wrapping_add(FAR),
        acknowledgement_length: 0,
    };
    let rewrite = Rewrite { source: backend_conn.target(), destination: backend_conn.own_end(), ..Rewrite::default() };
    Rule {
        id: ID,
        key: backend_conn.key.flow(),
        rewrite,
        guard: Some(guard),
        fate: Fate::Forward,
        total: u32::from(backend_conn.number) * 2 + Direction::FromBackend as u32,
        at_once: true,
    }
}

impl Splices {
    /// Brings a backend connection's packets here, if they are steered to another worker and no other rule does so.
    pub(super) fn divert(&self, backend_conn: u32, ops: &mut impl FnMut(RuleOp)) {
        if let Some(entry) = self.backend_conns.get(backend_conn).filter(|entry| entry.is_diverted) {
            ops(RuleOp::Install(rule(entry)));
        }
    }

    /// Removes the rule of a backend connection that is over, if it has one.
    pub(super) fn end_diversion<IO>(&self, cx: &mut Context<'_, IO>, backend_conn: u32)
    where
        IO: crate::frame::FrameIo,
    {
        if let Some(entry) = self.backend_conns.get(backend_conn).filter(|entry| entry.is_diverted) {
            cx.ops.push_back(RuleOp::Remove { id: ID, key: entry.key.flow() });
        }
    }
}
