//! Fifty long transfers, two hundred short requests a second and connections that stay (fewer where the machine is too slow
//! for that, see [`super::scale`]), while Hairpin is reloaded, killed and upgraded under them: no transfer breaks, no
//! request is lost, and every connection keeps its server.
//!
//! A request counts as lost if it fails although a process was there all the time between its beginning and its end. In
//! the moments without one, TCP tries again: those requests, too, are expected to be answered within their timeout.

mod loaded_network;

use super::lane::{alone, skip};
use anyhow::{Context, Result, bail, ensure};
use hairpin_e2e::peer::rebuilt_program;
use hairpin_e2e::topology::Cards;
use libtest_mimic::Trial;
use loaded_network::{HTTP, LoadedNetwork, Variant};
use nix::sys::signal::Signal;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub(crate) fn tests() -> Vec<Trial> {
    let mut tests = vec![
        alone("survival: 20 reloads", || LoadedNetwork::play(Variant::with_policy("always"), |net| reloads(net, 20))),
        alone("survival: 20 kills", || LoadedNetwork::play(Variant::with_policy("always"), |net| kills(net, 20))),
        alone("survival: 5 upgrades", || LoadedNetwork::play(Variant::with_policy("always"), |net| upgrades(net, 5))),
        alone("survival: all of it, nothing offloaded", || {
            LoadedNetwork::play(Variant::with_policy("never"), |net| {
                reloads(net, 6)?;
                kills(net, 6)?;
                upgrades(net, 2)?;
                reloads(net, 2)
            })
        }),
    ];
    tests.extend(combinations());
    tests
}

/// All of it, by who sets connections up, where the programs are attached, and how packets reach servers. `make test` runs
/// two of these eight; `make restarts` and guests, which set `HAIRPIN_COMBINATIONS`, run the others too.
fn combinations() -> Vec<Trial> {
    let mut tests = Vec::new();
    for direct in [false, true] {
        for set_up in [true, false] {
            for cards in [Cards::Gso, Cards::Xdp] {
                let variant = Variant { policy: "always", set_up, cards, direct };
                let by = if set_up { "set up in the engine" } else { "set up by workers" };
                let way = if direct { ", direct" } else { "" };
                let place = if cards == Cards::Xdp { "xdp" } else { "gso" };
                tests.push(alone(&format!("survival: all of it, {by}{way} ({place})"), move || all_of_it(variant)));
            }
        }
    }
    tests
}

fn all_of_it(variant: Variant) -> Result<()> {
    if std::env::var_os("HAIRPIN_COMBINATIONS").is_none() && (variant.direct || !variant.set_up) {
        skip("HAIRPIN_COMBINATIONS is not set");
        return Ok(());
    }
    LoadedNetwork::play(variant, |net| {
        reloads(net, 5)?;
        kills(net, 4)?;
        upgrades(net, 1)?;
        let events = net.hairpin.status()?.events;
        let begun = events.get("kernel.set-up-begun").map_or(0, |count| count.total);
        ensure!((begun > 0) == variant.set_up, "the BPF programs have set up {begun} connections: {events:?}");
        Ok(())
    })
}

/// How often a reload is asked for, and how long its result is left to work.
const BETWEEN_RELOADS: Duration = Duration::from_millis(400);

/// Each reload adds, removes or reweights backends; the fourth is of a bad file. Every second one is by SIGHUP.
fn reloads(net: &mut LoadedNetwork, count: usize) -> Result<()> {
    for number in 1..=count {
        if number == 4 {
            bad_reload(net).context("the reload of a bad file")?;
            continue;
        }
        let mut services = net.variant.services();
        let mut away = None;
        for service in services.iter_mut().filter(|service| HTTP.contains(&service.name)) {
            service.weights = (1..=4).map(|server| 1 + (server * number % 7) as u16).collect();
            if number % 3 != 0 && number != count {
                // One of them leaves, another one each time; after the third reload all are back.
                let index = number % service.servers.len();
                away = Some(format!("server{}", service.servers.remove(index)));
                service.weights.remove(index);
            }
        }
        net.configure(&services)?;
        if number % 2 == 0 {
            by_signal(net)?
        } else {
            by_command(net)?
        }
        let applied = Instant::now();
        expect(net, &services).with_context(|| format!("after reload {number}"))?;
        sleep(BETWEEN_RELOADS);
        if let Some(server) = away {
            net.no_request_went_to(&server, applied);
        }
    }
    Ok(())
}

fn by_command(net: &mut LoadedNetwork) -> Result<()> {
    let said = net.hairpin.tell(&net.topology, &["reload"])?;
    ensure!(said.contains("weight"), "the reload does not say what has changed: {said}");
    Ok(())
}

fn by_signal(net: &mut LoadedNetwork) -> Result<()> {
    let before = net.hairpin.status()?.reloads;
    net.hairpin.process().signal(Signal::SIGHUP);
    for _ in 0..500 {
        let now = net.hairpin.status()?.reloads;
        if now.failed_total > before.failed_total {
            bail!("the reload by SIGHUP failed: {}", now.last_error);
        }
        if now.succeeded_total > before.succeeded_total {
            return Ok(());
        }
        sleep(Duration::from_millis(20));
    }
    bail!("nothing came of SIGHUP")
}

/// The status names the backends and weights that the configuration does.
fn expect(net: &mut LoadedNetwork, services: &[hairpin_e2e::peer::PeerService]) -> Result<()> {
    let status = net.hairpin.status()?;
    for service in services.iter().filter(|service| HTTP.contains(&service.name)) {
        for (server, weight) in service.servers.iter().zip(&service.weights) {
            let name = format!("server{server}");
            let backend = status.backend(service.name, &name).with_context(|| format!("{name} is not there"))?;
            ensure!(
                backend.weight == *weight && backend.state == "enabled",
                "{} is to have {name} with weight {weight}, but: {backend:?}",
                service.name
            );
        }
        let all = status.service(service.name).context("the service is not there")?;
        let enabled = all.backends.iter().filter(|backend| backend.state == "enabled").count();
        ensure!(enabled == service.servers.len(), "{enabled} backends are enabled, of {:?}", service.servers);
    }
    Ok(())
}

/// A bad file changes nothing, and the answer says where it is wrong and what would be right.
fn bad_reload(net: &mut LoadedNetwork) -> Result<()> {
    let file = net.hairpin.file().to_owned();
    let good = std::fs::read_to_string(&file)?;
    let before = net.hairpin.status()?;
    let at = good.lines().position(|line| line.starts_with("weight")).context("no weight in the configuration")?;
    let bad: Vec<&str> =
        good.lines().enumerate().map(|(i, line)| if i == at { "weight = 70000" } else { line }).collect();
    std::fs::write(&file, bad.join("\n") + "\n")?;
    let refused = net.hairpin.tell(&net.topology, &["reload"]).err().context("it was taken")?;
    let refused = format!("{refused:#}");
    for part in [format!(":{}:", at + 1).as_str(), "65535"] {
        ensure!(refused.contains(part), "the refusal does not contain {part:?}: {refused}");
    }
    let after = net.hairpin.status()?;
    ensure!(after.reloads.failed_total == before.reloads.failed_total + 1, "not counted: {:?}", after.reloads);
    for (old, new) in before.services.iter().zip(&after.services) {
        let of = |service: &hairpin_e2e::peer::status::ServiceStatus| -> Vec<(String, u16, String)> {
            let backends = service.backends.iter();
            backends.map(|backend| (backend.name.clone(), backend.weight, backend.state.clone())).collect()
        };
        ensure!(of(old) == of(new), "{} changed: {:?}, now {:?}", old.name, of(old), of(new));
    }
    std::fs::write(&file, good)?;
    Ok(())
}

/// Killed at random moments, and started again after a random while.
fn kills(net: &mut LoadedNetwork, count: usize) -> Result<()> {
    let mut random = fastrand::Rng::with_seed(20);
    for number in 1..=count {
        sleep(Duration::from_millis(random.u64(300..1300)));
        let killed = Instant::now();
        let _ = net.hairpin.end(Signal::SIGKILL)?;
        sleep(Duration::from_millis(random.u64(0..300)));
        net.hairpin.start_again(&net.topology, &[]).with_context(|| format!("after kill {number}"))?;
        net.no_process_ran(killed, Instant::now());
        net.adopted("restart").with_context(|| format!("after kill {number}"))?;
    }
    sleep(Duration::from_secs(1));
    Ok(())
}

/// Another program takes over, again and again; there is no moment without a process.
fn upgrades(net: &mut LoadedNetwork, count: usize) -> Result<()> {
    for number in 1..=count {
        let program = rebuilt_program(&net.topology, number)?;
        net.hairpin.upgrade(&net.topology, &program).with_context(|| format!("upgrade {number}"))?;
        net.adopted("upgrade").with_context(|| format!("after upgrade {number}"))?;
        sleep(Duration::from_secs(1));
    }
    Ok(())
}
