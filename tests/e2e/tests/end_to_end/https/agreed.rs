//! One decision: a request gets the same answer whether it is spliced, or comes over TLS by HTTP/1.1 or HTTP/2.

use super::{NAME, PORT};
use anyhow::{Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::tool::recorder::Recorder;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use std::process::Command;

/// Requests drawn at random go through the splice, and through TLS by HTTP/1.1 and HTTP/2: each gets one status from one
/// server, which was sent one head.
pub(super) fn one_answer() -> Result<()> {
    const RECORDER_PORT: u16 = 8090;
    const ROUTES: &str = include_str!("../http/routes.toml");
    let topology = Topology::create(TopologyOptions::default())?;
    let names = ["one", "two", "three"];
    let recorders = names.iter().zip(&topology.servers);
    let _recorders: Vec<Recorder> =
        recorders.map(|(name, namespace)| Recorder::start(namespace, RECORDER_PORT, name)).collect::<Result<_>>()?;
    let certificate = certificate(&topology, "web.pem", &[NAME])?;
    let of = |service: PeerService| {
        let tables = format!("{ROUTES}\n{}", service.tables);
        PeerService { servers: vec![1], server_port: RECORDER_PORT, tables, ..service }
    };
    let services = [of(PeerService::https("web", PORT, &certificate)), of(PeerService::http("plain", 80))];
    let hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
    let seed = std::env::var("HAIRPIN_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(fastrand::u64(..));
    println!("HAIRPIN_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for number in 0..60 {
        let request = DrawnRequest::new(&mut random);
        let ask = |options: &[&str], port: u16, scheme: &str| -> Result<(String, Vec<String>)> {
            let mut curl = topology.client.command("curl");
            curl.args(["--silent", "--show-error", "--max-time", "20", "--path-as-is", "--include", "--insecure"]);
            curl.args(options).args(["--connect-to", &format!("::{}:{port}", vip(Family::V4))]);
            request.add_to(&mut curl, &format!("{scheme}://{}", request.host));
            Ok(answer(&command::output(&mut curl)?))
        };
        let splice = ask(&["--http1.1"], 80, "http")?;
        for (options, way) in [(["--http1.1"], "HTTP/1.1 over TLS"), (["--http2"], "HTTP/2")] {
            let other = ask(&options, PORT, "https")?;
            ensure!(
                other == splice,
                "request {number}, seed {seed}: {request:?}\n spliced: {splice:#?}\n {way}: {other:#?}\n{}",
                hairpin.logs()
            );
        }
    }
    Ok(())
}

/// A request of those that routes tell apart.
#[derive(Debug)]
struct DrawnRequest {
    method: &'static str,
    host: &'static str,
    target: String,
    fields: Vec<String>,
    body: Option<String>,
}

impl DrawnRequest {
    fn new(random: &mut fastrand::Rng) -> DrawnRequest {
        fn one<T: Copy>(random: &mut fastrand::Rng, of: &[T]) -> T {
            of[random.usize(..of.len())]
        }
        let paths = [
            "/",
            "/echo",
            "/moved",
            "/fixed",
            "/strip/a",
            "/api/b/c",
            "/two/x",
            "/a.png",
            "/store",
            "/secret/a",
            "/a/../secret/a",
            "/%73ecret/a",
            "/guarded/",
            "/guarded;x/",
            "/a%2fb",
            "/a//b",
            "/../a",
            "/x%zz",
            "/two/../a",
            "/status/404",
            "/status/204",
            "/chunked",
            "/bytes/5000",
        ];
        let queries = ["", "?v=2", "?v=1", "?a=b&c=%20", "?"];
        let fields =
            ["X-Robot: evil-1", "X-Forwarded-For: 1.2.3.4", "X-A: b", "Accept-Language: de", "Cookie: a=b; c=d"];
        let method = one(random, &["GET", "GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"]);
        let has_body = matches!(method, "POST" | "PUT") && random.bool();
        DrawnRequest {
            method,
            host: one(random, &["web.test", "three.example", "a.three.example", "other"]),
            target: format!("{}{}", one(random, &paths), one(random, &queries)),
            // Each once: of several cookies HTTP/2 makes one (RFC 9113, 8.2.3).
            fields: fields.iter().filter(|_| random.u8(..4) == 0).map(ToString::to_string).collect(),
            body: has_body.then(|| "x".repeat(random.usize(1..20_000))),
        }
    }

    fn add_to(&self, curl: &mut Command, origin: &str) {
        if self.method == "HEAD" {
            curl.arg("--head");
        } else {
            curl.args(["--request", self.method]);
        }
        for field in &self.fields {
            curl.args(["--header", field]);
        }
        if let Some(body) = &self.body {
            curl.args(["--data-binary", body]);
        }
        curl.arg(format!("{origin}{}", self.target));
    }
}

/// What curl printed, without what may differ: the status, the response's fields and the lines of its body, sorted.
fn answer(printed: &str) -> (String, Vec<String>) {
    let text = printed.replace("\r\n", "\n");
    let interim = text.starts_with("HTTP/1.1 100");
    let text = if interim { text.split_once("\n\n").map_or("", |(_, rest)| rest) } else { &text };
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.split(' ').nth(1)).unwrap_or_default().to_owned();
    let is_of_connection = |line: &str| {
        let name = line.split(':').next().unwrap_or_default().to_ascii_lowercase();
        // The recorder's response is the head it was sent, which says which protocol the client came by.
        let differs = [
            "connection",
            "transfer-encoding",
            "date",
            "keep-alive",
            "x-forwarded-proto",
            "expect",
            "content-length",
            "x-connection",
        ];
        differs.contains(&name.as_str())
    };
    let normal = |line: &str| match line.split_once(": ") {
        Some((name, value)) => format!("{}: {value}", name.to_ascii_lowercase()),
        None => line.to_owned(),
    };
    let both = lines.chain(body.lines()).filter(|line| !is_of_connection(line));
    let mut all: Vec<String> = both.map(normal).filter(|line| !line.is_empty()).collect();
    all.sort();
    (status, all)
}
