//! `hairpin monitor`.

use super::target::InstanceTarget;
use super::{Output, print};
use crate::{json, render, terminal};
use anyhow::{Result, bail};

/// Prints the monitors of an instance, or the one called `name`.
pub(super) fn monitor(target: &InstanceTarget, name: Option<&str>, output: Output) -> Result<()> {
    let mut monitors = target.connect()?.status()?.monitors;
    let names: Vec<String> = monitors.iter().map(|monitor| monitor.name.clone()).collect();
    monitors.retain(|monitor| name.is_none_or(|name| monitor.name == name));
    if monitors.is_empty() {
        match name {
            Some(name) if !names.is_empty() => bail!("there is no monitor \"{name}\"; there are: {}", names.join(", ")),
            _ => bail!("the instance has no monitor; docs/guide/monitor.md says how to have one"),
        }
    }
    match output {
        Output::Table => print(&render::monitors(&monitors, terminal::width())),
        Output::Json => {
            let lines = monitors.iter().map(json::line).collect::<serde_json::Result<Vec<String>>>()?;
            print(&lines.concat())
        }
    }
}
