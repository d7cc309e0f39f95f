//! `routes_of`: a service that does with requests what another one does.

use super::{good, refuses, said, warned};
use hairpin::config::Config;
use hairpin_core::config::Forwarding;
use hairpin_core::l7::config::{Action, Http};

/// An https service with a group, and an http service that follows it, in lines 15 to 18.
const BOTH: &str = "\
interfaces = [\"eth0\"]
[pool]
addresses = [\"10.0.9.1\"]
[[service]]
name = \"shop\"
listen = \"192.0.2.1:443/https\"
backends = [\"10.0.0.1:80\"]
https.certificates = \"/tls\"
[[service.group]]
name = \"a\"
backends = [\"10.0.0.2:80\"]
[[service.route]]
host = \"a.example\"
group = \"a\"
[[service]]
name = \"plain\"
listen = \"192.0.2.1:80/http\"
routes_of = \"shop\"
";

fn with(edits: &[(&str, &str)]) -> String {
    let mut text = BOTH.to_string();
    for (from, to) in edits {
        assert!(text.contains(from), "{from}");
        text = text.replace(from, to);
    }
    text
}

fn http(config: &Config, service: usize) -> &Http {
    config.snapshot.services[service].kind.http().unwrap()
}

/// Where each route leads.
fn led(config: &Config, service: usize) -> Vec<u16> {
    let routes = http(config, service).routes.iter().map(|route| match &route.action {
        Action::Forward { groups, .. } => groups[0].0,
        other => panic!("{other:?}"),
    });
    routes.collect()
}

#[test]
fn routes_lead_to_the_backends_of_the_other_service() {
    let rules =
        "[[service.access]]\naction = \"deny\"\npath_prefix = \"/admin/\"\n[service.http]\nserver_timing = true\n";
    let config = good(&with(&[("[[service.group]]", &format!("{rules}[[service.group]]"))]));
    assert_eq!(config.warnings, []);
    let names: Vec<&str> = config.snapshot.services.iter().map(|service| &*service.name).collect();
    assert_eq!(names, ["shop", "shop/a", "plain"]);
    assert_eq!((led(&config, 0), led(&config, 2)), (vec![1, 0], vec![1, 0]));
    assert_eq!((http(&config, 2).access.len(), http(&config, 2).server_timing), (1, true));
    assert!(config.snapshot.services[2].backends.is_empty());
}

#[test]
fn backends_have_ports_of_the_pool_once_a_splice_leads_there() {
    let forwarding = |text: &str| -> Vec<Forwarding> {
        good(text).snapshot.services.iter().take(2).map(|service| service.forwarding).collect()
    };
    assert_eq!(forwarding(BOTH), [Forwarding::FullNat; 2]);
    let terminated = with(&[("routes_of = \"shop\"", "routes_of = \"shop\"\nhttp.http2 = true")]);
    assert_eq!(forwarding(&terminated), [Forwarding::Nat; 2]);
    let [no_pool] = &said(&with(&[("addresses = [\"10.0.9.1\"]", "")]))[..] else { panic!() };
    assert!(no_pool.contains("service \"plain\" is http: it reaches backends from [pool]"), "{no_pool}");
}

#[test]
fn what_concerns_clients_connections_is_its_own() {
    let own = "routes_of = \"shop\"\nhttp.timestamps = false\nhttp.offload_bytes_min = 65536";
    let config = good(&with(&[("routes_of = \"shop\"", own)]));
    assert_eq!((http(&config, 2).timestamps, http(&config, 2).offload_bytes_min), (false, Some(65_536)));
    assert_eq!((http(&config, 0).timestamps, http(&config, 0).offload_bytes_min), (true, None));
}

#[test]
fn an_https_service_can_follow_an_http_service() {
    let text = with(&[
        ("192.0.2.1:443/https\"\nbackends", "192.0.2.1:80/http\"\nbackends"),
        ("https.certificates = \"/tls\"\n", ""),
        ("192.0.2.1:80/http\"\nroutes_of", "192.0.2.1:443/https\"\nhttps.certificates = \"/tls\"\nroutes_of"),
    ]);
    let config = good(&text);
    assert!(config.snapshot.services[2].kind.is_terminated());
    assert_eq!((led(&config, 2), config.warnings.len()), (vec![1, 0], 0));
    let redirects = text.replace("backends = [\"10.0.0.1:80\"]\n", "http.redirect_to_https = true\n");
    refuses(
        &redirects,
        "18:13: error: `routes_of` names service \"shop\", which redirects to https; clients would be redirected here again \
         and again: write the routes here",
    );
}

#[test]
fn what_the_other_service_says_is_not_said_again() {
    for (field, column) in
        [("backends = [\"10.0.0.3:80\"]", 12), ("balance = \"maglev\"", 11), ("health.passive = 3", 1)]
    {
        let name = field.split([' ', '.']).next().unwrap();
        let all = said(&format!("{BOTH}{field}\n"));
        let expected = format!(
            "t.toml:19:{column}: error: `{name}` is given beside `routes_of`; it is what service \"shop\" says: leave it out \
             here"
        );
        assert_eq!(all, [expected]);
    }
    refuses(
        &format!("{BOTH}http.upgrade = false\n"),
        "19:16: error: `upgrade` is given in [service.http] beside `routes_of`; it is what service \"shop\" says: leave it \
         out here",
    );
    let route = said(&format!("{BOTH}[[service.route]]\nreply = {{ status = 200 }}\n"));
    assert!(route[0].contains("`route` is given beside `routes_of`"), "{route:?}");
}

#[test]
fn wrong_references_say_what_would_be_right() {
    let naming = |of: &str| with(&[("routes_of = \"shop\"", &format!("routes_of = \"{of}\""))]);
    refuses(
        &naming("shpo"),
        "18:13: error: `routes_of` names \"shpo\", and no service is called so; did you mean \"shop\"?",
    );
    refuses(
        &naming("plain"),
        "18:13: error: `routes_of` names service \"plain\", which is this one; name another one, or leave it out",
    );
    let chain = "[[service]]\nlisten = \"192.0.2.1:81/http\"\nroutes_of = \"plain\"\n";
    refuses(
        &format!("{BOTH}{chain}"),
        "21:13: error: `routes_of` names service \"plain\", which follows service \"shop\" itself; name that one: routes_of = \
         \"shop\"",
    );
    let tcp = "[[service]]\nname = \"db\"\nlisten = \"192.0.2.1:1/tcp\"\nbackends = [\"10.0.0.9:1\"]\n";
    refuses(
        &format!("{}{tcp}", naming("db")),
        "18:13: error: `routes_of` names service \"db\", which has no requests; name an http or https service",
    );
    let [on_tcp] = &said(&format!("{BOTH}{tcp}routes_of = \"shop\"\n"))[..] else { panic!() };
    assert!(on_tcp.contains("`routes_of` is given, but service \"db\" is tcp"), "{on_tcp}");
    let family = with(&[("192.0.2.1:80/http", "[2001:db8::1]:80/http"), ("10.0.9.1", "fd00::1")]);
    refuses(
        &family,
        "18:13: error: `routes_of` names service \"shop\", whose VIP is of another address family; backends are of their VIP's \
         family: write routes for each",
    );
    let tls = with(&[("[[service.group]]", "backend_tls.roots = \"/ca.pem\"\n[[service.group]]")]);
    refuses(
        &tls,
        "19:13: error: `routes_of` names service \"shop\", which speaks TLS or HTTP/2 with backends; connections that are \
         spliced carry neither: give it backends of its own, or make it https",
    );
    good(&tls.replace("routes_of = \"shop\"", "routes_of = \"shop\"\nhttp.http2 = true"));
}

#[test]
fn secure_cookie_of_the_other_service_is_doubtful_over_http() {
    let sticky = "http.sticky.cookie = \"b\"\n[[service.group]]";
    assert_eq!(
        warned(&with(&[("[[service.group]]", sticky)])),
        [
            "t.toml:19:13: warning: the cookie of service \"shop\" is `secure`: over http, browsers do not take it; write \
             secure = false there, or have http clients redirected"
        ]
    );
}

#[test]
fn the_access_log_knows_the_routes_of_the_other_service() {
    let text = |route: &str| {
        let log = format!("routes_of = \"shop\"\naccess_log.routes = [\"{route}\"]");
        with(&[("[pool]", "[access_log]\nto = \"stdout\"\n[pool]"), ("routes_of = \"shop\"", &log)])
    };
    let config = good(&text("1"));
    let logs = [0, 2].map(|service: usize| config.services[service].access_log.as_ref().unwrap());
    assert_eq!(([0, 2].map(|at: usize| config.services[at].route_count), &logs[1].routes[..]), ([1, 1], &[1][..]));
    refuses(
        &text("2"),
        "20:13: error: [service.access_log] asks for route 2, and the service has 1; routes are counted from 1, in the \
         order of the file",
    );
}
