//! The API by TLS: which clients may use it, and what becomes of the others.

use super::{Answer, Fixture, read_answer};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::topology::{Family, Topology, balancer_address, end};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const NAME: &str = "api.test";
const PORT: u16 = 9443;
const PATH: &str = "/v1/services/web/backends/one";
const TOKENS: [&str; 2] = ["f00dfeedf00dfeedf00dfeedf00dfeed", "0badcafe0badcafe0badcafe0badcafe"];
/// Two CAs with a client's certificate each, in the directory `$1`.
const MAKE: &str = "cd \"$1\"
printf '[req]\\ndistinguished_name = n\\n[n]\\n' > bare.cnf
printf 'basicConstraints=CA:FALSE\\nsubjectAltName=DNS:deploy.test\\n' > leaf.ext
ec='-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -config bare.cnf'
for ca in right wrong; do
  openssl req -x509 $ec -days 2 -subj /CN=$ca -addext basicConstraints=critical,CA:TRUE -keyout $ca-ca.key -out $ca-ca.pem
  openssl req $ec -subj \"/CN=$ca client\" -keyout $ca.key -out $ca.csr
  openssl x509 -req -days 2 -in $ca.csr -CA $ca-ca.pem -CAkey $ca-ca.key -CAcreateserial -extfile leaf.ext -out $ca.pem
done";

/// Replaces the file of tokens.
fn write_token(topology: &Topology, token: &str) -> Result<()> {
    let (new, file) =
        (topology.scratch.write("tokens.new", &format!("deploy {token}\n"))?, topology.scratch.file("tokens"));
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o600))?;
    Ok(std::fs::rename(new, file)?)
}

fn fixture() -> Result<Fixture> {
    Fixture::with(|topology| {
        let mut make = Command::new("sh");
        make.args(["-ec", MAKE, "sh"]).arg(topology.scratch.file(""));
        command::output(&mut make)?;
        write_token(topology, TOKENS[0])?;
        let own = certificate(topology, "api.pem", &[NAME])?;
        let [roots, tokens] = ["right-ca.pem", "tokens"].map(|file| topology.scratch.file(file));
        let listen = end(balancer_address(Family::V4), PORT);
        Ok(format!("listen = {listen:?}\ncertificate = {own:?}\nclient_roots = {roots:?}\ntokens = {tokens:?}\n"))
    })
}

/// curl from the client's machine, with these options.
fn curl(fixture: &Fixture, options: &[&str], url: &str) -> Result<String> {
    let topology = &fixture.topology;
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--max-time", "30", "--resolve"]);
    curl.arg(format!("{NAME}:{PORT}:{}", balancer_address(Family::V4)));
    curl.arg("--cacert").arg(topology.scratch.file("api.pem"));
    command::output(curl.args(options).arg(url))
}

fn ask(fixture: &Fixture, options: &[&str], path: &str) -> Result<Answer> {
    let said = ["--write-out", "\n%{http_code} %header{etag}"];
    read_answer(&curl(fixture, &[options, &said].concat(), &format!("https://{NAME}:{PORT}{path}"))?)
}

/// A change of a weight, of the version in force.
fn write(fixture: &Fixture, options: &[&str], weight: u32) -> Result<Answer> {
    let (condition, body) = (format!("If-Match: \"{}\"", fixture.version()?), json!({ "weight": weight }).to_string());
    let more = ["-X", "PATCH", "--header", &condition, "--header", "Content-Type: application/json", "--data", &body];
    ask(fixture, &[options, &more].concat(), PATH)
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}")
}

pub(super) fn known() -> Result<()> {
    let fixture = fixture()?;
    let (right, wrong) = (bearer(TOKENS[0]), bearer(TOKENS[1]));
    let file = |name: &str| fixture.topology.scratch.file(name).display().to_string();
    let [cert, key, wrong_cert, wrong_key] = ["right.pem", "right.key", "wrong.pem", "wrong.key"].map(file);
    let shows = ["--cert", &*cert, "--key", &*key];
    let written = write(&fixture, &["--header", &right], 5)?;
    ensure!(written.status == 200 && written.body["before"] != written.body["version"], "{written:?}");
    let written = write(&fixture, &shows, 6)?;
    ensure!(written.status == 200 && written.version == fixture.version()?, "{written:?}");
    for who in ["token \"deploy\", from 10.0.0.2: PATCH", "certificate \"CN=right client\", DNS:deploy.test, SHA-256 "]
    {
        ensure!(fixture.hairpin.logs().contains(who), "no {who} in {}", fixture.hairpin.logs());
    }

    let version = fixture.version()?;
    for options in [&[][..], &["--header", &wrong], &["--header", "Authorization: Basic YTpi"]] {
        let answer = write(&fixture, options, 7)?;
        ensure!(answer.status == 401 && answer.body["title"] == "the client is not known", "{options:?}: {answer:?}");
        ensure!(ask(&fixture, options, "/openapi.json")?.status == 401, "{options:?}: the description was given");
    }
    let head = curl(&fixture, &["--include", "--header", &wrong], &format!("https://{NAME}:{PORT}/v1/config"))?;
    ensure!(head.contains("Bearer realm=\"hairpin\", error=\"invalid_token\""), "{head}");
    let shown = write(&fixture, &["--cert", &wrong_cert, "--key", &wrong_key, "--header", &right], 8);
    ensure!(shown.is_err(), "another CA's certificate: {shown:?}");
    let old = ask(&fixture, &["--tls-max", "1.2", "--header", &right], "/v1/config");
    ensure!(old.is_err(), "TLS 1.2: {old:?}");
    let clear = curl(&fixture, &["--http1.1", "--header", &right], &format!("http://{NAME}:{PORT}/v1/config"));
    ensure!(!clear.as_ref().is_ok_and(|text| text.contains("service")), "clear text: {clear:?}");
    ensure!(fixture.version()? == version, "a client that is not known changed something");
    refused(&fixture)
}

/// What is counted and told of refused clients, and that no token is anywhere.
fn refused(fixture: &Fixture) -> Result<()> {
    let status = fixture.status()?;
    ensure!(status["serves_tls"] == true && status["listen"] == "10.0.0.1:9443", "{status}");
    ensure!(status["answers_total"]["401"].as_u64() >= Some(7), "{status}");
    ensure!(status["connections_closed_total"]["handshake"].as_u64() >= Some(3), "{status}");
    let logs = fixture.hairpin.logs();
    let told = logs.lines().filter(|line| line.contains(" refused: ")).count();
    ensure!((1..10).contains(&told), "{told} lines about ten clients:\n{logs}");
    let running = fixture.tell(&["config", "--running"])?;
    ensure!(running.contains("tokens = "), "{running}");
    let all = [
        logs,
        running,
        fixture.tell(&["status", "-o", "json"])?,
        fixture.tell(&["events", "-o", "json"])?,
        fixture.ask("GET", "/v1/config", None, None)?.body.to_string(),
    ];
    for (text, token) in all.iter().flat_map(|text| TOKENS.map(|token| (text, token))) {
        ensure!(!text.contains(token), "a token is in {text}");
    }
    Ok(())
}

/// Tokens that change are known at once after a reload, and the old ones no more; a file that others can read changes nothing.
pub(super) fn rotated() -> Result<()> {
    let fixture = fixture()?;
    let [old, new] = TOKENS.map(bearer);
    let asked = |token: &str| Ok::<_, anyhow::Error>(ask(&fixture, &["--header", token], "/v1/services")?.status);
    ensure!((asked(&old)?, asked(&new)?) == (200, 401));
    write_token(&fixture.topology, TOKENS[1])?;
    fixture.tell(&["reload"])?;
    ensure!((asked(&old)?, asked(&new)?) == (401, 200), "{}", fixture.hairpin.logs());
    let tokens = fixture.topology.scratch.file("tokens");
    std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(0o644))?;
    let refused = format!("{:#}", fixture.tell(&["reload"]).err().context("a file that others can read was taken")?);
    ensure!(refused.contains("its mode is 0644") && !refused.contains(TOKENS[1]), "{refused}");
    ensure!(asked(&new)? == 200, "{}", fixture.hairpin.logs());
    Ok(())
}
