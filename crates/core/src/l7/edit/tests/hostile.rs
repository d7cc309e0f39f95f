//! Properties: whatever a head says, what goes on is exactly what should.

use super::super::super::body::Length;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Names of fields that have a meaning, disguised in all the ways that are still names.
fn name() -> impl Strategy<Value = String> {
    let known = prop::sample::select(std::vec![
        "x-forwarded-for",
        "x-forwarded-proto",
        "x-forwarded-host",
        "x-forwarded-port",
        "x-real-ip",
        "forwarded",
        "connection",
        "keep-alive",
        "proxy-connection",
        "te",
        "upgrade",
        "trailer",
        "x-set",
        "x-gone",
        "x-add",
        "cookie",
        "accept",
        "x-hop",
        "authorization",
        "server",
        "set-cookie",
    ]);
    (known, any::<u32>(), any::<u32>()).prop_map(|(name, upper, under)| {
        let disguise = |(at, byte): (usize, char)| match byte {
            '-' if under >> (at % 32) & 3 == 3 => '_',
            byte if upper >> (at % 32) & 1 == 1 => byte.to_ascii_uppercase(),
            byte => byte,
        };
        name.chars().enumerate().map(disguise).collect()
    })
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[ -~\t]{0,20}".prop_map(|value| String::from(value.trim_matches([' ', '\t']))),
        Just("close".into()),
        Just("keep-alive, upgrade".into()),
        Just("x-hop, x-set , X-Forwarded-For,x-add".into()),
        Just("websocket".into()),
    ]
}

fn fields() -> impl Strategy<Value = Vec<(String, String)>> {
    prop::collection::vec((name(), value()), 0..12)
}

fn written(fields: &[(String, String)]) -> String {
    fields.iter().map(|(name, value)| std::format!("{name}: {value}\r\n")).collect()
}

/// A service that does a bit of everything.
fn busy() -> Http {
    let mut http = plain();
    http.forwarded.x_for = true;
    http.forwarded.x_real_ip = true;
    http.sticky = Some(Sticky::parse("lb", "").unwrap());
    http.edits.request = edits(&["x-gone"], &[("X-Set", "us")], &[("X-Add", "us")]);
    http.edits.response = edits(&["x-gone", "server"], &[("X-Set", "us")], &[("X-Add", "us")]);
    http
}

/// The name as the most careless reader understands it.
fn careless(name: &[u8]) -> String {
    String::from_utf8_lossy(name).to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}

/// All values of each name.
fn gathered<'a>(fields: impl Iterator<Item = (&'a [u8], &'a [u8])>) -> BTreeMap<String, Vec<String>> {
    let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in fields {
        all.entry(careless(name)).or_default().push(String::from_utf8_lossy(value).into_owned());
    }
    all
}

/// Names in `Connection`, of fields that are then for one hop only.
fn listed(fields: &[(String, String)]) -> Vec<String> {
    let lists = fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("connection"));
    lists.flat_map(|(_, list)| list.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

/// The expected remains of `fields`, of those that Hairpin neither sets nor drops.
fn left(fields: &[(String, String)], ours: &[&str]) -> BTreeMap<String, Vec<String>> {
    let listed = listed(fields);
    let hop = ["connection", "keep-alive", "proxy-connection", "te", "upgrade"];
    gathered(
        fields
            .iter()
            .filter(|(name, _)| {
                !hop.contains(&&*name.to_ascii_lowercase()) && !listed.contains(&name.to_ascii_lowercase())
            })
            .filter(|(name, _)| !ours.contains(&&*careless(name.as_bytes())))
            .map(|(name, value)| (name.as_bytes(), value.as_bytes())),
    )
}

proptest! {
    #[test]
    fn requests_say_what_they_said_and_what_we_say(fields in fields(), room in 0..400usize) {
        let head = std::format!("POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\n{}\r\n", written(&fields));
        // Not all of them can be read: a Connection field may be no list of names.
        let Ok(ParseStatus::Complete(request)) = head::request(head.as_bytes(), &BOUNDS) else { return Ok(()) };
        let (http, route, facts) = (busy(), route(), facts());
        let mut out = [0; 4096];
        let length = request_head(&mut out, &request, &http, &route, &facts).unwrap();
        let again = parsed(&out[..length]);
        prop_assert_eq!(again.bytes.len(), length);
        prop_assert_eq!((again.body, again.host, again.upgrade), (Length::Bytes(3), Some(&b"a"[..]), request.upgrade));
        prop_assert!(again.keep_alive);

        let ours = ["x-forwarded-for", "x-forwarded-proto", "x-forwarded-host", "x-forwarded-port", "x-real-ip",
            "forwarded", "x-set", "x-gone"];
        let mut expected = left(&fields, &ours);
        for (name, value) in [("host", "a"), ("content-length", "3"), ("x-add", "us")] {
            expected.entry(name.into()).or_default().push(value.into());
        }
        for (name, value) in [("x-forwarded-for", "192.0.2.7"), ("x-real-ip", "192.0.2.7"), ("x-set", "us")] {
            expected.insert(name.into(), [value.into()].into());
        }
        let mut found = gathered(again.fields.iter());
        if request.upgrade {
            prop_assert_eq!(found.remove("connection"), Some(["upgrade".into()].into()));
            prop_assert!(found.remove("upgrade").is_some());
        }
        prop_assert_eq!(found, expected);
        let short = request_head(&mut out[..room.min(length)], &request, &http, &route, &facts);
        prop_assert_eq!(short, if room < length { Err(NoRoom) } else { Ok(length) });
    }

    #[test]
    fn responses_say_what_they_said_and_what_we_say(fields in fields(), old in any::<bool>(), close in any::<bool>()) {
        let head = std::format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n{}\r\n", written(&fields));
        let read = head::response(head.as_bytes(), &BOUNDS, Method::Get);
        let Ok(ParseStatus::Complete(response)) = read else { return Ok(()) };
        let asked = if old { Version::Http10 } else { Version::Http11 };
        let facts = Facts { close_client: close, sticky: Some(1), ..facts() };
        let mut out = [0; 4096];
        let length = response_head(&mut out, &response, asked, &busy(), &route(), &facts).unwrap().unwrap();
        let again = answered(&out[..length]);
        prop_assert_eq!(again.bytes.len(), length);
        prop_assert_eq!((again.body, again.keep_alive), (Length::Bytes(3), !close));
        let mut expected = left(&fields, &["x-set", "x-gone", "server"]);
        for (name, value) in [("content-length", "3"), ("x-add", "us"), ("set-cookie", "lb=0000000000000001")] {
            expected.entry(name.into()).or_default().push(value.into());
        }
        expected.insert("x-set".into(), ["us".into()].into());
        if close || old {
            expected.insert("connection".into(), [if close { "close".into() } else { "keep-alive".into() }].into());
        }
        let mut found = gathered(again.fields.iter());
        // The position of our fields among those of the same name is open.
        for values in found.values_mut().chain(expected.values_mut()) {
            values.sort();
        }
        prop_assert_eq!(found, expected);
    }

    /// An unedited response goes on as it is exactly if that is what it would be written as.
    #[test]
    fn what_goes_on_as_it_is_needs_no_change(fields in fields(), old in any::<bool>(), close in any::<bool>()) {
        let head = std::format!("HTTP/1.1 200 OK\r\nContent-Length: 3\r\n{}\r\n", written(&fields));
        let read = head::response(head.as_bytes(), &BOUNDS, Method::Get);
        let Ok(ParseStatus::Complete(response)) = read else { return Ok(()) };
        let asked = if old { Version::Http10 } else { Version::Http11 };
        let facts = Facts { close_client: close, ..facts() };
        let mut out = [0; 4096];
        let hop = ["connection", "keep-alive", "proxy-connection", "te", "upgrade"];
        let listed = listed(&fields);
        let mut others = fields.iter().map(|(name, _)| name.to_ascii_lowercase());
        let others = others.any(|name| name != "connection" && (hop.contains(&&*name) || listed.contains(&name)));
        match response_head(&mut out, &response, asked, &plain(), &route(), &facts).unwrap() {
            None => {
                prop_assert!(!others);
                prop_assert_eq!(response.keep_alive || (!old && listed.is_empty()), !close);
                let plain = listed.is_empty() || listed == ["close"] || listed == ["keep-alive"];
                prop_assert!(plain, "{:?}", listed);
            }
            Some(length) => {
                let again = answered(&out[..length]);
                prop_assert_eq!(again.keep_alive, !close);
                prop_assert!(out[..length] != *response.bytes, "written for nothing");
            }
        }
    }
}
