//! Which configuration an exchange began with: its response is edited as that one says, whatever has come into force
//! meanwhile, in this process or in the next one.
//!
//! Configurations are counted. The number of the one in force and those of the last few before it lie in the memory that
//! outlives the process, each with its [`Snapshot::id`], by which the next process knows them.

use super::entry::ClientConn;
use crate::config::Snapshot;
use crate::l7::config::{Http, Kind, Route};
use crate::table::region::Array;
use alloc::sync::Arc;
use alloc::vec::Vec;
use arrayvec::ArrayVec;

/// Former configurations that are kept at most. An exchange that outlasts more changes than that ends without the edits
/// of its route.
pub const FORMERS_MAX: usize = 8;
/// Words in memory: the number in force, and pairs of a number and its id.
pub(in crate::l7::splice) const WORDS: usize = 1 + 2 * PLACES;
/// The one in force has a place, too.
const PLACES: usize = FORMERS_MAX + 1;

/// See the module's documentation.
pub(in crate::l7::splice) struct Configurations {
    memory: Array<u64>,
    number: u32,
    /// The oldest first.
    formers: ArrayVec<(u32, Arc<Snapshot>), FORMERS_MAX>,
}

impl Configurations {
    /// Reads the numbers and ids in `memory`, which has [`WORDS`] words. The former snapshots themselves come with
    /// [`Configurations::adopt`].
    pub(in crate::l7::splice) fn new(memory: Array<u64>) -> Configurations {
        let number = memory.first().map_or(0, |&number| number as u32);
        Configurations { memory, number, formers: ArrayVec::new() }
    }

    /// The number of the one in force.
    #[inline]
    pub(in crate::l7::splice) fn number(&self) -> u32 {
        self.number
    }

    fn id_of(&self, number: u32) -> u64 {
        let place = 1 + 2 * (number as usize % PLACES);
        match self.memory.get(place..place + 2) {
            Some(&[named, id]) if named == u64::from(number) => id,
            _ => 0,
        }
    }

    /// Stores that configuration `number`, which has this id, is in force from now on.
    fn set(&mut self, number: u32, id: u64) {
        let place = 1 + 2 * (number as usize % PLACES);
        if let Some([named, its_id]) = self.memory.get_mut(place..place + 2) {
            // A process that ends in between leaves no id, and the number before in force.
            *its_id = 0;
            (*named, *its_id) = (number.into(), id);
        }
        if let Some(present) = self.memory.first_mut() {
            *present = number.into();
        }
        self.number = number;
    }

    /// The configuration of this id comes into force in the place of `before`. Returns the snapshot that is forgotten, to
    /// be dropped outside the worker's thread.
    pub(in crate::l7::splice) fn follow(&mut self, before: Arc<Snapshot>, id: u64) -> Option<Arc<Snapshot>> {
        if id != 0 && id == before.id {
            // The id covers all that an exchange goes by, and it is unchanged.
            return Some(before);
        }
        let oldest = if self.formers.is_full() { self.formers.pop_at(0) } else { None };
        self.formers.push((self.number, before));
        self.set(self.number.wrapping_add(1), id);
        oldest.map(|(_, snapshot)| snapshot)
    }

    /// This process begins with the configuration of this id, and knows some of those before.
    pub(in crate::l7::splice) fn adopt(&mut self, id: u64, formers: &[Arc<Snapshot>]) {
        let last = self.number;
        let is_same = id != 0 && id == self.id_of(last);
        let numbers: Vec<u32> = (0..PLACES as u32).rev().map(|back| last.wrapping_sub(back)).collect();
        for number in numbers.into_iter().filter(|&number| !(is_same && number == last)) {
            let its_id = self.id_of(number);
            let known = formers.iter().find(|snapshot| its_id != 0 && snapshot.id == its_id);
            if let Some(snapshot) = known {
                if self.formers.is_full() {
                    self.formers.remove(0);
                }
                self.formers.push((number, Arc::clone(snapshot)));
            }
        }
        self.set(last.wrapping_add(u32::from(!is_same)), id);
    }

    /// Takes another worker's numbers and ids. The former snapshots themselves come with [`Configurations::adopt`].
    pub(in crate::l7::splice) fn copy(&mut self, other: &Configurations) {
        self.memory.copy_from_slice(&other.memory);
        self.number = other.number;
    }

    /// The number that a configuration has here, if it has `number` in `other`. If it is unknown here: a number that no
    /// configuration has.
    pub(in crate::l7::splice) fn translated(&self, other: &Configurations, number: u32) -> u32 {
        let id = other.id_of(number);
        let mut all = (0..PLACES as u32).map(|back| self.number.wrapping_sub(back));
        let unknown = self.number.wrapping_sub(PLACES as u32);
        all.find(|&number| id != 0 && self.id_of(number) == id).unwrap_or(unknown)
    }

    /// The service and the route that a client connection's exchange goes by. `None`: neither the configuration in force nor the
    /// one that the exchange began with, if it is kept, has an HTTP service of that number. Without a route: the
    /// configuration that it began with is not kept any more.
    pub(in crate::l7::splice) fn of<'a>(
        &'a self,
        present: &'a Snapshot,
        client_conn: &ClientConn,
    ) -> Option<(&'a Http, Option<&'a Route>)> {
        let exchange = &client_conn.exchange;
        let former = self.formers.iter().find(|(number, _)| *number == exchange.generation);
        let snapshot = match former {
            Some((_, snapshot)) if exchange.generation != self.number => snapshot,
            _ => present,
        };
        let Kind::Http(http) = &snapshot.services.get(usize::from(client_conn.service))?.kind else { return None };
        let is_known = exchange.generation == self.number || former.is_some();
        Some((http, is_known.then(|| http.routes.get(usize::from(exchange.route))).flatten()))
    }
}
