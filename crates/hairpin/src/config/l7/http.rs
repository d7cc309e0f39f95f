//! Reads HTTP and HTTPS services: `[service.http]` and what is below it.

use super::super::HttpSections;
use super::super::reader::{TomlTable, truth};
use super::super::reference;
use super::super::words::{BackendProtocol, SameSite, SettingWord, Spoken};
use super::conditions::networks;
use super::{Targets, basic, edits, number, pages, read_proxy_protocol, route};
use hairpin_core::l7::config::{Action, Edits, Field, Forwarded, Http, HttpLimits, Sticky};
use hairpin_core::l7::edit;
use hairpin_core::l7::route::host::HostPattern;
use hairpin_core::l7::trace::{Parents, RequestId, Tracing};
use toml::de::DeValue;

/// Bytes of a cookie's path at most.
pub(crate) const PATH_BYTES_MAX: usize = 128;

/// The attribute of a cookie that is sent over TLS only.
const SECURE: &str = "Secure";

/// The field that has an http service take HTTP/2.
const HTTP2: &str = "http2";

/// The fields that say how backends are spoken with.
const BACKEND_TLS: &str = "backend_tls";
const PROTOCOL: &str = "backend_protocol";

/// The table by which requests wait for backends.
const QUEUE: &str = "queue";

/// The fields that are about packets, and why they mean nothing where TLS ends here.
const OF_PACKETS: [(&str, &str); 2] = [
    ("offload_bytes_min", "TLS ends in user space, so no body can leave for the kernel's rules: leave it out"),
    ("timestamps", "TLS ends in user space, at the kernel's sockets, which agree on timestamps: leave it out"),
];

/// The field that has an http service redirect its clients.
const REDIRECT: &str = "redirect_to_https";
/// Where they are redirected to.
const HTTPS_LOCATION: &str = "https://{host}{path}{query}";

/// An HTTP service, and what the file says about it.
pub(super) fn read(service: &TomlTable<'_>, spoken: Spoken, targets: &Targets) -> (Http, HttpSections) {
    let table = service.table("http", &reference::HTTP);
    let forwarded = table.table("forwarded", &reference::FORWARDED);
    let limits = table.table("limits", &reference::HTTP_LIMITS);
    let rest = read_rest(service, &table, spoken, targets);
    let basic = basic::of_service(service, spoken, &targets.service);
    let (routes, said_routes, (cors, users, pages)) = route::read(service, spoken, targets, (rest, &basic));
    let (access, said_access) = route::read_access(service, spoken);
    let proxy_protocol = read_proxy_protocol(&table);
    let reuse = table.boolean("reuse");
    if proxy_protocol.is_some() && table.has("reuse") && reuse {
        let what = "`reuse` cannot be with `proxy_protocol`, which gives every connection to a backend to one client";
        table.error(&table.span_of("reuse"), what, "leave one of them out");
    }
    if is_terminated(service, spoken) {
        no_packets(&table, spoken);
    }
    read_http2(&table, spoken);
    if spoken == Spoken::Http
        && let Some(field) = terminates(service).filter(|field| *field != HTTP2)
    {
        let remedy = match field {
            QUEUE => "leave it out where requests may be refused at once",
            _ => "let backends speak HTTP/1.1 in clear text where they can",
        };
        service.warning(&service.span_of(field), costs(field), remedy);
    }
    if proxy_protocol.is_some() && speaks_http2(service) {
        let what =
            "`proxy_protocol` cannot be with HTTP/2 to backends, whose connections are of many clients at a time";
        table.error(&table.span_of("proxy_protocol"), what, "leave one of them out");
    }
    let certificates = edits::Certificates::of(service, spoken);
    let http = Http {
        answers: Default::default(),
        access,
        routes,
        edits: Edits {
            request: edits::requests(&table, &reference::HTTP_REQUEST_EDITS, certificates),
            response: edits::responses(&table, &reference::HTTP_RESPONSE_EDITS, certificates),
        },
        forwarded: read_forwarded(&forwarded),
        request_id: read_request_id(&table),
        // How, the instance says.
        tracing: table.boolean("tracing").then_some(Tracing { parents: Parents::None, sample: 0 }),
        sticky: read_sticky(&table, spoken),
        server_timing: table.boolean("server_timing"),
        upgrade: table.boolean("upgrade"),
        connect: table.boolean("connect"),
        proxy_protocol,
        reuse: reuse && proxy_protocol.is_none(),
        limits: read_limits(&limits),
        offload_bytes_min: table.integer("offload_bytes_min"),
        timestamps: table.boolean("timestamps"),
    };
    basic::judge_edits(service, &users, &http.edits.request);
    let mut fields = table.said();
    let is_https = spoken == Spoken::Https;
    let of_packets = |field: &str| OF_PACKETS.iter().any(|(other, _)| *other == field);
    let is_other = |field: &str| match field {
        REDIRECT | HTTP2 => is_https,
        field => is_terminated(service, spoken) && of_packets(field),
    };
    fields.retain(|(name, _)| !name.strip_prefix("http.").is_some_and(is_other));
    for name in ["request_headers", "response_headers", "sticky"] {
        fields.push((format!("http.{name}"), table.written_of(name).unwrap_or_else(|| "none".to_string())));
    }
    fields.push(("cors".to_string(), service.written_of("cors").unwrap_or_else(|| "none".to_string())));
    let said_pages = pages::said(service, &pages.own).unwrap_or_else(|| "none".to_string());
    fields.push(("error_pages".to_string(), said_pages));
    fields.extend(forwarded.said());
    fields.extend(limits.said());
    let asked = service.written_of("forward_auth");
    fields.push(("forward_auth".to_string(), asked.unwrap_or_else(|| "none".to_string())));
    fields.push(("basic".to_string(), basic.said));
    let said = HttpSections {
        fields,
        access: said_access,
        routes: said_routes,
        cors,
        pages,
        basic: users,
        ..HttpSections::default()
    };
    (http, said)
}

/// Whether all requests that no route takes are redirected, as the file says it.
pub(in super::super) fn redirects(service: &TomlTable<'_>) -> bool {
    is_true(service, REDIRECT)
}

/// Whether all requests that no route takes are redirected, as it was read.
pub(in super::super) fn redirects_said(said: &HttpSections) -> bool {
    said.fields.iter().any(|(name, value)| name.strip_prefix("http.") == Some(REDIRECT) && value == "true")
}

/// Whether browsers send the cookie over TLS only.
pub(in super::super) fn is_secure(sticky: &Sticky) -> bool {
    sticky.attributes.split(|byte| *byte == b';').any(|attribute| attribute.trim_ascii() == SECURE.as_bytes())
}

/// Whether the service's connections end here, as the file says it.
pub(in super::super) fn is_terminated(service: &TomlTable<'_>, spoken: Spoken) -> bool {
    spoken == Spoken::Https || spoken == Spoken::Http && terminates(service).is_some()
}

/// Whether an http service takes HTTP/2 in clear text, as the file says it.
pub(super) fn takes_http2(service: &TomlTable<'_>) -> bool {
    is_true(service, HTTP2)
}

/// The field of the service, or of a group of it, for which an http service's connections end here.
pub(in super::super) fn terminates(service: &TomlTable<'_>) -> Option<&'static str> {
    if takes_http2(service) {
        return Some(HTTP2);
    }
    if speaks_http2(service) {
        return Some(PROTOCOL);
    }
    let is_on = |value: &DeValue<'_>| {
        value.as_table().is_some_and(|table| table.get("enabled").is_none_or(|it| truth(it.get_ref()) != Some(false)))
    };
    if any(service, QUEUE, |value| value.as_table().is_some()) {
        return Some(QUEUE);
    }
    any(service, BACKEND_TLS, is_on).then_some(BACKEND_TLS)
}

/// Whether backends of the service, or of a group of it, speak HTTP/2.
fn speaks_http2(service: &TomlTable<'_>) -> bool {
    any(service, PROTOCOL, |value| value.as_str() == Some(BackendProtocol::Http2.word()))
}

/// Whether the service, or a group of it, has a field of which this holds.
fn any(service: &TomlTable<'_>, field: &str, holds: impl Fn(&DeValue<'_>) -> bool) -> bool {
    let groups = service.given("group").and_then(|groups| groups.get_ref().as_array());
    let groups = groups.into_iter().flatten().filter_map(|group| group.get_ref().as_table());
    let of_groups = groups.filter_map(|group| group.get(field));
    service.given(field).into_iter().chain(of_groups).any(|value| holds(value.get_ref()))
}

/// Whether `[service.http]` has a field, and it is true. What is wrong there is reported where it is read.
fn is_true(service: &TomlTable<'_>, field: &str) -> bool {
    let http = service.given("http").and_then(|http| http.get_ref().as_table());
    http.and_then(|http| http.get(field)).is_some_and(|value| truth(value.get_ref()) == Some(true))
}

/// Says what it costs that an http service's connections end here.
fn costs(field: &str) -> String {
    format!("`{field}` has bodies copied in user space: none is offloaded, and connections do not survive the process")
}

/// Says what HTTP/2 in clear text costs.
fn read_http2(http: &TomlTable<'_>, spoken: Spoken) {
    let is_wanted = http.boolean(HTTP2);
    if spoken == Spoken::Https && http.has(HTTP2) {
        let what = format!("`{HTTP2}` is given in [service.http], but the service is https");
        http.error(
            &http.span_of(HTTP2),
            what,
            "write it in [service.https], where it is true unless you say otherwise",
        );
    } else if is_wanted {
        http.warning(&http.span_of(HTTP2), costs(HTTP2), "leave it out unless clients speak HTTP/2 in clear text");
    }
}

/// What becomes of requests that no route takes. `None`: 404.
fn read_rest(service: &TomlTable<'_>, http: &TomlTable<'_>, spoken: Spoken, targets: &Targets) -> Option<Action> {
    if !http.boolean(REDIRECT) {
        return targets.own().map(|groups| Action::Forward { groups, replace_prefix: None });
    }
    if spoken == Spoken::Https {
        let what = format!("`{REDIRECT}` is given, but the service is https");
        http.error(&http.span_of(REDIRECT), what, "give it to a service with protocol = \"http\", or leave it out");
    }
    if let Some(field) = ["backends", "backend"].into_iter().find(|field| targets.has_own && service.has(field)) {
        let what = format!("the service has backends, but `{REDIRECT}` leaves no request to them");
        let remedy = "leave them out, or make them a [[service.group]] that a route leads to";
        service.error(&service.span_of(field), what, remedy);
    }
    let location = edit::location(HTTPS_LOCATION).ok()?;
    Some(Action::Redirect { status: 308, location })
}

/// Warns of fields that only mean something where a worker forwards the packets of requests.
fn no_packets(table: &TomlTable<'_>, spoken: Spoken) {
    for (field, of_tls) in OF_PACKETS.iter().filter(|(field, _)| table.has(field)) {
        let (what, remedy) = match spoken {
            Spoken::Https => ("in a service that is https", *of_tls),
            _ => ("with `http2`", "connections end at the kernel's sockets: leave it out"),
        };
        table.warning(&table.span_of(field), format!("`{field}` means nothing {what}"), remedy);
    }
}

fn read_forwarded(table: &TomlTable<'_>) -> Forwarded {
    Forwarded {
        x_for: table.boolean("x_forwarded_for"),
        x_proto: table.boolean("x_forwarded_proto"),
        x_host: table.boolean("x_forwarded_host"),
        x_real_ip: table.boolean("x_real_ip"),
        standard: table.boolean("forwarded"),
        trusted: networks(table, "trusted"),
    }
}

/// Fields that no request's id can be in.
const OTHER_FIELDS: [&str; 11] = [
    "authorization",
    "content-type",
    "cookie",
    "forwarded",
    "host",
    "max-forwards",
    "range",
    "traceparent",
    "tracestate",
    "user-agent",
    "x-real-ip",
];

/// The field of requests' ids; `None`: they have none, or its name is none.
fn read_request_id(table: &TomlTable<'_>) -> Option<RequestId> {
    let name = table.text("request_id")?;
    let lower = name.value.to_ascii_lowercase().replace('_', "-");
    let is_other = OTHER_FIELDS.contains(&&*lower) || lower.starts_with("x-forwarded-");
    let wrong = match Field::parse(&name.value, "") {
        Err(wrong) => wrong,
        Ok(_) if is_other => "this field says something else",
        Ok(field) => return Some(RequestId { lower_name: field.name.to_ascii_lowercase().into(), name: field.name }),
    };
    table.error(&name.span, format!("`request_id` is \"{}\": {wrong}", name.value), "write \"X-Request-Id\"");
    None
}

fn read_limits(table: &TomlTable<'_>) -> HttpLimits {
    let head_bytes_max: u16 = number(table, "head_bytes_max");
    let target_bytes_max: u16 = number(table, "target_bytes_max");
    if table.has("target_bytes_max") && target_bytes_max > head_bytes_max {
        let what = format!("`target_bytes_max` ({target_bytes_max}) is more than a head may have ({head_bytes_max})");
        table.warning(&table.span_of("target_bytes_max"), what, "lower it, or raise `head_bytes_max`");
    }
    HttpLimits {
        head_bytes_max,
        fields_max: number(table, "fields_max"),
        target_bytes_max: target_bytes_max.min(head_bytes_max),
        body_bytes_max: number(table, "body_bytes_max"),
        head_timeout: table.duration("head_timeout"),
        idle_timeout: table.duration("idle_timeout"),
        body_timeout: table.duration("body_timeout"),
        send_timeout: table.duration("send_timeout"),
        connect_timeout: table.duration("connect_timeout"),
        connect_tries: number(table, "connect_tries"),
        response_timeout: table.duration("response_timeout"),
        retry_percent: number(table, "retry_percent"),
        requests_max: number(table, "requests_max"),
        idle_per_backend_max: number(table, "idle_per_backend_max"),
    }
}

/// `None` if the file does not ask for it, or if its cookie has no name.
fn read_sticky(http: &TomlTable<'_>, spoken: Spoken) -> Option<Sticky> {
    let table = http.table("sticky", &reference::STICKY);
    if !http.has("sticky") {
        return None;
    }
    // The default that the reference has is that of http services.
    let secure = table.boolean("secure") || (spoken == Spoken::Https && !table.has("secure"));
    let same_site = table.choice::<SameSite>("same_site").unwrap_or_default();
    if same_site == SameSite::None && !secure {
        let what = "`same_site = \"none\"` is ignored by browsers without `secure`";
        table.error(&table.span_of("same_site"), what, "add secure = true, or choose \"lax\"");
    }
    let path = table.text("path").filter(|path| {
        let visible = |byte: u8| byte.is_ascii_graphic() && byte != b';';
        let right =
            path.value.starts_with('/') && path.value.len() <= PATH_BYTES_MAX && path.value.bytes().all(visible);
        if !right {
            let remedy = format!("write a path of up to {PATH_BYTES_MAX} visible ASCII characters, without `;`");
            table.error(&path.span, format!("`path` is \"{}\"", path.value), remedy);
        }
        right
    });
    let domain = table.text("domain").filter(|domain| {
        let wrong = match HostPattern::parse(&domain.value) {
            Ok(HostPattern::Exact(_)) => None,
            Ok(HostPattern::Suffix(_)) => Some("write it without `*.`: a domain stands for all below it"),
            Err(right) => Some(right),
        };
        if let Some(right) = wrong {
            table.error(&domain.span, format!("`domain` is \"{}\"", domain.value), right);
        }
        wrong.is_none()
    });
    let max_age = table.duration_given("max_age");
    if !table.has("cookie") {
        table.missing("cookie");
        return None;
    }
    let cookie = table.text("cookie")?;
    prefixes(&table, &cookie.value, secure, path.as_ref().is_some_and(|path| path.value == "/") && domain.is_none());
    let mut attributes: Vec<String> = Vec::new();
    let mut add = |attribute: String| attributes.push(attribute);
    path.into_iter().for_each(|path| add(format!("Path={}", path.value)));
    domain.into_iter().for_each(|domain| add(format!("Domain={}", domain.value)));
    max_age.into_iter().for_each(|max_age| add(format!("Max-Age={}", max_age.as_secs())));
    secure.then(|| add(SECURE.to_string()));
    table.boolean("http_only").then(|| add("HttpOnly".to_string()));
    add(match same_site {
        SameSite::Lax => "SameSite=Lax".to_string(),
        SameSite::Strict => "SameSite=Strict".to_string(),
        SameSite::None => "SameSite=None".to_string(),
    });
    let wrong = |right: &&str| table.error(&cookie.span, format!("`cookie` is \"{}\"", cookie.value), *right);
    Sticky::parse(&cookie.value, &attributes.join("; ")).inspect_err(wrong).ok()
}

/// Names that browsers attach conditions to (RFC 6265bis, 4.1.3).
fn prefixes(table: &TomlTable<'_>, cookie: &str, secure: bool, whole_host: bool) {
    let begins = |prefix: &str| cookie.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix));
    let wrong = match () {
        () if begins("__Secure-") && !secure => Some("needs secure = true"),
        () if begins("__Host-") && !(secure && whole_host) => Some("needs secure = true, path = \"/\" and no `domain`"),
        () => None,
    };
    if let Some(wrong) = wrong {
        let what = format!("browsers refuse a cookie named \"{cookie}\", which {wrong}");
        table.error(&table.span_of("cookie"), what, "add that, or choose another name");
    }
}
