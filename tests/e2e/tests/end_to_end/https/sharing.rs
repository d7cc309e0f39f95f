//! An http and an https service that share routes and backends (`routes_of`).

use super::{NAME, PORT, Scene};
use anyhow::{Result, ensure};
use hairpin_e2e::peer::PeerService;
use hairpin_e2e::topology::{Family, vip};

const TABLES: &str = "[service.http]\nserver_timing = true\n[[service.access]]\naction = \"deny\"\npath_prefix = \
                      \"/admin/\"\n[[service.group]]\nname = \"b\"\nbackends = [\"SERVER3\"]\n[[service.route]]\npath = \
                      \"/128k\"\ngroup = \"b\"\n";

fn plain(tables: &str) -> PeerService {
    PeerService { servers: Vec::new(), balance: "", tables: tables.to_owned(), ..PeerService::http("plain", 80) }
}

/// Which servers answer some requests for a page, and with which status.
fn answers(scene: &Scene, port: u16, page: &str) -> Result<Vec<String>> {
    let scheme = if port == PORT { "https" } else { "http" };
    let resolve = format!("{NAME}:{port}:{}", vip(Family::V4));
    let mut all = Vec::new();
    for _ in 0..6 {
        let options = ["--resolve", &resolve, "--output", "/dev/null", "--dump-header", "-"];
        let head = scene.curl(&options, &format!("{scheme}://{NAME}:{port}/{page}"))?;
        let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
        let server = head.lines().find_map(|line| line.split_once("desc=")).map_or("", |(_, server)| server);
        all.push(format!("{status} {}", server.split('"').nth(1).unwrap_or_default()));
    }
    all.sort();
    all.dedup();
    Ok(all)
}

pub(super) fn shares() -> Result<()> {
    let mut scene = Scene::start(&[], "")?;
    let third = PeerService { servers: vec![3], ..scene.services[0].clone() };
    let three = third.server_ends()[0].clone();
    scene.services[0].servers = vec![1, 2];
    scene.services[0].tables.push_str(&TABLES.replace("SERVER3", &three));
    scene.services.push(plain("routes_of = \"web\"\n"));
    let reload = |scene: &Scene| -> Result<String> {
        scene.hairpin.configure(&scene.topology, &scene.services, &scene.options)?;
        scene.hairpin.tell(&scene.topology, &["reload"])
    };
    reload(&scene)?;
    let own = ["200 server1".to_owned(), "200 server2".to_owned()];
    for port in [PORT, 80] {
        ensure!(
            answers(&scene, port, "1k")? == own,
            "{port}: {:?}\n{}",
            answers(&scene, port, "1k"),
            scene.hairpin.logs()
        );
        ensure!(
            answers(&scene, port, "128k")? == [format!("200 {three}")],
            "{port}: {:?}",
            answers(&scene, port, "128k")
        );
        ensure!(answers(&scene, port, "admin/")? == ["403 "], "{port}: {:?}", answers(&scene, port, "admin/"));
    }
    // What is disabled is so for both, and is said in one place.
    scene.hairpin.tell(&scene.topology, &["backend", "disable", "web", "server1"])?;
    for port in [PORT, 80] {
        ensure!(answers(&scene, port, "1k")? == ["200 server2"], "{port}: {:?}", answers(&scene, port, "1k"));
    }
    let status = scene.hairpin.status()?;
    let names: Vec<&str> = status.services.iter().map(|service| &*service.name).collect();
    ensure!(names == ["web", "web/b", "plain"], "{names:?}");
    ensure!(status.services[2].backends.is_empty(), "{:?}", status.services[2]);
    scene.hairpin.tell(&scene.topology, &["backend", "reset", "web", "server1"])?;
    // A reload that ends the sharing, and one that begins it again.
    let alone = PeerService { servers: vec![2], balance: "", ..plain("[service.http]\nserver_timing = true\n") };
    scene.services[1] = PeerService { server_port: scene.services[0].server_port, ..alone };
    let told = reload(&scene)?;
    ensure!(told.contains("routes_of: web -> none"), "{told}");
    ensure!(answers(&scene, 80, "128k")? == ["200 server2"], "{:?}", answers(&scene, 80, "128k"));
    ensure!(answers(&scene, PORT, "1k")? == own, "{:?}", answers(&scene, PORT, "1k"));
    scene.services[1] = plain("routes_of = \"web\"\n");
    reload(&scene)?;
    ensure!(answers(&scene, 80, "128k")? == [format!("200 {three}")], "{:?}", answers(&scene, 80, "128k"));
    Ok(())
}
