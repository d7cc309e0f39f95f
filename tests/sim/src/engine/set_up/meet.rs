//! What set-up makes of a packet that no rule matches, and the rules that it makes.

use super::{OWN, Pending, SetUpPart, UNANSWERED, Update, lock};
use crate::engine::{Engine, EngineBug, Gate, Installed, PacketOutcome};
use crate::segments::{acknowledgement, sequence};
use hairpin_core::engine::{Report, Rule, SetUp};
use hairpin_core::flow::{Direction, FlowKey, Protocol};
use hairpin_core::frame::{Frame, VecFrame};
use hairpin_core::time::Time;
use hairpin_core::wire::Transport;
use hairpin_core::wire::tcp::{ACK, FIN, RST, SYN};
use std::collections::BTreeSet;

/// How far behind the SYN-ACK the proof of a client may be: `PROOF_WINDOW` of `pending.h`.
const PROOF_WINDOW: u32 = 1 << 16;

/// What is to become of a packet.
enum Verdict {
    Undecided,
    ToWorker,
    Drop,
    /// There is a rule now.
    Again,
    Send(Pending, Direction, Update),
}

impl Engine {
    /// A packet that no rule matches.
    pub(in crate::engine) fn meet(
        &mut self,
        now: Time,
        frame: &mut VecFrame,
        at: &Transport,
        mtu: &dyn Fn(&FlowKey) -> usize,
    ) -> PacketOutcome {
        let Some(mut part) = self.set_up.take() else { return PacketOutcome::Miss };
        let outcome = self.meet_by(&mut part, now, frame, at, mtu);
        self.set_up = Some(part);
        match outcome {
            Some(outcome) => outcome,
            None => self.hit(now, frame, at, mtu),
        }
    }

    /// `None`: there is a rule now.
    fn meet_by(
        &mut self,
        part: &mut SetUpPart,
        now: Time,
        frame: &mut VecFrame,
        at: &Transport,
        mtu: &dyn Fn(&FlowKey) -> usize,
    ) -> Option<PacketOutcome> {
        let is_client = at.key.destination == part.vip;
        if at.key.protocol != Protocol::Tcp || !is_client && !part.backends.contains_key(&at.key.source) {
            return Some(PacketOutcome::Miss);
        }
        let client = match is_client {
            true => at.key,
            false => FlowKey { source: at.key.destination, destination: part.vip, protocol: at.key.protocol },
        };
        let verdict = match is_client {
            true => part.meet_client(now, frame, at, |back| self.rules.contains_key(back)),
            false => part.meet_backend(now, &client, frame, at),
        };
        let is_done = match verdict {
            Verdict::Again if self.establish(part, now, &client) => return None,
            Verdict::Again | Verdict::ToWorker => false,
            Verdict::Drop => return Some(PacketOutcome::Gone),
            Verdict::Undecided => return Some(part.undecided(now, at, &client)),
            Verdict::Send(begun, direction, update) => {
                let (_, rewrite) = part.flow(&client, begun.backend, direction)?;
                let fits = at.ttl > 1 && at.end - at.l3 <= mtu(&rewrite.rewritten(&at.key));
                let goes = frame.meta.gso_size == 0 && fits && part.put(&client, begun, update);
                if goes {
                    let checksum = frame.meta.checksum;
                    rewrite.apply(frame.bytes_mut(), at, checksum);
                    self.carried += 1;
                }
                goes
            }
        };
        part.tally.deferred += u64::from(!is_done);
        Some(if is_done { PacketOutcome::Forward } else { PacketOutcome::Miss })
    }

    /// Makes both rules of what is half-open, the backend's first, and reports it; whether that went.
    fn establish(&mut self, part: &mut SetUpPart, now: Time, client: &FlowKey) -> bool {
        if !part.has_room() || !part.has_place() {
            return false;
        }
        let Some(begun) = part.find(now, client) else { return false };
        let mut made = Vec::new();
        for direction in [Direction::FromBackend, Direction::FromClient] {
            let Some((key, rewrite)) = part.flow(client, begun.backend, direction) else { return false };
            let total = u32::from(begun.backend) * 2 + direction as u32;
            if !self.put_new(Rule { id: OWN, key, rewrite, total, at_once: true, ..Rule::default() }) {
                self.rules.retain(|key, _| !made.contains(key));
                return false;
            }
            made.push(key);
        }
        part.tally.made += 1;
        part.tally.made_absent += u64::from(part.is_absent(now));
        let mut shared = lock(&part.shared);
        let set_up = SetUp { key: *client, backend: begun.backend, answered: true };
        if self.options.bug != Some(EngineBug::ForgetsReports) || !shared.made.is_multiple_of(4) {
            shared.reports.push_back(Report::SetUp(set_up));
        }
        shared.made = shared.made.wrapping_add(1);
        shared.pending.remove(client);
        true
    }

    /// Puts a rule in for a flow that has none, if there is room.
    fn put_new(&mut self, rule: Rule) -> bool {
        let is_unlucky = self.random.u32(..1_000_000) < self.options.refused;
        let is_full = self.rules.len() >= self.options.caps.rules_max as usize;
        if is_unlucky || is_full || self.rules.contains_key(&rule.key) {
            return false;
        }
        let fresh = Installed { gate: Gate::Active, ..Installed::new(rule) };
        self.rules.insert(rule.key, fresh);
        true
    }

    /// A segment with SYN, FIN or RST is about to go by its rule; whether there was a place to tell it.
    pub(in crate::engine) fn report_segment(&mut self, key: &FlowKey, flags: u8) -> bool {
        if flags & SYN != 0 {
            let Some(there) = self.rules.get_mut(key) else { return false };
            if flags & ACK != 0 {
                there.opens = false;
            } else {
                let back = there.rule.rewrite.rewritten(key).reversed();
                match self.rules.get_mut(&back).filter(|other| other.gate == Gate::Active) {
                    Some(other) => other.opens = true,
                    None => return false,
                }
            }
        }
        let Some(part) = self.set_up.as_mut() else { return false };
        if !part.has_place() {
            return false;
        }
        part.tally.followed += 1;
        lock(&part.shared).reports.push_back(Report::Segment { key: *key, flags });
        true
    }

    /// Among rules that no connection has, the pairs of set-up, and the keys of the others.
    pub(crate) fn pairs(&self, orphans: &BTreeSet<FlowKey>) -> (Vec<SetUp>, BTreeSet<FlowKey>) {
        let (mut pairs, mut left) = (Vec::new(), orphans.clone());
        let Some(part) = &self.set_up else { return (pairs, left) };
        for back in orphans {
            let Some(&backend) = part.backends.get(&back.source) else { continue };
            let key = FlowKey { source: back.destination, destination: part.vip, protocol: back.protocol };
            if left.contains(&key) && left.remove(back) {
                left.remove(&key);
                pairs.push(SetUp { key, backend, answered: true });
            }
        }
        (pairs, left)
    }
}

impl SetUpPart {
    fn meet_client(
        &mut self,
        now: Time,
        frame: &VecFrame,
        at: &Transport,
        is_taken: impl Fn(&FlowKey) -> bool,
    ) -> Verdict {
        let flags = at.tcp_flags & (SYN | ACK | RST | FIN);
        let (opens, is_first) = (flags & (SYN | ACK) == SYN, flags == SYN && at.end == at.payload);
        let Some(pending) = self.find(now, &at.key) else {
            let is_of_another = self.is_known(&at.key.source) && !self.is_absent(now);
            if !is_first || !self.serves(now) || is_of_another {
                return Verdict::Undecided;
            }
            if !self.admits(now) {
                return Verdict::Drop;
            }
            if !self.has_room() {
                return Verdict::ToWorker;
            }
            let Some(begun) = self.choose(&at.key) else { return Verdict::ToWorker };
            let back = self.flow(&at.key, begun.backend, Direction::FromBackend);
            if back.is_none_or(|(back, _)| is_taken(&back)) {
                self.tally.taken += 1;
                return Verdict::ToWorker;
            }
            return Verdict::Send(Pending { begun: now, ..begun }, Direction::FromClient, Update::Begin);
        };
        if opens && !self.admits(now) {
            return Verdict::Drop;
        }
        if is_first {
            let is_late = !pending.answered && now.since(pending.begun) > UNANSWERED;
            return match is_late && !self.is_absent(now) {
                true => Verdict::ToWorker,
                false => Verdict::Send(pending, Direction::FromClient, Update::Nothing),
            };
        }
        let ahead = acknowledgement(&frame.data, at).wrapping_sub(pending.proof);
        match flags == ACK && pending.answered && ahead < PROOF_WINDOW {
            true => Verdict::Again,
            false => Verdict::ToWorker,
        }
    }

    /// `key` is the client's flow of what the packet would belong to.
    fn meet_backend(&mut self, now: Time, key: &FlowKey, frame: &VecFrame, at: &Transport) -> Verdict {
        let found = self.find(now, key);
        let Some(pending) = found.filter(|found| self.backends.get(&at.key.source) == Some(&found.backend)) else {
            return Verdict::Undecided;
        };
        if at.tcp_flags & (SYN | ACK | RST | FIN) != SYN | ACK || at.end != at.payload {
            return Verdict::ToWorker;
        }
        let proof = match sequence(&frame.data, at).wrapping_add(1) {
            0 => u32::MAX,
            next => next,
        };
        Verdict::Send(Pending { answered: true, proof, ..pending }, Direction::FromBackend, Update::Change)
    }

    /// A packet of nothing half-open: the worker's, unless it is policed; or the kernel's, if it is a backend's to a host that
    /// may be no client, and no process is there to tell.
    fn undecided(&mut self, now: Time, at: &Transport, client: &FlowKey) -> PacketOutcome {
        let is_known = self.is_known(&client.source);
        if at.key.destination != self.vip {
            return if self.is_absent(now) && !is_known { PacketOutcome::Pass } else { PacketOutcome::Miss };
        }
        let opens = at.tcp_flags & (SYN | ACK) == SYN;
        match (opens || !is_known) && !self.admits(now) {
            true => PacketOutcome::Gone,
            false => PacketOutcome::Miss,
        }
    }
}
