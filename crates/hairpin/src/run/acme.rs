//! Automatic certificates: what joins the ACME client with the supervisor.
//!
//! The client asks for answers to challenges to be put into force, and says when another certificate lies in its file. What it
//! does else, it does by itself: nothing here waits for the CA.

use super::{SupervisorMessage, tell};
use crate::config::Config;
use crate::events::EventKind;
use crate::status::{AcmeNameStatus, AcmeStatus};
use anyhow::{Context, Result};
use hairpin_acme::{Acme, ChallengeAnswer, Host, NameReading, Wanted};
use hairpin_core::config::Snapshot;
use hairpin_core::l7::config::PathAnswer;
use hairpin_https::{Challenges, check_certificate};
use std::path::Path;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::oneshot;

/// The answers to open challenges, as they are served.
#[derive(Clone, Default)]
pub(super) struct OpenChallenges {
    /// By all services with requests, whatever host is asked for: a path has a token that is not guessed.
    pub(super) http: Arc<[PathAnswer]>,
    /// By all services whose TLS ends here.
    pub(super) tls: Option<Challenges>,
}

impl OpenChallenges {
    /// # Errors
    /// An answer that cannot be served.
    pub(super) fn new(answers: Vec<ChallengeAnswer>) -> Result<OpenChallenges> {
        let (mut http, mut tls) = (Vec::new(), Vec::new());
        for answer in answers {
            match answer {
                ChallengeAnswer::Http { path, body } => {
                    http.push(PathAnswer { path: path.into_bytes().into(), body: body.into_bytes().into() });
                }
                ChallengeAnswer::TlsAlpn { name, certificate, key } => tls.push((name, certificate, key)),
            }
        }
        let tls = if tls.is_empty() { None } else { Some(Challenges::new(tls)?) };
        Ok(OpenChallenges { http: http.into(), tls })
    }

    /// Has the services of `snapshot` give these answers.
    pub(super) fn apply_to(&self, snapshot: &mut Snapshot) {
        for http in snapshot.services.iter_mut().filter_map(|service| service.kind.http_mut()) {
            http.answers = Arc::clone(&self.http);
        }
    }
}

/// How the client reaches the supervisor.
struct SupervisorHost(Mutex<Sender<SupervisorMessage>>);

impl SupervisorHost {
    fn send(&self, message: SupervisorMessage) {
        // It fails when the supervisor has ended; then the client is about to end.
        let _ = self.0.lock().unwrap_or_else(PoisonError::into_inner).send(message);
    }
}

impl Host for SupervisorHost {
    fn answer(&self, answers: Vec<ChallengeAnswer>, done: oneshot::Sender<()>) {
        self.send(SupervisorMessage::Challenges(answers, done));
    }

    fn check(&self, file: &Path) -> std::result::Result<(), String> {
        check_certificate(file).map_err(|error| format!("{error:#}"))
    }

    fn obtained(&self) {
        self.send(SupervisorMessage::Certificates);
    }

    fn log(&self, message: &str) {
        tell(EventKind::Certificate, message);
    }
}

/// The client, as long as there are names.
#[derive(Default)]
pub(super) struct AutomaticCertificates(Option<Acme>);

impl AutomaticCertificates {
    /// Wants what `config` names from now on. The first name starts the client, the last one's end ends it.
    ///
    /// # Errors
    /// The client does not start.
    pub(super) fn configure(&mut self, config: &Config, sender: &Sender<SupervisorMessage>) -> Result<()> {
        let Some(wanted) = config.wanted_certificates() else {
            self.0 = None;
            return Ok(());
        };
        match &self.0 {
            Some(client) => client.configure(wanted),
            None => self.0 = Some(start(wanted, sender).context("certificates are not renewed")?),
        }
        Ok(())
    }

    /// What is shown of it.
    pub(super) fn status(&self) -> Option<AcmeStatus> {
        let reading = self.0.as_ref()?.reading();
        Some(AcmeStatus {
            directory: reading.directory,
            account: reading.account.unwrap_or_default(),
            error: reading.error,
            obtained_total: reading.obtained,
            failed_total: reading.failed,
            names: reading.names.into_iter().map(name_status).collect(),
        })
    }
}

fn start(wanted: Wanted, sender: &Sender<SupervisorMessage>) -> Result<Acme> {
    Acme::start(wanted, Arc::new(SupervisorHost(Mutex::new(sender.clone()))))
}

fn name_status(reading: NameReading) -> AcmeNameStatus {
    AcmeNameStatus {
        name: reading.name,
        challenge: reading.challenge.name().to_string(),
        state: reading.state.word().to_string(),
        valid_until_unix_s: reading.until_unix_s.unwrap_or(0),
        next_order_unix_s: reading.next_unix_s,
        failures: reading.failures,
        error: reading.error,
    }
}
