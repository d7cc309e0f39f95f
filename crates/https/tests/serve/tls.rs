//! Handshakes, certificates, and clients that speak something else.

use crate::fixture::{Scratch, Site, block_on, http, self_signed, server};
use hairpin_https::{CertificateFiles, ServedCertificates, TlsOptions};
use rustls::pki_types::ServerName;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

#[test]
fn client_that_speaks_clear_text_is_told_so() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let mut tcp = TcpStream::connect(site.address).await.unwrap();
        tcp.write_all(b"GET / HTTP/1.1\r\nHost: web.test\r\n\r\n").await.unwrap();
        let mut said = String::new();
        tcp.read_to_string(&mut said).await.unwrap();
        assert!(said.starts_with("HTTP/1.1 400 ") && said.contains("https://"), "{said}");
        assert_eq!(site.counted().statistics.clear_text, 1);
    });
}

#[test]
fn second_handshake_resumes_the_first_session() {
    block_on(async {
        let site = Site::new(http(), server().await);
        let config = Arc::new(site.client_config());
        for _ in 0..2 {
            let tcp = TcpStream::connect(site.address).await.unwrap();
            let name = ServerName::try_from("web.test").unwrap();
            let mut stream = TlsConnector::from(Arc::clone(&config)).connect(name, tcp).await.unwrap();
            stream.write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").await.unwrap();
            let mut all = Vec::new();
            stream.read_to_end(&mut all).await.unwrap();
        }
        let counted = site.counted().statistics;
        assert_eq!((counted.handshakes, counted.resumed), (2, 1));
    });
}

fn options(files: Vec<PathBuf>) -> TlsOptions {
    TlsOptions { certificates: CertificateFiles(files), http2: true, ..TlsOptions::default() }
}

fn refused(files: Vec<PathBuf>) -> String {
    match ServedCertificates::load(&options(files)) {
        Ok(_) => panic!("served"),
        Err(error) => format!("{error:#}"),
    }
}

#[test]
fn certificates_come_from_files_and_directories() {
    let scratch = Scratch::new();
    let (one, two, three) = (self_signed(&["one.test"]), self_signed(&["two.test"]), self_signed(&["*.three.test"]));
    let both = scratch.write("both.pem", &format!("{}{}", one.1, one.0));
    let beside = scratch.write("beside.crt", &two.0);
    scratch.write("beside.key", &two.1);
    let live = scratch.0.join("live");
    std::fs::create_dir_all(live.join("three.test")).unwrap();
    std::fs::write(live.join("three.test/fullchain.pem"), &three.0).unwrap();
    std::fs::write(live.join("three.test/privkey.pem"), &three.1).unwrap();
    std::fs::write(live.join("README"), "no certificate").unwrap();
    let served = ServedCertificates::load(&options(vec![both, beside, live])).unwrap();
    let names: Vec<_> = served.summaries.iter().map(|summary| summary.names.concat()).collect();
    assert_eq!(names, ["one.test", "two.test", "*.three.test"]);
    assert!(served.summaries.iter().all(|summary| summary.key == "ECDSA" && summary.until_unix_s > 0));
}

#[test]
fn wrong_certificates_say_what_is_wrong() {
    let scratch = Scratch::new();
    let (one, two) = (self_signed(&["one.test"]), self_signed(&["two.test"]));
    let none = scratch.write("none.pem", "nothing");
    let bare = scratch.write("bare.crt", &one.0);
    let mixed = scratch.write("mixed.pem", &format!("{}{}", one.0, two.1));
    let mut other = rcgen::CertificateParams::new(["ca.test".to_string()]).unwrap();
    other.distinguished_name.push(rcgen::DnType::OrganizationName, "Another");
    let other = other.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem();
    let order = scratch.write("order.pem", &format!("{}{other}{}", one.0, one.1));
    std::fs::create_dir(scratch.0.join("empty")).unwrap();
    for (file, expected) in [
        (scratch.0.join("missing.pem"), "cannot read"),
        (none, "no certificate"),
        (bare, "no private key"),
        (mixed, "does not fit"),
        (order, "write the chain from the server's"),
        (scratch.0.join("empty"), "neither *.pem"),
    ] {
        let said = refused(vec![file]);
        assert!(said.contains(expected), "{expected}: {said}");
    }
}
