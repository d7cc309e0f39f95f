//! Lines: what a record says, in the form that the configuration asks for.

use super::escape;
use super::settings::{FIELDS, Field, Form, Piece, ServiceLog};
use hairpin_core::config::{Backend, Snapshot};
use hairpin_core::record::{self, Ending, NEVER_US, Record, Texts, flags};
use std::borrow::Cow;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

/// The names of services and backends, and which records of a service become lines.
pub(super) struct Names {
    snapshot: Arc<Snapshot>,
    logs: Vec<Option<ServiceLog>>,
    /// Records counted for samples.
    counted: Vec<AtomicU32>,
}

impl Names {
    pub(super) fn new(snapshot: Arc<Snapshot>, logs: Vec<Option<ServiceLog>>) -> Names {
        let counted = logs.iter().map(|_| AtomicU32::new(0)).collect();
        Names { snapshot, logs, counted }
    }

    /// Whether the record becomes a line.
    pub(super) fn wants(&self, record: &Record) -> bool {
        let number = usize::from(record.service);
        let Some(Some(log)) = self.logs.get(number) else { return false };
        let has_status = log.status.as_ref().is_none_or(|wanted| wanted.contains(record.status));
        let is_slow = Duration::from_nanos(record.took) >= log.slower_than;
        let has_route = log.routes.is_empty() || log.routes.iter().any(|route| route - 1 == record.route);
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

    fn service(&self, number: u16) -> Option<&str> {
        self.snapshot.services.get(usize::from(number)).map(|service| &*service.name)
    }

    fn backend(&self, number: u16) -> Option<&Backend> {
        self.snapshot.backend(number).map(|(_, backend)| backend)
    }
}

/// The value of a field.
enum Value<'a> {
    None,
    Text(Cow<'a, [u8]>),
    Number(u64),
    Yes(bool),
}

/// Adds the line of a record, with its end.
pub(super) fn write(
    lines: &mut Vec<u8>,
    form: &Form,
    names: &Names,
    record: &Record,
    texts: &Texts<'_>,
    started: SystemTime,
) {
    let line = Line { names, record, texts, started };
    match form {
        Form::Json(fields) => line.json(lines, fields),
        Form::Template(template) => line.template(lines, &template.0),
    }
    lines.push(b'\n');
}

struct Line<'a> {
    names: &'a Names,
    record: &'a Record,
    texts: &'a Texts<'a>,
    started: SystemTime,
}

impl<'a> Line<'a> {
    fn json(&self, out: &mut Vec<u8>, fields: &[Field]) {
        let mut before = b'{';
        for field in fields {
            let value = self.value(*field);
            if matches!(value, Value::None) {
                continue;
            }
            out.push(before);
            before = b',';
            escape::json(out, name(*field).as_bytes());
            out.push(b':');
            match value {
                Value::None => {}
                Value::Text(text) => escape::json(out, &text),
                Value::Number(number) => write_number(out, number),
                Value::Yes(yes) => out.extend_from_slice(if yes { b"true" } else { b"false" }),
            }
        }
        if before == b'{' {
            out.push(b'{');
        }
        out.push(b'}');
    }

    fn template(&self, out: &mut Vec<u8>, pieces: &[Piece]) {
        for piece in pieces {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Field(field) => match self.value(*field) {
                    Value::None => out.push(b'-'),
                    Value::Text(text) => escape::plain(out, &text),
                    Value::Number(number) => write_number(out, number),
                    Value::Yes(yes) => out.extend_from_slice(if yes { b"yes" } else { b"no" }),
                },
            }
        }
    }

    fn value(&self, field: Field) -> Value<'a> {
        let record = self.record;
        let is_exchange = record.has(flags::EXCHANGE);
        let given = |text: &'a [u8]| if text.is_empty() { Value::None } else { Value::Text(text.into()) };
        let told = |text: String| Value::Text(text.into_bytes().into());
        let named = |name: Option<&'a str>| name.map_or(Value::None, |name| Value::Text(name.as_bytes().into()));
        let known = |number: u16| if number == record::NONE { None } else { Some(number) };
        let reached = |us: u32| if us == NEVER_US { Value::None } else { Value::Number(us.into()) };
        let of_connection = |count: u64| if is_exchange { Value::None } else { Value::Number(count) };
        match field {
            Field::Schema => Value::Number(1),
            Field::Time => told(humantime::format_rfc3339_micros(self.started.max(SystemTime::UNIX_EPOCH)).to_string()),
            Field::TimeCommon => told(common(self.started)),
            Field::Kind => named(Some(if is_exchange { "exchange" } else { "connection" })),
            Field::Service => named(self.names.service(record.service)),
            Field::Route => known(record.route).map_or(Value::None, |route| Value::Number(u64::from(route) + 1)),
            Field::Group => named(known(record.group).and_then(|group| self.names.service(group))),
            Field::Backend => {
                named(known(record.backend).and_then(|backend| Some(&*self.names.backend(backend)?.name)))
            }
            Field::BackendAddress => match known(record.backend).and_then(|backend| self.names.backend(backend)) {
                Some(backend) => told(socket(backend.endpoint.address.into(), backend.endpoint.port)),
                None => Value::None,
            },
            Field::Client => told(IpAddr::from(record.client.address).to_string()),
            Field::ClientPort => Value::Number(record.client.port.into()),
            Field::Vip => told(socket(record.vip.address.into(), record.vip.port)),
            Field::Tls => Value::Yes(record.has(flags::TLS)),
            Field::Method => given(self.texts.method()),
            Field::Host => given(self.texts.host),
            Field::Target => given(self.texts.target()),
            Field::Version if is_exchange && !self.texts.line.is_empty() => named(Some(self.version())),
            Field::Version => Value::None,
            Field::Status if record.status == 0 => Value::None,
            Field::Status => Value::Number(record.status.into()),
            Field::BytesIn => Value::Number(record.bytes[0]),
            Field::BytesOut => Value::Number(record.bytes[1]),
            Field::PacketsIn => of_connection(record.packets[0]),
            Field::PacketsOut => of_connection(record.packets[1]),
            Field::ToBackend => reached(record.to_backend_us),
            Field::ToResponse => reached(record.to_response_us),
            Field::Took => Value::Number(record.took / 1000),
            Field::Tries => Value::Number(record.tries.into()),
            Field::Carrier => named(Some(if record.has(flags::ENGINE) { "engine" } else { "software" })),
            Field::Ending => named(Some(Ending::of(record.ending).name())),
            Field::Reason => named(record.why().map(|why| why.name())),
            Field::UserAgent => given(self.texts.agent),
            Field::Referer => given(self.texts.referer),
        }
    }

    fn version(&self) -> &'static str {
        if self.record.has(flags::HTTP2) {
            "HTTP/2.0"
        } else if self.record.has(flags::HTTP10) {
            "HTTP/1.0"
        } else {
            "HTTP/1.1"
        }
    }
}

fn name(field: Field) -> &'static str {
    FIELDS[field as usize].1
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "{number}");
}

fn socket(address: IpAddr, port: u16) -> String {
    SocketAddr::new(address, port).to_string()
}

/// A time as the common log format writes it: `28/Nov/2026:07:15:02 +0000`.
fn common(time: SystemTime) -> String {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    // 2026-11-28T07:15:02Z
    let text = humantime::format_rfc3339_seconds(time.max(SystemTime::UNIX_EPOCH)).to_string();
    let part = |from: usize, to: usize| text.get(from..to).unwrap_or_default();
    let month = part(5, 7).parse::<usize>().ok().and_then(|month| MONTHS.get(month - 1)).unwrap_or(&"Jan");
    format!("{}/{month}/{}:{} +0000", part(8, 10), part(0, 4), part(11, 19))
}
