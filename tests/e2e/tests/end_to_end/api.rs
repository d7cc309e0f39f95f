//! The API: changes under load, two writers, mistakes, restarts, and the way back into the file.

mod certificates;
mod described;
mod remote;
mod sustained;

use super::lane::alone;
use super::network::test;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::load::{WrkOptions, parse_wrk, wrk_command};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, rebuilt_program};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Topology, TopologyOptions};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("api: changes under load lose no request", load),
        test("api: two writers never undo each other unseen", writers),
        test("api: a wrong write changes nothing and says why", wrong),
        test("api: changes hold across restart and upgrade, and go back", kept),
        test("api: a reload does not undo changes unseen", reloaded),
        test("api: a certificate is uploaded, served, replaced", certificates::served),
        test("api: schemathesis finds it as it is described", described::schemathesis),
        alone("api: thousands of changes lose nothing", sustained::many),
        alone("api: a configuration of many backends", sustained::large),
        test("api: by TLS only clients that are known", remote::known),
        test("api: tokens of a new file hold after a reload", remote::rotated),
    ]
}

fn service() -> PeerService {
    let tables = "[[service.backend]]\nname = \"one\"\naddress = \"10.0.1.2:HTTP\"\n\n# The newer machine.\n[[service.backend]]\nname = \
                  \"two\"\naddress = \"10.0.2.2:HTTP\"\n"
        .replace("HTTP", &HTTP_PORT.to_string());
    PeerService { servers: Vec::new(), server_port: HTTP_PORT, tables, ..PeerService::http("web", 80) }
}

/// A network with a Hairpin whose configuration asks for the API.
struct Fixture {
    hairpin: Hairpin,
    _servers: Servers,
    topology: Topology,
    options: HairpinOptions,
}

/// An answer: its status, its version and its body.
#[derive(Debug)]
struct Answer {
    status: u16,
    version: String,
    body: Value,
}

impl Fixture {
    fn new() -> Result<Fixture> {
        Fixture::with(|_| Ok(String::new()))
    }

    /// With these lines in `[api]`.
    fn with(lines: impl FnOnce(&Topology) -> Result<String>) -> Result<Fixture> {
        let topology = Topology::create(TopologyOptions::default())?;
        let servers = Servers::start(&topology)?;
        let tables = format!("[api]\nstate = {:?}\n{}", topology.scratch.file("api"), lines(&topology)?);
        let options = HairpinOptions { tables, ..HairpinOptions::default() };
        let hairpin = Hairpin::start(&topology, &[service()], &options)?;
        Ok(Fixture { hairpin, _servers: servers, topology, options })
    }

    /// Asks by curl, with the version that the request was made of.
    fn ask(&self, method: &str, path: &str, version: Option<&str>, body: Option<&Value>) -> Result<Answer> {
        let mut curl = Command::new("curl");
        curl.args([
            "--silent",
            "--show-error",
            "--max-time",
            "60",
            "--write-out",
            "\n%{http_code} %header{etag}",
            "-X",
            method,
        ]);
        curl.arg("--unix-socket")
            .arg(self.hairpin.socket().with_extension("api.sock"))
            .arg(format!("http://hairpin{path}"));
        if let Some(version) = version {
            curl.args(["--header", &format!("If-Match: \"{version}\"")]);
        }
        if let Some(body) = body {
            curl.args(["--header", "Content-Type: application/json", "--data-binary", &body.to_string()]);
        }
        read_answer(&command::output(&mut curl)?)
    }

    fn version(&self) -> Result<String> {
        Ok(self.ask("GET", "/v1/config", None, None)?.version)
    }

    /// A write of the version in force.
    fn write(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Answer> {
        self.ask(method, path, Some(&self.version()?), body)
    }

    fn backends(&self) -> Result<Value> {
        Ok(self.ask("GET", "/v1/services/web/backends", None, None)?.body)
    }

    fn tell(&self, arguments: &[&str]) -> Result<String> {
        self.hairpin.tell(&self.topology, arguments)
    }

    fn status(&self) -> Result<Value> {
        let status: Value = serde_json::from_str(&self.tell(&["status", "-o", "json"])?)?;
        Ok(status["api"].clone())
    }
}

/// What curl printed: the body, then status and version on a line of their own.
fn read_answer(said: &str) -> Result<Answer> {
    let (body, last) = said.rsplit_once('\n').with_context(|| format!("curl said {said}"))?;
    let (status, version) = last.split_once(' ').unwrap_or((last, ""));
    let body =
        if body.trim().is_empty() { Value::Null } else { serde_json::from_str(body).context(body.to_owned())? };
    Ok(Answer { status: status.parse()?, version: version.trim().trim_matches('"').to_owned(), body })
}

/// Backends come, go and change their weights a few times a second while clients ask.
fn load() -> Result<()> {
    const LASTS: Duration = Duration::from_secs(6);
    let fixture = Fixture::new()?;
    let topology = &fixture.topology;
    let options = WrkOptions { page: "1k", connections: 16, duration: LASTS, close: false };
    let wrk = wrk_command(&topology.client, &service().listen(), 1, &options);
    let mut wrk = topology.client.start(wrk, &topology.scratch.file("wrk-api"))?;
    let (began, mut writes) = (Instant::now(), 0);
    let third = json!({"address": format!("10.0.3.2:{HTTP_PORT}"), "weight": 3});
    while began.elapsed() < LASTS - Duration::from_secs(1) {
        let weight = json!({"weight": 1 + writes % 7});
        for (method, path, body) in [
            ("PUT", "/v1/services/web/backends/three", Some(&third)),
            ("PATCH", "/v1/services/web/backends/two", Some(&weight)),
            ("DELETE", "/v1/services/web/backends/three", None),
        ] {
            let answer = fixture.write(method, path, body)?;
            ensure!([200, 201].contains(&answer.status), "{method} {path}: {answer:?}");
            writes += 1;
        }
    }
    let ended = wrk.wait(LASTS + Duration::from_secs(30))?;
    let said = wrk.log();
    let counted = parse_wrk(&said)?;
    ensure!(ended.success() && counted.errors == 0 && counted.requests > 100, "{writes} writes: {counted:?}\n{said}");
    ensure!(writes >= 6, "{writes} writes");
    Ok(())
}

fn writers() -> Result<()> {
    let fixture = Fixture::new()?;
    let read = fixture.version()?;
    let weight = |weight: u32| json!({ "weight": weight });
    let path = "/v1/services/web/backends/one";
    let first = fixture.ask("PATCH", path, Some(&read), Some(&weight(5)))?;
    ensure!(first.status == 200 && first.body["before"] == read && first.body["version"] == first.version, "{first:?}");
    let second = fixture.ask("PATCH", path, Some(&read), Some(&weight(9)))?;
    ensure!(second.status == 412 && second.body["given"] == json!([read]), "{second:?}");
    ensure!(second.body["version"] == first.version && fixture.version()? == first.version, "{second:?}");
    ensure!(fixture.backends()?[0]["weight"] == 5, "{}", fixture.backends()?);

    // Eight at once of one version: one is in force.
    let outcomes: Vec<Answer> = std::thread::scope(|scope| {
        let ask = |number: u32| {
            let (fixture, version) = (&fixture, &first.version);
            scope.spawn(move || fixture.ask("PATCH", path, Some(version), Some(&json!({ "weight": 10 + number }))))
        };
        let asked: Vec<_> = (0..8).map(ask).collect();
        asked
            .into_iter()
            .map(|one| one.join().map_err(|_| anyhow::anyhow!("a writer panicked"))?)
            .collect::<Result<_>>()
    })?;
    let applied: Vec<&Answer> = outcomes.iter().filter(|answer| answer.status == 200).collect();
    ensure!(applied.len() == 1 && outcomes.iter().all(|answer| [200, 412].contains(&answer.status)), "{outcomes:?}");
    ensure!(fixture.version()? == applied[0].version, "{outcomes:?}");

    let events = fixture.tell(&["events", "--kind", "api", "-o", "json"])?;
    let events: Vec<Value> = events.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let told = events.iter().filter_map(|event| event["message"].as_str()).collect::<Vec<_>>().join("\n");
    ensure!(events.len() == 2, "{told}");
    for said in ["uid 0, pid ", "PATCH /v1/services/web/backends/one", &*read, &*first.version, "weight: 1 -> 5"] {
        ensure!(told.contains(said) && fixture.hairpin.logs().contains(said), "no \"{said}\" in {told}");
    }
    Ok(())
}

fn wrong() -> Result<()> {
    let fixture = Fixture::new()?;
    let before = fixture.ask("GET", "/v1/config", None, None)?;
    let path = "/v1/services/web/backends/one";
    let bad = fixture.write("PUT", path, Some(&json!({"address": "10.0.1.2:8080", "weight": 70000})))?;
    ensure!(bad.status == 422 && bad.body["problems"][0]["body"] == "/weight", "{bad:?}");
    let vip = fixture.write("PUT", path, Some(&json!({"address": service().listen()})))?;
    let said = vip.body["problems"][0]["message"].as_str().unwrap_or_default();
    ensure!(vip.status == 422 && said.contains("is what service \"web\" listens on"), "{vip:?}");
    // The words are those of the file.
    let text = std::fs::read_to_string(fixture.hairpin.file())?;
    let address = format!("10.0.1.2:{HTTP_PORT}");
    let file = fixture.topology.scratch.write("wrong.toml", &text.replacen(&address, &service().listen(), 1))?;
    let refused = fixture.tell(&["diff", &file.to_string_lossy()]).err().context("the file was taken")?;
    ensure!(format!("{refused:#}").contains(said), "\"{said}\" is not in {refused:#}");
    let mut elsewhere = before.body.clone();
    elsewhere["instance"] = json!("other");
    for (status, answer) in [
        (428, fixture.ask("DELETE", path, None, None)?),
        (412, fixture.ask("DELETE", path, Some("0123"), None)?),
        (404, fixture.write("DELETE", "/v1/services/wob", None)?),
        (405, fixture.write("DELETE", "/v1/services", None)?),
        (400, fixture.write("PATCH", path, Some(&json!([1])))?),
        (409, fixture.write("PUT", "/v1/config", Some(&elsewhere))?),
    ] {
        ensure!(answer.status == status && answer.body["detail"].is_string(), "{status}: {answer:?}");
    }
    let half = json!({"changes": [{"method": "DELETE", "path": "/services/web/backends/one"},
        {"method": "PATCH", "path": "/services/web/backends/two", "body": {"weight": -1}}]});
    let half = fixture.write("POST", "/v1/transactions", Some(&half))?;
    ensure!(half.status == 422 && half.body["problems"][0]["body"] == "/changes/1/body/weight", "{half:?}");
    let after = fixture.ask("GET", "/v1/config", None, None)?;
    ensure!((after.version, after.body) == (before.version, before.body), "something changed");
    let status = fixture.status()?;
    ensure!(status["differs_from_file"] == false && status["writes_total"] == 0, "{status}");
    ensure!(status["answers_total"]["422"].as_u64() >= Some(3), "{status}");
    Ok(())
}

fn kept() -> Result<()> {
    let mut fixture = Fixture::new()?;
    ensure!(fixture.write("PATCH", "/v1/services/web/backends/one", Some(&json!({"weight": 5})))?.status == 200);
    let third = json!({"address": format!("10.0.3.2:{HTTP_PORT}")});
    ensure!(fixture.write("PUT", "/v1/services/web/backends/three", Some(&third))?.status == 201);
    let (version, backends) = (fixture.version()?, fixture.backends()?);
    ensure!(backends[0]["weight"] == 5 && backends[2]["name"] == "three", "{backends}");
    for how in ["upgrade", "kill", "flush"] {
        match how {
            "upgrade" => {
                let program = rebuilt_program(&fixture.topology, 1)?;
                fixture.hairpin.upgrade(&fixture.topology, &program)?;
            }
            "kill" => {
                fixture.hairpin.end(Signal::SIGKILL)?;
                fixture.hairpin.start_again(&fixture.topology, &[])?;
            }
            _ => {
                fixture.hairpin.stop(true)?;
                fixture.hairpin.start_again(&fixture.topology, &[])?;
            }
        }
        ensure!((fixture.version()?, fixture.backends()?) == (version.clone(), backends.clone()), "lost by {how}");
        ensure!(fixture.status()?["differs_from_file"] == true, "after {how}: {}", fixture.status()?);
    }
    // Written back: comments are there, a reload takes it, and nothing is kept any more.
    let text = fixture.tell(&["config", "--running"])?;
    ensure!(text.contains("# The newer machine."), "{text}");
    std::fs::write(fixture.hairpin.file(), &text)?;
    let said = fixture.tell(&["reload"])?;
    ensure!(said.contains("nothing has changed"), "{said}");
    ensure!(fixture.status()?["differs_from_file"] == false, "{}", fixture.status()?);
    ensure!(fixture.version()? == version, "the same text has another version");
    let kept = fixture.topology.scratch.file("api").join(format!("{}.json", fixture.hairpin.instance()));
    ensure!(!kept.exists(), "{} is still there", kept.display());
    fixture.hairpin.end(Signal::SIGTERM)?;
    fixture.hairpin.start_again(&fixture.topology, &[])?;
    ensure!((fixture.version()?, fixture.backends()?) == (version, backends), "lost with the file");
    Ok(())
}

fn reloaded() -> Result<()> {
    let fixture = Fixture::new()?;
    let before = fixture.backends()?;
    let path = "/v1/services/web/backends/two";
    ensure!(fixture.write("PATCH", path, Some(&json!({"state": "drain"})))?.status == 200);
    let told = fixture.tell(&["status"])?;
    ensure!(told.contains("the file lacks what it changed"), "{told}");
    fixture.hairpin.configure(&fixture.topology, &[service()], &fixture.options)?;
    let refused = format!("{:#}", fixture.tell(&["reload"]).err().context("the reload undid it")?);
    ensure!(refused.contains("--discard") && refused.contains(&fixture.version()?), "{refused}");
    ensure!(fixture.backends()?[1]["state"] == "drain", "{}", fixture.backends()?);
    // A change that undoes the others ends the difference.
    ensure!(fixture.write("PATCH", path, Some(&json!({"state": null})))?.status == 200);
    ensure!(
        fixture.status()?["differs_from_file"] == false && fixture.tell(&["reload"]).is_ok(),
        "{}",
        fixture.status()?
    );
    ensure!(fixture.write("DELETE", path, None)?.status == 200);
    let said = fixture.tell(&["reload", "--discard"])?;
    ensure!(said.contains("two") && fixture.backends()? == before, "{said}");
    ensure!(fixture.status()?["differs_from_file"] == false, "{}", fixture.status()?);
    Ok(())
}
