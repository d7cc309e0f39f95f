//! The demo's third part: TLS that ends at Hairpin, by HTTP/1.1, HTTP/2 and gRPC. Every claim it prints is checked.

use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::grpc;
use hairpin_e2e::servers::web::certificate;
use hairpin_e2e::topology::{Family, Topology, vip};
use std::path::Path;

const NAME: &str = "shop.example";
const PORT: u16 = 443;
/// gRPC calls of one channel whose servers are counted.
const CALLS: usize = 40;

/// Shows pages by both versions of HTTP, the certificate, and a resumed session.
pub(super) fn run(topology: &Topology) -> Result<()> {
    println!("\nHTTPS that ends at Hairpin, with a certificate made for {NAME}:");
    let certificate = certificate(topology, "shop.pem", &[NAME])?;
    let _servers = grpc::start(topology, None)?;
    let mut service = PeerService::https("shop-https", PORT, &certificate);
    service.tables += &grpc::tables("");
    let target = service.listen();
    let mut hairpin = Hairpin::start(topology, &[service], &HairpinOptions::default())?;
    for (option, version) in [("--http1.1", "1.1"), ("--http2", "2")] {
        let page = topology.scratch.file(format!("https-{version}"));
        let said = curl(topology, &certificate, &[option, "--output", &page.display().to_string()], "10m")?;
        let sent = std::fs::read(topology.scratch.file("pages/10m"))?;
        ensure!(std::fs::read(&page)? == sent, "10 MB by HTTP/{version} arrived changed");
        let seconds = said.strip_prefix(&format!("200 {version} ")).with_context(|| said.clone())?;
        println!("  GET /10m by HTTP/{version} -> 10 MB, unchanged, in {seconds} s");
    }
    resumed(topology)?;
    let answered = grpc::ask(topology, &target, CALLS, Some((&certificate, NAME)))?;
    let half = CALLS / 2;
    ensure!(answered == format!("server1={half} server2={half}"), "calls of gRPC were answered so: {answered}");
    println!("  gRPC by grpcio: a call, streams both ways, 4 MB messages, errors, a deadline, a cancelled call");
    println!("  {CALLS} gRPC calls over one connection -> {answered}: each call is balanced");
    hairpin.process().check()?;
    let printed = hairpin.status_table()?;
    println!("\n-- hairpin status, what it says of HTTPS --\n{}\n", tables(&printed));
    Ok(())
}

fn curl(topology: &Topology, certificate: &Path, options: &[&str], page: &str) -> Result<String> {
    let mut curl = topology.client.command("curl");
    curl.args(["--silent", "--show-error", "--fail", "--max-time", "30", "--cacert"]).arg(certificate);
    curl.args(["--resolve", &format!("{NAME}:{PORT}:{}", vip(Family::V4))]).args(options);
    curl.args(["--write-out", "%{http_code} %{http_version} %{time_total}"]);
    curl.arg(format!("https://{NAME}/{page}"));
    command::output(&mut curl)
}

/// A second connection of openssl's client resumes the session of the first.
fn resumed(topology: &Topology) -> Result<()> {
    let session = topology.scratch.file("session.pem");
    let client = |option: &str| {
        let target = format!("{}:{PORT}", vip(Family::V4));
        // The session comes behind the handshake, so the client has to wait for it.
        topology.client.script(&format!(
            "(sleep 0.3; echo) | openssl s_client -connect {target} -servername {NAME} {option} {} 2>/dev/null",
            session.display()
        ))
    };
    let first = client("-sess_out")?;
    ensure!(first.contains("New, TLSv1.3"), "{first}");
    let second = client("-sess_in")?;
    ensure!(second.contains("Reused, TLSv1.3"), "{second}");
    println!("  openssl s_client twice -> the second handshake resumes the first one's session");
    Ok(())
}

/// The tables of a status about HTTPS.
fn tables(status: &str) -> String {
    let about = |block: &&str| block.contains("CERTIFICATE FOR") || block.contains("handshakes");
    status.split("\n\n").filter(about).collect::<Vec<_>>().join("\n\n")
}
