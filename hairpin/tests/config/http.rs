//! HTTP services: what they say, and what is said about mistakes.

use super::{good, refuses, said, warned};
use hairpin_core::config::{Algorithm, AllDown, Forwarding, Service, UnknownPacket};
use hairpin_core::l7::config::{Action, Http, HttpLimits, Kind, ProxyVersion, Route};
use hairpin_core::l7::route::host::HostPattern;
use hairpin_core::l7::route::path::PathPattern;
use hairpin_core::l7::route::{Conditions, Named, Test, Verdict};
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
    assert_eq!((service.unknown, service.endpoint.to_string()), (UnknownPacket::Drop, "192.0.2.1:80".to_string()));
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
        [("udp", "http", "udp"), ("http", "tcp", "http"), ("tls", "http", "tls"), ("tcp", "udp", "tcp")]
    {
        let text = with(&[("80/http", &format!("80/{listen}")), ("#WEB", &format!("protocol = \"{protocol}\""))]);
        let expected = format!(
            "t.toml:7:12: error: `protocol` is \"{protocol}\", but `listen` says {said}; say it once: leave `protocol` out"
        );
        assert!(super::said(&text).contains(&expected), "{:?}", super::said(&text));
    }
    refuses(
        &with(&[("80/http", "80"), ("#WEB", "protocol = \"htpp\"")]),
        "7:12: error: `protocol` is \"htpp\"; did you mean \"http\"? (one of \"tcp\", \"udp\", \"http\", \"tls\")",
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
    // What a group does not say is its service's.
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
fn what_no_route_takes_goes_to_the_service_s_own_backends_if_it_has_some() {
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
                 [[service.access]]\naction = \"deny\"\nstatus = 404\npath = \"/x\"";
    let config = good(&with(&[("#MORE", rules)]));
    let access = &http(&config.snapshot.services[0]).access;
    let verdicts: Vec<Verdict> = access.iter().map(|rule| rule.verdict).collect();
    assert_eq!(verdicts, [Verdict::Allow, Verdict::Deny { status: 403 }, Verdict::Deny { status: 404 }]);
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
                   same_site = \"none\"\n[service.http.limits]\nhead_bytes_max = 4096\nrequests_max = 9\nhead_timeout = \
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
        warned(&with(&[("#WEB", "unknown = \"reset\"")])),
        [
            "t.toml:7:11: warning: `unknown` means nothing to service \"web\", which is http; leave it out: such packets are \
          dropped"
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

#[test]
fn tables_of_http_are_refused_elsewhere() {
    let tcp =
        |table: &str| with(&[("backends = [\"10.0.0.1:81\"]\n", &format!("backends = [\"10.0.0.1:81\"]\n{table}\n"))]);
    let only = |table: &str, field: &str, at: &str, of: &str| {
        refuses(
            &tcp(table),
            &format!(
                "{at}: error: `{field}` is given, but service \"other\" is tcp; that is for services with {of}: write that, \
                 or leave it out"
            ),
        );
    };
    let either = "protocol = \"http\" or protocol = \"tls\"";
    only("[[service.route]]\ngroup = \"x\"", "route", "20:1", either);
    only("[[service.group]]\nname = \"x\"\nbackends = [\"10.0.0.9:1\"]", "group", "20:1", either);
    only("[[service.access]]\naction = \"deny\"", "access", "20:1", "protocol = \"http\"");
    only("[service.http]\nreuse = false", "http", "20:1", "protocol = \"http\"");
    only("[service.tls]\nconnect_tries = 1", "tls", "20:1", "protocol = \"tls\"");
}

#[test]
fn mistakes_in_conditions_have_their_place() {
    refuses(&route("path = \"x\""), "14:8: error: `path` is \"x\"; a path begins with '/'");
    refuses(&route("path_regex = \"(\""), "14:14: error: `path_regex` is \"(\"; not a regular expression");
    refuses(
        &route("host = [\"a\", \"b:80\"]"),
        "14:14: error: `host` is \"b:80\"; a host without a port (an IPv6 address in brackets)",
    );
    refuses(&route("host = []"), "14:8: error: `host` is an empty list; leave it out, or name something");
    refuses(
        &route("method = \"get\""),
        "14:10: error: `method` is \"get\"; write \"GET\": methods are written in capitals",
    );
    refuses(
        &route("header = { X-A = 5 }"),
        "14:18: error: `header` asks for X-A to be the number 5; write its value as text, { prefix = \"...\" } for what \
         that begins with, true if it must be there, false if it must not",
    );
    refuses(
        &route("header = \"X-A\""),
        "14:10: error: `header` is the text \"X-A\", not a table; write it so: header = { X-Version = \"2\", Cookie = { \
         prefix = \"beta=\" }, X-Old = false }",
    );
    refuses(
        &route("header = { \"X A\" = true }"),
        "14:12: error: `header` names \"X A\"; a field's name is made of letters, digits and !#$%&'*+-.^_`|~",
    );
    refuses(
        &route("query = { \"a=b\" = true }"),
        "14:11: error: `query` names \"a=b\"; write the parameter's name as in a request: visible ASCII without `&`, `=` and \
         `#`",
    );
    refuses(
        &route("client = \"10.0.0.1/8\""),
        "14:10: error: `client` is \"10.0.0.1/8\"; an address beyond its beginning: write \"10.0.0.0/8\"",
    );
    refuses(
        &route("sni = \"a\""),
        "14:7: error: `sni` is given, but the service is http; say `host` for the name asked for",
    );
    refuses(&route("hots = \"a\""), "14:1: error: unknown field `hots` in [[service.route]]; did you mean `host`?");
}

#[test]
fn mistakes_in_actions_have_their_place() {
    let other = "[[service.route]]\ngroup = \"a\"";
    let target = |text: &str| with(&[("group = \"a\"", text), ("#ROUTE", "path = \"/\""), ("#MORE", other)]);
    refuses(&target("group = \"b\""), "13:9: error: service \"web\" has no group \"b\"; did you mean \"a\"?");
    refuses(&target("group = \"pictures\""), "13:9: error: service \"web\" has no group \"pictures\"; there are \"a\"");
    refuses(
        &target("groups = { a = 0 }"),
        "13:16: error: the share of \"a\" is the number 0; use 1 to 65535, or leave the group out",
    );
    refuses(&target("groups = {}"), "13:10: error: `groups` names none; write it so: groups = { own = 9, canary = 1 }");
    refuses(
        &route("reply.status = 200"),
        "14:1: error: the route has `group` and `reply`; it can lead to one of them: leave the other out",
    );
    refuses(
        &target("redirect = { status = 304, location = \"/\" }"),
        "13:23: error: `status` is 304, which is no redirect; use 301, 302, 303, 307 or 308",
    );
    refuses(
        &target("redirect = { location = \"{client_ip}\" }"),
        "13:25: error: `location` is \"{client_ip}\"; a location may use {scheme}, {host}, {authority}, {path} and {query}",
    );
    refuses(
        &target("redirect = {}"),
        "13:12: error: `location` is missing in [service.route.redirect]; add location = \"https://{host}{path}{query}\"",
    );
    refuses(
        &target("reply = { status = 204, body = \"x\" }"),
        "13:32: error: a response with status 204 has no body; leave `body` out",
    );
    refuses(
        &target(&format!("reply = {{ status = 200, body = \"{}\" }}", "x".repeat(4097))),
        "13:32: error: `body` has 4097 bytes; have 4096 at most",
    );
    refuses(
        &target("reply.status = 200\nresponse_headers.set = { X-A = \"1\" }"),
        "14:1: error: `response_headers` means nothing where Hairpin answers by itself; leave it out",
    );
    refuses(
        &route("replace_prefix = \"/x\""),
        "14:18: error: `replace_prefix` replaces the `path_prefix` or `path` of its route, and there is none; add one, \
         without `path_regex`",
    );
    refuses(
        &route("path = \"/\"\nreplace_prefix = \"x\""),
        "15:18: error: `replace_prefix` is \"x\"; a path begins with '/'",
    );
}

#[test]
fn mistakes_in_edits_have_their_place() {
    refuses(
        &route("request_headers.set = { Connection = \"x\" }"),
        "14:25: error: `set` names \"Connection\"; this field frames messages or belongs to one connection: Hairpin writes it \
         itself",
    );
    refuses(
        &route("request_headers.set = { X-A = \"{nobody}\" }"),
        "14:31: error: `set` gives X-A the value \"{nobody}\"; no such variable; there are {client_ip}, {client_port}, {vip}, \
         {vip_port}, {scheme}, {service}, {backend}, {host}, {authority}, {method}, {path} and {query}, and {{ for a brace",
    );
    refuses(
        &route("response_headers.add = { X-A = \"{host}\" }"),
        "14:32: error: `add` gives X-A the value \"{host}\"; {host}, {authority}, {method}, {path} and {query} are known in \
         requests only",
    );
    refuses(
        &route("request_headers.add = { X-A = 1 }"),
        "14:31: error: `add` gives X-A the number 1 for a value; write text: X-A = \"...\"",
    );
    refuses(
        &route("response_headers.ad = { X-A = \"1\" }"),
        "14:18: error: unknown field `ad` in [service.route.response_headers]; did you mean `add`?",
    );
    refuses(
        &route("request_headers.remove = \"Host\""),
        "14:26: error: `remove` is \"Host\"; every request has a host; it can be set, not removed",
    );
}

#[test]
fn mistakes_in_groups_have_their_place() {
    let group = |text: &str| with(&[("#GROUP", text), ("group = \"a\"", "groups = { a = 1, b = 1 }")]);
    let backends = "\nbackends = [\"10.0.0.3:80\"]";
    refuses(
        &with(&[("#GROUP", &format!("[[service.group]]\nname = \"own\"{backends}"))]),
        "12:8: error: `name` is \"own\"; that means the service's own backends: choose another",
    );
    refuses(
        &with(&[("#GROUP", &format!("[[service.group]]\n{backends}"))]),
        "11:1: error: `name` is missing in [[service.group]]; add name = \"static\"",
    );
    refuses(
        &group("[[service.group]]\nname = \"b\""),
        "11:1: error: the group has no backend; add backends = [\"10.0.2.11:8080\"] or a [[service.group.backend]]",
    );
    refuses(
        &with(&[("#GROUP", &format!("[[service.group]]\nname = \"a\"{backends}"))]),
        "12:8: error: two groups are named \"web/a\"; the other one is on line 9: rename one",
    );
    refuses(
        &group("[[service.group]]\nname = \"b\"\nbackends = [\"[fd00::1]:80\"]"),
        "13:13: error: backend [fd00::1]:80 is IPv6, its group \"web/b\" IPv4; packets are not translated between families: \
         use a backend of the same",
    );
    refuses(
        &group("[[service.group]]\nname = \"b\"\nbackends = [\"192.0.2.1:80\"]"),
        "13:13: error: backend 192.0.2.1:80 is what service \"web\" listens on; packets would go round in circles: name the \
         server's own address",
    );
    refuses(
        &group("[[service.group]]\nname = \"b\"\n[[service.group.backend]]\naddress = \"10.0.0.3:80\"\nwieght = 2"),
        "15:1: error: unknown field `wieght` in [[service.group.backend]]; did you mean `weight`?",
    );
    assert_eq!(
        warned(&with(&[("#GROUP", &format!("[[service.group]]\nname = \"b\"{backends}"))])),
        ["t.toml:12:8: warning: no route leads to group \"b\"; add one, or leave the group out"]
    );
}

#[test]
fn mistakes_in_http_settings_have_their_place() {
    let http = |fields: &str| with(&[("#MORE", &format!("[service.http]\n{fields}"))]);
    refuses(
        &http("proxy_protocol = \"v1\"\nreuse = true"),
        "17:9: error: `reuse` cannot be with `proxy_protocol`, which gives every connection to a backend to one client; leave \
         one of them out",
    );
    refuses(
        &http("sticky.path = \"/\""),
        "16:1: error: `cookie` is missing in [service.http.sticky]; add cookie = \"backend\"",
    );
    refuses(
        &http("sticky.cookie = \"a b\""),
        "16:17: error: `cookie` is \"a b\"; a cookie's name is made of 1 to 64 letters, digits and !#$%&'*+-.^_`|~",
    );
    refuses(
        &http("sticky = { cookie = \"__Host-a\", secure = true, domain = \"a.example\" }"),
        "16:21: error: browsers refuse a cookie named \"__Host-a\", which needs secure = true, path = \"/\" and no `domain`; \
         add that, or choose another name",
    );
    refuses(
        &http("sticky = { cookie = \"a\", same_site = \"none\" }"),
        "16:38: error: `same_site = \"none\"` is ignored by browsers without `secure`; add secure = true, or choose \"lax\"",
    );
    refuses(
        &http("sticky = { cookie = \"a\", path = \"/;x\" }"),
        "16:33: error: `path` is \"/;x\"; write a path of up to 128 visible ASCII characters, without `;`",
    );
    refuses(
        &http("sticky = { cookie = \"a\", domain = \"*.a.example\" }"),
        "16:35: error: `domain` is \"*.a.example\"; write it without `*.`: a domain stands for all below it",
    );
    refuses(
        &http("limits.head_bytes_max = 100"),
        "16:25: error: `head_bytes_max` is 100, out of range; use 256 to 16384",
    );
    refuses(
        &http("limits.idle_timeout = \"1ms\""),
        "16:23: error: `idle_timeout` is \"1ms\", out of range; use \"100ms\" to \"1day\"",
    );
    assert_eq!(
        warned(&http("limits = { head_bytes_max = 1024, target_bytes_max = 2048 }")),
        ["t.toml:16:54: warning: `target_bytes_max` (2048) is more than a head may have (1024); lower it, or raise \
          `head_bytes_max`"]
    );
    refuses(
        &http("upgrade = \"yes\""),
        "16:11: error: `upgrade` is the text \"yes\", neither true nor false; write upgrade = true or upgrade = false, \
         without quotes",
    );
}

#[test]
fn routes_behind_one_that_takes_all_are_warned_of() {
    assert_eq!(
        warned(&with(&[("#MORE", "[[service.route]]\nhost = \"a\"")])),
        ["t.toml:15:1: warning: the route is never taken; the one on line 12 takes all: put it last"]
    );
    // A mistake in what it asks for does not make it one that takes all.
    let [one] = &said(&with(&[("#ROUTE", "path = \"x\""), ("#MORE", "[[service.route]]\nhost = \"a\"")]))[..] else {
        panic!()
    };
    assert!(one.contains("a path begins with '/'"), "{one}");
}

#[test]
fn counts_are_bounded() {
    let hosts: Vec<String> = (0..257).map(|n| format!("\"h{n}\"")).collect();
    refuses(&route(&format!("host = [{}]", hosts.join(","))), "14:8: error: 257 entries in `host`; have 256 at most");
    let mut text = with(&[("#MORE", "")]);
    let more: String = (0..1024).map(|n| format!("[[service.route]]\npath = \"/{n}\"\n")).collect();
    text = text.replace("[[service.route]]\ngroup", &format!("{more}[[service.route]]\ngroup"));
    let said = said(&text);
    assert!(said.len() == 1 && said[0].ends_with("error: 1025 entries in `route`; have 1024 at most"), "{said:?}");
    let mut text = with(&[]);
    for n in 0..1022 {
        text += &format!("[[service]]\nlisten = \"192.0.2.2:{}/tcp\"\nbackends = [\"10.0.0.1:1\"]\n", n + 1);
    }
    refuses(&text, "3083:1: error: 1025 services and groups; have 1024 at most");
}
