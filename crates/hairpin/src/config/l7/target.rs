//! The targets of routes: groups of backends, by name and number.

use super::super::nearest;
use super::super::reader::TomlTable;
use super::bounded;
use hairpin_core::l7::config::Group;
use hairpin_diagnostics::{At, described};

/// The name by which routes call the service's own backends.
pub(in super::super) const OWN: &str = "own";
/// Groups of one route at most.
pub(crate) const SHARES_MAX: usize = 64;

/// The groups of a service.
pub(in super::super) struct Targets {
    /// Its name.
    pub(in super::super) service: String,
    /// Its number.
    pub(in super::super) number: Group,
    /// Whether it has backends of its own.
    pub(in super::super) has_own: bool,
    /// Its groups' names, in the order of their numbers, which follow the service's.
    pub(in super::super) groups: Vec<At<String>>,
}

impl Targets {
    /// The service's own backends, if it has any.
    pub(super) fn own(&self) -> Option<Box<[(Group, u16)]>> {
        self.has_own.then(|| Box::from([(self.number, 1)]))
    }

    /// The destination of a route that neither redirects nor replies. `None`: something is wrong and has been reported.
    pub(super) fn of(&self, route: &TomlTable<'_>) -> Option<Box<[(Group, u16)]>> {
        if route.has("groups") {
            return self.shares(route);
        }
        if route.has("group") {
            return Some(Box::from([(self.one(route)?, 1)]));
        }
        let own = self.own();
        if own.is_none() {
            let what = format!("the route leads nowhere: service \"{}\" has no backends of its own", self.service);
            route.error(&route.span, what, "say where: group = \"...\"");
        }
        own
    }

    /// The group that a table's `group` names. `None`: something is wrong and has been reported.
    pub(super) fn one(&self, table: &TomlTable<'_>) -> Option<Group> {
        let name = table.name("group")?;
        self.named(table, &name.span, &name.value)
    }

    fn shares(&self, route: &TomlTable<'_>) -> Option<Box<[(Group, u16)]>> {
        let entries = route.entries("groups");
        bounded(route, "groups", entries.len(), SHARES_MAX);
        let mut shares = Vec::new();
        for (name, value) in &entries {
            let number = value.get_ref().as_integer();
            let share = number.and_then(|number| u16::from_str_radix(number.as_str(), number.radix()).ok());
            let Some(share) = share.filter(|share| *share > 0) else {
                let what = format!("the share of \"{}\" is {}", name.value, described(value.get_ref()));
                route.error(&value.span(), what, "use 1 to 65535, or leave the group out");
                continue;
            };
            shares.extend(self.named(route, &name.span, &name.value).map(|group| (group, share)));
        }
        if entries.is_empty() && route.given("groups").is_some_and(|value| value.get_ref().as_table().is_some()) {
            route.error(
                &route.span_of("groups"),
                "`groups` names none",
                "write it so: groups = { own = 9, canary = 1 }",
            );
        }
        (!shares.is_empty()).then(|| shares.into())
    }

    fn named(&self, route: &TomlTable<'_>, at: &std::ops::Range<usize>, name: &str) -> Option<Group> {
        if name == OWN {
            if !self.has_own && !route.is_in_parts() {
                let what = format!("service \"{}\" has no backends of its own", self.service);
                route.error(at, what, "give it some, or lead to a group");
            }
            return Some(self.number);
        }
        if let Some(position) = self.groups.iter().position(|group| group.value == name) {
            return Some(self.number.saturating_add(position as u16 + 1));
        }
        if route.is_in_parts() {
            return None;
        }
        let names: Vec<&str> = self.groups.iter().map(|group| &*group.value).collect();
        let remedy = match nearest(name, &names) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None if names.is_empty() => "add it: [[service.group]]".to_string(),
            None => format!("there are \"{}\"", names.join("\", \"")),
        };
        route.error(at, format!("service \"{}\" has no group \"{name}\"", self.service), remedy);
        None
    }

    /// Warns of groups that are none of those used; of none if a route is wrong, which may have been meant to lead there.
    pub(super) fn warn_unused(&self, service: &TomlTable<'_>, used: Option<&[Group]>) {
        let Some(used) = used else { return };
        for (position, (number, name)) in (self.number.saturating_add(1)..).zip(&self.groups).enumerate() {
            let is_double = self.groups[..position].iter().any(|earlier| earlier.value == name.value);
            if !used.contains(&number) && !is_double {
                let what = format!("no route leads to group \"{}\"", name.value);
                service.warning(&name.span, what, "add one, or leave the group out");
            }
        }
    }
}
