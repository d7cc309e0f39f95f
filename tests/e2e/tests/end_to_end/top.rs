//! `hairpin top` and the other listings, as a terminal shows them: sorting, the detail of a service, and percentiles of real
//! traffic; colours and the terminal's width.

use super::network::test;
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService, hairpin_program};
use hairpin_e2e::process::patience;
use hairpin_e2e::tool::http::HttpConnection;
use hairpin_e2e::tool::inside;
use hairpin_e2e::tool::recorder::Recorder;
use hairpin_e2e::topology::{Family, Topology, TopologyOptions, vip};
use libtest_mimic::Trial;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};
use vt100::Parser;

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test("top: sort, detail and percentiles of real traffic", live),
        test("top: no colours with NO_COLOR, and text in a batch", plain),
        test("top: listings fit 80 columns, and are whole in a pipe", widths),
    ]
}

/// Until when a screen has to show what is waited for.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// The recorders' ports.
const QUICK: u16 = 9080;
const SLOW: u16 = 9081;
/// How long clients of the slow service wait before they send a request's body.
const PAUSE: Duration = Duration::from_millis(300);

/// A network with a quick HTTP service, one whose requests take their time and of which each other one fails, and traffic of both.
struct Shop {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Result<()>>>,
    hairpin: Hairpin,
    _recorders: [Recorder; 2],
    topology: Topology,
}

impl Shop {
    fn open() -> Result<Shop> {
        let topology = Topology::create(TopologyOptions::default())?;
        let server = &topology.servers[0];
        let recorders = [Recorder::start(server, QUICK, "quick")?, Recorder::start(server, SLOW, "slow")?];
        let gone = "[service.health]\ninterval = \"200ms\"\ntimeout = \"100ms\"\nfall = 1\ncheck = \"tcp\"\n\
                    [[service.backend]]\nname = \"gone\"\naddress = \"10.0.2.2:9\"\n";
        let service =
            |name, port, server_port| PeerService { servers: vec![1], server_port, ..PeerService::http(name, port) };
        let services = [service("quick", 80, QUICK), PeerService { tables: gone.into(), ..service("slow", 81, SLOW) }];
        let hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
        let stop = Arc::new(AtomicBool::new(false));
        let clients = [(80, Duration::ZERO), (81, PAUSE)].map(|(port, pause)| {
            let stop = Arc::clone(&stop);
            inside::spawn(&topology.client, None, move || visit(port, pause, &stop))
        });
        Ok(Shop { stop, clients: clients.into(), hairpin, _recorders: recorders, topology })
    }

    /// The command on a terminal of this size, with these variables.
    fn show(&self, arguments: &[&str], size: (u16, u16), environment: &[(&str, &str)]) -> Result<Screen> {
        Screen::start(&self.hairpin.command(&self.topology, arguments)?, size, environment)
    }

    /// Ends the traffic; fails if a request has.
    fn close(mut self) -> Result<()> {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.drain(..).try_for_each(inside::join)
    }
}

/// Asks until it is told to stop. With a pause between head and body, every second request is answered with 503.
fn visit(port: u16, pause: Duration, stop: &AtomicBool) -> Result<()> {
    let mut connection = HttpConnection::open(SocketAddr::new(vip(Family::V4), port), TIMEOUT)?;
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        let (page, status) = if number % 2 == 1 && !pause.is_zero() { ("/status/503", 503) } else { ("/echo", 200) };
        connection
            .send(format!("POST {page} HTTP/1.1\r\nHost: shop\r\nContent-Length: 2\r\n\r\n").as_bytes(), TIMEOUT)?;
        sleep(pause);
        connection.send(b"hi", TIMEOUT)?;
        let answer = connection.answer(false, TIMEOUT)?;
        ensure!(answer.status == status, "{page}: {}", answer.status);
        number += 1;
        sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A program on a terminal of its own.
struct Screen {
    child: Child,
    keys: File,
    shown: Arc<Mutex<(Parser, Vec<u8>)>>,
    reader: Option<JoinHandle<()>>,
}

impl Screen {
    fn start(command: &Command, (columns, rows): (u16, u16), environment: &[(&str, &str)]) -> Result<Screen> {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&terminal)?;
        unlockpt(&terminal)?;
        tcsetwinsize(&terminal, Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 })?;
        let path = ptsname(&terminal, Vec::new())?;
        let path = std::ffi::OsStr::from_bytes(path.as_bytes());
        let end = || -> Result<Stdio> { Ok(OpenOptions::new().read(true).write(true).open(path)?.into()) };
        // The size is asked of the controlling terminal, which must not be the one that tests are started from.
        let mut child = Command::new("setsid");
        child.arg("--ctty").arg(command.get_program()).args(command.get_args());
        child.env_remove("NO_COLOR").env_remove("COLUMNS").env("TERM", "xterm-256color");
        child.envs(environment.iter().copied()).stdin(end()?).stdout(end()?).stderr(end()?);
        let spawned = child.spawn().context("could not start setsid")?;
        // Its ends of the terminal close with it.
        drop(child);
        let shown = Arc::new(Mutex::new((
            Parser::new(NonZeroU16::new(rows).context("no rows")?, NonZeroU16::new(columns).context("no columns")?, 0),
            Vec::new(),
        )));
        let (mut output, keys) = (File::from(terminal.try_clone()?), File::from(terminal));
        let seen = Arc::clone(&shown);
        let reader = std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // The end of a terminal is an error (EIO).
            while let Ok(length @ 1..) = output.read(&mut bytes) {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.0.process(&bytes[..length]);
                seen.1.extend_from_slice(&bytes[..length]);
            }
        });
        Ok(Screen { child: spawned, keys, shown, reader: Some(reader) })
    }

    fn press(&mut self, keys: &str) -> Result<()> {
        Ok(self.keys.write_all(keys.as_bytes())?)
    }

    /// What stands there now.
    fn text(&self) -> String {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).0.screen().contents()
    }

    /// Everything that was written.
    fn bytes(&self) -> Vec<u8> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).1.clone()
    }

    /// The first screen that fits.
    fn wait<T>(&self, what: &str, fits: impl Fn(&str) -> Option<T>) -> Result<T> {
        let since = Instant::now();
        loop {
            let text = self.text();
            if let Some(found) = fits(&text) {
                return Ok(found);
            }
            ensure!(since.elapsed() < patience(PATIENCE), "the screen does not show {what}:\n{text}");
            sleep(Duration::from_millis(50));
        }
    }

    /// A screen with all of these texts.
    fn has(&self, texts: &[&str]) -> Result<()> {
        self.wait(&texts.join(" | "), |text| texts.iter().all(|one| text.contains(one)).then_some(()))
    }

    /// Waits for its end.
    fn end(&mut self) -> Result<ExitStatus> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.reader.take().map(JoinHandle::join);
                return Ok(status);
            }
            ensure!(since.elapsed() < patience(PATIENCE), "it does not end:\n{}", self.text());
            sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The cell of a service's line below a title that is aligned to the right.
fn cell<'a>(text: &'a str, service: &str, title: &str) -> Option<&'a str> {
    let header = text.lines().find(|line| line.starts_with("NAME"))?;
    let end = header.find(title)? + title.len();
    let end = header[..end].chars().count();
    let line = text.lines().find(|line| line.split(' ').next() == Some(service))?;
    let upto = line.char_indices().nth(end).map_or(line, |(at, _)| &line[..at]);
    // Numbers and their units stand one space apart, columns two or more, or one.
    let mut words = upto.rsplit(' ').filter(|word| !word.is_empty());
    let last = words.next()?;
    match last {
        "us" | "ms" | "s" => Some(&upto[upto.rfind(words.next()?)?..]),
        _ => Some(last),
    }
}

/// Microseconds, as `top` writes them.
fn microseconds(cell: &str) -> Option<f64> {
    let (number, unit) = cell.split_once(' ')?;
    let scale = match unit.trim() {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * scale)
}

fn live() -> Result<()> {
    let shop = Shop::open()?;
    let mut top = shop.show(&["top", "--sort", "p99"], (80, 24), &[])?;
    let line = |text: &str, name: &str| text.lines().position(|line| line.split(' ').next() == Some(name));
    // Longest first, with times of the last second alone.
    let [slow, quick, failed, of_quick] = top.wait("both services with their percentiles", |text| {
        let time = |service, title| microseconds(cell(text, service, title)?);
        let rate = |service| cell(text, service, "5xx/s")?.parse::<f64>().ok();
        let sorted = text.contains("P99▼") && line(text, "slow")? < line(text, "quick")?;
        let times = [time("slow", "P50")?, time("quick", "P50")?, rate("slow")?, rate("quick")?];
        (sorted && times[2] > 0.0).then_some(times)
    })?;
    ensure!(slow >= PAUSE.as_micros() as f64 && quick < slow, "medians {slow} and {quick}:\n{}", top.text());
    ensure!(failed > 0.0 && of_quick == 0.0, "errors {failed} and {of_quick}:\n{}", top.text());
    top.press("r")?;
    top.wait("the other order", |text| {
        (text.contains("P99▲") && line(text, "quick")? < line(text, "slow")?).then_some(())
    })?;
    top.press("r")?;
    top.has(&["P99▼"])?;
    top.press("\r")?;
    top.has(&[&format!("service      {}:81/http", vip(Family::V4)), "% are 5xx", "carried by"])?;
    let shown = top.wait("times", |text| text.contains("in the last ").then(|| text.to_owned()))?;
    ensure!(shown.contains("REQUESTS UNTIL") && shown.contains("answered by it"), "{shown}");
    top.press("G")?;
    top.has(&["backends of slow", "gone", "down", "connection refused", "server1", "5xx"])?;
    top.press("\u{1b}")?;
    top.has(&["P99▼"])?;
    top.press("/quick\r")?;
    top.wait("quick alone", |text| {
        (text.contains("services with \"quick\"") && line(text, "slow").is_none()).then(|| line(text, "quick"))?
    })?;
    top.press("?")?;
    top.has(&["sort by the next column"])?;
    top.press(" q")?;
    ensure!(top.end()?.success(), "{}", top.text());
    narrow(&shop)?;
    shop.close()
}

/// A narrow screen has fewer columns, the one that rows are sorted by among them.
fn narrow(shop: &Shop) -> Result<()> {
    let mut narrow = shop.show(&["top", "--sort", "p99"], (40, 24), &[])?;
    narrow.has(&["P99▼", "slow"])?;
    // Without traffic an interval has no times, whatever there was before.
    shop.stop.store(true, Ordering::Relaxed);
    narrow.wait("no requests and no times", |text| {
        (cell(text, "slow", "REQ/s")? == "0" && microseconds(cell(text, "slow", "P99▼")?).is_none()).then_some(())
    })?;
    narrow.press("q")?;
    ensure!(narrow.end()?.success(), "{}", narrow.text());
    Ok(())
}

/// The parameters of all sequences that set how text looks (SGR).
fn looks(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let sequences = text.split("\u{1b}[").skip(1).filter_map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != ';')?;
        rest[end..].starts_with('m').then(|| rest[..end].to_owned())
    });
    sequences.flat_map(|all| all.split(';').filter_map(|one| one.parse().ok()).collect::<Vec<u8>>()).collect()
}

fn is_colour(parameter: &u8) -> bool {
    matches!(parameter, 30..=38 | 40..=48 | 90..=97 | 100..=107)
}

fn plain() -> Result<()> {
    let shop = Shop::open()?;
    for (environment, has_colours) in [(&[][..], true), (&[("NO_COLOR", "")], true), (&[("NO_COLOR", "0")], false)] {
        let mut top = shop.show(&["top"], (80, 24), environment)?;
        // A backend that is down is red.
        top.has(&["gone", "down"])?;
        top.press("\r")?;
        top.has(&["Esc back"])?;
        top.press("q")?;
        ensure!(top.end()?.success(), "{}", top.text());
        let bytes = top.bytes();
        let looks = looks(&bytes);
        ensure!(looks.contains(&1), "no bold text with {environment:?}: {looks:?}");
        ensure!(looks.iter().any(is_colour) == has_colours, "with {environment:?}: {looks:?}");
        // An empty sequence ends bold text.
        ensure!(!bytes.windows(4).any(|four| four == b"\x1b[;m"), "sequences without a code with {environment:?}");
    }
    // Text for what is no terminal, or one that cannot move its cursor.
    let text = shop.hairpin.tell(&shop.topology, &["top", "--batch", "--count", "2", "--sort", "p99"])?;
    ensure!(text.matches("P99▼").count() == 2 && !text.contains('\u{1b}'), "{text}");
    let at = |name: &str| text.lines().position(|line| line.split(' ').next() == Some(name));
    ensure!(at("slow").is_some() && at("slow") < at("quick"), "{text}");
    ensure!(text.contains("down: connection refused"), "not all columns are there:\n{text}");
    let mut dumb = shop.show(&["top"], (80, 24), &[("TERM", "dumb")])?;
    ensure!(!dumb.end()?.success() && dumb.text().contains("--batch"), "{}", dumb.text());
    let mut watch = shop.show(&["status", "--watch"], (80, 24), &[("TERM", "dumb")])?;
    watch.wait("two rounds", |_| (watch.bytes().len() > 4000).then_some(()))?;
    ensure!(!watch.bytes().contains(&0x1b), "escape sequences on a dumb terminal");
    watch.child.kill()?;
    shop.close()
}

fn widths() -> Result<()> {
    let shop = Shop::open()?;
    let file = shop.hairpin.file().display().to_string();
    let page = format!("http://{}/", vip(Family::V4));
    let listings: [&[&str]; 9] = [
        &["status"],
        &["connections"],
        &["connections", "--service", "slow"],
        &["offload"],
        &["offload", "--service", "slow"],
        &["events"],
        &["top", "--batch", "--count", "1"],
        &["diff", &file],
        &["route", "GET", &page],
    ];
    let bare: [&[&str]; 5] = [
        &["limits"],
        &["validate", "-c", &file],
        &["validate", "--live", "-c", &file],
        &["--help"],
        &["top", "--help"],
    ];
    let asking = listings.iter().map(|arguments| shop.hairpin.command(&shop.topology, arguments));
    let bare = bare.iter().map(|arguments| {
        let mut command = shop.topology.balancer.command(&hairpin_program()?.to_string_lossy());
        command.args(*arguments);
        Ok(command)
    });
    for command in asking.chain(bare) {
        let command = command?;
        for columns in [80, 120] {
            let mut screen = Screen::start(&command, (columns, 2000), &[])?;
            let status = screen.end()?;
            ensure!(status.success(), "{command:?} ({status}): {}", screen.text());
            let shown = screen.shown.lock().unwrap_or_else(PoisonError::into_inner);
            let shown = shown.0.screen();
            // A word that is longer than the line, such as a counter's name, is the terminal's to break: it can be copied whole.
            let has_words =
                |row: u16| shown.rows(0, columns).nth(row.into()).is_some_and(|row| row.trim().contains(' '));
            if let Some(row) = (0..2000).find(|row| shown.row_wrapped(*row) && has_words(*row)) {
                bail!("{command:?} has a line of more than {columns} columns, line {row}:\n{}", shown.contents());
            }
        }
    }
    for (arguments, last) in [(&["connections"][..], "WHY"), (&["status"], "SHARE")] {
        let piped = shop.hairpin.tell(&shop.topology, arguments)?;
        let has_all = piped.lines().any(|line| line.starts_with("SERVICE") && line.ends_with(last));
        ensure!(has_all && !piped.contains('\u{1b}'), "columns are missing:\n{piped}");
    }
    shop.close()
}
