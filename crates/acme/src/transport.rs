//! Requests to the CA: HTTP/1.1 over TLS, a connection for each, bounded in time and bytes. Redirects are not followed.

use crate::Authority;
use anyhow::{Context, Result, bail, ensure};
use bytes::Bytes;
use http::header::{CONTENT_TYPE, HOST, HeaderValue, RETRY_AFTER, USER_AGENT};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use instant_acme::{BodyWrapper, BytesResponse, Error, HttpClient};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// From the look-up of the CA's name until its answer is complete.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of an answer of the CA.
pub const ANSWER_BYTES_MAX: usize = 256 * 1024;
/// The longest `Retry-After`, in seconds, that is passed on: the crate adds it to the time without a check.
const RETRY_AFTER_MAX_S: u64 = 86_400;
const AGENT: &str = concat!("hairpin/", env!("CARGO_PKG_VERSION"));

/// How the CA is reached.
#[derive(Clone)]
pub(crate) struct Transport {
    tls: TlsConnector,
    /// The time that the CA's last refusal asked to wait for.
    retry_after: Arc<Mutex<Option<Duration>>>,
}

impl Transport {
    /// Reads the CAs that the server's certificate is judged by.
    pub(crate) fn new(authority: &Authority) -> Result<Transport> {
        let file = authority.roots.display();
        let mut roots = RootCertStore::empty();
        for certificate in
            CertificateDer::pem_file_iter(&authority.roots).with_context(|| format!("cannot read {file}"))?
        {
            // One that cannot be used takes nothing from the others.
            let _ = roots.add(certificate.with_context(|| format!("{file} is no file of certificates in PEM form"))?);
        }
        ensure!(
            !roots.is_empty(),
            "{file} has no certificate of a CA: install ca-certificates, or set `directory_roots`"
        );
        Transport::with_roots(roots)
    }

    pub(crate) fn with_roots(roots: RootCertStore) -> Result<Transport> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let config = config.with_root_certificates(roots).with_no_client_auth();
        Ok(Transport { tls: TlsConnector::from(Arc::new(config)), retry_after: Arc::default() })
    }

    /// The time that the CA's last refusal asked to wait for.
    pub(crate) fn retry_after(&self) -> Option<Duration> {
        *self.retry_after.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn exchange(&self, request: Request<BodyWrapper<Bytes>>) -> Result<BytesResponse> {
        let uri = request.uri().clone();
        let host = uri.host().context("the URL names no host")?.to_owned();
        ensure!(uri.scheme_str() == Some("https"), "the CA names the URL {uri}, which is not https");
        let stream = self.connect(&host, uri.port_u16().unwrap_or(443)).await?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let connection = tokio::spawn(connection);
        let answered = sender.send_request(origin_form(request, &uri)?).await;
        let result = match answered {
            Ok(response) => self.read(response).await,
            Err(error) => Err(error).context("the CA does not answer"),
        };
        connection.abort();
        result
    }

    async fn connect(&self, host: &str, port: u16) -> Result<tokio_rustls::client::TlsStream<TcpStream>> {
        // An IPv6 address stands in brackets.
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(bare.to_owned()).with_context(|| format!("{host} is no name of a server"))?;
        let tcp = TcpStream::connect((bare, port)).await.with_context(|| format!("cannot connect to {host}:{port}"))?;
        self.tls.connect(name, tcp).await.with_context(|| format!("no TLS with {host}:{port}"))
    }

    /// Reads the answer, and takes from it what must not get further.
    async fn read(&self, response: Response<hyper::body::Incoming>) -> Result<BytesResponse> {
        let (mut parts, body) = response.into_parts();
        if let Some(asked) = parts.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()) {
            // A date is rare, and as good as a minute.
            let seconds = asked.trim().parse::<u64>().unwrap_or(60).min(RETRY_AFTER_MAX_S);
            parts.headers.insert(RETRY_AFTER, HeaderValue::from(seconds));
            if parts.status.is_client_error() || parts.status.is_server_error() {
                let wait = Some(Duration::from_secs(seconds));
                *self.retry_after.lock().unwrap_or_else(PoisonError::into_inner) = wait;
            }
        }
        let body = match Limited::new(body, ANSWER_BYTES_MAX).collect().await {
            Ok(body) => body.to_bytes(),
            Err(error) => bail!("the CA's answer cannot be read, or has more than {ANSWER_BYTES_MAX} bytes: {error}"),
        };
        let is_problem = parts
            .headers
            .get(CONTENT_TYPE)
            .is_some_and(|kind| kind.as_bytes().starts_with(b"application/problem+json"));
        let is_error = parts.status.is_client_error() || parts.status.is_server_error();
        ensure!(!is_error || is_problem, "the CA answers with status {}", words(parts.status));
        Ok(BytesResponse { parts, body: Box::new(body) })
    }
}

fn words(status: StatusCode) -> String {
    format!("{} {}", status.as_u16(), status.canonical_reason().unwrap_or_default())
}

/// The request as HTTP/1.1 sends it to the server itself.
fn origin_form(request: Request<BodyWrapper<Bytes>>, uri: &Uri) -> Result<Request<BodyWrapper<Bytes>>> {
    let (mut parts, body) = request.into_parts();
    parts.uri = uri.path_and_query().map_or("/", |path| path.as_str()).parse()?;
    let authority = uri.authority().context("the URL names no host")?;
    parts.headers.insert(HOST, HeaderValue::from_str(authority.as_str())?);
    parts.headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
    Ok(Request::from_parts(parts, body))
}

impl HttpClient for Transport {
    fn request(
        &self,
        request: Request<BodyWrapper<Bytes>>,
    ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
        let transport = self.clone();
        Box::pin(async move {
            let told = |text: String| Error::Other(text.into());
            match timeout(REQUEST_TIMEOUT, transport.exchange(request)).await {
                Ok(result) => result.map_err(|error| told(format!("{error:#}"))),
                Err(_) => Err(told(format!("the CA does not answer within {} s", REQUEST_TIMEOUT.as_secs()))),
            }
        })
    }
}
