//! Certificates by the API: uploaded, served, replaced, removed.

use super::Fixture;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::servers::HTTP_PORT;
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::topology::{Family, vip};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

const NAME: &str = "shop.test";
const PATH: &str = "/v1/certificates/shop";

/// A certificate that signs itself, and its key.
fn pair(fixture: &Fixture, file: &str) -> Result<Value> {
    certificate(&fixture.topology, file, &[NAME])?;
    let read = |end: &str| std::fs::read_to_string(fixture.topology.scratch.file(format!("{file}.{end}")));
    Ok(json!({ "chain": read("crt")?, "key": read("key")? }))
}

/// Whether the service serves this certificate, whose chain is the only root that curl knows.
fn serves(fixture: &Fixture, file: &str) -> Result<bool> {
    let mut curl = fixture.topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--max-time", "30", "--output", "/dev/null", "--write-out", "%{http_code}"]);
    curl.args(["--resolve", &format!("{NAME}:443:{}", vip(Family::V4)), "--cacert"]);
    curl.arg(fixture.topology.scratch.file(format!("{file}.crt"))).arg(format!("https://{NAME}/1k"));
    match command::output(&mut curl) {
        Ok(code) => Ok(code == "200"),
        Err(error) if format!("{error:#}").contains("certificate") => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn served() -> Result<()> {
    let fixture = Fixture::new()?;
    let (one, two) = (pair(&fixture, "one.pem")?, pair(&fixture, "two.pem")?);
    let mixed = json!({ "chain": one["chain"], "key": two["key"] });
    let refused = fixture.ask("PUT", PATH, None, Some(&mixed))?;
    ensure!(refused.status == 400 && refused.body["detail"].as_str().is_some_and(|text| text.contains("does not fit")));
    ensure!(fixture.ask("GET", PATH, None, None)?.status == 404, "it was taken");

    let first = fixture.ask("PUT", PATH, None, Some(&one))?;
    ensure!(
        first.status == 201 && first.body["names"] == json!([NAME]) && first.version == first.body["version"],
        "{first:?}"
    );
    let file = first.body["file"].as_str().context("no file")?.to_owned();
    ensure!(std::fs::metadata(&file)?.permissions().mode() & 0o777 == 0o600, "{file}");
    let service = json!({ "listen": format!("{}:443/https", vip(Family::V4)),
        "backends": [format!("10.0.1.2:{HTTP_PORT}")], "https": { "certificates": [file] } });
    let written = fixture.write("PUT", "/v1/services/shop", Some(&service))?;
    ensure!(written.status == 201 && serves(&fixture, "one.pem")?, "{written:?}");

    // Of two writers of one version, the second one is refused.
    for (version, status) in
        [(None, 428), (Some("0123"), 412), (Some(&*first.version), 200), (Some(&*first.version), 412)]
    {
        let answer = fixture.ask("PUT", PATH, version, Some(&two))?;
        ensure!(answer.status == status, "{version:?}: {answer:?}");
        if status == 200 {
            ensure!(
                answer.body["services"] == json!(["service shop"]) && answer.body["warnings"] == json!([]),
                "{answer:?}"
            );
            ensure!(serves(&fixture, "two.pem")? && !serves(&fixture, "one.pem")?, "the old one is served");
        }
    }
    gone(&fixture, &file)?;
    secret(&fixture, &[one, two])
}

/// A certificate goes when nothing uses it.
fn gone(fixture: &Fixture, file: &str) -> Result<()> {
    let version = fixture.ask("GET", PATH, None, None)?.version;
    let used = fixture.ask("DELETE", PATH, Some(&version), None)?;
    ensure!(
        used.status == 409 && used.body["detail"].as_str().is_some_and(|text| text.contains("service shop")),
        "{used:?}"
    );
    let own = certificate(&fixture.topology, "own.pem", &[NAME])?;
    ensure!(fixture.write("PUT", "/v1/services/shop/certificates", Some(&json!([own])))?.status == 200);
    ensure!(serves(fixture, "own.pem")?, "the configuration's own certificate is not served");
    ensure!(fixture.ask("DELETE", PATH, None, None)?.status == 428 && Path::new(file).exists());
    let deleted = fixture.ask("DELETE", PATH, Some(&version), None)?;
    ensure!(deleted.status == 200 && !Path::new(file).exists(), "{deleted:?}");
    ensure!(fixture.ask("GET", "/v1/certificates", None, None)?.body == json!([]));
    Ok(())
}

/// No key is in anything that can be read.
fn secret(fixture: &Fixture, pairs: &[Value]) -> Result<()> {
    let all = [
        fixture.hairpin.logs(),
        fixture.tell(&["config", "--running"])?,
        fixture.tell(&["status", "-o", "json"])?,
        fixture.tell(&["events", "-o", "json"])?,
    ];
    for pair in pairs {
        let key = pair["key"].as_str().context("no key")?;
        let part = key.lines().find(|line| line.len() > 40).context("a short key")?;
        ensure!(all.iter().all(|text| !text.contains(part)), "a key is in {all:?}");
    }
    ensure!(all[0].contains("PUT /v1/certificates/shop: version none -> "), "{}", all[0]);
    Ok(())
}
