//! HTTPS services: HTTP services whose TLS ends here.

use super::{good, refuses, said, warned};
use hairpin::config::{ClientCertificates, Config, HttpsSettings, TlsVersion};
use hairpin_core::config::{Forwarding, UnknownPacket};
use hairpin_core::l7::config::{Action, Kind, Network, Terminated};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The least file, then a group and a route to it.
const SHOP: &str = "\
interfaces = [\"eth0\"]
[[service]]
name = \"shop\"
listen = \"192.0.2.1:443/https\"
backends = [\"10.0.0.1:80\"]
https.certificates = \"/tls/shop.pem\"
#SHOP
[[service.group]]
name = \"a\"
backends = [\"10.0.0.2:80\"]
[[service.route]]
host = \"a.example\"
group = \"a\"
#ROUTE
#MORE
";

fn with(edits: &[(&str, &str)]) -> String {
    let mut text = SHOP.to_string();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

/// Fields of [service.https] from line 8 on, with certificates in line 7.
fn https(fields: &str) -> String {
    let section = format!("[service.https]\ncertificates = \"/tls/shop.pem\"\n{fields}");
    with(&[("https.certificates = \"/tls/shop.pem\"\n#SHOP", &section)])
}

fn terminated(config: &Config) -> &Terminated {
    match &config.snapshot.services[0].kind {
        Kind::Terminated(terminated) => terminated,
        other => panic!("{other:?}"),
    }
}

fn settings(config: &Config) -> &HttpsSettings {
    config.services[0].https.as_ref().unwrap()
}

#[test]
fn the_least_https_service_has_every_default_and_no_pool() {
    let config = good(SHOP);
    assert_eq!(config.warnings, []);
    let [shop, group] = &*config.snapshot.services else { panic!("{:?}", config.snapshot.services) };
    assert_eq!((shop.forwarding, shop.unknown), (Forwarding::Nat, UnknownPacket::Drop));
    assert_eq!((&*group.name, group.kind.is_group(), group.forwarding), ("shop/a", true, Forwarding::Nat));
    let Terminated { http, tls, http2 } = terminated(&config);
    assert!(*tls && *http2);
    let to = http.routes.iter().map(|route| match &route.action {
        Action::Forward { groups, .. } => groups[0].0,
        other => panic!("{other:?}"),
    });
    assert!(to.eq([1, 0]));
    let expected = HttpsSettings {
        acme: Vec::new(),
        certificates: vec![PathBuf::from("/tls/shop.pem")],
        versions_min: TlsVersion::V12,
        client_certificates: ClientCertificates::Off,
        client_roots: None,
        handshake_timeout: Duration::from_secs(10),
        streams_max: 100,
        accept_proxy: Box::default(),
    };
    assert_eq!(*settings(&config), expected);
    assert_eq!(config.services[1].https, None);
}

#[test]
fn https_settings_arrive() {
    let section = "[service.https]\ncertificates = [\"/tls/b.pem\", \"/tls\"]\nhttp2 = false\nversions_min = \
                   \"1.3\"\nclient_certificates = \"required\"\nclient_roots = \"/tls/ca.pem\"\nhandshake_timeout = \
                   \"100ms\"";
    let config = good(&with(&[("https.certificates = \"/tls/shop.pem\"", ""), ("#SHOP", section)]));
    assert!(!terminated(&config).http2);
    let expected = HttpsSettings {
        acme: Vec::new(),
        certificates: ["/tls/b.pem", "/tls"].map(PathBuf::from).into(),
        versions_min: TlsVersion::V13,
        client_certificates: ClientCertificates::Required,
        client_roots: Some(PathBuf::from("/tls/ca.pem")),
        handshake_timeout: Duration::from_millis(100),
        streams_max: 100,
        accept_proxy: Box::default(),
    };
    assert_eq!(*settings(&config), expected);
    let config = good(&https("client_certificates = \"optional\"\nclient_roots = \"/ca.pem\"\nstreams_max = 1000"));
    assert_eq!(settings(&config).client_certificates, ClientCertificates::Optional);
    assert_eq!(settings(&config).streams_max, 1000);
}

#[test]
fn all_of_an_http_service_can_be_said() {
    let text = with(&[
        ("#SHOP", "health = { check = \"http\", passive = 3, passive_status = \"503\" }"),
        ("#ROUTE", "path_prefix = \"/x/\"\nreplace_prefix = \"/\"\nresponse_headers.remove = \"Server\""),
        (
            "#MORE",
            "[[service.access]]\naction = \"deny\"\npath_prefix = \"/admin/\"\n[service.http]\nproxy_protocol = \
             \"v2\"\n[service.http.limits]\nidle_timeout = \"5s\"\n[service.http.sticky]\ncookie = \"b\"",
        ),
    ]);
    let config = good(&text);
    assert_eq!(config.warnings, []);
    let http = &terminated(&config).http;
    assert_eq!((http.access.len(), http.limits.idle_timeout), (1, Duration::from_secs(5)));
    assert!(http.proxy_protocol.is_some() && config.snapshot.services[0].faulty.contains(503));
    // A service can be made of routes alone.
    assert!(good(&with(&[("backends = [\"10.0.0.1:80\"]\n", "")])).snapshot.services[0].backends.is_empty());
    refuses(
        &with(&[("#ROUTE", "sni = \"a\"")]),
        "14:7: error: `sni` is given, but the service is https; say `host` for the name asked for",
    );
}

#[test]
fn clear_text_settings_of_https_services_are_errors() {
    refuses(
        &with(&[("backends = [\"10.0.0.1:80\"]\n", ""), ("#SHOP", "http.redirect_to_https = true")]),
        "6:26: error: `redirect_to_https` is given, but the service is https; give it to a service with protocol = \"http\", \
         or leave it out",
    );
    refuses(
        &with(&[("#SHOP", "http.http2 = true")]),
        "7:14: error: `http2` is given in [service.http], but the service is https; write it in [service.https], where it is \
         true unless you say otherwise",
    );
}

#[test]
fn sticky_cookies_are_secure_by_default() {
    let attributes = |sticky: &str| {
        let config = good(&with(&[("#MORE", &format!("[service.http.sticky]\ncookie = \"b\"\n{sticky}"))]));
        let sticky = terminated(&config).http.sticky.clone().unwrap();
        String::from_utf8(sticky.attributes.into()).unwrap()
    };
    assert_eq!(attributes(""), "; Path=/; Secure; HttpOnly; SameSite=Lax");
    assert_eq!(attributes("same_site = \"none\""), "; Path=/; Secure; HttpOnly; SameSite=None");
    assert_eq!(attributes("secure = false"), "; Path=/; HttpOnly; SameSite=Lax");
}

#[test]
fn settings_about_packets_mean_nothing() {
    let http = with(&[("#MORE", "[service.http]\ntimestamps = true\noffload_bytes_min = 4096")]);
    assert_eq!(
        warned(&http),
        [
            "t.toml:16:14: warning: `timestamps` means nothing in a service that is https; TLS ends in user space, at the \
             kernel's sockets, which agree on timestamps: leave it out",
            "t.toml:17:21: warning: `offload_bytes_min` means nothing in a service that is https; TLS ends in user space, so \
             no body can leave for the kernel's rules: leave it out",
        ]
    );
    for mode in ["nat", "full-nat", "dsr"] {
        refuses(
            &with(&[("#SHOP", &format!("mode = \"{mode}\""))]),
            &format!(
                "7:8: error: `mode` is \"{mode}\", but the service is https; its connections to backends are this host's \
                 own: leave `mode` out"
            ),
        );
    }
    refuses(
        &with(&[("#SHOP", "mode = \"dnat\"")]),
        "7:8: error: `mode` is \"dnat\"; did you mean \"nat\"? (one of \"nat\", \"full-nat\", \"dsr\")",
    );
    refuses(
        &with(&[("#SHOP", "unknown = \"drop\"")]),
        "7:11: error: `unknown` is \"drop\", but the service is https; the kernel answers what belongs to none of its \
         connections: leave `unknown` out",
    );
}

#[test]
fn connections_must_be_tracked() {
    let untracked = |method: &str| {
        let line = format!("connection_table = \"{method}\"\noffload.policy = \"never\"\ninterfaces");
        with(&[("interfaces", &line)])
    };
    for method in ["stateless", "maglev"] {
        refuses(
            &untracked(method),
            &format!(
                "6:10: error: service \"shop\" is https, but `connection_table = \"{method}\"` tracks no connections; use a \
                 table that tracks connections"
            ),
        );
    }
}

#[test]
fn certificates_are_named_by_absolute_paths() {
    let certificates =
        |value: &str| with(&[("https.certificates = \"/tls/shop.pem\"", &format!("https.certificates = {value}"))]);
    let missing = "error: there is neither `certificates` nor `acme` in [service.https]; add certificates = \
                   \"/etc/hairpin/tls/www.pem\", or acme = \"www.example.com\"";
    refuses(&with(&[("https.certificates = \"/tls/shop.pem\"", "")]), &format!("2:1: {missing}"));
    refuses(&with(&[("https.certificates = \"/tls/shop.pem\"", "https.http2 = true")]), &format!("6:1: {missing}"));
    refuses(&certificates("[]"), "6:22: error: `certificates` is an empty list; name at least one file or directory");
    let relative = |column: u32, path: &str| {
        format!(
            "6:{column}: error: `certificates` is \"{path}\", not an absolute path; write an absolute path: start it with `/`"
        )
    };
    refuses(&certificates("\"shop.pem\""), &relative(22, "shop.pem"));
    refuses(&certificates("[\"/tls\", \"../shop.pem\"]"), &relative(31, "../shop.pem"));
    refuses(
        &certificates("[\"/tls\", 5]"),
        "6:31: error: `certificates` has an entry that is the number 5; write a list of texts, such as certificates = \
         [\"/etc/hairpin/tls/www.pem\", \"/etc/letsencrypt/live\"]",
    );
    let many: Vec<String> = (0..1025).map(|n| format!("\"/tls/{n}.pem\"")).collect();
    good(&certificates(&format!("[{}]", many[..1024].join(","))));
    refuses(
        &certificates(&format!("[{}]", many.join(","))),
        "6:22: error: 1025 entries in `certificates`; have 1024 at most",
    );
}

#[test]
fn client_certificates_and_roots_need_each_other() {
    for asked in ["optional", "required"] {
        refuses(
            &https(&format!("client_certificates = \"{asked}\"")),
            &format!(
                "8:23: error: `client_certificates` is \"{asked}\", but `client_roots` is missing; name the file with the CAs \
                 that sign them: client_roots = \"/etc/hairpin/tls/clients.pem\""
            ),
        );
    }
    let alone = "8:16: error: `client_roots` is given, but clients are not asked for certificates; write client_certificates \
                 = \"required\" or \"optional\", or leave it out";
    refuses(&https("client_roots = \"/ca.pem\""), alone);
    refuses(&https("client_roots = \"/ca.pem\"\nclient_certificates = \"off\""), alone);
    refuses(
        &https("client_roots = \"ca.pem\"\nclient_certificates = \"required\""),
        "8:16: error: `client_roots` is \"ca.pem\", not an absolute path; write an absolute path: start it with `/`",
    );
    // What cannot be read may be the other one.
    let broken = said(&https("client_certificates = \"required\"\nclient_roots = /ca.pem"));
    assert!(!broken.concat().contains("is missing"), "{broken:?}");
}

#[test]
fn networks_of_proxies_arrive() {
    let accepted = |value: &str| settings(&good(&https(&format!("accept_proxy = {value}")))).accept_proxy.clone();
    let network = |address: &str, prefix| Network { address: address.parse::<IpAddr>().unwrap().into(), prefix };
    assert_eq!(*accepted("[]"), []);
    assert_eq!(*accepted("\"192.0.2.7\""), [network("192.0.2.7", 128)]);
    assert_eq!(*accepted("[\"10.0.0.0/8\", \"2001:db8::/32\"]"), [network("10.0.0.0", 104), network("2001:db8::", 32)]);
    refuses(
        &https("accept_proxy = [\"10.0.0.1/8\"]"),
        "8:17: error: `accept_proxy` is \"10.0.0.1/8\"; an address beyond its beginning: write \"10.0.0.0/8\"",
    );
}

#[test]
fn mistakes_in_https_settings_have_their_place() {
    refuses(
        &https("versions_min = \"1.1\""),
        "8:16: error: `versions_min` is \"1.1\"; did you mean \"1.2\"? (one of \"1.2\", \"1.3\")",
    );
    refuses(
        &https("client_certificates = \"require\""),
        "8:23: error: `client_certificates` is \"require\"; did you mean \"required\"? (one of \"off\", \"optional\", \
         \"required\")",
    );
    refuses(
        &https("handshake_timeout = \"50ms\""),
        "8:21: error: `handshake_timeout` is \"50ms\", out of range; use \"100ms\" to \"1day\"",
    );
    refuses(&https("streams_max = 0"), "8:15: error: `streams_max` is 0, out of range; use 1 to 1000");
    refuses(&https("streams_max = 1001"), "8:15: error: `streams_max` is 1001, out of range; use 1 to 1000");
    refuses(
        &https("certificate = \"/c\""),
        "8:1: error: unknown field `certificate` in [service.https]; did you mean `certificates`?",
    );
    refuses(
        &https("http2 = \"on\""),
        "8:9: error: `http2` is the text \"on\", neither true nor false; write http2 = true or http2 = false, without quotes",
    );
    assert_eq!(
        warned(&https("http2 = false\nstreams_max = 7")),
        ["t.toml:9:15: warning: `streams_max` means nothing without HTTP/2; leave it out, or write http2 = true"]
    );
    refuses(
        &with(&[("#MORE", "[service.tls]\nconnect_tries = 1")]),
        "15:1: error: `tls` is given, but service \"shop\" is https; that is for services with protocol = \"tls\": write \
         that, or leave it out",
    );
    refuses(
        &with(&[("443/https", "443/http"), ("interfaces", "pool.addresses = [\"10.0.9.1\"]\ninterfaces")]),
        "7:1: error: `https` is given, but service \"shop\" is http; that is for services with protocol = \"https\": write \
         that, or leave it out",
    );
}

#[test]
fn terms_of_a_route_arrive() {
    let https = "interfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\nlisten = \"192.0.2.1:443/https\"\n\
                 backends = [\"10.0.0.1:80\"]\nhttps.certificates = \"/c.pem\"\n[[service.route]]\npath = \"/a\"\n";
    let config = good(&format!(
        "{https}response_timeout = \"5m\"\nbody_timeout = \"1h\"\nretry_status = \"502-504\"\nretries = 2\n"
    ));
    let terms = &config.snapshot.services[0].kind.http().unwrap().routes[0].terms;
    assert_eq!(
        (terms.response_timeout, terms.body_timeout),
        (Some(Duration::from_secs(300)), Some(Duration::from_secs(3600)))
    );
    assert_eq!((terms.retries, terms.retry_status.contains(503), terms.retry_status.contains(500)), (2, true, false));
    let once = good(&format!("{https}retry_status = \"503\"\n"));
    assert_eq!(once.snapshot.services[0].kind.http().unwrap().routes[0].terms.retries, 1);
    let found = said(&format!("{https}retry_status = \"404,503\"\n")).concat();
    assert!(found.contains("9:16: error: `retry_status` is \"404,503\"; statuses below 500 are answers"), "{found}");
    let found = warned(&format!("{https}retries = 2\n")).concat();
    assert!(found.contains("`retries` means nothing without `retry_status`"), "{found}");
}

#[test]
fn spliced_services_have_no_retries() {
    let http = "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nname = \"web\"\n\
                listen = \"192.0.2.1:80/http\"\nbackends = [\"10.0.0.1:80\"]\n[[service.route]]\npath = \"/a\"\n";
    let found = said(&format!("{http}response_timeout = \"5m\"\nretry_status = \"503\"\n")).concat();
    assert_eq!(
        found,
        "t.toml:10:16: error: `retry_status` is given, but connections of the service are spliced, which keeps no request; leave \
         it out: it is for HTTPS services, and for those with `http2`"
    );
    let config = good(&format!("{http}response_timeout = \"5m\"\n"));
    let terms = &config.snapshot.services[0].kind.http().unwrap().routes[0].terms;
    assert_eq!(terms.response_timeout, Some(Duration::from_secs(300)));
}

#[test]
fn fields_say_who_a_client_is_if_it_is_asked() {
    let asked = "https.client_certificates = \"optional\"\nhttps.client_roots = \"/ca.pem\"";
    let edit = |list: &str| format!("request_headers.{list} = {{ X-Dn = \"<{{client_subject}}>\" }}");
    assert_eq!(warned(&with(&[("#SHOP", asked), ("#ROUTE", &edit("set"))])), [""; 0]);
    refuses(
        &with(&[("#SHOP", asked), ("#ROUTE", &edit("add"))]),
        "15:32: error: `add` gives X-Dn the value \"<{client_subject}>\"; a field of that name that the client sends would \
         stay beside it: write {client_subject} in `set`",
    );
    let verify = "response_headers.add = { X-A = \"{client_verify}\" }";
    assert_eq!(warned(&with(&[("#SHOP", asked), ("#ROUTE", verify)])), [""; 0]);
    for not_asked in ["#SHOP", "https.client_certificates = \"off\""] {
        assert_eq!(
            warned(&with(&[("#SHOP", not_asked), ("#ROUTE", &edit("set"))])),
            [
                "t.toml:14:32: warning: `set` gives X-Dn the value \"<{client_subject}>\", but the service asks no client for a \
                 certificate; write client_certificates = \"optional\" or \"required\" in [service.https]"
            ]
        );
    }
    let clear = "[service.http]\nrequest_headers.set = { X-F = \"{client_fingerprint}\" }";
    let text = with(&[("443/https", "80/http"), ("https.certificates = \"/tls/shop.pem\"", ""), ("#MORE", clear)]);
    let told = said(&text);
    assert!(told.iter().any(|said| said.contains("{client_fingerprint} is known where TLS ends here")), "{told:?}");
}
