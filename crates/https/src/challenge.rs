//! Handshakes by which a CA looks whether a name leads here: tls-alpn-01 (RFC 8737).
//!
//! They have a configuration of their own, so that neither the check of clients' certificates nor the lowest version of TLS
//! stands in their way, and no other handshake can be taken for one.

use anyhow::Result;
use rustls::ServerConfig;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::sync::Arc;

/// The only protocol that such a client offers (RFC 8737, 4).
pub(crate) const ALPN: &[u8] = b"acme-tls/1";

/// The certificates that answer open challenges.
#[derive(Clone)]
pub struct Challenges(pub(crate) Arc<ServerConfig>);

impl Challenges {
    /// From certificates and their keys in PKCS #8, both DER, by the names that they answer for.
    ///
    /// # Errors
    /// A key that cannot be used.
    pub fn new(answers: impl IntoIterator<Item = (String, Vec<u8>, Vec<u8>)>) -> Result<Challenges> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut names = HashMap::new();
        for (name, certificate, key) in answers {
            let chain = vec![CertificateDer::from(certificate)];
            // `CertifiedKey::from_der` compares both, and refuses the critical extension by which it answers (RFC 8737, 3).
            let key = provider.key_provider.load_private_key(PrivatePkcs8KeyDer::from(key).into())?;
            names.insert(name, Arc::new(CertifiedKey::new(chain, key)));
        }
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions()?;
        let mut config = builder.with_no_client_auth().with_cert_resolver(Arc::new(ByName(names)));
        config.alpn_protocols = vec![ALPN.to_vec()];
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.send_tls13_tickets = 0;
        Ok(Challenges(Arc::new(config)))
    }
}

/// Whether a client asks for such a certificate: it offers that protocol alone.
pub(crate) fn is_asked(hello: &ClientHello<'_>) -> bool {
    hello.alpn().is_some_and(|mut offered| offered.next() == Some(ALPN) && offered.next().is_none())
}

#[derive(Debug)]
struct ByName(HashMap<String, Arc<CertifiedKey>>);

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0.get(hello.server_name()?).cloned()
    }
}
