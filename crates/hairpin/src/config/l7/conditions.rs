//! Reads what routes and access rules ask for.

use super::super::reader::TomlTable;
use super::{ENTRIES_MAX, bounded};
use hairpin_core::flow::Address;
use hairpin_core::l7::config::Network;
use hairpin_core::l7::route::host::HostPattern;
use hairpin_core::l7::route::path::PathPattern;
use hairpin_core::l7::route::{Conditions, Named, Test};
use hairpin_diagnostics::{At, described};
use std::fmt::Display;
use std::net::IpAddr;
use toml::de::DeValue;

/// The fields that conditions are read from.
pub(super) const FIELDS: [&str; 8] =
    ["host", "path", "path_prefix", "path_regex", "method", "header", "query", "client"];

type ParsePath = fn(&str) -> Result<PathPattern, String>;

/// The conditions that a table sets for requests.
pub(super) fn read(table: &TomlTable<'_>) -> Conditions {
    let forms: [(&str, ParsePath); 3] = [
        ("path", |text| Ok(PathPattern::exact(text)?)),
        ("path_prefix", |text| Ok(PathPattern::prefix(text)?)),
        ("path_regex", |text| {
            PathPattern::regex(text).map_err(|wrong| regex_mistake(text).unwrap_or(wrong.to_string()))
        }),
    ];
    Conditions {
        hosts: parsed(table, "host", HostPattern::parse).into(),
        paths: forms.into_iter().flat_map(|(name, parse)| parsed(table, name, parse)).collect(),
        methods: parsed(table, "method", method).into(),
        headers: named(table, "header", header_name),
        queries: named(table, "query", parameter_name),
        clients: networks(table, "client"),
    }
}

/// The position of an invalid regular expression, and the reason.
fn regex_mistake(text: &str) -> Option<String> {
    let mut parser = regex_syntax::ParserBuilder::new().unicode(false).utf8(false).build();
    let (why, at) = match parser.parse(text).err()? {
        regex_syntax::Error::Parse(error) => (error.kind().to_string(), error.span().start.column),
        regex_syntax::Error::Translate(error) => (error.kind().to_string(), error.span().start.column),
        _ => return None,
    };
    Some(format!("not a regular expression: {why}, at character {at}"))
}

/// The networks that a field names.
pub(in crate::config) fn networks(table: &TomlTable<'_>, name: &str) -> Box<[Network]> {
    let empty = table.given(name).is_some_and(super::super::reader::is_empty_list);
    if ["trusted", "accept_proxy"].contains(&name) && empty {
        Box::default()
    } else {
        parsed(table, name, network).into()
    }
}

/// The meaning of a field's texts; those that are wrong are reported, with what would be right.
pub(super) fn parsed<T, E: Display>(table: &TomlTable<'_>, name: &str, parse: impl Fn(&str) -> Result<T, E>) -> Vec<T> {
    let texts = table.one_or_more(name);
    bounded(table, name, texts.len(), ENTRIES_MAX);
    let parsed = |text: &At<String>| {
        let wrong = |right: &E| table.error(&text.span, format!("`{name}` is \"{}\"", text.value), right.to_string());
        parse(&text.value).inspect_err(wrong).ok()
    };
    texts.iter().filter_map(parsed).collect()
}

/// Whether all is of characters that a token has (RFC 9110, 5.6.2).
pub(in crate::config) fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

pub(super) fn method(text: &str) -> Result<Box<[u8]>, String> {
    if !is_token(text) || text.len() > 32 {
        return Err("write a method, such as \"GET\"".to_string());
    }
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err(format!("write \"{}\": methods are written in capitals", text.to_ascii_uppercase()));
    }
    Ok(text.as_bytes().into())
}

pub(crate) fn header_name(text: &str) -> Result<(), &'static str> {
    if is_token(text) { Ok(()) } else { Err("a field's name is made of letters, digits and !#$%&'*+-.^_`|~") }
}

fn parameter_name(text: &str) -> Result<(), &'static str> {
    let visible = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'&' | b'=' | b'#');
    match !text.is_empty() && text.bytes().all(visible) {
        true => Ok(()),
        false => Err("write the parameter's name as in a request: visible ASCII without `&`, `=` and `#`"),
    }
}

/// Rules for things with names.
fn named(table: &TomlTable<'_>, field: &str, check: fn(&str) -> Result<(), &'static str>) -> Box<[Named]> {
    let entries = table.entries(field);
    bounded(table, field, entries.len(), ENTRIES_MAX);
    let mut conditions = Vec::new();
    for (name, value) in &entries {
        if let Err(right) = check(&name.value) {
            table.error(&name.span, format!("`{field}` names \"{}\"", name.value), right);
            continue;
        }
        let Some(test) = test(value.get_ref()) else {
            let what = format!("`{field}` asks for {} to be {}", name.value, described(value.get_ref()));
            let remedy = "write its value as text, { prefix = \"...\" } for what that begins with, true if it must be \
                          there, false if it must not";
            table.error(&value.span(), what, remedy);
            continue;
        };
        conditions.push(Named { name: name.value.as_bytes().into(), test });
    }
    conditions.into()
}

fn test(value: &DeValue<'_>) -> Option<Test> {
    let bytes = |text: &str| Box::from(text.as_bytes());
    match value {
        DeValue::String(text) => Some(Test::Exact(bytes(text))),
        DeValue::Boolean(true) => Some(Test::Present),
        DeValue::Boolean(false) => Some(Test::Absent),
        DeValue::Table(table) if table.len() == 1 => {
            table.get("prefix").and_then(|prefix| prefix.get_ref().as_str()).map(|prefix| Test::Prefix(bytes(prefix)))
        }
        _ => None,
    }
}

/// Parses `address/prefix` or one address.
pub(crate) fn network(text: &str) -> Result<Network, String> {
    let (address, prefix) = match text.split_once('/') {
        Some((address, prefix)) => (address, Some(prefix)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else {
        return Err("write \"192.0.2.0/24\", \"2001:db8::/32\" or one address".to_string());
    };
    if matches!(address, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
        return Err("write it as IPv4".to_string());
    }
    let bits: u8 = if address.is_ipv4() { 32 } else { 128 };
    let is_number = |prefix: &&str| prefix.bytes().all(|byte| byte.is_ascii_digit());
    let prefix = match prefix {
        None => bits,
        Some(prefix) => {
            let number = Some(prefix).filter(is_number).and_then(|prefix| prefix.parse().ok());
            number.filter(|number| *number <= bits).ok_or(format!("write a prefix of 0 to {bits} bits"))?
        }
    };
    let mask = u128::MAX.checked_shl(u32::from(bits - prefix)).unwrap_or(0);
    let address = Address::from(address);
    let masked = u128::from_be_bytes(address.0) & if prefix == 0 && bits == 32 { u128::MAX << 32 } else { mask };
    let begins = Address(masked.to_be_bytes());
    if begins != address {
        return Err(format!("an address beyond its beginning: write \"{begins}/{prefix}\""));
    }
    Ok(Network { address, prefix: 128 - bits + prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_of_the_bits_of_their_family() {
        let parsed = |text: &str| network(text).map(|network| (network.address.to_string(), network.prefix));
        assert_eq!(parsed("192.0.2.0/24"), Ok(("192.0.2.0".to_string(), 120)));
        assert_eq!(parsed("192.0.2.7"), Ok(("192.0.2.7".to_string(), 128)));
        assert_eq!(parsed("0.0.0.0/0"), Ok(("0.0.0.0".to_string(), 96)));
        assert_eq!(parsed("::/0"), Ok(("::".to_string(), 0)));
        assert_eq!(parsed("2001:db8::/32"), Ok(("2001:db8::".to_string(), 32)));
        for (text, right) in [
            ("192.0.2.1/24", "an address beyond its beginning: write \"192.0.2.0/24\""),
            ("10.0.0.1/0", "an address beyond its beginning: write \"0.0.0.0/0\""),
            ("2001:db8::1/64", "an address beyond its beginning: write \"2001:db8::/64\""),
            ("192.0.2.0/33", "write a prefix of 0 to 32 bits"),
            ("192.0.2.0/+4", "write a prefix of 0 to 32 bits"),
            ("192.0.2.0/", "write a prefix of 0 to 32 bits"),
            ("::/129", "write a prefix of 0 to 128 bits"),
            ("::ffff:10.0.0.0/104", "write it as IPv4"),
            ("example.com", "write \"192.0.2.0/24\", \"2001:db8::/32\" or one address"),
        ] {
            assert_eq!(parsed(text), Err(right.to_string()), "{text}");
        }
    }
}
