//! The end of a process: what it removes, and what it still serves when another process has taken over.

use super::instance::{InstanceRecord, Lock};
use super::log::log;
use super::termination::Termination;
use super::{ProcessEnd, SupervisorMessage};
use anyhow::{Context, Result, bail};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// A process that has served.
pub(super) struct ServedProcess {
    pub(super) result: Result<ProcessEnd>,
    pub(super) record: InstanceRecord,
    pub(super) lock: Lock,
    pub(super) socket: PathBuf,
    /// What clients of terminated services still wait for, if another process serves new ones, and messages that may end
    /// it.
    pub(super) draining: Option<(Termination, Receiver<SupervisorMessage>)>,
}

impl ServedProcess {
    /// Removes what is to be removed. `fresh`: this process had made everything itself.
    pub(super) fn finish(self, fresh: bool) -> Result<()> {
        let ServedProcess { result, record, lock, socket, draining } = self;
        let flush = match &result {
            Ok(end) => end.flushes(),
            Err(_) => fresh,
        };
        let flushed = if flush { record.flush(&socket) } else { Ok(()) };
        if flush && flushed.is_ok() {
            lock.remove();
        } else {
            if !matches!(result, Ok(ProcessEnd::HandedOver { .. })) {
                // No process answers there any more.
                let _ = std::fs::remove_file(&socket);
                let _ = std::fs::remove_file(crate::api::socket(&socket));
            }
            // Another process has it, or may take it.
            drop(lock);
        }
        let result = match result {
            Ok(ProcessEnd::HandedOver { client, .. }) => {
                drop(client);
                if let Some((termination, messages)) = draining {
                    termination.drain(|step| is_ended(&messages, step));
                }
                return Ok(());
            }
            result => result?,
        };
        match result {
            ProcessEnd::Worker(number, what) => {
                bail!("worker {number} ended: {what}; what is left in the kernel goes on, and the next start adopts it")
            }
            ProcessEnd::Failed(what) => bail!("{what}"),
            ProcessEnd::HandedOver { .. } | ProcessEnd::Signal(_) | ProcessEnd::Asked { .. } => {
                flushed.context("not everything could be removed")
            }
        }
    }
}

/// Whether this process, which has handed over, is told to end within a step.
fn is_ended(messages: &Receiver<SupervisorMessage>, step: Duration) -> bool {
    match messages.recv_timeout(step) {
        Ok(SupervisorMessage::End(ProcessEnd::Signal(signal))) => {
            log(&format!("signal {signal}: connections that drain end"));
            true
        }
        Ok(SupervisorMessage::End(ProcessEnd::Asked { .. })) => true,
        // The process that serves now answers; who asks here is told so by the answer that does not come.
        Ok(_) | Err(RecvTimeoutError::Timeout) => false,
        Err(RecvTimeoutError::Disconnected) => {
            std::thread::sleep(step);
            false
        }
    }
}
