//! Access rules of services without requests, in software: for planes whose engine does not judge, and for what such an engine
//! cannot tell from a packet of a known connection.

use super::Statistics;
use crate::config::Snapshot;
use crate::engine::EngineCaps;
use crate::flow::Protocol;
use crate::wire::Transport;
use crate::wire::tcp::{ACK, SYN};

/// Whether an access rule of `service` refuses the client of a packet that may begin a connection. Counts the packet for the rules
/// that refuse or count it.
pub(crate) fn is_denied(
    snapshot: &Snapshot,
    caps: &EngineCaps,
    statistics: &mut Statistics,
    (service, at): (u16, &Transport),
) -> bool {
    let number = usize::from(service);
    let Some(list) = snapshot.services.get(number).and_then(|service| service.access.as_ref()) else { return false };
    let decision = list.decide(&at.key.source.address);
    let Some(counts) = statistics.services.get_mut(number).map(|service| &mut service.access) else { return false };
    let begins = at.key.protocol == Protocol::Udp || at.tcp_flags & (SYN | ACK) == SYN;
    // What an engine that judges lets pass has been counted there.
    let is_counted = begins && (!caps.judges_access || decision.denied.is_some());
    for rule in [decision.counted.filter(|_| is_counted), decision.denied].into_iter().flatten() {
        if let Some(count) = counts.get_mut(usize::from(rule)) {
            *count += 1;
        }
    }
    decision.denied.is_some()
}
