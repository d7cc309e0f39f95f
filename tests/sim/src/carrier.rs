//! The engine in front of the worker: the kernel's, or a card.

use crate::engine::{Engine, PacketOutcome, SetUpTally};
use crate::nic::{Nic, Passage};
use hairpin_core::engine::{Completions, EngineCaps, FlowEngine, RuleId, RuleOp, Samples, SetsUp};
use hairpin_core::flow::FlowKey;
use hairpin_core::frame::VecFrame;
use hairpin_core::time::Time;
use hairpin_core::wire::Transport;

/// Either of them.
pub enum Carrier {
    /// An engine that knows what is still inside the worker, and packets whole.
    Kernel(Engine),
    /// A card.
    Card(Box<Nic>),
}

macro_rules! either {
    ($self:ident, $it:ident => $what:expr) => {
        match $self {
            Carrier::Kernel($it) => $what,
            Carrier::Card($it) => $what,
        }
    };
}

impl Carrier {
    /// The flows it has rules for, sorted.
    pub fn keys(&self) -> Vec<FlowKey> {
        either!(self, it => it.keys())
    }

    /// Whether nothing is under way.
    pub fn is_idle(&self) -> bool {
        either!(self, it => it.is_idle())
    }

    /// When it next has something to do, or an answer for the worker.
    pub fn next(&self) -> Option<Time> {
        either!(self, it => it.next())
    }

    /// Brings into force what is due.
    pub fn advance(&mut self, now: Time) {
        either!(self, it => it.advance(now))
    }

    /// A frame goes to the worker; its ticket.
    pub fn give(&mut self) -> u64 {
        let Carrier::Kernel(engine) = self else { return 0 };
        engine.given += 1;
        engine.given
    }

    /// The worker has finished with all frames up to this ticket.
    pub fn finish(&mut self, ticket: u64) {
        if let Carrier::Kernel(engine) = self {
            engine.finished = ticket;
        }
    }

    /// Packets forwarded, and packets that a guard kept for software.
    pub fn carried(&self) -> (u64, u64) {
        match self {
            Carrier::Kernel(engine) => (engine.carried, engine.guarded),
            Carrier::Card(nic) => (nic.tally().forwarded, nic.tally().guarded),
        }
    }

    /// What its part that sets connections up has done.
    pub fn set_up(&self) -> SetUpTally {
        let Carrier::Kernel(Engine { set_up: Some(part), .. }) = self else { return SetUpTally::default() };
        part.tally
    }

    /// A packet arrives. (What a card adds to its delay is left out here: links have delays of their own.)
    pub fn packet(
        &mut self,
        now: Time,
        frame: &mut VecFrame,
        at: &Transport,
        mtu: impl Fn(&FlowKey) -> usize,
    ) -> PacketOutcome {
        let nic = match self {
            Carrier::Kernel(engine) => return engine.packet(now, frame, at, mtu),
            Carrier::Card(nic) => nic,
        };
        if nic.leads_to(&at.key).is_some_and(|to| at.end - at.l3 > mtu(&to)) {
            return PacketOutcome::Miss;
        }
        match nic.frame(now, frame, at) {
            Passage::Forward(_) => PacketOutcome::Forward,
            Passage::Pass => PacketOutcome::Pass,
            Passage::Miss => PacketOutcome::Miss,
            Passage::Lost => PacketOutcome::Gone,
        }
    }
}

impl FlowEngine for Carrier {
    fn caps(&self) -> EngineCaps {
        either!(self, it => it.caps())
    }

    fn submit(&mut self, now: Time, op: RuleOp) -> Result<(), RuleOp> {
        either!(self, it => it.submit(now, op))
    }

    fn flush(&mut self, now: Time) {
        either!(self, it => it.flush(now))
    }

    fn poll(&mut self, now: Time, out: &mut Completions) {
        either!(self, it => it.poll(now, out))
    }

    fn sample(&mut self, rules: &[(RuleId, FlowKey)], out: &mut Samples) {
        either!(self, it => it.sample(rules, out))
    }

    fn sets_up(&mut self) -> Option<Box<dyn SetsUp>> {
        either!(self, it => it.sets_up())
    }
}
