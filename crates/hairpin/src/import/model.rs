//! What is written: services with their groups, routes and tables, as text.

use super::upstream::Upstream;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// Fields with their values in TOML.
pub(super) type Fields = Vec<(&'static str, String)>;

/// A text in TOML.
pub(super) fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// A list of texts, or the one there is.
pub(super) fn list<T: AsRef<str>>(texts: &[T]) -> String {
    match texts {
        [one] => quoted(one.as_ref()),
        more => format!("[{}]", more.iter().map(|text| quoted(text.as_ref())).collect::<Vec<_>>().join(", ")),
    }
}

/// A table on one line, its keys in quotes where they need them.
pub(super) fn inline(entries: &[(String, String)]) -> String {
    let is_bare =
        |key: &str| !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'));
    let key = |key: &String| if is_bare(key) { key.clone() } else { quoted(key) };
    let entries: Vec<String> = entries.iter().map(|(name, value)| format!("{} = {value}", key(name))).collect();
    format!("{{ {} }}", entries.join(", "))
}

/// A name as Hairpin has them, of a text.
pub(super) fn name_of(text: &str) -> String {
    let legal = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '_') { c } else { '-' };
    let name: String = text.chars().map(legal).take(48).collect();
    let name = name.trim_matches('-');
    if name.is_empty() { "unnamed".to_string() } else { name.to_string() }
}

/// A service.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) name: String,
    pub(super) listen: SocketAddr,
    pub(super) protocol: &'static str,
    /// Fields of `[[service]]` beside name, listen and backends.
    pub(super) fields: Fields,
    /// Its own backends.
    pub(super) own: Option<Upstream>,
    pub(super) groups: Vec<(String, Upstream)>,
    pub(super) access: Vec<Fields>,
    pub(super) routes: Vec<Fields>,
    /// Tables of the service, by their names behind `service.`.
    pub(super) tables: BTreeMap<&'static str, Fields>,
}

impl Service {
    pub(super) fn new(name: String, listen: SocketAddr, protocol: &'static str) -> Service {
        let (groups, access, routes) = (Vec::new(), Vec::new(), Vec::new());
        Service {
            name,
            listen,
            protocol,
            fields: Vec::new(),
            own: None,
            groups,
            access,
            routes,
            tables: BTreeMap::new(),
        }
    }

    /// Sets a field of a table, unless it has one already.
    pub(super) fn set(&mut self, table: &'static str, field: &'static str, value: String) {
        let fields = self.tables.entry(table).or_default();
        if !fields.iter().any(|(name, _)| *name == field) {
            fields.push((field, value));
        }
    }

    /// The group with these backends, made at the first call.
    pub(super) fn group(&mut self, name: &str, upstream: &Upstream) -> String {
        if let Some((name, _)) = self.groups.iter().find(|(_, known)| known == upstream) {
            return name.clone();
        }
        let wanted = name_of(name);
        let is_taken = |name: &str| name == "own" || self.groups.iter().any(|(known, _)| known == name);
        let numbered = (2..).map(|number| format!("{wanted}-{number}"));
        let name = std::iter::once(wanted.clone()).chain(numbered).find(|name| !is_taken(name)).unwrap_or_default();
        self.groups.push((name.clone(), upstream.clone()));
        name
    }

    fn write(&self, out: &mut String) {
        let _ = writeln!(out, "\n[[service]]\nname = {}", quoted(&self.name));
        let _ = writeln!(out, "listen = \"{}/{}\"", self.listen, self.protocol);
        fields(out, &self.fields);
        if let Some(own) = &self.own {
            own.write(out, "service");
        }
        for (table, all) in &self.tables {
            let _ = writeln!(out, "\n[service.{table}]");
            fields(out, all);
        }
        for (name, upstream) in &self.groups {
            let _ = writeln!(out, "\n[[service.group]]\nname = {}", quoted(name));
            upstream.write(out, "service.group");
        }
        for rule in &self.access {
            let _ = writeln!(out, "\n[[service.access]]");
            fields(out, rule);
        }
        for route in &self.routes {
            let _ = writeln!(out, "\n[[service.route]]");
            fields(out, route);
        }
    }

    /// Whether connections to backends have addresses of the pool.
    fn needs_pool(&self) -> bool {
        let is_full_nat = self.fields.iter().any(|field| *field == ("mode", "\"full-nat\"".to_string()));
        is_full_nat || matches!(self.protocol, "http" | "tls")
    }
}

pub(super) fn fields(out: &mut String, fields: &Fields) {
    for (name, value) in fields {
        let _ = writeln!(out, "{name} = {value}");
    }
}

/// All that is written.
#[derive(Debug)]
pub(super) struct Output {
    interfaces: Vec<String>,
    pool: Vec<IpAddr>,
    /// There are addresses that stand for those which the file does not say.
    pub(super) has_placeholders: bool,
    services: Vec<Service>,
}

impl Output {
    pub(super) fn new(interfaces: &[String], pool: &[IpAddr]) -> Output {
        Output { interfaces: interfaces.to_vec(), pool: pool.to_vec(), has_placeholders: false, services: Vec::new() }
    }

    /// Adds a service, whose name becomes unique.
    pub(super) fn add(&mut self, mut service: Service) {
        let wanted = service.name.clone();
        let mut number = 2;
        while self.services.iter().any(|known| known.name == service.name) {
            service.name = format!("{wanted}-{number}");
            number += 1;
        }
        self.services.push(service);
    }

    pub(super) fn has_services(&self) -> bool {
        !self.services.is_empty()
    }

    /// Whether a service listens here.
    pub(super) fn listens(&self, listen: SocketAddr, is_udp: bool) -> bool {
        self.services.iter().any(|known| known.listen == listen && (known.protocol == "udp") == is_udp)
    }

    /// The file. `from`: what it was made of.
    pub(super) fn text(&self, from: &Path) -> String {
        let mut out = format!("# Made by `hairpin import nginx {}`.\n", from.display());
        let family = |is_ipv6: bool| {
            self.services.iter().any(|service| service.needs_pool() && service.listen.is_ipv6() == is_ipv6)
        };
        let mut pool: Vec<String> = self.pool.iter().map(ToString::to_string).collect();
        let stand_ins = [(false, "198.51.100.1"), (true, "2001:db8::1")];
        let mut has_stand_in = self.interfaces.is_empty() || self.has_placeholders;
        for (is_ipv6, stand_in) in stand_ins {
            if family(is_ipv6) && !self.pool.iter().any(|address| address.is_ipv6() == is_ipv6) {
                pool.push(stand_in.to_string());
                has_stand_in = true;
            }
        }
        if has_stand_in {
            out += "# The interface eth0 and addresses of 192.0.2.0/24, 198.51.100.0/24 and 2001:db8::/32 stand for yours, unless the file\n\
                    # has them: `--interface`, `--vip` and `--pool` name them.\n";
        }
        let interfaces = if self.interfaces.is_empty() { &["eth0".to_string()][..] } else { &self.interfaces };
        let interfaces: Vec<String> = interfaces.iter().map(|name| quoted(name)).collect();
        let _ = writeln!(out, "interfaces = [{}]", interfaces.join(", "));
        if !pool.is_empty() {
            let pool: Vec<String> = pool.iter().map(|address| quoted(address)).collect();
            let _ = writeln!(out, "\n[pool]\naddresses = [{}]", pool.join(", "));
        }
        self.services.iter().for_each(|service| service.write(&mut out));
        out
    }
}
