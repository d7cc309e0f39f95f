//! Limits of clients' connections.

use super::{Context, Splices};
use crate::config::Snapshot;
use crate::flow::Address;
use crate::frame::FrameIo;
use crate::limit::{self, LimitTable, Limited, Limiting};

impl<IO: FrameIo> Context<'_, IO> {
    /// Counts a connection that a client begins. If it is admitted, limits count it until [`Context::count_for_limits`] says that it
    /// is over.
    pub(super) fn begin_limited(&mut self, service: u16, address: &Address) -> Option<Limited> {
        let number = usize::from(service);
        let limits = &self.snapshot.services.get(number)?.limits;
        if limits.is_empty() {
            return None;
        }
        let counts = &mut self.statistics.services.get_mut(number)?.limits;
        Limiting { limits, table: self.limits, now: self.now, counts }.connection(address)
    }

    /// A client's connection is there, whatever limits say, or is over.
    pub(super) fn count_for_limits(&self, service: u16, address: &Address, there: bool) {
        count_for_limits(self.snapshot, self.limits, (service, address), there);
    }
}

impl Splices {
    /// Has the limits that come with `snapshot` count the clients' connections that are there.
    pub(crate) fn count_for_new_limits(&self, snapshot: &Snapshot, before: &Snapshot, table: &LimitTable) {
        for (_, client_conn) in self.client_conns.iter().filter(|(_, client_conn)| client_conn.is_open) {
            let client = (client_conn.service, &client_conn.key.source.address);
            limit::hold_anew(&snapshot.services, &before.services, table, client);
        }
    }
}

/// A connection of a client of a service is there, whatever limits say, or is over.
pub(super) fn count_for_limits(
    snapshot: &Snapshot,
    table: &LimitTable,
    (service, address): (u16, &Address),
    there: bool,
) {
    let Some(service) = snapshot.services.get(usize::from(service)) else { return };
    match there {
        true => limit::hold(&service.limits, table, address),
        false => limit::release(&service.limits, table, address),
    }
}
