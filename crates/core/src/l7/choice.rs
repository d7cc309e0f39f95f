//! The backend that a request goes to: the one that a cookie names, or the balancer's choice.

use crate::balance::{Balancer, Demand, bytes_hash};
use crate::config::{Algorithm, Backend, Service, Snapshot};
use crate::flow::Endpoint;
use crate::keys::{Purpose, Secret};
use crate::l7::config::Group;
use crate::l7::edit;
use crate::l7::head::Request;
use crate::l7::splice::Refused;

/// The backend that a client's cookie names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Its index in its group.
    pub index: u16,
    /// A secret other than the first has made the cookie: the client gets a new one before that secret goes.
    pub is_stale: bool,
}

/// The backend of `group` that a sticky cookie of this value names, if it takes requests. `own` is the secret of a balancer
/// that shares none with others.
pub fn stuck_to(snapshot: &Snapshot, balancer: &Balancer, group: Group, value: u64, own: Secret) -> Option<Stuck> {
    let service = snapshot.services.get(usize::from(group))?;
    let named = |secret: &Secret| {
        let is_named = |index: &u16| {
            let backend = service.backends.get(usize::from(*index));
            backend.is_some_and(|backend| secret.of(Purpose::Sticky, &[backend.endpoint]) == value)
        };
        balancer.open().iter().copied().find(is_named)
    };
    let secrets = match snapshot.keys.all() {
        [] => &[own],
        keys => keys,
    };
    let mut found = secrets.iter().enumerate().filter_map(|(age, secret)| Some((age, named(secret)?)));
    found.next().map(|(age, index)| Stuck { index, is_stale: age > 0 })
}

/// The value of the cookie that names `backend`.
pub fn sticky_value(snapshot: &Snapshot, backend: Endpoint, own: Secret) -> u64 {
    snapshot.keys.first().unwrap_or(own).of(Purpose::Sticky, &[backend])
}

/// The hash of the part of a request that the algorithm of its group goes by, never 0; `None`: it goes by no such part, or the
/// request has none.
pub fn hash(group: &Service, request: &Request<'_>) -> Option<u64> {
    let name = &*group.hash_name;
    let part = match group.algorithm {
        // The target may have one, which is the one that counts.
        Algorithm::HeaderHash if name == b"host" => request.host,
        Algorithm::HeaderHash => request.fields.find(name).next(),
        Algorithm::CookieHash => edit::cookies(request, name).next(),
        Algorithm::PathHash => Some(request.target.path),
        _ => None,
    };
    part.filter(|part| !part.is_empty()).map(|part| bytes_hash(part).max(1))
}

/// A backend of `group` for a request: the one that a cookie names, else the balancer's choice. One that has as many requests
/// as it may gets no more of either. `failed` is the number of the backend that has been tried in vain.
///
/// # Errors
/// [`Refused::NoBackend`]: none takes requests; [`Refused::BackendsFull`]: all that do have as many as they may.
pub fn choose<'a>(
    snapshot: &'a Snapshot,
    balancer: &mut Balancer,
    group: Group,
    demand: &Demand<'_>,
    stuck: Option<Stuck>,
    failed: Option<u16>,
) -> Result<&'a Backend, Refused> {
    let stuck = stuck.map(|stuck| stuck.index).filter(|&index| balancer.has_room(index));
    let chosen = stuck.or_else(|| balancer.choose_for(demand));
    let of = |index: u16| snapshot.services.get(usize::from(group))?.backends.get(usize::from(index));
    let none = if balancer.is_full() { Refused::BackendsFull } else { Refused::NoBackend };
    let backend = chosen.and_then(of).ok_or(none)?;
    if failed != Some(backend.number) {
        return Ok(backend);
    }
    // A balancer that goes by the client's address, or by a part of the request, would choose the one that has just failed,
    // again and again.
    let open = balancer.open();
    let after = open.iter().position(|&index| Some(index) == chosen).map_or(0, |at| at + 1);
    let others = open.iter().cycle().skip(after).take(open.len()).filter(|&&index| balancer.has_room(index));
    Ok(others.copied().find_map(of).unwrap_or(backend))
}
