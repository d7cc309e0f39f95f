//! Packets get lost between the client and Hairpin, and between Hairpin and the servers: everything arrives all the same.

use super::http_network::{HttpNetwork, HttpNetworks, PATIENCE, PLAIN, ROUTES, WEB, Which};
use anyhow::{Context, Result, ensure};
use hairpin_e2e::tool::recorder::{SUM_OF_NOTHING, sum};
use libtest_mimic::Trial;
use std::sync::Arc;

/// Of so many arriving packets one is dropped, at random.
const ONE_OF: u32 = 50;

pub(super) fn tests(networks: &Arc<HttpNetworks>, which: Which) -> Vec<Trial> {
    // Plain cards take too long over it on two cores, and show nothing that the others do not.
    let name = "losses on both sides";
    vec![networks.test(name, which, lossy)]
}

fn lossy(net: &mut HttpNetwork) -> Result<()> {
    let lose = format!(
        "nft -f - <<'END'\ntable inet loss {{\n chain arrivals {{\n  type filter hook prerouting priority -300;\n  \
         iifname != \"lo\" numgen random mod {ONE_OF} < 1 drop\n }}\n}}\nEND\n"
    );
    let ends: Vec<_> = std::iter::once(&net.topology.client).chain(&net.topology.servers).collect();
    for namespace in &ends {
        namespace.script(&lose)?;
    }
    let result = transfers(net);
    for namespace in std::iter::once(&net.topology.client).chain(&net.topology.servers) {
        namespace.script("nft delete table inet loss\n")?;
    }
    result
}

fn transfers(net: &HttpNetwork) -> Result<()> {
    let page = net.page("10m")?;
    let file = net.topology.scratch.file("lossy");
    net.curl(WEB, "/10m", &["--output", &file.display().to_string()]).context("download")?;
    ensure!(std::fs::read(&file)? == page, "10 MB arrived changed");
    let upload = net.topology.scratch.file("pages/10m").display().to_string();
    let text = net.curl(PLAIN, "/up", &["--upload-file", &upload, "--output", "/dev/null", "--dump-header", "-"])?;
    let expected = format!("X-Body: {}:{:016x}", page.len(), sum(SUM_OF_NOTHING, &page));
    ensure!(text.contains(&expected), "10 MB went up as {text}, not {expected}");
    // Heads get lost, too.
    let mut connection = net.connect(ROUTES)?;
    for i in 0..300 {
        let (path, server) = if i % 2 == 0 { (format!("/{i}"), "one") } else { (format!("/two/{i}"), "two") };
        connection.send(format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n").as_bytes(), PATIENCE)?;
        let answer = connection.answer(false, 6 * PATIENCE).with_context(|| format!("request {i} of a connection"))?;
        ensure!(answer.header("X-Server") == Some(server), "request {i} was answered by {}", answer.head());
        ensure!(answer.text().starts_with(&format!("GET {path} ")), "request {i}: {}", answer.text());
    }
    for i in 0..30 {
        let answer = net.fetch(WEB, "/1k", "Connection: close\r\n").with_context(|| format!("connection {i}"))?;
        ensure!(answer.body == net.page("1k")?, "1 KB arrived changed");
    }
    Ok(())
}
