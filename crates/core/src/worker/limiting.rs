//! Limits of clients' connections, where a connection begins and where it is over.

use super::Worker;
use crate::config::Snapshot;
use crate::flow::{Address, FlowKey};
use crate::l4::connection::Flags;
use crate::limit::{self, Limit, Limited, Limiting};
use crate::offload::OffloadPolicy;
use crate::table::{Position, Table};
use crate::time::Time;

impl<P: OffloadPolicy, T: Table<FlowKey>> Worker<P, T> {
    /// Counts a connection that the client at `address` begins. If it is admitted, it holds its place until
    /// [`Worker::end_beginning`]. From then on the connection that was made counts, by [`Worker::count_for_limits`].
    pub(super) fn begin_limited(&mut self, now: Time, service: u16, address: &Address) -> Option<Limited> {
        let number = usize::from(service);
        let limits = &self.snapshot.services.get(number)?.limits;
        if limits.is_empty() {
            return None;
        }
        let counts = &mut self.statistics.services.get_mut(number)?.limits;
        Limiting { limits, table: &self.limits, now, counts }.connection(address)
    }

    /// A connection that was admitted has been made, or could not be.
    pub(super) fn end_beginning(&self, service: u16, address: &Address) {
        limit::release(self.limits_of(service), &self.limits, address);
    }

    /// A connection is there, or is over.
    pub(super) fn count_for_limits(&self, position: Position, there: bool) {
        let connection = self.slab.at(position);
        let (limits, address) = (self.limits_of(connection.service), &connection.client.address);
        match there {
            true => limit::hold(limits, &self.limits, address),
            false => limit::release(limits, &self.limits, address),
        }
    }

    /// Has the limits that come with this snapshot count the connections that are there, so that none of them is counted out that was
    /// not counted.
    pub(super) fn count_for_new_limits(&self, before: &Snapshot) {
        if !limit::have_new(&self.snapshot.services, &before.services) {
            return;
        }
        for position in self.slab.positions() {
            let connection = self.slab.at(position);
            if connection.flags.has(Flags::COUNTED) {
                let client = (connection.service, &connection.client.address);
                limit::hold_anew(&self.snapshot.services, &before.services, &self.limits, client);
            }
        }
        self.splices.count_for_new_limits(&self.snapshot, before, &self.limits);
    }

    fn limits_of(&self, service: u16) -> &[Limit] {
        self.snapshot.services.get(usize::from(service)).map_or(&[][..], |service| &service.limits[..])
    }
}
