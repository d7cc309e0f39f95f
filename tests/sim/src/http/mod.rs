//! HTTP/1.1 clients and servers in virtual time: persistent and pipelined requests, uploads, chunks and trailers, interim
//! responses, HEAD, half close, resets. Peers know nothing of what stands between them but what a configuration promises
//! ([`site`]), so they test it.
//!
//! | module | what it is |
//! |---|---|
//! | [`message`] | heads and bodies, written and read |
//! | [`exchange`] | what is asked and answered, drawn from the seed |
//! | [`site`] | the service under test, and what it promises |
//! | [`client`], [`server`] | the peers |

pub mod client;
pub mod exchange;
pub mod message;
pub mod server;
pub mod site;

use crate::balancer::{BalancerHost, Bug};
use crate::host::{Host, Role, SocketOptions};
use crate::link::Faults;
use crate::network::{Middle, VirtualNetwork};
use crate::scenario::{Between, RunFailure, RunSummary, SERVER_PORT, balancer, conclude, end, pool, service};
use crate::trace::Trace;
use client::Client;
use exchange::{AnswerKind, Plans, Variety};
use fastrand::Rng;
use hairpin_core::config::Snapshot;
use hairpin_core::flow::Endpoint;
use hairpin_core::time::Duration;
use server::Server;
use site::Site;
use std::cell::RefCell;
use std::rc::Rc;

/// Connections a server takes at a time without being asked for each.
const BACKLOG: usize = 24;

/// HTTP between clients and servers.
pub fn run(seed: u64, between: Between, bug: Option<Bug>) -> Result<RunSummary, RunFailure> {
    run_killed(seed, between, bug, None)
}

/// As [`run`], through processes that last so long on average.
pub fn run_killed(
    seed: u64,
    between: Between,
    bug: Option<Bug>,
    process_lasts: Option<Duration>,
) -> Result<RunSummary, RunFailure> {
    let mut random = Rng::with_seed(seed);
    let ipv6 = random.bool();
    let vip = end(ipv6, 1, 1, 80);
    let own = random.usize(1..3);
    let servers: Vec<Endpoint> = (0..own + 2).map(|n| end(ipv6, 2, 10 + n as u8, SERVER_PORT)).collect();
    let mut draw_balancer = random.fork();
    let drawn = Site::draw(&mut random);
    let site = (between == Between::Layer7).then_some(drawn);
    let name = format!("http-{between:?}-{seed}");
    let (middle, target) = match between {
        Between::Nothing => (Middle::Router, servers[0]),
        Between::Layer4(forwarding) => {
            let mut service = service("http", vip, 0, &servers);
            service.forwarding = forwarding;
            let options = balancer(&mut draw_balancer, Snapshot::new([service].into(), pool(ipv6)), bug);
            (Middle::Balancer(Box::new(BalancerHost::new(options, &mut draw_balancer))), vip)
        }
        Between::Layer7 => {
            let services = drawn.services(vip, &servers[..own], &servers[own..]);
            let mut options = balancer(&mut draw_balancer, Snapshot::new(services.into(), pool(ipv6)), bug);
            options.process_lasts = process_lasts;
            (Middle::Balancer(Box::new(BalancerHost::new(options, &mut draw_balancer))), vip)
        }
    };
    let mut network = VirtualNetwork::new(middle, Trace::new(&name), random.fork());
    let plans = Rc::new(RefCell::new(Plans { seed, group_from: own, ..Plans::default() }));
    let faults = random.u8(..4) == 0;
    let variety = Variety { faults, own: site.is_some(), old: true };
    populate(&mut network, &mut random, &plans, site, (&servers, target), variety);
    conclude(seed, network, || count(&plans.borrow()))
}

/// Adds servers and clients.
fn populate(
    network: &mut VirtualNetwork,
    random: &mut Rng,
    plans: &Rc<RefCell<Plans>>,
    site: Option<Site>,
    (servers, target): (&[Endpoint], Endpoint),
    variety: Variety,
) {
    let sockets = |random: &mut Rng| {
        let mut sockets = SocketOptions::draw(random);
        // A RST that is lost is not sent again, nor is the last acknowledgement: a peer that asks long enough gives up.
        (sockets.keep_alive, sockets.timeout) = (Some(Duration::from_secs(10)), Some(Duration::from_secs(200)));
        // A sender that sends a whole window again after each timeout, as RFC 5681 (3.1) forbids, overflows a short queue,
        // or disorders chunks that are read in order, each time the same way: a segment a minute gets through.
        sockets.reno = true;
        sockets
    };
    let server_sockets = sockets(random);
    for (number, server) in servers.iter().enumerate() {
        let mut host = Host::new(server.address, 1500, random.u64(..), server_sockets);
        let (plans, mut accepted) = (plans.clone(), (number as u64) << 32);
        let accept = move || -> Box<dyn Role> {
            accepted += 1;
            Box::new(Server::new(plans.clone(), site, number, accepted))
        };
        host.listen(SERVER_PORT, BACKLOG, Box::new(accept));
        network.attach(host, [Faults::draw(random, 1500), Faults::draw(random, 1500)]);
    }
    for number in 0..random.u8(1..4) {
        let address = end(!target.address.is_ipv4(), 4, 10 + number, 0).address;
        let mtu = if random.bool() { 1500 } else { random.usize(1300..1500) };
        let client_sockets = sockets(random);
        let mut host = Host::new(address, mtu, random.u64(..), client_sockets);
        for index in 0..random.u16(1..4) {
            let conversation = exchange::draw(random, &mut plans.borrow_mut(), variety);
            for name in &conversation.exchanges {
                plans.borrow_mut().clients.insert(*name, address);
            }
            let at = network.now + Duration::from_micros(random.u64(..2_000_000));
            host.connect(at, 40_000 + index, target, Box::new(Client::new(plans.clone(), site, conversation)));
        }
        network.attach(host, [Faults::draw(random, 1500), Faults::draw(random, mtu)]);
    }
}

/// Every exchange was served once, or by the balancer itself.
fn count(plans: &Plans) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, exchange) in &plans.exchanges {
        let served = plans.served.get(name).map_or(0, Vec::len);
        let answered = plans.answered.contains(name);
        let expected = usize::from(exchange.answer == AnswerKind::Server);
        // A request lost with a connection may be asked again, if asking twice is as good as once (RFC 9110, 9.2.2).
        let again = plans.servers_reset && exchange.method != "POST";
        if served > expected + usize::from(again) * expected || answered && served < expected {
            wrong.push(format!("exchange {name:016x} was served {served} times, not {expected}"));
        }
    }
    wrong
}
