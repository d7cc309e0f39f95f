//! Backends are told who a client is, by the certificate that it showed, and by nothing that it says.

use crate::fixture::{Scratch, Site, block_on, http, server};
use hairpin_core::l7::config::{Field, Http};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, HandshakeKind, RootCertStore, SupportedProtocolVersion};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A CA and a client with a certificate of it, whose common name is `name`.
struct Authority {
    pem: String,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
}

fn authority(name: &str) -> Authority {
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().unwrap();
    let pem = ca.self_signed(&ca_key).unwrap().pem();
    let mut params = CertificateParams::new(["client.test".to_string()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, "Shop");
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &Issuer::new(ca, ca_key)).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    Authority { pem, certificate: certificate.der().clone(), key }
}

/// A service whose backends get subject, fingerprint and verification.
fn telling() -> Http {
    let mut http = http();
    let fields = [("x-dn", "{client_subject}"), ("x-print", "{client_fingerprint}"), ("x-verify", "{client_verify}")];
    http.edits.request.set = fields.iter().map(|(name, value)| Field::parse(name, value).unwrap()).collect();
    http
}

struct Scene {
    site: Site,
    authority: Authority,
    _scratch: Scratch,
}

impl Scene {
    async fn new(name: &str) -> Scene {
        let (scratch, authority) = (Scratch::new(), authority(name));
        let roots = scratch.write("ca.pem", &authority.pem);
        let site = Site::with(telling(), &[server().await], |options| options.clients = Some((roots.clone(), false)));
        Scene { site, authority, _scratch: scratch }
    }

    fn config(&self, versions: &[&'static SupportedProtocolVersion], shows: bool) -> ClientConfig {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.site.certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap();
        let builder = builder.with_root_certificates(roots);
        match shows {
            true => {
                let chain = vec![self.authority.certificate.clone()];
                builder.with_client_auth_cert(chain, self.authority.key.clone_key()).unwrap()
            }
            false => builder.with_no_client_auth(),
        }
    }

    /// The `x-` fields that the backend gets, two requests on one connection; and whether the session was resumed.
    async fn asked(&self, config: &Arc<ClientConfig>) -> (Vec<String>, bool) {
        const FIELDS: &str = "Host: a\r\nX-Dn: CN=admin\r\nX_Print: 00\r\nX.Verify: SUCCESS\r\n";
        let tcp = TcpStream::connect(self.site.address).await.unwrap();
        let name = ServerName::try_from("web.test").unwrap();
        let mut stream = TlsConnector::from(Arc::clone(config)).connect(name, tcp).await.unwrap();
        let is_resumed = stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed);
        let requests =
            format!("GET /head HTTP/1.1\r\n{FIELDS}\r\nGET /head HTTP/1.1\r\n{FIELDS}Connection: close\r\n\r\n");
        stream.write_all(requests.as_bytes()).await.unwrap();
        let mut all = String::new();
        stream.read_to_string(&mut all).await.unwrap();
        (told(&all), is_resumed)
    }

    fn expected(&self, subject: &str) -> Vec<String> {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, &self.authority.certificate);
        let print: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        vec![format!("x-dn: {subject}"), format!("x-print: {print}"), "x-verify: SUCCESS".to_string()]
    }
}

/// What a head says of the client, other spellings included.
fn told(text: &str) -> Vec<String> {
    let of_us = |line: &&str| {
        ["x-dn", "x_dn", "x-print", "x_print", "x-verify", "x.verify"].iter().any(|it| line.starts_with(it))
    };
    text.lines().filter(of_us).map(str::to_string).collect()
}

/// What is told with each of two requests.
fn twice(told: &[String]) -> Vec<String> {
    [told, told].concat()
}

#[test]
fn backend_is_told_the_certificate_also_of_resumed_sessions() {
    block_on(async {
        let scene = Scene::new("till 7, \u{f6}\r\nX-Admin: 1").await;
        let expected = twice(&scene.expected("O=Shop,CN=till 7\\, \\C3\\B6\\0D\\0AX-Admin: 1"));
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            let config = Arc::new(scene.config(&[version], true));
            assert_eq!(scene.asked(&config).await, (expected.clone(), false), "{version:?}");
            assert_eq!(scene.asked(&config).await, (expected.clone(), true), "{version:?}");
        }
    });
}

#[test]
fn client_without_a_certificate_cannot_claim_one() {
    block_on(async {
        let scene = Scene::new("till 7").await;
        let config = Arc::new(scene.config(rustls::ALL_VERSIONS, false));
        for is_resumed in [false, true] {
            let none = vec!["x-verify: NONE".to_string(); 2];
            assert_eq!(scene.asked(&config).await, (none, is_resumed));
        }
    });
}

#[test]
fn streams_of_http2_say_the_same() {
    block_on(async {
        let scene = Scene::new("till 7").await;
        for shows in [true, false] {
            let mut config = scene.config(rustls::ALL_VERSIONS, shows);
            config.alpn_protocols = vec![b"h2".to_vec()];
            let tcp = TcpStream::connect(scene.site.address).await.unwrap();
            let tls = crate::fixture::shake_hands(config, tcp).await.unwrap();
            let (mut client, connection) = h2::client::handshake(tls).await.unwrap();
            tokio::spawn(async move {
                let _ = connection.await;
            });
            for _ in 0..2 {
                let request = http::Request::get("https://web.test/head").header("x-dn", "CN=admin");
                let request = request.header("x_print", "00").header("x-verify", "SUCCESS").body(()).unwrap();
                let (response, _) = client.send_request(request, true).unwrap();
                let mut body = response.await.unwrap().into_body();
                let mut all = Vec::new();
                while let Some(data) = body.data().await {
                    all.extend_from_slice(&data.unwrap());
                }
                let none = vec!["x-verify: NONE".to_string()];
                let expected = if shows { scene.expected("O=Shop,CN=till 7") } else { none };
                assert_eq!(told(&String::from_utf8(all).unwrap()), expected);
            }
        }
    });
}

#[test]
fn subject_that_is_too_long_is_counted_and_left_out() {
    block_on(async {
        let scene = Scene::new(&"\u{1}".repeat(400)).await;
        let config = Arc::new(scene.config(rustls::ALL_VERSIONS, true));
        let expected = twice(&scene.expected("")[1..]);
        assert_eq!(scene.asked(&config).await.0, expected);
        assert_eq!(scene.site.counted().statistics.client_subjects_too_long, 1);
    });
}
