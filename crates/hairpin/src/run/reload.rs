//! Reloads: the file is read again, checked as a whole, and put into force.

use super::certificates::Certificates;
use super::host::unix_s;
use super::names::ReloadRequest;
use super::supervisor::Supervisor;
use super::{notify, tell};
use crate::config::{self, Config};
use crate::control::Changes;
use crate::diff;
use crate::events::EventKind;
use crate::monitor;
use crate::names::Answers;
use std::path::Path;
use std::sync::Arc;

/// Changes that are logged one by one; the rest is counted.
pub(super) const LOGGED_MAX: usize = 20;

impl Supervisor {
    /// Reloads, as is asked for. `answers`: the first ones for names that are new in the file; without them the reload may wait.
    pub(super) fn hear_reload(&mut self, request: ReloadRequest, answers: Option<Arc<Answers>>) {
        let (request, answers) = match answers {
            Some(first) => {
                let mut answers = (*self.config.answers).clone();
                answers.extend((*first).clone());
                (request, Arc::new(answers))
            }
            None => match self.with_heartbeat(|supervisor| supervisor.wait_for_names(request)) {
                Some(request) => (request, Arc::clone(&self.config.answers)),
                None => return,
            },
        };
        let (file, discards, answer) =
            request.map_or((None, false, None), |(file, discards, answer)| (file, discards, Some(answer)));
        let result = self.with_heartbeat(|supervisor| supervisor.reload(file.as_deref(), discards, answers));
        match &result {
            Ok(changes) => {
                self.tell_changes(changes);
                self.obtain_certificates();
            }
            Err(error) => tell(EventKind::Refusal, &format!("reload refused, nothing changed: {error}")),
        }
        self.look_names_up();
        if let Some(answer) = answer {
            let _ = answer.send(result);
        }
    }

    /// Reads the configuration again and applies it with these answers for names, as a whole or not at all. `file` is the file meant,
    /// if it is named; `discards`: also if the API changed what the file lacks.
    fn reload(
        &mut self,
        file: Option<&Path>,
        discards: bool,
        answers: Arc<Answers>,
    ) -> std::result::Result<Changes, String> {
        // To the manager, a process that is still starting does not reload.
        let is_told = !self.readiness.is_starting();
        if is_told {
            notify::reloading();
        }
        let result = same_file(file, &self.options.file).and_then(|()| self.reload_file(&answers, discards));
        if is_told {
            notify::ready();
        }
        self.reloads.last_unix_s = unix_s();
        self.reloads.last_succeeded = result.is_ok();
        match &result {
            Ok(_) => {
                self.reloads.succeeded_total += 1;
                self.reloads.last_error.clear();
            }
            Err(error) => {
                self.reloads.failed_total += 1;
                self.reloads.last_error.clone_from(error);
            }
        }
        result
    }

    fn reload_file(&mut self, answers: &Arc<Answers>, discards: bool) -> std::result::Result<Changes, String> {
        let new = config::load(&self.options.file).map_err(|problems| problems.to_string())?.with_answers(answers);
        self.require_written_back(&new, discards)?;
        let judged = self.judge(&new)?;
        let kept = self.kept_path();
        let mut changes = self.put(new, judged)?;
        self.note_file(&mut changes, kept.as_deref());
        self.serve_api();
        Ok(changes)
    }

    /// What a configuration that is right by itself needs to come into force here, and what it changes; else why it cannot.
    pub(super) fn judge(&self, new: &Config) -> std::result::Result<(Certificates, Changes), String> {
        let [running, wanted] = [&self.config, new].map(|config| config.settings.connection_table);
        // The one method's services may be what the other cannot serve.
        if running != wanted && !(running.tracks_connections() && wanted.tracks_connections()) {
            return Err(format!(
                "connection_table changes from {} to {}, and with it what the file means: apply it by `hairpin upgrade`",
                running.name(),
                wanted.name()
            ));
        }
        monitor::check(&new.settings.monitors).map_err(|error| format!("{error:#}"))?;
        let certificates = Certificates::load(new).map_err(|error| format!("{error:#}"))?;
        let changes = diff::changes(&self.config, new);
        Ok((certificates, changes))
    }

    /// Puts a configuration that was judged into force; what is different then.
    pub(super) fn put(
        &mut self,
        new: Config,
        (certificates, mut changes): (Certificates, Changes),
    ) -> std::result::Result<Changes, String> {
        certificates.warn();
        let notes = self.apply(new, self.registry.clone(), certificates).map_err(|error| format!("{error:#}"))?;
        changes.changes.extend(notes);
        Ok(changes)
    }

    fn tell_changes(&self, changes: &Changes) {
        let all = changes.changes.len() + changes.later.len();
        let mut told = format!("reloaded: {all} change{}", if all == 1 { "" } else { "s" });
        changes.changes.iter().take(LOGGED_MAX).for_each(|change| told += &format!("\n  {change}"));
        changes.later.iter().take(LOGGED_MAX).for_each(|later| told += &format!("\n  later: {later}"));
        tell(EventKind::Reload, &told);
        changes.warnings.iter().take(LOGGED_MAX).for_each(|told| tell(EventKind::Reload, &format!("warning: {told}")));
    }
}

/// Refuses a file that is not the one which this instance was started with.
fn same_file(named: Option<&Path>, own: &Path) -> std::result::Result<(), String> {
    let Some(named) = named else { return Ok(()) };
    let canonical = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    if canonical(named) == canonical(own) {
        return Ok(());
    }
    Err(format!(
        "this instance was started with {}, not with {}, and reads only that file again; change that file, or stop the \
         instance and start it with the other one",
        own.display(),
        named.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_than_ones_own_is_refused() {
        let directory = std::env::temp_dir().join(format!("hairpin-same-file-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let [own, other, link] = ["own.toml", "other.toml", "link.toml"].map(|name| directory.join(name));
        std::fs::write(&own, "").unwrap();
        std::fs::write(&other, "").unwrap();
        std::os::unix::fs::symlink(&own, &link).unwrap();
        let judged = [None, Some(&*own), Some(&*link), Some(&*other)].map(|named| same_file(named, &own));
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(judged[..3], [Ok(()), Ok(()), Ok(())]);
        let said = judged[3].clone().unwrap_err();
        assert!(said.starts_with(&format!("this instance was started with {}, not with", own.display())), "{said}");
    }
}
