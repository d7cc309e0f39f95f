//! The names of one CA: their certificates, the outcome of orders, and when each is due.

use crate::client::NameState;
use crate::order::Failure;
use crate::schedule::{self, Validity};
use crate::state::{self, Attempts};
use crate::{Authority, Host, Wanted, WantedName, certificate_file};
use anyhow::Result;
use aws_lc_rs::digest::{SHA256, digest};
use instant_acme::CertificateIdentifier;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A certificate in its file.
pub(crate) struct HeldCertificate {
    pub(crate) validity: Validity,
    /// From 0 to 1, at random, but the same for the same certificate.
    pub(crate) draw: f64,
    pub(crate) identifier: Option<CertificateIdentifier<'static>>,
}

/// A name with all that is known of it.
pub(crate) struct Entry {
    pub(crate) wanted: WantedName,
    pub(crate) file: PathBuf,
    pub(crate) attempts: Attempts,
    pub(crate) held: Option<HeldCertificate>,
    /// When the CA wants it renewed, from and until.
    pub(crate) window: Option<(i64, i64)>,
    /// When the CA is asked for that again.
    pub(crate) ask_s: i64,
}

impl Entry {
    pub(crate) fn read(wanted: &Wanted, name: &WantedName, host: &dyn Host) -> Entry {
        let file = certificate_file(&wanted.state, &wanted.authority, &name.name);
        let held = read_certificate(&file, host).unwrap_or_else(|why| {
            host.log(&format!("warning: {}: {why:#}; another certificate is ordered", file.display()));
            None
        });
        let attempts = file.parent().map(state::read_attempts).unwrap_or_default();
        Entry { wanted: name.clone(), file, attempts, held, window: None, ask_s: 0 }
    }

    /// When it is ordered next.
    pub(crate) fn due_s(&self) -> i64 {
        let wanted = self
            .held
            .as_ref()
            .map_or(0, |held| schedule::renewal(held.validity, self.attempts.obtained_s, self.window, held.draw));
        wanted.max(self.attempts.not_before_s)
    }

    pub(crate) fn state(&self) -> NameState {
        match () {
            () if self.attempts.failures > 0 => NameState::Failed,
            () if self.held.is_some() => NameState::Held,
            () => NameState::Waiting,
        }
    }

    /// Notes a failure, and says when it is tried again.
    pub(crate) fn fail(&mut self, failure: &Failure) {
        fail(&mut self.attempts, failure);
    }

    pub(crate) fn save(&self, host: &dyn Host) {
        let saved = self.file.parent().map_or(Ok(()), |directory| state::write_attempts(directory, &self.attempts));
        if let Err(error) = saved {
            host.log(&format!("warning: {error:#}; after a restart {} is ordered at once", self.wanted.name));
        }
    }
}

pub(crate) fn fail(attempts: &mut Attempts, failure: &Failure) {
    attempts.failures = attempts.failures.saturating_add(1);
    attempts.error.clone_from(&failure.why);
    attempts.last_s = now_s();
    let wait = schedule::back_off(attempts.failures, failure.retry_after, random());
    attempts.not_before_s = attempts.last_s + wait.as_secs() as i64;
}

/// After a change by a person: what failed is tried again, but not sooner than after one failure.
pub(crate) fn hurry(attempts: &mut Attempts) {
    if attempts.failures > 0 {
        let soon = attempts.last_s + schedule::BACK_OFF_MIN.as_secs() as i64;
        attempts.not_before_s = attempts.not_before_s.min(soon);
    }
}

/// The names of one CA.
pub(crate) struct Round {
    pub(crate) wanted: Arc<Wanted>,
    pub(crate) directory: PathBuf,
    /// Those of the CA itself: while it fails, no name is ordered.
    pub(crate) attempts: Attempts,
    pub(crate) entries: Vec<Entry>,
}

impl Round {
    pub(crate) fn read(wanted: Arc<Wanted>, host: &dyn Host) -> Round {
        let entries = wanted.names.iter().map(|name| Entry::read(&wanted, name, host)).collect();
        let directory = state::of_authority(&wanted.state, &wanted.authority);
        Round { attempts: state::read_attempts(&directory), directory, entries, wanted }
    }

    pub(crate) fn due_s(&self, entry: &Entry) -> i64 {
        entry.due_s().max(self.attempts.not_before_s)
    }

    /// The entry that is due first, and when.
    pub(crate) fn next(&self) -> Option<(usize, i64)> {
        let all = self.entries.iter().enumerate().map(|(at, entry)| (at, self.due_s(entry)));
        all.min_by_key(|(_, due)| *due)
    }

    pub(crate) fn authority(&self) -> &Authority {
        &self.wanted.authority
    }
}

/// The certificate in a file; `None`: there is none.
pub(crate) fn read_certificate(file: &Path, host: &dyn Host) -> Result<Option<HeldCertificate>> {
    if !file.exists() {
        return Ok(None);
    }
    host.check(file).map_err(anyhow::Error::msg)?;
    let leaf = CertificateDer::from_pem_file(file)?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&leaf)?;
    let validity =
        Validity { from_s: parsed.validity().not_before.timestamp(), until_s: parsed.validity().not_after.timestamp() };
    let hash = digest(&SHA256, &leaf);
    let draw = hash.as_ref().first().map_or(0.0, |&byte| f64::from(byte) / 255.0);
    Ok(Some(HeldCertificate { validity, draw, identifier: CertificateIdentifier::try_from(&leaf).ok() }))
}

/// From 0 to 1; need not be secret.
fn random() -> f64 {
    let mut byte = [0];
    let drawn = aws_lc_rs::rand::fill(&mut byte);
    drawn.map_or(0.0, |()| f64::from(byte[0]) / 255.0)
}

pub(crate) fn now_s() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs() as i64)
}
