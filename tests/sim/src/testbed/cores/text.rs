//! A profile as a file.

use super::{CoreProfile, Cost, IterationCost};
use std::fmt::Write;

impl CoreProfile {
    /// The profile as [`CoreProfile::parse`] reads it, times with two decimals.
    pub fn text(&self) -> String {
        let mut text = format!("name = {}\nsource = {}\n", quoted(&self.name), long(&self.source));
        cost(&mut text, "poll", &self.poll);
        iteration(&mut text, "io", &self.io);
        iteration(&mut text, "forwarder", &self.forwarder);
        for method in &self.method {
            let name = quoted(method.table.name());
            // Writing to a string cannot fail.
            let _ = write!(text, "\n[[method]]\ntable = {name}\nsource = {}\nknown = [\n", quoted(&method.source));
            for point in &method.known {
                let (flows, burst, packet) = (point.flows, point.burst_ns, point.packet_ns);
                let _ = writeln!(text, "    {{ flows = {flows}, burst_ns = {burst:.2}, packet_ns = {packet:.2} }},");
            }
            text.push_str("]\n");
            if !method.new.is_empty() {
                text.push_str("new = [\n");
                for point in &method.new {
                    let (flows, each, iteration) = (point.flows, point.ns, point.iteration_ns);
                    let _ = writeln!(text, "    {{ flows = {flows}, ns = {each:.2}, iteration_ns = {iteration:.2} }},");
                }
                text.push_str("]\n");
            }
        }
        cost(&mut text, "end", &self.end);
        cost(&mut text, "rule", &self.rule);
        if let Some(mark) = &self.mark {
            let _ = write!(text, "\n[mark]\nsaves = {}\nsource = {}\n", mark.saves, quoted(&mark.source));
        }
        text
    }
}

fn cost(text: &mut String, name: &str, cost: &Cost) {
    let _ = write!(text, "\n[{name}]\nns = {:.2}\nsource = {}\n", cost.ns, quoted(&cost.source));
}

fn iteration(text: &mut String, name: &str, iteration: &IterationCost) {
    let (burst, packet, source) = (iteration.burst_ns, iteration.packet_ns, quoted(&iteration.source));
    let _ = write!(text, "\n[{name}]\nburst_ns = {burst:.2}\npacket_ns = {packet:.2}\nsource = {source}\n");
}

/// As a basic string of TOML.
fn quoted(words: &str) -> String {
    toml::Value::String(words.replace('\n', " ")).to_string()
}

/// As a string of several lines, where it has such.
fn long(words: &str) -> String {
    if words.contains('\n') && !words.contains("\"\"\"") && !words.contains('\\') && !words.ends_with('"') {
        format!("\"\"\"\n{words}\"\"\"")
    } else {
        quoted(words)
    }
}
