//! Backends by name: `[resolver]`, and names where addresses could stand.

use super::{GOOD, good, said, warned};
use hairpin::config::Resolve;
use std::time::Duration;

const HEAD: &str = "interfaces = [\"eth0\"]\n[[service]]\nlisten = \"192.0.2.1:80/tcp\"\n";

#[test]
fn a_resolver_has_defaults() {
    let resolver = good(GOOD).settings.resolver;
    assert!(resolver.servers.is_empty());
    assert_eq!((resolver.ttl_min, resolver.ttl_max), (Duration::from_secs(5), Duration::from_secs(300)));
    assert_eq!((resolver.retries, resolver.addresses_max), (1, 64));
    assert_eq!(resolver.state.to_str(), Some("/var/lib/hairpin/names"));
}

#[test]
fn names_stand_where_addresses_could() {
    let text = format!(
        "{HEAD}backends = [\"10.0.0.1:80\", \"App.Internal:8080\"]\n[[service.backend]]\naddress = \"b.internal.:81\"\n\
         resolve = \"one\"\nweight = 3\n[[service.backend]]\nsrv = \"_http._tcp.c.internal\"\nstate = \"drain\"\n\
         [resolver]\nservers = [\"10.0.0.53\", \"[fd00::53]:5353\"]\n"
    );
    let config = good(&text);
    assert_eq!(config.snapshot.services[0].backends.len(), 1, "the others come with answers");
    let named = &config.services[0].named;
    let texts: Vec<String> = named.iter().map(ToString::to_string).collect();
    let expected = [
        "app.internal:8080 (all, weight 1, enabled)",
        "b.internal.:81 (one, weight 3, enabled)",
        "_http._tcp.c.internal (SRV, weight 1, drain)",
    ];
    assert_eq!((texts, named[1].resolve), (expected.map(String::from).to_vec(), Resolve::One));
    let servers: Vec<String> = config.settings.resolver.servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["10.0.0.53:53", "[fd00::53]:5353"]);
}

#[test]
fn mistakes_about_names_are_reported() {
    let backend = |lines: &str| said(&format!("{HEAD}balance = \"maglev\"\n[[service.backend]]\n{lines}"));
    assert!(backend("weight = 1\n")[0].contains("`address` is missing"));
    assert!(backend("address = \"10.0.0.300:80\"\n")[0].contains("is not an address and port"));
    assert!(backend("address = \"app.internal\"\n")[0].contains("is not an address and port"));
    assert!(backend("address = \"app.internal:80\"\nname = \"a\"\n")[0].contains("leave `name` out"));
    assert!(
        backend("address = \"10.0.0.1:80\"\nresolve = \"one\"\n")[0].contains("`resolve` is \"one\" for an address")
    );
    assert!(backend("srv = \"_http._tcp.a\"\naddress = \"a:80\"\n")[0].contains("`address` is given beside `srv`"));
    assert!(backend("srv = \"_http._tcp.a\"\nweight = 2\n")[0].contains("`weight` is given beside `srv`"));
    assert!(backend("srv = \"a b\"\n")[0].contains("not a name"));
    let resolver = |lines: &str| said(&format!("{HEAD}backends = [\"a.internal:80\"]\n[resolver]\n{lines}"));
    assert!(resolver("servers = \"ns.internal\"\n")[0].contains("`servers` has \"ns.internal\""));
    assert!(resolver("ttl_min = \"10m\"\n")[0].contains("`ttl_min` is longer than `ttl_max`"));
    assert!(resolver("state = \"names\"\n")[0].contains("not an absolute path"));
    assert!(resolver("addresses_max = 0\n")[0].contains("out of range"));
    let many: Vec<String> = (0..257).map(|number| format!("\"n{number}.internal:80\"")).collect();
    assert!(said(&format!("{HEAD}backends = [{}]\n", many.join(", ")))[0].contains("257 names of backends"));
}

#[test]
fn doubtful_names_are_warned_of() {
    let warnings = warned(&format!("{HEAD}[[service.backend]]\nsrv = \"_http._tcp.a\"\n"));
    assert!(warnings[0].contains("`srv` gives weights, which round-robin ignores"), "{warnings:?}");
}
