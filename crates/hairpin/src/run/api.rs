//! Configurations by the API: what it reads, what it changes, and what becomes of that when the file is read again.

use super::requests::ask;
use super::supervisor::Supervisor;
use super::{CHANGE_PATIENCE, STATUS_PATIENCE, SupervisorMessage, log, tell};
use crate::api::{
    self, ApiProblem, ApiServer, ApiSources, Applied, CODES, CertificateAnswer, CertificateRequest, Credentials,
    Document, Refused, RemoteSettings, WriteRequest, kept,
};
use crate::config::{self, Config};
use crate::control::{Changes, RunningConfiguration};
use crate::events::EventKind;
use crate::http_server::{Closed, ServerCounts};
use crate::status::ApiStatus;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// What the process knows of the configuration beside what is in force.
pub(super) struct ApiState {
    /// What the configuration file says, if the API changed something that it lacks.
    file: Option<Arc<str>>,
    /// The document of the text in force.
    document: Option<(Arc<str>, Arc<Document>)>,
    counts: Arc<ServerCounts>,
    /// Writes that came into force.
    writes: u64,
    server: Option<ApiServer>,
    /// By TLS, with the settings and the fingerprint of the files that it serves with.
    remote: Option<(RemoteSettings, u64, ApiServer)>,
    /// Why it does not serve by TLS as it should, as was said last.
    remote_fault: Option<String>,
}

impl ApiState {
    /// That of a process that begins; `file`: what the configuration file says, if that is not in force.
    pub(super) fn new(file: Option<Arc<str>>) -> ApiState {
        let counts = Arc::new(ServerCounts::new(&CODES, &Closed::ALL));
        ApiState { file, document: None, counts, writes: 0, server: None, remote: None, remote_fault: None }
    }

    /// No client is served from now on.
    pub(super) fn end(&mut self) {
        self.server = None;
        self.remote = None;
    }
}

impl Supervisor {
    /// Serves the API, if the configuration asks for that, and only then. A failure is logged, and the instance goes on without it.
    pub(super) fn serve_api(&mut self) {
        self.serve_api_locally();
        self.serve_api_remotely();
    }

    fn serve_api_locally(&mut self) {
        let path = api::socket(&self.socket);
        if self.config.settings.api.is_none() {
            if self.api.server.take().is_some() {
                let _ = std::fs::remove_file(path);
            }
            return;
        }
        if self.api.server.is_some() {
            return;
        }
        match api::serve(&path, self.api_sources()) {
            Ok(server) => self.api.server = Some(server),
            Err(error) => log(&format!("warning: no API: {error:#}")),
        }
    }

    /// Serves the API by TLS with the files as they are now. Where they changed, connections end: what a client has shown may not
    /// be known any more. Files that have become wrong change nothing. Tried again from time to time.
    pub(super) fn serve_api_remotely(&mut self) {
        let wanted = self.config.settings.api.as_ref().and_then(|api| api.remote.clone());
        let Some(wanted) = wanted else {
            (self.api.remote, self.api.remote_fault) = (None, None);
            return;
        };
        // Before they are read: what changes meanwhile is seen.
        let fingerprint = wanted.fingerprint();
        let serving = self.api.remote.as_ref().map(|(settings, fingerprint, _)| (settings, *fingerprint));
        if serving == Some((&wanted, fingerprint)) {
            return;
        }
        let is_same = serving.is_some_and(|(settings, _)| *settings == wanted);
        let served = Credentials::load(&wanted).and_then(|credentials| {
            // The address may be that of the one before.
            self.api.remote = None;
            api::serve_remote(wanted.listen, credentials, self.api_sources())
        });
        match served {
            Ok(server) => {
                log(&format!("the API is served by TLS at {}", wanted.listen));
                self.api.remote = Some((wanted, fingerprint, server));
                self.api.remote_fault = None;
            }
            Err(error) => {
                if !is_same {
                    self.api.remote = None;
                }
                let goes_on =
                    if self.api.remote.is_some() { "goes on by TLS with the files of before" } else { "not by TLS" };
                let fault = format!("warning: API: {goes_on}: {error:#}");
                if self.api.remote_fault.as_ref() != Some(&fault) {
                    log(&fault);
                    self.api.remote_fault = Some(fault);
                }
            }
        }
    }

    fn api_sources(&self) -> ApiSources {
        let [reader, writer, certifier] = [(); 3].map(|()| self.sender.clone());
        ApiSources {
            read: Box::new(move || ask(&reader, STATUS_PATIENCE, SupervisorMessage::Document)),
            write: Box::new(move |write| written(&writer, write)),
            certificates: Box::new(move |request| certified(&certifier, request)),
            counts: Arc::clone(&self.api.counts),
            log: |line| tell(EventKind::Api, line),
        }
    }

    /// The configuration in force, as the API has it.
    pub(super) fn document(&mut self) -> std::result::Result<Arc<Document>, String> {
        if let Some((text, document)) = &self.api.document
            && Arc::ptr_eq(text, &self.config.text)
        {
            return Ok(Arc::clone(document));
        }
        let document = Arc::new(Document::of(&self.config.text)?);
        self.api.document = Some((Arc::clone(&self.config.text), Arc::clone(&document)));
        Ok(document)
    }

    /// The configuration in force, as a file.
    pub(super) fn running(&mut self) -> std::result::Result<RunningConfiguration, String> {
        let document = self.document()?;
        Ok(RunningConfiguration {
            version: document.version().to_owned(),
            differs_from_file: self.api.file.is_some(),
            text: document.text().to_owned(),
        })
    }

    /// Puts a client's write into force, as a whole or not at all.
    pub(super) fn write(&mut self, write: &WriteRequest) -> std::result::Result<Applied, Refused> {
        let current = self.document().map_err(Refused::Conflict)?;
        let (document, is_new) = write.perform(&current)?;
        let before = current.version().to_owned();
        if document.version() == before {
            return Ok(Applied { version: before.clone(), before, is_new, changes: Changes::default() });
        }
        let new =
            config::parse("configuration", document.text()).map_err(|problems| write.refusal(&document, &problems))?;
        if let Some(what) = kept::fixed(&self.config, &new) {
            let told = format!(
                "the API does not change {what}, by which it is found: change the configuration file and restart"
            );
            return Err(Refused::Conflict(told));
        }
        let judged = self
            .judge(&new)
            .map_err(|message| Refused::Invalid(vec![ApiProblem { message, ..ApiProblem::default() }]))?;
        let file = self.api.file.clone().unwrap_or_else(|| Arc::clone(&self.config.text));
        let says = Document::of(&file).map_err(Refused::Conflict)?;
        let prepared = self.prepare(&document, &says).map_err(Refused::Conflict)?;
        let mut changes = self.put(new, judged).map_err(Refused::Conflict)?;
        self.api.file = Some(file).filter(|_| prepared.is_some());
        self.api.writes += 1;
        let kept = match prepared {
            Some(prepared) => prepared.commit(),
            None => self.kept_path().map_or(Ok(()), |path| kept::remove(&path)),
        };
        if let Err(error) = kept {
            changes.warnings.push(format!("this is in force, but not kept for the next start: {error}"));
        }
        self.obtain_certificates();
        self.look_names_up();
        let applied = Applied { before, version: document.version().to_owned(), is_new, changes };
        tell_write(write, &applied);
        Ok(applied)
    }

    /// Writes beside its place what is to be kept for the next start; nothing, if that is what the file says.
    fn prepare(&self, document: &Document, says: &Document) -> std::result::Result<Option<kept::PreparedFile>, String> {
        if document.means(says) {
            return Ok(None);
        }
        let Some(path) = self.kept_path() else { return Ok(None) };
        let prepared = kept::PreparedFile::write(&path, document, says);
        prepared.map(Some).map_err(|error| format!("what is changed cannot be kept in {}: {error:#}", path.display()))
    }

    /// What the configuration file says, if that is not in force.
    pub(super) fn api_file(&self) -> Option<Arc<str>> {
        self.api.file.clone()
    }

    /// A write of a certificate came into force.
    pub(super) fn count_write(&mut self) {
        self.api.writes += 1;
    }

    /// The place of what is kept for the next start.
    pub(super) fn kept_path(&self) -> Option<PathBuf> {
        let api = self.config.settings.api.as_ref()?;
        Some(kept::path(&api.state, &self.config.settings.instance))
    }

    /// Refuses a reload of the file that would silently undo what the API changed.
    pub(super) fn require_written_back(&mut self, new: &Config, discards: bool) -> std::result::Result<(), String> {
        if self.api.file.is_none() || discards {
            return Ok(());
        }
        let document = self.document()?;
        if Document::of(&new.text)?.means(&document) {
            return Ok(());
        }
        Err(format!(
            "the API changed the configuration (version {}), and {} does not say that; write it back (`hairpin config --running` prints \
             it), or give it up by `hairpin reload --discard`",
            document.version(),
            self.options.file.display()
        ))
    }

    /// The configuration file is in force: what was kept at `kept` is not any more.
    pub(super) fn note_file(&mut self, changes: &mut Changes, kept: Option<&Path>) {
        if self.api.file.take().is_none() {
            return;
        }
        if let Err(error) = kept.map_or(Ok(()), kept::remove) {
            changes.warnings.push(format!("what the API changed comes back at the next start: {error}"));
        }
    }

    /// What the status says of the API.
    pub(super) fn api_status(&self) -> Option<ApiStatus> {
        let settings = self.config.settings.api.as_ref()?;
        let version = match &self.api.document {
            Some((text, document)) if Arc::ptr_eq(text, &self.config.text) => document.version().to_owned(),
            _ => String::new(),
        };
        Some(ApiStatus {
            socket: api::socket(&self.socket).display().to_string(),
            serves: self.api.server.is_some(),
            listen: settings.remote.as_ref().map(|remote| remote.listen.to_string()).unwrap_or_default(),
            serves_tls: self.api.remote.is_some(),
            version,
            differs_from_file: self.api.file.is_some(),
            writes_total: self.api.writes,
            answers_total: self.api.counts.answers().map(|(code, count)| (code.to_string(), count)).collect(),
            connections_closed_total: self.api.counts.closed().map(|(why, count)| (why.to_owned(), count)).collect(),
        })
    }
}

/// Has the supervisor put a write into force.
fn written(sender: &Sender<SupervisorMessage>, write: WriteRequest) -> std::result::Result<Applied, Refused> {
    let outcome = ask(sender, CHANGE_PATIENCE, |answer| SupervisorMessage::Write { write: Box::new(write), answer });
    outcome.unwrap_or_else(|why| {
        Err(Refused::Busy(format!(
            "{why}; whether the write comes into force is not known: read the configuration again"
        )))
    })
}

/// Has the supervisor do what is asked of certificates.
fn certified(
    sender: &Sender<SupervisorMessage>,
    request: CertificateRequest,
) -> std::result::Result<CertificateAnswer, Refused> {
    let request = Box::new(request);
    let outcome = ask(sender, CHANGE_PATIENCE, |answer| SupervisorMessage::UseCertificates { request, answer });
    outcome.unwrap_or_else(|why| {
        Err(Refused::Busy(format!("{why}; whether a change was made is not known: read the certificate again")))
    })
}

fn tell_write(write: &WriteRequest, applied: &Applied) {
    let Applied { before, version, changes, .. } = applied;
    let mut told = format!("API: {}: {}: version {before} -> {version}", write.who, write.what);
    if write.is_transaction {
        told += &format!(", {} changes", write.operations.len());
    }
    let lines = changes.changes.iter().map(String::as_str);
    let later: Vec<String> = changes.later.iter().map(|later| format!("later: {later}")).collect();
    let warnings: Vec<String> = changes.warnings.iter().map(|warning| format!("warning: {warning}")).collect();
    let all = lines.chain(later.iter().map(String::as_str)).chain(warnings.iter().map(String::as_str));
    all.take(super::reload::LOGGED_MAX).for_each(|line| told += &format!("\n  {line}"));
    tell(EventKind::Api, &told);
}

/// Names the instance's configuration for messages at the start.
pub(super) fn resolve(config: Config, file: &Path) -> anyhow::Result<(Config, Option<Arc<str>>)> {
    kept::resolve(config, file, log)
}
