//! Backends that speak TLS.

use crate::fixture::{Scratch, Site, answer, block_on, http, pattern};
use crate::http1::ask;
use hairpin_core::l7::config::ProxyVersion;
use hairpin_core::l7::splice::Refused;
use hairpin_https::{BackendTls, BackendTlsOptions};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{HandshakeKind, RootCertStore, ServerConfig, SupportedProtocolVersion, version};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;

const GET: &str = "GET /bytes/10 HTTP/1.1\r\nHost: web.test\r\n\r\n";

/// A CA, in a directory of its own.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
    scratch: Scratch,
}

impl Authority {
    pub(crate) fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem, scratch: Scratch::new() }
    }

    /// A certificate for this name or address, and its key.
    fn sign(&self, name: &str) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new([name.to_string()]).unwrap().signed_by(&key, &self.issuer).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    /// What takes certificates that it has signed.
    pub(crate) fn options(&self) -> BackendTlsOptions {
        let roots = vec![self.scratch.write("ca.pem", &self.pem)];
        BackendTlsOptions { roots, name: None, verify: true, certificate: None, http2: false }
    }

    fn roots(&self) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem.as_bytes()).unwrap()).unwrap();
        roots
    }

    /// The settings of a server with a certificate for this name; `clients`: the CA of its clients, which must have
    /// certificates.
    pub(crate) fn server(
        &self,
        name: &str,
        clients: Option<&Authority>,
        versions: &[&'static SupportedProtocolVersion],
    ) -> ServerConfig {
        let (certificate, key) = self.sign(name);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder =
            ServerConfig::builder_with_provider(Arc::clone(&provider)).with_protocol_versions(versions).unwrap();
        let verifier = match clients {
            Some(clients) => WebPkiClientVerifier::builder_with_provider(Arc::new(clients.roots()), provider).build(),
            None => Ok(WebPkiClientVerifier::no_client_auth()),
        };
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        builder.with_client_cert_verifier(verifier.unwrap()).with_single_cert(chain, key).unwrap()
    }
}

/// What a server has seen: of every handshake whether it was full, and the name that was asked for.
type Seen = Arc<Mutex<Vec<(HandshakeKind, Option<String>)>>>;

/// The fixture's server over TLS.
async fn tls_server(config: ServerConfig) -> (SocketAddr, Seen) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Seen::default();
    let (acceptor, shared) = (TlsAcceptor::from(Arc::new(config)), Arc::clone(&seen));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let (acceptor, seen) = (acceptor.clone(), Arc::clone(&shared));
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(tcp).await else { return };
                let session = stream.get_ref().1;
                let name = session.server_name().map(ToString::to_string);
                seen.lock().unwrap().push((session.handshake_kind().unwrap(), name));
                let server = hyper::server::conn::http1::Builder::new();
                let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            });
        }
    });
    (address, seen)
}

fn site(servers: &[SocketAddr], options: &BackendTlsOptions) -> Site {
    let site = Site::with(http(), servers, |_| {});
    site.set_backend_tls(&BackendTls::load(options).unwrap());
    site
}

pub(crate) const ALL: &[&SupportedProtocolVersion] = &[&version::TLS13, &version::TLS12];

/// What a client is answered whose backend speaks TLS with these settings, and the site.
async fn asked(config: ServerConfig, options: &BackendTlsOptions) -> (String, Site) {
    let site = site(&[tls_server(config).await.0], options);
    let (head, _) = ask(&mut site.connect(&[]).await, GET).await;
    (head, site)
}

#[test]
fn certificate_with_the_address_is_taken() {
    block_on(async {
        let ca = Authority::new("CA");
        for versions in [&[&version::TLS13][..], &[&version::TLS12]] {
            let (server, seen) = tls_server(ca.server("127.0.0.1", None, versions)).await;
            let site = site(&[server], &ca.options());
            let mut stream = site.connect(&[]).await;
            for length in [0, 10, 100_000] {
                let request = format!("GET /bytes/{length} HTTP/1.1\r\nHost: web.test\r\n\r\n");
                let (head, body) = ask(&mut stream, &request).await;
                assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
                assert!(body == pattern(length));
            }
            let counted = site.counted().statistics;
            // Session tickets have come meanwhile, which are no response.
            assert_eq!((counted.http.reused, counted.backends[0].connections), (2, 1));
            // An address is no name to ask for.
            assert!(seen.lock().unwrap().iter().all(|(_, name)| name.is_none()));
        }
    });
}

#[test]
fn name_is_asked_for_and_verified() {
    block_on(async {
        let ca = Authority::new("CA");
        let options = BackendTlsOptions { name: Some("shop.internal".into()), ..ca.options() };
        let (server, seen) = tls_server(ca.server("shop.internal", None, ALL)).await;
        let site = site(&[server], &options);
        let (head, _) = ask(&mut site.connect(&[]).await, GET).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        assert_eq!(seen.lock().unwrap()[0].1.as_deref(), Some("shop.internal"));
    });
}

#[test]
fn wrong_certificate_is_a_failed_connection() {
    block_on(async {
        let (ca, other) = (Authority::new("CA"), Authority::new("Another"));
        for config in [ca.server("other.internal", None, ALL), other.server("127.0.0.1", None, ALL)] {
            let (head, site) = asked(config, &ca.options()).await;
            assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
            let counted = site.counted().statistics;
            assert_eq!((counted.backends[0].failed, counted.backend_handshakes_failed), (3, 3));
            assert_eq!((counted.http.refused[Refused::Unreachable as usize], counted.http.retries), (1, 2));
            assert_eq!((counted.http.backend_conns_now, counted.http.idle_now), (0, 0));
        }
    });
}

#[test]
fn unverified_certificates_are_all_taken() {
    block_on(async {
        let (ca, other) = (Authority::new("CA"), Authority::new("Another"));
        let options = BackendTlsOptions { verify: false, roots: vec!["/nowhere".into()], ..ca.options() };
        for versions in [&[&version::TLS13][..], &[&version::TLS12]] {
            let (head, _) = asked(other.server("other.internal", None, versions), &options).await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        }
    });
}

#[test]
fn backend_that_fails_the_handshake_gives_way_to_another() {
    block_on(async {
        let ca = Authority::new("CA");
        let good = tls_server(ca.server("127.0.0.1", None, ALL)).await.0;
        let bad = tls_server(ca.server("other.internal", None, ALL)).await.0;
        let clear_text = crate::fixture::server().await;
        let site = site(&[bad, clear_text, good], &ca.options());
        for _ in 0..3 {
            let (head, _) = ask(&mut site.connect(&[]).await, GET).await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        }
        let backends = site.counted().statistics.backends;
        assert!(backends[0].failed + backends[1].failed > 0 && backends[2].failed == 0);
    });
}

#[test]
fn silent_handshake_takes_as_long_as_a_connection_may() {
    block_on(async {
        let ca = Authority::new("CA");
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut http = http();
        http.limits.connect_timeout = Duration::from_millis(50);
        http.limits.connect_tries = 1;
        let site = Site::new(http, silent.local_addr().unwrap());
        site.set_backend_tls(&BackendTls::load(&ca.options()).unwrap());
        let (head, _) = ask(&mut site.connect(&[]).await, GET).await;
        assert!(head.starts_with("HTTP/1.1 504 "), "{head}");
        assert_eq!(site.counted().statistics.backends[0].failed, 1);
    });
}

#[test]
fn demanded_client_certificate_is_shown() {
    block_on(async {
        let (ca, clients) = (Authority::new("CA"), Authority::new("Clients"));
        let (certificate, key) = clients.sign("hairpin.internal");
        let together = ca.scratch.write("client.pem", &format!("{certificate}{key}"));
        let beside = ca.scratch.write("beside.pem", &certificate);
        ca.scratch.write("beside.key", &key);
        for file in [together, beside] {
            let options = BackendTlsOptions { certificate: Some(file), ..ca.options() };
            let (head, _) = asked(ca.server("127.0.0.1", Some(&clients), ALL), &options).await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        }
        // In TLS 1.3 the server says only after the handshake that it misses one.
        for versions in [&[&version::TLS13][..], &[&version::TLS12]] {
            let (head, site) = asked(ca.server("127.0.0.1", Some(&clients), versions), &ca.options()).await;
            assert!(head.starts_with("HTTP/1.1 502 "), "{head}");
            let backend = &site.counted().statistics.backends[0];
            assert!(backend.failed + backend.faults.iter().sum::<u64>() > 0);
        }
    });
}

#[test]
fn later_connections_resume_the_session() {
    block_on(async {
        let ca = Authority::new("CA");
        let (server, seen) = tls_server(ca.server("127.0.0.1", None, ALL)).await;
        let mut http = http();
        http.reuse = false;
        let site = Site::new(http, server);
        site.set_backend_tls(&BackendTls::load(&ca.options()).unwrap());
        let mut stream = site.connect(&[]).await;
        for _ in 0..4 {
            ask(&mut stream, GET).await;
        }
        let kinds: Vec<_> = seen.lock().unwrap().iter().map(|(kind, _)| *kind).collect();
        assert_eq!(kinds.len(), 4);
        assert!(kinds[1..].iter().all(|kind| *kind == HandshakeKind::Resumed), "{kinds:?}");
    });
}

#[test]
fn proxy_protocol_goes_before_the_handshake() {
    block_on(async {
        let ca = Authority::new("CA");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut http = http();
        (http.proxy_protocol, http.reuse) = (Some(ProxyVersion::V1), false);
        let site = Site::new(http, listener.local_addr().unwrap());
        site.set_backend_tls(&BackendTls::load(&ca.options()).unwrap());
        let acceptor = TlsAcceptor::from(Arc::new(ca.server("127.0.0.1", None, ALL)));
        let served = tokio::spawn(async move {
            let mut tcp = listener.accept().await.unwrap().0;
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                line.push(tcp.read_u8().await.unwrap());
            }
            let stream = acceptor.accept(tcp).await.unwrap();
            let server = hyper::server::conn::http1::Builder::new();
            let _ = server.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            String::from_utf8(line).unwrap()
        });
        let (head, _) = ask(&mut site.connect(&[]).await, GET).await;
        assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
        let line = served.await.unwrap();
        assert!(line.starts_with("PROXY TCP4 127.0.0.1 127.0.0.1 "), "{line}");
    });
}

#[test]
fn large_bodies_go_both_ways() {
    block_on(async {
        let ca = Authority::new("CA");
        let (server, _) = tls_server(ca.server("127.0.0.1", None, ALL)).await;
        let site = site(&[server], &ca.options());
        let mut stream = site.connect(&[]).await;
        let data = pattern(5_000_000);
        stream
            .write_all(format!("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n", data.len()).as_bytes())
            .await
            .unwrap();
        stream.write_all(&data).await.unwrap();
        let (_, body) = ask(&mut stream, "").await;
        assert!(body == data);
        let (_, body) = ask(&mut stream, "GET /bytes/5000000 HTTP/1.1\r\nHost: a\r\n\r\n").await;
        assert!(body == data);
        assert_eq!(site.counted().statistics.http.reused, 1);
    });
}

/// A server over TLS that answers at once, reads the request's body later, and gives it back.
async fn hesitant_server(config: ServerConfig) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut stream = acceptor.accept(tcp).await.unwrap();
                let mut read = Vec::new();
                while !read.ends_with(b"\r\n\r\n") {
                    read.push(stream.read_u8().await.unwrap());
                }
                let head = String::from_utf8(read).unwrap().to_ascii_lowercase();
                let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
                let mut body = vec![0; length.parse().unwrap()];
                let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n");
                stream.write_all(answer.as_bytes()).await.unwrap();
                stream.flush().await.unwrap();
                tokio::time::sleep(Duration::from_millis(500)).await;
                stream.read_exact(&mut body).await.unwrap();
                stream.write_all(&body).await.unwrap();
                stream.flush().await.unwrap();
            });
        }
    });
    address
}

#[test]
fn last_of_a_body_leaves_behind_a_full_socket() {
    block_on(async {
        let ca = Authority::new("CA");
        let server = hesitant_server(ca.server("127.0.0.1", None, ALL)).await;
        let site = site(&[server], &ca.options());
        let mut asked = Vec::new();
        // One of these ends where the socket is full and TLS takes the last bytes all the same: it holds up to 64 KiB.
        for length in (1..=120).map(|step| step * 50_000) {
            let stream = site.connect(&[]).await;
            asked.push(tokio::spawn(async move {
                let (mut read, mut write) = tokio::io::split(stream);
                let data = pattern(length);
                let sent = data.clone();
                let upload = tokio::spawn(async move {
                    let head = format!("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {length}\r\n\r\n");
                    write.write_all(head.as_bytes()).await.unwrap();
                    write.write_all(&sent).await.unwrap();
                    write.flush().await.unwrap();
                });
                let mut all = Vec::new();
                while all.len() < length || !all.ends_with(&data) {
                    let more = tokio::time::timeout(Duration::from_secs(20), read.read_buf(&mut all)).await;
                    assert_ne!(more.unwrap_or_else(|_| panic!("stuck: {length}")).unwrap(), 0);
                }
                upload.await.unwrap();
            }));
        }
        for asked in asked {
            asked.await.unwrap();
        }
    });
}

#[test]
fn http2_streams_go_over_tls_too() {
    block_on(async {
        let ca = Authority::new("CA");
        let (server, _) = tls_server(ca.server("127.0.0.1", None, ALL)).await;
        let site = site(&[server], &ca.options());
        let mut client = site.http2().await;
        let data = pattern(300_000);
        for _ in 0..2 {
            let request = ::http::Request::post("https://web.test/echo").body(()).unwrap();
            client = client.ready().await.unwrap();
            let (response, mut upload) = client.send_request(request, false).unwrap();
            upload.send_data(data.clone().into(), true).unwrap();
            let (read, _) = crate::http2::body(response.await.unwrap()).await;
            assert!(read == data);
        }
        assert_eq!(site.counted().statistics.http.reused, 1);
    });
}

/// A server over TLS that answers the first request of a connection and then closes it, with or without a close_notify.
async fn closing_server(config: ServerConfig, says_so: bool) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let Ok(mut stream) = acceptor.accept(tcp).await else { continue };
            let mut read = Vec::new();
            while !read.ends_with(b"\r\n\r\n") && stream.read_buf(&mut read).await.is_ok_and(|count| count > 0) {}
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            stream.flush().await.unwrap();
            if says_so {
                let _ = stream.shutdown().await;
            }
        }
    });
    address
}

#[test]
fn connection_closed_while_idle_is_not_used_again() {
    block_on(async {
        let ca = Authority::new("CA");
        for says_so in [true, false] {
            let server = closing_server(ca.server("127.0.0.1", None, ALL), says_so).await;
            let site = site(&[server], &ca.options());
            let mut stream = site.connect(&[]).await;
            for _ in 0..5 {
                // A POST: it would not be repeated.
                let (head, _) = ask(&mut stream, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n").await;
                assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            let counted = site.counted().statistics;
            assert_eq!((counted.http.reused, counted.backends[0].connections), (0, 5));
        }
    });
}

#[test]
fn tls_message_while_idle_is_no_response() {
    block_on(async {
        let ca = Authority::new("CA");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let server = listener.local_addr().unwrap();
        let acceptor = TlsAcceptor::from(Arc::new(ca.server("127.0.0.1", None, &[&version::TLS13])));
        tokio::spawn(async move {
            let tcp = listener.accept().await.unwrap().0;
            let mut stream = acceptor.accept(tcp).await.unwrap();
            loop {
                let mut read = Vec::new();
                while !read.ends_with(b"\r\n\r\n") {
                    read.push(stream.read_u8().await.unwrap());
                }
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
                stream.flush().await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
                // A KeyUpdate (RFC 8446, 4.6.3), which comes after handshakes as session tickets do.
                stream.get_mut().1.refresh_traffic_keys().unwrap();
                stream.flush().await.unwrap();
            }
        });
        let site = site(&[server], &ca.options());
        let mut stream = site.connect(&[]).await;
        for _ in 0..3 {
            let (head, _) = ask(&mut stream, GET).await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert_eq!(site.counted().statistics.http.reused, 2);
    });
}

#[test]
fn idle_connection_of_other_settings_is_not_used_again() {
    block_on(async {
        let ca = Authority::new("CA");
        let (server, seen) = tls_server(ca.server("127.0.0.1", None, ALL)).await;
        let unverified = BackendTlsOptions { verify: false, ..ca.options() };
        let site = site(&[server], &unverified);
        // The same settings, read once more, change nothing.
        for (options, expected) in [(&unverified, 1), (&unverified, 1), (&ca.options(), 2), (&ca.options(), 2)] {
            site.set_backend_tls(&BackendTls::load(options).unwrap());
            let (head, _) = ask(&mut site.connect(&[]).await, GET).await;
            assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
            assert_eq!(seen.lock().unwrap().len(), expected);
        }
    });
}

#[test]
fn wrong_files_say_what_is_wrong() {
    let ca = Authority::new("CA");
    let scratch = Scratch::new();
    let bare = scratch.write("bare.pem", &ca.sign("a.test").0);
    let empty = scratch.write("empty.pem", "");
    let refused = |options: BackendTlsOptions| format!("{:#}", BackendTls::load(&options).unwrap_err());
    let missing = scratch.0.join("missing.pem");
    for (options, expected) in [
        (BackendTlsOptions { roots: vec![missing.clone()], ..ca.options() }, "cannot read"),
        (BackendTlsOptions { roots: vec![empty], ..ca.options() }, "has no certificate"),
        (BackendTlsOptions { certificate: Some(missing), ..ca.options() }, "cannot read"),
        (BackendTlsOptions { certificate: Some(bare), ..ca.options() }, "has no private key"),
    ] {
        let said = refused(options);
        assert!(said.contains(expected) && said.contains(".pem"), "{expected}: {said}");
    }
}
