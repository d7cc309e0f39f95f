//! TLS services.

use super::{good, refuses};
use hairpin_core::config::Forwarding;
use hairpin_core::l7::config::{Kind, ProxyVersion, Tls};
use std::time::Duration;

const SECURE: &str = "\
interfaces = [\"eth0\"]
pool.addresses = [\"10.0.9.1\"]
[[service]]
name = \"secure\"
listen = \"192.0.2.1:443/tls\"
backends = [\"10.0.0.1:443\"]
[[service.group]]
name = \"mail\"
backends = [\"10.0.0.2:443\"]
[[service.route]]
sni = [\"Mail.example.com\", \"*.mail.example.com\"]
group = \"mail\"
#ROUTE
";

fn with(route: &str) -> String {
    SECURE.replace("#ROUTE", route)
}

fn tls(text: &str) -> Tls {
    let config = good(text);
    assert_eq!(config.warnings, []);
    let service = &config.snapshot.services[0];
    assert_eq!(service.forwarding, Forwarding::FullNat);
    match &service.kind {
        Kind::Tls(tls) => (**tls).clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn routes_are_by_name_and_protocol() {
    let all = tls(&with("[[service.route]]\nalpn = [\"h2\", \"http/1.1\"]\ngroups = { own = 1, mail = 2 }"));
    let [mail, h2, rest] = &*all.routes else { panic!("{:?}", all.routes) };
    let texts =
        |list: &[Box<[u8]>]| list.iter().map(|text| String::from_utf8(text.to_vec()).unwrap()).collect::<Vec<_>>();
    assert_eq!(texts(&mail.names), ["mail.example.com", "*.mail.example.com"]);
    assert_eq!((texts(&h2.protocols), &*h2.groups), (vec!["h2".into(), "http/1.1".into()], &[(0, 1), (1, 2)][..]));
    assert!(rest.names.is_empty() && rest.protocols.is_empty());
    assert_eq!((&*mail.groups, &*rest.groups), (&[(1, 1)][..], &[(0, 1)][..]));
    assert_eq!((all.hello_bytes_max, all.hello_timeout), (16_384, Duration::from_secs(10)));
    assert_eq!((all.connect_timeout, all.connect_tries, all.proxy_protocol), (Duration::from_secs(3), 3, None));
    let set = tls(&with(
        "[service.tls]\nproxy_protocol = \"v1\"\nhello_bytes_max = 512\nconnect_tries = 1\noffload_bytes_min = 5",
    ));
    assert_eq!((all.offload_bytes_min, set.offload_bytes_min), (None, Some(5)));
    assert_eq!((set.proxy_protocol, set.hello_bytes_max, set.connect_tries), (Some(ProxyVersion::V1), 512, 1));
}

#[test]
fn nothing_of_a_request_can_be_asked_for() {
    for field in [
        "host = \"a\"",
        "path = \"/\"",
        "client = \"10.0.0.0/8\"",
        "redirect.location = \"/\"",
        "replace_prefix = \"/\"",
    ] {
        let name = field.split([' ', '.']).next().unwrap();
        let column = if field.contains('.') && name == "redirect" { 1 } else { name.len() + 4 };
        refuses(
            &with(field),
            &format!(
                "13:{column}: error: `{name}` is given, but the service is tls; nothing of a request can be seen: use `sni` \
                 and `alpn`"
            ),
        );
    }
}

#[test]
fn names_and_protocols_have_forms() {
    refuses(
        &with("alpn = \"\""),
        "13:8: error: `alpn` is \"\"; write a protocol's name of 1 to 255 bytes, such as \"h2\"",
    );
    let route = |names: &str| SECURE.replace("\"Mail.example.com\"", names);
    refuses(
        &route("\"10.0.0.1\""),
        "11:8: error: `sni` is \"10.0.0.1\"; clients never ask for addresses in TLS: write a name",
    );
    refuses(
        &route("\"a*.b\""),
        "11:8: error: `sni` is \"a*.b\"; a host is made of letters, digits, '-', '_' and '.' (other scripts as xn--...)",
    );
    refuses(
        &with("[service.http]\nreuse = true"),
        "13:1: error: `http` is given, but service \"secure\" is tls; that is for services with protocol = \"http\" or \
         \"https\": write that, or leave it out",
    );
}

#[test]
fn tcp_services_give_backends_the_client_s_address() {
    let with = |listen: &str, more: &str| {
        format!(
            "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nname = \"mail\"\n\
             listen = \"192.0.2.1:25/{listen}\"\nbackends = [\"10.0.0.1:25\"]\nproxy_protocol = \"v2\"\n{more}"
        )
    };
    for more in ["", "mode = \"full-nat\""] {
        let plain = tls(&with("tcp", more));
        assert!(plain.is_plain && plain.routes.len() == 1 && plain.routes[0].names.is_empty());
        assert_eq!((plain.proxy_protocol, &*plain.routes[0].groups), (Some(ProxyVersion::V2), &[(0, 1)][..]));
        assert_eq!((plain.connect_timeout, plain.connect_tries), (Duration::from_secs(3), 3));
    }
    for mode in ["nat", "dsr"] {
        refuses(
            &with("tcp", &format!("mode = \"{mode}\"")),
            &format!(
                "8:8: error: `mode` is \"{mode}\", but the service has `proxy_protocol`; its connections to backends are \
                 Hairpin's own, from [pool]: leave `mode` out"
            ),
        );
    }
    let refused = |spoken: &str, remedy: &str| {
        let text = format!("7:18: error: `proxy_protocol` is given, but service \"mail\" is {spoken}; {remedy}");
        refuses(&with(spoken, ""), &text);
    };
    refused("udp", "it is for services with protocol = \"tcp\": leave it out");
    refused("http", "write it in [service.http]");
    refused("tls", "write it in [service.tls]");
    let without_pool = with("tcp", "").replace("pool.addresses = [\"10.0.9.1\"]\n", "");
    refuses(
        &without_pool,
        "6:18: error: service \"mail\" is tcp: it reaches backends from [pool], which has no IPv4 address; give it one: \
         [pool] addresses = [\"10.0.2.1\"]",
    );
}
