//! TCP connections of a backend that is disabled: client and server are told, by a RST that they believe.

use super::network::{Network, Networks, Which, service};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::tool::inside;
use libtest_mimic::Trial;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long an end may take at most to be told: far longer than it does, and far shorter than any timeout of TCP.
const PATIENCE: Duration = Duration::from_secs(30);
/// The state of a connection when its backend is disabled.
const KINDS: [Kind; 3] = [Kind::Silent, Kind::Asked, Kind::Downloads];

#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// Nothing.
    Silent,
    /// A request was answered.
    Asked,
    /// A large response has begun that its client does not read on.
    Downloads,
}

pub(crate) fn tests(networks: &Arc<Networks>) -> Vec<Trial> {
    let test = |name: &'static str, which: Which| {
        networks.test(&format!("a disabled backend's ends are told: {name}"), which, move |network| told(network, name))
    };
    vec![
        test("http4", Which::Gso),
        test("http6", Which::Gso),
        test("full-http4", Which::Gso),
        test("full-http4", Which::Software),
    ]
}

fn told(network: &mut Network, name: &str) -> Result<()> {
    let to: SocketAddr = service(name).listen().parse()?;
    let servers = network.topology.servers.len();
    let clients = inside::run(&network.topology.client, move || {
        KINDS.into_iter().map(|kind| Ok((kind, open(to, kind)?))).collect::<Result<Vec<_>>>()
    })?;
    let ends: Vec<u16> = clients.iter().map(|(_, client)| Ok(client.local_addr()?.port())).collect::<Result<_>>()?;
    let overridden = |word: &str| {
        let mut all = (1..=servers).map(|number| format!("server{number}"));
        all.try_for_each(|server| network.hairpin.tell(&network.topology, &["backend", word, name, &server]).map(drop))
    };
    overridden("disable")?;
    let told = clients.into_iter().try_for_each(|(kind, client)| is_reset(client).with_context(|| format!("{kind:?}")));
    let servers_told = told.and_then(|()| servers_are_told(network, name, &ends));
    overridden("enable")?;
    servers_told
}

pub(crate) fn open(to: SocketAddr, kind: Kind) -> Result<TcpStream> {
    let mut client = TcpStream::connect_timeout(&to, PATIENCE)?;
    client.set_read_timeout(Some(PATIENCE))?;
    let page = match kind {
        Kind::Silent => return Ok(client),
        Kind::Asked => "1k",
        Kind::Downloads => "10m",
    };
    client.write_all(format!("GET /{page} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes())?;
    // The answer stays in the kernel, whole.
    let mut some = [0; 1024];
    while client.peek(&mut some)? < some.len() {
        sleep(Duration::from_millis(1));
    }
    Ok(client)
}

/// The client's answer is this page, to its end.
pub(crate) fn is_complete(mut client: TcpStream, page: &[u8]) -> Result<()> {
    let (mut answer, mut some) = (Vec::new(), vec![0; 1 << 20]);
    loop {
        let head = answer.windows(4).position(|part| part == b"\r\n\r\n").map(|at| at + 4);
        if let Some(head) = head.filter(|head| answer.len() >= head + page.len()) {
            ensure!(answer[head..] == *page, "the page arrived changed");
            return Ok(());
        }
        match client.read(&mut some).with_context(|| format!("reading on after {} bytes", answer.len()))? {
            0 => bail!("closed after {} bytes", answer.len()),
            length => answer.extend_from_slice(&some[..length]),
        }
    }
}

/// The client may still read the bytes that its kernel has received.
pub(crate) fn is_reset(mut client: TcpStream) -> Result<()> {
    let mut some = vec![0; 1 << 20];
    loop {
        match client.read(&mut some) {
            Ok(0) => bail!("the client saw an orderly end"),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Ok(()),
            Err(error) => bail!("the client was not told: {error}"),
        }
    }
}

/// No server has a connection any more that was one of these clients'; under full NAT, none of the pool's.
fn servers_are_told(network: &Network, name: &str, clients: &[u16]) -> Result<()> {
    let port = service(name).server_port;
    let until = Instant::now() + PATIENCE;
    for server in &network.topology.servers {
        loop {
            let open = server.script(&format!("ss -Htn state established sport = :{port}\n"))?;
            let is_left = |line: &str| {
                let peer = line.split_whitespace().last().and_then(|end| end.rsplit(':').next()?.parse().ok());
                service(name).full_nat || peer.is_some_and(|peer: u16| clients.contains(&peer))
            };
            let left: Vec<&str> = open.lines().filter(|line| is_left(line)).collect();
            if left.is_empty() {
                break;
            }
            ensure!(Instant::now() < until, "the server was not told: {left:?}");
            sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}
