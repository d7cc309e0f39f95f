//! Rules that an earlier process has left, and the connections that workers have taken over.

use super::begin::for_each;
use super::plane::Plane;
use super::set_up;
use anyhow::{Context, Result};
use hairpin_core::config::Snapshot;
use hairpin_core::engine::{Report, SetUp};
use hairpin_core::flow::{Direction, FlowKey, Steering};
use hairpin_linux::shared::SharedTable;
use std::collections::HashSet;
use std::sync::Arc;

/// What the engine has done that no worker has heard of.
pub(crate) struct Heard {
    /// The connections that it has set up, by the worker whose they are.
    pub(crate) set_up: Vec<Vec<SetUp>>,
    /// What it has reported to workers of the earlier process, of which this one may have another number.
    pub(crate) reports: Arc<[Report]>,
}

/// Brings the engine in line with the connections, once all workers have taken theirs and none has begun: rules that no
/// connection has are removed, the others know their worker. Pairs that the engine has made, and no worker has heard of, are
/// connections. How many rules were removed, and what workers are to hear of.
pub(crate) fn reconcile(
    plane: &dyn Plane,
    (table, snapshot): (&mut SharedTable, &Snapshot),
    splice_rules: &[(FlowKey, u16)],
    held: &HashSet<FlowKey>,
    steering: &Steering,
    resteered: bool,
) -> Result<(u64, Heard)> {
    let mut set_up: Vec<Vec<SetUp>> = vec![Vec::new(); steering.workers.into()];
    if held.is_empty() {
        return Ok((0, Heard { set_up, reports: plane.unread_reports()?.into() }));
    }
    let (mut owners, mut owned) = (Vec::new(), HashSet::with_capacity(held.len()));
    for &(key, worker) in splice_rules {
        owned.insert(key);
        if resteered {
            owners.push((key, worker as u8));
        }
    }
    for_each(table, |connection| {
        for direction in [Direction::FromClient, Direction::FromBackend] {
            let key = connection.key(direction);
            if connection.pair.holds(direction) && held.contains(&key) {
                owned.insert(key);
                if resteered {
                    owners.push((key, hairpin_core::worker::home(connection, steering) as u8));
                }
            }
        }
    })?;
    let orphans: Vec<FlowKey> = held.iter().filter(|key| !owned.contains(key)).copied().collect();
    let (pairs, orphans) = if plane.has_set_up() && !orphans.is_empty() {
        // The engine goes on setting connections up: a pair that was being made may have been met in half.
        let mut again = plane.installed_rules()?;
        again.retain(|rule| !owned.contains(&rule.key));
        set_up::orphans(orphans, &again, snapshot)
    } else {
        (Vec::new(), orphans)
    };
    for pair in pairs {
        let worker = steering.worker(&pair.key.source);
        let backend = snapshot.backend(pair.backend).map(|(_, backend)| backend.endpoint);
        if resteered && let Some(end) = backend {
            // Of direct server return there is none, and nothing to tell.
            let back = FlowKey { source: end, destination: pair.key.source, protocol: pair.key.protocol };
            owners.extend([(pair.key, worker as u8), (back, worker as u8)]);
        }
        set_up[usize::from(worker)].push(pair);
    }
    let removed = plane.remove_rules(&orphans).context("cannot remove rules that no connection has")?;
    plane.assign_rules(&owners).context("cannot tell rules their workers")?;
    // From here on no rule reports to a worker of the earlier process.
    Ok((removed, Heard { set_up, reports: plane.unread_reports()?.into() }))
}
