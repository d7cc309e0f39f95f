//! Connections of services that end here: the cores' runtimes are asked, some connections at a time.

use super::{ConnectionSearch, Inspector, SEARCH_MAX, TERMINATED, cursor};
use crate::control::{ConnectionView, Page, SplicedView};
use hairpin_core::config::Snapshot;
use hairpin_https::{LISTED_MAX, ListedConnection};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Instant;

/// States of these connections.
pub(super) const STATES: [&str; 3] = ["handshake", "reading", "forwarding"];
/// Why the engine does not forward them.
const ENDS_HERE: &str = "TLS or HTTP/2 ends here";

/// The state of a connection.
pub(super) fn state(connection: &ListedConnection) -> &'static str {
    match (connection.protocol, connection.backend) {
        ("tls", _) => STATES[0],
        (_, None) => STATES[1],
        (_, Some(_)) => STATES[2],
    }
}

impl Inspector {
    /// Adds connections to a page, from those of a core from a key on.
    pub(super) fn terminated(
        &self,
        search: &ConnectionSearch<'_>,
        (core, key): (usize, usize),
        page: &mut Page,
    ) -> Result<(), String> {
        let next = self.each_terminated((core, key as u64), search.begun, |core, connection| {
            if !search.filter.fits_terminated(connection) {
                return true;
            }
            if search.limit > 0 && page.connections.len() == search.limit {
                return false;
            }
            page.matched += 1;
            if search.limit > 0 {
                page.connections.push(view(search.snapshot, core, connection));
            }
            true
        })?;
        page.next = next.map(|(core, key)| TERMINATED + cursor(core, key as usize));
        Ok(())
    }

    /// Counts connections, none of which is offloaded; whether it came to the end within [`SEARCH_MAX`].
    pub(super) fn count_terminated(&self, reasons: &mut BTreeMap<&'static str, u64>) -> Result<bool, String> {
        let next = self.each_terminated((0, 0), Instant::now(), |_, _| {
            *reasons.entry(ENDS_HERE).or_default() += 1;
            true
        })?;
        Ok(next.is_none())
    }

    /// The addresses that clients of HTTPS services are connected to; `None`: not all are known now.
    pub(crate) fn terminated_vips(&self) -> Option<BTreeSet<IpAddr>> {
        let mut vips = BTreeSet::new();
        let left = self.each_terminated((0, 0), Instant::now(), |_, connection| {
            vips.insert(connection.vip.address.into());
            true
        });
        matches!(left, Ok(None)).then_some(vips)
    }

    /// Calls `each` with the core and every connection from a key on, until it says `false`, or it has lasted too long since
    /// `begun`. Where to go on; `None`: there are no more.
    fn each_terminated(
        &self,
        (first, start): (usize, u64),
        begun: Instant,
        mut each: impl FnMut(usize, &ListedConnection) -> bool,
    ) -> Result<Option<(usize, u64)>, String> {
        let Some(lister) = self.lister() else { return Ok(None) };
        let mut key = start;
        for core in first..lister.cores() {
            loop {
                if begun.elapsed() > SEARCH_MAX {
                    return Ok(Some((core, key)));
                }
                let silent = || format!("core {core} does not say what connections of HTTPS services it has");
                let listed = lister.list(core, key).ok_or_else(silent)?;
                for connection in &listed {
                    if !each(core, connection) {
                        return Ok(Some((core, connection.key)));
                    }
                    key = connection.key + 1;
                }
                if listed.len() < LISTED_MAX {
                    break;
                }
            }
            key = 0;
        }
        Ok(None)
    }
}

fn view(snapshot: &Snapshot, core: usize, connection: &ListedConnection) -> ConnectionView {
    let service = snapshot.services.get(usize::from(connection.service));
    let backend = connection.backend.and_then(|number| snapshot.backend(number));
    ConnectionView {
        service: service.map(|service| service.name.to_string()).unwrap_or_default(),
        protocol: "tcp".to_string(),
        client: connection.client.to_string(),
        vip: connection.vip.to_string(),
        backend: backend.map(|(_, backend)| backend.name.to_string()).unwrap_or_default(),
        backend_end: backend.map(|(_, backend)| backend.endpoint.to_string()).unwrap_or_default(),
        state: state(connection).to_string(),
        worker: core as u16,
        offload: ENDS_HERE.to_string(),
        age_s: connection.age.as_secs_f64(),
        idle_s: connection.idle.as_secs_f64(),
        spliced: Some(SplicedView {
            end: "client".to_string(),
            speaks: connection.protocol.to_string(),
            requests: connection.requests,
            exchange: None,
        }),
        ..ConnectionView::default()
    }
}
