//! What becomes of a write, and how that is said in JSON.

use super::resource::Step;
use crate::control::Changes;
use serde::Serialize;
use serde_json::{Value, json};

/// A write that is in force.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Applied {
    /// The version that it was made of.
    pub(crate) before: String,
    /// The version that is in force now; that of before, if the write changes nothing.
    pub(crate) version: String,
    /// Whether its object was not there before.
    pub(crate) is_new: bool,
    /// What is different.
    pub(crate) changes: Changes,
}

/// Why a request was refused. Nothing has changed then.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Refused {
    /// It is not what the API understands.
    Form(String),
    /// The client shows no certificate and no token, or a wrong token; whether it shows one.
    Unknown(bool),
    /// There is no such object.
    Absent(String),
    /// The object cannot be changed like that; the methods that it has.
    Method(&'static str),
    /// The body is too large; how many bytes there may be.
    Large(u64),
    /// The body did not come in time.
    Slow,
    /// The body is not JSON by its `Content-Type`.
    Type,
    /// It does not say which version it was made of.
    Unconditional(String),
    /// It was made of another version than the one in force.
    Stale {
        /// The versions that it names.
        given: Vec<String>,
        /// The one in force.
        current: String,
    },
    /// The configuration would be wrong.
    Invalid(Vec<ApiProblem>),
    /// The configuration is right, but the process cannot take it over.
    Conflict(String),
    /// The process does not answer in time, or is stopping.
    Busy(String),
}

/// A mistake of the configuration that a write would make.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct ApiProblem {
    /// Where in the configuration, a JSON pointer (RFC 6901); empty: all of it.
    pub(crate) path: String,
    /// Where in the request's body; absent: elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<String>,
    /// What is wrong, in the words of `hairpin validate`.
    pub(crate) message: String,
    /// What would be right; may be empty.
    pub(crate) remedy: String,
}

impl Refused {
    /// The status code.
    pub(crate) fn code(&self) -> u16 {
        match self {
            Refused::Form(_) => 400,
            Refused::Unknown(_) => 401,
            Refused::Absent(_) => 404,
            Refused::Method(_) => 405,
            Refused::Slow => 408,
            Refused::Conflict(_) => 409,
            Refused::Stale { .. } => 412,
            Refused::Large(_) => 413,
            Refused::Type => 415,
            Refused::Invalid(_) => 422,
            Refused::Unconditional(_) => 428,
            Refused::Busy(_) => 503,
        }
    }

    /// The answer's body: a problem of RFC 9457.
    pub(crate) fn body(&self) -> Value {
        let (title, detail) = match self {
            Refused::Form(what) => ("the request is malformed", what.clone()),
            Refused::Unknown(_) => (
                "the client is not known",
                "show a certificate of its CAs, or send a token of its file: Authorization: Bearer TOKEN".to_owned(),
            ),
            Refused::Absent(what) => ("there is no such object", what.clone()),
            Refused::Method(methods) => ("the object has no such method", format!("use {methods}")),
            Refused::Large(bytes) => ("the body is too large", format!("send {bytes} bytes at most")),
            Refused::Slow => ("the body did not come in time", "send it at once".to_owned()),
            Refused::Type => ("the body is of another type", "send application/json".to_owned()),
            Refused::Unconditional(current) => (
                "the request does not say which version it was made of",
                format!("read the object, and send its ETag: If-Match: \"{current}\" is in force"),
            ),
            Refused::Stale { given, current } => (
                "there is another version by now",
                format!("the request was made of version {}, in force is {current}: read it again", given.join(", ")),
            ),
            Refused::Invalid(problems) => (
                "the configuration would be wrong",
                format!(
                    "{} mistake{}; nothing has changed",
                    problems.len(),
                    if problems.len() == 1 { "" } else { "s" }
                ),
            ),
            Refused::Conflict(what) => ("the process cannot take this over", what.clone()),
            Refused::Busy(what) => ("the process does not answer", what.clone()),
        };
        let mut body = json!({ "title": title, "status": self.code(), "detail": detail });
        match self {
            Refused::Stale { given, current } => {
                body["given"] = json!(given);
                body["version"] = json!(current);
            }
            Refused::Unconditional(current) => body["version"] = json!(current),
            Refused::Invalid(problems) => body["problems"] = json!(problems),
            _ => {}
        }
        body
    }
}

impl Applied {
    /// The answer's body.
    pub(crate) fn body(&self) -> Value {
        json!({
            "version": self.version,
            "before": self.before,
            "changes": self.changes.changes,
            "later": self.changes.later,
            "warnings": self.changes.warnings,
        })
    }
}

/// Steps as a JSON pointer (RFC 6901).
pub(super) fn pointer(steps: &[Step]) -> String {
    let step = |step: &Step| match step {
        Step::Field(name) => format!("/{}", name.replace('~', "~0").replace('/', "~1")),
        Step::Entry(index) => format!("/{index}"),
    };
    steps.iter().map(step).collect()
}
