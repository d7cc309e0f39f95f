//! How backends of HTTP and HTTPS services are spoken with.

use super::{good, refuses, said, warned};
use hairpin::config::{CheckKind, Config};
use hairpin::health::Check;
use hairpin_core::l7::config::Kind;
use hairpin_https::{BackendTlsOptions, SYSTEM_ROOTS};
use std::path::PathBuf;

/// A service with two groups; tables of the service come from line 7 on, of the first group from line 11 on.
const SHOP: &str = "\
interfaces = [\"eth0\"]
[[service]]
name = \"shop\"
listen = \"192.0.2.1:443/https\"
backends = [\"10.0.0.1:8443\"]
https.certificates = \"/tls/shop.pem\"
#SHOP
[[service.group]]
name = \"a\"
backends = [\"10.0.0.2:8443\"]
#GROUP
[[service.group]]
name = \"b\"
backends = [\"10.0.0.3:8443\"]
[[service.route]]
host = \"a.example\"
group = \"a\"
[[service.route]]
host = \"b.example\"
group = \"b\"
";

/// With these lines of the service and of its group `a`.
fn shop(service: &str, group: &str) -> String {
    SHOP.replace("#SHOP", service).replace("#GROUP", group)
}

fn tls(config: &Config) -> Vec<Option<BackendTlsOptions>> {
    config.services.iter().map(|settings| settings.backend_tls.clone()).collect()
}

fn default() -> BackendTlsOptions {
    let roots = vec![PathBuf::from(SYSTEM_ROOTS)];
    BackendTlsOptions { roots, name: None, verify: true, certificate: None, http2: false }
}

#[test]
fn backends_get_clear_text_by_default() {
    assert_eq!(tls(&good(SHOP)), [None, None, None]);
    assert_eq!(tls(&good(&shop("backend_tls = { enabled = false, name = \"a\" }", ""))), [None, None, None]);
}

#[test]
fn groups_have_the_settings_of_their_service() {
    let config = good(&shop("backend_tls = {}", ""));
    assert_eq!(config.warnings, []);
    assert_eq!(tls(&config), [Some(default()), Some(default()), Some(default())]);
    let off = tls(&good(&shop("backend_tls = {}", "backend_tls.enabled = false")));
    assert_eq!(off, [Some(default()), None, Some(default())]);
    let named = BackendTlsOptions { name: Some("a.internal".into()), ..default() };
    let own = tls(&good(&shop("", "backend_tls.name = \"a.internal\"")));
    assert_eq!(own, [None, Some(named), None]);
}

#[test]
fn backend_tls_settings_arrive() {
    let fields = "backend_tls = { roots = [\"system\", \"/ca.pem\"], name = \"10.0.0.1\", certificate = \"/c.pem\" }";
    let expected = BackendTlsOptions {
        roots: vec![PathBuf::from(SYSTEM_ROOTS), PathBuf::from("/ca.pem")],
        name: Some("10.0.0.1".into()),
        verify: true,
        certificate: Some(PathBuf::from("/c.pem")),
        http2: false,
    };
    assert_eq!(tls(&good(&shop(fields, "")))[0], Some(expected));
    let one = tls(&good(&shop("backend_tls.roots = \"/ca.pem\"", "")));
    assert_eq!(one[0], Some(BackendTlsOptions { roots: vec![PathBuf::from("/ca.pem")], ..default() }));
}

#[test]
fn backends_that_are_not_verified_are_warned_of() {
    let verify = "t.toml:7:22: warning: `verify` is false: every server that backends' addresses lead to is taken for the \
                  backend; name the CAs with `roots` and what their certificates are for with `name`";
    assert_eq!(warned(&shop("backend_tls.verify = false", "")), [verify]);
    let both = warned(&shop("backend_tls = { verify = false, roots = \"/ca.pem\" }", ""));
    assert_eq!(both.len(), 2);
    assert!(both[1].contains("`roots` means nothing with verify = false"), "{both:?}");
    // What is off is not judged.
    assert_eq!(warned(&shop("backend_tls = { enabled = false, verify = false }", "")), [""; 0]);
}

#[test]
fn mistakes_in_backend_tls_have_their_place() {
    let at = |fields: &str| said(&shop(&format!("[service.backend_tls]\n{fields}"), "")).concat();
    assert_eq!(
        at("roots = \"ca.pem\""),
        "t.toml:8:9: error: `roots` is \"ca.pem\", not an absolute path; write an absolute path: start it with `/`"
    );
    assert_eq!(
        at("certificate = \"c.pem\""),
        "t.toml:8:15: error: `certificate` is \"c.pem\", not an absolute path; write an absolute path: start it with `/`"
    );
    assert_eq!(
        at("name = \"a b\""),
        "t.toml:8:8: error: `name` is \"a b\", which no certificate can have; write a name of DNS, such as \
         \"shop.internal\", or an address"
    );
    assert_eq!(at("roots = []"), "t.toml:8:9: error: `roots` is an empty list; leave it out, or name something");
    let many: Vec<String> = (0..65).map(|n| format!("\"/{n}.pem\"")).collect();
    assert!(at(&format!("roots = [{}]", many.join(","))).contains("65 entries in `roots`; have 64 at most"));
    assert!(at("enabled = \"no\"").contains("neither true nor false"));
}

/// An http service; more of it comes from line 7 on.
const WEB: &str = "\
interfaces = [\"eth0\"]
pool.addresses = [\"10.0.9.1\"]
[[service]]
name = \"web\"
listen = \"192.0.2.1:80/http\"
backends = [\"10.0.0.1:80\"]
";

#[test]
fn http_service_with_tls_or_h2_to_backends_is_terminated() {
    let costs = "has bodies copied in user space: none is offloaded, and connections do not survive the process; let backends \
                 speak HTTP/1.1 in clear text where they can";
    let group = |field: &str| {
        format!(
            "[[service.group]]\nname = \"a\"\nbackends = [\"10.0.0.2:80\"]\n{field}\n[[service.route]]\ngroup = \"a\"\n"
        )
    };
    for (more, field) in [
        ("backend_tls = {}\n".to_string(), "backend_tls"),
        ("backend_protocol = \"h2\"\n".to_string(), "backend_protocol"),
        (group("backend_tls.verify = true"), "backend_tls"),
        (group("backend_protocol = \"h2\""), "backend_protocol"),
    ] {
        let config = good(&format!("{WEB}{more}"));
        let warnings: Vec<String> = config.warnings.iter().map(ToString::to_string).collect();
        assert!(warnings.len() == 1 && warnings[0].contains(&format!("`{field}` {costs}")), "{more}: {warnings:?}");
        let Kind::Terminated(terminated) = &config.snapshot.services[0].kind else { panic!("{more}") };
        assert!(!terminated.tls && !terminated.http2, "{more}");
    }
    for spliced in ["backend_tls.enabled = false\n", "backend_protocol = \"http/1.1\"\n"] {
        let config = good(&format!("{WEB}{spliced}"));
        assert!(config.snapshot.services[0].kind.is_spliced() && config.warnings.is_empty(), "{spliced}");
    }
}

#[test]
fn services_that_pass_tls_on_refuse_backend_tls() {
    let tls = WEB.replace("/http", "/tls");
    for field in ["backend_tls = {}", "backend_protocol = \"h2\""] {
        let found = said(&format!("{tls}{field}\n")).concat();
        assert!(found.contains("service \"web\" is tls") && found.contains("leave it out"), "{found}");
    }
    let tcp = WEB.replace("/http", "/tcp");
    let found = said(&format!("{tcp}backend_tls = {{}}\nhealth.check = \"https\"\n"));
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.concat().contains("`check` is \"https\", but the service is tcp"), "{found:?}");
}

#[test]
fn groups_speak_the_protocol_of_their_service() {
    let http2 = |config: &Config| -> Vec<bool> { config.services.iter().map(|it| it.backend_http2).collect() };
    assert_eq!(http2(&good(SHOP)), [false, false, false]);
    let all = good(&shop("backend_protocol = \"h2\"\nbackend_tls = {}", ""));
    assert_eq!(http2(&all), [true, true, true]);
    assert!(tls(&all).iter().flatten().all(|options| options.http2));
    let other = good(&shop("backend_protocol = \"h2\"\nbackend_tls = {}", "backend_protocol = \"http/1.1\""));
    assert_eq!(http2(&other), [true, false, true]);
    assert_eq!(tls(&other)[1], Some(default()));
    assert_eq!(http2(&good(&shop("", "backend_protocol = \"h2\""))), [false, true, false]);
}

#[test]
fn proxy_protocol_is_refused_beside_http2_to_backends() {
    let found = said(&shop("http.proxy_protocol = \"v2\"", "backend_protocol = \"h2\"")).concat();
    assert!(found.contains("7:23: error: `proxy_protocol` cannot be with HTTP/2 to backends"), "{found}");
}

#[test]
fn grpc_checks_go_by_http2() {
    let check = "health = { check = \"grpc\", grpc_service = \"shop.Cart\" }";
    let config = good(&shop(&format!("backend_protocol = \"h2\"\n{check}"), ""));
    assert_eq!(config.services[0].health.check, Check::Grpc { service: "shop.Cart".to_string() });
    assert_eq!(config.warnings, []);
    let found = said(&shop(check, "")).concat();
    assert!(found.contains("`check` is \"grpc\", but requests go to the backends by HTTP/1.1; add"), "{found}");
    good(&shop("health = { check = \"grpc\", port = 9000 }", ""));
    good(&format!("{}health.check = \"grpc\"\n", WEB.replace("/http", "/tcp")));
    let other = warned(&shop("health = { check = \"http\", grpc_service = \"a\" }", "")).concat();
    assert!(other.contains("`grpc_service` means nothing beside check = \"http\""), "{other}");
}

#[test]
fn checks_speak_as_the_backends_do() {
    let config = good(&shop("backend_tls = {}\nhealth = { check = \"https\", path = \"/h\", status = \"204\" }", ""));
    assert_eq!(config.warnings, []);
    assert!(config.services.iter().all(|settings| settings.health.kind() == CheckKind::Https));
    refuses(
        &shop("health.check = \"https\"", ""),
        "7:16: error: `check` is \"https\", but the backends are sent clear text; add [service.backend_tls], or write check = \
         \"http\"",
    );
    let plain = "warning: `check` is \"http\", but the backends speak TLS; write check = \"https\", or name a port that speaks \
                 clear text with `port`";
    assert_eq!(warned(&shop("backend_tls = {}\nhealth.check = \"http\"", "")), [format!("t.toml:8:16: {plain}")]);
    assert_eq!(warned(&shop("backend_tls = {}\nhealth = { check = \"http\", port = 8080 }", "")), [""; 0]);
    // A group whose backends differ from those of its service.
    let both = "backend_tls = {}\nhealth.check = \"https\"";
    let found = said(&shop(both, "backend_tls.enabled = false")).concat();
    assert!(found.contains("`check` is \"https\", but the backends are sent clear text"), "{found}");
    good(&shop(both, "backend_tls.enabled = false\nhealth.check = \"http\""));
    assert!(warned(&shop(both, "health.check = \"http\"")).concat().contains(plain));
}
