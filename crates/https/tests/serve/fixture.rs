//! A runtime on loopback before a real server, and clients of it.

use bytes::Bytes;
use hairpin_core::balance::{EffectiveWeights, Loads, Tables};
use hairpin_core::config::{Backend, BackendState, Pool, Service, ServiceState, Snapshot};
use hairpin_core::flow::{Endpoint, Protocol};
use hairpin_core::keys::Secret;
use hairpin_core::l7::config::{Action, Edits, Forwarded, Http, HttpLimits, Kind, Route, RouteTerms, Terminated};
use hairpin_core::l7::route::Conditions;
use hairpin_core::limit::LimitTable;
use hairpin_core::record::{Message, Record, Recorder, Records};
use hairpin_core::time::Time;
use hairpin_https::{
    BackendTls, CertificateFiles, Configuration, Runtimes, RuntimesOptions, ServedCertificates, TerminatedService,
    TicketSecret, TlsOptions,
};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Runs a test's tasks on one thread.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), future).await.expect("within a minute") })
}

/// A directory of the test's own, removed in the end.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new() -> Scratch {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("hairpin-https-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A certificate for `names`, signed by itself: certificate and key in PEM form.
pub(crate) fn self_signed(names: &[&str]) -> (String, String) {
    let names: Vec<String> = names.iter().map(ToString::to_string).collect();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

/// The `Http` of a service whose requests all go to its own backends.
pub(crate) fn http() -> Http {
    Http {
        answers: Default::default(),
        access: Box::default(),
        routes: Box::from([Route {
            conditions: Conditions::default(),
            action: Action::Forward { groups: Box::from([(0, 1)]), replace_prefix: None },
            edits: Edits::default(),
            terms: RouteTerms::default(),
        }]),
        edits: Edits::default(),
        forwarded: Forwarded { x_for: true, x_proto: true, ..Forwarded::default() },
        sticky: None,
        request_id: None,
        tracing: None,
        server_timing: false,
        upgrade: true,
        connect: false,
        proxy_protocol: None,
        reuse: true,
        limits: HttpLimits::default(),
        offload_bytes_min: None,
        timestamps: false,
    }
}

/// A service `web` and its runtime.
pub(crate) struct Site {
    pub(crate) runtimes: Runtimes,
    pub(crate) address: SocketAddr,
    /// Of `web.test`.
    pub(crate) certificate: String,
    configuration: Configuration,
    /// The records of its core.
    pub(crate) records: Arc<Mutex<Vec<Records>>>,
    _scratch: Scratch,
}

fn enter(_: usize) -> anyhow::Result<()> {
    Ok(())
}

impl Site {
    /// Before one server.
    pub(crate) fn new(http: Http, server: SocketAddr) -> Site {
        Site::with(http, &[server], |_| {})
    }

    pub(crate) fn with(http: Http, servers: &[SocketAddr], change: impl FnOnce(&mut TlsOptions)) -> Site {
        Site::of(http, servers, change, |_| {})
    }

    /// With a change to the service, too.
    pub(crate) fn of(
        http: Http,
        servers: &[SocketAddr],
        change: impl FnOnce(&mut TlsOptions),
        terminate: impl FnOnce(&mut TerminatedService),
    ) -> Site {
        let scratch = Scratch::new();
        let (certificate, key) = self_signed(&["web.test"]);
        let mut options = TlsOptions {
            certificates: CertificateFiles(vec![scratch.write("web.pem", &format!("{certificate}{key}"))]),
            http2: true,
            ..TlsOptions::default()
        };
        change(&mut options);
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let endpoint = Endpoint::new(address.ip(), address.port());
        let backend = |(number, server): (u16, &SocketAddr)| Backend {
            number,
            name: format!("server-{number}").into(),
            endpoint: Endpoint::new(server.ip(), server.port()),
            weight: 1,
            state: BackendState::Enabled,
            is_backup: false,
            connections_max: 0,
        };
        let served = ServedCertificates::load(&options).unwrap();
        let mut terminated = TerminatedService {
            number: 0,
            tls: Some(served.serve(&TicketSecret { secret: [7; 32], service: "web".to_string() })),
            accept_proxy: Arc::default(),
            handshake_timeout: Duration::from_secs(5),
            streams_max: 100,
            policy: Vec::new(),
        };
        terminate(&mut terminated);
        let service = Service {
            state: ServiceState::Active,
            name: "web".into(),
            endpoint,
            protocol: Protocol::Tcp,
            is_recorded: true,
            kind: Kind::Terminated(Box::new(Terminated { http, tls: terminated.tls.is_some(), http2: true })),
            backends: (0..).zip(servers).map(backend).collect(),
            ..Service::vacant()
        };
        let pool = Pool { addresses: Box::default(), port_first: 1, port_last: 2, time_wait: Duration::ZERO };
        let snapshot = Snapshot::new(Box::from([service]), pool);
        let configuration = Configuration {
            tables: Tables::new(&snapshot, &Tables::default()),
            snapshot: Arc::new(snapshot),
            services: vec![terminated],
            backend_tls: HashMap::new(),
            http2_backends: HashSet::new(),
            queues: HashMap::new(),
            cors: HashMap::new(),
            pages: HashMap::new(),
            basic: HashMap::new(),
            challenges: None,
        };
        let records = Arc::new(Mutex::new(Vec::new()));
        let made = Arc::clone(&records);
        let runtimes_options = RuntimesOptions {
            loads: Loads::default(),
            effective_weights: EffectiveWeights::default(),
            secret: Secret::new([1, 2]),
            seed: 3,
            clients_max: 1000,
            now: || Time::ZERO,
            limits: LimitTable::own(1024, Secret::new([1, 2])),
            recorder: Arc::new(move || {
                let (recorder, records) = Recorder::new(1 << 16);
                made.lock().unwrap().push(records);
                recorder
            }),
            enter,
            thread_time: || Duration::ZERO,
        };
        let runtimes =
            Runtimes::start(&runtimes_options, &configuration, &[0], vec![vec![(endpoint, socket)]]).unwrap();
        Site { runtimes, address, certificate, configuration, records, _scratch: scratch }
    }

    /// Has the service's backends speak TLS from now on.
    pub(crate) fn set_backend_tls(&self, tls: &BackendTls) {
        self.set_backends(Some(tls), false);
    }

    /// Says how the service's backends are spoken with from now on.
    pub(crate) fn set_backends(&self, tls: Option<&BackendTls>, http2: bool) {
        let backend_tls = tls.map(|tls| (0, tls.clone())).into_iter().collect();
        let http2_backends = HashSet::from_iter(http2.then_some(0));
        let configuration = Configuration { backend_tls, http2_backends, ..self.configuration.clone() };
        let endpoint = Endpoint::new(self.address.ip(), self.address.port());
        // Where there is a socket already, another one is closed at once.
        let listening = vec![vec![(endpoint, TcpListener::bind("127.0.0.1:0").unwrap())]];
        self.runtimes.configure(&configuration, listening).unwrap();
    }

    /// What the only core has counted.
    pub(crate) fn counted(&self) -> hairpin_https::CoreReading {
        self.runtimes.refresh(Duration::from_secs(5));
        self.runtimes.readings().remove(0)
    }

    /// The next record of an exchange.
    pub(crate) async fn record(&self) -> Record {
        loop {
            let mut next = None;
            for records in self.records.lock().unwrap().iter_mut() {
                records.read(|message| match message {
                    Message::Whole(record, _) => next = Some(record),
                    Message::Begun(..) | Message::Ended(_) => {}
                });
            }
            match next {
                Some(record) => return record,
                None => tokio::time::sleep(Duration::from_millis(2)).await,
            }
        }
    }

    /// A TLS connection of a client that offers these protocols.
    pub(crate) async fn connect(&self, protocols: &[&[u8]]) -> TlsStream<TcpStream> {
        let mut config = self.client_config();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let tcp = TcpStream::connect(self.address).await.unwrap();
        shake_hands(config, tcp).await.unwrap()
    }

    pub(crate) fn client_config(&self) -> ClientConfig {
        use rustls::pki_types::CertificateDer;
        use rustls::pki_types::pem::PemObject;
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth()
    }

    /// A client of HTTP/2.
    pub(crate) async fn http2(&self) -> h2::client::SendRequest<Bytes> {
        let (client, connection) = h2::client::handshake(self.connect(&[b"h2"]).await).await.unwrap();
        tokio::spawn(async move {
            let _ = connection.await;
        });
        client
    }
}

/// A TLS connection over one that is there.
pub(crate) async fn shake_hands(config: ClientConfig, tcp: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
    let name = ServerName::try_from("web.test").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

/// `n` bytes that say where they are.
pub(crate) fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|at| (at * 7 + at / 251) as u8).collect()
}

pub(crate) type Body = BoxBody<Bytes, Infallible>;

/// A server of HTTP/1.1: `/bytes/N` and `/chunked/N` give the pattern, the second with a trailer, `/echo` gives back the body,
/// `/head` says which request there was.
pub(crate) async fn server() -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let serve =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            tokio::spawn(async move {
                let _ = serve.await;
            });
        }
    });
    address
}

pub(crate) async fn answer(request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    let path = request.uri().path().to_string();
    let number = || path.rsplit('/').next().and_then(|last| last.parse().ok()).unwrap_or(0);
    let body = match &path {
        path if path.starts_with("/bytes/") => Full::new(Bytes::from(pattern(number()))).boxed(),
        path if path.starts_with("/chunked/") => {
            let data = pattern(number());
            let pieces: Vec<_> = data.chunks(1000).map(|piece| Frame::data(Bytes::copy_from_slice(piece))).collect();
            let mut trailers = http::HeaderMap::new();
            trailers.insert("x-sum", http::HeaderValue::from(data.len()));
            let frames = pieces.into_iter().chain([Frame::trailers(trailers)]);
            let stream = StreamBody::new(Frames(frames.collect()));
            let mut response = Response::new(stream.boxed());
            response.headers_mut().insert("trailer", http::HeaderValue::from_static("x-sum"));
            return Ok(response);
        }
        path if path.starts_with("/echo") => {
            let body = request.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            Full::new(body).boxed()
        }
        _ => {
            let mut text = format!("{} {}\n", request.method(), request.uri());
            for (name, value) in request.headers() {
                text.push_str(&format!("{name}: {}\n", String::from_utf8_lossy(value.as_bytes())));
            }
            Full::new(Bytes::from(text)).boxed()
        }
    };
    Ok(Response::new(body))
}

/// Frames of a body, one after the other.
struct Frames(std::collections::VecDeque<Frame<Bytes>>);

impl futures_core::Stream for Frames {
    type Item = Result<Frame<Bytes>, Infallible>;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        std::task::Poll::Ready(self.0.pop_front().map(Ok))
    }
}
