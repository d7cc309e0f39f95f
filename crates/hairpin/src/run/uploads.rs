//! Certificates that clients of the API upload: written, served, and removed, one after another.

use super::supervisor::Supervisor;
use super::tell;
use crate::api::limits::CERTIFICATES_MAX;
use crate::api::{
    CertificateAction, CertificateAnswer, CertificateRequest, CertificateStore, Refused, require_version,
};
use crate::config::{self, Config, ServiceSettings};
use crate::events::EventKind;
use hairpin_https::BackendTlsOptions;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

type Answered = std::result::Result<CertificateAnswer, Refused>;

impl Supervisor {
    /// Does what a client asks of certificates.
    pub(super) fn use_certificates(&mut self, request: &CertificateRequest) -> Answered {
        let settings = &self.config.settings;
        let api = settings.api.as_ref().ok_or_else(|| Refused::Busy("there is no API any more".to_owned()))?;
        let store = CertificateStore::of(&api.state, &settings.instance);
        match &request.action {
            CertificateAction::List => {
                let shown = |name: String| json!({ "file": store.file(&name), "name": name });
                let body = store.names()?.into_iter().map(shown).collect();
                Ok(CertificateAnswer { is_new: false, version: None, body })
            }
            CertificateAction::Show(name) => {
                let stored = store.read(name)?.ok_or_else(|| absent(name))?;
                Ok(CertificateAnswer { is_new: false, body: stored.shown(), version: Some(stored.version) })
            }
            CertificateAction::Put(name, versions, new) => {
                let before = store.read(name)?;
                require_version(versions, before.as_ref())?;
                if before.is_none() && store.names()?.len() >= CERTIFICATES_MAX {
                    return Err(Refused::Conflict(format!(
                        "there are {CERTIFICATES_MAX} certificates already: delete one"
                    )));
                }
                let stored = store.write(name, new)?;
                let (services, warnings) = self.serve_uploaded(&store.file(name));
                let before = before.map(|before| before.version);
                self.note_upload(request, before.as_deref(), Some(&stored.version), &stored.summary.names);
                let mut body = stored.shown();
                let is_new = before.is_none();
                body["before"] = before.map_or(Value::Null, Value::from);
                (body["services"], body["warnings"]) = (json!(services), json!(warnings));
                Ok(CertificateAnswer { is_new, version: Some(stored.version), body })
            }
            CertificateAction::Delete(name, versions) => {
                let before = store.read(name)?.ok_or_else(|| absent(name))?;
                require_version(versions, Some(&before))?;
                let users = self.users(&store.file(name));
                if !users.is_empty() {
                    let why = format!("it is used by {}: take its file out of there first", users.join(", "));
                    return Err(Refused::Conflict(why));
                }
                store.remove(name)?;
                self.note_upload(request, Some(&before.version), None, &before.summary.names);
                let body = json!({ "name": name, "before": before.version });
                Ok(CertificateAnswer { is_new: false, version: None, body })
            }
        }
    }

    /// Has services serve the file as it is now; which do so, and what stands in the way.
    fn serve_uploaded(&mut self, file: &Path) -> (Vec<String>, Vec<String>) {
        let users = users_in(&self.config, file);
        if users.is_empty() {
            return (users, Vec::new());
        }
        self.reread_certificates();
        match self.termination.certificates.have_changed() {
            false => (users, Vec::new()),
            true => (Vec::new(), vec!["the services do not serve it yet: the log says why".to_owned()]),
        }
    }

    /// What uses a file, by the configuration in force or by the file, which is in force after `hairpin reload --discard`.
    fn users(&self, file: &Path) -> Vec<String> {
        let mut users = users_in(&self.config, file);
        let of_file = self.api_file().and_then(|text| config::parse("the configuration file", &text).ok());
        let more = of_file.iter().flat_map(|config| users_in(config, file));
        users.extend(more.map(|user| format!("{user} of the configuration file")));
        users
    }

    fn note_upload(
        &mut self,
        request: &CertificateRequest,
        before: Option<&str>,
        after: Option<&str>,
        names: &[String],
    ) {
        self.count_write();
        let [before, after] = [before, after].map(|version| version.unwrap_or("none"));
        let names = if names.is_empty() { "no name".to_owned() } else { names.join(", ") };
        let told = format!("API: {}: {}: version {before} -> {after}, for {names}", request.who, request.what);
        tell(EventKind::Api, &told);
    }
}

fn absent(name: &str) -> Refused {
    Refused::Absent(format!("there is no certificate \"{name}\""))
}

/// The services and groups, and `[api]`, that use a file, or the directory that it is in.
fn users_in(config: &Config, file: &Path) -> Vec<String> {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let file = real(file);
    let uses = |path: &PathBuf| file.starts_with(real(path));
    let services = config.snapshot.services.iter().zip(&config.services);
    let of_services = services.filter(|(_, settings)| files(settings).any(&uses));
    let mut users: Vec<String> = of_services.map(|(service, _)| format!("service {}", service.name)).collect();
    let remote = config.settings.api.as_ref().and_then(|api| api.remote.as_ref());
    if remote.is_some_and(|remote| uses(&remote.certificate) || remote.client_roots.iter().any(&uses)) {
        users.push("[api]".to_owned());
    }
    users
}

fn files(settings: &ServiceSettings) -> impl Iterator<Item = &PathBuf> {
    let of_https = settings.https.iter().flat_map(|https| https.certificates.iter().chain(&https.client_roots));
    of_https.chain(settings.backend_tls.iter().flat_map(BackendTlsOptions::files))
}
