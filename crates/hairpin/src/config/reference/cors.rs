//! The sections about scripts of other origins.

use super::Fallback::{From, Required, Value};
use super::{ReferenceSection, ValueForm, field};

/// `[service.cors]`
pub const CORS: ReferenceSection = ReferenceSection {
    header: "[service.cors]",
    doc: "Which scripts of other origins may read responses (CORS, Fetch standard), of services whose connections end here: of \
          what takes no route, and of routes that have no [service.route.cors], which has the same fields. Preflights (OPTIONS \
          with `Origin` and `Access-Control-Request-Method`) are answered with 204 behind access rules and limits; they do not \
          reach backends. The fields that backends, or `response_headers`, say about it do not go on. An origin that may not gets no \
          field, so that browsers refuse. Responses of Hairpin's own have no fields of CORS.",
    fields: &[
        field(
            "origins",
            ValueForm::Texts,
            Required,
            "[\"https://shop.example\"]",
            "Origins whose scripts may, compared byte by byte, or `[\"*\"]` for all; 256 at most, of 255 bytes. `[]` in a \
             route: backends answer preflights, and what they say goes on.",
        ),
        field(
            "methods",
            ValueForm::Texts,
            From("GET, HEAD and POST"),
            "[\"GET\", \"PUT\"]",
            "Methods that scripts may use beside GET, HEAD and POST, which browsers always allow, or `[\"*\"]`.",
        ),
        field(
            "headers",
            ValueForm::Texts,
            From("none"),
            "[\"Content-Type\", \"X-Cart\"]",
            "Fields that scripts may set in requests beside those that browsers always allow, or `[\"*\"]`.",
        ),
        field(
            "expose",
            ValueForm::Texts,
            From("none"),
            "[\"X-Total\"]",
            "Fields of responses that scripts may read beside those that browsers always show, or `[\"*\"]`.",
        ),
        field(
            "credentials",
            ValueForm::Boolean,
            Value("false"),
            "true",
            "Whether cookies, client certificates and `Authorization` go with requests. Not with \"*\" in any list.",
        ),
        field(
            "max_age_s",
            ValueForm::Integer { min: 0, max: 86_400 },
            Value("600"),
            "3600",
            "How long browsers remember the answer to a preflight, seconds.",
        ),
    ],
};

/// `[service.route.cors]`
pub const ROUTE_CORS: ReferenceSection =
    ReferenceSection { header: "[service.route.cors]", doc: CORS.doc, fields: CORS.fields };
