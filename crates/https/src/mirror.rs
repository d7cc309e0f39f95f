//! Copies of requests that a route sends to a second group. No client waits for them, or sees what becomes of them: the
//! responses are read and thrown away.

use crate::backend::BackendConn;
use crate::deadline::Deadline;
use crate::exchange::{Client, Exchange};
use crate::local::Local;
use crate::pump::{self, BodyEnd};
use crate::setup::Setup;
use hairpin_core::l7::body::{Chunks, Length};
use hairpin_core::l7::config::{Http, Mirror};
use hairpin_core::l7::head::{ParseStatus, Request};
use hairpin_core::l7::trace::TraceContext;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

/// Bytes of a copy's response that are read. The connection of a longer one is closed.
pub const RESPONSE_BYTES_MAX: usize = 1 << 20;
/// Interim responses of a copy's backend.
const INTERIM_MAX: u32 = 100;

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
    exchange.set_copy(trace);
    let head = request.bytes.to_vec();
    let task = tokio::task::spawn_local(async move {
        let local = &counted.local;
        let within = exchange.limits().map_or(Duration::ZERO, |limits| limits.response_timeout);
        if !matches!(tokio::time::timeout(within, send(local, &mut exchange, &head)).await, Ok(Some(()))) {
            local.counts.change(|statistics| statistics.mirrors_failed += 1);
        }
    });
    local.controls.set_task(key, task.abort_handle());
}

/// Sends a copy, and reads its response. `None`: it failed.
async fn send(local: &Local, exchange: &mut Exchange, head: &[u8]) -> Option<()> {
    let mut conn = exchange.acquire(local).await.ok()?;
    loop {
        let is_reused = conn.requests > 0;
        match answer(local, exchange, &mut conn, head).await {
            Ok(keep) => {
                exchange.keep(local, conn, keep);
                return Some(());
            }
            Err(has_begun) if has_begun || !exchange.may_go_again(&conn, is_reused, true) => return None,
            Err(_) => conn = exchange.connect_again(local).await.ok()?,
        }
    }
}

/// Whether the connection can be kept.
///
/// # Errors
/// There was no whole response; whether it had begun.
async fn answer(local: &Local, exchange: &Exchange, conn: &mut BackendConn, head: &[u8]) -> Result<bool, bool> {
    let sent = exchange.request_head(local, head, conn).ok_or(true)?;
    conn.requests += 1;
    let patience = exchange.limits().ok_or(true)?.response_timeout;
    let mut deadline = Deadline::default();
    pump::write(&mut conn.stream, &sent, &mut deadline, patience).await.map_err(|_| false)?;
    deadline.set(patience);
    let (mut response, mut interim) = (Vec::new(), 0);
    let answered = loop {
        match exchange.response_head(local, &response).map_err(|()| true)? {
            ParseStatus::Complete(answered) if answered.is_interim() && interim < INTERIM_MAX => {
                interim += 1;
                response.drain(..answered.head_bytes);
                continue;
            }
            ParseStatus::Complete(answered) => break answered,
            ParseStatus::Partial => {}
        }
        match pump::read(local, &mut conn.stream, &mut response, &mut deadline).await {
            Ok(0) | Err(_) => return Err(!response.is_empty()),
            Ok(_) => {}
        }
    };
    response.drain(..answered.head_bytes);
    let (mut end, mut read) = (BodyEnd::of(answered.body, Chunks::of_response()), 0);
    loop {
        let body = end.feed(&response).map_err(|_| true)?;
        if end.is_reached() {
            return Ok(answered.keep_alive && body == response.len());
        }
        read += response.len();
        response.clear();
        let more = pump::read(local, &mut conn.stream, &mut response, &mut deadline).await.map_err(|_| true)?;
        if more == 0 || read + more > RESPONSE_BYTES_MAX {
            // A body may end with its connection. Of a longer one no more is read.
            return if more > 0 || matches!(end, BodyEnd::Close) { Ok(false) } else { Err(true) };
        }
    }
}
