//! While no process is there, neither clients nor backends are told that a connection or a service is gone: what goes to a
//! VIP or comes from a backend is dropped, so that both ask again, and go on when the next process is there.

use crate::network::{FULL_NAT_HTTP_PORT, test};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::namespace::Namespace;
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, hairpin_program};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::tool::{http, inside};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, pool_address, server_address, vip};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("absence: no packet is refused, established connections go on", no_packet_is_refused),
        test("absence: a file system that goes with the process is named", own_mount),
    ]
}

const TIMEOUT: Duration = Duration::from_secs(20);
/// A service's port that speaks HTTP at layer 7.
const WEB: u16 = 8070;
/// A service by NAT and one by full NAT that lead to a server that speaks when it is told to.
const SPEAK: [u16; 2] = [8071, 8072];

/// A connection to a service, both of its ends.
struct Conversation {
    client: TcpStream,
    server: TcpStream,
}

impl Conversation {
    fn open(topology: &Topology, port: u16) -> Result<Conversation> {
        let at = SocketAddr::new(server_address(Family::V4, 1), port);
        let listener = inside::run(&topology.servers[0], move || Ok(TcpListener::bind(at)?))?;
        let to = SocketAddr::new(vip(Family::V4), port);
        let client = inside::run(&topology.client, move || Ok(TcpStream::connect_timeout(&to, TIMEOUT)?))?;
        let (server, _) = listener.accept()?;
        let mut both = Conversation { client, server };
        both.exchange(b"hello").context("the first words")?;
        Ok(both)
    }

    /// Both say something, and hear what the other has said.
    fn exchange(&mut self, words: &[u8]) -> Result<()> {
        self.say(words)?;
        self.hear(words)
    }

    fn say(&mut self, words: &[u8]) -> Result<()> {
        self.client.write_all(words)?;
        self.server.write_all(words)?;
        Ok(())
    }

    fn hear(&mut self, words: &[u8]) -> Result<()> {
        for (end, name) in [(&mut self.server, "the server"), (&mut self.client, "the client")] {
            end.set_read_timeout(Some(TIMEOUT))?;
            let mut heard = vec![0; words.len()];
            end.read_exact(&mut heard).with_context(|| format!("{name} hears nothing"))?;
            ensure!(heard == words, "{name} hears {heard:?}");
        }
        Ok(())
    }
}

/// How a new connection fails.
fn refusal(from: &Namespace, to: SocketAddr) -> Result<ErrorKind> {
    let met = inside::run(from, move || Ok(TcpStream::connect_timeout(&to, Duration::from_secs(1))))?;
    met.err().map(|error| error.kind()).with_context(|| format!("{to} took a connection with no process there"))
}

fn no_packet_is_refused() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    // The kernel would answer for the pool's addresses, too.
    topology.balancer.script(&format!("ip address add {}/32 dev lo\n", pool_address(Family::V4)))?;
    let speaks =
        |name, port, full_nat| PeerService { servers: vec![1], full_nat, ..PeerService::tcp(name, Family::V4, port) };
    let services = [
        PeerService::tcp("tcp4", Family::V4, HTTP_PORT),
        PeerService::tcp("tcp6", Family::V6, HTTP_PORT),
        PeerService {
            server_port: HTTP_PORT,
            full_nat: true,
            ..PeerService::tcp("full4", Family::V4, FULL_NAT_HTTP_PORT)
        },
        PeerService { server_port: HTTP_PORT, ..PeerService::http("web", WEB) },
        speaks("nat", SPEAK[0], false),
        speaks("full-nat", SPEAK[1], true),
    ];
    let tables = "[offload]\npolicy = \"never\"\n[linux]\nheartbeat_timeout = \"500ms\"\n".to_owned();
    let mut hairpin = Hairpin::start(&topology, &services, &HairpinOptions { tables, ..HairpinOptions::default() })?;
    let mut conversations =
        SPEAK.into_iter().map(|port| Conversation::open(&topology, port)).collect::<Result<Vec<_>>>()?;
    hairpin.end(Signal::SIGKILL)?;
    // Bytes sent at once wait in a device that no process reads; later ones meet the rule for absence.
    conversations.iter_mut().try_for_each(|both| both.say(b"early"))?;
    sleep(Duration::from_millis(800));
    conversations.iter_mut().try_for_each(|both| both.say(b"later"))?;
    for (family, port) in
        [(Family::V4, HTTP_PORT), (Family::V6, HTTP_PORT), (Family::V4, FULL_NAT_HTTP_PORT), (Family::V4, WEB)]
    {
        let to = SocketAddr::new(vip(family), port);
        let kind = refusal(&topology.client, to)?;
        ensure!(kind == ErrorKind::TimedOut, "a new connection to {to} met {kind:?}");
    }
    // A client that talks to a backend directly is not disturbed, and reaches the host's own services as before.
    let direct = SocketAddr::new(server_address(Family::V4, 2), HTTP_PORT);
    let page = std::fs::read(topology.scratch.file("pages/1k"))?;
    inside::run(&topology.client, move || http::once(direct, "1k", &page, TIMEOUT).map(drop))
        .context("directly to a backend")?;
    let own = refusal(&topology.client, SocketAddr::new(vip(Family::V4), 2222))?;
    ensure!(own == ErrorKind::ConnectionRefused, "a port of the VIP that is no service met {own:?}");
    hairpin.start_again(&topology, &[])?;
    for both in &mut conversations {
        both.hear(b"earlylater").context("after the restart")?;
        both.exchange(b"again").context("after the restart")?;
    }
    Ok(())
}

/// If the BPF file system is mounted in the process's own mount namespace, nothing outlives the process. That is what
/// `ip netns exec` makes where none is mounted for all. The start says so.
fn own_mount() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let services = [PeerService::tcp("tcp4", Family::V4, HTTP_PORT)];
    let said = |wrapper: &[&str]| -> Result<String> {
        let mut hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
        hairpin.stop(true)?;
        let mut run = topology.balancer.command("unshare");
        run.args(["--mount", "--propagation", "private", "sh", "-c"]);
        let program = hairpin_program()?;
        run.arg(format!(
            "{}timeout --signal=INT 3 {} run -c {} 2>&1 || true",
            wrapper.concat(),
            program.display(),
            hairpin.file().display()
        ));
        command::output(&mut run)
    };
    let hidden = said(&["mount -t tmpfs tmpfs /run/hairpin; mount -t tmpfs tmpfs /sys/fs/bpf 2>/dev/null; "])?;
    ensure!(hidden.contains("is mounted for this process alone"), "it does not say so: {hidden}");
    Ok(())
}
