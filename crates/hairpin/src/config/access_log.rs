//! Reads `[access_log]` and `[service.access_log]`.

use super::ServiceSettings;
use super::reader::TomlTable;
use super::reference;
use super::words::Spoken;
use crate::access_log::{AccessLogSettings, FORMS, Form, ServiceLog, Target, Template, usual_fields};
use crate::health::StatusRanges;
use hairpin_diagnostics::Sink;
use std::ops::Range;

/// The access log; `None`: the file asks for none, or it is wrong. All mistakes are reported.
pub(super) fn read(sink: &Sink<'_>, top: &TomlTable<'_>) -> Option<AccessLogSettings> {
    if !top.has("access_log") {
        return None;
    }
    let table = top.table("access_log", &reference::ACCESS_LOG);
    if !table.has("to") {
        table.missing("to");
    }
    let to = table.text("to").and_then(|text| {
        let wrong = |what: String| sink.error(&text.span, format!("`to`: {what}"), TO_REMEDY);
        text.value.parse::<Target>().map_err(wrong).ok()
    });
    let form = read_form(sink, &table);
    let buffer = table.integer("buffer").and_then(|bytes| usize::try_from(bytes).ok());
    Some(AccessLogSettings { to: to?, form: form?, buffer: buffer? })
}

const TO_REMEDY: &str = "write a file's absolute path, \"stdout\", \"syslog\", \"syslog:/path/of/its/socket\", \
                         \"syslog+udp:10.0.0.5:514\" or \"syslog+tcp:10.0.0.5:601\"";

fn read_form(sink: &Sink<'_>, table: &TomlTable<'_>) -> Option<Form> {
    let written = table.text("format")?;
    let form = written.value.as_str();
    if !FORMS.iter().any(|(name, _)| *name == form) {
        let names: Vec<&str> = FORMS.iter().map(|(name, _)| *name).collect();
        let what = format!("`format` is \"{form}\"");
        sink.error(&written.span, what, format!("write one of {}", names.join(", ")));
        return None;
    }
    for (field, of) in [("fields", "json"), ("template", "template")] {
        if table.has(field) && form != of {
            let what = format!("`{field}` means nothing with format = \"{form}\"");
            sink.warning(&table.span_of(field), what, format!("leave it out, or write format = \"{of}\""));
        }
    }
    match form {
        "combined" => Some(Form::Template(Template::combined())),
        "template" => {
            if !table.has("template") {
                let remedy = "add template = \"{client} {method} {target} {status}\"";
                sink.error(&written.span, "`format` is \"template\", and there is none", remedy);
                return None;
            }
            let text = table.text("template")?;
            let wrong =
                |what: String| sink.error(&text.span, format!("`template`: {what}"), "write fields as {status}");
            text.value.parse().map_err(wrong).ok().map(Form::Template)
        }
        _ if !table.has("fields") => Some(Form::Json(usual_fields())),
        _ => {
            let mut fields = Vec::new();
            for name in table.one_or_more("fields") {
                match name.value.parse() {
                    Ok(field) => fields.push(field),
                    Err(what) => sink.error(&name.span, what, "docs/guide/access-log.md lists the fields"),
                }
            }
            Some(Form::Json(fields.into()))
        }
    }
}

/// Which records of a service become lines; `None`: none. `is_kept`: there is an access log.
pub(super) fn read_service(
    sink: &Sink<'_>,
    service: &TomlTable<'_>,
    spoken: Option<Spoken>,
    is_kept: bool,
) -> Option<ServiceLog> {
    let table = service.table("access_log", &reference::SERVICE_ACCESS_LOG);
    if service.has("access_log") && !is_kept {
        let what = "[service.access_log] means nothing without an access log";
        sink.warning(&service.span_of("access_log"), what, "add [access_log] with `to`, or leave it out");
    }
    if spoken.is_some_and(|spoken| !spoken.is_http()) {
        for field in ["status", "routes"].into_iter().filter(|field| table.has(field)) {
            let what = format!("`{field}` means nothing to a service that is not HTTP");
            sink.warning(&table.span_of(field), what, "leave it out");
        }
    }
    let is_http = spoken.is_none_or(Spoken::is_http);
    let status = table.text("status").and_then(|text| {
        let wrong = |what| sink.error(&text.span, format!("`status`: {what}"), "write statuses as \"400-499,503\"");
        text.value.parse::<StatusRanges>().map_err(wrong).ok()
    });
    let mut routes = Vec::new();
    for route in table.one_or_more("routes") {
        match route.value.parse::<u16>() {
            Ok(number @ 1..) => routes.push(number),
            _ => {
                let what = format!("\"{}\" is no route's number", route.value);
                sink.error(&route.span, what, "routes are counted from 1, in the order of the file");
            }
        }
    }
    let log = ServiceLog {
        sample: table.integer("sample").and_then(|sample| u32::try_from(sample).ok()).unwrap_or(1),
        status: status.filter(|_| is_http),
        slower_than: table.duration("slower_than"),
        routes: if is_http { routes } else { Vec::new() },
    };
    (is_kept && table.boolean("enabled")).then_some(log)
}

/// Reports routes that the service does not have.
pub(super) fn judge_routes(sink: &Sink<'_>, at: &Range<usize>, settings: &ServiceSettings) {
    let (Some(log), count) = (&settings.access_log, settings.route_count) else { return };
    let Some(beyond) = log.routes.iter().find(|route| **route > count) else { return };
    let what = format!("[service.access_log] asks for route {beyond}, and the service has {count}");
    sink.error(at, what, "routes are counted from 1, in the order of the file");
}
