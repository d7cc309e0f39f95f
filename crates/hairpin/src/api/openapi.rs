//! The API's description in OpenAPI 3.1: what the paths take and give, with the schema of the configuration reference.

use super::certificates;
use super::exchange::TRANSACTIONS;
use super::resource::{Action, Target};
use crate::config;
use serde_json::{Map, Value, json};

const PROBLEM: &str = "application/problem+json";

/// The description, with a newline at its end: `/openapi.json`, and docs/reference/openapi.json.
pub(super) fn openapi() -> String {
    let paths: Map<String, Value> = OBJECTS.iter().map(|path| (format!("/v1{}", path.path), object(path))).collect();
    let mut paths = Value::Object(paths);
    paths[TRANSACTIONS] = json!({ "post": transaction() });
    paths[certificates::PATH] = json!({ "get": {
        "operationId": "read-certificates",
        "summary": "The names and files of all certificates that clients uploaded",
        "responses": answers(json!({ "200": { "description": "They", "content": { "application/json": { "schema": {
            "type": "array", "items": { "type": "object", "required": ["name", "file"], "properties": {
                "name": { "type": "string" }, "file": { "type": "string" } } } } } } } }), &["malformed", "unknown", "conflict", "busy"]),
    } });
    paths[format!("{}/{{name}}", certificates::PATH)] = certificate();
    paths["/openapi.json"] = json!({ "get": {
        "operationId": "describe",
        "summary": "This description",
        "responses": {
            "200": { "description": "It", "content": { "application/json": { "schema": { "type": "object" } } } },
            "401": refer("responses", "unknown"),
        },
    } });
    let description = json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Hairpin",
            "version": "1",
            "description": "The configuration of a running instance, on the Unix socket beside its control socket, and by TLS for \
                clients that show a certificate or a token. Every answer of an \
                object has the version of the configuration as its ETag; every write names that version in If-Match, and is \
                judged and applied as a whole, like a reload of the file.",
            "license": { "name": "Apache-2.0", "identifier": "Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": paths,
        // On the Unix socket the kernel says who a client is.
        "security": [{}, { "token": [] }, { "certificate": [] }],
        "components": { "schemas": schemas(), "responses": responses(), "parameters": parameters(), "securitySchemes": {
            "token": { "type": "http", "scheme": "bearer", "description": "By TLS: a token of the file that `[api] tokens` names." },
            "certificate": { "type": "mutualTLS", "description": "A certificate of the CAs that `[api] client_roots` names." },
        } },
    });
    format!("{description:#}\n")
}

/// The sections of the configuration, and what is said of writes.
fn schemas() -> Value {
    let text = config::schema().replace("#/definitions/", "#/components/schemas/");
    // It is JSON: this program has written it.
    let mut configuration: Value = serde_json::from_str(&text).unwrap_or_default();
    let mut schemas = configuration["definitions"].take();
    if let Value::Object(fields) = &mut configuration {
        ["definitions", "$schema", "title"].iter().for_each(|field| drop(fields.remove(*field)));
    }
    let texts = json!({ "type": "array", "items": { "type": "string" } });
    schemas["configuration"] = configuration;
    schemas["applied"] = json!({
        "type": "object",
        "description": "A write that is in force.",
        "required": ["version", "before", "changes", "later", "warnings"],
        "properties": {
            "version": { "type": "string", "description": "The version in force now." },
            "before": { "type": "string", "description": "The version that the write was made of." },
            "changes": described(&texts, "What is different, a sentence each."),
            "later": described(&texts, "What takes a restart or an upgrade to be in force, a sentence each."),
            "warnings": described(&texts, "What is probably a mistake."),
        },
    });
    schemas["problem"] = json!({
        "type": "object",
        "description": "Why a request was refused (RFC 9457). Nothing has changed.",
        "required": ["title", "status", "detail"],
        "properties": {
            "title": { "type": "string" },
            "status": { "type": "integer" },
            "detail": { "type": "string" },
            "version": { "type": "string", "description": "With 412 and 428: the version in force." },
            "given": described(&texts, "With 412: the versions that the request names."),
            "problems": { "type": "array", "description": "With 422: every mistake.", "items": {
                "type": "object",
                "required": ["path", "message", "remedy"],
                "properties": {
                    "path": { "type": "string", "description": "Where in the configuration, a JSON pointer (RFC 6901)." },
                    "body": { "type": "string", "description": "Where in the request's body; absent: elsewhere." },
                    "message": { "type": "string" },
                    "remedy": { "type": "string" },
                },
            } },
        },
    });
    schemas["change"] = json!({
        "type": "object",
        "required": ["method", "path"],
        "additionalProperties": false,
        "properties": {
            "method": { "enum": ["PUT", "PATCH", "DELETE"] },
            "path": { "type": "string", "description": "The object's path, such as /services/web/backends/10.0.2.11%3A8080." },
            "body": { "description": "What PUT and PATCH of that path have as their body." },
        },
    });
    schemas
}

fn described(schema: &Value, description: &str) -> Value {
    let mut schema = schema.clone();
    schema["description"] = description.into();
    schema
}

fn responses() -> Value {
    let problem = |description: &str| {
        json!({ "description": description,
            "content": { PROBLEM: { "schema": { "$ref": "#/components/schemas/problem" } } } })
    };
    json!({
        "applied": {
            "description": "It is in force.",
            "headers": { "ETag": { "description": "The version in force now.", "schema": { "type": "string" } } },
            "content": { "application/json": { "schema": { "$ref": "#/components/schemas/applied" } } },
        },
        "malformed": problem("The request is malformed: the head, or the form of the body."),
        "unknown": json!({ "description": "By TLS: the client shows neither certificate nor token, or a wrong token.",
            "headers": { "WWW-Authenticate": { "description": "RFC 6750, 3.", "schema": { "type": "string" } } },
            "content": { PROBLEM: { "schema": { "$ref": "#/components/schemas/problem" } } } }),
        "absent": problem("There is no such object."),
        "slow": problem("The body did not come in time."),
        "conflict": problem("The configuration is right, but the process cannot take it over, or the API does not change it."),
        "stale": problem("The configuration, or the certificate, has become another one since."),
        "large": problem("The body is too large."),
        "type": problem("The body is of another type than JSON."),
        "invalid": problem("The configuration would be wrong: `hairpin validate` would refuse it."),
        "unconditional": problem("There is no If-Match."),
        "busy": problem("The process does not answer in time, or is stopping."),
    })
}

fn parameters() -> Value {
    json!({
        "if-match": {
            "name": "If-Match",
            "in": "header",
            "required": true,
            "description": "The ETag of the answer that the write was made of.",
            "schema": { "type": "string", "pattern": "^\"[0-9a-f]{32}\"$" },
        },
    })
}

/// The refusals there are, by their code.
const REFUSALS: [(&str, &str); 11] = [
    ("400", "malformed"),
    ("401", "unknown"),
    ("404", "absent"),
    ("408", "slow"),
    ("409", "conflict"),
    ("412", "stale"),
    ("413", "large"),
    ("415", "type"),
    ("422", "invalid"),
    ("428", "unconditional"),
    ("503", "busy"),
];

fn refer(kind: &str, name: &str) -> Value {
    json!({ "$ref": format!("#/components/{kind}/{name}") })
}

/// An object's path.
struct ObjectPath {
    /// The path behind the version, with parameters.
    path: &'static str,
    /// One of it.
    example: &'static str,
    /// The name of its operations.
    name: &'static str,
    /// What it is.
    about: &'static str,
    /// Its schema in the configuration reference, empty for text; and whether it is a list of such.
    schema: (&'static str, bool),
}

const fn path(
    path: &'static str,
    example: &'static str,
    name: &'static str,
    about: &'static str,
    schema: (&'static str, bool),
) -> ObjectPath {
    ObjectPath { path, example, name, about, schema }
}

/// All of them.
const OBJECTS: [ObjectPath; 12] = [
    path("/config", "/config", "configuration", "The whole configuration", ("configuration", false)),
    path("/services", "/services", "services", "All services", ("service", true)),
    path("/services/{service}", "/services/s", "service", "A service", ("service", false)),
    path(
        "/services/{service}/backends",
        "/services/s/backends",
        "backends",
        "Its own backends",
        ("service.backend", true),
    ),
    path(
        "/services/{service}/backends/{backend}",
        "/services/s/backends/b",
        "backend",
        "A backend, by its name or address",
        ("service.backend", false),
    ),
    path("/services/{service}/groups", "/services/s/groups", "groups", "Its groups", ("service.group", true)),
    path("/services/{service}/groups/{group}", "/services/s/groups/g", "group", "A group", ("service.group", false)),
    path(
        "/services/{service}/groups/{group}/backends",
        "/services/s/groups/g/backends",
        "group-backends",
        "The backends of a group",
        ("service.backend", true),
    ),
    path(
        "/services/{service}/groups/{group}/backends/{backend}",
        "/services/s/groups/g/backends/b",
        "group-backend",
        "A backend of a group, by its name or address",
        ("service.backend", false),
    ),
    path(
        "/services/{service}/routes",
        "/services/s/routes",
        "routes",
        "Its routes, in their order",
        ("service.route", true),
    ),
    path(
        "/services/{service}/routes/{number}",
        "/services/s/routes/1",
        "route",
        "A route, by its number from 1",
        ("service.route", false),
    ),
    path(
        "/services/{service}/certificates",
        "/services/s/certificates",
        "certificates",
        "The paths of its certificates",
        ("", true),
    ),
];

fn object(path: &ObjectPath) -> Value {
    let (schema, is_list) = path.schema;
    let one = if schema.is_empty() { json!({ "type": "string" }) } else { refer("schemas", schema) };
    let schema = if is_list { json!({ "type": "array", "items": one }) } else { one };
    let mut content = json!({ "application/json": { "schema": schema } });
    if path.path == "/config" {
        content["application/toml"] = json!({ "schema": { "type": "string" } });
    }
    let parameters = path.path.split('{').skip(1).map(|rest| {
        let name = rest.split('}').next().unwrap_or_default();
        let schema = match name {
            "number" => json!({ "type": "integer", "minimum": 1, "maximum": 65535 }),
            _ => json!({ "type": "string", "minLength": 1, "maxLength": 256 }),
        };
        json!({ "name": name, "in": "path", "required": true, "schema": schema })
    });
    let parameters: Vec<Value> = parameters.collect();
    let mut read = json!({ "200": {
        "description": path.about,
        "headers": { "ETag": { "description": "The version of the configuration in force.", "schema": { "type": "string" } } },
        "content": content,
    }, "400": refer("responses", "malformed"), "401": refer("responses", "unknown"), "503": refer("responses", "busy") });
    if !parameters.is_empty() {
        read["404"] = refer("responses", "absent");
    }
    let mut operations = json!({
        "parameters": parameters,
        "get": { "operationId": format!("read-{}", path.name), "summary": path.about, "responses": read },
    });
    let actions = Target::parse(path.example).map_or(&[][..], |target| target.actions());
    for action in actions {
        let (word, summary) = match action {
            Action::Put => ("put", "Replace it, or add it"),
            Action::Patch => ("patch", "Change some of its fields (RFC 7396)"),
            Action::Delete => ("delete", "Remove it"),
        };
        let body = match action {
            Action::Put => Some(json!({ "application/json": { "schema": schema } })),
            Action::Patch => Some(json!({ "application/merge-patch+json": { "schema": { "type": "object" } } })),
            Action::Delete => None,
        };
        operations[word] = written(&format!("{word}-{}", path.name), summary, body);
    }
    operations
}

fn written(name: &str, summary: &str, body: Option<Value>) -> Value {
    let applied = refer("responses", "applied");
    let responses = answers(json!({ "200": applied, "201": applied }), &REFUSALS.map(|(_, name)| name));
    let mut operation = json!({
        "operationId": name,
        "summary": summary,
        "parameters": [refer("parameters", "if-match")],
        "responses": responses,
    });
    if let Some(content) = body {
        operation["requestBody"] = json!({ "required": true, "content": content });
    }
    operation
}

/// A certificate that a client uploads.
fn certificate() -> Value {
    let text = |description: &str| json!({ "type": "string", "description": description });
    let stored = json!({ "200": {
        "description": "What there is to see of it; with `before` and `services`, that it is in force.",
        "headers": { "ETag": { "description": "Its version.", "schema": { "type": "string" } } },
        "content": { "application/json": { "schema": { "type": "object", "required": ["name", "file", "version"], "properties": {
            "name": text("Its name."),
            "file": text("Its file, which services name in `certificates`."),
            "version": text("Its version: another chain has another one."),
            "names": { "type": "array", "items": { "type": "string" }, "description": "The names it is for." },
            "key": text("ECDSA, RSA or ED25519."),
            "valid_from_unix_s": { "type": "integer" },
            "valid_until_unix_s": { "type": "integer" },
            "before": { "type": ["string", "null"], "description": "Of a write: the version that it replaced." },
            "services": { "type": "array", "items": { "type": "string" }, "description": "Of a write: what serves it now." },
            "warnings": { "type": "array", "items": { "type": "string" } },
        } } } },
    } });
    let mut written = stored.clone();
    written["201"] = stored["200"].clone();
    let mut condition = parameters()["if-match"].take();
    condition["required"] = false.into();
    condition["description"] = "Its ETag; none, if there is no certificate of this name yet.".into();
    let body = json!({ "application/json": { "schema": {
        "type": "object",
        "required": ["chain", "key"],
        "additionalProperties": false,
        "properties": {
            "chain": text("The certificate and those of its issuers, in PEM form."),
            "key": { "type": "string", "writeOnly": true, "description": "The private key of the first, in PEM form." },
        },
    } } });
    let pattern = format!("^[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{}}}$", certificates::NAME_BYTES_MAX - 1);
    let refused = ["malformed", "unknown", "absent", "conflict", "busy"];
    let refused_writes =
        ["malformed", "unknown", "absent", "slow", "conflict", "stale", "large", "type", "unconditional", "busy"];
    json!({
        "parameters": [{ "name": "name", "in": "path", "required": true, "schema": { "type": "string", "pattern": pattern } }],
        "get": { "operationId": "read-certificate", "summary": "What there is to see of a certificate: never its key",
            "responses": answers(stored, &refused) },
        "put": { "operationId": "put-certificate", "summary": "Upload a certificate with its key, or replace one",
            "parameters": [condition.clone()], "requestBody": { "required": true, "content": body },
            "responses": answers(written, &refused_writes) },
        "delete": { "operationId": "delete-certificate", "summary": "Remove a certificate that nothing uses",
            "parameters": [condition], "responses": answers(json!({ "200": { "description": "It is gone." } }), &refused_writes) },
    })
}

/// Adds these refusals to the responses of an operation.
fn answers(mut responses: Value, refused: &[&str]) -> Value {
    for (code, name) in REFUSALS.iter().filter(|(_, name)| refused.contains(name)) {
        responses[code] = refer("responses", name);
    }
    responses
}

fn transaction() -> Value {
    let body = json!({ "application/json": { "schema": {
        "type": "object",
        "required": ["changes"],
        "additionalProperties": false,
        "properties": { "changes": { "type": "array", "minItems": 1, "maxItems": super::limits::OPERATIONS_MAX,
            "items": refer("schemas", "change") } },
    } } });
    written("change-several", "Change several objects at once, in this order, or none", Some(body))
}
