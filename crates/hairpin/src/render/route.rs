//! What would become of a request.

use super::{add, aligned, fitted, percent, trimmed, within};
use crate::control::{RouteAnswer, RouteView, RuleView};
use std::fmt::Write;

/// Columns of the groups that a narrow terminal goes without, the first one first.
const SPARED: [usize; 2] = [1, 3];

/// What each service would do with the request, on lines of at most `width` columns if that is given.
pub fn routes(answer: &RouteAnswer, width: Option<usize>) -> String {
    let views: Vec<String> = answer.services.iter().map(|view| route(view, width)).collect();
    within(views.join("\n"), width)
}

fn route(view: &RouteView, width: Option<usize>) -> String {
    let mut out = format!("service  {} ({})\n", view.service, view.listen);
    let _ = match &view.access {
        Some(rule) => writeln!(
            out,
            "access   rule {} {}: {}",
            rule.number,
            if rule.denies { "denies it" } else { "lets it pass" },
            rule.written
        ),
        None => writeln!(out, "access   no rule applies: it passes"),
    };
    let _ = match &view.route {
        Some(RuleView { number, written, .. }) => writeln!(out, "route    {number}: {written}"),
        None if view.outcome == "forward" => writeln!(out, "route    none: the service's own backends"),
        None => writeln!(out, "route    none"),
    };
    if let Some(prefix) = &view.replaced_prefix {
        let _ = writeln!(out, "path     its prefix becomes {prefix}");
    }
    if let Some(cookie) = &view.sticky {
        let _ = writeln!(out, "sticky   the cookie {cookie} names the backend, if that takes requests");
    }
    out += &outcome(view, width);
    out
}

fn outcome(view: &RouteView, width: Option<usize>) -> String {
    let status = view.status.unwrap_or_default();
    match &*view.outcome {
        "forward" => groups(view, width),
        "redirect" => match &view.location {
            Some(location) => format!("answer   {status}, to {location}\n"),
            None => format!("answer   {status}, without a target: the request names no host\n"),
        },
        "reply" => format!("answer   {status}, by the configuration\n"),
        _ => format!("refused  {status}: {}\n", view.reason),
    }
}

/// The groups that it may go to, and their backends.
fn groups(view: &RouteView, width: Option<usize>) -> String {
    let has_health = view.groups.iter().flat_map(|group| &group.backends).any(|backend| !backend.health.is_empty());
    let mut words = vec!["GROUP", "BALANCE", "BACKEND", "ADDRESS", "STATE"];
    words.extend(has_health.then_some("HEALTH"));
    let mut table = aligned(&words, &["SHARE", "WEIGHT"]);
    for group in &view.groups {
        for backend in &group.backends {
            let mut words = vec![&*group.name, &*group.balance, &*backend.name, &*backend.address, &*backend.state];
            words.extend(has_health.then_some(&*backend.health));
            add(&mut table, &words, &[percent(group.share), backend.weight.to_string()]);
        }
        if group.backends.is_empty() {
            let mut words = vec![&*group.name, &*group.balance, "none", "", ""];
            words.extend(has_health.then_some(""));
            add(&mut table, &words, &[percent(group.share), String::new()]);
        }
    }
    format!("\n{}", trimmed(&fitted(table, width, &SPARED).to_string()))
}
