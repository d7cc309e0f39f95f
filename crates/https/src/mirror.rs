//! Copies of requests that a route sends to a second group. No client waits for them, or sees what becomes of them: the
//! responses are read and thrown away.

use crate::aside::{self, Reading};
use crate::exchange::{Client, Exchange};
use crate::local::Local;
use crate::setup::Setup;
use hairpin_core::l7::body::Length;
use hairpin_core::l7::config::{Http, Mirror};
use hairpin_core::l7::head::Request;
use hairpin_core::l7::trace::TraceContext;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;
use tokio::time::timeout;

/// Bytes of a copy's response that are read. The connection of a longer one is closed.
pub const RESPONSE_BYTES_MAX: usize = 1 << 20;

/// The copies of one core.
#[derive(Default)]
pub(crate) struct Mirrors {
    /// Copies that are on their way.
    now: Cell<u16>,
    /// By number of the group: the part of a copy, in percent, that is owed to it.
    owed: RefCell<HashMap<u16, u8>>,
}

impl Mirrors {
    /// Whether the next request is one of those that are copied.
    fn takes(&self, mirror: &Mirror) -> bool {
        let mut all = self.owed.borrow_mut();
        let owed = all.entry(mirror.group).or_default();
        *owed += mirror.percent;
        let takes = *owed >= 100;
        *owed -= if takes { 100 } else { 0 };
        takes
    }
}

/// One copy on its way, as long as this exists.
struct Counted {
    local: Rc<Local>,
    key: u64,
}

impl Drop for Counted {
    fn drop(&mut self) {
        let now = &self.local.mirrors.now;
        now.set(now.get() - 1);
        self.local.controls.remove(self.key);
    }
}

/// Sends a copy of a request that takes the route of number `route`, if that has copies made and it is this one's turn.
pub(crate) fn copy(
    local: &Rc<Local>,
    client: &Client,
    (setup, http): (&Rc<Setup>, &Http),
    request: &Request<'_>,
    (route, trace): (u16, Option<TraceContext>),
) {
    let Some(mirror) = http.routes.get(usize::from(route)).and_then(|route| route.terms.mirror) else { return };
    if request.body != Length::None || request.upgrade || !local.mirrors.takes(&mirror) {
        return;
    }
    if local.mirrors.now.get() >= mirror.concurrent {
        return local.counts.change(|statistics| statistics.mirrors_dropped += 1);
    }
    local.counts.change(|statistics| statistics.mirrored += 1);
    local.mirrors.now.set(local.mirrors.now.get() + 1);
    let (key, control) = local.controls.add_copy(client.service);
    let counted = Counted { local: Rc::clone(local), key };
    let client = Client { control, ..client.clone() };
    let mut exchange = Exchange::new(setup, client, http, request, (route, mirror.group), false);
    exchange.set_aside(trace, None);
    let head = request.bytes.to_vec();
    let task = tokio::task::spawn_local(async move {
        let local = &counted.local;
        let within = exchange.limits().map_or(Duration::ZERO, |limits| limits.response_timeout);
        let reading = Reading { bytes_max: RESPONSE_BYTES_MAX, keeps: false };
        if !matches!(timeout(within, aside::ask(local, &mut exchange, &head, reading)).await, Ok(Some(_))) {
            local.counts.change(|statistics| statistics.mirrors_failed += 1);
        }
    });
    local.controls.set_task(key, task.abort_handle());
}
