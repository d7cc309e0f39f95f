//! The API by TCP: TLS 1.3 alone, for clients that show a certificate of the configuration's CAs, or a token of its file.
//!
//! A client without either costs a handshake and a line of the log every [`TOLD_WITHIN`]; its body is not read. Sessions are not
//! resumed, so every connection's certificate is verified anew.

use super::exchange::ApiPeer;
use super::tokens::Tokens;
use crate::config;
use crate::http_server::Closed;
use anyhow::{Context, Result, anyhow};
use hairpin_https::{CertificateFiles, CertificateSummary, ServedCertificates, TlsOptions, shown_certificate};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// How long a TLS handshake may take.
pub(crate) const HANDSHAKE_PATIENCE: Duration = Duration::from_secs(5);
/// Refused clients get one line of the log in this time; the next line says how many there were.
pub(crate) const TOLD_WITHIN: Duration = Duration::from_secs(10);

/// Where the API is served by TCP, and for whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSettings {
    /// The address that it is served at.
    pub listen: SocketAddr,
    /// The file of its certificate, with the key in it or beside it.
    pub certificate: PathBuf,
    /// The file with the CAs of clients' certificates; without one, no client shows any.
    pub client_roots: Option<PathBuf>,
    /// The file of clients' tokens; without one, every client has a certificate.
    pub tokens: Option<PathBuf>,
}

impl RemoteSettings {
    /// A number that is another one, but for chance, once any of its files has changed.
    pub(crate) fn fingerprint(&self) -> u64 {
        let files = [Some(&self.certificate), self.client_roots.as_ref(), self.tokens.as_ref()];
        CertificateFiles(files.into_iter().flatten().cloned().collect()).fingerprint()
    }
}

/// What the settings' files hold.
pub(crate) struct Credentials {
    tls: Arc<rustls::ServerConfig>,
    /// What is to be known of its certificate.
    pub(crate) summaries: Vec<CertificateSummary>,
    pub(super) tokens: Option<Tokens>,
}

impl Credentials {
    /// Reads the files.
    ///
    /// # Errors
    /// The first that cannot be used, and why.
    pub(crate) fn load(settings: &RemoteSettings) -> Result<Credentials> {
        let options = TlsOptions {
            certificates: CertificateFiles(vec![settings.certificate.clone()]),
            only_tls13: true,
            // A client without a certificate needs a token then.
            clients: settings.client_roots.clone().map(|roots| (roots, settings.tokens.is_none())),
            ..TlsOptions::default()
        };
        let served = ServedCertificates::load(&options).context("[api]")?;
        let tokens = settings.tokens.as_ref().map(|file| {
            config::api_tokens(file)
                .map_err(|(what, remedy)| anyhow!("[api] `tokens` \"{}\": {what}; {remedy}", file.display()))
        });
        Ok(Credentials { tls: served.serve_anew(), summaries: served.summaries, tokens: tokens.transpose()? })
    }

    /// Shakes hands; the client's certificate, if it has shown one, is of the CAs then.
    pub(super) fn shake_hands(
        &self,
        stream: TcpStream,
        refusals: Arc<Refusals>,
    ) -> impl Future<Output = Result<(TlsStream<TcpStream>, ApiPeer), Closed>> + Send + use<> {
        let acceptor = TlsAcceptor::from(Arc::clone(&self.tls));
        async move {
            let address = stream.peer_addr().map_err(|_| Closed::Broken)?;
            // Without it the connection is a little slower.
            let _ = stream.set_nodelay(true);
            let shaken = tokio::time::timeout(HANDSHAKE_PATIENCE, acceptor.accept(stream)).await;
            let stream = shaken.map_err(|_| Closed::Timeout)?.map_err(|error| {
                if error.get_ref().is_some_and(|inner| inner.is::<rustls::Error>()) {
                    refusals.tell(address, &format!("no TLS session: {error}"));
                    return Closed::Handshake;
                }
                // The client has left.
                Closed::Broken
            })?;
            let chain = stream.get_ref().1.peer_certificates();
            let certificate = chain.and_then(shown_certificate);
            Ok((stream, ApiPeer::Remote { address, certificate }))
        }
    }
}

/// Tells of refused clients, not of each if they are many.
pub(super) struct Refusals {
    log: fn(&str),
    /// When the last line was written, and clients refused since then.
    told: Mutex<(Option<Instant>, u64)>,
}

impl Refusals {
    pub(super) fn new(log: fn(&str)) -> Refusals {
        Refusals { log, told: Mutex::new((None, 0)) }
    }

    /// The client at `address` was refused.
    pub(super) fn tell(&self, address: SocketAddr, why: &str) {
        let untold = {
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            if told.0.is_some_and(|last| last.elapsed() < TOLD_WITHIN) {
                told.1 += 1;
                return;
            }
            told.0 = Some(Instant::now());
            std::mem::take(&mut told.1)
        };
        let more = if untold == 0 { String::new() } else { format!("; {untold} more since the last such line") };
        (self.log)(&format!("warning: API: {address} refused: {why}{more}"));
    }
}
