//! Backends by name: what joins the thread that looks names up with the supervisor.
//!
//! Another answer comes into force as a reload does, without reading the file: the configuration in force gets the backends that its
//! names have now, and goes through the same merge and the same update of workers. An answer that changes no backend changes nothing.

use super::reading::shown;
use super::supervisor::Supervisor;
use super::{ReplySender, SupervisorMessage, log, tell};
use crate::config::{self, Config};
use crate::control::Changes;
use crate::diff;
use crate::events::EventKind;
use crate::names::{self, Answers, NameReading, Names, NamesTold, Question};
use crate::registry::Merged;
use crate::status::{NameStatus, ResolverStatus};
use anyhow::Result;
use hairpin_core::config::{BackendState, Service, Snapshot};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// A request to reload: the file that it names, whether it gives up what the API changed, and who waits for the outcome.
pub(super) type ReloadRequest = Option<(Option<PathBuf>, bool, ReplySender<Changes>)>;

/// Changes that are told one by one; the rest is counted.
const TOLD_MAX: usize = 20;

/// The configuration with the backends that its names have: by answers of an earlier process, and where there is none, by a look-up for
/// which the start waits for [`names::limits::FIRST_PATIENCE`] at most. A name without an answer has no backends yet.
pub(super) fn begin(config: Config) -> Config {
    let questions = config.questions();
    if questions.is_empty() {
        return config;
    }
    let settings = &config.settings;
    let mut answers = names::load(&settings.resolver, &settings.instance);
    answers.retain(|question, _| questions.contains(question));
    let unknown: Vec<Question> = questions.into_iter().filter(|question| !answers.contains_key(question)).collect();
    if !unknown.is_empty() {
        match names::first(&settings.resolver, &unknown) {
            Ok(first) => answers.extend(first),
            Err(error) => log(&format!("warning: names are not looked up yet: {error:#}")),
        }
        for question in unknown.iter().filter(|question| !answers.contains_key(question)) {
            let (name, kind) = (&question.name, question.kind());
            tell(
                EventKind::Backend,
                &format!("warning: name {name} ({kind}) has no answer yet; the start goes on without it"),
            );
        }
    }
    config.with_answers(&Arc::new(answers))
}

/// How the thread reaches the supervisor.
struct SupervisorTold(Sender<SupervisorMessage>);

impl NamesTold for SupervisorTold {
    fn changed(&self, answers: Arc<Answers>) {
        // It fails when the supervisor has ended; then the thread is about to end.
        let _ = self.0.send(SupervisorMessage::Names(answers));
    }

    fn log(&self, message: &str) {
        tell(EventKind::Backend, message);
    }
}

/// The thread, as long as there are names.
#[derive(Default)]
pub(super) struct NameLookups {
    names: Option<Names>,
    /// Configurations with other answers that came into force, and that did not.
    applied: u64,
    refused: u64,
    /// Answers that could not come into force yet.
    pending: Option<Arc<Answers>>,
}

impl NameLookups {
    /// Looks up what `config` names from now on. The first name starts the thread, the last one's end ends it.
    ///
    /// # Errors
    /// The thread does not start.
    fn configure(&mut self, config: &Config, sender: &Sender<SupervisorMessage>) -> Result<()> {
        let questions = config.questions();
        if questions.is_empty() {
            (self.names, self.pending) = (None, None);
            return Ok(());
        }
        let names = self.started(config, sender)?;
        names.want(&config.settings.resolver, &config.settings.instance, questions);
        Ok(())
    }

    fn started(&mut self, config: &Config, sender: &Sender<SupervisorMessage>) -> Result<&Names> {
        let names = match self.names.take() {
            Some(names) => names,
            None => Names::start(&config.answers, SupervisorTold(sender.clone()))?,
        };
        Ok(self.names.insert(names))
    }

    /// What is shown of it; `None`: there are no names.
    pub(super) fn status(&self, config: &Config) -> Option<ResolverStatus> {
        let reading = self.names.as_ref()?.reading();
        let [found, none, failed] = reading.lookups;
        Some(ResolverStatus {
            servers: reading.servers,
            lookups_found_total: found,
            lookups_empty_total: none,
            lookups_failed_total: failed,
            changes_applied_total: self.applied,
            changes_refused_total: self.refused,
            names: reading.names.iter().map(|name| name_status(config, name)).collect(),
        })
    }
}

fn name_status(config: &Config, name: &NameReading) -> NameStatus {
    let found = config.answers.get(&name.question).map_or(&[][..], Vec::as_slice);
    let whole = |time: Duration| time.as_secs();
    NameStatus {
        name: name.question.name.clone(),
        records: name.question.kind().to_string(),
        state: name.state.word().to_string(),
        addresses: found.iter().map(|found| found.address.to_string()).collect(),
        refused: (config.refused.get(&name.question).copied().unwrap_or(0) + name.left_out) as u64,
        next_s: whole(name.wait),
        age_s: name.age.map(whole),
        failures: name.failures,
        error: name.error.clone(),
    }
}

impl Supervisor {
    /// Has the names looked up that the configuration in force has.
    pub(super) fn look_names_up(&mut self) {
        if let Err(error) = self.lookups.configure(&self.config, &self.sender) {
            log(&format!("warning: names are not looked up: {error:#}"));
        }
    }

    /// Puts other answers into force.
    pub(super) fn take_answers(&mut self, answers: Arc<Answers>) {
        let new = self.config.clone().with_answers(&answers);
        let changes = diff::changes(&self.config, &new).changes;
        if changes.is_empty() {
            // Nothing that workers know of. What is shown of names is the new answers.
            (self.config.answers, self.config.refused) = (new.answers, new.refused);
            self.lookups.pending = None;
            return;
        }
        let certificates = self.termination.certificates.clone();
        match self.apply(new, self.registry.clone(), certificates) {
            Ok(notes) => {
                self.lookups.applied += 1;
                self.lookups.pending = None;
                let mut told = "names: their answers have changed".to_string();
                changes.iter().chain(&notes).take(TOLD_MAX).for_each(|change| told += &format!("\n  {change}"));
                if let Some(more) = changes.len().checked_sub(TOLD_MAX).filter(|more| *more > 0) {
                    told += &format!("\n  and {more} more");
                }
                tell(EventKind::Backend, &told);
            }
            Err(error) => {
                self.lookups.refused += 1;
                let is_known = self.lookups.pending.replace(answers).is_some();
                if !is_known {
                    tell(EventKind::Refusal, &format!("other answers for names are not in force yet: {error:#}"));
                }
            }
        }
    }

    /// Tries answers again that could not come into force, such as those with the address of a service that was just removed.
    pub(super) fn retry_answers(&mut self) {
        if let Some(answers) = self.lookups.pending.clone() {
            self.take_answers(answers);
        }
    }

    /// The request, unless it has to wait for the answers of names that are new in the file: it comes again when they are there, or cannot
    /// be had soon. Without this, a service whose addresses give way to a name would have no backends for a moment.
    pub(super) fn wait_for_names(&mut self, request: ReloadRequest) -> Option<ReloadRequest> {
        // What is wrong with the file is told when it is reloaded.
        let Ok(new) = config::load(&self.options.file) else { return Some(request) };
        let known = self.config.questions();
        let unknown: Vec<Question> = new
            .questions()
            .into_iter()
            .filter(|question| !known.contains(question) && !self.config.answers.contains_key(question))
            .collect();
        if unknown.is_empty() {
            return Some(request);
        }
        let sender = self.sender.clone();
        let Ok(names) = self.lookups.started(&self.config, &self.sender) else { return Some(request) };
        let then = move |answers| {
            let _ = sender.send(SupervisorMessage::Resolved(answers, request));
        };
        names.first(&new.settings.resolver, &new.settings.instance, unknown, then);
        None
    }
}

/// For every service and group shown, in order: whether it is not ready because its names have no address that could be a backend.
pub(super) fn why_not(snapshot: &Snapshot, merged: &Merged) -> Vec<Option<String>> {
    let why = |(number, service): (usize, &Service)| {
        let settings = merged.settings.get(number)?.as_ref()?;
        let is_without = service.backends.iter().all(|backend| backend.state == BackendState::Removed);
        (is_without && !settings.named.is_empty()).then(|| "its names have no address".to_string())
    };
    shown(snapshot).into_iter().map(|(number, service)| why((number, service))).collect()
}
