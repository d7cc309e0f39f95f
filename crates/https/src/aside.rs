//! Requests of Hairpin's own beside a client's: a copy of it for another group, the question whether it may go on.

use crate::backend::BackendConn;
use crate::deadline::Deadline;
use crate::exchange::Exchange;
use crate::local::Local;
use crate::pump::{self, BodyEnd};
use crate::unchunk::Unchunker;
use hairpin_core::l7::body::Chunks;
use hairpin_core::l7::head::ParseStatus;
use std::mem::take;

/// Interim responses before the response.
const INTERIM_MAX: u32 = 100;

/// How much of a response's body is read.
#[derive(Clone, Copy)]
pub(crate) struct Reading {
    /// Bytes at most. The connection of a longer one is closed.
    pub(crate) bytes_max: usize,
    /// Whether what is read is kept.
    pub(crate) keeps: bool,
}

/// A response.
#[derive(Default)]
pub(crate) struct Heard {
    pub(crate) status: u16,
    /// Its head, as the backend sent it.
    pub(crate) head: Vec<u8>,
    /// Its body, if that is kept.
    pub(crate) body: Vec<u8>,
    /// All of it was read.
    pub(crate) is_whole: bool,
}

/// Sends the request whose head is `head`, which has no body, and reads the response. `None`: there was none.
pub(crate) async fn ask(local: &Local, exchange: &mut Exchange, head: &[u8], reading: Reading) -> Option<Heard> {
    let mut conn = exchange.acquire(local).await.ok()?;
    loop {
        let is_reused = conn.requests > 0;
        match answer(local, exchange, &mut conn, head, reading).await {
            Ok((heard, keep)) => {
                exchange.keep(local, conn, keep);
                return Some(heard);
            }
            Err(has_begun) if has_begun || !exchange.may_go_again(&conn, is_reused, true) => return None,
            Err(_) => conn = exchange.connect_again(local).await.ok()?,
        }
    }
}

/// The response, and whether its connection can be kept.
///
/// # Errors
/// There was no whole response; whether it had begun.
async fn answer(
    local: &Local,
    exchange: &Exchange,
    conn: &mut BackendConn,
    head: &[u8],
    reading: Reading,
) -> Result<(Heard, bool), bool> {
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
    let mut behind = response.split_off(answered.head_bytes);
    let mut heard = Heard { status: answered.status, head: response, body: Vec::new(), is_whole: true };
    let (mut end, mut read) = (BodyEnd::of(answered.body, Chunks::of_response()), 0);
    let mut body = Vec::new();
    loop {
        let of_body = end.feed(&behind).map_err(|_| true)?;
        read += behind.len();
        if reading.keeps {
            body.extend_from_slice(&behind[..of_body]);
        }
        if end.is_reached() {
            let keep = answered.keep_alive && of_body == behind.len();
            heard.body = unchunked(end, take(&mut body)).ok_or(true)?;
            return Ok((heard, keep));
        }
        behind.clear();
        let more = pump::read(local, &mut conn.stream, &mut behind, &mut deadline).await.map_err(|_| true)?;
        // A body may end with its connection. Of a longer one no more is read.
        if more == 0 || read + more > reading.bytes_max {
            heard.is_whole = more == 0;
            heard.body = body;
            return if more > 0 || matches!(end, BodyEnd::Close) { Ok((heard, false)) } else { Err(true) };
        }
    }
}

/// A body without the lines between its chunks, if it came in chunks. `None`: they are damaged.
fn unchunked(end: BodyEnd, body: Vec<u8>) -> Option<Vec<u8>> {
    if !matches!(end, BodyEnd::Chunked(_)) {
        return Some(body);
    }
    let mut plain = Vec::new();
    Unchunker::default().feed(&body, &mut plain).ok()?;
    Some(plain)
}
