//! Asks the instance once a second.

use crate::control::{ControlAnswer, ControlClient, ControlRequest, OffloadView};
use crate::status::Status;
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How often.
const INTERVAL: Duration = Duration::from_secs(1);
/// News that wait to be drawn.
const CHANNEL: usize = 4;

/// The answers of one round of queries.
#[derive(Debug)]
pub(super) enum News {
    /// The instance's state; what the engine holds, unless it does not tell.
    Figures(Box<Status>, Option<Box<OffloadView>>),
    /// It does not answer, for this reason.
    Away(String),
}

/// Starts asking; ends when the receiver has been dropped.
pub(super) fn begin(socket: PathBuf) -> Result<Receiver<News>> {
    let (sender, receiver) = sync_channel(CHANNEL);
    std::thread::Builder::new().name("top".into()).spawn(move || poll(&socket, &sender))?;
    Ok(receiver)
}

fn poll(socket: &Path, sender: &SyncSender<News>) {
    let mut client = None;
    loop {
        let next = Instant::now() + INTERVAL;
        let news = ask(socket, &mut client).unwrap_or_else(|error| {
            client = None;
            News::Away(format!("{error:#}"))
        });
        if sender.send(news).is_err() {
            return;
        }
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}

/// One round; connects if need be.
fn ask(socket: &Path, client: &mut Option<ControlClient>) -> Result<News> {
    if client.is_none() {
        *client = ControlClient::connect(socket)?;
    }
    let Some(client) = client else { return Ok(News::Away("the instance does not answer".into())) };
    let status = client.status()?;
    let offload = match client.request(&ControlRequest::Offload) {
        Ok(ControlAnswer::Offload(view)) => Some(view),
        // The rest is worth showing. If it is the connection that has failed, the next round says so.
        Ok(_) | Err(_) => None,
    };
    Ok(News::Figures(Box::new(status), offload))
}
