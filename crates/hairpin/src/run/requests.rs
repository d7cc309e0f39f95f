//! What other threads request of the supervisor: for clients of the control socket, and for the metrics server.

use super::inspect::Inspector;
use super::{CHANGE_PATIENCE, ProcessEnd, ReplySender, STATUS_PATIENCE, SupervisorMessage, log};
use crate::config::Settings;
use crate::control::{self, ControlAnswer, ControlReply, ControlRequest};
use crate::{events, metrics};
use anyhow::Result;
use std::path::Path;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

/// Asks the supervisor something and waits for its answer.
pub(super) fn ask<T>(
    sender: &Sender<SupervisorMessage>,
    patience: Duration,
    message: impl FnOnce(ReplySender<T>) -> SupervisorMessage,
) -> std::result::Result<T, String> {
    let (answer, answered) = mpsc::channel();
    sender.send(message(answer)).map_err(|_| "it is stopping".to_string())?;
    answered.recv_timeout(patience).map_err(|_| "it is busy or stopping".to_string())?
}

/// Serves the control socket from now on.
pub(super) fn listen(socket: &Path, sender: &Sender<SupervisorMessage>, inspector: Inspector) -> Result<()> {
    let sender = sender.clone();
    control::serve(socket, move |request| handle(&sender, &inspector, request))
}

fn handle(sender: &Sender<SupervisorMessage>, inspector: &Inspector, request: ControlRequest) -> ControlReply {
    let answer = match request {
        ControlRequest::Status => ask(sender, STATUS_PATIENCE, SupervisorMessage::Status)
            .map(|status| ControlAnswer::Status(Box::new(status))),
        ControlRequest::Stop { flush } => {
            let sender = sender.clone();
            let then = move || {
                let _ = sender.send(SupervisorMessage::End(ProcessEnd::Asked { flush }));
                control::hold();
            };
            return ControlReply { answer: ControlAnswer::Stopping, then: Some(Box::new(then)) };
        }
        ControlRequest::Upgrade(how) => {
            let (tell, known) = mpsc::channel();
            let (client, is_left) = mpsc::channel::<()>();
            let upgraded =
                ask(sender, CHANGE_PATIENCE, |answer| SupervisorMessage::Upgrade { how, answer, known, client });
            return match upgraded {
                Ok(pid) => {
                    let then = move || {
                        // A send fails if the supervisor has stopped waiting; it needs no answer then.
                        let _ = tell.send(());
                        // Until this process has nothing of the instance any more: it may drain for long after that.
                        let _ = is_left.recv();
                    };
                    ControlReply { answer: ControlAnswer::Upgraded { pid }, then: Some(Box::new(then)) }
                }
                Err(error) => ControlAnswer::Error(error).into(),
            };
        }
        ControlRequest::Reload { file, discard } => {
            ask(sender, CHANGE_PATIENCE, |answer| SupervisorMessage::Reload(Some((file, discard, answer))))
                .map(ControlAnswer::Changes)
        }
        ControlRequest::Configuration => {
            ask(sender, STATUS_PATIENCE, SupervisorMessage::Running).map(ControlAnswer::Configuration)
        }
        ControlRequest::Diff { text, file } => {
            ask(sender, CHANGE_PATIENCE, |answer| SupervisorMessage::Diff { text, file, answer })
                .map(ControlAnswer::Changes)
        }
        ControlRequest::Backend(change) => {
            ask(sender, CHANGE_PATIENCE, |answer| SupervisorMessage::Backend { change, answer })
                .map(ControlAnswer::Done)
        }
        ControlRequest::Connections(query) => inspector.connections(&query).map(ControlAnswer::Connections),
        ControlRequest::Offload => ask(sender, STATUS_PATIENCE, SupervisorMessage::Status)
            .and_then(|status| inspector.offload(&status))
            .map(|view| ControlAnswer::Offload(Box::new(view))),
        ControlRequest::Route(query) => {
            ask(sender, STATUS_PATIENCE, |answer| SupervisorMessage::Route { query, answer }).map(ControlAnswer::Route)
        }
    };
    answer.unwrap_or_else(ControlAnswer::Error).into()
}

/// Serves the admin address, if the configuration asks for that. A failure is logged, and the instance goes on without it.
pub(super) fn serve_metrics(
    settings: &Settings,
    sender: &Sender<SupervisorMessage>,
    inspector: Inspector,
    socket: &Path,
) -> Option<metrics::MetricsServer> {
    let sender = sender.clone();
    let sources = metrics::Sources {
        status: Box::new(move || {
            let mut status = ask(&sender, STATUS_PATIENCE, SupervisorMessage::Status)?;
            // The lines behind may quote the configuration, as those of events may.
            let first = status.reloads.last_error.lines().next().unwrap_or_default().to_owned();
            status.reloads.last_error = first;
            Ok(status)
        }),
        offload: Box::new(move |status| inspector.offload(status)),
        events: Some(events::path(socket)),
    };
    match metrics::serve_all(settings.metrics?, &settings.metrics_hosts, sources) {
        Ok(server) => Some(server),
        Err(error) => {
            log(&format!("warning: no metrics: {error:#}"));
            None
        }
    }
}
