//! The requests by HTTP/2: `corpus-http2.txt`, and whether what reached a backend is what the client had said.

use super::bytes;
use crate::tool::http2::Http2Part;
use crate::tool::recorder::RecordedRequest;

const CORPUS: &str = include_str!("corpus-http2.txt");
/// The host that requests are for.
pub(super) const NAME: &str = "web.test";
/// Fields that proxies write themselves, and of which the table says nothing.
const OWN: [&str; 8] = [
    "host",
    "connection",
    "content-length",
    "transfer-encoding",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-forwarded-port",
];
/// Characters of a field, and of a request line, that the table shows.
const SHOWN: usize = 40;

/// The corpus: names and parts.
pub(super) fn corpus() -> Vec<(String, Vec<Http2Part>)> {
    let lines = CORPUS.lines().filter(|line| !line.starts_with('#'));
    lines.filter_map(|line| line.split_once(": ")).map(|(name, text)| (name.to_owned(), parts(text))).collect()
}

fn parts(text: &str) -> Vec<Http2Part> {
    let mut parts = vec![Http2Part::Fields(Vec::new())];
    for item in text.split(" | ") {
        match item.split_once(' ').unwrap_or((item, "")) {
            ("DATA", data) => parts.push(Http2Part::Data(bytes(data))),
            ("TRAILERS", _) => parts.push(Http2Part::Fields(Vec::new())),
            ("MANY", count) => {
                add(&mut parts, (0..count.parse().unwrap_or(0)).map(|i| (format!("x-{i}").into(), b"y".to_vec())))
            }
            ("GET" | "POST", "") => {
                let all = [(":method", item), (":scheme", "https"), (":authority", NAME), (":path", "/x")];
                add(&mut parts, all.into_iter().map(|(name, value)| (name.into(), value.into())));
            }
            _ => {
                let (name, value) = item.split_once('=').unwrap_or((item, ""));
                add(&mut parts, [(bytes(name), bytes(value))]);
            }
        }
    }
    parts
}

fn add(parts: &mut [Http2Part], more: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>) {
    if let Some(Http2Part::Fields(fields)) = parts.last_mut() {
        fields.extend(more);
    }
}

/// A request as a backend has understood it, for the table: the request line, another host, fields, bytes of the body.
pub(super) fn view(heard: &RecordedRequest) -> String {
    let mut text = shown(heard.line());
    match heard.field("host") {
        Some(NAME) => {}
        host => text += &format!(" to {}", shown(host.unwrap_or("no host"))),
    }
    for (name, value) in fields(heard).filter(|(name, _)| !OWN.contains(&&*name.to_ascii_lowercase())).take(2) {
        text += &format!(" [{}]", shown(&format!("{}:{value}", name.to_ascii_lowercase())));
    }
    if heard.body_bytes > 0 {
        text += &format!(" + {} bytes", heard.body_bytes);
    }
    text
}

fn shown(text: &str) -> String {
    text.escape_debug().to_string().replace('|', "\\|").chars().take(SHOWN).collect()
}

fn fields(heard: &RecordedRequest) -> impl Iterator<Item = (&str, &str)> {
    let lines = heard.head.split("\r\n").skip(1).filter(|line| !line.is_empty());
    lines.map(|line| line.split_once(':').unwrap_or((line, "")))
}

/// What is wrong with the requests that came of one: they must be one at most, say one thing to every reader, and that is what
/// the client has said. `raw`: the bytes of all connections.
pub(super) fn fault(said: &[Http2Part], heard: &[RecordedRequest], raw: &[Vec<u8>]) -> Option<String> {
    let [heard] = heard else { return (!heard.is_empty()).then(|| format!("{} requests", heard.len())) };
    let Some(Http2Part::Fields(list)) = said.first() else { return Some("a request of nothing".to_owned()) };
    let pseudo = |name: &str| -> Vec<String> {
        let values = list.iter().filter(|(have, _)| have == name.as_bytes());
        values.map(|(_, value)| String::from_utf8_lossy(value).into_owned()).collect()
    };
    let (methods, paths, mut hosts) = (pseudo(":method"), pseudo(":path"), pseudo(":authority"));
    hosts.extend(pseudo("host"));
    let wanted = match (&methods[..], &paths[..]) {
        ([method], [path]) if method == "CONNECT" => format!("GET {path} HTTP/1.1"),
        ([method], [path]) => {
            // A fragment is cut off. What is left of a path that is all fragment is `/`.
            let path = path.split('#').next().filter(|path| !path.is_empty()).unwrap_or("/");
            format!("{method} {path} HTTP/1.1")
        }
        _ => return Some("its method or its path is missing or was said twice".to_owned()),
    };
    if heard.line() != wanted {
        return Some(format!("the request line is {:?}", heard.line()));
    }
    let of = |name: &str| heard.fields(name).collect::<Vec<_>>();
    let same = |host: &String| {
        of("host").iter().all(|have| host.trim_end_matches(":443").eq_ignore_ascii_case(have.trim_end_matches(":443")))
    };
    if of("host").len() != 1 || !hosts.iter().all(same) {
        return Some(format!("the hosts {hosts:?} became {:?}", of("host")));
    }
    let is_token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    for (name, value) in fields(heard) {
        if name.is_empty()
            || !name.bytes().all(is_token)
            || value.bytes().any(|byte| byte.is_ascii_control() && byte != b'\t')
        {
            return Some(format!("a field {name:?} with {value:?}"));
        }
    }
    let data: usize = said.iter().map(|part| if let Http2Part::Data(data) = part { data.len() } else { 0 }).sum();
    // What is sent in a tunnel that does not come about is no body.
    if methods != ["CONNECT"] && heard.body_bytes != data as u64 {
        return Some(format!("{} of {data} bytes", heard.body_bytes));
    }
    let whole = raw.iter().map(Vec::len).sum::<usize>();
    match (&of("content-length")[..], &of("transfer-encoding")[..]) {
        ([], []) if whole == heard.head.len() => None,
        ([_], []) if whole == heard.head.len() + data => None,
        ([], ["chunked"]) if raw.iter().any(|raw| raw.ends_with(b"\r\n\r\n")) => None,
        lengths => Some(format!("a head of {} bytes of {whole}, with the lengths {lengths:?}", heard.head.len())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_read() {
        let parts = parts(r"GET | x=a\r\n | DATA hello | TRAILERS | y==");
        let Http2Part::Fields(head) = &parts[0] else { panic!("{parts:?}") };
        assert_eq!(head.len(), 5);
        assert_eq!(head[4], (b"x".to_vec(), b"a\r\n".to_vec()));
        assert_eq!(parts[1], Http2Part::Data(b"hello".to_vec()));
        assert_eq!(parts[2], Http2Part::Fields(vec![(b"y".to_vec(), b"=".to_vec())]));
    }

    #[test]
    fn requests_that_were_not_said_are_faults() {
        let said = parts("POST | content-length=5 | DATA hello");
        let heard = |head: &str, body_bytes| RecordedRequest {
            head: head.to_owned(),
            body_bytes,
            ..RecordedRequest::default()
        };
        let good = "POST /x HTTP/1.1\r\nHost: web.test\r\nContent-Length: 5\r\n\r\n";
        let judged =
            |head: &str, bytes: u64| fault(&said, &[heard(head, bytes)], &[format!("{head}hello").into_bytes()]);
        assert_eq!(judged(good, 5), None);
        assert!(fault(&said, &[heard(good, 5), heard(good, 5)], &[]).is_some(), "two requests");
        for (from, to) in [
            ("/x", "/y"),
            ("POST", "PUT"),
            ("web.test", "b"),
            ("Host: web.test\r\n", ""),
            ("Content-Length: 5", "X: y"),
            ("Content-Length: 5", "Content-Length: 5\r\nTransfer-Encoding: chunked"),
            ("Content-Length: 5", "Content-Length: 5\r\nX Y: z"),
            ("Content-Length: 5", "Content-Length: 5\r\nX: y\nz"),
        ] {
            assert!(judged(&good.replace(from, to), 5).is_some(), "{from:?} as {to:?}");
        }
        assert!(judged(good, 3).is_some(), "another length");
        let twice = parts("GET | :authority=b");
        assert!(fault(&twice, &[heard("GET /x HTTP/1.1\r\nHost: b\r\n\r\n", 0)], &[]).is_some(), "two authorities");
    }
}
