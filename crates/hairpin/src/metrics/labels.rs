//! Names that tell services and backends apart.
//!
//! Names are unique in a configuration, but not across a reload: a backend that drains may have the name of the one
//! that has replaced it. Two series with the same labels would cost the whole scrape.

use crate::status::Status;
use std::collections::HashSet;

/// Label values of everything in a status, in its order.
#[derive(Debug)]
pub(super) struct Names {
    /// Labels of each service and its backends.
    pub(super) services: Vec<(String, Vec<String>)>,
}

impl Names {
    pub(super) fn of(status: &Status) -> Names {
        let services = status.services.iter().map(|service| (&*service.name, &*service.listen));
        let backends = |service: &crate::status::ServiceStatus| {
            distinct(service.backends.iter().map(|backend| (&*backend.name, &*backend.address)))
        };
        Names { services: distinct(services).into_iter().zip(status.services.iter().map(backends)).collect() }
    }
}

/// Each name as it is, or if an earlier one has it: with the address behind it, and if need be a number.
fn distinct<'a>(named: impl Iterator<Item = (&'a str, &'a str)>) -> Vec<String> {
    let mut taken = HashSet::new();
    let mut distinct = Vec::new();
    for (name, address) in named {
        let mut label = name.to_string();
        let mut number = 1;
        while !taken.insert(label.clone()) {
            label = if number == 1 { format!("{name} ({address})") } else { format!("{name} ({address}) {number}") };
            number += 1;
        }
        distinct.push(label);
    }
    distinct
}

#[cfg(test)]
mod tests {
    use super::distinct;

    #[test]
    fn labels_are_distinct_and_the_first_keeps_its_name() {
        let named = [("a", "1"), ("b", "2"), ("a", "3"), ("a", "3"), ("a (3)", "4"), ("", "5"), ("", "6")];
        assert_eq!(distinct(named.into_iter()), ["a", "b", "a (3)", "a (3) 2", "a (3) (4)", "", " (6)"]);
    }
}
