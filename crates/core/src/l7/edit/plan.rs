//! The changes that a service and its route make to a head, together.

use super::super::config::{Field, HeadEdits};
use super::{Meaning, Out};

/// Both changes, in the order in which they act.
pub(super) struct EditPlan<'a> {
    service: &'a HeadEdits,
    route: &'a HeadEdits,
}

impl<'a> EditPlan<'a> {
    pub(super) fn new(service: &'a HeadEdits, route: &'a HeadEdits) -> EditPlan<'a> {
        EditPlan { service, route }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.service.is_empty() && self.route.is_empty()
    }

    /// Whether a field of this name, that was there before, does not stay.
    pub(super) fn drops(&self, name: &[u8]) -> bool {
        drops(self.service, name) || drops(self.route, name)
    }

    /// The field that replaces `Host`, if there is one. What is added counts, too: there is no second one.
    pub(super) fn host(&self) -> Option<&'a Field> {
        let all = |edits: &'a HeadEdits| edits.set.iter().chain(&*edits.add);
        all(self.service).chain(all(self.route)).rfind(|field| is_host(field))
    }

    /// Writes the fields that are set and added, except `Host` and those whose variables are all empty.
    pub(super) fn write(&self, out: &mut Out<'_>, meaning: &Meaning<'_>) {
        let mut put = |field: &Field| {
            if !is_host(field) {
                meaning.edit(out, field);
            }
        };
        let stays = |field: &&Field| !drops(self.route, &field.name);
        last(&self.service.set).filter(stays).for_each(&mut put);
        self.service.add.iter().filter(stays).for_each(&mut put);
        last(&self.route.set).for_each(&mut put);
        self.route.add.iter().for_each(&mut put);
    }
}

/// The last of several fields of one name.
fn last(fields: &[Field]) -> impl Iterator<Item = &Field> {
    fields
        .iter()
        .enumerate()
        .filter(|(at, field)| !fields[at + 1..].iter().any(|later| is_same(&later.name, &field.name)))
        .map(|(_, field)| field)
}

fn is_host(field: &Field) -> bool {
    field.name.eq_ignore_ascii_case(b"host")
}

fn drops(edits: &HeadEdits, name: &[u8]) -> bool {
    edits.set.iter().any(|field| is_same(&field.name, name))
        || edits.remove.iter().any(|removed| is_same(removed, name))
}

/// Whether two names are one to readers that make variables of them, as CGI and its heirs do: what is no letter or digit
/// becomes `_`, also `.` and others that a token may have.
pub(super) fn is_same(one: &[u8], other: &[u8]) -> bool {
    let plain = |byte: u8| if byte.is_ascii_alphanumeric() { byte.to_ascii_lowercase() } else { b'_' };
    one.len() == other.len() && one.iter().zip(other).all(|(&one, &other)| plain(one) == plain(other))
}
