//! Http services that answer for another one, or whose clients speak HTTP/2.

use super::{good, refuses, said, warned};
use hairpin::config::Config;
use hairpin_core::config::{Forwarding, UnknownPacket};
use hairpin_core::l7::config::{Action, Kind, Route};

/// A service that redirects, without backends and without a pool.
const REDIRECTS: &str = "\
interfaces = [\"eth0\"]
[[service]]
name = \"web\"
listen = \"192.0.2.1:80/http\"
http.redirect_to_https = true
#WEB
";

fn redirects(more: &str) -> String {
    REDIRECTS.replace("#WEB", more)
}

fn routes(config: &Config) -> &[Route] {
    match &config.snapshot.services[0].kind {
        Kind::Http(http) => &http.routes,
        other => panic!("{other:?}"),
    }
}

/// Whether a route takes all requests, and redirects them to `https://`.
fn is_redirect(route: &Route) -> bool {
    let Action::Redirect { status, location } = &route.action else { return false };
    let to = "https://{host}{path}{query}".as_bytes();
    route.conditions == Default::default() && *status == 308 && **location == *to
}

#[test]
fn redirecting_service_needs_neither_backends_nor_pool() {
    let config = good(REDIRECTS);
    assert_eq!(config.warnings, []);
    assert!(config.snapshot.services[0].backends.is_empty());
    let [route] = routes(&config) else { panic!("{:?}", routes(&config)) };
    assert!(is_redirect(route), "{route:?}");
    let off = "interfaces = [\"eth0\"]\npool.addresses = [\"10.0.9.1\"]\n[[service]]\nlisten = \
               \"192.0.2.1:80/http\"\nhttp.redirect_to_https = false\n";
    refuses(
        off,
        "3:1: error: the service has no backend; add backends = [\"10.0.2.11:8080\"] or a [[service.backend]]",
    );
}

#[test]
fn routes_of_redirecting_service_come_first() {
    let reply = "[[service.route]]\npath = \"/healthz\"\nreply.status = 200";
    let config = good(&redirects(reply));
    assert_eq!(config.warnings, []);
    let [reply, rest] = routes(&config) else { panic!("{:?}", routes(&config)) };
    assert!(matches!(reply.action, Action::Reply { status: 200, .. }) && is_redirect(rest));
}

#[test]
fn redirecting_service_with_a_group_needs_a_pool() {
    let group = "[[service.group]]\nname = \"acme\"\nbackends = [\"10.0.0.2:80\"]\n[[service.route]]\npath_prefix = \
                 \"/.well-known/acme-challenge/\"\ngroup = \"acme\"";
    refuses(
        &redirects(group),
        "4:10: error: service \"web\" is http: it reaches backends from [pool], which has no IPv4 address; give it one: \
         [pool] addresses = [\"10.0.2.1\"]",
    );
    let config = good(&redirects(group).replace("[[service]]", "pool.addresses = [\"10.0.9.1\"]\n[[service]]"));
    assert!(is_redirect(&routes(&config)[1]));
}

#[test]
fn backends_beside_a_redirect_are_an_error() {
    for (backends, at) in
        [("backends = [\"10.0.0.1:80\"]", "7:12"), ("[[service.backend]]\naddress = \"10.0.0.1:80\"", "7:1")]
    {
        let text = redirects(backends).replace("[[service]]", "pool.addresses = [\"10.0.9.1\"]\n[[service]]");
        refuses(
            &text,
            &format!(
                "{at}: error: the service has backends, but `redirect_to_https` leaves no request to them; leave them out, or \
                 make them a [[service.group]] that a route leads to"
            ),
        );
    }
}

/// A service that takes HTTP/2 in clear text, without a pool.
const HTTP2: &str = "\
interfaces = [\"eth0\"]
[[service]]
name = \"grpc\"
listen = \"192.0.2.1:80/http\"
backends = [\"10.0.0.1:80\"]
http.http2 = true
#GRPC
";

fn http2(more: &str) -> String {
    HTTP2.replace("#GRPC", more)
}

const COSTS: &str = "t.toml:6:14: warning: `http2` has bodies copied in user space: none is offloaded, and connections do not \
                     survive the process; leave it out unless clients speak HTTP/2 in clear text";

#[test]
fn http_service_with_http2_is_terminated() {
    let config = good(HTTP2);
    assert_eq!(warned(HTTP2), [COSTS]);
    let service = &config.snapshot.services[0];
    assert_eq!((service.forwarding, service.unknown), (Forwarding::Nat, UnknownPacket::Drop));
    let Kind::Terminated(terminated) = &service.kind else { panic!("{:?}", service.kind) };
    assert!(!terminated.tls && terminated.http2 && terminated.http.routes.len() == 1);
    assert_eq!(config.services[0].https, None);
    let spliced = HTTP2.replace("true", "false").replace("[[service]]", "pool.addresses = [\"10.0.9.1\"]\n[[service]]");
    assert!(matches!(good(&spliced).snapshot.services[0].kind, Kind::Http(_)));
}

#[test]
fn settings_about_packets_mean_nothing_with_http2() {
    let nothing = |field: &str, at: &str| {
        format!(
            "t.toml:{at}: warning: `{field}` means nothing with `http2`; connections end at the kernel's sockets: leave it out"
        )
    };
    assert_eq!(
        warned(&http2("http.timestamps = true\nhttp.offload_bytes_min = 4096")),
        [COSTS.to_string(), nothing("timestamps", "7:19"), nothing("offload_bytes_min", "8:26")]
    );
    refuses_beside_costs(
        "mode = \"full-nat\"",
        "7:8: error: `mode` is \"full-nat\", but the service has `http2`; its connections to backends are this host's own: \
         leave `mode` out",
    );
    refuses_beside_costs(
        "unknown = \"reset\"",
        "7:11: error: `unknown` is \"reset\", but the service has `http2`; the kernel answers what belongs to none of its \
         connections: leave `unknown` out",
    );
}

/// Asserts that a service with `http2` and this line has this problem beside its warning.
#[track_caller]
fn refuses_beside_costs(line: &str, expected: &str) {
    let mut problems = said(&http2(line));
    problems.retain(|problem| problem != COSTS);
    assert_eq!(problems, [format!("t.toml:{expected}")]);
}

#[test]
fn redirecting_service_may_speak_http2() {
    let text = redirects("http.http2 = true");
    let config = good(&text);
    let Kind::Terminated(terminated) = &config.snapshot.services[0].kind else { panic!() };
    assert!(matches!(&*terminated.http.routes, [route] if is_redirect(route)));
}
