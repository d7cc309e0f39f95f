//! Certificates and their keys: read from files and checked as a whole, then served by the name that a client asks for.

use crate::tickets::{TicketSecret, Tickets};
use anyhow::{Context, Result, anyhow, bail, ensure};
use aws_lc_rs::digest::{Context as Digest, SHA256};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig, SignatureAlgorithm};
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

/// Bytes of a file of certificates or of a key at most.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// Certificates of one service at most.
pub const CERTIFICATES_MAX: usize = 100_000;
/// Certificates that a thread of its own is worth.
const PER_THREAD_MIN: usize = 64;
/// Certificates of one chain at most.
pub const CHAIN_MAX: usize = 10;

/// Where certificates are.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct CertificateFiles(pub Vec<PathBuf>);

impl CertificateFiles {
    /// A number that is another one, but for chance, once any of the files or directories has changed.
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.0.iter().for_each(|path| stamp(path, 2, &mut hasher));
        hasher.finish()
    }
}

/// Takes in what tells a file from its successor; of a directory also what is in it, `depth` levels deep.
fn stamp(path: &Path, depth: usize, hasher: &mut DefaultHasher) {
    path.hash(hasher);
    let Ok(found) = std::fs::metadata(path) else { return };
    (found.len(), found.ino(), found.mtime(), found.mtime_nsec()).hash(hasher);
    if depth > 0
        && found.is_dir()
        && let Ok(entries) = std::fs::read_dir(path)
    {
        let entries: BTreeSet<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        entries.iter().for_each(|entry| stamp(entry, depth - 1, hasher));
    }
    // A key that stands beside its chain.
    if path.extension().is_some_and(|extension| extension != "key") {
        stamp_key(&path.with_extension("key"), hasher);
    }
}

fn stamp_key(path: &Path, hasher: &mut DefaultHasher) {
    if let Ok(found) = std::fs::metadata(path) {
        (found.len(), found.ino(), found.mtime(), found.mtime_nsec()).hash(hasher);
    }
}

/// The server's side of TLS of a service.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// Files and directories of certificates; the first is for clients that ask for no name or another one.
    pub certificates: CertificateFiles,
    /// Files behind these that may be missing, or of no use: then they are left out. If there is no certificate at all, one that
    /// signs itself takes the place.
    pub automatic: CertificateFiles,
    /// The names for that one.
    pub names: Vec<String>,
    /// Whether TLS 1.2 is not spoken.
    pub only_tls13: bool,
    /// Whether HTTP/2 is offered.
    pub http2: bool,
    /// A file with the CAs of clients' certificates, and whether clients must have one.
    pub clients: Option<(PathBuf, bool)>,
}

/// A certificate as people look at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateSummary {
    /// The file it is from.
    pub file: PathBuf,
    /// The names it is for.
    pub names: Vec<String>,
    /// Seconds of 1970 from which on it is valid.
    pub from_unix_s: i64,
    /// Seconds of 1970 after which it is not.
    pub until_unix_s: i64,
    /// `ECDSA`, `RSA` or `ED25519`.
    pub key: &'static str,
    /// Whether it signs itself and stands in for one that is not there yet. Then it is from no file.
    pub is_placeholder: bool,
}

/// Certificates that can be served.
#[derive(Clone)]
pub struct ServedCertificates {
    config: ServerConfig,
    /// A number that tells this check of clients' certificates from others.
    clients: Vec<u8>,
    /// The certificates that are served, the default first.
    pub summaries: Vec<CertificateSummary>,
    /// Why files were left out.
    pub left_out: Vec<String>,
}

impl ServedCertificates {
    /// Reads and checks what `options` name.
    ///
    /// # Errors
    /// The first file that cannot be read, or whose certificate cannot be served, and why.
    pub fn load(options: &TlsOptions) -> Result<ServedCertificates> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut places = Vec::new();
        for path in &options.certificates.0 {
            find(path, &mut places)?;
            ensure!(places.len() <= CERTIFICATES_MAX, "more than {CERTIFICATES_MAX} certificates");
        }
        let mut loaded = load_all(&places, &provider)?;
        let mut left_out = Vec::new();
        for file in options.automatic.0.iter().filter(|file| file.exists()) {
            match load_file(file, None, &provider) {
                Ok(certificate) => loaded.push(certificate),
                Err(error) => left_out.push(format!("{error:#}")),
            }
        }
        if loaded.is_empty() && !options.names.is_empty() {
            loaded.push(placeholder(&options.names, &provider)?);
        }
        let summaries = loaded.iter().map(|loaded: &Loaded| loaded.summary.clone()).collect();
        let resolver = Names::new(loaded).context("there is no certificate")?;
        let versions: &[_] = match options.only_tls13 {
            true => &[&rustls::version::TLS13],
            false => &[&rustls::version::TLS13, &rustls::version::TLS12],
        };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions)?;
        let (verifier, authorities) = match &options.clients {
            Some((roots, required)) => client_verifier(roots, *required, &provider)?,
            None => (WebPkiClientVerifier::no_client_auth(), Vec::new()),
        };
        let mut config = builder.with_client_cert_verifier(verifier).with_cert_resolver(Arc::new(resolver));
        config.alpn_protocols = match options.http2 {
            true => vec![b"h2".to_vec(), b"http/1.1".to_vec()],
            false => vec![b"http/1.1".to_vec()],
        };
        // Tickets carry sessions; a cache would be shared by all cores.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        // 0-RTT data can be replayed (RFC 8446, 8): none is taken.
        config.max_early_data_size = 0;
        Ok(ServedCertificates { config, clients: authorities, summaries, left_out })
    }

    /// A number that tells this check of clients' certificates from others.
    pub fn client_policy(&self) -> &[u8] {
        &self.clients
    }

    /// For connections of which none takes up the session of another one: every client's certificate is verified anew.
    pub fn serve_anew(&self) -> Arc<ServerConfig> {
        let mut config = self.config.clone();
        config.send_tls13_tickets = 0;
        Arc::new(config)
    }

    /// For the connections of a service, whose session tickets follow from `tickets`.
    pub fn serve(&self, tickets: &TicketSecret) -> Arc<ServerConfig> {
        let mut config = self.config.clone();
        config.ticketer = Arc::new(Tickets::new(tickets, &self.clients));
        Arc::new(config)
    }
}

/// A verifier of clients' certificates, and the bytes that tell its CAs from others.
fn client_verifier(
    file: &Path,
    required: bool,
    provider: &Arc<CryptoProvider>,
) -> Result<(Arc<dyn ClientCertVerifier>, Vec<u8>)> {
    let authorities = read_chain(file)?;
    let mut roots = RootCertStore::empty();
    let mut bytes = vec![u8::from(required)];
    for authority in authorities {
        bytes.extend_from_slice(&(authority.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&authority);
        roots.add(authority).with_context(|| format!("{} has a certificate that is no CA's", file.display()))?;
    }
    let builder = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(provider));
    let builder = if required { builder } else { builder.allow_unauthenticated() };
    Ok((builder.build()?, bytes))
}

/// A certificate with its key.
pub(crate) struct Loaded {
    pub(crate) key: Arc<CertifiedKey>,
    pub(crate) summary: CertificateSummary,
}

/// Where a chain is, and its key if that is not in the same file or beside it.
struct Place {
    chain: PathBuf,
    key: Option<PathBuf>,
}

/// Finds a file, or what there is in a directory, in the order of names.
fn find(path: &Path, places: &mut Vec<Place>) -> Result<()> {
    if !path.is_dir() {
        places.push(Place { chain: path.to_path_buf(), key: None });
        return Ok(());
    }
    let entries = std::fs::read_dir(path).with_context(|| format!("cannot read directory {}", path.display()))?;
    let entries: BTreeSet<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<_>>()?;
    let before = places.len();
    for entry in entries {
        let (chain, key) = (entry.join("fullchain.pem"), entry.join("privkey.pem"));
        let is_certificate = entry.extension().is_some_and(|extension| extension == "pem" || extension == "crt");
        if chain.is_file() && key.is_file() {
            places.push(Place { chain, key: Some(key) });
        } else if is_certificate && entry.is_file() {
            places.push(Place { chain: entry, key: None });
        }
    }
    ensure!(
        places.len() > before,
        "{} has no certificate: neither *.pem, *.crt nor a directory with fullchain.pem and privkey.pem",
        path.display()
    );
    Ok(())
}

/// Reads all of them, on as many threads as there are cores if they are many: most of the time is for the keys.
fn load_all(places: &[Place], provider: &CryptoProvider) -> Result<Vec<Loaded>> {
    let load = |place: &Place| load_file(&place.chain, place.key.as_deref(), provider);
    let load_some = |some: &[Place]| some.iter().map(load).collect::<Result<Vec<_>>>();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = cores.min(places.len() / PER_THREAD_MIN).max(1);
    if threads == 1 {
        return load_some(places);
    }
    std::thread::scope(|scope| {
        let parts = places.chunks(places.len().div_ceil(threads));
        let parts: Vec<_> = parts.map(|part| scope.spawn(move || load_some(part))).collect();
        let mut all = Vec::with_capacity(places.len());
        // In the order of their names, so that the first of several mistakes is told.
        for part in parts {
            all.extend(part.join().map_err(|_| anyhow!("a thread that reads certificates has panicked"))??);
        }
        Ok(all)
    })
}

/// Reads a chain and its key: from `key`, from the same file, or from the file beside it that ends with `.key`.
pub(crate) fn load_file(chain: &Path, key: Option<&Path>, provider: &CryptoProvider) -> Result<Loaded> {
    let text = read(chain)?;
    let certificates = certificates_in(chain, &text)?;
    let cannot = |file: &Path| format!("{} has no private key that can be read", file.display());
    let beside = chain.with_extension("key");
    let (key_file, key) = match key {
        Some(file) => (file, PrivateKeyDer::from_pem_slice(&read(file)?).with_context(|| cannot(file))?),
        None => match PrivateKeyDer::from_pem_slice(&text) {
            Ok(key) => (chain, key),
            Err(_) if beside.is_file() => {
                (&*beside, PrivateKeyDer::from_pem_slice(&read(&beside)?).with_context(|| cannot(&beside))?)
            }
            Err(_) => bail!("{} has no private key, and there is no {}", chain.display(), beside.display()),
        },
    };
    certified(chain, certificates, (key_file, key), provider)
}

/// A chain with its key, if they can be served.
fn certified(
    chain: &Path,
    certificates: Vec<CertificateDer<'static>>,
    (key_file, key): (&Path, PrivateKeyDer<'static>),
    provider: &CryptoProvider,
) -> Result<Loaded> {
    let (names, validity) = check_chain(chain, &certificates)?;
    let certified = CertifiedKey::from_der(certificates, key, provider)
        .with_context(|| format!("the key in {} does not fit {}", key_file.display(), chain.display()))?;
    let summary = CertificateSummary {
        file: chain.to_path_buf(),
        names,
        from_unix_s: validity.0,
        until_unix_s: validity.1,
        key: match certified.key.algorithm() {
            SignatureAlgorithm::RSA => "RSA",
            SignatureAlgorithm::ECDSA => "ECDSA",
            _ => "ED25519",
        },
        is_placeholder: false,
    };
    Ok(Loaded { key: Arc::new(certified), summary })
}

/// Whether the file has a chain and its key that can be served.
///
/// # Errors
/// Why not.
pub fn check_certificate(file: &Path) -> Result<()> {
    load_file(file, None, &rustls::crypto::aws_lc_rs::default_provider()).map(drop)
}

/// Whether a text has a private key in PEM form that can be read without a password.
pub fn has_private_key(text: &[u8]) -> bool {
    PrivateKeyDer::from_pem_slice(text).is_ok()
}

/// Judges a text that has a chain and its key: what people look at, its file being `file`, and the SHA-256 of the chain.
///
/// # Errors
/// Why it cannot be served. Nothing of the text is quoted, which has the key.
pub fn examine_certificate(file: &Path, text: &[u8]) -> Result<(CertificateSummary, [u8; 32])> {
    let certificates = CertificateDer::pem_slice_iter(text).collect::<Result<Vec<_>, _>>().unwrap_or_default();
    ensure!(!certificates.is_empty(), "`chain` has no certificates in PEM form");
    // The reader's reason may quote the line.
    let key = PrivateKeyDer::from_pem_slice(text).ok();
    let key = key.context("`key` has no private key in PEM form that can be read without a password")?;
    let mut digest = Digest::new(&SHA256);
    certificates.iter().for_each(|certificate| digest.update(certificate));
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let loaded = certified(Path::new("`chain`"), certificates, (Path::new("`key`"), key), &provider)?;
    let mut sha256 = [0; 32];
    sha256.copy_from_slice(digest.finish().as_ref());
    Ok((CertificateSummary { file: file.to_path_buf(), ..loaded.summary }, sha256))
}

/// A certificate for `names` that signs itself, with a key that lives as long as the process.
fn placeholder(names: &[String], provider: &CryptoProvider) -> Result<Loaded> {
    let made = rcgen::generate_simple_self_signed(names).context("cannot make a certificate that signs itself")?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let chain = vec![made.cert.der().clone()];
    let (_, validity) = check_chain(Path::new("placeholder"), &chain)?;
    let summary = CertificateSummary {
        file: PathBuf::from("placeholder"),
        names: names.to_vec(),
        from_unix_s: validity.0,
        until_unix_s: validity.1,
        key: "ECDSA",
        is_placeholder: true,
    };
    Ok(Loaded { key: Arc::new(CertifiedKey::from_der(chain, key.into(), provider)?), summary })
}

/// The bytes of a file, once.
fn read(file: &Path) -> Result<Vec<u8>> {
    let cannot = || format!("cannot read {}", file.display());
    let opened = std::fs::File::open(file).with_context(cannot)?;
    let length = opened.metadata().with_context(cannot)?.len();
    ensure!(length <= FILE_BYTES_MAX, "{} has {length} bytes; a file has {FILE_BYTES_MAX} at most", file.display());
    let mut bytes = Vec::with_capacity(length as usize);
    // The file may grow meanwhile.
    opened.take(FILE_BYTES_MAX).read_to_end(&mut bytes).with_context(cannot)?;
    Ok(bytes)
}

pub(crate) fn read_chain(file: &Path) -> Result<Vec<CertificateDer<'static>>> {
    certificates_in(file, &read(file)?)
}

fn certificates_in(file: &Path, text: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let certificates = CertificateDer::pem_slice_iter(text)
        .collect::<Result<Vec<_>, _>>()
        .with_context(|| format!("{} is no file of certificates in PEM form", file.display()))?;
    ensure!(!certificates.is_empty(), "{} has no certificate", file.display());
    Ok(certificates)
}

/// The names and the validity of a chain's first certificate, if each of the others has issued the one before.
fn check_chain(file: &Path, chain: &[CertificateDer<'_>]) -> Result<(Vec<String>, (i64, i64))> {
    ensure!(chain.len() <= CHAIN_MAX, "{} has {} certificates in one chain", file.display(), chain.len());
    let mut parsed: Vec<X509Certificate<'_>> = Vec::with_capacity(chain.len());
    for der in chain {
        let read =
            X509Certificate::from_der(der).with_context(|| format!("{}: not an X.509 certificate", file.display()));
        parsed.push(read?.1);
    }
    for (at, pair) in parsed.windows(2).enumerate() {
        ensure!(
            pair[0].issuer().as_raw() == pair[1].subject().as_raw(),
            "{}: certificate {} is issued by \"{}\", but the next one is of \"{}\": write the chain from the server's \
             certificate to its issuers",
            file.display(),
            at + 1,
            pair[0].issuer(),
            pair[1].subject()
        );
    }
    let leaf = parsed.first().context("there is no certificate")?;
    let names = leaf.subject_alternative_name().ok().flatten().map(|extension| &extension.value.general_names);
    let names = names.into_iter().flatten().filter_map(|name| match name {
        GeneralName::DNSName(name) => Some(name.to_ascii_lowercase()),
        _ => None,
    });
    let validity = leaf.validity();
    Ok((names.collect(), (validity.not_before.timestamp(), validity.not_after.timestamp())))
}

/// Certificates by name.
#[derive(Debug)]
struct Names {
    exact: HashMap<Box<str>, Keys>,
    /// By what stands behind `*.`.
    wildcard: HashMap<Box<str>, Keys>,
    default: Keys,
}

/// Certificates of one name: of one key each, ECDSA first, since signing with it costs the least.
#[derive(Clone, Debug, Default)]
struct Keys(Vec<Arc<CertifiedKey>>);

impl Keys {
    fn add(&mut self, key: &Arc<CertifiedKey>) {
        let is_same = |held: &Arc<CertifiedKey>| held.key.algorithm() == key.key.algorithm();
        // The first one of a name is served: it stands first in the configuration.
        if !self.0.iter().any(is_same) {
            self.0.push(Arc::clone(key));
            self.0.sort_by_key(|key| key.key.algorithm() != SignatureAlgorithm::ECDSA);
        }
    }

    fn for_client(&self, hello: &ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let fits = |key: &&Arc<CertifiedKey>| key.key.choose_scheme(hello.signature_schemes()).is_some();
        self.0.iter().find(fits).or(self.0.first()).cloned()
    }
}

impl Names {
    /// `None`: there are none.
    fn new(loaded: Vec<Loaded>) -> Option<Names> {
        let first = loaded.first()?;
        let mut names = Names { exact: HashMap::new(), wildcard: HashMap::new(), default: Keys::default() };
        names.default.add(&first.key);
        for loaded in &loaded {
            if loaded.summary.names == first.summary.names {
                names.default.add(&loaded.key);
            }
            for name in &loaded.summary.names {
                let keys = match name.strip_prefix("*.") {
                    Some(suffix) => names.wildcard.entry(suffix.into()).or_default(),
                    None => names.exact.entry(name.as_str().into()).or_default(),
                };
                keys.add(&loaded.key);
            }
        }
        Some(names)
    }
}

impl ResolvesServerCert for Names {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let Some(asked) = hello.server_name() else { return self.default.for_client(&hello) };
        // rustls gives names in lower case.
        let wildcard = || self.wildcard.get(asked.split_once('.')?.1);
        self.exact.get(asked).or_else(wildcard).unwrap_or(&self.default).for_client(&hello)
    }
}
