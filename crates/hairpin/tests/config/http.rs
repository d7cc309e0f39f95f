//! HTTP services: what they say, and what is said about mistakes.

mod mistakes;

use super::{good, refuses, warned};
use hairpin_core::config::{Algorithm, AllDown, Forwarding, Service, UnknownPacket};
use hairpin_core::l7::config::{Action, Http, HttpLimits, Kind, ProxyVersion, Route};
use hairpin_core::l7::route::host::HostPattern;
use hairpin_core::l7::route::path::PathPattern;
use hairpin_core::l7::route::{AccessVerdict, Conditions, Named, Test};
use std::time::Duration;

/// Two services: an HTTP one with a group, and another one.
const WEB: &str = "\
interfaces = [\"eth0\"]
pool.addresses = [\"10.0.9.1\"]
[[service]]
name = \"web\"
listen = \"192.0.2.1:80/http\"
backends = [\"10.0.0.1:80\"]
#WEB
[[service.group]]
name = \"a\"
backends = [\"10.0.0.2:80\"]
#GROUP
[[service.route]]
group = \"a\"
#ROUTE
#MORE
[[service]]
name = \"other\"
listen = \"192.0.2.1:81/tcp\"
backends = [\"10.0.0.1:81\"]
";

/// `WEB` with text in place of its marks; the line of what is put there stays the mark's.
pub(super) fn with(edits: &[(&str, &str)]) -> String {
    let mut text = WEB.to_string();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

/// A route whose table has one more field, in line 14.
fn route(field: &str) -> String {
    with(&[("#ROUTE", field)])
}

fn http(service: &Service) -> &Http {
    match &service.kind {
        Kind::Http(http) => http,
        other => panic!("{other:?}"),
    }
}

fn groups(route: &Route) -> Vec<(u16, u16)> {
    match &route.action {
        Action::Forward { groups, .. } => groups.to_vec(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_least_http_service_has_every_default() {
    let text = "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nlisten = \"192.0.2.1:80/http\"\n\
                backends = [\"10.0.0.1:80\"]\n";
    let config = good(text);
    assert_eq!(config.warnings, []);
    let [service] = &*config.snapshot.services else { panic!("{:?}", config.snapshot.services) };
    assert_eq!((&*service.name, service.forwarding), ("192.0.2.1:80/http", Forwarding::FullNat));
    assert_eq!((service.unknown, service.endpoint.to_string()), (UnknownPacket::Reset, "192.0.2.1:80".to_string()));
    let http = http(service);
    let [route] = &*http.routes else { panic!("{:?}", http.routes) };
    assert_eq!((&route.conditions, groups(route)), (&Conditions::default(), vec![(0, 1)]));
    assert!(http.access.is_empty() && http.edits.request.is_empty() && http.edits.response.is_empty());
    assert!(http.forwarded.x_for && http.forwarded.x_proto && http.forwarded.x_host);
    assert!(!http.forwarded.x_real_ip && !http.forwarded.standard && http.forwarded.trusted.is_empty());
    assert!(http.sticky.is_none() && !http.server_timing && http.upgrade && !http.connect && http.reuse);
    assert_eq!((http.proxy_protocol, http.offload_bytes_min), (None, None));
    assert_eq!(format!("{:?}", http.limits), format!("{:?}", HttpLimits::default()));
}

#[test]
fn the_protocol_is_said_in_one_place_or_the_other() {
    let kind = |listen: &str, protocol: &str| {
        let text = with(&[("192.0.2.1:80/http", listen), ("#WEB", protocol)]);
        std::mem::discriminant(&good(&text).snapshot.services[0].kind)
    };
    let http = kind("192.0.2.1:80/http", "");
    assert_eq!(kind("192.0.2.1:80/tcp", "protocol = \"http\""), http);
    assert_eq!(kind("192.0.2.1:80", "protocol = \"http\""), http);
    assert_eq!(kind("192.0.2.1:80/http", "protocol = \"http\""), http);
    assert_ne!(kind("192.0.2.1:80", "protocol = \"tls\""), http);
    for (listen, protocol, said) in
        [("udp", "http", "udp"), ("http", "tcp", "http"), ("http", "https", "http"), ("tcp", "udp", "tcp")]
    {
        let text = with(&[("80/http", &format!("80/{listen}")), ("#WEB", &format!("protocol = \"{protocol}\""))]);
        let expected = format!(
            "t.toml:7:12: error: `protocol` is \"{protocol}\", but `listen` says {said}; say it once: leave `protocol` out"
        );
        assert!(super::said(&text).contains(&expected), "{:?}", super::said(&text));
    }
    refuses(
        &with(&[("80/http", "80"), ("#WEB", "protocol = \"htpp\"")]),
        "7:12: error: `protocol` is \"htpp\"; did you mean \"http\"? (one of \"tcp\", \"udp\", \"http\", \"https\", \"tls\")",
    );
}

#[test]
fn groups_are_services_behind_theirs() {
    let config = good(&with(&[(
        "#GROUP",
        "[[service.group]]\nname = \"b\"\nbalance = \"maglev\"\nall_down = \"use-all\"\n[service.group.health]\ncheck = \
         \"tcp\"\n[[service.group.backend]]\naddress = \"10.0.0.3:80\"\nname = \"three\"\n[[service.route]]\nhost = \
         \"b.example\"\ngroups = { own = 3, b = 7 }",
    )]));
    assert_eq!(config.warnings, []);
    let [web, a, b, other] = &*config.snapshot.services else { panic!("{:?}", config.snapshot.services) };
    assert_eq!([&*web.name, &*a.name, &*b.name, &*other.name], ["web", "web/a", "web/b", "other"]);
    assert!(a.kind.is_group() && b.kind.is_group() && !web.kind.is_group());
    assert_eq!((a.endpoint.to_string(), a.forwarding), ("192.0.2.1:0".to_string(), Forwarding::FullNat));
    assert_eq!((a.algorithm, a.all_down), (Algorithm::RoundRobin, AllDown::Refuse));
    assert_eq!((b.algorithm, b.all_down), (Algorithm::Maglev, AllDown::UseAll));
    let numbers: Vec<u16> = config.snapshot.services.iter().map(|service| service.backends[0].number).collect();
    assert_eq!((numbers, &*b.backends[0].name), (vec![0, 1, 2, 3], "three"));
    let shares: Vec<_> = http(web).routes.iter().map(groups).collect();
    assert_eq!(shares, [vec![(2, 7), (0, 3)].into_iter().rev().collect::<Vec<_>>(), vec![(1, 1)], vec![(0, 1)]]);
    assert_eq!(config.services.len(), 4);
    // A setting that a group leaves out is its service's.
    let text = with(&[("#WEB", "balance = \"source-hash\"\ndrain_limit = \"1m\"\nhealth.check = \"tcp\"")]);
    let config = good(&text);
    let group = &config.snapshot.services[1];
    assert_eq!((group.algorithm, group.drain_limit), (Algorithm::SourceHash, Duration::from_secs(60)));
    assert_eq!(config.services[1].health, config.services[0].health);
}

#[test]
fn conditions_arrive() {
    let text = route(
        "host = [\"Example.com\", \"*.example.com\"]\npath = \"/x\"\npath_prefix = [\"/a/\", \"/b\"]\npath_regex = '^/c'\n\
         method = [\"GET\", \"PURGE\"]\nheader = { X-A = \"1\", X-B = { prefix = \"2\" }, X-C = true, X-D = false }\n\
         query = { q = \"v\" }\nclient = [\"10.0.0.0/8\", \"2001:db8::1\"]",
    );
    let config = good(&text);
    let conditions = &http(&config.snapshot.services[0]).routes[0].conditions;
    let hosts = ["example.com", "*.example.com"].map(|text| HostPattern::parse(text).unwrap());
    assert_eq!(*conditions.hosts, hosts);
    let paths = [
        PathPattern::exact("/x").unwrap(),
        PathPattern::prefix("/a/").unwrap(),
        PathPattern::prefix("/b").unwrap(),
        PathPattern::regex("^/c").unwrap(),
    ];
    assert_eq!(*conditions.paths, paths);
    assert_eq!(*conditions.methods, [Box::from(&b"GET"[..]), Box::from(&b"PURGE"[..])]);
    let named = |name: &str, test| Named { name: name.as_bytes().into(), test };
    let headers = [
        named("X-A", Test::Exact((*b"1").into())),
        named("X-B", Test::Prefix((*b"2").into())),
        named("X-C", Test::Present),
        named("X-D", Test::Absent),
    ];
    assert_eq!(*conditions.headers, headers);
    assert_eq!(*conditions.queries, [named("q", Test::Exact((*b"v").into()))]);
    let clients: Vec<_> = conditions.clients.iter().map(|net| (net.address.to_string(), net.prefix)).collect();
    assert_eq!(clients, [("10.0.0.0".to_string(), 104), ("2001:db8::1".to_string(), 128)]);
}

#[test]
fn actions_and_edits_arrive() {
    let replaced = "path_prefix = \"/a/\"\nreplace_prefix = \"/b/\"\nrequest_headers = { set = { X-Z = \"{client_ip}\", \
                    X-Y = \"1\" }, remove = \"Cookie\" }\nresponse_headers.add = { Vary = [\"A\", \"B\"] }";
    let config = good(&route(replaced));
    let route_ = &http(&config.snapshot.services[0]).routes[0];
    let Action::Forward { replace_prefix: Some(prefix), .. } = &route_.action else { panic!("{route_:?}") };
    assert_eq!(&**prefix, b"/b/");
    let names = |fields: &[hairpin_core::l7::config::Field]| {
        fields.iter().map(|field| String::from_utf8(field.name.to_vec()).unwrap()).collect::<Vec<_>>()
    };
    let edits = &route_.edits;
    // In the order of the file.
    assert_eq!(
        (names(&edits.request.set), names(&edits.response.add)),
        (vec!["X-Z".into(), "X-Y".into()], vec!["Vary".into(); 2])
    );
    assert_eq!(*edits.request.remove, [Box::from(&b"cookie"[..])]);
    let action = |text: &str| {
        let config = good(&with(&[("group = \"a\"", text)]));
        http(&config.snapshot.services[0]).routes[0].action.clone()
    };
    let Action::Redirect { status: 302, location } = action("redirect.location = \"https://{host}{path}\"") else {
        panic!()
    };
    assert_eq!(&*location, b"https://{host}{path}");
    let Action::Reply { status: 503, body } = action("reply = { status = 503, body = \"later\" }") else { panic!() };
    assert_eq!(&*body, b"later");
    let Action::Reply { body, .. } = action("reply.status = 404") else { panic!() };
    assert_eq!(&*body, b"404 Not Found\n");
    let Action::Reply { body, .. } = action("reply.status = 204") else { panic!() };
    assert!(body.is_empty());
}

#[test]
fn unrouted_requests_use_the_service_backends() {
    let config = good(WEB);
    assert_eq!(http(&config.snapshot.services[0]).routes.len(), 2);
    let without = with(&[("backends = [\"10.0.0.1:80\"]\n", "")]);
    let config = good(&without);
    assert_eq!(http(&config.snapshot.services[0]).routes.len(), 1);
    assert!(config.snapshot.services[0].backends.is_empty());
    refuses(
        &without.replace("group = \"a\"", "host = \"x\""),
        "11:1: error: the route leads nowhere: service \"web\" has no backends of its own; say where: group = \"...\"",
    );
    refuses(
        &without.replace("group = \"a\"", "groups = { own = 1, a = 2 }"),
        "12:12: error: service \"web\" has no backends of its own; give it some, or lead to a group",
    );
}

#[test]
fn access_rules_arrive() {
    let rules = "[[service.access]]\naction = \"allow\"\nclient = \"10.0.0.0/8\"\n[[service.access]]\naction = \"deny\"\n\
                 [[service.access]]\naction = \"deny\"\nstatus = 404\npath = \"/x\"\nstrict = true";
    let config = good(&with(&[("#MORE", rules)]));
    let access = &http(&config.snapshot.services[0]).access;
    assert!(access.iter().map(|rule| rule.strict).eq([false, false, true]));
    let verdicts: Vec<AccessVerdict> = access.iter().map(|rule| rule.verdict).collect();
    assert_eq!(
        verdicts,
        [AccessVerdict::Allow, AccessVerdict::Deny { status: 403 }, AccessVerdict::Deny { status: 404 }]
    );
    let refuses =
        |rule: &str, expected: &str| refuses(&with(&[("#MORE", &format!("[[service.access]]\n{rule}"))]), expected);
    refuses("path = \"/x\"", "15:1: error: `action` is missing in [[service.access]]; add action = \"deny\"");
    refuses("action = \"deny\"\nstatus = 200", "17:10: error: `status` is 200, out of range; use 400 to 599");
    refuses(
        "action = \"deny\"\ngroup = \"a\"",
        "17:1: error: unknown field `group` in [[service.access]]; `group` belongs in [[service.route]]",
    );
    assert_eq!(
        warned(&with(&[("#MORE", "[[service.access]]\naction = \"allow\"\nstatus = 404")])),
        ["t.toml:17:10: warning: `status` means nothing where requests pass; leave it out"]
    );
}

#[test]
fn http_settings_arrive() {
    let section = "[service.http]\nserver_timing = true\nupgrade = false\nconnect = true\nproxy_protocol = \"v2\"\n\
                   offload_bytes_min = 65536\nrequest_headers.remove = [\"X-Secret\"]\n\
                   [service.http.forwarded]\nx_forwarded_for = false\nx_real_ip = true\nforwarded = true\ntrusted = \
                   [\"10.0.0.0/8\"]\n[service.http.sticky]\ncookie = \"__Host-b\"\nmax_age = \"90s\"\nsecure = true\n\
                   same_site = \"none\"\n[service.http.limits]\nhead_bytes_max = 4096\nrequests_max = 9\nbody_bytes_max = 70000\nhead_timeout = \
                   \"5s\"";
    let config = good(&with(&[("#MORE", section)]));
    assert_eq!(config.warnings, []);
    let http = http(&config.snapshot.services[0]);
    assert!(http.server_timing && !http.upgrade && http.connect && !http.reuse);
    assert_eq!((http.proxy_protocol, http.offload_bytes_min), (Some(ProxyVersion::V2), Some(65536)));
    assert!(!http.forwarded.x_for && http.forwarded.x_real_ip && http.forwarded.standard);
    assert_eq!(http.forwarded.trusted.len(), 1);
    let sticky = http.sticky.as_ref().unwrap();
    assert_eq!(&*sticky.cookie, b"__Host-b");
    assert_eq!(&*sticky.attributes, b"; Path=/; Max-Age=90; Secure; HttpOnly; SameSite=None");
    // A target is no longer than its head.
    let limits = (http.limits.head_bytes_max, http.limits.target_bytes_max, http.limits.requests_max);
    assert_eq!((limits, http.limits.head_timeout), ((4096, 4096, 9), Duration::from_secs(5)));
    assert_eq!(http.limits.body_bytes_max, 70_000);
}

#[test]
fn an_http_service_has_the_pool_and_tracked_connections() {
    let without = WEB.replace("pool.addresses = [\"10.0.9.1\"]\n", "\n");
    refuses(
        &without,
        "5:10: error: service \"web\" is http: it reaches backends from [pool], which has no IPv4 address; give it one: \
         [pool] addresses = [\"10.0.2.1\"]",
    );
    refuses(
        &with(&[("#WEB", "mode = \"nat\"")]),
        "7:8: error: `mode` is \"nat\", but the service is http; its connections to backends are Hairpin's own, from \
         [pool]: leave `mode` out",
    );
    good(&with(&[("#WEB", "mode = \"full-nat\"")]));
    assert_eq!(
        warned(&with(&[("#WEB", "unknown = \"pick-up\"")])),
        [
            "t.toml:7:11: warning: `unknown = \"pick-up\"` means drop in service \"web\", which is http; use \"reset\" or \
          \"drop\""
        ]
    );
    let untracked =
        with(&[("pool.addresses", "connection_table = \"maglev\"\noffload.policy = \"never\"\npool.addresses")]);
    refuses(
        &untracked,
        "7:10: error: service \"web\" is http, but `connection_table = \"maglev\"` tracks no connections; use a table that \
         tracks connections",
    );
}
