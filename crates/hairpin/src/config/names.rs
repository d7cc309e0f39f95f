//! Backends by name: `[resolver]`, the names that stand where addresses could, and what answers make of a configuration.
//!
//! A file is read and checked without answers: what it says does not depend on the DNS. [`Config::with_answers`] then gives each
//! service the backends that its names have now, as if they stood in the file, named by their addresses. Addresses that a file may not
//! have there (of no host, of a VIP, of the pool) are left out and counted.

use super::instance::absolute_path;
use super::reader::{TomlTable, unicast};
use super::words::SettingWord;
use super::{BACKENDS_MAX, Config, Settings, reference};
use crate::names::{Answers, Found, Question, ResolverSettings};
use hairpin_core::config::{Backend, BackendState, Forwarding, Service, Snapshot};
use hairpin_core::flow::{Address, Endpoint};
use hairpin_diagnostics::{At, Sink};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Names of a configuration at most.
pub(crate) const NAMES_MAX: usize = 256;
/// Servers at most.
pub(crate) const SERVERS_MAX: usize = 8;
/// Characters of a name at most (RFC 1035, 2.3.4).
const NAME_MAX: usize = 253;
/// Characters of a label at most.
const LABEL_MAX: usize = 63;
/// The port of DNS servers.
const DNS_PORT: u16 = 53;

/// Which addresses of a name become backends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resolve {
    /// Each.
    #[default]
    All,
    /// The first one that can be a backend; the same one as long as the name has it.
    One,
}

/// The backends that a name gives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedBackends {
    /// What is looked up.
    pub question: Question,
    /// Their port; `None`: SRV records say it.
    pub port: Option<u16>,
    /// Which of the addresses.
    pub resolve: Resolve,
    /// The weight of each, but where SRV records say it.
    pub weight: u16,
    /// Whether they take connections.
    pub state: BackendState,
    /// Whether they are backups.
    pub is_backup: bool,
    /// Connections that each may have at a time; 0: any number.
    pub connections_max: u32,
}

impl NamedBackends {
    /// With the defaults of all other fields.
    fn new(question: Question, port: Option<u16>) -> NamedBackends {
        let (resolve, state) = (Resolve::All, BackendState::Enabled);
        NamedBackends { question, port, resolve, weight: 1, state, is_backup: false, connections_max: 0 }
    }
}

impl std::fmt::Display for NamedBackends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = &self.question.name;
        match self.port {
            Some(port) => write!(f, "{name}:{port} ({}", self.resolve.word())?,
            None => write!(f, "{name} (SRV")?,
        }
        write!(f, ", weight {}, {}", self.weight, self.state.word())?;
        if self.connections_max > 0 {
            write!(f, ", connections_max {}", self.connections_max)?;
        }
        f.write_str(if self.is_backup { ", backup)" } else { ")" })
    }
}

/// A host's name and a port, in small letters; `None`: it is something else.
pub(crate) fn host_and_port(text: &str) -> Option<(String, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let port = port.parse().ok().filter(|port| *port != 0 && text.as_bytes()[host.len() + 1] != b'+')?;
    is_name(host).then(|| (host.to_ascii_lowercase(), port))
}

/// Whether the DNS can be asked for it: labels of letters, digits, `-` and `_`. What ends in a number is a mistyped address.
fn is_name(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_right = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| {
        (1..=LABEL_MAX).contains(&label.len())
            && label.bytes().all(is_right)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let last_is_number = name.rsplit('.').next().is_some_and(|last| last.bytes().all(|byte| byte.is_ascii_digit()));
    name.len() <= NAME_MAX && !last_is_number && name.split('.').all(is_label)
}

/// A name among `backends`, or in `address`, whose other fields have their defaults.
pub(super) fn named(text: &At<String>, is_ipv6: bool) -> Option<At<NamedBackends>> {
    let (name, port) = host_and_port(&text.value)?;
    let question = Question { name, is_srv: false, is_ipv6 };
    Some(At { value: NamedBackends::new(question, Some(port)), span: text.span.clone() })
}

/// A `[[service.backend]]` that has a name in `address`, or `srv`. `None`: it has neither, or is wrong, which is reported.
pub(super) fn read_backend(table: &TomlTable<'_>, is_ipv6: bool) -> Option<At<NamedBackends>> {
    let mut named = if table.has("srv") {
        let text = table.text("srv")?;
        for field in ["address", "weight", "resolve"].into_iter().filter(|field| table.has(field)) {
            let what = format!("`{field}` is given beside `srv`");
            table.error(&table.span_of(field), what, "SRV records say targets, ports and weights: leave it out");
        }
        if !is_name(&text.value) {
            let remedy = "write the name of SRV records, such as \"_http._tcp.app.internal\"";
            table.error(&text.span, format!("`srv` is \"{}\", not a name", text.value), remedy);
            return None;
        }
        let question = Question { name: text.value.to_ascii_lowercase(), is_srv: true, is_ipv6 };
        At { value: NamedBackends::new(question, None), span: text.span }
    } else {
        named(&table.text("address")?, is_ipv6)?
    };
    if table.has("name") {
        let remedy = "backends of a name are called by their addresses: leave `name` out";
        table.error(&table.span_of("name"), "`name` is given for backends that a name has", remedy);
    }
    named.value.weight = table.integer("weight").and_then(|weight| u16::try_from(weight).ok()).unwrap_or(1);
    named.value.resolve = table.choice("resolve").unwrap_or_default();
    named.value.state = table.choice("state").unwrap_or_default();
    named.value.is_backup = table.boolean("backup");
    named.value.connections_max = super::service::connections_max(table);
    Some(named)
}

/// Reads `[resolver]`. `None`: something is wrong, which is reported.
pub(super) fn read(sink: &Sink<'_>, top: &TomlTable<'_>) -> Option<ResolverSettings> {
    let table = top.table("resolver", &reference::RESOLVER);
    let texts = table.one_or_more("servers");
    let server = |text: &At<String>| {
        let parsed = match text.value.parse::<IpAddr>() {
            Ok(address) => Ok((address, DNS_PORT).into()),
            Err(_) => text.value.parse(),
        };
        if parsed.is_err() {
            let what = format!("`servers` has \"{}\"", text.value);
            sink.error(
                &text.span,
                what,
                "write the address of a DNS server, such as \"10.0.0.53\" or \"[fd00::53]:5353\"",
            );
        }
        parsed.ok()
    };
    let servers: Vec<_> = texts.iter().filter_map(server).collect();
    if texts.len() > SERVERS_MAX {
        let what = format!("{} entries in `servers`", texts.len());
        table.error(&table.span_of("servers"), what, format!("have {SERVERS_MAX} at most"));
    }
    let (ttl_min, ttl_max) = (table.duration("ttl_min"), table.duration("ttl_max"));
    if ttl_min > ttl_max {
        let what = "`ttl_min` is longer than `ttl_max`";
        table.error(&table.span_of("ttl_min"), what, "name a shorter one, or a longer `ttl_max`");
    }
    let number = |field| table.integer(field).and_then(|number| usize::try_from(number).ok());
    Some(ResolverSettings {
        servers,
        ttl_min,
        ttl_max,
        timeout: table.duration("timeout"),
        retries: number("retries")?,
        addresses_max: number("addresses_max")?,
        hold: table.duration("hold"),
        keep: table.duration("keep"),
        state: absolute_path(sink, &table, "state")?,
    })
}

/// Reports more names than there may be.
pub(super) fn check<'a>(sink: &Sink<'_>, named: impl Iterator<Item = &'a NamedBackends>) {
    let names: BTreeSet<&Question> = named.map(|named| &named.question).collect();
    if names.len() > NAMES_MAX {
        let what = format!("{} names of backends", names.len());
        sink.error(&(0..0), what, format!("have {NAMES_MAX} at most"));
    }
}

/// What a backend cannot be at.
struct Taken<'a> {
    addresses: HashSet<Address>,
    settings: &'a Settings,
}

impl Taken<'_> {
    fn is_usable(&self, service: &Service, endpoint: Endpoint) -> bool {
        let address = IpAddr::from(endpoint.address);
        let is_reached = self.settings.dpdk.as_ref().is_none_or(|dpdk| {
            dpdk.reaches(address)
                && !dpdk.ports.iter().any(|port| port.addresses.iter().any(|own| own.address == address))
        });
        let fits = service.forwarding != Forwarding::Direct || endpoint.port == service.endpoint.port;
        unicast(address).is_ok()
            && endpoint.address.is_ipv4() == service.endpoint.address.is_ipv4()
            && !self.addresses.contains(&endpoint.address)
            && is_reached
            && fits
    }
}

impl Config {
    /// What it wants to have looked up, each once.
    pub(crate) fn questions(&self) -> Vec<Question> {
        let named = self.services.iter().flat_map(|service| &service.named);
        named.map(|named| named.question.clone()).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// This configuration with the backends that these answers give its names; backends of earlier answers are gone.
    #[must_use]
    pub(crate) fn with_answers(mut self, answers: &Arc<Answers>) -> Config {
        let vips = self.snapshot.services.iter().map(|service| service.endpoint.address);
        let addresses = vips.chain(self.snapshot.pool.addresses.iter().copied()).collect();
        let taken = Taken { addresses, settings: &self.settings };
        let mut left = BACKENDS_MAX.saturating_sub(self.services.iter().map(|service| service.listed).sum());
        let mut refused = BTreeMap::new();
        let mut numbers = 0..;
        let mut services = self.snapshot.services.clone();
        for (service, settings) in services.iter_mut().zip(&self.services) {
            let mut backends: Vec<Backend> = service.backends[..settings.listed].to_vec();
            let mut there: HashSet<Endpoint> = backends.iter().map(|backend| backend.endpoint).collect();
            for named in &settings.named {
                let found = answers.get(&named.question).map_or(&[][..], Vec::as_slice);
                let (given, mut without) = given(named, found, |endpoint| taken.is_usable(service, endpoint));
                for backend in given {
                    if left == 0 {
                        without += 1;
                    } else if there.insert(backend.endpoint) {
                        left -= 1;
                        backends.push(backend);
                    }
                }
                let count: &mut usize = refused.entry(named.question.clone()).or_default();
                *count = (*count).max(without);
            }
            backends.iter_mut().zip(&mut numbers).for_each(|(backend, number)| backend.number = number);
            service.backends = backends.into();
        }
        let before = &self.snapshot;
        let mut snapshot = Snapshot::new(services, before.pool.clone());
        (snapshot.when_full, snapshot.keys, snapshot.id) = (before.when_full, before.keys.clone(), before.id);
        (self.snapshot, self.answers, self.refused) = (snapshot, Arc::clone(answers), refused);
        self
    }
}

/// The backends that an answer gives, and how many addresses of it cannot be backends.
fn given(named: &NamedBackends, found: &[Found], is_usable: impl Fn(Endpoint) -> bool) -> (Vec<Backend>, usize) {
    let endpoint = |found: &Found| {
        let port = named.port.or_else(|| found.srv.as_ref().map(|srv| srv.port)).filter(|port| *port != 0)?;
        Some(Endpoint::new(found.address, port)).filter(|endpoint| is_usable(*endpoint))
    };
    let usable: Vec<_> = found.iter().filter_map(|found| Some((endpoint(found)?, found.srv.as_ref()))).collect();
    let without = found.len() - usable.len();
    // RFC 2782: the lowest is preferred. The others are not for the time in which none of these is up: nothing here knows that.
    let best = usable.iter().filter_map(|(_, srv)| Some(srv.as_ref()?.priority)).min();
    let backend = |(endpoint, srv): &(Endpoint, Option<&crate::names::Target>)| Backend {
        number: 0,
        name: endpoint.to_string().into(),
        endpoint: *endpoint,
        // A weight of 0 has a small chance in RFC 2782, and none here.
        weight: srv.map_or(named.weight, |srv| srv.weight.max(1)),
        state: named.state,
        is_backup: named.is_backup,
        connections_max: named.connections_max,
    };
    let most = if named.resolve == Resolve::One { 1 } else { usize::MAX };
    let chosen = usable.iter().filter(|(_, srv)| srv.map(|srv| srv.priority) == best).take(most);
    (chosen.map(backend).collect(), without)
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;
    use crate::names::Target;

    const FILE: &str = r#"
        interfaces = ["eth0"]
        pool.addresses = ["10.0.9.1"]
        [[service]]
        name = "web"
        listen = "192.0.2.1:80/tcp"
        balance = "weighted-round-robin"
        backends = ["10.0.0.9:80", "App.internal:8080"]
        [[service]]
        name = "api"
        listen = "192.0.2.2:80/tcp"
        balance = "weighted-round-robin"
        [[service.backend]]
        srv = "_http._tcp.app.internal"
        [[service]]
        name = "one"
        listen = "192.0.2.3:80/tcp"
        [[service.backend]]
        address = "app.internal:9000"
        resolve = "one"
        state = "drain"
    "#;

    fn plain(addresses: &[&str]) -> Vec<Found> {
        addresses.iter().map(|address| Found { address: address.parse().unwrap(), srv: None }).collect()
    }

    fn question(name: &str, is_srv: bool) -> Question {
        Question { name: name.into(), is_srv, is_ipv6: false }
    }

    fn srv(address: &str, priority: u16, weight: u16, port: u16) -> Found {
        let target = Target { priority, weight, port, host: format!("{address}.") };
        Found { address: address.parse().unwrap(), srv: Some(target) }
    }

    /// Each service's backends, with weight and state.
    fn backends(config: &Config) -> Vec<Vec<String>> {
        let text = |backend: &Backend| {
            assert_eq!(&*backend.name, backend.endpoint.to_string());
            format!("{} {} {}", backend.name, backend.weight, backend.state.word())
        };
        config.snapshot.services.iter().map(|service| service.backends.iter().map(text).collect()).collect()
    }

    #[test]
    fn answers_become_backends() {
        let config = parse("t", FILE).unwrap();
        let [app, http] = [question("app.internal", false), question("_http._tcp.app.internal", true)];
        assert_eq!(config.questions(), [http.clone(), app.clone()]);
        assert_eq!(backends(&config), [vec!["10.0.0.9:80 1 enabled"], vec![], vec![]]);
        let records = vec![srv("10.0.1.1", 20, 5, 81), srv("10.0.1.2", 10, 0, 82), srv("10.0.1.3", 10, 30, 83)];
        let answers = [(app.clone(), plain(&["10.0.0.2", "10.0.0.1"])), (http.clone(), records)];
        let config = config.with_answers(&Arc::new(answers.into()));
        let expected = [
            vec!["10.0.0.9:80 1 enabled", "10.0.0.2:8080 1 enabled", "10.0.0.1:8080 1 enabled"],
            vec!["10.0.1.2:82 1 enabled", "10.0.1.3:83 30 enabled"],
            vec!["10.0.0.2:9000 1 drain"],
        ];
        assert_eq!(backends(&config), expected);
        let numbers: Vec<u16> = config
            .snapshot
            .services
            .iter()
            .flat_map(|service| &service.backends)
            .map(|backend| backend.number)
            .collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5]);
        // Other answers take the place of these.
        let config = config.with_answers(&Arc::new([(app, plain(&["10.0.0.1"]))].into()));
        let expected =
            [vec!["10.0.0.9:80 1 enabled", "10.0.0.1:8080 1 enabled"], vec![], vec!["10.0.0.1:9000 1 drain"]];
        assert_eq!(backends(&config), expected);
    }

    #[test]
    fn addresses_that_cannot_be_backends_are_left_out() {
        let hostile =
            ["0.0.0.0", "224.0.0.1", "255.255.255.255", "127.0.0.1", "192.0.2.2", "10.0.9.1", "fd00::1", "10.0.0.1"];
        let app = question("app.internal", false);
        let answers = Arc::new(Answers::from([(app.clone(), plain(&hostile))]));
        let config = parse("t", FILE).unwrap().with_answers(&answers);
        assert_eq!(backends(&config)[0], ["10.0.0.9:80 1 enabled", "10.0.0.1:8080 1 enabled"]);
        assert_eq!(config.refused[&app], 7);
        // One that stands in the file as well is there once.
        let file = FILE.replace("10.0.0.9:80", "10.0.0.1:8080");
        let config = parse("t", &file).unwrap().with_answers(&answers);
        assert_eq!(backends(&config)[0], ["10.0.0.1:8080 1 enabled"]);
    }

    #[test]
    fn priority_counts_among_those_that_can_be_backends() {
        let records = vec![srv("192.0.2.1", 1, 1, 80), srv("10.0.0.1", 2, 1, 80)];
        let answers = Answers::from([(question("_http._tcp.app.internal", true), records)]);
        let config = parse("t", FILE).unwrap().with_answers(&Arc::new(answers));
        assert_eq!(backends(&config)[1], ["10.0.0.1:80 1 enabled"]);
    }

    #[test]
    fn mistyped_addresses_are_no_names() {
        for wrong in [
            "10.0.0.300:80",
            "10.0.0:80",
            "::1:80",
            "[fd00::g]:80",
            "app:0",
            "app:+80",
            "app",
            "-app:80",
            "a..b:80",
            ":80",
        ] {
            assert_eq!(host_and_port(wrong), None, "{wrong}");
        }
        assert_eq!(host_and_port("App-1.Internal.:80"), Some(("app-1.internal.".into(), 80)));
    }
}
