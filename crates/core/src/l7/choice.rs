//! The backend that a request goes to: the one that a cookie names, or the balancer's choice.

use crate::balance::Balancer;
use crate::config::{Backend, Snapshot};
use crate::flow::{Endpoint, FlowKey};
use crate::keys::{Purpose, Secret};
use crate::l7::config::Group;

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

/// A backend of `group` for a request of the client-side flow `flow`: the one that a cookie names, else the balancer's choice.
/// `failed` is the number of the backend that has been tried in vain. `None`: no backend takes requests.
pub fn choose<'a>(
    snapshot: &'a Snapshot,
    balancer: &mut Balancer,
    group: Group,
    flow: &FlowKey,
    stuck: Option<Stuck>,
    failed: Option<u16>,
) -> Option<&'a Backend> {
    let chosen = match stuck {
        Some(stuck) => Some(stuck.index),
        None => balancer.choose(flow),
    };
    let of = |index: u16| snapshot.services.get(usize::from(group))?.backends.get(usize::from(index));
    let backend = chosen.and_then(of)?;
    if failed != Some(backend.number) {
        return Some(backend);
    }
    // A balancer that goes by the client's address would choose the one that has just failed, again and again.
    let open = balancer.open();
    let after = open.iter().position(|&index| Some(index) == chosen).map_or(0, |at| at + 1);
    open.iter().cycle().skip(after).take(open.len()).find_map(|&index| of(index)).or(Some(backend))
}
