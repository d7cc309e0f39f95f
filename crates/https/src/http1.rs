//! A client that speaks HTTP/1.1: request after request on one connection. `forward` has an exchange with a backend.

mod forward;

use crate::client_stream::ClientStream;
use crate::deadline::Deadline;
use crate::exchange::{self, Client, Exchange, Judged};
use crate::local::Local;
use crate::pages::Place;
use crate::pump;
use crate::recording;
use hairpin_core::l7::config::HttpLimits;
use hairpin_core::l7::decision;
use hairpin_core::l7::head::{self, ParseStatus};
use hairpin_core::l7::splice::Refused;
use hairpin_core::l7::splice::limits::CLOSING_TIMEOUT;
use hairpin_core::record;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};

/// Bytes of a client that are read and thrown away while it reads its last response.
pub const LINGER_BYTES_MAX: usize = 1 << 20;

/// The next step after an exchange.
enum After {
    /// The next request.
    Next,
    /// Its connection is closed, so that the client reads all that it was sent.
    Close,
    /// Its connection is broken off, so that the client does not take a part of the response for the whole.
    Abort,
}

/// The outcome of the head of a request.
enum Found {
    Forward(Box<Exchange>),
    Answer {
        status: u16,
        response: Vec<u8>,
        head_bytes: usize,
        close: bool,
    },
    Refuse {
        status: u16,
        why: Refused,
        response: Vec<u8>,
    },
    /// The request is not answered.
    Drop,
    /// The client has closed, or said nothing for too long.
    Gone,
}

/// Serves a client until one of both closes. `input` has what was read already.
pub(crate) async fn serve<S: ClientStream>(local: &Rc<Local>, client: &Client, io: &mut S, mut input: Vec<u8>) {
    let mut deadline = Deadline::default();
    let mut requests = 0;
    loop {
        let setup = local.setup();
        let Some(limits) = setup.http(client.service).map(|http| http.limits) else {
            return close(local, io, &mut deadline, CLOSING_TIMEOUT).await;
        };
        drop(setup);
        let after = match find(local, client, io, &mut input, requests, &limits, &mut deadline).await {
            Found::Gone => After::Close,
            Found::Drop => After::Abort,
            Found::Refuse { status, why, response } => {
                local.counts.refused(why);
                refuse(local, client.service, io, (status, &response), &mut deadline).await
            }
            Found::Answer { status, response, head_bytes, close } => {
                client.control.count_request();
                local.counts.request(client.service);
                local.counts.reply(client.service, status);
                input.drain(..head_bytes);
                match pump::write_and(io, &response, (&mut deadline, CLOSING_TIMEOUT), !close).await {
                    Ok(()) if close => After::Close,
                    Ok(()) => After::Next,
                    Err(_) => After::Abort,
                }
            }
            Found::Forward(exchange) => {
                client.control.count_request();
                local.counts.request(client.service);
                // Boxed, so that a connection between two requests is small.
                let limits = exchange.limits().unwrap_or(limits);
                let forwarding = forward::Forwarding { local, io, input: &mut input, deadline: &mut deadline, limits };
                Box::pin(forwarding.forward(*exchange)).await
            }
        };
        requests += 1;
        if input.is_empty() {
            input = Vec::new();
        }
        match after {
            After::Next => {}
            After::Close => return close(local, io, &mut deadline, limits.send_timeout).await,
            After::Abort => return io.reset(),
        }
    }
}

/// Reads a head, and judges it.
async fn find<S: AsyncRead + Unpin>(
    local: &Rc<Local>,
    client: &Client,
    io: &mut S,
    input: &mut Vec<u8>,
    requests: u32,
    limits: &HttpLimits,
    deadline: &mut Deadline,
) -> Found {
    deadline.set(if input.is_empty() { limits.idle_timeout } else { limits.head_timeout });
    let mut is_worth_reading = true;
    loop {
        if is_worth_reading
            && !input.is_empty()
            && let Some(found) = examine(local, client, input, requests, limits)
        {
            return found;
        }
        let (was_empty, had) = (input.is_empty(), input.len());
        // A client that has just connected is about to ask: its connection ends with its first request.
        let control = (was_empty && requests > 0).then_some(&*client.control);
        match pump::read_unless(local, io, input, deadline, control).await {
            Ok(0) => return Found::Gone,
            Ok(_) => {
                if was_empty {
                    deadline.set(limits.head_timeout);
                }
                // A head ends with a line, or is too long. One that comes byte by byte is not read as often.
                let is_full = input.len() >= usize::from(limits.head_bytes_max);
                is_worth_reading = is_full || input[had..].contains(&b'\n');
            }
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !was_empty => {
                return unread(local, client, input, (408, Refused::Slow));
            }
            Err(_) => return Found::Gone,
        }
    }
}

/// The outcome of the bytes of a client. `None`: more are needed.
fn examine(local: &Rc<Local>, client: &Client, input: &[u8], requests: u32, limits: &HttpLimits) -> Option<Found> {
    let read = head::request(input, &limits.head_bounds());
    let request = match &read {
        Ok(ParseStatus::Partial) => return None,
        Ok(ParseStatus::Complete(request)) => request,
        Err(bad) => return Some(unread(local, client, input, decision::of_bad_head(*bad))),
    };
    Some(match exchange::judge(local, client, request, (requests, false)) {
        Judged::Forward(exchange) => Found::Forward(exchange),
        Judged::Answer { status, response, close } => {
            Found::Answer { status, response, head_bytes: request.bytes.len(), close }
        }
        Judged::Refuse { status, why, response } => Found::Refuse { status, why, response },
        Judged::Drop => Found::Drop,
    })
}

/// The refusal of a request whose head could not be read, which begins with `input`.
fn unread(local: &Local, client: &Client, input: &[u8], (status, why): (u16, Refused)) -> Found {
    let setup = local.setup();
    let place = Place { setup: &setup, service: client.service, route: record::NONE };
    let response = exchange::refusal(local, place, status, input.starts_with(b"HEAD "), None);
    recording::refusal(local, client, None, record::NONE, (status, why, response.len()));
    Found::Refuse { status, why, response }
}

/// Answers with a refusal.
async fn refuse<S: AsyncWrite + Unpin>(
    local: &Local,
    service: u16,
    io: &mut S,
    (status, response): (u16, &[u8]),
    deadline: &mut Deadline,
) -> After {
    local.counts.reply(service, status);
    // The response leaves with the end of the stream.
    match pump::write_and(io, response, (deadline, CLOSING_TIMEOUT), false).await {
        Ok(()) => After::Close,
        Err(_) => After::Abort,
    }
}

/// Closes a client's connection. What it still sends is read for a while: the kernel would answer it with RST, which can
/// take the last response from a client that has not read it.
pub(crate) async fn close<S: AsyncRead + AsyncWrite + Unpin>(
    local: &Local,
    io: &mut S,
    deadline: &mut Deadline,
    send_timeout: Duration,
) {
    // The last of a response may still have to leave.
    deadline.set(send_timeout.max(CLOSING_TIMEOUT));
    let shut = std::future::poll_fn(|cx| match std::pin::Pin::new(&mut *io).poll_shutdown(cx) {
        Poll::Pending => deadline.poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into())),
        ready => ready,
    });
    if shut.await.is_err() {
        return;
    }
    deadline.set(CLOSING_TIMEOUT);
    let (mut thrown_away, mut input) = (0, Vec::new());
    while thrown_away < LINGER_BYTES_MAX {
        match pump::read(local, io, &mut input, deadline).await {
            Ok(0) | Err(_) => return,
            Ok(count) => thrown_away += count,
        }
        input.clear();
    }
}

/// How long a tunnel may be silent.
pub const TUNNEL_SILENCE: Duration = Duration::from_secs(3600);
