//! A browser and its pages: Chromium without a window fetches a page of a hundred resources over the connections it
//! makes itself, and the page's own script (`browser.js`) looks at every byte of them.

use super::http_network::{BROWSER, HttpNetwork, HttpNetworks, WEB, Which, missing};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::command;
use hairpin_e2e::servers::web;
use hairpin_e2e::tool::recorder::{self, SUM_OF_NOTHING};
use hairpin_e2e::topology::Topology;
use libtest_mimic::Trial;
use std::fmt::Write;
use std::sync::Arc;

pub(super) fn tests(networks: &Arc<HttpNetworks>, which: Which) -> Vec<Trial> {
    let test = |name, body: fn(&mut HttpNetwork) -> Result<()>| {
        networks.test(name, which, move |net| match missing("browser") {
            Some(why) => {
                crate::lane::skip(why);
                Ok(())
            }
            None => body(net),
        })
    };
    let mut tests = vec![test("a browser shows a page of 100 resources", one_group)];
    if which == Which::Gso {
        tests.push(test("a browser uses four backend groups", groups_and_form));
    }
    tests
}

/// Connections that Chromium makes to a server at most.
const PARALLEL: u64 = 6;

/// How many resources of each kind, by the ends of their names, and how many of the first are large.
const KINDS: [(&str, usize, usize); 4] = [("bmp", 56, 4), ("css", 14, 1), ("js", 20, 2), ("dat", 10, 3)];

/// A resource of the page.
pub(crate) struct Resource {
    pub(crate) name: String,
    pub(crate) file: Vec<u8>,
    /// Of what the page gets to see: pixels, a text, or the bytes as they are.
    sum: u32,
}

/// FNV-1a, 32 bits: numbers of JavaScript hold it.
fn sum(bytes: impl IntoIterator<Item = u8>) -> u32 {
    bytes.into_iter().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// A hundred resources of all kinds, each with bytes of its own, the same in every run.
pub(crate) fn resources() -> Vec<Resource> {
    let mut random = fastrand::Rng::with_seed(100);
    let mut resources = Vec::new();
    for (kind, count, large) in KINDS {
        for i in 0..count {
            let name = format!("browser-{i:02}.{kind}");
            let bytes = if i < large { random.usize(600 << 10..3 << 20) } else { random.usize(100..20 << 10) };
            let (file, sum) = match kind {
                "bmp" => picture(&mut random, bytes),
                "css" => {
                    let text = letters(&mut random, bytes);
                    (format!(":root {{ --browser-{i:02}: \"{text}\"; }}\n").into_bytes(), sum(text.bytes()))
                }
                "js" => {
                    let text = letters(&mut random, bytes);
                    (format!("loaded('{name}', '{text}');\n").into_bytes(), sum(text.bytes()))
                }
                _ => {
                    let mut file = vec![0; bytes];
                    random.fill(&mut file);
                    let sum = sum(file.iter().copied());
                    (file, sum)
                }
            };
            resources.push(Resource { name, file, sum });
        }
    }
    resources
}

fn letters(random: &mut fastrand::Rng, length: usize) -> String {
    std::iter::repeat_with(|| random.alphanumeric()).take(length).collect()
}

/// A bitmap of about so many bytes, 24 bits a pixel, from the top down; the sum of its colours, red, green, blue.
fn picture(random: &mut fastrand::Rng, bytes: usize) -> (Vec<u8>, u32) {
    // A line's length is to be a multiple of four.
    let width = (bytes.isqrt() / 2).next_multiple_of(4);
    let height = (bytes / (3 * width)).max(1);
    let mut pixels = vec![0; 3 * width * height];
    random.fill(&mut pixels);
    let headers = 54;
    let mut file = b"BM".to_vec();
    for word in [headers + pixels.len(), 0, headers, 40, width] {
        file.extend((word as u32).to_le_bytes());
    }
    file.extend((-(height as i32)).to_le_bytes());
    // One plane, 24 bits, not compressed; the rest may be left open.
    file.extend([1, 0, 24, 0]);
    file.resize(headers, 0);
    file.extend(&pixels);
    let colours = pixels.chunks(3).flat_map(|pixel| [pixel[2], pixel[1], pixel[0]]);
    (file, sum(colours))
}

/// What the page does beside showing its resources.
#[derive(Clone, Copy)]
pub(crate) struct PageOptions {
    /// The protocol by which they are to come (`nextHopProtocol`).
    pub(crate) protocol: &'static str,
    /// It ends with a form with a file.
    pub(crate) form: bool,
    /// It sends a message over a WebSocket, which is to come back.
    pub(crate) socket: bool,
}

/// The page: what asks for each resource, and what is to arrive.
pub(crate) fn page(resources: &[Resource], options: PageOptions) -> Result<String> {
    let PageOptions { protocol, form, socket } = options;
    let mut expected = String::new();
    let (mut head, mut body) = (String::new(), String::new());
    for Resource { name, file, sum } in resources {
        writeln!(expected, "  ['{name}', {}, {sum}],", file.len())?;
        match name.rsplit('.').next() {
            Some("bmp") => writeln!(body, "<img id='{name}' src='{name}'>")?,
            Some("css") => writeln!(head, "<link rel='stylesheet' href='{name}'>")?,
            Some("js") => writeln!(body, "<script src='{name}'></script>")?,
            // The script fetches them.
            _ => {}
        }
    }
    if form {
        body += "<form method='post' action='upload' enctype='multipart/form-data' target='answer'>\
                 <input name='who' value='browser'><input type='file' name='file'></form>\
                 <iframe name='answer'></iframe>\n";
    }
    let script = include_str!("browser.js");
    Ok(format!(
        "<!DOCTYPE html>\n<html><head><meta charset='utf-8'><title>Resources</title>\n\
         <script>\nconst [protocol, form, socket] = ['{protocol}', {form}, {socket}];\nconst expected = [\n{expected}];\n{script}</script>\n{head}</head>\n\
         <body>\n<pre id='result'>not loaded</pre>\n{body}</body></html>\n"
    ))
}

/// Has Chromium show a page; what the page says in the end.
pub(crate) fn show(topology: &Topology, more: &[&str], url: &str) -> Result<String> {
    let program = web::browser().context("no browser")?;
    let profile = topology.scratch.file("browser");
    let mut browser = topology.client.command("timeout");
    browser.args(["--kill-after=5", "240", program, "--headless", "--disable-gpu", "--force-color-profile=srgb"]);
    // As root it has no sandbox; what it loads is ours.
    browser.args(["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking", "--no-first-run"]);
    browser.arg(format!("--user-data-dir={}", profile.display()));
    // The page may take so many milliseconds in which it waits for nothing from the network.
    browser.args(["--virtual-time-budget=60000", "--dump-dom"]).args(more).arg(url);
    let page = command::output(&mut browser)?;
    std::fs::remove_dir_all(profile)?;
    let (_, rest) = page.split_once("<pre id=\"result\">").with_context(|| format!("not our page: {page:.300}"))?;
    Ok(rest.split("</pre>").next().unwrap_or_default().to_owned())
}

/// Writes the page and its resources where servers find them, and has them shown; the resources.
fn shown(net: &HttpNetwork, port: u16, service: &str, form: bool) -> Result<Vec<Resource>> {
    let resources = resources();
    ensure!(resources.len() == 100, "{} resources", resources.len());
    let pages = net.topology.scratch.file("pages");
    for Resource { name, file, .. } in &resources {
        std::fs::write(pages.join(name), file)?;
    }
    std::fs::write(
        pages.join("browser.html"),
        page(&resources, PageOptions { protocol: "http/1.1", form, socket: false })?,
    )?;
    let connections = |net: &HttpNetwork| -> Result<u64> {
        let status = net.hairpin.status()?;
        Ok(status.service(service).with_context(|| format!("no service {service}"))?.connections_total)
    };
    let before = connections(net)?;
    let said = show(&net.topology, &[], &net.url(port, "/browser.html"))?;
    ensure!(said == "well", "the page says: {said}");
    // It kept those that it made. (Some it makes beforehand and never uses.)
    let made = connections(net)? - before;
    ensure!((PARALLEL..=3 * PARALLEL).contains(&made), "{made} connections for a hundred resources");
    Ok(resources)
}

fn one_group(net: &mut HttpNetwork) -> Result<()> {
    shown(net, WEB, "web", false).map(drop)
}

fn groups_and_form(net: &mut HttpNetwork) -> Result<()> {
    let resources = shown(net, BROWSER, "browser", true)?;
    let status = net.hairpin.status()?;
    for group in ["browser/pictures", "browser/scripts"] {
        let group = status.service(group).with_context(|| format!("no group {group}"))?;
        ensure!(group.backends.iter().all(|backend| backend.connections_total > 0), "{} was not asked", group.name);
    }
    // The form, byte by byte, but for the boundary that the browser chose.
    let heard = net.recorders[1].heard();
    let [heard] = &heard[..] else { anyhow::bail!("{} requests instead of the form", heard.len()) };
    let kind = heard.field("Content-Type").unwrap_or_default();
    let boundary = kind.strip_prefix("multipart/form-data; boundary=");
    let boundary = boundary.with_context(|| format!("the form is {kind:?}"))?;
    let file = resources.iter().find(|resource| resource.name.ends_with("dat")).context("nothing to upload")?;
    let disposition = "Content-Disposition: form-data; name=";
    let mut body = format!("--{boundary}\r\n{disposition}\"who\"\r\n\r\nbrowser\r\n").into_bytes();
    body.extend(format!("--{boundary}\r\n{disposition}\"file\"; filename=\"upload\"\r\n").bytes());
    body.extend(b"Content-Type: application/octet-stream\r\n\r\n");
    body.extend(&file.file);
    body.extend(format!("\r\n--{boundary}--\r\n").bytes());
    ensure!(
        heard.body_bytes == body.len() as u64 && heard.body_sum == recorder::sum(SUM_OF_NOTHING, &body),
        "of the form's {} bytes arrived {}, or others",
        body.len(),
        heard.body_bytes
    );
    Ok(())
}
