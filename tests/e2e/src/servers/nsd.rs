//! NSD, an authoritative name server (nlnetlabs.nl/nsd), in the client's namespace, with one zone.

use super::{START_TIMEOUT, listening};
use crate::process::{Process, patience};
use crate::topology::{Family, Topology, client_address};
use anyhow::{Context, Result};
use nix::sys::signal::Signal;

/// Its zone.
pub const ZONE: &str = "app.internal";
const PORT: u16 = 53;

/// A running NSD.
#[derive(Debug)]
pub struct Nsd {
    process: Process,
    serial: u32,
}

/// Its address, as a configuration names it.
pub fn address() -> String {
    client_address(Family::V4).to_string()
}

impl Nsd {
    /// Starts it with these records, a line each, such as `web 1 IN A 10.0.1.2`.
    pub fn start(topology: &Topology, records: &str) -> Result<Nsd> {
        write_zone(topology, records, 1)?;
        let directory = topology.scratch.file("nsd");
        let place = directory.display();
        let config = format!(
            "server:\n ip-address: {}@{PORT}\n username: \"\"\n chroot: \"\"\n pidfile: \"{place}/pid\"\n \
             zonesdir: \"{place}\"\n database: \"\"\n zonelistfile: \"{place}/zones\"\n xfrdfile: \"{place}/xfrd\"\n \
             xfrdir: \"{place}\"\n server-count: 1\n rrl-ratelimit: 0\n\
             remote-control:\n control-enable: no\n\
             zone:\n name: \"{ZONE}\"\n zonefile: \"zone\"\n",
            address()
        );
        let config = topology.scratch.write("nsd.conf", &config)?;
        let mut command = topology.client.command("nsd");
        command.arg("-d").arg("-c").arg(config);
        let mut process = topology.client.start(command, &topology.scratch.file("nsd.log"))?;
        process
            .wait_until(patience(START_TIMEOUT), || listening(topology.client.name(), &[PORT]))
            .context("NSD does not listen")?;
        Ok(Nsd { process, serial: 1 })
    }

    /// Serves these records from now on, in the place of those before.
    pub fn serve(&mut self, topology: &Topology, records: &str) -> Result<()> {
        self.serial += 1;
        write_zone(topology, records, self.serial)?;
        self.process.signal(Signal::SIGHUP);
        Ok(())
    }
}

fn write_zone(topology: &Topology, records: &str, serial: u32) -> Result<()> {
    let directory = topology.scratch.file("nsd");
    std::fs::create_dir_all(&directory)?;
    let head = format!(
        "$ORIGIN {ZONE}.\n$TTL 1\n@ IN SOA ns hostmaster {serial} 60 60 60 1\n@ IN NS ns\nns IN A {}\n",
        address()
    );
    // As a whole: it may read the file at any time.
    std::fs::write(directory.join("zone.new"), head + records + "\n")?;
    Ok(std::fs::rename(directory.join("zone.new"), directory.join("zone"))?)
}
