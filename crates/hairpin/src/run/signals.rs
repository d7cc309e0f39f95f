//! Signals to the process, and what the supervisor hears of them.

use super::{ProcessEnd, SupervisorMessage};
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use std::sync::mpsc::Sender;

/// Takes the signals that the process acts on from now on.
pub(super) fn listen() -> Result<Signals> {
    Signals::new([SIGINT, SIGTERM, SIGHUP, SIGUSR1]).context("cannot listen for signals")
}

/// Starts the thread that passes signals on; those that came since `signals` was made are not lost.
pub(super) fn pass_on(mut signals: Signals, messages: Sender<SupervisorMessage>) -> Result<()> {
    let body = move || {
        for signal in signals.forever() {
            let message = match signal {
                SIGHUP => SupervisorMessage::Reload(None),
                SIGUSR1 => SupervisorMessage::ReopenAccessLog,
                _ => SupervisorMessage::End(ProcessEnd::Signal(signal)),
            };
            if messages.send(message).is_err() {
                return;
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(body).context("cannot start a thread")?;
    Ok(())
}
