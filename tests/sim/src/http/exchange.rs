//! The requests of clients and the answers of servers, drawn from the seed.

use super::message::{BodyContent, BodyFraming, MessageHead};
use fastrand::Rng;
use hairpin_core::flow::Address;
use std::collections::{BTreeMap, BTreeSet};

/// The field that names an exchange.
pub const NAME: &str = "X-Exchange";

/// A field that goes no further than `Connection` says.
pub const HOP: &str = "X-Hop";

/// A fault injected on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InjectedFault {
    /// Nothing.
    None,
    /// The server resets the connection after so many bytes of its response.
    ServerResets(u64),
    /// The client does.
    ClientResets(u64),
}

/// The expected sender and kind of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AnswerKind {
    /// A server.
    Server,
    /// The balancer: status, and what `Location` says.
    Balancer(u16, Option<String>),
}

/// A request and its response.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// Its name.
    pub name: u64,
    /// The request's method.
    pub method: &'static str,
    /// Its target, as the client writes it.
    pub target: String,
    /// The host it asks.
    pub host: &'static str,
    /// Minor version of HTTP/1 that the client speaks.
    pub minor: u8,
    /// Its other fields, but for framing.
    pub fields: Vec<(String, String)>,
    /// Its body.
    pub content: BodyContent,
    /// Whether the client waits to be told that the body is wanted.
    pub waits: bool,
    /// Whether the client says that it is the last.
    pub last: bool,
    /// Whether both say fields that are for one hop only.
    pub hops: bool,
    /// Statuses of interim responses.
    pub interim: Vec<u16>,
    /// The response's status.
    pub status: u16,
    /// Its fields, but for framing.
    pub response_fields: Vec<(String, String)>,
    /// Its body.
    pub response: BodyContent,
    /// Whether the server closes afterwards, and says so.
    pub closes: bool,
    /// Milliseconds that the server thinks about it.
    pub thinks: u64,
    /// The injected fault.
    pub fault: InjectedFault,
    /// The expected sender of the answer if there is a balancer for HTTP.
    pub answer: AnswerKind,
}

impl Exchange {
    /// The request's head, as the client writes it.
    pub fn request(&self) -> MessageHead {
        let mut fields = vec![("Host".to_string(), self.host.to_string())];
        fields.push((NAME.to_string(), format!("{:016x}", self.name)));
        fields.extend(self.fields.iter().cloned());
        fields.extend(self.content.fields());
        if self.waits {
            fields.push(("Expect".into(), "100-continue".into()));
        }
        fields.extend(connection(self.hops, self.last && self.minor == 1));
        MessageHead { start: format!("{} {} HTTP/1.{}", self.method, self.target, self.minor), fields }
    }

    /// The response's head, as the server writes it.
    pub fn response_head(&self) -> MessageHead {
        let mut fields = vec![(NAME.to_string(), format!("{:016x}", self.name))];
        fields.extend(self.response_fields.iter().cloned());
        fields.extend(self.response.fields());
        fields.extend(connection(self.hops, self.closes));
        MessageHead { start: format!("HTTP/1.1 {} Whatever", self.status), fields }
    }

    /// The head of an interim response with this status, as the server writes it.
    pub fn interim_head(&self, status: u16) -> MessageHead {
        let mut fields = vec![("Link".to_string(), "</x>".to_string())];
        fields.extend(connection(self.hops, false));
        MessageHead { start: format!("HTTP/1.1 {status} Soon"), fields }
    }

    /// The whole response as the server sends it.
    pub fn response_bytes(&self) -> Vec<u8> {
        let mut out = self.response_head().bytes();
        out.extend(self.response.wire());
        out
    }
}

/// `Connection`, and what it names.
fn connection(hops: bool, closes: bool) -> Vec<(String, String)> {
    let options: Vec<&str> = hops.then_some(HOP).into_iter().chain(closes.then_some("close")).collect();
    let mut fields: Vec<(String, String)> = hops.then(|| (HOP.to_string(), "here".to_string())).into_iter().collect();
    if !options.is_empty() {
        fields.push(("Connection".into(), options.join(", ")));
    }
    fields
}

/// A client's exchanges on one connection.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Names of its exchanges.
    pub exchanges: Vec<u64>,
    /// Requests under way at a time.
    pub depth: usize,
    /// Whether the client says that it will send no more as soon as it has sent the last request.
    pub half_closes: bool,
    /// Whether it stops reading at times.
    pub pauses: bool,
}

/// The shared state of a run's clients and servers.
#[derive(Debug, Default)]
pub struct Plans {
    /// The run's seed.
    pub seed: u64,
    /// All exchanges.
    pub exchanges: BTreeMap<u64, Exchange>,
    /// The server of each.
    pub served: BTreeMap<u64, Vec<usize>>,
    /// Those whose response the client has in full.
    pub answered: BTreeSet<u64>,
    /// Those that something went wrong with on purpose, and all behind them on their connection.
    pub disturbed: BTreeSet<u64>,
    /// The client of each.
    pub clients: BTreeMap<u64, Address>,
    /// Servers that are the group's, from this number on.
    pub group_from: usize,
    /// Whether servers reset connections in this run: others' requests on the same connection may suffer.
    pub servers_reset: bool,
    /// Whether clients do.
    pub clients_reset: bool,
}

/// The features that may be drawn.
#[derive(Clone, Copy, Debug)]
pub struct Variety {
    /// Something goes wrong on purpose.
    pub faults: bool,
    /// Requests that a balancer answers itself.
    pub own: bool,
    /// HTTP/1.0 clients.
    pub old: bool,
}

/// Draws a conversation and its exchanges.
pub fn draw(random: &mut Rng, plans: &mut Plans, variety: Variety) -> Conversation {
    let old = variety.old && random.u8(..12) == 0;
    let count = if old { 1 } else { random.usize(1..7) };
    let pipelined = random.u8(..3) == 0;
    let mut exchanges = Vec::new();
    for number in 0..count {
        let mut exchange = one(random, variety, old);
        let last = number + 1 == count;
        exchange.last = last && random.bool();
        if last && !old && exchange.answer == AnswerKind::Server && random.u8(..4) == 0 {
            if random.bool() && exchange.response.framing == BodyFraming::Length {
                exchange.response.framing = BodyFraming::Close;
            }
            exchange.closes = true;
        }
        exchange.waits &= !pipelined;
        plans.servers_reset |= matches!(exchange.fault, InjectedFault::ServerResets(_));
        plans.clients_reset |= matches!(exchange.fault, InjectedFault::ClientResets(_));
        exchanges.push(exchange.name);
        plans.exchanges.insert(exchange.name, exchange);
    }
    let faulty = exchanges.iter().position(|name| plans.exchanges[name].fault != InjectedFault::None);
    if let Some(at) = faulty {
        plans.disturbed.extend(&exchanges[at..]);
    }
    let depth = if pipelined { random.usize(2..6) } else { 1 };
    Conversation { exchanges, depth, half_closes: random.u8(..5) == 0, pauses: random.u8(..3) == 0 }
}

fn size(random: &mut Rng, most: u64) -> u64 {
    match random.u8(..10) {
        0 => 0,
        1..=5 => random.u64(1..3_000.min(most)),
        6..=8 => random.u64(1..40_000.min(most)),
        _ => random.u64(1..most),
    }
}

fn content(random: &mut Rng, most: u64, chunks: bool) -> BodyContent {
    let framing = if chunks && random.bool() { BodyFraming::Chunked } else { BodyFraming::Length };
    let trailers = match framing {
        BodyFraming::Chunked if random.u8(..3) == 0 => vec![("X-Trailer".to_string(), random.u64(..).to_string())],
        _ => Vec::new(),
    };
    // Chunks are read in order, so every segment out of order comes again: bodies of any size take forever on the worst
    // of links.
    let most = if framing == BodyFraming::Chunked { most.min(40_000) } else { most };
    BodyContent { framing, bytes: size(random, most), key: random.u64(..), trailers }
}

fn one(random: &mut Rng, variety: Variety, old: bool) -> Exchange {
    let method = ["GET", "GET", "GET", "HEAD", "POST", "POST", "PUT", "DELETE"][random.usize(..8)];
    let (target, host, answer) = asked(random, variety);
    // an unread part of a body may turn the answer into a reset on its way: not here
    let method = if answer == AnswerKind::Server || method == "HEAD" { method } else { "GET" };
    let uploads = matches!(method, "POST" | "PUT");
    let uploaded = if uploads { content(random, 120_000, !old) } else { BodyContent::none() };
    let mut status = [200, 200, 200, 200, 201, 404, 500, 204, 304][random.usize(..9)];
    let mut response = content(random, 300_000, !old);
    if status == 204 {
        response = BodyContent::none();
    } else if method == "HEAD" || status == 304 {
        response = BodyContent { framing: BodyFraming::Told, trailers: Vec::new(), ..response };
    } else if old && random.bool() {
        response.framing = BodyFraming::Close;
    }
    let mut fields = vec![("User-Agent".to_string(), "hairpin-sim".to_string())];
    for number in 0..random.u8(..4) {
        fields.push((format!("X-Field-{number}"), "v".repeat(random.usize(..60))));
    }
    if random.bool() {
        fields.push(("X-Remove-Me".into(), "now".into()));
    }
    if random.u8(..4) == 0 {
        fields.push(("X-Forwarded-For".into(), "192.0.2.77".into()));
    }
    let mut response_fields = vec![("Server".to_string(), "sim".to_string())];
    if random.bool() {
        response_fields.push(("X-Internal".into(), random.u32(..).to_string()));
    }
    if answer != AnswerKind::Server {
        status = 0;
    }
    let interim = if old || random.u8(..6) > 0 { Vec::new() } else { vec![103; random.usize(1..3)] };
    let waits = uploads && !old && random.u8(..4) == 0 && uploaded.bytes > 0;
    let fault = match random.u8(..12) {
        0 if variety.faults => {
            InjectedFault::ServerResets(if random.bool() { 0 } else { random.u64(..=response.bytes + 200) })
        }
        1 if variety.faults => InjectedFault::ClientResets(random.u64(..=response.bytes + 200)),
        _ => InjectedFault::None,
    };
    let thinks = if random.bool() { 0 } else { random.u64(..400) };
    let name = random.u64(..);
    let minor = u8::from(!old);
    let hops = !old && random.u8(..4) == 0;
    Exchange {
        name,
        method,
        target,
        host,
        minor,
        fields,
        waits,
        hops,
        interim,
        status,
        response_fields,
        response,
        thinks,
        fault,
        answer,
        content: uploaded,
        last: false,
        closes: old,
    }
}

/// The destination of a request, and the expected sender of the answer.
fn asked(random: &mut Rng, variety: Variety) -> (String, &'static str, AnswerKind) {
    let host = if random.u8(..3) == 0 { "b.example" } else { "a.example" };
    let path = format!("/{}/{}", ["x", "long/path", "strip/me"][random.usize(..3)], random.u32(..));
    let query = if random.bool() { "?q=1&r=%20" } else { "" };
    let other = |path: &str, answer| (path.to_string(), host, answer);
    match random.u8(..16) {
        0 if variety.own => other("/denied/1", AnswerKind::Balancer(403, None)),
        1 if variety.own => {
            let location = format!("https://{host}/moved/1?z=2");
            other("/moved/1?z=2", AnswerKind::Balancer(308, Some(location)))
        }
        2 if variety.own => other("/fixed", AnswerKind::Balancer(200, None)),
        3 if variety.own => ("/anything".to_string(), "unrouted.example", AnswerKind::Balancer(404, None)),
        _ => (path + query, host, AnswerKind::Server),
    }
}
