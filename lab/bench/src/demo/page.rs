//! The demo's end: the page on the admin address, for the browser of the machine that the demo runs on.

use anyhow::{Context, Result, ensure};
use hairpin_e2e::load::{self, WrkOptions};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::servers::HTTP_PORT;
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Family, Topology};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread::spawn;
use std::time::Duration;

/// The admin address of the balancer, in its namespace; here too, if nothing else listens there.
const ADMIN: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 9560);
const PATIENCE: Duration = Duration::from_secs(10);
/// Traffic before the page is asked for.
const BEFORE: Duration = Duration::from_secs(3);
/// Traffic at a time while the network stays.
const ROUND: Duration = Duration::from_secs(60);

/// Opens the page to this machine, and says where it is. Returns at once, or never if it is to `stay`.
pub(super) fn run(topology: &Topology, stay: bool) -> Result<()> {
    let health = "[service.health]\ncheck = \"http\"\npath = \"/health\"\n".to_owned();
    let web = PeerService { server_port: HTTP_PORT, tables: health, ..PeerService::http("web", 80) };
    let files = PeerService { server_port: HTTP_PORT, ..PeerService::tcp("files", Family::V4, 8080) };
    let mut hairpin = Hairpin::start(topology, &[web.clone(), files.clone()], &HairpinOptions::default())?;
    let address = open(topology)?;
    drive(topology, &web, &files, BEFORE)?;
    let page = get(address, "/")?;
    ensure!(page.contains("<title>Hairpin</title>"), "http://{address}/ is not the page: {page:.300}");
    let status = get(address, "/status")?;
    ensure!(status.contains("\"requests\":"), "http://{address}/status is no status: {status:.300}");
    hairpin.process().check()?;
    println!("The admin address serves a page that shows all of this live: rates, health, who carries connections.");
    if !stay {
        println!(
            "Everything above ran in namespaces and is removed now. `make demo STAY=1` keeps the last network up, with"
        );
        println!("traffic and its page, until Ctrl-C: http://{address}/");
        return Ok(());
    }
    println!("The network stays, with traffic, until Ctrl-C. Its page: http://{address}/");
    loop {
        drive(topology, &web, &files, ROUND)?;
        hairpin.process().check()?;
    }
}

/// Small pages by HTTP, and large files that rules carry, at the same time.
fn drive(topology: &Topology, web: &PeerService, files: &PeerService, duration: Duration) -> Result<()> {
    let mut running = Vec::new();
    for (service, page, connections) in [(web, "1k", 8), (files, "10m", 2)] {
        let options = WrkOptions { page, connections, duration, close: false };
        let wrk = load::wrk_command(&topology.client, &service.listen(), 1, &options);
        running.push(topology.client.start(wrk, &topology.scratch.file(format!("page-{page}")))?);
    }
    for wrk in &mut running {
        let status = wrk.wait(duration + PATIENCE)?;
        ensure!(status.success(), "`{}` failed: {}", wrk.line(), wrk.log());
    }
    Ok(())
}

/// Forwards connections from an address of this machine's loopback to the admin address in the balancer's namespace.
fn open(topology: &Topology) -> Result<SocketAddr> {
    let listener = TcpListener::bind(ADMIN).or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)));
    let listener = listener.context("no port of loopback is free")?;
    let address = listener.local_addr()?;
    // The listener is this namespace's; what the thread and its threads connect is the balancer's. It ends with the program.
    drop(inside::spawn(&topology.balancer, None, move || {
        for stream in listener.incoming().flatten() {
            spawn(move || TcpStream::connect(ADMIN).and_then(|to| join(stream, to)));
        }
        Ok(())
    }));
    Ok(address)
}

/// Copies in both directions until both have ended.
fn join(one: TcpStream, other: TcpStream) -> std::io::Result<()> {
    let (mut from, mut to) = (one.try_clone()?, other.try_clone()?);
    let answers = spawn(move || {
        let copied = std::io::copy(&mut { other }, &mut { one.try_clone()? });
        one.shutdown(Shutdown::Write)?;
        copied
    });
    std::io::copy(&mut from, &mut to)?;
    to.shutdown(Shutdown::Write)?;
    // A client that has gone needs no more of the answer.
    let _ = answers.join();
    Ok(())
}

fn get(address: SocketAddr, path: &str) -> Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    ensure!(answer.starts_with("HTTP/1.1 200"), "http://{address}{path}: {answer:.300}");
    Ok(answer)
}
