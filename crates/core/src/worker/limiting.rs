//! Limits of clients' connections, where a connection begins and where it is over.

use super::Worker;
use crate::flow::{Address, FlowKey};
use crate::limit::{self, Limit, Limited, Limiting};
use crate::offload::OffloadPolicy;
use crate::table::Table;
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
    pub(super) fn count_for_limits(&self, service: u16, address: &Address, there: bool) {
        let limits = self.limits_of(service);
        match there {
            true => limit::hold(limits, &self.limits, address),
            false => limit::release(limits, &self.limits, address),
        }
    }

    fn limits_of(&self, service: u16) -> &[Limit] {
        self.snapshot.services.get(usize::from(service)).map_or(&[][..], |service| &service.limits[..])
    }
}
