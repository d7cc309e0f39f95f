//! gRPC servers and a client that checks every kind of call: grpcio, in Python.

use super::web::PYTHON;
use super::{START_TIMEOUT, listening};
use crate::command;
use crate::process::{Process, patience};
use crate::topology::{Family, Topology, end, server_address};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// The servers' port.
pub const GRPC_PORT: u16 = 50_051;
/// The servers that run one, by number. Each names itself in the trailer `server`: `server1`, `server2`.
pub const GRPC_SERVERS: [usize; 2] = [1, 2];

/// Starts the servers; over TLS with the chain and key in this file.
pub fn start(topology: &Topology, tls: Option<&Path>) -> Result<Vec<Process>> {
    let script = script(topology)?;
    let server = |number: usize| {
        let namespace = &topology.servers[number - 1];
        let mut python = namespace.command(PYTHON);
        python.arg(&script).arg("serve").arg(end(server_address(Family::V4, number), GRPC_PORT));
        python.arg(format!("server{number}")).args(tls);
        let mut process = namespace.start(python, &topology.scratch.file(format!("grpc-{number}.log")))?;
        process
            .wait_until(patience(START_TIMEOUT), || listening(namespace.name(), &[GRPC_PORT]))
            .with_context(|| format!("the gRPC server does not listen on server{number}"))?;
        Ok(process)
    };
    GRPC_SERVERS.into_iter().map(server).collect()
}

/// A group of a service with these servers, and the route of their calls. `more` goes into the group's table.
pub fn tables(more: &str) -> String {
    let backends = GRPC_SERVERS.map(|number| format!("{:?}", end(server_address(Family::V4, number), GRPC_PORT)));
    format!(
        "[[service.group]]\nname = \"cart\"\nbackend_protocol = \"h2\"\nbackends = [{}]\n{more}\
         health = {{ check = \"grpc\", interval = \"200ms\", timeout = \"200ms\" }}\n\
         [[service.route]]\npath_prefix = \"/shop.Cart/\"\ngroup = \"cart\"\n",
        backends.join(", ")
    )
}

/// Makes every kind of call to `target` and, if all are right, `calls` more of one channel: which server answered how often,
/// as `server1=20 server2=20`. Over TLS with this CA and name.
pub fn ask(topology: &Topology, target: &str, calls: usize, tls: Option<(&Path, &str)>) -> Result<String> {
    let mut python = topology.client.command(PYTHON);
    python.arg(script(topology)?).args(["ask", target]).arg(calls.to_string());
    if let Some((certificate, name)) = tls {
        python.arg(certificate).arg(name);
    }
    Ok(command::output(&mut python)?.trim().to_owned())
}

/// [`ask`] over TLS, with this value of the field `authorization`.
pub fn ask_with(topology: &Topology, target: &str, calls: usize, tls: (&Path, &str), value: &str) -> Result<String> {
    let mut python = topology.client.command(PYTHON);
    python.arg(script(topology)?).args(["ask", target]).arg(calls.to_string()).arg(tls.0).args([tls.1, value]);
    Ok(command::output(&mut python)?.trim().to_owned())
}

/// The name of the code that a call to `target` over TLS ends with, with this CA and name.
pub fn code(topology: &Topology, target: &str, tls: (&Path, &str)) -> Result<String> {
    let mut python = topology.client.command(PYTHON);
    python.arg(script(topology)?).args(["code", target]).arg(tls.0).arg(tls.1);
    Ok(command::output(&mut python)?.trim().to_owned())
}

fn script(topology: &Topology) -> Result<PathBuf> {
    topology.scratch.write("grpc_calls.py", include_str!("grpc_calls.py"))
}
