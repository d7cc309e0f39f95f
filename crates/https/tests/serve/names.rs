//! Certificates by the thousand: the right one is served, and what they cost is measured.

use crate::fixture::{Scratch, Site, block_on, http, self_signed, server};
use hairpin_https::{CertificateFiles, ServedCertificates, TlsOptions};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Takes every certificate, at no cost.
#[derive(Debug)]
struct Any;

impl ServerCertVerifier for Any {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ECDSA_NISTP256_SHA256]
    }
}

fn client() -> ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.dangerous().with_custom_certificate_verifier(Arc::new(Any)).with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    config
}

/// So many files, each with a certificate for a name of its own, `0.test`, `1.test` and so on, and its key.
fn write(directory: &Path, count: usize) {
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        for part in 0..cores {
            scope.spawn(move || {
                for number in (part..count).step_by(cores) {
                    let (certificate, key) = self_signed(&[&format!("{number}.test")]);
                    std::fs::write(directory.join(format!("{number}.pem")), format!("{certificate}{key}")).unwrap();
                }
            });
        }
    });
}

fn options(directory: &Path) -> TlsOptions {
    let certificates = CertificateFiles(vec![directory.to_path_buf()]);
    TlsOptions { certificates, http2: true, ..TlsOptions::default() }
}

/// A service with the certificates of a directory.
async fn site(directory: &Path) -> Site {
    let certificates = CertificateFiles(vec![directory.to_path_buf()]);
    Site::with(http(), &[server().await], |options| options.certificates = certificates.clone())
}

/// The certificate that a client gets which asks for `name`.
async fn served(site: &Site, config: &Arc<ClientConfig>, name: &str) -> Vec<u8> {
    let tcp = TcpStream::connect(site.address).await.unwrap();
    let name = ServerName::try_from(name.to_string()).unwrap();
    let stream = TlsConnector::from(Arc::clone(config)).connect(name, tcp).await.unwrap();
    stream.get_ref().1.peer_certificates().unwrap()[0].to_vec()
}

fn holds(der: &[u8], name: &str) -> bool {
    der.windows(name.len()).any(|part| part == name.as_bytes())
}

#[test]
fn each_of_many_certificates_is_served_for_its_name() {
    let scratch = Scratch::new();
    write(&scratch.0, 300);
    let served_all = ServedCertificates::load(&options(&scratch.0)).unwrap();
    let names: Vec<String> = served_all.summaries.iter().map(|summary| summary.names.concat()).collect();
    // Read by several threads, they stand in the order of their files.
    let mut sorted: Vec<String> = (0..300).map(|number| format!("{number}.pem")).collect();
    sorted.sort();
    assert_eq!(names, sorted.iter().map(|file| file.replace(".pem", ".test")).collect::<Vec<_>>());
    block_on(async {
        let (site, config) = (site(&scratch.0).await, Arc::new(client()));
        for number in [0, 7, 150, 299] {
            let name = format!("{number}.test");
            assert!(holds(&served(&site, &config, &name).await, &name), "{name}");
        }
        assert!(holds(&served(&site, &config, "other.test").await, "0.test"));
    });
}

#[test]
fn the_first_wrong_file_of_many_is_told() {
    let scratch = Scratch::new();
    write(&scratch.0, 200);
    for wrong in ["30.pem", "150.pem"] {
        std::fs::write(scratch.0.join(wrong), "nothing").unwrap();
        let said = ServedCertificates::load(&options(&scratch.0)).err().unwrap().to_string();
        assert!(said.contains(wrong), "{said}");
    }
}

/// Resident bytes of this process.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

/// Full handshakes one after the other, each with another of these names: how many a second.
fn handshakes_per_s(site: &Site, names: &[String]) -> f64 {
    let (config, count) = (Arc::new(client()), 2000);
    block_on(async {
        let began = Instant::now();
        for name in names.iter().cycle().take(count) {
            served(site, &config, name).await;
        }
        count as f64 / began.elapsed().as_secs_f64()
    })
}

#[test]
#[ignore = "a measurement: cargo test --release -p hairpin-https --test serve -- --ignored --nocapture cost_of_names"]
fn cost_of_names() {
    let many = Scratch::new();
    let began = Instant::now();
    write(&many.0, 10_000);
    println!("10,000 files made in {:.1} s", began.elapsed().as_secs_f64());
    let one = Scratch::new();
    std::fs::copy(many.0.join("0.pem"), one.0.join("0.pem")).unwrap();
    let wide = Scratch::new();
    let names: Vec<String> = (0..10_000).map(|number| format!("{number}.test")).collect();
    let (certificate, key) = self_signed(&names.iter().map(String::as_str).collect::<Vec<_>>());
    wide.write("wide.pem", &format!("{certificate}{key}"));
    for (what, scratch) in [("1 name", &one), ("10,000 files", &many), ("1 file with 10,000 names", &wide)] {
        let before = resident();
        let mut took = Vec::new();
        for _ in 0..3 {
            let began = Instant::now();
            drop(ServedCertificates::load(&options(&scratch.0)).unwrap());
            took.push(began.elapsed());
        }
        let served = ServedCertificates::load(&options(&scratch.0)).unwrap();
        let bytes = resident().saturating_sub(before);
        let files = CertificateFiles(vec![scratch.0.clone()]);
        let began = Instant::now();
        let looks: Vec<u64> = (0..10).map(|_| files.fingerprint()).collect();
        assert!(looks.iter().all(|look| *look == looks[0]));
        let look = began.elapsed() / 10;
        drop(served);
        took.sort();
        println!("{what}: read in {:?} ({:?}), about {} kB, a look at the files {look:?}", took[1], took, bytes / 1024);
    }
    let (site_of_one, site_of_many) = block_on(async { (site(&one.0).await, site(&many.0).await) });
    for round in 1..=3 {
        let [one, many] = [handshakes_per_s(&site_of_one, &names[..1]), handshakes_per_s(&site_of_many, &names)];
        println!("round {round}: full handshakes/s with 1 name {one:.0}, with 10,000 {many:.0}");
    }
}
