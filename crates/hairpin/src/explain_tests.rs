//! What becomes of requests, as `hairpin route` says it.

use super::explain;
use crate::config::{self, Config};
use crate::control::{RouteAnswer, RouteQuery, RouteView};
use crate::render::routes;

const FILE: &str = r#"
interfaces = ["eth0"]
[pool]
addresses = ["10.0.0.9"]
[[service]]
name = "shop"
listen = "192.0.2.1:80/http"
backends = ["10.0.0.1:80", "10.0.0.2:80"]
http.sticky = { cookie = "lb" }
[[service.access]]
action = "allow"
client = ["203.0.113.0/24"]
path_prefix = "/admin"
[[service.access]]
action = "deny"
path_prefix = "/admin"
[[service.route]]
path_prefix = "/api"
method = ["GET", "POST"]
groups = { api = 3, old = 1 }
replace_prefix = "/v2"
[[service.route]]
path = "/gone"
redirect = { status = 301, location = "https://{host}/new{query}" }
[[service.route]]
path = "/ping"
reply = { status = 200, body = "pong" }
[[service.group]]
name = "api"
balance = "least-connections"
[[service.group.backend]]
address = "10.0.1.1:80"
weight = 2
[[service.group]]
name = "old"
backends = ["10.0.2.1:80"]
[[service]]
name = "other"
listen = "192.0.2.2:80/http"
[[service.route]]
host = "*.example"
reply = { status = 204 }
"#;

fn config() -> Config {
    config::parse("hairpin.toml", FILE).unwrap_or_else(|problems| panic!("{problems}"))
}

fn asked(method: &str, url: &str, client: &str, headers: &[&str]) -> Vec<RouteView> {
    let query = RouteQuery {
        method: method.into(),
        url: url.into(),
        client: Some(client.into()),
        headers: headers.iter().map(|header| header.to_string()).collect(),
        service: None,
    };
    explain(&config(), &query).unwrap_or_else(|error| panic!("{error}")).services
}

fn one(method: &str, url: &str, client: &str) -> RouteView {
    let views = asked(method, url, client, &["Host: shop.example"]);
    assert_eq!(views.len(), 1, "{views:?}");
    views.into_iter().next().expect("one")
}

#[test]
fn routes_lead_to_groups_with_their_shares() {
    let view = one("GET", "http://192.0.2.1/api/x?y", "198.51.100.1");
    assert_eq!((&*view.service, &*view.outcome, &view.access), ("shop", "forward", &None));
    let route = view.route.as_ref().expect("a route");
    assert!(route.number == 1 && route.written.contains("/api"), "{route:?}");
    assert_eq!((view.replaced_prefix.as_deref(), view.sticky.as_deref()), (Some("/v2"), Some("lb")));
    let groups: Vec<_> = view.groups.iter().map(|group| (group.share, &*group.balance, group.backends.len())).collect();
    assert_eq!(groups, [(0.75, "least-connections", 1), (0.25, "round-robin", 1)]);
    assert_eq!((view.groups[0].backends[0].weight, &*view.groups[0].backends[0].address), (2, "10.0.1.1:80"));
    let text = routes(&RouteAnswer { services: vec![view] }, None);
    assert!(text.contains("route    1: ") && text.contains("10.0.2.1:80") && text.contains("75.0 %"), "{text}");
}

#[test]
fn what_no_route_takes_goes_to_the_services_own_backends() {
    // The route is for other methods.
    let view = one("DELETE", "http://192.0.2.1/api/x", "198.51.100.1");
    assert_eq!((&*view.outcome, &view.route, view.groups.len()), ("forward", &None, 1));
    assert_eq!((&*view.groups[0].name, view.groups[0].backends.len()), ("shop", 2));
    assert!(routes(&RouteAnswer { services: vec![view] }, None).contains("none: the service's own backends"));
}

#[test]
fn access_rules_are_named() {
    let passes = one("GET", "http://192.0.2.1/admin", "203.0.113.7");
    let rule = passes.access.as_ref().expect("a rule");
    assert_eq!((rule.number, rule.denies, &*passes.outcome), (1, false, "forward"));
    let denied = one("GET", "http://192.0.2.1/a/../admin", "198.51.100.1");
    let rule = denied.access.as_ref().expect("a rule");
    assert_eq!((rule.number, rule.denies, &*denied.outcome, denied.status), (2, true, "refuse", Some(403)));
    let text = routes(&RouteAnswer { services: vec![denied] }, None);
    assert!(text.contains("rule 2 denies it") && text.contains("refused  403: an access rule denies it"), "{text}");
    // Only a backend that leaves parameters out would read it so.
    let otherwise = one("GET", "http://192.0.2.1/admin;x=y", "198.51.100.1");
    assert_eq!((&*otherwise.outcome, otherwise.status), ("refuse", Some(403)));
}

#[test]
fn hairpins_own_answers_are_told() {
    let redirect = one("GET", "http://192.0.2.1/gone?a=b", "198.51.100.1");
    assert_eq!((&*redirect.outcome, redirect.status), ("redirect", Some(301)));
    assert_eq!(redirect.location.as_deref(), Some("https://shop.example/new?a=b"));
    assert_eq!(redirect.route.map(|route| route.number), Some(2));
    let reply = one("GET", "http://192.0.2.1/ping", "198.51.100.1");
    assert_eq!((&*reply.outcome, reply.status, reply.route.map(|route| route.number)), ("reply", Some(200), Some(3)));
}

#[test]
fn every_service_on_the_port_is_told_of() {
    let views = asked("GET", "http://shop.example/ping", "198.51.100.1", &[]);
    let outcomes: Vec<_> = views.iter().map(|view| (&*view.service, &*view.outcome, view.status)).collect();
    assert_eq!(outcomes, [("shop", "reply", Some(200)), ("other", "reply", Some(204))]);
    let views = asked("GET", "http://shop.org/x", "198.51.100.1", &[]);
    assert_eq!((views[1].status, &*views[1].outcome), (Some(404), "refuse"));
    assert!(views[1].reason.starts_with("no route takes it"), "{}", views[1].reason);
}

#[test]
fn mistakes_are_explained() {
    let error = |query: RouteQuery| explain(&config(), &query).expect_err("a mistake");
    let query = |url: &str| RouteQuery { method: "GET".into(), url: url.into(), ..RouteQuery::default() };
    assert!(error(query("shop.example/x")).ends_with("write http://HOST/PATH or https://HOST/PATH"));
    assert!(error(query("ftp://shop.example/x")).contains("has no scheme that is known here"));
    let other_port = error(query("https://shop.example/"));
    assert!(other_port.contains("no https service listens on port 443") && other_port.contains("shop (192.0.2.1:80)"));
    let named = error(RouteQuery { service: Some("shpo".into()), ..query("http://shop.example/") });
    assert_eq!(named, "no http or https service is named \"shpo\"; did you mean \"shop\"?");
    assert!(error(RouteQuery { client: Some("me".into()), ..query("http://a/") }).contains("no IP address"));
    assert!(error(query("http://shop.example:99999/")).contains("has a port that is not in 0..=65535"));
    assert!(error(RouteQuery { method: "GET\r\nA: b".into(), ..query("http://192.0.2.1/") }).ends_with("is no method"));
    for field in ["nothing", "A: b\r\nC: d"] {
        let query = RouteQuery { headers: vec![field.into()], ..query("http://shop.example/") };
        assert!(error(query).contains("is no field"), "{field}");
    }
    let asked = |url: &str| explain(&config(), &query(url)).expect("an answer").services.remove(0);
    let odd = asked("http://192.0.2.1/a%00b");
    assert_eq!((odd.status, &*odd.reason), (Some(400), "its path is too long, or can be read in more than one way"));
    assert_eq!(asked("http://192.0.2.1?x=1").outcome, "forward");
    // What a client could not send is refused as the client would be.
    let views = explain(&config(), &RouteQuery { method: "G ET".into(), ..query("http://192.0.2.1/") });
    let view = &views.expect("an answer").services[0];
    assert_eq!((&*view.outcome, view.status), ("refuse", Some(400)));
}
