//! The page on the admin address, in a browser, under real traffic.

use super::lane;
use anyhow::{Context, Result, ensure};
use hairpin_e2e::browser::Browser;
use hairpin_e2e::load::{self, WrkOptions};
use hairpin_e2e::peer::{Hairpin, HairpinOptions, PeerService};
use hairpin_e2e::process::Process;
use hairpin_e2e::servers::web::{browser, certificate};
use hairpin_e2e::servers::{HTTP_PORT, Servers};
use hairpin_e2e::topology::{Family, Topology, TopologyOptions};
use libtest_mimic::Trial;
use nix::sys::signal::Signal;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    let test = |name, body: fn() -> Result<()>| {
        lane::OWN.test(name, move || match browser() {
            Some(_) => body(),
            None => {
                lane::skip("there is no browser (scripts/install-deps)");
                Ok(())
            }
        })
    };
    vec![
        test("page: services, health and rates under traffic", under_traffic),
        test("page: hostile names stay text", hostile_names),
        test("page: unready services, lower bounds and old events", rare_answers),
        test("page: ten thousand backends in a thousand groups", many),
    ]
}

const URL: &str = "http://127.0.0.1:9560/";
/// Until what has happened is shown.
const SHOWN: Duration = Duration::from_secs(30);

/// What the page shows of the past.
const HISTORY: Duration = Duration::from_secs(180);

/// The text of the row whose first cell begins so.
fn row(name: &str) -> String {
    format!("[...document.querySelectorAll('#services tbody tr')].find((row) => row.innerText.startsWith('{name}'))")
}

/// Whether the number in the tile is above zero.
fn is_above_zero(tile: &str) -> String {
    format!("parseFloat(document.querySelector('[data-tile={tile}] .value')?.textContent) > 0")
}

/// A network with traffic: HTTP, HTTPS and TCP. One of the HTTP service's backends is down, one drains.
struct Scene {
    browser: Browser,
    loads: Vec<Process>,
    hairpin: Hairpin,
    servers: Servers,
    topology: Topology,
}

const HEALTH: &str = "[service.health]\ncheck = \"http\"\npath = \"/health\"\ninterval = \"500ms\"\ntimeout = \"400ms\"\nfall = 2\nrise = 2\n";

impl Scene {
    fn start(seconds: u64) -> Result<Scene> {
        let topology = Topology::create(TopologyOptions::default())?;
        let servers = Servers::start(&topology)?;
        let pem = certificate(&topology, "page.pem", &["web.test"])?;
        let web = PeerService { server_port: HTTP_PORT, tables: HEALTH.into(), ..PeerService::http("web", 80) };
        let files =
            PeerService { server_port: HTTP_PORT, servers: vec![1, 2], ..PeerService::tcp("files", Family::V4, 81) };
        let echo = PeerService { servers: vec![1, 2, 4], ..PeerService::udp("echo", Family::V6, 7) };
        let services = [web, files, PeerService::https("secure", 443, &pem), echo];
        let hairpin = Hairpin::start(&topology, &services, &HairpinOptions::default())?;
        let mut loads = Vec::new();
        for (number, (port, page, connections, close)) in
            [(80, "1k", 24, false), (81, "10m", 4, false), (81, "128k", 2, true)].into_iter().enumerate()
        {
            let duration = Duration::from_secs(seconds);
            let options = WrkOptions { page, connections, duration, close };
            let target = format!("10.0.100.1:{port}");
            let wrk = load::wrk_command(&topology.client, &target, 1, &options);
            loads.push(topology.client.start(wrk, &topology.scratch.file(format!("load-{number}")))?);
        }
        hairpin.tell(&topology, &["reload"])?;
        hairpin.tell(&topology, &["backend", "drain", "web", "server2"])?;
        let browser = Browser::start(&topology.balancer, &topology.scratch)?;
        Ok(Scene { browser, loads, hairpin, servers, topology })
    }

    /// Nothing was asked of another host, and the browser has nothing to complain about.
    fn is_clean(&self) -> Result<()> {
        let elsewhere = self.browser.requests.iter().find(|url| !url.starts_with(URL) && *url != "about:blank");
        ensure!(elsewhere.is_none(), "the page asks another host: {elsewhere:?}");
        ensure!(self.browser.complaints.is_empty(), "{:#?}", self.browser.complaints);
        Ok(())
    }
}

fn under_traffic() -> Result<()> {
    let pictures = std::env::var_os("HAIRPIN_PICTURES").map(PathBuf::from);
    let mut scene = Scene::start(if pictures.is_some() { 300 } else { 120 })?;
    scene.browser.size(1280, 900, 1.0)?;
    scene.browser.open(URL)?;
    for name in ["web", "files", "secure", "echo"] {
        scene.browser.wait_until(&format!("{} !== undefined", row(name)), SHOWN)?;
    }
    for tile in ["requests", "latency", "bits", "connections", "offloaded"] {
        scene.browser.wait_until(&is_above_zero(tile), SHOWN)?;
    }
    if pictures.is_some() {
        sleep(HISTORY / 2);
    }
    scene.servers.nginx(3).stop()?;
    let down = "document.getElementById('attention').innerText.includes('web/server3 is down for')";
    scene.browser.wait_until(down, SHOWN)?;
    let row_of_down = "[...document.querySelectorAll('#services tr.backend.bad')].map((row) => row.innerText).join()";
    let text = scene.browser.evaluate(row_of_down)?;
    let text = text.as_str().context("no row of a backend that is down")?;
    ensure!(text.starts_with("server3 10.0.3.2:80") && text.contains("down") && text.contains("for "), "{text}");
    let reason = scene.hairpin.status()?.backend("web", "server3").context("no server3")?.health.reason.clone();
    ensure!(!reason.is_empty() && text.contains(&reason), "{text}: it is down because of: {reason}");
    let drains =
        "[...document.querySelectorAll('#services tr.warn.backend')].some((row) => row.innerText.includes('drain'))";
    scene.browser.wait_until(drains, SHOWN)?;
    let events = "document.getElementById('events').innerText";
    scene.browser.wait_until(&format!("{events}.includes('server3') && {events}.includes('reload')"), SHOWN)?;
    let kernel = "parseFloat(document.querySelector('[data-carrier=kernel] td').textContent) > 0";
    scene.browser.wait_until(kernel, SHOWN)?;
    ensure!(scene.browser.evaluate("document.querySelectorAll('#carriers dt').length")? != 0, "no reason is shown");
    ensure!(scene.browser.evaluate("document.querySelectorAll('#capacity .bar').length > 3")? == true, "no bars");
    if let Some(directory) = pictures {
        sleep(HISTORY / 2);
        paint(&mut scene.browser, &directory)?;
    }
    phone_and_dark(&mut scene.browser)?;
    scene.is_clean()?;
    // The page says so when the instance is gone, and goes on when it is there again.
    scene.loads.clear();
    scene.hairpin.end(Signal::SIGTERM)?;
    scene
        .browser
        .wait_until("document.body.classList.contains('away') && !document.getElementById('away').hidden", SHOWN)?;
    ensure!(scene.browser.evaluate(&format!("{} !== undefined", row("web")))? == true, "the last values are gone");
    scene.hairpin.start_again(&scene.topology, &[])?;
    scene.browser.wait_until("!document.body.classList.contains('away')", SHOWN)?;
    scene.servers.start_nginx(&scene.topology, 3)?;
    scene.browser.wait_until("!document.getElementById('attention').innerText.includes('server3')", SHOWN)
}

fn phone_and_dark(browser: &mut Browser) -> Result<()> {
    let ground = "getComputedStyle(document.body).backgroundColor";
    let light = browser.evaluate(ground)?;
    browser.dark(true)?;
    let dark = browser.evaluate(ground)?;
    ensure!(light != dark, "light and dark have the same ground, {light}");
    browser.size(360, 740, 1.0)?;
    let widths = browser.evaluate("[document.documentElement.scrollWidth, innerWidth].join(' ')")?;
    ensure!(widths == "360 360", "on a phone the page is wider than the window: {widths}");
    browser.size(1280, 900, 1.0)?;
    browser.dark(false)
}

/// Writes the pictures of the guide.
fn paint(browser: &mut Browser, directory: &std::path::Path) -> Result<()> {
    std::fs::create_dir_all(directory)?;
    for (name, is_dark, width) in
        [("admin-page", false, 1280), ("admin-page-dark", true, 1280), ("admin-page-phone", false, 390)]
    {
        browser.dark(is_dark)?;
        browser.size(width, 900, 1.0)?;
        // As high as the page, without what only scrolling shows on a phone.
        let height = browser.evaluate("document.documentElement.scrollHeight")?.as_u64().unwrap_or(900) as u32;
        browser.size(width, height.min(if width < 500 { 1300 } else { 2000 }), 1.0)?;
        sleep(Duration::from_secs(3));
        browser.picture(&directory.join(format!("{name}.png")))?;
    }
    browser.dark(false)?;
    browser.size(1280, 900, 1.0)
}

/// What a name would be that is markup. The instance takes no such names, but reasons and events may say anything.
const MARKUP: &str = "<img src=x onerror=\"window.hurt=1\"><script>window.hurt=1</script>";

fn hostile_names() -> Result<()> {
    let mut scene = Scene::start(30)?;
    // Every text that the instance sends becomes markup.
    let script = format!(
        "const ask = window.fetch;
         window.fetch = async (...what) => {{
           const answer = await ask(...what);
           const put = (key, value) => (typeof value === 'string' && !['pid', 'state', 'time', 'group_of', 'version', 'engine'].includes(key) ? {} + value : value);
           return new Response(JSON.stringify(JSON.parse(await answer.text(), put)), {{ headers: answer.headers }});
         }};",
        serde_json::json!(MARKUP)
    );
    scene.browser.call("Page.addScriptToEvaluateOnNewDocument", serde_json::json!({ "source": script }))?;
    scene.browser.open(URL)?;
    scene.browser.wait_until("document.querySelectorAll('#services tbody tr').length > 4", SHOWN)?;
    scene.browser.wait_until("document.querySelectorAll('#events li').length > 1", SHOWN)?;
    ensure!(scene.browser.evaluate("document.body.innerText.includes('onerror=')")? == true, "the names are not shown");
    ensure!(scene.browser.evaluate("window.hurt === undefined")? == true, "markup in a name has run");
    ensure!(scene.browser.evaluate("document.querySelectorAll('main img, main script').length")? == 0, "it is markup");
    scene.is_clean()
}

/// Answers that are rare: a service that is not ready, counts that are lower bounds, an event of another day.
fn rare_answers() -> Result<()> {
    let mut scene = Scene::start(30)?;
    let script = "const ask = window.fetch;
         window.fetch = async (path, ...how) => {
           const answer = await ask(path, ...how);
           const body = JSON.parse(await answer.text());
           for (const one of body.services ?? []) {
             if (one.name === 'files') [one.ready, one.not_ready] = [false, 'checks have not finished'];
           }
           if (path === 'offload') body.is_part = true;
           for (const one of path === 'events' ? body.events : []) one.time = '2026-01-02T03:04:05.000Z';
           return new Response(JSON.stringify(body), { headers: answer.headers });
         };";
    scene.browser.call("Page.addScriptToEvaluateOnNewDocument", serde_json::json!({ "source": script }))?;
    scene.browser.open(URL)?;
    scene.browser.wait_until(&format!("{} !== undefined", row("files")), SHOWN)?;
    let at_least = "document.getElementById('carriers').innerText.includes('at least')";
    scene.browser.wait_until(at_least, SHOWN)?;
    let date = "document.querySelector('#events time')?.textContent.includes(new Date('2026-01-02T03:04:05Z').toLocaleDateString())";
    scene.browser.wait_until(date, SHOWN)?;
    let rows = |words: &str| {
        format!(
            "(() => {{
               const [trouble, filter] = ['trouble', 'filter'].map((id) => document.getElementById(id));
               if (!trouble.checked) trouble.click();
               filter.value = '{words}';
               filter.dispatchEvent(new Event('input'));
               return [...document.querySelectorAll('#services tr.service')].map((row) => row.innerText.split(/\\s/)[0]).join();
             }})()"
        )
    };
    for (words, shown) in [("files", "files"), ("checks finished", "files"), ("files nothing", ""), ("nothing", "")] {
        let found = scene.browser.evaluate(&rows(words))?;
        ensure!(found == shown, "only trouble, filter {words:?}: {found} instead of {shown:?}");
    }
    scene.is_clean()
}

/// Groups, and backends of each.
const GROUPS: usize = 1000;
const BACKENDS: usize = 10;

fn many() -> Result<()> {
    let topology = Topology::create(TopologyOptions::default())?;
    let _servers = Servers::start(&topology)?;
    let mut tables = String::new();
    for group in 0..GROUPS {
        let backends: Vec<String> = (0..BACKENDS)
            .map(|backend| format!("\"10.0.{}.2:{}\"", 1 + backend % 4, 2000 + group * BACKENDS + backend))
            .collect();
        tables += &format!("[[service.group]]\nname = \"group-{group}\"\nbackends = [{}]\n", backends.join(", "));
        tables += &format!("[[service.route]]\npath_prefix = \"/group-{group}/\"\ngroup = \"group-{group}\"\n");
    }
    let web = PeerService { server_port: HTTP_PORT, tables, ..PeerService::http("web", 80) };
    let _hairpin = Hairpin::start(&topology, &[web], &HairpinOptions::default())?;
    for path in ["", "status", "metrics", "offload"] {
        let began = Instant::now();
        let got = topology.balancer.script(&format!("curl --silent --fail {URL}{path} | wc -c"))?;
        println!("/{path}: {} bytes in {:.0} ms", got.trim(), began.elapsed().as_secs_f64() * 1e3);
        ensure!(got.trim().parse::<u64>()? > 100, "/{path} is empty");
    }
    let mut browser = Browser::start(&topology.balancer, &topology.scratch)?;
    let began = Instant::now();
    browser.open(URL)?;
    let count = format!("document.getElementById('services-count')?.innerText.includes('{} groups')", "1,000");
    browser.wait_until(&count, SHOWN)?;
    println!("the page shows them after {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    // All of it opened: there are never more rows than asked for.
    browser.evaluate("document.querySelector('#services .toggle').click()")?;
    browser.wait_until("document.querySelectorAll('#services tbody tr').length === 100", SHOWN)?;
    let began = Instant::now();
    browser.evaluate("{ const filter = document.getElementById('filter'); filter.value = 'group-731 2:9313'; filter.dispatchEvent(new Event('input')); }")?;
    browser.wait_until(&format!("{}?.innerText.includes('10.0.4.2:9313')", row("10.0.4.2:9313")), SHOWN)?;
    println!("a filter shows one of them after {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    ensure!(browser.complaints.is_empty(), "{:#?}", browser.complaints);
    Ok(())
}
