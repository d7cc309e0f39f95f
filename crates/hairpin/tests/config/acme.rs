//! Automatic certificates.

use super::{good, said, warned};
use hairpin::config::Config;
use hairpin_acme::ChallengeKind;

const TEXT: &str = "\
interfaces = [\"eth0\"]
[acme]
terms_agreed = true
#ACME
[[service]]
listen = \"192.0.2.1:443/https\"
backends = [\"10.0.0.1:80\"]
https.acme = [\"a.test\", \"B.test\"]
";
const PLAIN: &str = "[[service]]\nlisten = \"192.0.2.1:80/http\"\nhttp.redirect_to_https = true\n";

fn challenges(config: &Config) -> Vec<(&str, ChallengeKind)> {
    let all = config.services.iter().filter_map(|service| service.https.as_ref()).flat_map(|https| &https.acme);
    all.map(|wanted| (&*wanted.name, wanted.challenge)).collect()
}

/// Asserts that `text` has exactly one problem, on this line, about which this is said.
#[track_caller]
fn refuses(text: &str, line: usize, expected: &str) {
    let said = said(text);
    assert!(
        said.len() == 1 && said[0].starts_with(&format!("t.toml:{line}:")) && said[0].contains(expected),
        "{said:#?}"
    );
}

#[test]
fn challenge_is_what_the_services_allow() {
    use ChallengeKind::{Http01, TlsAlpn01};
    assert_eq!(challenges(&good(TEXT)), [("a.test", TlsAlpn01), ("b.test", TlsAlpn01)]);
    assert_eq!(challenges(&good(&format!("{TEXT}{PLAIN}"))), [("a.test", Http01), ("b.test", Http01)]);
    let chosen = TEXT.replace("#ACME", "challenge = \"tls-alpn-01\"");
    assert_eq!(challenges(&good(&format!("{chosen}{PLAIN}")))[0].1, TlsAlpn01);
    let other = TEXT.replace("192.0.2.1:443", "192.0.2.1:8443");
    refuses(&other, 8, "and this one not on port 443 (tls-alpn-01)");
    refuses(&TEXT.replace("#ACME", "challenge = \"http-01\""), 8, "no http service listens on port 80 of 192.0.2.1");
    refuses(&other.replace("#ACME", "challenge = \"tls-alpn-01\""), 8, "it does not listen on port 443");
}

#[test]
fn names_must_be_ones_that_can_be_proved() {
    let with = |name: &str| TEXT.replace("a.test", name);
    refuses(&with("*.a.test"), 8, "dns-01, which is not offered");
    for wrong in ["192.0.2.1", "a..test", "-a.test", "", "a_b.test", "bücher.test", &"a".repeat(64)] {
        refuses(&with(wrong), 8, "write a DNS name");
    }
    refuses(&with("b.test"), 8, "it is there twice");
}

#[test]
fn terms_must_be_agreed_to() {
    refuses(&TEXT.replace("terms_agreed = true", ""), 2, "`terms_agreed` is missing");
    refuses(&TEXT.replace("= true", "= false"), 3, "do not agree to the CA's terms");
    refuses(&TEXT.replace("[acme]\nterms_agreed = true\n", ""), 6, "but there is no [acme]");
    let without = TEXT.replace("https.acme = [\"a.test\", \"B.test\"]", "https.certificates = \"/c\"");
    assert!(warned(&without).concat().contains("no service has `acme`"), "{:?}", warned(&without));
}

#[test]
fn fields_of_the_ca_are_checked() {
    let with = |line: &str| TEXT.replace("#ACME", line);
    refuses(&with("directory = \"http://ca.test/dir\""), 4, "begins with https://");
    refuses(&with("directory_roots = \"ca.pem\""), 4, "start it with `/`");
    refuses(&with("contact = \"admin\""), 4, "write an address");
    refuses(&with("external_account = \"kid\""), 4, "`external_account_key` is missing");
    let config = good(&with("contact = [\"a@b.test\", \"mailto:c@d.test\"]"));
    let authority = config.settings.acme.unwrap().authority;
    assert_eq!(authority.contact, ["mailto:a@b.test", "mailto:c@d.test"]);
    assert_eq!(authority.directory, hairpin_acme::LETS_ENCRYPT);
}
