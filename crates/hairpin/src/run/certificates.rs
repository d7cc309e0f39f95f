//! The certificates of services and groups.
//!
//! Certificates and keys are read by the process that serves them, before anything is changed: at a start, at a reload, and
//! when their files change. A file that cannot be served changes nothing.

use super::{host, tell};
use crate::api::Credentials;
use crate::config::{ClientCertificates, Config, HttpsSettings, ServiceSettings, TlsVersion};
use crate::events::EventKind;
use crate::status::CertificateStatus;
use anyhow::{Context, Result};
use hairpin_acme::{WantedName, certificate_file};
use hairpin_core::config::Service;
use hairpin_core::l7::config::Kind;
use hairpin_https::{
    BackendTls, BackendTlsOptions, CertificateFiles, CertificateSummary, ServedCertificates, TlsOptions,
};
use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Names of a certificate that the status has.
const NAMES_MAX: usize = 16;
/// A certificate that expires within so many seconds is warned of: ten days.
const EXPIRES_SOON_S: i64 = 10 * 86_400;
/// Certificates that are warned of one by one, each time they are read.
const WARNED_MAX: usize = 20;

/// What the terminated services of a configuration and their groups have read from files, by their place in it.
#[derive(Clone, Default)]
pub(crate) struct Certificates {
    services: Arc<[Option<LoadedService>]>,
    /// Those of `[api]`: it reads its files again where it serves with them.
    api: Arc<[CertificateSummary]>,
}

/// What a terminated service, or a service or group with TLS to its backends, has read.
#[derive(Clone)]
pub(super) struct LoadedService {
    pub(super) name: String,
    /// A group serves none.
    pub(super) served: Option<ServedCertificates>,
    backend_tls: Option<BackendTls>,
    files: CertificateFiles,
    /// Of the files when they were read.
    fingerprint: u64,
}

impl Certificates {
    /// Reads what the services of `config` name. The files of `[api]` are looked at, too.
    ///
    /// # Errors
    /// The first service or group whose files cannot be used, or those of `[api]`, and why.
    pub(crate) fn load(config: &Config) -> Result<Certificates> {
        let remote = config.settings.api.as_ref().and_then(|api| api.remote.as_ref());
        let api = remote.map(Credentials::load).transpose()?.map_or_else(Vec::new, |loaded| loaded.summaries);
        let services = config.snapshot.services.iter().zip(&config.services);
        let load = |(service, settings): (&Service, &ServiceSettings)| {
            if settings.https.is_none() && settings.backend_tls.is_none() {
                return Ok(None);
            }
            let automatic = settings.https.as_ref().map_or_else(Vec::new, |https| automatic_files(config, https));
            let of_https = settings.https.iter().flat_map(|https| https.certificates.iter().chain(&https.client_roots));
            let of_backends = settings.backend_tls.iter().flat_map(BackendTlsOptions::files);
            let files = CertificateFiles(of_https.chain(of_backends).chain(&automatic).cloned().collect());
            // Before they are read: what changes meanwhile is seen.
            let fingerprint = files.fingerprint();
            let who = || if service.kind.is_group() { "group" } else { "service" };
            let said = || format!("{} {}", who(), service.name);
            let served = match (&settings.https, &service.kind) {
                (Some(https), Kind::Terminated(terminated)) => {
                    let options = tls_options(https, terminated.http2, automatic);
                    Some(ServedCertificates::load(&options).with_context(said)?)
                }
                _ => None,
            };
            let backend_tls = settings.backend_tls.as_ref().map(BackendTls::load).transpose();
            let backend_tls = backend_tls.with_context(|| format!("{}: backend_tls", said()))?;
            Ok(Some(LoadedService { name: service.name.to_string(), served, backend_tls, files, fingerprint }))
        };
        Ok(Certificates { services: services.map(load).collect::<Result<_>>()?, api: api.into() })
    }

    /// By the place of the service or group in the configuration; `None`: it has no certificates and no TLS to its backends.
    pub(super) fn loaded(&self) -> &[Option<LoadedService>] {
        &self.services
    }

    /// Whether files have changed since they were read.
    pub(super) fn have_changed(&self) -> bool {
        self.services.iter().flatten().any(|loaded| loaded.files.fingerprint() != loaded.fingerprint)
    }

    /// Warns of certificates that are not valid now, or will soon not be.
    pub(crate) fn warn(&self) {
        for loaded in self.services.iter().flatten() {
            for why in loaded.served.iter().flat_map(|served| &served.left_out) {
                let told = format!("warning: service {}: {why}; another certificate is ordered", loaded.name);
                tell(EventKind::Certificate, &told);
            }
        }
        self.concerns().iter().for_each(|concern| tell(EventKind::Certificate, &concern.to_string()));
    }

    /// The certificates that are not valid now, or will soon not be.
    pub(crate) fn concerns(&self) -> Vec<CertificateConcern> {
        let now = i64::try_from(host::unix_s()).unwrap_or(i64::MAX);
        let services = self.summaries().chain(self.shown()).map(|(service, all)| (Some(service), all));
        concerns(services.chain([(None, &*self.api)]), now)
    }

    /// What is served, as the status shows it.
    pub(crate) fn statuses(&self) -> Vec<CertificateStatus> {
        let all = self.summaries().flat_map(|(service, all)| all.iter().map(move |one| (service, one)));
        all.map(|(service, certificate)| CertificateStatus {
            service: service.to_string(),
            file: certificate.file.display().to_string(),
            names: certificate.names.iter().take(NAMES_MAX).cloned().collect(),
            names_total: certificate.names.len() as u64,
            key: certificate.key.to_string(),
            valid_from_unix_s: certificate.from_unix_s,
            valid_until_unix_s: certificate.until_unix_s,
            placeholder: certificate.is_placeholder,
        })
        .collect()
    }

    /// What is served, by the name of the service.
    pub(crate) fn summaries(&self) -> impl Iterator<Item = (&str, &[CertificateSummary])> {
        self.services.iter().flatten().filter_map(|loaded| Some((&*loaded.name, &*loaded.served.as_ref()?.summaries)))
    }

    /// What backends are shown, by the name of the service or group.
    fn shown(&self) -> impl Iterator<Item = (&str, &[CertificateSummary])> {
        let all = self.services.iter().flatten();
        all.filter_map(|loaded| Some((&*loaded.name, loaded.backend_tls.as_ref()?.summary.as_slice())))
    }

    /// TLS with backends, by the number of the service or group; `numbers`: those of the configuration's services.
    pub(crate) fn backend_tls(&self, numbers: &[u16]) -> HashMap<u16, BackendTls> {
        let numbered = self.services.iter().zip(numbers);
        numbered.filter_map(|(loaded, number)| Some((*number, loaded.as_ref()?.backend_tls.clone()?))).collect()
    }
}

/// Something about a certificate that its operator should know. As text it is a line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateConcern {
    /// The service or group; `None`: the API, or several.
    pub(crate) service: Option<String>,
    /// The problem.
    pub(crate) what: String,
    /// Whether clients that verify it refuse it, now or soon.
    pub(crate) is_warning: bool,
}

impl fmt::Display for CertificateConcern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_warning {
            write!(f, "warning: ")?;
        }
        match &self.service {
            Some(service) => write!(f, "service {service}: {}", self.what),
            None => write!(f, "{}", self.what),
        }
    }
}

/// What there is to say of certificates, by service, or of the API: one by one up to a bound, then how many more.
fn concerns<'a>(
    all: impl Iterator<Item = (Option<&'a str>, &'a [CertificateSummary])>,
    now: i64,
) -> Vec<CertificateConcern> {
    let all = all.flat_map(|(service, certificates)| certificates.iter().map(move |one| (service, one)));
    let mut found: Vec<_> = all.filter_map(|(service, certificate)| concern(service, certificate, now)).collect();
    if found.len() > WARNED_MAX {
        let more = found.len() - WARNED_MAX;
        found.truncate(WARNED_MAX);
        let what =
            format!("{more} more certificates are not valid, or expire soon: `hairpin status -o json` lists all");
        found.push(CertificateConcern { service: None, what, is_warning: true });
    }
    found
}

fn concern(service: Option<&str>, certificate: &CertificateSummary, now: i64) -> Option<CertificateConcern> {
    let said =
        |what, is_warning| Some(CertificateConcern { service: service.map(ToString::to_string), what, is_warning });
    if certificate.is_placeholder {
        return said("serves a certificate that signs itself until one is obtained".to_string(), false);
    }
    let what = match certificate.until_unix_s - now {
        _ if certificate.from_unix_s > now => "is not valid yet".to_string(),
        ..0 => "has expired: renew it".to_string(),
        left if left < EXPIRES_SOON_S => format!("expires in {} days", left / 86_400),
        _ => return None,
    };
    let whose = if service.is_some() { "" } else { "[api]: " };
    said(format!("{whose}the certificate in {} {what}", certificate.file.display()), true)
}

/// The files in which certificates of a service are, or will be, that are obtained automatically.
fn automatic_files(config: &Config, settings: &HttpsSettings) -> Vec<PathBuf> {
    let Some(wanted) = config.wanted_certificates() else { return Vec::new() };
    let file = |name: &WantedName| certificate_file(&wanted.state, &wanted.authority, &name.name);
    settings.acme.iter().map(file).collect()
}

fn tls_options(settings: &HttpsSettings, http2: bool, automatic: Vec<PathBuf>) -> TlsOptions {
    let required = settings.client_certificates == ClientCertificates::Required;
    let roots = settings.client_roots.clone().filter(|_| settings.client_certificates != ClientCertificates::Off);
    TlsOptions {
        certificates: CertificateFiles(settings.certificates.clone()),
        automatic: CertificateFiles(automatic),
        names: settings.acme.iter().map(|wanted| wanted.name.clone()).collect(),
        only_tls13: settings.versions_min == TlsVersion::V13,
        http2,
        clients: roots.map(|roots| (roots, required)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service and a group with TLS towards backends, in a directory with the service's certificate.
    fn load(directory: &std::path::Path, service: &str, group: &str) -> Result<Certificates, String> {
        let place = directory.display();
        let text = format!(
            "interfaces = [\"eth0\"]\n[[service]]\nname = \"shop\"\nlisten = \"192.0.2.1:443/https\"\nbackends = \
             [\"10.0.0.1:443\"]\nhttps.certificates = \"{place}/web.pem\"\nbackend_tls = {{ {service} }}\n\
             [[service.group]]\nname = \"a\"\nbackends = [\"10.0.0.2:443\"]\nbackend_tls = {{ {group} }}\n"
        );
        let config = crate::config::parse("t.toml", &text).unwrap();
        Certificates::load(&config).map_err(|error| format!("{error:#}"))
    }

    #[test]
    fn many_certificates_that_expire_take_few_lines() {
        let certificate = |until_unix_s: i64| CertificateSummary {
            file: "a.pem".into(),
            names: Vec::new(),
            from_unix_s: 1000,
            until_unix_s,
            key: "ECDSA",
            is_placeholder: false,
        };
        let far = 1_000_000_000;
        let all = [certificate(5000), certificate(5000 + 3 * 86_400), certificate(far)];
        let said = concerns([(Some("web"), &all[..]), (None, &all[..1])].into_iter(), 6000);
        assert_eq!(said.len(), 3);
        assert_eq!(said[0].to_string(), "warning: service web: the certificate in a.pem has expired: renew it");
        assert!(said[1].what.ends_with("a.pem expires in 2 days"), "{said:?}");
        assert_eq!(said[2].to_string(), "warning: [api]: the certificate in a.pem has expired: renew it");
        let many = vec![certificate(5000); 10_000];
        let said = concerns([(Some("web"), &many[..]), (Some("shop"), &many[..5])].into_iter(), 500);
        assert_eq!(said.len(), WARNED_MAX + 1);
        assert!(said[0].what.ends_with("is not valid yet"), "{said:?}");
        assert!(said[WARNED_MAX].to_string().starts_with("warning: 9985 more "), "{said:?}");
    }

    #[test]
    fn files_for_backends_are_read_and_watched() {
        let directory = std::env::temp_dir().join(format!("hairpin-termination-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let made = rcgen::generate_simple_self_signed(["web.test".to_string()]).unwrap();
        let (chain, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let write = |name: &str, text: &str| std::fs::write(directory.join(name), text).unwrap();
        write("web.pem", &format!("{chain}{key}"));
        write("ca.pem", &chain);
        let place = directory.display().to_string();
        let (good, missing) = (format!("roots = \"{place}/ca.pem\""), format!("roots = \"{place}/none.pem\""));
        for (service, group, who) in [(&missing, &good, "service shop"), (&good, &missing, "group shop/a")] {
            let said = load(&directory, service, group).err().unwrap();
            assert!(said.starts_with(&format!("{who}: backend_tls: ")), "{said}");
            assert!(said.contains(&format!("cannot read {place}/none.pem: No such file")), "{said}");
        }
        let loaded = load(&directory, &good, &format!("{good}, certificate = \"{place}/web.pem\"")).unwrap();
        let tls = loaded.backend_tls(&[5, 7]);
        assert!(tls[&5] != tls[&7] && tls[&5].summary.is_none() && tls[&7].summary.is_some());
        // The group's certificate is not served, but looked at.
        assert_eq!((loaded.summaries().count(), loaded.shown().count()), (1, 2));
        assert!(!loaded.have_changed());
        write("ca.pem", &format!("{chain}{chain}"));
        assert!(loaded.have_changed());
        std::fs::remove_dir_all(&directory).unwrap();
    }
}
