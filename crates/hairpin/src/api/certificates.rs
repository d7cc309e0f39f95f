//! Certificates that clients upload, each in a file with its chain and its key, in a directory beside what the API changed.
//!
//! A certificate is no part of the configuration, which names its file like any other. It has a version of its own, the beginning of
//! its chain's SHA-256, so that of two writers none replaces unseen what the other one wrote. The key goes into the file and
//! nowhere else: no answer, message or line of the log has anything of it.

use super::answer::Refused;
use super::exchange::{line, require_json, tag, versions, with_type};
use super::kept::{self, PreparedFile};
use super::{ApiSources, json};
use bytes::Bytes;
use hairpin_https::{CertificateSummary, examine_certificate, has_private_key};
use http_body_util::Full;
use hyper::header::HeaderMap;
use hyper::{Method, Response, StatusCode};
use serde_json::{Value, json};
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// The path of all of them.
pub(super) const PATH: &str = "/v1/certificates";
/// Certificates of an instance at most.
pub(crate) const CERTIFICATES_MAX: usize = 1024;
/// Bytes of a certificate's name at most.
pub(super) const NAME_BYTES_MAX: usize = 64;
/// Bytes of a chain and its key at most.
const PEM_BYTES_MAX: u64 = hairpin_https::limits::FILE_BYTES_MAX;
/// Bytes of its hash that a version has.
const VERSION_BYTES: usize = 16;

/// What a client asks of certificates.
#[derive(Clone, Debug)]
pub(crate) struct CertificateRequest {
    /// The client, for the log.
    pub(crate) who: String,
    /// The method and the path, for the log.
    pub(crate) what: String,
    /// What is to be done.
    pub(crate) action: CertificateAction,
}

/// What is done to certificates.
#[derive(Clone, Debug)]
pub(crate) enum CertificateAction {
    /// All of them are listed.
    List,
    /// The one of this name is shown.
    Show(String),
    /// It becomes this one, if its version is one of these; none: if there is none of this name.
    Put(String, Vec<String>, NewCertificate),
    /// It goes, if its version is one of these.
    Delete(String, Vec<String>),
}

/// A chain and its key that can be served.
#[derive(Clone)]
pub(crate) struct NewCertificate(Vec<u8>);

impl fmt::Debug for NewCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NewCertificate")
    }
}

/// The answer to a request that was fulfilled.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CertificateAnswer {
    /// Whether there was none of its name.
    pub(crate) is_new: bool,
    /// The version that there is now, if it is about one.
    pub(crate) version: Option<String>,
    /// The body.
    pub(crate) body: Value,
}

/// A certificate of the store.
#[derive(Clone, Debug)]
pub(crate) struct StoredCertificate {
    /// Its name.
    pub(crate) name: String,
    /// Its version.
    pub(crate) version: String,
    /// What people look at.
    pub(crate) summary: CertificateSummary,
}

impl StoredCertificate {
    fn of(name: &str, file: &Path, text: &[u8]) -> anyhow::Result<StoredCertificate> {
        let (summary, sha256) = examine_certificate(file, text)?;
        let version = sha256[..VERSION_BYTES].iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(StoredCertificate { name: name.to_owned(), version, summary })
    }

    /// As answers show it.
    pub(crate) fn shown(&self) -> Value {
        let CertificateSummary { file, names, from_unix_s, until_unix_s, key, .. } = &self.summary;
        json!({ "name": self.name, "file": file, "version": self.version, "names": names, "key": key,
            "valid_from_unix_s": from_unix_s, "valid_until_unix_s": until_unix_s })
    }
}

/// The directory of an instance's certificates.
pub(crate) struct CertificateStore(PathBuf);

impl CertificateStore {
    /// That of an instance whose API has this directory.
    pub(crate) fn of(state: &Path, instance: &str) -> CertificateStore {
        CertificateStore(state.join(format!("{instance}.certificates")))
    }

    /// The file of a certificate, whether it is there or not.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(format!("{name}.pem"))
    }

    /// The names of all certificates, in order.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub(crate) fn names(&self) -> Result<Vec<String>, Refused> {
        let entries = match std::fs::read_dir(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(|error| self.unusable(&error))?,
        };
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let file = entry.ok()?.file_name();
            let name = file.to_str()?.strip_suffix(".pem")?;
            is_name(name).then(|| name.to_owned())
        };
        let mut names: Vec<String> = entries.filter_map(name).collect();
        names.sort();
        Ok(names)
    }

    /// The certificate of this name, if there is one.
    ///
    /// # Errors
    /// Its file cannot be read, or is none of this store's.
    pub(crate) fn read(&self, name: &str) -> Result<Option<StoredCertificate>, Refused> {
        let file = self.file(name);
        let text = match std::fs::read(&file) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            text => text.map_err(|error| self.unusable(&error))?,
        };
        let read = StoredCertificate::of(name, &file, &text);
        read.map(Some).map_err(|error| Refused::Conflict(format!("{}: {error:#}", file.display())))
    }

    /// Puts a certificate into the place of the one of its name; a crash leaves the old or the new one.
    ///
    /// # Errors
    /// It cannot be written; what was there still is.
    pub(crate) fn write(&self, name: &str, new: &NewCertificate) -> Result<StoredCertificate, Refused> {
        let file = self.file(name);
        let written = PreparedFile::of(&file, &new.0).and_then(PreparedFile::commit);
        written.map_err(|error| self.unusable(&error))?;
        StoredCertificate::of(name, &file, &new.0).map_err(|error| Refused::Conflict(format!("{error:#}")))
    }

    /// Removes a certificate.
    ///
    /// # Errors
    /// It cannot be removed.
    pub(crate) fn remove(&self, name: &str) -> Result<(), Refused> {
        kept::remove(&self.file(name)).map_err(|error| self.unusable(&error))
    }

    fn unusable(&self, error: &std::io::Error) -> Refused {
        Refused::Conflict(format!("the certificates in {} cannot be used: {error}", self.0.display()))
    }
}

/// Whether a certificate can have this name, which is that of its file, too.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=NAME_BYTES_MAX).contains(&name.len()) && !name.starts_with('.') && name.bytes().all(is_plain)
}

/// Answers a request whose path is `rest` behind [`PATH`].
pub(super) fn answer(
    sources: &ApiSources,
    (method, headers, rest): (&Method, &HeaderMap, &str),
    body: &[u8],
    who: String,
) -> Result<Response<Full<Bytes>>, Refused> {
    let action = match (rest.strip_prefix('/'), method) {
        (None, &Method::GET | &Method::HEAD) => CertificateAction::List,
        (None, _) => return Err(Refused::Method("GET, HEAD")),
        (Some(name), _) if !is_name(name) => {
            let form = format!("a certificate's name has letters, digits, `-`, `_` and `.`, {NAME_BYTES_MAX} at most");
            return Err(Refused::Absent(form));
        }
        (Some(name), &Method::GET | &Method::HEAD) => CertificateAction::Show(name.to_owned()),
        (Some(name), &Method::PUT) => {
            require_json(headers)?;
            CertificateAction::Put(name.to_owned(), versions(headers)?, uploaded(body)?)
        }
        (Some(name), &Method::DELETE) => {
            if !body.is_empty() {
                return Err(Refused::Form("DELETE has no body".to_owned()));
            }
            CertificateAction::Delete(name.to_owned(), versions(headers)?)
        }
        (Some(_), _) => return Err(Refused::Method("GET, HEAD, PUT, DELETE")),
    };
    let answer = (sources.certificates)(CertificateRequest { who, what: format!("{method} {PATH}{rest}"), action })?;
    let code = if answer.is_new { StatusCode::CREATED } else { StatusCode::OK };
    let mut response = with_type(code, "application/json", line(&answer.body));
    if let Some(version) = &answer.version {
        tag(&mut response, version);
    }
    Ok(response)
}

/// The certificate of a body `{"chain": "...", "key": "..."}`.
fn uploaded(body: &[u8]) -> Result<NewCertificate, Refused> {
    let form = |what: &str| Refused::Form(what.to_owned());
    let Value::Object(mut fields) = json::read(body).map_err(Refused::Form)? else {
        return Err(form("the body is not an object"));
    };
    let mut text = |name: &str| match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(Refused::Form(format!("the body has no text `{name}`"))),
    };
    let (chain, key) = (text("chain")?, text("key")?);
    if !fields.is_empty() {
        return Err(form("the body has fields beside `chain` and `key`"));
    }
    if chain.contains("PRIVATE KEY-----") || key.contains("CERTIFICATE-----") {
        return Err(form("`chain` has certificates alone, and `key` a private key alone"));
    }
    // Of both together a reader cannot say which is damaged.
    if !has_private_key(key.as_bytes()) {
        return Err(form("`key` has no private key in PEM form that can be read without a password"));
    }
    let pem = format!("{}\n{}\n", chain.trim_end(), key.trim_end()).into_bytes();
    if pem.len() as u64 > PEM_BYTES_MAX {
        return Err(Refused::Large(PEM_BYTES_MAX));
    }
    // On the client's thread: signing with the key takes a while, and the supervisor has other work.
    examine_certificate(Path::new(""), &pem).map_err(|error| Refused::Form(format!("{error:#}")))?;
    Ok(NewCertificate(pem))
}

/// Refuses a change of another version of a certificate than the one there is, if there is one.
pub(crate) fn require_version(given: &[String], current: Option<&StoredCertificate>) -> Result<(), Refused> {
    let current = current.map(|stored| stored.version.clone());
    match current {
        None if given.is_empty() => Ok(()),
        Some(current) if given.is_empty() => Err(Refused::Unconditional(current)),
        Some(current) if given.contains(&current) => Ok(()),
        current => Err(Refused::Stale { given: given.to_vec(), current: current.unwrap_or_else(|| "none".to_owned()) }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn pair(name: &str) -> (String, String) {
        let made = rcgen::generate_simple_self_signed([name.to_owned()]).unwrap();
        (made.cert.pem(), made.signing_key.serialize_pem())
    }

    fn body(chain: &str, key: &str) -> Vec<u8> {
        json!({ "chain": chain, "key": key }).to_string().into_bytes()
    }

    #[test]
    fn a_certificate_is_kept_for_its_owner_alone_and_replaced_whole() {
        let state = std::env::temp_dir().join(format!("hairpin-api-certificates-{}", std::process::id()));
        let store = CertificateStore::of(&state, "i");
        assert_eq!((store.names().unwrap().len(), store.read("shop").unwrap().is_none()), (0, true));
        let [one, other] = ["one.test", "two.test"].map(|name| {
            let (chain, key) = pair(name);
            uploaded(&body(&chain, &key)).unwrap()
        });
        let first = store.write("shop", &one).unwrap();
        assert_eq!(first.summary.names, ["one.test"]);
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&store.file("shop")), mode(&store.0)), (0o600, 0o700));
        let second = store.write("shop", &other).unwrap();
        assert_eq!(store.read("shop").unwrap().unwrap().version, second.version);
        assert_eq!(store.names().unwrap(), ["shop"]);
        let code = |given: &[&String], current| {
            let given: Vec<String> = given.iter().map(|given| (*given).clone()).collect();
            require_version(&given, current).map_or_else(|refused| refused.code(), |()| 200)
        };
        assert_eq!([code(&[], None), code(&[&first.version], None), code(&[], Some(&second))], [200, 412, 428]);
        assert_eq!([code(&[&first.version], Some(&second)), code(&[&second.version], Some(&second))], [412, 200]);
        store.remove("shop").unwrap();
        assert!(store.read("shop").unwrap().is_none());
        std::fs::remove_dir_all(&state).unwrap();
    }

    #[test]
    fn what_cannot_be_served_is_refused_without_a_word_of_the_key() {
        let ((chain, key), (_, other)) = (pair("one.test"), pair("two.test"));
        let flat = key.replace('\n', "");
        for (chain, key, said) in [
            (&*chain, &*other, "the key in `key` does not fit `chain`"),
            (&chain, "", "`key` has no private key"),
            (&chain, &flat, "`key` has no private key"),
            (&flat, &key, "`chain` has certificates alone"),
            ("nothing", &key, "`chain` has no certificates"),
            (&chain, &chain, "`key` a private key alone"),
        ] {
            let refused = uploaded(&body(chain, key)).unwrap_err();
            let told = refused.body().to_string();
            assert!(refused.code() == 400 && told.contains(said), "{said}: {told}");
            for part in key.lines().chain(other.lines()).filter(|line| line.len() > 20 && !line.starts_with('-')) {
                assert!(!told.contains(part), "{told}");
            }
        }
        for wrong in ["[]", "{}", "{\"chain\":\"\",\"key\":\"\",\"more\":1}"] {
            assert_eq!(uploaded(wrong.as_bytes()).unwrap_err().code(), 400, "{wrong}");
        }
        for (name, is_right) in
            [("shop.example.com", true), ("", false), (".x", false), ("a/b", false), ("a%2Fb", false)]
        {
            assert_eq!(is_name(name), is_right, "{name}");
        }
    }
}
