//! How entries change: with the table's lock, by what frames need, by what others say, by the clock.

use super::slot::{NeighbourEntry, NeighbourSlot};
use super::{
    ASK_INTERVAL, ASKS_MAX, AddressPlaces, Ask, Asks, Claim, FAILED, FAILED_KEPT, LOCK_TIME, NeedOutcome, Neighbours,
};
use super::{NeighbourState, REACHABLE, STALE, SWEEP_INTERVAL, SWEEP_PLACES};
use crate::flow::Address;
use crate::link::segment::LinkSegment;
use crate::time::Time;
use core::sync::atomic::Ordering;

/// The lock, held.
pub(super) struct Writing<'a>(pub(super) &'a Neighbours);

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.0.writer.store(0, Ordering::Release);
    }
}

impl Writing<'_> {
    pub(super) fn write(&self, slot: &NeighbourSlot, entry: &NeighbourEntry) {
        slot.write(entry);
        self.0.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn need(&self, now: Time, address: &Address, segment: LinkSegment, keep: bool) -> NeedOutcome {
        let places = self.0.places(address, segment);
        let there = places.iter().find(|slot| slot.owned().is(address, segment));
        if let Some(slot) = there {
            let entry = slot.owned();
            let kept = entry.kept || keep;
            let outdated = match entry.state {
                Some(NeighbourState::Reachable) => now >= entry.confirmed + REACHABLE,
                state => state == Some(NeighbourState::Stale),
            };
            if outdated {
                let state = Some(NeighbourState::Probe);
                let due = now + ASK_INTERVAL;
                self.write(slot, &NeighbourEntry { state, tries: 1, due, learnt: false, kept, ..entry });
                return NeedOutcome::Ask(Ask { address: *address, segment, mac: Some(entry.mac) });
            }
            if kept != entry.kept {
                let due = if entry.state == Some(NeighbourState::Failed) { now } else { entry.due };
                self.write(slot, &NeighbourEntry { kept, due, learnt: false, ..entry });
            }
            return NeedOutcome::Known;
        }
        let Some(slot) = place(places, keep) else { return NeedOutcome::Full };
        let state = Some(NeighbourState::Incomplete);
        let (tries, due) = if keep { (0, now) } else { (1, now + ASK_INTERVAL) };
        let entry = NeighbourEntry {
            address: *address,
            segment,
            state,
            tries,
            due,
            kept: keep,
            confirmed: now,
            ..NeighbourEntry::default()
        };
        self.write(slot, &entry);
        NeedOutcome::Ask(Ask { address: *address, segment, mac: None })
    }

    pub(super) fn hear(&self, now: Time, claim: &Claim) -> bool {
        let places = self.0.places(&claim.address, claim.segment);
        let Some(slot) = places.iter().find(|slot| slot.owned().is(&claim.address, claim.segment)) else {
            return claim.learn && self.learn(now, claim, places);
        };
        let entry = slot.owned();
        let Some(changed) = heard(now, &entry, claim) else { return false };
        self.write(slot, &changed);
        true
    }

    /// Begins anew with one that has not answered. One that has failed and is not kept goes; any other is asked for at
    /// once.
    pub(super) fn begin_anew(&self, now: Time, slot: &NeighbourSlot) {
        let entry = slot.owned();
        let anew = match entry.state {
            Some(NeighbourState::Failed) if !entry.kept => NeighbourEntry::default(),
            _ => {
                NeighbourEntry { state: Some(NeighbourState::Incomplete), tries: 0, confirmed: now, due: now, ..entry }
            }
        };
        self.write(slot, &anew);
    }

    /// Remembers who asked for us, if there is a place that no frame of ours needs.
    fn learn(&self, now: Time, claim: &Claim, places: AddressPlaces<'_>) -> bool {
        let Some(mac) = claim.mac else { return false };
        let is_learnt = |slot: &&NeighbourSlot| slot.owned().state.is_some() && slot.owned().learnt;
        let slot = match places.iter().filter(is_learnt).count() < places.len() / 4 {
            true => places.iter().find(|slot| slot.owned().state.is_none()),
            false => places.iter().filter(is_learnt).min_by_key(|slot| slot.owned().confirmed),
        };
        let Some(slot) = slot else { return false };
        let (address, segment, state) = (claim.address, claim.segment, Some(NeighbourState::Stale));
        let due = now + STALE;
        let entry = NeighbourEntry {
            address,
            segment,
            mac,
            state,
            learnt: true,
            confirmed: now,
            due,
            ..NeighbourEntry::default()
        };
        self.write(slot, &entry);
        true
    }

    pub(super) fn sweep(&self, now: Time, asks: &mut Asks) {
        let mut at = self.0.cursor.load(Ordering::Relaxed) as usize;
        for _ in 0..SWEEP_PLACES {
            let Some(slot) = self.0.slots.get(at) else { break };
            let entry = slot.owned();
            if entry.state.is_some() && entry.due <= now {
                if asks.is_full() {
                    // the rest in the next iteration
                    self.0.cursor.store(at as u64, Ordering::Relaxed);
                    return;
                }
                let (next, ask) = expired(now, &entry);
                self.write(slot, &next);
                asks.extend(ask);
            }
            at += 1;
        }
        if at >= self.0.slots.len() {
            at = 0;
            self.0.sweep_due.store((now + SWEEP_INTERVAL).as_nanos(), Ordering::Relaxed);
        }
        self.0.cursor.store(at as u64, Ordering::Relaxed);
    }
}

/// The next state of an entry that is due, and the address to probe.
fn expired(now: Time, entry: &NeighbourEntry) -> (NeighbourEntry, Option<Ask>) {
    let ask = |mac| Some(Ask { address: entry.address, segment: entry.segment, mac });
    let again = NeighbourEntry { tries: entry.tries + 1, due: now + ASK_INTERVAL, ..*entry };
    let anew = NeighbourEntry { tries: 1, ..again };
    match entry.state {
        Some(NeighbourState::Incomplete) if entry.tries < ASKS_MAX => (again, ask(None)),
        Some(NeighbourState::Incomplete) => {
            let due = now + if entry.kept { FAILED_KEPT } else { FAILED };
            (NeighbourEntry { state: Some(NeighbourState::Failed), due, ..*entry }, None)
        }
        Some(NeighbourState::Reachable) if entry.kept => {
            (NeighbourEntry { state: Some(NeighbourState::Probe), ..anew }, ask(Some(entry.mac)))
        }
        Some(NeighbourState::Stale) if entry.kept => {
            (NeighbourEntry { state: Some(NeighbourState::Probe), ..anew }, ask(Some(entry.mac)))
        }
        Some(NeighbourState::Reachable) => {
            (NeighbourEntry { state: Some(NeighbourState::Stale), due: now + STALE, ..*entry }, None)
        }
        Some(NeighbourState::Probe) if entry.tries < ASKS_MAX => (again, ask(Some(entry.mac))),
        Some(NeighbourState::Probe) => {
            (NeighbourEntry { state: Some(NeighbourState::Incomplete), confirmed: now, ..anew }, ask(None))
        }
        Some(NeighbourState::Failed) if entry.kept => {
            (NeighbourEntry { state: Some(NeighbourState::Incomplete), confirmed: now, ..anew }, ask(None))
        }
        Some(NeighbourState::Stale | NeighbourState::Failed) | None => (NeighbourEntry::default(), None),
    }
}

/// The next state of an entry after a message (RFC 4861, 7.2.5); `None`: it stays as it is.
fn heard(now: Time, entry: &NeighbourEntry, claim: &Claim) -> Option<NeighbourEntry> {
    let state = entry.state?;
    let usable = state.is_usable();
    let mac = match claim.mac {
        Some(mac) => mac,
        // without an address it only confirms the known one
        None if usable => entry.mac,
        None => return None,
    };
    let asked = matches!(state, NeighbourState::Incomplete | NeighbourState::Probe);
    let same = usable && mac == entry.mac;
    // what is to be known at all times is asked after at once
    let stale_due = if entry.kept { now } else { now + STALE };
    if usable && !same {
        if state == NeighbourState::Reachable && now < entry.confirmed + LOCK_TIME {
            return None;
        }
        if !claim.overrides {
            let doubted = NeighbourEntry { state: Some(NeighbourState::Stale), due: stale_due, ..*entry };
            return (state == NeighbourState::Reachable).then_some(doubted);
        }
    }
    if claim.solicited && (asked || same) {
        let state = Some(NeighbourState::Reachable);
        return Some(NeighbourEntry { mac, state, tries: 0, confirmed: now, due: now + REACHABLE, ..*entry });
    }
    if same {
        // who only says what is known does not prove that it hears us
        return None;
    }
    Some(NeighbourEntry { mac, state: Some(NeighbourState::Stale), tries: 0, confirmed: now, due: stale_due, ..*entry })
}

/// The place for a new entry; see the module's documentation.
fn place(places: AddressPlaces<'_>, keep: bool) -> Option<&NeighbourSlot> {
    let oldest = |wanted: fn(&NeighbourEntry) -> bool| {
        let candidates = places.iter().filter(|slot| !slot.owned().kept && wanted(&slot.owned()));
        candidates.min_by_key(|slot| slot.owned().confirmed)
    };
    let unresolved =
        |entry: &NeighbourEntry| matches!(entry.state, Some(NeighbourState::Incomplete | NeighbourState::Failed));
    let full = places.iter().filter(|slot| !slot.owned().kept && unresolved(&slot.owned())).count() >= places.len() / 2;
    let free = places.iter().find(|slot| slot.owned().state.is_none());
    let free = free.filter(|_| !full || keep);
    free.or_else(|| oldest(|entry| entry.state == Some(NeighbourState::Failed)))
        .or_else(|| full.then(|| oldest(|entry| entry.state == Some(NeighbourState::Incomplete))).flatten())
        .or_else(|| oldest(|entry| entry.state == Some(NeighbourState::Stale)))
        .or_else(|| oldest(|entry| entry.state == Some(NeighbourState::Incomplete)).filter(|_| keep))
        .or_else(|| oldest(|_| true).filter(|_| keep))
}
