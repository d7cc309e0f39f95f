//! The connection to the collector: HTTP/1.1, over TLS where the endpoint says so, kept from one batch to the next. Answers are
//! bounded, and redirects are not followed.

use super::settings::{CollectorSettings, Endpoint};
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;
use tokio_rustls::TlsConnector;

/// Bytes of an answer of the collector at most.
pub(crate) const ANSWER_BYTES_MAX: usize = 64 * 1024;
const AGENT: &str = concat!("hairpin/", env!("CARGO_PKG_VERSION"));
/// The type of OTLP's messages.
pub(super) const PROTOBUF: &str = "application/x-protobuf";

/// What the collector answers.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// `Content-Type`; empty if it has none.
    pub(super) kind: Vec<u8>,
    /// `Retry-After`.
    pub(super) retry_after: Option<Duration>,
    pub(super) body: Bytes,
}

/// The way to the collector.
#[derive(Default)]
pub(super) struct Connection {
    settings: Option<CollectorSettings>,
    open: Option<Open>,
}

/// An open connection, between two requests.
struct Open {
    sender: SendRequest<Full<Bytes>>,
    driver: AbortHandle,
}

impl Drop for Open {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Connection {
    /// Posts a message. Dropped before it is done, it leaves no open connection.
    ///
    /// # Errors
    /// The collector cannot be reached, or there is no whole answer.
    pub(super) async fn post(&mut self, settings: &CollectorSettings, body: Bytes) -> Result<Answer> {
        if self.settings.as_ref() != Some(settings) {
            (self.settings, self.open) = (Some(settings.clone()), None);
        }
        // The collector may close a connection that was kept just as a request is on its way.
        if let Some(kept) = self.open.take().filter(|kept| !kept.sender.is_closed())
            && let Ok(answer) = self.exchange(kept, settings, body.clone()).await
        {
            return Ok(answer);
        }
        let fresh = open(settings).await?;
        self.exchange(fresh, settings, body).await
    }

    async fn exchange(&mut self, mut open: Open, settings: &CollectorSettings, body: Bytes) -> Result<Answer> {
        open.sender.ready().await.context("the connection has ended")?;
        let response = open.sender.send_request(request(settings, body)?).await.context("it does not answer")?;
        let answer = read(response).await?;
        self.open = Some(open);
        Ok(answer)
    }
}

fn request(settings: &CollectorSettings, body: Bytes) -> Result<Request<Full<Bytes>>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = settings.endpoint.path.parse()?;
    let headers = request.headers_mut();
    headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    headers.extend(settings.headers.clone());
    headers.insert(HOST, HeaderValue::from_str(&settings.endpoint.authority())?);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(PROTOBUF));
    Ok(request)
}

async fn read(response: Response<Incoming>) -> Result<Answer> {
    let (parts, body) = response.into_parts();
    let retry_after = parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
    let body = match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) => {
            anyhow::bail!("its answer cannot be read, or has more than {ANSWER_BYTES_MAX} bytes: {error}")
        }
    };
    let kind = parts.headers.get(CONTENT_TYPE).map_or(Vec::new(), |kind| kind.as_bytes().to_ascii_lowercase());
    Ok(Answer { status: parts.status, kind, retry_after: retry_after.and_then(pause), body })
}

/// The pause that `Retry-After` asks for: seconds, or a date, up to which it lasts (RFC 9110, 10.2.3).
fn pause(asked: &str) -> Option<Duration> {
    let asked = asked.trim();
    if let Ok(seconds) = asked.parse() {
        return Some(Duration::from_secs(seconds));
    }
    // One that is over asks for no pause.
    Some(httpdate::parse_http_date(asked).ok()?.duration_since(SystemTime::now()).unwrap_or_default())
}

async fn open(settings: &CollectorSettings) -> Result<Open> {
    let Endpoint { is_tls, host, port, .. } = &settings.endpoint;
    // An IPv6 address stands in brackets.
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let tcp = TcpStream::connect((bare, *port)).await.with_context(|| format!("cannot connect to {host}:{port}"))?;
    if !is_tls {
        return speak(tcp).await;
    }
    let name = ServerName::try_from(bare.to_owned()).with_context(|| format!("{host} is no name of a server"))?;
    let tls = tls(&settings.roots)?.connect(name, tcp).await.with_context(|| format!("no TLS with {host}:{port}"))?;
    speak(tls).await
}

async fn speak(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Open> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let driver = tokio::spawn(async move {
        // Its error is that of the request, or of a connection that nothing waits for.
        let _ = connection.await;
    });
    Ok(Open { sender, driver: driver.abort_handle() })
}

/// The roots are read for each connection, so that a file that was exchanged counts.
fn tls(file: &Path) -> Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    let shown = file.display();
    for certificate in CertificateDer::pem_file_iter(file).with_context(|| format!("cannot read {shown}"))? {
        // One that cannot be used takes nothing from the others.
        let _ = roots.add(certificate.with_context(|| format!("{shown} is no file of certificates in PEM form"))?);
    }
    ensure!(!roots.is_empty(), "{shown} has no certificate of a CA: install ca-certificates, or set `endpoint_roots`");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
    Ok(TlsConnector::from(Arc::new(config.with_root_certificates(roots).with_no_client_auth())))
}
