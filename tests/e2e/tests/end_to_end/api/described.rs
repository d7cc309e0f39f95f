//! The API beside its own description: requests that schemathesis makes of it.

use super::Fixture;
use crate::lane;
use anyhow::{Result, ensure};
use hairpin_e2e::command;

/// Requests of each operation.
const EXAMPLES: &str = "25";

/// schemathesis speaks TCP alone: socat passes its bytes on to the Unix socket.
pub(super) fn schemathesis() -> Result<()> {
    const HOOKS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schemathesis/hooks.py");
    const SETTINGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/schemathesis/schemathesis.toml");
    const URL: &str = "http://127.0.0.1:9999";
    let Some(program) = std::env::var_os("HAIRPIN_SCHEMATHESIS") else {
        lane::skip("HAIRPIN_SCHEMATHESIS does not name schemathesis: make test-api installs it");
        return Ok(());
    };
    let fixture = Fixture::new()?;
    let topology = &fixture.topology;
    let mut socat = topology.balancer.command("socat");
    let socket = fixture.hairpin.socket().with_extension("api.sock");
    socat.args(["TCP-LISTEN:9999,bind=127.0.0.1,fork,reuseaddr", &format!("UNIX-CONNECT:{}", socket.display())]);
    let _socat = topology.balancer.start(socat, &topology.scratch.file("socat"))?;
    let mut run = topology.balancer.command(&program.to_string_lossy());
    run.current_dir(topology.scratch.file("")).env("SCHEMATHESIS_HOOKS", HOOKS);
    run.args([
        "--config-file",
        SETTINGS,
        "run",
        &format!("{URL}/openapi.json"),
        "--url",
        URL,
        "--seed",
        "29",
        "--no-color",
    ]);
    // The schema of a file does not compare one field with another, so what fits it may still be refused.
    run.args(["--checks", "all", "--exclude-checks", "positive_data_acceptance", "--max-examples", EXAMPLES]);
    let said = command::output(&mut run)?;
    println!("{said}");
    let status = fixture.status()?;
    ensure!(status["answers_total"]["200"].as_u64() > Some(100), "{status}\n{said}");
    ensure!(status["writes_total"].as_u64() > Some(0), "no write was taken: {status}\n{said}");
    fixture.tell(&["reload", "--discard"])?;
    Ok(())
}
