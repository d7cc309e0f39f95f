//! A client, two nodes and two web servers on switches, with the addresses that the example files have.

use super::{PATIENCE, wait_until};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::namespace::{CONFIGURATION, Namespace, Scratch, instance_of, unique_prefix};
use hairpin_e2e::peer::status::Status;
use hairpin_e2e::peer::{control, hairpin_program, status_table};
use hairpin_e2e::process::Process;
use hairpin_e2e::remnants::Remnants;
use hairpin_e2e::servers::Servers;
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::SYSCTLS;
use nix::sys::signal::Signal;
use std::cell::Cell;
use std::fmt::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

/// A namespace full of bridges: the interfaces that are plugged into one bridge are in one network.
pub(super) struct Switch {
    namespace: Namespace,
    ports: Cell<u32>,
}

/// One end of a cable into the switch: the interface, which bridge, its addresses, routes (as `ip route add` wants them).
pub(super) struct Port<'a> {
    pub(super) interface: &'a str,
    pub(super) bridge: &'a str,
    pub(super) addresses: Vec<String>,
    pub(super) routes: Vec<&'a str>,
}

impl Switch {
    fn new(prefix: &str, bridges: &[&str]) -> Result<Switch> {
        let namespace = Namespace::create(&format!("{prefix}-switch"))?;
        for bridge in bridges {
            namespace
                .script(&format!("ip link add {bridge} type bridge mcast_snooping 0\nip link set dev {bridge} up\n"))?;
        }
        Ok(Switch { namespace, ports: Cell::new(0) })
    }

    pub(super) fn plug(&self, namespace: &Namespace, port: &Port<'_>) -> Result<()> {
        let number = self.ports.replace(self.ports.get() + 1);
        let (interface, switch) = (port.interface, self.namespace.name());
        let mut lines = format!("ip link add {interface} type veth peer name port{number} netns {switch}\n");
        for address in &port.addresses {
            writeln!(lines, "ip address add {address} dev {interface}")?;
        }
        writeln!(lines, "ip link set dev {interface} up")?;
        for route in &port.routes {
            writeln!(lines, "ip {} route add {route}", if route.contains("::") { "-6" } else { "-4" })?;
        }
        namespace.script(&lines)?;
        self.namespace.script(&format!("ip link set dev port{number} master {} up\n", port.bridge))?;
        Ok(())
    }
}

/// A node: its Hairpin, and the daemons that speak to the network for it.
pub(super) struct Node {
    pub(super) daemons: Vec<Process>,
    hairpin: Process,
    _remnants: Remnants,
    instance: String,
    pub(super) namespace: Namespace,
    pub(super) scratch: Scratch,
}

impl Node {
    /// Starts Hairpin with an example's configuration.
    fn start(namespace: Namespace, scratch: Scratch, prefix: &str, example: &str) -> Result<Node> {
        let instance = instance_of(prefix);
        let directory = scratch.file("");
        // An example cannot know that it is not the only one on this machine.
        let text = format!("instance = {instance:?}\n{example}\n[control]\ndirectory = {directory:?}\n");
        let file = scratch.write(CONFIGURATION, &text)?;
        let remnants = Remnants::of(&instance);
        let hairpin = run(&namespace, &file, &scratch)?;
        let mut node = Node { daemons: Vec::new(), hairpin, _remnants: remnants, instance, namespace, scratch };
        node.await_status()?;
        // The commands of scripts, for this instance.
        let socket = node.socket();
        node.wrap("hairpin", &format!("{} \"$@\" --socket {}", hairpin_program()?.display(), socket.display()))?;
        Ok(node)
    }

    /// Makes the program `name` of the directory of this node.
    pub(super) fn wrap(&self, name: &str, command: &str) -> Result<PathBuf> {
        let path = self.scratch.write(name, &format!("#!/bin/sh\nexec {command}\n"))?;
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755))?;
        Ok(path)
    }

    fn socket(&self) -> PathBuf {
        self.scratch.file(format!("{}.sock", self.instance))
    }

    pub(super) fn status(&self) -> Result<Status> {
        control::status(&self.socket())
    }

    fn await_status(&mut self) -> Result<()> {
        let (socket, id) = (self.socket(), self.hairpin.id());
        self.hairpin.wait_until(PATIENCE, || control::status(&socket).is_ok_and(|status| status.pid == id))
    }

    /// Ends Hairpin, and leaves what it has in the kernel.
    pub(super) fn end_hairpin(&mut self, signal: Signal) -> Result<()> {
        self.hairpin.signal(signal);
        self.hairpin.wait(PATIENCE)?;
        Ok(())
    }

    /// Starts it again.
    pub(super) fn start_hairpin(&mut self) -> Result<()> {
        self.hairpin = run(&self.namespace, &self.scratch.file(CONFIGURATION), &self.scratch)?;
        self.await_status()
    }

    /// Pulls both cables, or puts them in again.
    pub(super) fn cables(&self, state: &str) -> Result<()> {
        self.namespace.script(&format!("ip link set dev eth0 {state}\nip link set dev eth1 {state}\n"))?;
        Ok(())
    }

    /// Starts a daemon in it, whose output goes to a file with its name.
    pub(super) fn daemon(&mut self, program: &str, arguments: &[String]) -> Result<()> {
        let mut command = self.namespace.command(program);
        command.args(arguments);
        let place = self.scratch.file("");
        command.env("PATH", format!("{}:{}", place.display(), std::env::var("PATH").unwrap_or_default()));
        let name = program.rsplit('/').next().unwrap_or(program);
        let daemon = self.namespace.start(command, &self.scratch.file(format!("{name}.log")))?;
        self.daemons.push(daemon);
        Ok(())
    }

    /// The output of its daemons and its Hairpin, and its status.
    pub(super) fn logs(&self) -> String {
        let said = |process: &Process| format!("{}:\n{}\n", process.line(), process.log());
        let status = status_table(&self.socket()).unwrap_or_else(|error| format!("no status: {error:#}\n"));
        self.daemons.iter().chain([&self.hairpin]).map(said).chain([status]).collect()
    }

    /// All connections so far, of the service.
    pub(super) fn connections_total(&self, service: &str) -> Result<u64> {
        let status = self.status()?;
        Ok(status.service(service).with_context(|| format!("no service {service}"))?.connections_total)
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // SIGTERM would leave everything for a successor.
        if let Ok(None) = self.hairpin.status() {
            self.hairpin.signal(Signal::SIGINT);
            if let Err(error) = self.hairpin.wait(PATIENCE) {
                eprintln!("{error:#}");
            }
        }
    }
}

fn run(namespace: &Namespace, file: &std::path::Path, scratch: &Scratch) -> Result<Process> {
    let mut command = namespace.command(&hairpin_program()?.to_string_lossy());
    command.arg("run").arg("-c").arg(file);
    let log = (0..).map(|number| scratch.file(format!("hairpin-{number}.log"))).find(|path| !path.exists());
    namespace.start(command, &log.context("a name for the log")?)
}

/// The surroundings of the nodes of a set-up.
pub(super) struct Plan<'a> {
    /// Hairpin's configuration.
    pub(super) configuration: &'a str,
    /// The client's port.
    pub(super) client: Port<'a>,
    /// The ports of a node, by its number: 1 or 2.
    pub(super) node: fn(usize) -> Vec<Port<'static>>,
    /// The port of a server, by its number.
    pub(super) server: fn(usize) -> Port<'static>,
}

/// All of it. (Dropped in this order.)
pub(super) struct Network {
    pub(super) nodes: Vec<Node>,
    servers: Servers,
    _servers: Vec<Namespace>,
    pub(super) client: Namespace,
    pub(super) switch: Switch,
    pub(super) scratch: Scratch,
    pub(super) prefix: String,
}

impl Network {
    pub(super) fn new(plan: &Plan<'_>) -> Result<Network> {
        let prefix = unique_prefix();
        let switch = Switch::new(&prefix, &["clients", "outside", "inside", "servers"])?;
        let scratch = Scratch::create(&prefix)?;
        let host = |role: &str, ports: &[Port<'_>]| -> Result<Namespace> {
            let namespace = Namespace::create(&format!("{prefix}-{role}"))?;
            namespace.script(SYSCTLS)?;
            ports.iter().try_for_each(|port| switch.plug(&namespace, port))?;
            Ok(namespace)
        };
        let client = host("client", std::slice::from_ref(&plan.client))?;
        let servers: Vec<Namespace> =
            (1..=2).map(|number| host(&format!("server{number}"), &[(plan.server)(number)])).collect::<Result<_>>()?;
        let running = Servers::start_in(&servers, &scratch)?;
        let mut nodes = Vec::new();
        for number in 1..=2 {
            let namespace = host(&format!("node{number}"), &(plan.node)(number))?;
            let own = unique_prefix();
            nodes.push(Node::start(namespace, Scratch::create(&own)?, &own, plan.configuration)?);
        }
        Ok(Network { nodes, servers: running, _servers: servers, client, switch, scratch, prefix })
    }

    /// Waits until every node has found every backend well.
    pub(super) fn await_health(&mut self) -> Result<()> {
        wait_until("all backends are up at both nodes", || {
            self.servers.check()?;
            let well = |node: &Node| -> Result<bool> {
                let status = node.status()?;
                let mut backends = status.services.iter().flat_map(|service| &service.backends);
                Ok(backends.all(|backend| backend.health.state == "up" || backend.health.state == "unchecked"))
            };
            Ok(well(&self.nodes[0])? && well(&self.nodes[1])?)
        })
    }

    /// Waits until the client can open connections to all of these ends.
    pub(super) fn await_service(&self, ends: &[SocketAddr]) -> Result<()> {
        let ends = ends.to_vec();
        wait_until("the client can connect", || {
            let ends = ends.clone();
            let open = |end: &SocketAddr| TcpStream::connect_timeout(end, Duration::from_secs(2)).is_ok();
            inside::run(&self.client, move || Ok(ends.iter().all(open)))
        })
    }

    /// Runs a test's body; what the nodes have said goes with an error.
    pub(super) fn judge(&mut self, result: Result<()>) -> Result<()> {
        let result = result.and_then(|()| self.servers.check());
        result.map_err(|error| {
            let logs: String = self.nodes.iter().map(Node::logs).collect();
            // keepalived says each announcement of an address.
            let lines: Vec<&str> = logs.lines().filter(|line| !line.contains(": Sending ")).collect();
            error.context(lines[lines.len().saturating_sub(200)..].join("\n"))
        })
    }
}

/// The text with `from` replaced, which has to be there.
pub(super) fn replace(text: &str, from: &str, to: &str) -> Result<String> {
    ensure!(text.contains(from), "the example no longer has {from:?}");
    Ok(text.replace(from, to))
}
