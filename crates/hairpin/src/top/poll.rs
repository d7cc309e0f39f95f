//! Asks the instance at an interval.

use crate::control::{ControlAnswer, ControlClient, ControlRequest, OffloadView, Page, Query};
use crate::status::Status;
use anyhow::Result;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

/// News that wait to be drawn.
const CHANNEL: usize = 4;
/// Connections in software whose reasons are asked for.
const REASONS_OF: u32 = 500;
/// Parts of a count that are asked for: one tells of a great many connections.
const PARTS_MAX: usize = 16;

/// The answers of one round of queries.
#[derive(Debug)]
pub(super) enum News {
    /// The instance's state; what the engine holds, unless it does not tell.
    Figures(Box<Status>, Option<Box<OffloadView>>),
    /// Who forwards the connections of the service that was asked for, unless it does not tell.
    Carriers(Option<Carriers>),
    /// It does not answer, for this reason.
    Away(String),
}

/// Who forwards the connections of a service and its groups. Of HTTP and TLS services, connections to backends count as well;
/// what is over and kept for a while counts, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Carriers {
    /// The service's name.
    pub(super) service: String,
    /// Connections that the engine forwards.
    pub(super) engine: u64,
    /// Connections that workers forward.
    pub(super) software: u64,
    /// Whether there may be more of both.
    pub(super) is_part: bool,
    /// Why the first of those in software are there, and how many for each reason.
    pub(super) reasons: BTreeMap<String, u64>,
}

/// The thread that asks.
#[derive(Debug)]
pub(super) struct Poll {
    /// What it has heard.
    pub(super) news: Receiver<News>,
    /// Takes the name of the service whose connections it is to ask for.
    wanted: Sender<Option<String>>,
}

impl Poll {
    /// Starts asking; ends when this is dropped.
    pub(super) fn begin(socket: PathBuf, interval: Duration) -> Result<Poll> {
        let (sender, news) = sync_channel(CHANNEL);
        let (wanted, wants) = channel();
        std::thread::Builder::new().name("top".into()).spawn(move || poll(&socket, interval, &sender, &wants))?;
        Ok(Poll { news, wanted })
    }

    /// From now on it asks for the connections of this service, too.
    pub(super) fn want(&self, service: Option<String>) {
        // The thread ends only after this.
        let _ = self.wanted.send(service);
    }
}

/// Asks until nothing is wanted any more.
fn poll(socket: &Path, interval: Duration, sender: &SyncSender<News>, wants: &Receiver<Option<String>>) -> Option<()> {
    let mut client = None;
    let mut service: Option<String> = None;
    loop {
        let next = Instant::now() + interval;
        let news = figures(socket, &mut client).unwrap_or_else(|error| {
            client = None;
            News::Away(format!("{error:#}"))
        });
        sender.send(news).ok()?;
        loop {
            if let (Some(connected), Some(service)) = (&mut client, &service) {
                let carriers = carriers(connected, service).unwrap_or_else(|_| {
                    // What the next round meets is told.
                    client = None;
                    None
                });
                sender.send(News::Carriers(carriers)).ok()?;
            }
            match wants.recv_timeout(next.saturating_duration_since(Instant::now())) {
                // Where it takes long to answer, several may have come.
                Ok(wanted) => service = wants.try_iter().last().unwrap_or(wanted),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }
}

/// One round; connects if need be.
fn figures(socket: &Path, client: &mut Option<ControlClient>) -> Result<News> {
    if client.is_none() {
        *client = ControlClient::connect(socket)?;
    }
    let Some(client) = client else { return Ok(News::Away("the instance does not answer".into())) };
    let (status, offload) = ask(client)?;
    Ok(News::Figures(status, offload))
}

/// The status, and the engine's contents.
pub(super) fn ask(client: &mut ControlClient) -> Result<(Box<Status>, Option<Box<OffloadView>>)> {
    let status = client.status()?;
    let offload = match client.ask(&ControlRequest::Offload)? {
        ControlAnswer::Offload(view) => Some(view),
        // The rest is worth showing.
        _ => None,
    };
    Ok((Box::new(status), offload))
}

/// `None`: the instance does not tell.
fn carriers(client: &mut ControlClient, service: &str) -> Result<Option<Carriers>> {
    let mut carriers = Carriers { service: service.to_string(), ..Carriers::default() };
    for offloaded in [true, false] {
        let query = Query { service: Some(service.to_string()), offloaded: Some(offloaded), ..Query::default() };
        let Some((count, is_part)) = count(client, &query)? else { return Ok(None) };
        carriers.is_part |= is_part;
        *(if offloaded { &mut carriers.engine } else { &mut carriers.software }) = count;
        if !offloaded {
            let Some(page) = page(client, Query { limit: REASONS_OF, ..query })? else { return Ok(None) };
            for connection in page.connections.into_iter().filter(|connection| !connection.offload.is_empty()) {
                *carriers.reasons.entry(connection.offload).or_default() += 1;
            }
        }
    }
    Ok(Some(carriers))
}

/// How many connections fit, and whether there may be more; `None`: the instance does not tell.
fn count(client: &mut ControlClient, query: &Query) -> Result<Option<(u64, bool)>> {
    let (mut sum, mut cursor) = (0, None);
    for _ in 0..PARTS_MAX {
        let Some(page) = page(client, Query { cursor, ..query.clone() })? else { return Ok(None) };
        sum += page.matched;
        match page.next {
            Some(next) if Some(next) != cursor => cursor = Some(next),
            _ => return Ok(Some((sum, false))),
        }
    }
    Ok(Some((sum, true)))
}

/// `None`: the instance does not tell.
fn page(client: &mut ControlClient, query: Query) -> Result<Option<Page>> {
    Ok(match client.ask(&ControlRequest::Connections(query))? {
        ControlAnswer::Connections(page) => Some(page),
        _ => None,
    })
}
