//! Checks over TLS, against real servers.

use hairpin_https::{BackendTls, BackendTlsOptions};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use super::probe::{CheckFailure, CheckOutcome, probe};
use super::servers::{TestServer, fresh_address, get, response, target};
use super::{Check, CheckTarget};

fn failed(reason: &str) -> CheckOutcome {
    Err(CheckFailure::Backend(reason.into()))
}

/// A server over TLS that answers every request with this status, its certificate for `name`, and that in PEM form.
fn server(name: &str, status: u16) -> (TestServer, String) {
    let address = fresh_address();
    let name = if name == "its address" { address.ip().to_string() } else { name.to_string() };
    let made = rcgen::generate_simple_self_signed([name]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let server = TestServer::at(address, move |tcp| serve(&config, tcp, status));
    (server, made.cert.pem())
}

/// The checker may go away at any moment.
fn serve(config: &Arc<ServerConfig>, tcp: TcpStream, status: u16) {
    let session = rustls::ServerConnection::new(Arc::clone(config)).unwrap();
    let mut stream = rustls::StreamOwned::new(session, tcp);
    let mut read = Vec::new();
    let mut byte = [0];
    while !read.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte) {
            Ok(1) => read.push(byte[0]),
            _ => return,
        }
    }
    let _ = stream.write_all(&response(status, "fine"));
}

/// The outcome of a check of this server by who trusts the certificate `root`.
fn check(server: &TestServer, root: &str) -> CheckOutcome {
    let file = std::env::temp_dir().join(format!("hairpin-probe-{}-{}.pem", std::process::id(), server.address.ip()));
    std::fs::write(&file, root).unwrap();
    let options =
        BackendTlsOptions { roots: vec![file.clone()], name: None, verify: true, certificate: None, http2: false };
    let tls = Some(BackendTls::load(&options).unwrap());
    std::fs::remove_file(file).unwrap();
    probed(&CheckTarget { tls, ..target(1, server.address, Check::Https(get())) })
}

fn probed(target: &CheckTarget) -> CheckOutcome {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(probe(target))
}

#[test]
fn status_over_tls_decides() {
    let (good, pem) = server("its address", 204);
    assert_eq!(check(&good, &pem), Ok("HTTP status 204".into()));
    let (ill, pem) = server("its address", 503);
    assert_eq!(check(&ill, &pem), failed("HTTP status 503, expected 200-399"));
}

#[test]
fn wrong_certificates_have_their_reasons() {
    let (good, _) = server("its address", 200);
    let (other, pem) = server("other.internal", 200);
    assert_eq!(check(&other, &pem), failed("TLS: the certificate is for another name"));
    assert_eq!(check(&good, &pem), failed("TLS: the certificate is signed by none of the CAs in `roots`"));
}

#[test]
fn backend_without_tls_fails_the_check() {
    let (_other, pem) = server("its address", 200);
    let clear_text = TestServer::http(|_| response(200, ""));
    assert_eq!(check(&clear_text, &pem), failed("the answer is not TLS as it should be"));
    let unverified =
        BackendTlsOptions { roots: Vec::new(), name: None, verify: false, certificate: None, http2: false };
    let tls = Some(BackendTls::load(&unverified).unwrap());
    let mute = TestServer::new(|mut stream| drop(stream.read_to_end(&mut Vec::new())));
    let patience = Duration::from_millis(50);
    let silent = CheckTarget { tls, timeout: patience, ..target(1, mute.address, Check::Https(get())) };
    assert_eq!(probed(&silent), failed("no answer within 50ms"));
    let unset = probed(&target(1, mute.address, Check::Https(get())));
    assert_eq!(unset, Err(CheckFailure::Local("TLS with the backend is not configured".into())));
}
