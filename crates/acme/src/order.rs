//! One order: the CA asks for a proof that the name leads here, and signs a certificate for a new key.

use crate::transport::Transport;
use crate::{ChallengeAnswer, ChallengeKind, Host, WantedName};
use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeType, Error, Identifier, KeyAuthorization, NewOrder,
    Order, OrderStatus, Problem, RetryPolicy,
};
use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// How long the CA may take to judge an answer, and to sign.
const POLL_TIMEOUT: Duration = Duration::from_secs(90);
/// Letters of a token (RFC 8555, 8.1: base64url).
const TOKEN_MAX: usize = 256;

/// Why there is no certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) why: String,
    /// Whether other names would fail for it, too.
    pub(crate) is_of_authority: bool,
    /// The time that the CA asks to wait for.
    pub(crate) retry_after: Option<Duration>,
    /// Whether the order is worth another attempt at once.
    pub(crate) again: Again,
}

/// What an order that failed may succeed with at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    /// Nothing: it waits.
    Later,
    /// Another nonce, since the CA has refused one (RFC 8555, 6.5).
    FreshNonce,
    /// Another account, since the CA does not know this one (any more).
    NewAccount,
}

/// The problem of a request whose nonce the CA has refused.
const BAD_NONCE: &str = "urn:ietf:params:acme:error:badNonce";
/// The problem of a request by an account that the CA does not know.
const NO_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

impl Again {
    fn after(error: &Error) -> Again {
        let Error::Api(problem) = error else { return Again::Later };
        match problem.r#type.as_deref() {
            Some(BAD_NONCE) => Again::FreshNonce,
            Some(NO_ACCOUNT) => Again::NewAccount,
            _ => Again::Later,
        }
    }
}

impl Failure {
    /// One that concerns all names.
    pub(crate) fn of_authority(about: &str, error: &anyhow::Error, transport: &Transport) -> Failure {
        Failure {
            why: format!("{about}: {error:#}"),
            is_of_authority: true,
            retry_after: transport.retry_after(),
            again: error.downcast_ref().map_or(Again::Later, Again::after),
        }
    }

    /// One of this name, or one of the CA if it says so, or does not speak sense.
    fn of(error: &Error, transport: &Transport) -> Failure {
        let is_of_authority = match error {
            Error::Api(problem) => problem.r#type.as_deref().is_some_and(|kind| OF_AUTHORITY.contains(&kind)),
            Error::Timeout(_) => false,
            _ => true,
        };
        let why = match error {
            Error::Api(problem) => said(problem),
            Error::Timeout(_) => format!("the CA has not decided within {} s", POLL_TIMEOUT.as_secs()),
            error => error.to_string(),
        };
        let retry_after = transport.retry_after();
        Failure { why, is_of_authority, retry_after, again: Again::after(error) }
    }

    /// One of this name.
    pub(crate) fn of_name(why: impl Into<String>) -> Failure {
        Failure { why: why.into(), is_of_authority: false, retry_after: None, again: Again::Later }
    }
}

/// Problems that other names would have, too (RFC 8555, 6.7).
const OF_AUTHORITY: [&str; 5] = [
    "urn:ietf:params:acme:error:serverInternal",
    NO_ACCOUNT,
    "urn:ietf:params:acme:error:userActionRequired",
    "urn:ietf:params:acme:error:externalAccountRequired",
    BAD_NONCE,
];

/// The CA's text for people, without control characters.
fn said(problem: &Problem) -> String {
    let all = std::iter::once((&problem.r#type, &problem.detail));
    let all = all.chain(problem.subproblems.iter().map(|sub| (&sub.r#type, &sub.detail)));
    let one = |(kind, detail): (&Option<String>, &Option<String>)| {
        let kind = kind.as_deref().map(|kind| kind.rsplit(':').next().unwrap_or(kind));
        format!("{}: {}", kind.unwrap_or("problem"), detail.as_deref().unwrap_or("the CA gives no reason"))
    };
    let text = all.map(one).collect::<Vec<_>>().join("; ");
    text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(500).collect()
}

/// The parts that an order needs.
#[derive(Clone)]
pub(crate) struct Ordering {
    pub(crate) account: Account,
    pub(crate) transport: Transport,
    pub(crate) name: WantedName,
    /// The certificate that the new one replaces (RFC 9773, 5).
    pub(crate) replaces: Option<CertificateIdentifier<'static>>,
    pub(crate) host: Arc<dyn Host>,
}

impl Ordering {
    /// Orders, and returns chain and key in PEM form. Answers to challenges are in force afterwards, too: the caller withdraws
    /// them.
    pub(crate) async fn obtain(self) -> Result<String, Failure> {
        let mut order = self.order().await?;
        self.authorize(&mut order).await?;
        let poll = RetryPolicy::new().initial_delay(Duration::from_millis(500)).backoff(1.5).timeout(POLL_TIMEOUT);
        match order.poll_ready(&poll).await {
            Ok(OrderStatus::Ready) => {}
            verdict => return Err(self.not_ready(&mut order, verdict.err()).await),
        }
        let broken = |error: rcgen::Error| Failure::of_name(format!("no certificate request can be made: {error}"));
        let mut wanted = CertificateParams::new(vec![self.name.name.clone()]).map_err(broken)?;
        wanted.distinguished_name = DistinguishedName::new();
        let key = KeyPair::generate().map_err(broken)?;
        let request = wanted.serialize_request(&key).map_err(broken)?;
        order.finalize_csr(request.der()).await.map_err(|error| self.failed(error))?;
        let chain = order.poll_certificate(&poll).await.map_err(|error| self.failed(error))?;
        if !chain.contains("-----BEGIN CERTIFICATE-----") || chain.contains("PRIVATE KEY") {
            return Err(Failure::of_name("the CA has sent something else than a chain of certificates"));
        }
        Ok(format!("{}\n{}", chain.trim_end(), key.serialize_pem()))
    }

    fn failed(&self, error: Error) -> Failure {
        Failure::of(&error, &self.transport)
    }

    /// Makes the order, as a replacement if the CA knows such.
    async fn order(&self) -> Result<Order, Failure> {
        let names = [Identifier::Dns(self.name.name.clone())];
        if let Some(replaces) = self.replaces.clone() {
            match self.account.new_order(&NewOrder::new(&names).replaces(replaces)).await {
                Ok(order) => return Ok(order),
                // The order begins again, as a replacement.
                Err(error) if Again::after(&error) != Again::Later => return Err(self.failed(error)),
                // The CA does not know the old certificate, or has replaced it already: the order is one like any other.
                Err(Error::Api(_) | Error::Unsupported(_)) => {}
                Err(error) => return Err(self.failed(error)),
            }
        }
        self.account.new_order(&NewOrder::new(&names)).await.map_err(|error| self.failed(error))
    }

    /// Answers what the CA asks for.
    async fn authorize(&self, order: &mut Order) -> Result<(), Failure> {
        let mut authorizations = order.authorizations();
        while let Some(next) = authorizations.next().await {
            let mut authorization = next.map_err(|error| self.failed(error))?;
            if authorization.status == AuthorizationStatus::Valid {
                continue;
            }
            if authorization.identifier().to_string() != self.name.name {
                return Err(Failure::of_name("the CA asks for a proof of another name"));
            }
            let kind = match self.name.challenge {
                ChallengeKind::Http01 => ChallengeType::Http01,
                ChallengeKind::TlsAlpn01 => ChallengeType::TlsAlpn01,
            };
            let Some(mut challenge) = authorization.challenge(kind) else {
                let kind = self.name.challenge.name();
                return Err(Failure::of_name(format!("the CA does not offer {kind} for this name")));
            };
            let answer = self.answer(&challenge.token, &challenge.key_authorization())?;
            let (done, is_done) = oneshot::channel();
            self.host.answer(vec![answer], done);
            if is_done.await.is_err() {
                return Err(Failure::of_name("the answer to the challenge could not be put into force"));
            }
            challenge.set_ready().await.map_err(|error| self.failed(error))?;
        }
        Ok(())
    }

    fn answer(&self, token: &str, proof: &KeyAuthorization) -> Result<ChallengeAnswer, Failure> {
        let is_letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
        if token.is_empty() || token.len() > TOKEN_MAX || !token.bytes().all(is_letter) {
            return Err(Failure::of_name("the CA's challenge has a token that is none"));
        }
        match self.name.challenge {
            ChallengeKind::Http01 => {
                let path = format!("/.well-known/acme-challenge/{token}");
                Ok(ChallengeAnswer::Http { path, body: proof.as_str().to_owned() })
            }
            ChallengeKind::TlsAlpn01 => {
                let name = self.name.name.clone();
                let made = challenge_certificate(&name, proof.digest().as_ref());
                let (certificate, key) =
                    made.map_err(|error| Failure::of_name(format!("no certificate for tls-alpn-01: {error}")))?;
                Ok(ChallengeAnswer::TlsAlpn { name, certificate, key })
            }
        }
    }

    /// Why an order has not become ready: the error that the CA found with an answer, or `error`, that of the last request.
    async fn not_ready(&self, order: &mut Order, error: Option<Error>) -> Failure {
        let is_invalid = order.state().status == OrderStatus::Invalid;
        match error {
            // A request that was refused, for its nonce for example, says nothing about the order.
            Some(error) if !is_invalid => self.failed(error),
            error => match (self.refused_answer(order).await, error) {
                (Ok(Some(problem)), _) => {
                    Failure { retry_after: self.transport.retry_after(), ..Failure::of_name(said(&problem)) }
                }
                (_, Some(error)) => self.failed(error),
                (Ok(None), None) => Failure::of_name("the CA finds the order invalid and gives no reason"),
                (Err(unread), None) => {
                    Failure::of_name(format!("the CA finds the order invalid; its reason cannot be read: {unread}"))
                }
            },
        }
    }

    /// The error that the CA found with an answer. `order` was fetched after that, so its authorizations are fetched anew.
    async fn refused_answer(&self, order: &mut Order) -> Result<Option<Problem>, Error> {
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let authorization = authorization?;
            if let Some(problem) = authorization.challenges.iter().find_map(|challenge| challenge.error.clone()) {
                return Ok(Some(problem));
            }
        }
        Ok(None)
    }
}

/// A certificate that answers tls-alpn-01 (RFC 8737, 3), and its key.
fn challenge_certificate(name: &str, digest: &[u8]) -> Result<(Vec<u8>, Vec<u8>), rcgen::Error> {
    let mut wanted = CertificateParams::new(vec![name.to_owned()])?;
    wanted.distinguished_name = DistinguishedName::new();
    wanted.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let key = KeyPair::generate()?;
    Ok((wanted.self_signed(&key)?.der().to_vec(), key.serialize_der()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use http::{Request, Response};
    use instant_acme::{BodyWrapper, BytesResponse, HttpClient, NewAccount, Subproblem};
    use std::path::Path;
    use std::pin::Pin;

    /// A CA with one order: each request for its state gets the next of these answers, status and body.
    struct ScriptedCa(std::sync::Mutex<Vec<(u16, &'static str)>>);

    impl HttpClient for ScriptedCa {
        fn request(
            &self,
            request: Request<BodyWrapper<Bytes>>,
        ) -> Pin<Box<dyn Future<Output = Result<BytesResponse, Error>> + Send>> {
            const DIRECTORY: &str =
                r#"{"newNonce":"https://ca/nonce","newAccount":"https://ca/account","newOrder":"https://ca/new"}"#;
            const ORDER: &str =
                r#"{"status":"pending","authorizations":["https://ca/proof"],"finalize":"https://ca/end"}"#;
            let (status, body) = match request.uri().path() {
                "/directory" => (200, DIRECTORY),
                "/new" => (201, ORDER),
                "/proof" => {
                    (200, r#"{"status":"invalid","identifier":{"type":"dns","value":"a.test"},"challenges":[]}"#)
                }
                "/order" => self.0.lock().unwrap().remove(0),
                _ => (200, "{}"),
            };
            let place = if request.uri().path() == "/new" { "https://ca/order" } else { "https://ca/me" };
            let response = Response::builder().status(status).header("Replay-Nonce", "n").header("Location", place);
            let (parts, ()) = response.body(()).unwrap().into_parts();
            Box::pin(std::future::ready(Ok(BytesResponse { parts, body: Box::new(Bytes::from(body)) })))
        }
    }

    struct NoHost;

    impl Host for NoHost {
        fn answer(&self, _: Vec<ChallengeAnswer>, _: oneshot::Sender<()>) {}
        fn check(&self, _: &Path) -> Result<(), String> {
            Ok(())
        }
        fn obtained(&self) {}
        fn log(&self, _: &str) {}
    }

    /// The failure of an order if requests for its state get these answers.
    fn not_ready(answers: &[(u16, &'static str)]) -> Failure {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let ca = Box::new(ScriptedCa(std::sync::Mutex::new(answers.to_vec())));
            let wanted = NewAccount { contact: &[], terms_of_service_agreed: true, only_return_existing: false };
            let opened = Account::builder_with_http(ca).create(&wanted, "https://ca/directory".into(), None).await;
            let name = WantedName { name: "a.test".into(), challenge: ChallengeKind::Http01 };
            let transport = Transport::with_roots(rustls::RootCertStore::empty()).unwrap();
            let ordering =
                Ordering { account: opened.unwrap().0, transport, name, replaces: None, host: Arc::new(NoHost) };
            let mut order = ordering.order().await.unwrap();
            let verdict = order.poll_ready(&RetryPolicy::new()).await;
            ordering.not_ready(&mut order, verdict.err()).await
        })
    }

    #[test]
    fn refused_poll_is_not_taken_for_an_invalid_order() {
        const REFUSED: (u16, &str) = (400, r#"{"type":"urn:ietf:params:acme:error:badNonce","detail":"another"}"#);
        assert_eq!(not_ready(&[REFUSED; 3]).again, Again::FreshNonce);
    }

    #[test]
    fn error_of_the_order_is_told_if_its_answers_have_none() {
        const BROKEN: &str = r#"{"status":"invalid","authorizations":["https://ca/proof"],"finalize":"https://ca/end",
            "error":{"type":"urn:ietf:params:acme:error:dns","detail":"no such name"}}"#;
        assert_eq!(not_ready(&[(200, BROKEN)]).why, "dns: no such name");
    }

    #[test]
    fn what_the_ca_says_is_one_bounded_line() {
        let problem = |kind: &str, detail: String| Problem {
            r#type: Some(kind.into()),
            detail: Some(detail),
            status: Some(400),
            subproblems: Vec::new(),
        };
        let mut told = problem("urn:ietf:params:acme:error:connection", "no\nroute\x1b[31m".into());
        told.subproblems.push(Subproblem { identifier: None, r#type: None, detail: None });
        assert_eq!(said(&told), "connection: no route [31m; problem: the CA gives no reason");
        assert_eq!(said(&problem("x", "é".repeat(9000))).chars().count(), 500);
    }

    #[test]
    fn challenge_certificate_has_the_critical_extension() {
        let (certificate, _) = challenge_certificate("a.test", &[7; 32]).unwrap();
        let (_, parsed) = x509_parser::parse_x509_certificate(&certificate).unwrap();
        let names = parsed.subject_alternative_name().unwrap().unwrap();
        assert_eq!(names.value.general_names.len(), 1);
        // RFC 8737, 6.1: id-pe-acmeIdentifier.
        let ours = parsed.extensions().iter().find(|one| one.oid.to_id_string() == "1.3.6.1.5.5.7.1.31").unwrap();
        assert!(ours.critical && ours.value == [&[4, 32][..], &[7; 32]].concat());
    }
}
