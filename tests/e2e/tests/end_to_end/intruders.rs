//! Hostile clients of the control socket and of the port of the metrics: refused, bounded, and packets of services are
//! not affected.

use crate::network::{service, services, test};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::peer::{Hairpin, HairpinOptions};
use hairpin_e2e::servers::Servers;
use hairpin_e2e::tool::inside;
use hairpin_e2e::tool::requests::OpenLoop;
use hairpin_e2e::topology::{Topology, TopologyOptions};
use hairpin_e2e::{process, remnants};
use libtest_mimic::Trial;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("intruders: at the control socket", || intruded(at_control)),
        test("intruders: at the port of the metrics", || intruded(at_metrics)),
        test("intruders: modes of files", modes),
        test("intruders: no thread keeps a right it does not need", rights),
    ]
}

/// The default address of the metrics.
const METRICS: &str = "127.0.0.1:9560";
/// Memory that intruders may make the process take, in bytes: eight requests of 24 MiB and their JSON, and then some.
const MEMORY: u64 = 512 << 20;
const PATIENCE: Duration = Duration::from_secs(10);

/// Requests go through all the while.
fn intruded(intrude: fn(&Topology, &Hairpin) -> Result<()>) -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let mut hairpin = Hairpin::start(&topology, &services(), &HairpinOptions::default())?;
    let page = Arc::new(std::fs::read(topology.scratch.file("pages/1k"))?);
    let ends = ["http4", "full-http6"].iter().map(|name| service(name).listen().parse());
    let ends = ends.collect::<Result<Vec<SocketAddr>, _>>()?;
    let requests = OpenLoop::start(&topology.client, ends, 100, "1k", page, PATIENCE);
    let (before, id) = (hairpin.process().resident_bytes()?, hairpin.process().id());
    intrude(&topology, &hairpin)?;
    hairpin.process().check()?;
    let after = hairpin.process().resident_bytes()?;
    ensure!(after < before + MEMORY, "{before} bytes were resident, {after} are");
    let status = hairpin.status().context("it does not answer any more")?;
    ensure!(status.pid == id, "another process answers");
    let outcomes = requests.stop()?;
    let failed: Vec<_> = outcomes.iter().filter(|outcome| outcome.result.is_err()).collect();
    ensure!(failed.is_empty(), "{} of {} requests failed: {:?}", failed.len(), outcomes.len(), failed.first());
    ensure!(outcomes.len() > 100, "only {} requests", outcomes.len());
    Ok(())
}

/// Bytes that are no request of either kind.
fn garbage() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(9);
    let mut all: Vec<Vec<u8>> = [
        "\n",
        "{}\n",
        "null\n",
        "[]\n",
        "{\"request\":\"no such\"}\n",
        "{\"request\":\"status\",\"more\":1}\n",
        "{\"request\":\"upgrade\",\"program\":\"/dev/null\"}\n",
        "{\"request\":\"backend\"}\n",
        "{\"request\":\"connections\",\"limit\":4294967295,\"cursor\":18446744073709551615}\n",
        "{\"request\":\"connections\",\"limit\":-1}\n",
        "{\"request\":\"diff\",\"text\":\"[[[[\",\"file\":\"x\"}\n",
        "GET / HTTP/1.1\r\n\r\n",
    ]
    .iter()
    .map(|text| text.as_bytes().to_vec())
    .collect();
    // Deeper than a parser's stack.
    all.push([b"[".repeat(1 << 20), b"\n".to_vec()].concat());
    for length in [1, 100, 10_000, 1 << 20] {
        let mut bytes = vec![0; length];
        random.fill(&mut bytes);
        bytes.push(b'\n');
        all.push(bytes);
    }
    all
}

fn at_control(_: &Topology, hairpin: &Hairpin) -> Result<()> {
    let socket = hairpin.socket();
    for bytes in garbage() {
        let Ok(mut stream) = UnixStream::connect(&socket) else { continue };
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        // A refusal, or a closed connection, at whatever moment.
        let _ = stream.write_all(&bytes);
        let mut answer = vec![0; 4096];
        if let Ok(length) = stream.read(&mut answer) {
            let answer = String::from_utf8_lossy(&answer[..length]).into_owned();
            let harmless = answer.is_empty() || answer.contains("error") || answer.contains("connections");
            ensure!(harmless, "{:?} was answered {answer}", String::from_utf8_lossy(&bytes[..bytes.len().min(80)]));
        }
    }
    // Too long a line, without an end; the other side gives up, and so do we.
    let mut stream = UnixStream::connect(&socket)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let part = vec![b'x'; 1 << 20];
    let written = (0..100).take_while(|_| stream.write_all(&part).is_ok()).count();
    ensure!(written < 100, "a line of 100 MB was taken");
    // Many that say nothing, or drip.
    let mut crowd: Vec<UnixStream> = (0..200).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
    for _ in 0..20 {
        crowd.iter_mut().for_each(|stream| drop(stream.write(b"{")));
        sleep(Duration::from_millis(100));
    }
    drop(crowd);
    sleep(Duration::from_millis(200));
    Ok(())
}

fn at_metrics(topology: &Topology, _: &Hairpin) -> Result<()> {
    let to: SocketAddr = METRICS.parse()?;
    inside::run(&topology.balancer, move || {
        for bytes in garbage() {
            let mut stream = TcpStream::connect_timeout(&to, PATIENCE).context("before the crowd")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            stream.set_write_timeout(Some(PATIENCE))?;
            let _ = stream.write_all(&bytes);
            let _ = stream.read(&mut [0; 4096]);
        }
        // A head without an end.
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\n")?;
        let line = [b"X: ".to_vec(), vec![b'x'; 1000], b"\r\n".to_vec()].concat();
        let written = (0..100_000).take_while(|_| stream.write_all(&line).is_ok()).count();
        ensure!(written < 100_000, "a head of 100 MB was taken");
        // Many that say nothing, or drip, or ask and do not read.
        let mut crowd: Vec<TcpStream> =
            (0..200).filter_map(|_| TcpStream::connect_timeout(&to, PATIENCE).ok()).collect();
        for round in 0..20 {
            for (i, stream) in crowd.iter_mut().enumerate() {
                stream.set_nonblocking(true)?;
                let _ = stream.write(if i % 2 == 0 { b"G" } else { b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" });
            }
            sleep(Duration::from_millis(if round == 0 { 10 } else { 100 }));
        }
        drop(crowd);
        // A client that asks properly is answered, once the crowd has gone.
        sleep(Duration::from_millis(500));
        let mut stream = TcpStream::connect_timeout(&to, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")?;
        let mut page = String::new();
        stream.read_to_string(&mut page)?;
        ensure!(page.starts_with("HTTP/1.1 200") && page.contains("hairpin_"), "the metrics are {page:.200}");
        Ok(())
    })
}

/// Only root may ask, read the connections or lock the instance.
/// Every thread has CAP_NET_BIND_SERVICE (10; a reload may bring an https service of port 443), CAP_NET_ADMIN (12), CAP_NET_RAW (13;
/// a reload may bring a service with an encapsulation), CAP_PERFMON (38) and CAP_BPF (39) at most, and cannot get more;
/// the same after an upgrade.
fn rights() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let mut hairpin = Hairpin::start(&topology, &services(), &HairpinOptions::default())?;
    let check = |pid: u32| -> Result<()> {
        let mut threads = 0;
        for text in process::threads(pid)? {
            let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let name = field("Name:").context("no name")?;
            for set in ["CapPrm:", "CapEff:"] {
                let have = u64::from_str_radix(field(set).context("no capabilities")?, 16)?;
                let more = have & !(1 << 10 | 1 << 12 | 1 << 13 | 1 << 38 | 1 << 39);
                ensure!(more == 0, "thread {name} of {pid} has {set} {have:x}");
            }
            ensure!(field("NoNewPrivs:") == Some("1"), "thread {name} of {pid} may get new privileges");
            threads += 1;
        }
        ensure!(threads > 3, "only {threads} threads");
        Ok(())
    };
    check(hairpin.status()?.pid)?;
    hairpin.upgrade(&topology, &hairpin_e2e::peer::hairpin_program()?)?;
    check(hairpin.status()?.pid)
}

fn modes() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let hairpin = Hairpin::start(&topology, &services(), &HairpinOptions::default())?;
    let socket = hairpin.socket();
    let mode = |path: &Path| -> Result<u32> { Ok(path.symlink_metadata()?.permissions().mode() & 0o7777) };
    for path in [socket.clone(), socket.with_extension("lock")].into_iter().chain(remnants::memory(hairpin.instance()))
    {
        let mode = mode(&path)?;
        if path.is_dir() {
            continue;
        }
        ensure!(mode == 0o600, "{} has the mode {mode:o}", path.display());
    }
    ensure!(!remnants::memory(hairpin.instance()).is_empty(), "there is no shared memory");
    let directory = socket.parent().context("no directory")?;
    for entry in std::fs::read_dir(directory)?.flatten() {
        let mode = mode(&entry.path())?;
        ensure!(mode & 0o022 == 0, "{} can be written by others: {mode:o}", entry.path().display());
    }
    for pins in remnants::of(hairpin.instance()).iter().filter(|path| path.is_dir()) {
        let mode = mode(pins)?;
        ensure!(mode & 0o077 == 0 || mode & 0o022 == 0, "{} has the mode {mode:o}", pins.display());
    }
    Ok(())
}
