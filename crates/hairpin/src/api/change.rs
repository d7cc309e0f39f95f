//! A write: one object or several at once, of a version that it names.

use super::answer::{ApiProblem, Refused, pointer};
use super::places::Places;
use super::resource::{Action, Step, Target};
use super::{Document, limits};
use hairpin_diagnostics::{Problems, Severity};
use serde_json::Value;

/// A client's write.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct WriteRequest {
    /// The client, for the log.
    pub(crate) who: String,
    /// The method and the path, for the log.
    pub(crate) what: String,
    /// The versions that `If-Match` names; empty: it names none.
    pub(crate) versions: Vec<String>,
    /// What is done, in this order.
    pub(crate) operations: Vec<Operation>,
    /// Whether its body is a list of changes.
    pub(crate) is_transaction: bool,
}

/// What is done to one object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Operation {
    /// What is done.
    pub(crate) action: Action,
    /// The object.
    pub(crate) target: Target,
    /// The object as it is to be, or its fields.
    pub(crate) body: Value,
}

impl WriteRequest {
    /// The document that it makes of the one in force, and whether it has an object that was not there.
    ///
    /// # Errors
    /// It was made of another version, or means objects that are not there.
    pub(crate) fn perform(&self, current: &Document) -> Result<(Document, bool), Refused> {
        let version = current.version();
        if self.versions.is_empty() {
            return Err(Refused::Unconditional(version.to_owned()));
        }
        if !self.versions.iter().any(|given| given == version) {
            return Err(Refused::Stale { given: self.versions.clone(), current: version.to_owned() });
        }
        let mut tree = current.tree().clone();
        let mut is_new = false;
        for (index, operation) in self.operations.iter().enumerate() {
            let changed = operation.target.change(&mut tree, operation.action, operation.body.clone());
            is_new |= changed.map_err(|refused| match (refused, self.is_transaction) {
                (Refused::Form(what), true) => Refused::Form(format!("change {}: {what}", index + 1)),
                (Refused::Absent(what), true) => Refused::Absent(format!("change {}: {what}", index + 1)),
                (refused, _) => refused,
            })?;
        }
        let document = current.with(tree).map_err(Refused::Form)?;
        match document.text().len() as u64 > limits::BODY_BYTES_MAX {
            true => Err(Refused::Large(limits::BODY_BYTES_MAX)),
            false => Ok((document, is_new)),
        }
    }

    /// The mistakes of the document that it makes, with their places in it and in the body.
    pub(crate) fn refusal(&self, document: &Document, problems: &Problems) -> Refused {
        let places = Places::of(document.text());
        let bodies: Vec<Option<Vec<Step>>> =
            self.operations.iter().map(|operation| operation.target.place(document.tree()).ok().flatten()).collect();
        let errors = problems.0.iter().filter(|problem| problem.severity == Severity::Error);
        let told = errors.take(limits::PROBLEMS_MAX).map(|problem| {
            let place = places.at(problem);
            let within = |(index, body): (usize, &Option<Vec<Step>>)| {
                let rest = place.strip_prefix(body.as_deref()?)?;
                let prefix = if self.is_transaction { format!("/changes/{index}/body") } else { String::new() };
                Some(prefix + &pointer(rest))
            };
            ApiProblem {
                path: pointer(place),
                // Of two changes of the same object, the last one is in the document.
                body: bodies.iter().enumerate().rev().find_map(within),
                message: problem.what.clone(),
                remedy: problem.remedy.clone(),
            }
        });
        Refused::Invalid(told.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FILE: &str = "interfaces = [\"eth0\"]\n[[service]]\nname = \"web\"\nlisten = \"192.0.2.1:80/tcp\"\nbackends = \
        [\"10.0.0.1:80\"]\n[[service]]\nname = \"mail\"\nlisten = \"192.0.2.1:25/tcp\"\nbackends = [\"10.0.0.2:25\"]\n";

    fn write(document: &Document, changes: &[(&str, Action, Value)]) -> WriteRequest {
        let operation = |(path, action, body): &(&str, Action, Value)| Operation {
            action: *action,
            target: Target::parse(path).unwrap(),
            body: body.clone(),
        };
        WriteRequest {
            who: "uid 0".into(),
            what: "PUT".into(),
            versions: vec![document.version().to_owned()],
            operations: changes.iter().map(operation).collect(),
            is_transaction: changes.len() > 1,
        }
    }

    fn problems(changes: &[(&str, Action, Value)]) -> Vec<ApiProblem> {
        let document = Document::of(FILE).unwrap();
        let write = write(&document, changes);
        let (changed, _) = write.perform(&document).unwrap();
        let problems = crate::config::parse("configuration", changed.text()).unwrap_err();
        match write.refusal(&changed, &problems) {
            Refused::Invalid(problems) => problems,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_write_of_another_version_or_of_none_is_refused() {
        let document = Document::of(FILE).unwrap();
        let mut request = write(&document, &[("/services/mail", Action::Delete, Value::Null)]);
        let (changed, is_new) = request.perform(&document).unwrap();
        assert!(!is_new && changed.version() != document.version());
        let refused = request.perform(&changed).unwrap_err();
        let (given, current) = (vec![document.version().to_owned()], changed.version().to_owned());
        assert_eq!(refused, Refused::Stale { given, current: current.clone() });
        assert!(
            [document.version(), &current]
                .iter()
                .all(|version| refused.body()["detail"].as_str().unwrap().contains(version))
        );
        request.versions.clear();
        assert_eq!(request.perform(&document).unwrap_err().code(), 428);
    }

    #[test]
    fn mistakes_are_told_with_the_words_of_the_file_and_their_path() {
        let body = json!({"listen": "192.0.2.1:80/tcp", "backend": [{"address": "10.0.0.1:80", "weight": 70000},
            {"address": "10.0.0.300:80"}], "balance": "round"});
        let found = problems(&[("/services/web", Action::Put, body.clone())]);
        let places: Vec<_> = found.iter().map(|problem| (&*problem.path, problem.body.as_deref())).collect();
        for place in ["/backend/0/weight", "/backend/1/address", "/balance"] {
            assert!(places.contains(&(&*format!("/service/0{place}"), Some(place))), "{place}: {found:#?}");
        }
        assert!(found.iter().any(|problem| problem.message.contains("weight")), "{found:#?}");
        let found = problems(&[
            ("/services/mail/backends/new", Action::Put, json!({"address": "10.0.0.9:25"})),
            ("/services/web", Action::Put, body),
        ]);
        let in_body = found.iter().filter_map(|problem| problem.body.as_deref());
        assert!(in_body.clone().any(|place| place == "/changes/1/body/backend/0/weight"), "{found:#?}");
    }

    #[test]
    fn mistakes_elsewhere_have_no_place_in_the_body() {
        let found = problems(&[(
            "/services/new",
            Action::Put,
            json!({"listen": "192.0.2.1:25/tcp", "backends": ["10.0.0.9:25"]}),
        )]);
        assert_eq!(found.len(), 1, "{found:#?}");
        assert_eq!((&*found[0].path, found[0].body.as_deref()), ("/service/2/listen", Some("/listen")));
        let found = problems(&[("/services/web/backends/10.0.0.1:80", Action::Delete, Value::Null)]);
        assert_eq!((&*found[0].path, &found[0].body), ("/service/0", &None), "{found:#?}");
        assert!(found[0].message.contains("no backend"), "{found:#?}");
    }
}
