//! The balancer whose engine sets connections up: how that is made, and what must agree.

use super::{BalancerHost, BalancerHostOptions};
use crate::engine::{SetUpOptions, SetUpPart};
use hairpin_core::balance::{Balancer, Loads};
use hairpin_core::config::Snapshot;
use hairpin_core::engine::ScheduleKind;
use hairpin_core::flow::{Direction, FlowKey, Steering};
use hairpin_core::l4::connection::{Flags, State};
use std::collections::BTreeSet;
use std::sync::atomic::AtomicU8;

/// Cells in which the worker notes its connections. They stay: a few bytes a run.
pub(super) fn cells(options: &BalancerHostOptions) -> &'static [AtomicU8] {
    let count = options.set_up.map_or(0, |set_up| set_up.known_cells);
    Box::leak((0..count).map(|_| AtomicU8::new(0)).collect())
}

/// Set-up of the connections of the first service.
pub(super) fn part(
    options: SetUpOptions,
    snapshot: &Snapshot,
    cells: &'static [AtomicU8],
    steering: Steering,
) -> SetUpPart {
    let service = &snapshot.services[0];
    let kind = ScheduleKind::of(service.algorithm).expect("the engine can choose its backends");
    let schedule = Balancer::new(service, Loads::default(), 0, 1, 0).schedule();
    SetUpPart::new(options, snapshot, (kind, schedule), cells, steering)
}

impl BalancerHost {
    /// Index, counters, occupancy and configuration agree on connections and of the `held` rules of the engine; asked
    /// while nothing is under way.
    pub(super) fn check_counts(&mut self, held: usize) {
        let worker = &self.event_loop.worker;
        let (statistics, occupied) = (worker.statistics(), self.occupancy.rules());
        let mut flows = BTreeSet::new();
        let (mut there, mut open, mut wrong) = (0, 0, Vec::new());
        for connection in worker.connections().filter(|connection| connection.state != State::Pass) {
            there += 1;
            open += u64::from(connection.flags.has(Flags::COUNTED));
            let mut flow = |key: FlowKey| {
                if !connection.flags.has(Flags::PENDING_REMOVAL) && !flows.insert(key) {
                    wrong.push(format!("two connections of {key:?}"));
                }
            };
            connection.directions().iter().for_each(|&direction: &Direction| flow(connection.key(direction)));
            let named = self.snapshot.backend(connection.backend_number);
            if !self.splices && named.is_none_or(|(_, backend)| backend.endpoint != connection.backend) {
                wrong.push(format!("{connection:?} has no backend of the configuration"));
            }
        }
        let loads: u64 = self
            .snapshot
            .services
            .iter()
            .flat_map(|service| &service.backends)
            .map(|backend| u64::from(self.loads.now(backend.number.into())))
            .sum();
        let counted = [statistics.connections_now, statistics.open_now, statistics.offload.rules];
        let right = [there, open, held as u64];
        let rules = u64::from(occupied.iter().sum::<u32>());
        if !self.splices && (counted != right || loads != open || rules != right[2]) {
            wrong.push(format!(
                "connections, open ones and rules are {right:?}, counted as {counted:?}; loads {loads}, occupancy {rules}"
            ));
        }
        self.failures.append(&mut wrong);
    }
}
