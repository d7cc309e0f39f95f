//! Lines: what a record says, in the form that the configuration asks for.

use super::ServiceRecords;
use super::escape;
use super::settings::{Field, Form, KEYS, Piece};
use hairpin_core::config::Snapshot;
use hairpin_core::flow::Endpoint;
use hairpin_core::l7::trace::TraceContext;
use hairpin_core::record::{self, Ending, NEVER_US, Record, Texts, flags};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// What a record's numbers stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordNames<'a> {
    /// The service.
    pub(crate) service: Option<&'a str>,
    /// The route, counted from 1; `None`: the service's own backends.
    pub(crate) route: Option<u16>,
    /// The group of backends.
    pub(crate) group: Option<&'a str>,
    /// The backend.
    pub(crate) backend: Option<&'a str>,
    /// Its address and port.
    pub(crate) backend_address: Option<&'a str>,
}

/// The names of services and backends, and which records of a service become lines.
pub(super) struct Names {
    snapshot: Arc<Snapshot>,
    services: Vec<ServiceRecords>,
    /// By number of the backend: its name and its end.
    backends: Vec<Option<(Box<str>, String)>>,
    /// By number of the service: its end, and as text.
    vips: Vec<(Endpoint, String)>,
    /// Records counted for samples.
    counted: Vec<AtomicU32>,
}

impl Names {
    pub(super) fn new(snapshot: Arc<Snapshot>, services: Vec<ServiceRecords>) -> Names {
        let counted = services.iter().map(|_| AtomicU32::new(0)).collect();
        let vips = snapshot.services.iter().map(|service| (service.endpoint, socket(&service.endpoint))).collect();
        let mut backends = vec![None; snapshot.backends() as usize];
        for backend in snapshot.services.iter().flat_map(|service| &service.backends) {
            if let Some(place) = backends.get_mut(usize::from(backend.number)) {
                *place = Some((backend.name.clone(), socket(&backend.endpoint)));
            }
        }
        Names { snapshot, services, backends, vips, counted }
    }

    /// Whether the record becomes a line.
    pub(super) fn wants(&self, record: &Record) -> bool {
        let number = usize::from(record.service);
        let Some(Some(log)) = self.services.get(number).map(|service| &service.log) else { return false };
        let has_status = log.status.as_ref().is_none_or(|wanted| wanted.contains(record.status));
        let is_slow = Duration::from_nanos(record.took) >= log.slower_than;
        let has_route = log.routes.is_empty() || log.routes.iter().any(|route| self.route(record) == Some(*route));
        if !has_status || !is_slow || !has_route {
            return false;
        }
        let is_kept = matches!(Ending::of(record.ending), Ending::Done | Ending::Answered) && record.status < 500;
        if log.sample <= 1 || !is_kept {
            return true;
        }
        let Some(counted) = self.counted.get(number) else { return true };
        // One thread counts.
        let count = counted.load(Ordering::Relaxed);
        counted.store((count + 1) % log.sample, Ordering::Relaxed);
        count == 0
    }

    /// The route that the exchange took, counted from 1.
    fn route(&self, record: &Record) -> Option<u16> {
        let count = self.services.get(usize::from(record.service))?.route_count;
        (record.route < count).then(|| record.route + 1)
    }

    /// Whether requests of the service have ids.
    fn has_request_id(&self, service: u16) -> bool {
        let service = self.snapshot.services.get(usize::from(service));
        service.and_then(|service| service.kind.http()).is_some_and(|http| http.request_id.is_some())
    }

    fn service(&self, number: u16) -> Option<&str> {
        self.snapshot.services.get(usize::from(number)).map(|service| &*service.name)
    }

    /// What the record's numbers stand for.
    pub(super) fn of(&self, record: &Record) -> RecordNames<'_> {
        let known = |number: u16| if number == record::NONE { None } else { Some(number) };
        let backend = known(record.backend).and_then(|number| self.backends.get(usize::from(number))?.as_ref());
        RecordNames {
            service: self.service(record.service),
            route: self.route(record),
            group: known(record.group).and_then(|group| self.service(group)),
            backend: backend.map(|(name, _)| &**name),
            backend_address: backend.map(|(_, address)| &**address),
        }
    }
}

/// How values stand in a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Json,
    Plain,
}

/// Makes lines.
#[derive(Default)]
pub(super) struct LineWriter {
    /// The last second that a line had, in seconds since 1970, and its text.
    second: u64,
    text: String,
}

impl LineWriter {
    /// Adds the line of a record, with its end. `started`: when it began, in microseconds since 1970.
    pub(super) fn write(
        &mut self,
        out: &mut Vec<u8>,
        (form, names): (&Form, &Names),
        (record, texts): (&Record, &Texts<'_>),
        started: u64,
    ) {
        let mut line = Line { writer: self, names, of: names.of(record), record, texts, started };
        match form {
            Form::Json(fields) => line.json(out, fields),
            Form::Template(template) => line.template(out, &template.0),
        }
        out.push(b'\n');
    }

    /// `2026-11-28T07:15:02` of a time in microseconds since 1970. Most lines have the second of the one before.
    fn second(&mut self, micros: u64) -> &str {
        let second = micros / 1_000_000;
        if second != self.second || self.text.is_empty() {
            self.second = second;
            self.text =
                humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(second)).to_string();
            self.text.truncate(19);
        }
        &self.text
    }
}

struct Line<'a> {
    writer: &'a mut LineWriter,
    names: &'a Names,
    of: RecordNames<'a>,
    record: &'a Record,
    texts: &'a Texts<'a>,
    started: u64,
}

impl Line<'_> {
    fn json(&mut self, out: &mut Vec<u8>, fields: &[Field]) {
        let start = out.len();
        for field in fields {
            let before = out.len();
            out.extend_from_slice(KEYS[*field as usize].as_bytes());
            if !self.put(out, *field, Style::Json) {
                out.truncate(before);
            }
        }
        match out.get_mut(start) {
            Some(first) => *first = b'{',
            None => out.push(b'{'),
        }
        out.push(b'}');
    }

    fn template(&mut self, out: &mut Vec<u8>, pieces: &[Piece]) {
        for piece in pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Field(field) => {
                    if !self.put(out, *field, Style::Plain) {
                        out.push(b'-');
                    }
                }
            }
        }
    }

    /// Adds the value of a field; `false`: it has none.
    fn put(&mut self, out: &mut Vec<u8>, field: Field, style: Style) -> bool {
        let (record, names, of) = (self.record, self.names, self.of);
        let is_exchange = record.has(flags::EXCHANGE);
        match field {
            Field::Schema => number(out, 1),
            Field::Time | Field::TimeCommon => self.time(out, field, style),
            Field::Kind => text(out, if is_exchange { b"exchange" } else { b"connection" }, style),
            Field::Service => named(out, of.service, style),
            Field::Route => of.route.is_some_and(|route| number(out, route.into())),
            Field::Group => named(out, of.group, style),
            Field::Backend => named(out, of.backend, style),
            Field::BackendAddress => named(out, of.backend_address, style),
            Field::Client => address(out, record.client.address.into(), style),
            Field::ClientPort => number(out, record.client.port.into()),
            Field::Vip => match names.vips.get(usize::from(record.service)) {
                Some((end, said)) if *end == record.vip => named(out, Some(said), style),
                _ => named(out, Some(&socket(&record.vip)), style),
            },
            Field::Tls => truth(out, record.has(flags::TLS), style),
            Field::Method => given(out, self.texts.method(), style),
            Field::Host => given(out, self.texts.host, style),
            Field::Target => given(out, self.texts.target(), style),
            Field::Version => is_exchange && !self.texts.line.is_empty() && text(out, self.version(), style),
            Field::Status => record.status != 0 && number(out, record.status.into()),
            Field::BytesIn => number(out, record.bytes[0]),
            Field::BytesOut => number(out, record.bytes[1]),
            Field::PacketsIn => !is_exchange && number(out, record.packets[0]),
            Field::PacketsOut => !is_exchange && number(out, record.packets[1]),
            Field::ToBackend => record.to_backend_us != NEVER_US && number(out, record.to_backend_us.into()),
            Field::ToResponse => record.to_response_us != NEVER_US && number(out, record.to_response_us.into()),
            Field::Took => number(out, record.took / 1000),
            Field::Tries => number(out, record.tries.into()),
            Field::Carrier => text(out, if record.has(flags::ENGINE) { b"engine" } else { b"software" }, style),
            Field::Ending => named(out, Some(Ending::of(record.ending).name()), style),
            Field::Reason => named(out, record.why().map(|why| why.name()), style),
            Field::RequestId => match (self.texts.trace(), names.has_request_id(record.service)) {
                _ if !self.texts.id.is_empty() => given(out, self.texts.id, style),
                (Some(trace), true) => text(out, &hexadecimal(&trace.trace), style),
                _ => false,
            },
            Field::TraceId => match self.texts.trace().filter(TraceContext::is_traced) {
                Some(trace) => text(out, &hexadecimal(&trace.trace), style),
                None => false,
            },
            Field::UserAgent => given(out, self.texts.agent, style),
            Field::Referer => given(out, self.texts.referer, style),
        }
    }

    fn version(&self) -> &'static [u8] {
        if self.record.has(flags::HTTP2) {
            b"HTTP/2.0"
        } else if self.record.has(flags::HTTP10) {
            b"HTTP/1.0"
        } else {
            b"HTTP/1.1"
        }
    }

    fn time(&mut self, out: &mut Vec<u8>, field: Field, style: Style) -> bool {
        let started = self.started;
        let second = self.writer.second(started);
        if field == Field::TimeCommon {
            return text(out, common(second).as_bytes(), style);
        }
        let quote = |out: &mut Vec<u8>| {
            if style == Style::Json {
                out.push(b'"')
            }
        };
        quote(out);
        out.extend_from_slice(second.as_bytes());
        out.push(b'.');
        let micros = started % 1_000_000;
        for power in [100_000, 10_000, 1000, 100, 10, 1] {
            out.push(b'0' + (micros / power % 10) as u8);
        }
        out.push(b'Z');
        quote(out);
        true
    }
}

/// Octets as two digits each.
fn hexadecimal(octets: &[u8; 16]) -> [u8; 32] {
    let mut digits = [0; 32];
    for (pair, octet) in digits.chunks_exact_mut(2).zip(octets) {
        let digit = |half: u8| b"0123456789abcdef"[usize::from(half & 15)];
        pair.copy_from_slice(&[digit(octet >> 4), digit(*octet)]);
    }
    digits
}

fn number(out: &mut Vec<u8>, number: u64) -> bool {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
    true
}

fn text(out: &mut Vec<u8>, text: &[u8], style: Style) -> bool {
    match style {
        Style::Json => escape::json(out, text),
        Style::Plain => escape::plain(out, text),
    }
    true
}

fn named(out: &mut Vec<u8>, name: Option<&str>, style: Style) -> bool {
    name.is_some_and(|name| text(out, name.as_bytes(), style))
}

/// What a client says; it may say nothing.
fn given(out: &mut Vec<u8>, said: &[u8], style: Style) -> bool {
    !said.is_empty() && text(out, said, style)
}

fn truth(out: &mut Vec<u8>, is: bool, style: Style) -> bool {
    out.extend_from_slice(match (is, style) {
        (true, Style::Json) => b"true",
        (false, Style::Json) => b"false",
        (true, Style::Plain) => b"yes",
        (false, Style::Plain) => b"no",
    });
    true
}

fn address(out: &mut Vec<u8>, address: IpAddr, style: Style) -> bool {
    let IpAddr::V4(address) = address else { return text(out, address.to_string().as_bytes(), style) };
    let quote = |out: &mut Vec<u8>| {
        if style == Style::Json {
            out.push(b'"')
        }
    };
    quote(out);
    for (place, octet) in address.octets().into_iter().enumerate() {
        if place > 0 {
            out.push(b'.');
        }
        number(out, octet.into());
    }
    quote(out);
    true
}

fn socket(end: &Endpoint) -> String {
    SocketAddr::new(end.address.into(), end.port).to_string()
}

/// A time as the common log format writes it: `28/Nov/2026:07:15:02 +0000`.
fn common(second: &str) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let part = |from: usize, to: usize| second.get(from..to).unwrap_or_default();
    let month = part(5, 7).parse::<usize>().ok().and_then(|month| MONTHS.get(month.checked_sub(1)?)).unwrap_or(&"Jan");
    format!("{}/{month}/{}:{} +0000", part(8, 10), part(0, 4), part(11, 19))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_log::{Template, usual_fields};
    use hairpin_core::config::Service;
    use hairpin_core::time::Time;

    fn written(form: &Form, record: &Record, texts: &Texts<'_>) -> String {
        let pool = hairpin_core::config::Pool {
            addresses: Box::new([]),
            port_first: 1,
            port_last: 2,
            time_wait: Duration::ZERO,
        };
        let service = Service { name: "w\"eb".into(), ..Service::vacant() };
        let names = Names::new(Arc::new(Snapshot::new(Box::new([service]), pool)), vec![ServiceRecords::default()]);
        let mut out = Vec::new();
        // 2026-11-30T07:38:44.000042Z
        LineWriter::default().write(&mut out, (form, &names), (record, texts), 1_796_024_324_000_042);
        String::from_utf8(out).unwrap()
    }

    fn record() -> Record {
        let end = |address: [u8; 4], port| Endpoint::new(IpAddr::from(address), port);
        let record = Record::new(Time::ZERO, end([10, 0, 200, 7], 4000), end([192, 0, 2, 1], 80), 0);
        Record { flags: flags::EXCHANGE, status: 200, took: 1_234_567, ..record }
    }

    #[test]
    fn lines_are_json_whatever_they_say() {
        let texts = Texts { line: b"GET /\xff\"x", host: b"a\nb", ..Texts::default() };
        for (record, texts) in [(record(), texts), (Record { flags: 0, status: 0, ..record() }, Texts::default())] {
            let line = written(&Form::Json(usual_fields()), &record, &texts);
            let parsed: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!((&parsed["service"], &parsed["client"]), (&"w\"eb".into(), &"10.0.200.7".into()));
            assert_eq!((&parsed["took_us"], &parsed["time"]), (&1234.into(), &"2026-11-30T07:38:44.000042Z".into()));
            assert_eq!(parsed["kind"] == "exchange", !texts.line.is_empty(), "{line}");
            assert!(line.ends_with("}\n") && line.matches('\n').count() == 1, "{line}");
        }
        assert_eq!(written(&Form::Json(Box::new([Field::Reason])), &record(), &Texts::default()), "{}\n");
    }

    #[test]
    fn combined_lines_are_those_of_nginx() {
        let texts = Texts { line: b"GET /a", agent: b"curl", ..Texts::default() };
        let line = written(&Form::Template(Template::combined()), &record(), &texts);
        let expected = "10.0.200.7 - - [30/Nov/2026:07:38:44 +0000] \"GET /a HTTP/1.1\" 200 0 \"-\" \"curl\"\n";
        assert_eq!(line, expected);
    }
}
