//! What the configuration says of the access log.

use crate::health::StatusRanges;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Settings of the access log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessLogSettings {
    /// Where lines go.
    pub to: Target,
    /// The form of lines.
    pub form: Form,
    /// Bytes of each worker's and each HTTPS runtime's ring.
    pub buffer: usize,
}

/// Where lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A file, by its absolute path.
    File(PathBuf),
    /// Standard output.
    StandardOutput,
    /// A syslog server (RFC 5424).
    Syslog(SyslogEnd),
}

/// Where a syslog server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SyslogEnd {
    /// At a datagram socket, by its absolute path.
    Unix(PathBuf),
    /// At a UDP port (RFC 5426).
    Udp(SocketAddr),
    /// At a TCP port (RFC 6587, 3.4.1: octets are counted).
    Tcp(SocketAddr),
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Target, String> {
        let address = |text: &str| text.parse::<SocketAddr>().map_err(|_| format!("\"{text}\" is no address and port"));
        let path = |text: &str| match text.starts_with('/') {
            true => Ok(PathBuf::from(text)),
            false => Err(format!("\"{text}\" is no absolute path")),
        };
        match text.split_once(':') {
            _ if text == "stdout" => Ok(Target::StandardOutput),
            _ if text == "syslog" => Ok(Target::Syslog(SyslogEnd::Unix("/dev/log".into()))),
            Some(("syslog", rest)) => Ok(Target::Syslog(SyslogEnd::Unix(path(rest)?))),
            Some(("syslog+udp", rest)) => Ok(Target::Syslog(SyslogEnd::Udp(address(rest)?))),
            Some(("syslog+tcp", rest)) => Ok(Target::Syslog(SyslogEnd::Tcp(address(rest)?))),
            _ => Ok(Target::File(path(text)?)),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::File(path) => write!(f, "{}", path.display()),
            Target::StandardOutput => write!(f, "stdout"),
            Target::Syslog(SyslogEnd::Unix(path)) => write!(f, "syslog:{}", path.display()),
            Target::Syslog(SyslogEnd::Udp(address)) => write!(f, "syslog+udp:{address}"),
            Target::Syslog(SyslogEnd::Tcp(address)) => write!(f, "syslog+tcp:{address}"),
        }
    }
}

/// The form of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// An object of JSON with these fields.
    Json(Box<[Field]>),
    /// Text with fields in it.
    Template(Template),
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Json(fields) => {
                let names: Vec<&str> = fields.iter().map(|field| FIELDS[*field as usize].1).collect();
                write!(f, "json with {}", names.join(", "))
            }
            Form::Template(template) => template.0.iter().try_for_each(|piece| match piece {
                Piece::Text(text) => write!(f, "{text}"),
                Piece::Field(field) => write!(f, "{{{}}}", FIELDS[*field as usize].1),
            }),
        }
    }
}

/// The forms that have a name.
pub(crate) const FORMS: [(&str, &str); 3] = [
    ("json", "an object a line, with the fields of `fields`; those that have no value are left out"),
    ("combined", "nginx's and Apache's combined format"),
    ("template", "what `template` says"),
];

/// The combined format. The time is when the exchange began.
const COMBINED: &str =
    "{client} - - [{time_common}] \"{method} {target} {version}\" {status} {bytes_out} \"{referer}\" \"{user_agent}\"";

/// A text with fields in braces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(pub(super) Box<[Piece]>);

/// A part of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Field(Field),
}

impl Template {
    /// The combined format.
    pub(crate) fn combined() -> Template {
        // A test reads it.
        COMBINED.parse().unwrap_or_else(|_| Template(Box::default()))
    }
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Template, String> {
        if text.chars().any(char::is_control) {
            return Err("a line has no control characters".to_owned());
        }
        let mut pieces = Vec::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('{') {
            let Some((name, after)) = behind.split_once('}') else { return Err(format!("\"{{{behind}\" has no `}}`")) };
            pieces.push(Piece::Text(before.to_owned()));
            pieces.push(Piece::Field(name.parse()?));
            rest = after;
        }
        pieces.push(Piece::Text(rest.to_owned()));
        Ok(Template(pieces.into()))
    }
}

macro_rules! fields {
    ($($variant:ident $name:literal $doc:literal,)*) => {
        /// A field of a line.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Field {
            $(#[doc = $doc] $variant,)*
        }

        /// Every field: itself, its name, and what it says.
        pub(crate) const FIELDS: &[(Field, &str, &str)] = &[$((Field::$variant, $name, $doc),)*];

        /// What stands before the value of a field in JSON, by field.
        pub(super) const KEYS: &[&str] = &[$(concat!(",\"", $name, "\":"),)*];
    };
}

fields! {
    Schema "schema" "the version of these fields' meanings, 1",
    Time "time" "when the request's head was there, or the connection began: UTC, RFC 3339, with microseconds",
    TimeCommon "time_common" "the same moment as the common log format writes it; not in JSON unless `fields` asks for it",
    Kind "kind" "`exchange` of HTTP, or `connection`",
    Service "service" "the service",
    Route "route" "the route, counted from 1 in the order of the file; none: the request took the service's own backends",
    Group "group" "the group of backends; the service, if those are its own",
    Backend "backend" "the backend",
    BackendAddress "backend_address" "its address and port",
    Client "client" "the client's address",
    ClientPort "client_port" "its port",
    Vip "vip" "the address and port that the client connected to",
    Tls "tls" "whether the client speaks TLS",
    Method "method" "the method, at most 32 bytes",
    Host "host" "the host that the request is for, at most 255 bytes; of a TLS service the name that the client asks for",
    Target "target" "path and query as they were received, at most 2,048 bytes",
    Version "version" "`HTTP/1.0`, `HTTP/1.1` or `HTTP/2.0`",
    Status "status" "the status that the client got; none: it got none",
    BytesIn "bytes_in" "bytes of the request with its head; of a connection of IP packets from the client",
    BytesOut "bytes_out" "bytes of the response with its head; of a connection of IP packets to the client",
    PacketsIn "packets_in" "packets of a connection from the client",
    PacketsOut "packets_out" "packets of a connection to the client",
    ToBackend "to_backend_us" "microseconds until the request went to a backend",
    ToResponse "to_response_us" "microseconds until the head of the backend's response was there",
    Took "took_us" "microseconds until the client had all of the response, or until the last packet of the connection",
    Tries "tries" "backends that were tried",
    Carrier "carrier" "`engine` if the flow engine has carried some of it, else `software`",
    Ending "ending" "`done`; `answered` (by Hairpin itself); `client`, `backend` (that end broke it off), `timeout`, `reset`, \
                     `removed` (its backend was taken away) or `aborted`",
    Reason "reason" "why Hairpin answered with an error, in the words of `hairpin status`",
    RequestId "request_id" "the request's id, where the service has `request_id`: its trusted client's, or the one made here",
    TraceId "trace_id" "the trace that it belongs to, where the service is traced; `traceparent` of the backend's request has it",
    UserAgent "user_agent" "`User-Agent`, at most 512 bytes",
    Referer "referer" "`Referer`, at most 1,024 bytes",
}

impl FromStr for Field {
    type Err = String;

    fn from_str(name: &str) -> Result<Field, String> {
        let known = || FIELDS.iter().map(|(_, name, _)| *name).collect::<Vec<_>>();
        match FIELDS.iter().find(|(_, known, _)| *known == name) {
            Some((field, ..)) => Ok(*field),
            None => match crate::config::nearest(name, &known()) {
                Some(near) => Err(format!("there is no field `{name}`; did you mean `{near}`?")),
                None => Err(format!("there is no field `{name}`; there are {}", known().join(", "))),
            },
        }
    }
}

/// The fields of a line of JSON that the configuration does not choose.
pub(crate) fn usual_fields() -> Box<[Field]> {
    FIELDS.iter().map(|(field, ..)| *field).filter(|field| *field != Field::TimeCommon).collect()
}

/// Which of a service's records become lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceLog {
    /// Of those that pass the filters below one in so many; all that ended with 5xx or were broken off.
    pub sample: u32,
    /// Only these statuses.
    pub status: Option<StatusRanges>,
    /// Only what took at least so long.
    pub slower_than: Duration,
    /// Only these routes, counted from 1; empty: all.
    pub routes: Vec<u16>,
}

impl fmt::Display for ServiceLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServiceLog { sample, status, slower_than, routes } = self;
        write!(f, "one in {sample}")?;
        status.iter().try_for_each(|status| write!(f, ", status {status}"))?;
        if !slower_than.is_zero() {
            write!(f, ", slower than {}", humantime::format_duration(*slower_than))?;
        }
        routes.iter().try_for_each(|route| write!(f, ", route {route}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_written_as_they_are_read() {
        for text in
            ["/var/log/access.log", "stdout", "syslog:/run/log", "syslog+udp:10.0.0.1:514", "syslog+tcp:[::1]:601"]
        {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        assert_eq!("syslog".parse::<Target>().unwrap().to_string(), "syslog:/dev/log");
        for text in ["access.log", "syslog+udp:server:514", "syslog:log", "syslog+tcp:10.0.0.1", ""] {
            assert!(text.parse::<Target>().is_err(), "{text}");
        }
    }

    #[test]
    fn guide_lists_every_field() {
        let page = include_str!("../../../../docs/guide/access-log.md");
        for (_, name, _) in FIELDS {
            assert!(page.contains(&format!("\n| `{name}` | ")), "{name}");
        }
    }

    #[test]
    fn templates_know_their_fields() {
        assert!(Template::combined().0.len() > 10);
        let template: Template = "a {client}{status} b".parse().unwrap();
        assert_eq!(template.0.len(), 5);
        let wrong = "{statsu}".parse::<Template>().unwrap_err();
        assert!(wrong.contains("did you mean `status`"), "{wrong}");
        assert!("{client".parse::<Template>().is_err() && "a\nb".parse::<Template>().is_err());
    }
}
