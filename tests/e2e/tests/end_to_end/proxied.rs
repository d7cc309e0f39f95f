//! TCP services whose backends learn the client's address from a header of the PROXY protocol.

use crate::network::{ATTACH_XDP, test};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::load;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, hairpin_program};
use hairpin_e2e::process::{Process, patience};
use hairpin_e2e::servers::{PROXIED_PORT, Servers, listening};
use hairpin_e2e::tool::inside;
use hairpin_e2e::topology::{Cards, Family, Topology, TopologyOptions, end, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("proxied: tcp backends learn who asks (gso)", || learns(Cards::Gso)),
        test("proxied: tcp backends learn who asks (xdp)", || learns(Cards::Xdp)),
    ]
}

/// The port of a server that speaks first, and then says nothing and closes.
const GREETING_PORT: u16 = 2525;
const PATIENCE: Duration = Duration::from_secs(10);

fn services() -> [PeerService; 3] {
    let of = |name, family, port, server_port| PeerService {
        server_port,
        servers: vec![1],
        tables: "[service.health]\ncheck = \"none\"\n".to_owned(),
        ..PeerService::tcp(name, family, port)
    };
    [
        of("web", Family::V4, 80, PROXIED_PORT),
        of("web6", Family::V6, 80, PROXIED_PORT),
        of("mail", Family::V4, 25, GREETING_PORT),
    ]
}

/// nginx's stream module, which answers a connection with its client's end.
fn greeting(topology: &Topology) -> Result<Process> {
    let directory = topology.scratch.file("greeting");
    std::fs::create_dir_all(&directory)?;
    let file = directory.join("nginx.conf");
    let text = format!(
        "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\nuser root;\npid {0}/pid;\n\
         error_log {0}/error.log warn;\nevents {{ }}\nstream {{\n  server {{\n    listen {GREETING_PORT} \
         proxy_protocol;\n    return \"$proxy_protocol_addr $proxy_protocol_port\\n\";\n  }}\n}}\n",
        directory.display()
    );
    std::fs::write(&file, text)?;
    let server = &topology.servers[0];
    let mut nginx = server.command("nginx");
    nginx.arg("-c").arg(file).arg("-p").arg(&directory).arg("-e").arg(directory.join("error.log"));
    let mut process = server.start(nginx, &directory.join("nginx.out"))?;
    process.wait_until(patience(PATIENCE), || listening(server.name(), &[GREETING_PORT]))?;
    Ok(process)
}

struct Scene {
    hairpin: Hairpin,
    _greeting: Process,
    _servers: Servers,
    topology: Topology,
}

impl Scene {
    fn connect(&self, family: Family, port: u16) -> Result<TcpStream> {
        let target: SocketAddr = end(vip(family), port).parse()?;
        let stream = inside::run(&self.topology.client, move || Ok(TcpStream::connect_timeout(&target, PATIENCE)?))?;
        stream.set_read_timeout(Some(patience(PATIENCE)))?;
        Ok(stream)
    }

    /// The client's end as it knows it, and as the server has heard of it.
    fn ask(&self, family: Family) -> Result<()> {
        let mut stream = self.connect(family, 80)?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        let own = stream.local_addr()?;
        stream.read_to_string(&mut answer).with_context(|| format!("{own} got {answer:?}"))?;
        let told = format!("{} {}", own.ip(), own.port());
        ensure!(answer.starts_with("HTTP/1.1 200") && answer.ends_with(&told), "{own}: {answer}");
        Ok(())
    }

    /// As [`Scene::ask`], of the server that speaks first.
    fn listen(&self) -> Result<()> {
        let stream = self.connect(Family::V4, 25)?;
        let own = stream.local_addr()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).with_context(|| format!("{own} was not greeted"))?;
        ensure!(line == format!("{} {}\n", own.ip(), own.port()), "{own}: {line}");
        Ok(())
    }

    fn all(&self) -> Result<()> {
        for _ in 0..3 {
            self.ask(Family::V4)?;
            self.ask(Family::V6)?;
            self.listen()?;
        }
        Ok(())
    }

    /// Bytes of the service named `web` that the engine has carried.
    fn by_engine(&self) -> Result<u64> {
        let status = self.hairpin.status()?;
        Ok(status.service("web").context("no service")?.offloaded.bytes)
    }
}

fn learns(cards: Cards) -> Result<()> {
    let topology = Topology::create(TopologyOptions { cards, ..TopologyOptions::default() })?;
    let (servers, greeting) = (Servers::start(&topology)?, greeting(&topology)?);
    let options = |header: &str| HairpinOptions {
        tables: if cards == Cards::Xdp { ATTACH_XDP.to_owned() } else { String::new() },
        service: format!("proxy_protocol = \"{header}\""),
        ..HairpinOptions::default()
    };
    let hairpin = Hairpin::start(&topology, &services(), &options("v1"))?;
    let mut scene = Scene { hairpin, _greeting: greeting, _servers: servers, topology };
    scene.all()?;
    // Another version of the header; a connection that is there keeps its own.
    let mut slow = scene.connect(Family::V4, 80)?;
    slow.write_all(b"GET / HTTP/1.0\r\n")?;
    scene.hairpin.configure(&scene.topology, &services(), &options("v2"))?;
    scene.hairpin.tell(&scene.topology, &["reload"])?;
    scene.all()?;
    let target = end(vip(Family::V4), 80);
    let whole = load::curl(&scene.topology.client, &scene.topology, &target, "100m", "whole")?;
    let page = std::fs::read(scene.topology.scratch.file("pages/100m"))?;
    ensure!(std::fs::read(&whole.body)? == page, "other bytes arrived than were sent");
    let begun = Instant::now();
    while scene.by_engine()? < page.len() as u64 / 2 {
        ensure!(begun.elapsed() < patience(PATIENCE), "the engine has carried {} bytes", scene.by_engine()?);
        std::thread::sleep(Duration::from_millis(50));
    }
    // The process dies, and the next one takes up what was there.
    scene.hairpin.end(Signal::SIGKILL)?;
    scene.hairpin.start_again(&scene.topology, &[])?;
    scene.hairpin.upgrade(&scene.topology, &hairpin_program()?)?;
    let own = slow.local_addr()?;
    slow.write_all(b"\r\n")?;
    let mut answer = String::new();
    slow.read_to_string(&mut answer).with_context(|| format!("{own} outlived processes, and got {answer:?}"))?;
    ensure!(answer.ends_with(&format!("{} {}", own.ip(), own.port())), "{own}: {answer}");
    scene.all()?;
    scene.hairpin.process().check()
}
