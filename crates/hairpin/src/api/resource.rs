//! The objects that the API reads and changes, by their paths, in the tree of a [`super::Document`].
//!
//! An object is named as people and messages name it: a service by its name, or by `listen` if it has none; a group by its name; a
//! backend by its name, or by its address; a route by its number, from 1. A backend that stands in a list `backends` is one with
//! an address alone, and becomes one of `backend` when it is given more.

use super::answer::Refused;
use serde_json::{Map, Value, json};

/// Segments of a path at most, those of the longest target.
const SEGMENTS_MAX: usize = 6;
/// Bytes of a name in a path at most: more than a name of the configuration may have.
const NAME_BYTES_MAX: usize = 256;

/// What a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The whole configuration.
    Configuration,
    /// The list of services.
    Services,
    /// A service.
    Service(String),
    /// A part of a service.
    Part(String, Part),
}

/// A part of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Its groups.
    Groups,
    /// One of them.
    Group(String),
    /// The backends of the group of this name, or the service's own.
    Backends(Option<String>),
    /// One of them.
    Backend(Option<String>, String),
    /// Its routes, in their order.
    Routes,
    /// One of them, from 1.
    Route(usize),
    /// The paths of its certificates.
    Certificates,
}

/// A step into the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A field of an object.
    Field(String),
    /// An entry of a list, from 0.
    Entry(usize),
}

/// What is done to an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// It becomes what the body says.
    Put,
    /// Its fields become what the body says (RFC 7396).
    Patch,
    /// It goes.
    Delete,
}

impl Target {
    /// Reads the path behind the version of the API, such as `/services/web/backends/10.0.2.11%3A8080`; `None`: there is no such
    /// object in any configuration.
    pub(crate) fn parse(path: &str) -> Option<Target> {
        let mut segments = Vec::new();
        for segment in path.strip_prefix('/')?.split('/') {
            let name = percent_encoding::percent_decode_str(segment).decode_utf8().ok()?;
            if name.is_empty() || name.len() > NAME_BYTES_MAX || segments.len() == SEGMENTS_MAX {
                return None;
            }
            segments.push(name.into_owned());
        }
        let words: Vec<&str> = segments.iter().map(String::as_str).collect();
        let of = |service: &str, part| Some(Target::Part(service.to_owned(), part));
        match words[..] {
            ["config"] => Some(Target::Configuration),
            ["services"] => Some(Target::Services),
            ["services", service] => Some(Target::Service(service.to_owned())),
            ["services", service, "groups"] => of(service, Part::Groups),
            ["services", service, "groups", group] => of(service, Part::Group(group.to_owned())),
            ["services", service, "groups", group, "backends"] => of(service, Part::Backends(Some(group.to_owned()))),
            ["services", service, "groups", group, "backends", backend] => {
                of(service, Part::Backend(Some(group.to_owned()), backend.to_owned()))
            }
            ["services", service, "backends"] => of(service, Part::Backends(None)),
            ["services", service, "backends", backend] => of(service, Part::Backend(None, backend.to_owned())),
            ["services", service, "routes"] => of(service, Part::Routes),
            ["services", service, "routes", number] => {
                let number = number.parse().ok().filter(|number| *number > 0 && *number <= usize::from(u16::MAX))?;
                of(service, Part::Route(number))
            }
            ["services", service, "certificates"] => of(service, Part::Certificates),
            _ => None,
        }
    }

    /// What may be done to it.
    pub(crate) fn actions(&self) -> &'static [Action] {
        match self {
            Target::Configuration | Target::Part(_, Part::Routes | Part::Certificates) => &[Action::Put],
            Target::Services | Target::Part(_, Part::Groups | Part::Backends(_)) => &[],
            Target::Service(_) | Target::Part(_, Part::Group(_) | Part::Backend(..) | Part::Route(_)) => {
                &[Action::Put, Action::Patch, Action::Delete]
            }
        }
    }

    /// The object, as it is written.
    ///
    /// # Errors
    /// The configuration has no such object.
    pub(crate) fn read(&self, tree: &Value) -> Result<Value, Refused> {
        match self {
            Target::Part(_, Part::Backends(_)) => Ok(backends(at(tree, &self.holder(tree)?))),
            Target::Services | Target::Part(_, Part::Groups | Part::Routes | Part::Certificates) => {
                let holder = self.holder(tree)?;
                let list = at(tree, &[&holder[..], &self.list()].concat());
                Ok(match list {
                    Some(Value::Array(_)) => list.cloned().unwrap_or_default(),
                    // A list of one may be written without brackets.
                    Some(one) => json!([one]),
                    None => json!([]),
                })
            }
            _ => match self.place(tree)?.and_then(|place| at(tree, &place).cloned()) {
                Some(Value::String(address)) => Ok(json!({ "address": address })),
                Some(value) => Ok(value),
                None => Err(self.absent()),
            },
        }
    }

    /// Where the object stands; `None`: the configuration lacks it, and has what it would stand in.
    ///
    /// # Errors
    /// It lacks that, too.
    pub(crate) fn place(&self, tree: &Value) -> Result<Option<Vec<Step>>, Refused> {
        let holder = self.holder(tree)?;
        let entry = |list: &[Step], found: &dyn Fn(&Value) -> bool| {
            let place = [&holder[..], list].concat();
            let index = at(tree, &place).and_then(Value::as_array)?.iter().position(found)?;
            Some([&place[..], &[Step::Entry(index)]].concat())
        };
        Ok(match self {
            Target::Configuration => Some(Vec::new()),
            Target::Services | Target::Part(_, Part::Groups | Part::Routes | Part::Certificates) => {
                Some([&holder[..], &self.list()].concat())
            }
            Target::Part(_, Part::Backends(_)) => Some(holder),
            Target::Service(name) => entry(&self.list(), &|value| service_name(value) == *name),
            Target::Part(_, Part::Group(name)) => entry(&self.list(), &|value| value["name"] == **name),
            Target::Part(_, Part::Backend(_, name)) => entry(&self.list(), &|value| {
                let [own, address] = [&value["name"], &value["address"]];
                *own == **name || *address == **name
            })
            .or_else(|| entry(&[field("backends")], &|value| *value == **name)),
            Target::Part(_, Part::Route(number)) => {
                let place = [&holder[..], &self.list(), &[Step::Entry(number - 1)]].concat();
                at(tree, &place).map(|_| place.clone())
            }
        })
    }

    /// Does `action` to the object; whether there was none before.
    ///
    /// # Errors
    /// The configuration has no such object, or the body has not the form of one. The tree may have changed in part.
    pub(crate) fn change(&self, tree: &mut Value, action: Action, body: Value) -> Result<bool, Refused> {
        if *self == Target::Configuration {
            *tree = object(body)?.into();
            return Ok(false);
        }
        let place = self.place(tree)?;
        let whole = match action {
            Action::Delete => {
                let place = place.ok_or_else(|| self.absent())?;
                remove(tree, &place);
                return Ok(false);
            }
            Action::Patch => {
                let mut whole = self.read(tree)?;
                patch(&mut whole, Value::Object(object(body)?));
                self.named(whole)?
            }
            Action::Put if matches!(self, Target::Part(_, Part::Routes | Part::Certificates)) => {
                if !body.is_array() {
                    return Err(Refused::Form("the body is not a list".to_owned()));
                }
                body
            }
            Action::Put => self.named(body)?,
        };
        let holder = self.holder(tree)?;
        let is_backend = matches!(self, Target::Part(_, Part::Backend(..)));
        match place {
            // Its list has addresses alone.
            Some(place) if is_backend && at(tree, &place).is_some_and(Value::is_string) => {
                remove(tree, &place);
                append(tree, &[&holder[..], &self.list()].concat(), whole)?;
                Ok(false)
            }
            Some(place) if at(tree, &place).is_some() => {
                if let Some(there) = at_mut(tree, &place) {
                    *there = whole;
                }
                Ok(false)
            }
            Some(place) => set(tree, &place, whole).map(|()| true),
            None => {
                if let Target::Part(_, Part::Route(number)) = self {
                    let count =
                        at(tree, &[&holder[..], &self.list()].concat()).and_then(Value::as_array).map_or(0, Vec::len);
                    if *number != count + 1 {
                        let what = format!("there are {count} routes: the next one has the number {}", count + 1);
                        return Err(Refused::Absent(what));
                    }
                }
                append(tree, &[&holder[..], &self.list()].concat(), whole)?;
                Ok(true)
            }
        }
    }

    /// The object with the name that its path has.
    fn named(&self, body: Value) -> Result<Value, Refused> {
        let mut fields = object(body)?;
        let (name, said) = match self {
            Target::Service(name) => (name, Some(service_name(&Value::Object(fields.clone())))),
            Target::Part(_, Part::Group(name)) => (name, text(&fields, "name")),
            Target::Part(_, Part::Backend(_, name)) => {
                (name, text(&fields, "name").or_else(|| text(&fields, "address").filter(|address| address == name)))
            }
            _ => return Ok(fields.into()),
        };
        let is_named = fields.contains_key("name");
        match said.filter(|said| is_named || said == name) {
            Some(said) if said != *name => {
                // A backend is found by its address, too.
                let is_address = matches!(self, Target::Part(_, Part::Backend(..)))
                    && text(&fields, "address").as_ref() == Some(name);
                if !is_address {
                    return Err(Refused::Form(format!(
                        "the body's `name` is \"{said}\", but the path says \"{name}\""
                    )));
                }
            }
            Some(_) => {}
            None => drop(fields.insert("name".to_owned(), name.clone().into())),
        }
        Ok(fields.into())
    }

    /// Where the object that has this one stands.
    fn holder(&self, tree: &Value) -> Result<Vec<Step>, Refused> {
        let above = match self {
            Target::Configuration | Target::Services | Target::Service(_) => return Ok(Vec::new()),
            Target::Part(service, Part::Backends(Some(group)) | Part::Backend(Some(group), _)) => {
                Target::Part(service.clone(), Part::Group(group.clone()))
            }
            Target::Part(service, _) => Target::Service(service.clone()),
        };
        above.place(tree)?.ok_or_else(|| above.absent())
    }

    /// The list that it stands in, or that it is, below its holder.
    fn list(&self) -> Vec<Step> {
        match self {
            Target::Configuration => Vec::new(),
            Target::Services | Target::Service(_) => vec![field("service")],
            Target::Part(_, Part::Groups | Part::Group(_)) => vec![field("group")],
            Target::Part(_, Part::Backends(_) | Part::Backend(..)) => vec![field("backend")],
            Target::Part(_, Part::Routes | Part::Route(_)) => vec![field("route")],
            Target::Part(_, Part::Certificates) => vec![field("https"), field("certificates")],
        }
    }

    fn absent(&self) -> Refused {
        let what = match self {
            Target::Configuration | Target::Services => "there is no service".to_owned(),
            Target::Service(name) => format!("there is no service \"{name}\""),
            Target::Part(service, Part::Group(name)) => format!("service \"{service}\" has no group \"{name}\""),
            Target::Part(service, Part::Backend(None, name)) => {
                format!("service \"{service}\" has no backend \"{name}\"")
            }
            Target::Part(service, Part::Backend(Some(group), name)) => {
                format!("group \"{group}\" of service \"{service}\" has no backend \"{name}\"")
            }
            Target::Part(service, Part::Route(number)) => format!("service \"{service}\" has no route {number}"),
            Target::Part(service, _) => format!("service \"{service}\" has none"),
        };
        Refused::Absent(what)
    }
}

/// How a service is called: by its name, or else by `listen` and its protocol.
fn service_name(value: &Value) -> String {
    let said = |field: &str| value.get(field).and_then(Value::as_str);
    match (said("name"), said("listen"), said("protocol")) {
        (Some(name), ..) => name.to_owned(),
        (None, Some(listen), Some(protocol)) if !listen.contains('/') => format!("{listen}/{protocol}"),
        (None, listen, _) => listen.unwrap_or_default().to_owned(),
    }
}

/// The backends of a service or group, those of both lists.
fn backends(holder: Option<&Value>) -> Value {
    let list = |field: &str| holder.and_then(|holder| holder.get(field)).and_then(Value::as_array).cloned();
    let plain = list("backends").unwrap_or_default().into_iter().map(|address| json!({ "address": address }));
    plain.chain(list("backend").unwrap_or_default()).collect()
}

fn field(name: &str) -> Step {
    Step::Field(name.to_owned())
}

fn text(fields: &Map<String, Value>, name: &str) -> Option<String> {
    fields.get(name).and_then(Value::as_str).map(str::to_owned)
}

fn object(body: Value) -> Result<Map<String, Value>, Refused> {
    match body {
        Value::Object(fields) => Ok(fields),
        _ => Err(Refused::Form("the body is not an object".to_owned())),
    }
}

fn at<'t>(tree: &'t Value, place: &[Step]) -> Option<&'t Value> {
    place.iter().try_fold(tree, |value, step| match step {
        Step::Field(name) => value.get(name),
        Step::Entry(index) => value.get(index),
    })
}

fn at_mut<'t>(tree: &'t mut Value, place: &[Step]) -> Option<&'t mut Value> {
    place.iter().try_fold(tree, |value, step| match step {
        Step::Field(name) => value.get_mut(name),
        Step::Entry(index) => value.get_mut(index),
    })
}

/// Puts a value in its place; objects on the way are made.
fn set(tree: &mut Value, place: &[Step], new: Value) -> Result<(), Refused> {
    let mut there = tree;
    for step in place {
        there = match (step, there) {
            (Step::Field(name), Value::Object(fields)) => fields.entry(name.clone()).or_insert_with(|| json!({})),
            (Step::Entry(index), Value::Array(items)) if *index < items.len() => &mut items[*index],
            _ => {
                return Err(Refused::Form("the configuration has another value where this one would stand".to_owned()));
            }
        };
    }
    *there = new;
    Ok(())
}

/// Adds a value to a list, which is made if it is not there.
fn append(tree: &mut Value, list: &[Step], new: Value) -> Result<(), Refused> {
    match at_mut(tree, list) {
        Some(Value::Array(items)) => {
            items.push(new);
            Ok(())
        }
        Some(_) => Err(Refused::Form("the configuration has another value where this one would stand".to_owned())),
        None => set(tree, list, json!([new])),
    }
}

/// Removes an entry of a list, and the list with its last one.
fn remove(tree: &mut Value, place: &[Step]) {
    let Some((last, list)) = place.split_last() else { return };
    let is_empty = match (at_mut(tree, list), last) {
        (Some(Value::Array(items)), Step::Entry(index)) if *index < items.len() => {
            items.remove(*index);
            items.is_empty()
        }
        _ => false,
    };
    if let (true, Some((Step::Field(name), holder))) = (is_empty, list.split_last())
        && let Some(Value::Object(fields)) = at_mut(tree, holder)
    {
        fields.remove(name);
    }
}

/// JSON Merge Patch (RFC 7396).
fn patch(target: &mut Value, with: Value) {
    let Value::Object(changes) = with else {
        *target = with;
        return;
    };
    if !target.is_object() {
        *target = json!({});
    }
    let Value::Object(fields) = target else { return };
    for (name, change) in changes {
        if change.is_null() {
            fields.remove(&name);
        } else {
            patch(fields.entry(name).or_insert(Value::Null), change);
        }
    }
}

#[cfg(test)]
#[path = "resource_tests.rs"]
mod tests;
