//! Connections of HTTP and TLS services: the workers are asked for copies, some places at a time (`run::splice_queries`).

use super::{ConnectionSearch, Inspector, SEARCH_MAX, SPLICED, cursor};
use crate::control::{ConnectionView, ExchangeView, Page, SplicedView};
use hairpin_core::config::Snapshot;
use hairpin_core::l7::config::{Action, Kind};
use hairpin_core::l7::head::{Method, Version};
use hairpin_core::l7::route::Conditions;
use hairpin_core::l7::splice::{self, MessageView, SplicedConnection, SplicedPath};
use hairpin_core::time::Time;
use std::collections::BTreeMap;
use std::time::Instant;

impl Inspector {
    /// Adds connections to a page, from those of a worker at a place on.
    pub(super) fn spliced(
        &self,
        search: &ConnectionSearch<'_>,
        (worker, start): (usize, usize),
        page: &mut Page,
    ) -> Result<(), String> {
        let mut failed = None;
        let next = self.each_spliced(search.snapshot, (worker, start as u32), search.begun, |worker, connection| {
            if !search.filter.fits_spliced(connection) {
                return true;
            }
            if search.limit > 0 && page.connections.len() == search.limit {
                return false;
            }
            page.matched += 1;
            if search.limit > 0 {
                match self.view_of_spliced(search.now, search.snapshot, worker, connection) {
                    Ok(view) => page.connections.push(view),
                    Err(error) => failed = Some(error),
                }
            }
            failed.is_none()
        })?;
        page.next = next.map(|(worker, place)| SPLICED + cursor(worker, place as usize));
        failed.map_or(Ok(()), Err)
    }

    /// Counts connections that are offloaded, and those that are not by why; whether it came to the end within
    /// [`SEARCH_MAX`].
    pub(super) fn count_spliced(
        &self,
        reasons: &mut BTreeMap<&'static str, u64>,
        offloaded: &mut u64,
    ) -> Result<bool, String> {
        let next = self.each_spliced(&self.snapshot(), (0, 0), Instant::now(), |_, connection| {
            match connection.path {
                SplicedPath::Offloaded => *offloaded += 1,
                // A backend connection that no client has is not counted: it does not wait to be offloaded.
                _ if connection.client.is_none() => {}
                path => *reasons.entry(reason(path)).or_default() += 1,
            }
            true
        })?;
        Ok(next.is_none())
    }

    /// Calls `each` with the worker and every connection from a place on, until it says `false`, or it has lasted too long
    /// since `begun`. Where to go on; `None`: there are no more.
    fn each_spliced(
        &self,
        snapshot: &Snapshot,
        (first, start): (usize, u32),
        begun: Instant,
        mut each: impl FnMut(usize, &SplicedConnection) -> bool,
    ) -> Result<Option<(usize, u32)>, String> {
        if !snapshot.services.iter().any(|service| service.kind.is_spliced()) {
            return Ok(None);
        }
        let mut next = Some(start);
        for (worker, shared) in self.workers.iter().enumerate().skip(first) {
            while let Some(start) = next {
                if begun.elapsed() > SEARCH_MAX {
                    return Ok(Some((worker, start)));
                }
                let silent =
                    || format!("worker {worker} does not say what connections of HTTP and TLS services it has");
                let answer = shared.query(start).ok_or_else(silent)?;
                for connection in &answer.found {
                    if !each(worker, connection) {
                        return Ok(Some((worker, connection.place)));
                    }
                }
                next = answer.next;
            }
            next = Some(0);
        }
        Ok(None)
    }

    fn view_of_spliced(
        &self,
        now: Time,
        snapshot: &Snapshot,
        worker: usize,
        connection: &SplicedConnection,
    ) -> Result<ConnectionView, String> {
        let by_engine = connection.forwarded_by_engine;
        let mut view = ConnectionView {
            packets: connection.forwarded.map(|volume| volume.packets),
            bytes: connection.forwarded.map(|volume| volume.bytes),
            packets_offloaded: by_engine.map(|volume| volume.packets),
            bytes_offloaded: by_engine.map(|volume| volume.bytes),
            ..described(now, snapshot, connection)
        };
        let mut last_seen = connection.last_seen;
        for (direction, key) in connection.rules.iter().enumerate() {
            if let Some(key) = key
                && let Some(counters) = self.counters(key, now)?
            {
                view.packets[direction] += counters.packets;
                view.bytes[direction] += counters.bytes;
                view.packets_offloaded[direction] += counters.packets;
                view.bytes_offloaded[direction] += counters.bytes;
                last_seen = last_seen.max(counters.last_seen.unwrap_or(Time::ZERO));
            }
        }
        view.idle_s = now.since(last_seen).as_secs_f64();
        view.worker = worker as u16;
        Ok(view)
    }
}

/// All but its numbers.
fn described(now: Time, snapshot: &Snapshot, connection: &SplicedConnection) -> ConnectionView {
    let service = snapshot.services.get(usize::from(connection.service));
    let name = |number: u16| snapshot.services.get(usize::from(number)).map(|service| service.name.to_string());
    let leg = connection.backend;
    let backend = leg.and_then(|leg| snapshot.backend(leg.number));
    let speaks = match service.map(|service| &service.kind) {
        Some(Kind::Http(_)) => "http",
        Some(Kind::Tls(tls)) if tls.is_plain => "tcp",
        Some(Kind::Tls(_)) => "tls",
        _ => "",
    };
    let exchange = |exchange: splice::ExchangeView| ExchangeView {
        method: (speaks == "http").then(|| method(exchange.method).to_string()),
        version: (speaks == "http").then(|| version(exchange.version).to_string()),
        route: exchange.route.and_then(|route| said_route(snapshot, connection.service, route)),
        group: name(exchange.group).unwrap_or_default(),
        request: to_come(exchange.request).to_string(),
        response: to_come(exchange.response).to_string(),
        bytes_left: [exchange.request, exchange.response].map(|message| match message {
            MessageView::Bytes(left) => Some(left),
            _ => None,
        }),
        age_s: now.since(exchange.started).as_secs_f64(),
    };
    let is_client = connection.client.is_some();
    ConnectionView {
        service: name(connection.service).unwrap_or_default(),
        protocol: "tcp".to_string(),
        client: connection.client.map(|(client, _)| client.to_string()).unwrap_or_default(),
        vip: connection.client.map(|(_, vip)| vip.to_string()).unwrap_or_default(),
        backend: backend.map(|(_, backend)| backend.name.to_string()).unwrap_or_default(),
        backend_end: leg.map(|leg| leg.target.to_string()).unwrap_or_default(),
        source: leg.map(|leg| leg.source.to_string()),
        state: connection.state.name().to_string(),
        offloaded: connection.path == SplicedPath::Offloaded,
        offload: reason(connection.path).to_string(),
        age_s: now.since(connection.created).as_secs_f64(),
        spliced: Some(SplicedView {
            end: if is_client { "client" } else { "backend" }.to_string(),
            speaks: speaks.to_string(),
            requests: connection.requests,
            exchange: connection.exchange.map(exchange),
        }),
        ..ConnectionView::default()
    }
}

/// The route as it is counted in the file. The one behind them all is what no route takes.
fn said_route(snapshot: &Snapshot, number: u16, route: u16) -> Option<u16> {
    let Kind::Http(http) = &snapshot.services.get(usize::from(number))?.kind else { return None };
    let taken = http.routes.get(usize::from(route))?;
    let to_own = match &taken.action {
        Action::Forward { groups, .. } => groups.iter().all(|(group, _)| *group == number),
        Action::Redirect { .. } | Action::Reply { .. } => false,
    };
    let is_last = usize::from(route) + 1 == http.routes.len();
    let is_rest = is_last && taken.conditions == Conditions::default() && to_own;
    (!is_rest).then_some(route + 1)
}

fn to_come(message: MessageView) -> &'static str {
    match message {
        MessageView::Head => "head",
        MessageView::Bytes(_) => "bytes",
        MessageView::Chunks => "chunks",
        MessageView::Endless => "until-close",
        MessageView::Done => "nothing",
    }
}

fn method(method: Method) -> &'static str {
    match method {
        Method::Get => "GET",
        Method::Head => "HEAD",
        Method::Post => "POST",
        Method::Put => "PUT",
        Method::Delete => "DELETE",
        Method::Connect => "CONNECT",
        Method::Options => "OPTIONS",
        Method::Trace => "TRACE",
        Method::Patch => "PATCH",
        Method::Other => "other",
    }
}

fn version(version: Version) -> &'static str {
    match version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
    }
}

/// Why a connection is, or is not, with the engine.
fn reason(path: SplicedPath) -> &'static str {
    match path {
        SplicedPath::Offloaded => "offloaded",
        SplicedPath::Installing => "being handed to the engine",
        SplicedPath::Removing => "being taken back from the engine",
        SplicedPath::NoExchange => "no request is under way",
        SplicedPath::Policy => "policy never",
        SplicedPath::Unsupported => "the engine cannot do what it needs",
        SplicedPath::Narrow => "a link on its way takes smaller packets than the two ends agreed on",
        SplicedPath::Longer => "one end sends longer segments than the other takes",
        SplicedPath::NoBody => "no body is under way",
        SplicedPath::Chunked => "chunks stay with the worker",
        SplicedPath::Endless => "less has gone through than is worth it",
        SplicedPath::Closing => "one end has closed",
        SplicedPath::Small(_) => "less is left of the body than is worth it",
        SplicedPath::Refused => "the engine refused it; it is offered again",
        SplicedPath::Next => "waits for its next packet",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;
    use crate::control::Query;
    use crate::run::inspect::filter::ConnectionFilter;
    use hairpin_core::flow::Endpoint;
    use hairpin_core::l4::connection::Volume;
    use hairpin_core::l7::splice::{BackendConnState, BackendLeg, ClientConnState, SplicedState};

    const FILE: &str = "interfaces = [\"a\"]\npool.addresses = [\"10.0.9.1\"]\n\
        [[service]]\nname = \"old\"\nlisten = \"192.0.2.1:1/tcp\"\nbackends = [\"10.0.0.9:1\"]\n\
        [[service]]\nname = \"shop\"\nlisten = \"192.0.2.1:80/http\"\nbackends = [\"10.0.0.1:80\"]\n\
        [[service.group]]\nname = \"a\"\nbackends = [\"10.0.0.2:80\"]\n\
        [[service.route]]\npath = \"/x\"\nreply = { status = 200 }\n\
        [[service.route]]\npath = \"/a\"\ngroup = \"a\"\n\
        [[service]]\nname = \"secure\"\nlisten = \"192.0.2.1:443/tls\"\nbackends = [\"10.0.0.3:443\"]\n";

    fn snapshot() -> Snapshot {
        config::parse("t.toml", FILE).unwrap_or_else(|problems| panic!("{problems}")).snapshot
    }

    fn end(text: &str) -> Endpoint {
        let end: std::net::SocketAddr = text.parse().unwrap();
        Endpoint::new(end.ip(), end.port())
    }

    /// A client's connection to `shop`, whose request has gone to its group.
    fn client_s() -> SplicedConnection {
        SplicedConnection {
            place: 7,
            client: Some((end("203.0.113.7:4000"), end("192.0.2.1:80"))),
            service: 1,
            state: SplicedState::Client(ClientConnState::Spliced),
            backend: Some(BackendLeg { number: 2, source: end("10.0.9.1:2000"), target: end("10.0.0.2:80") }),
            requests: 3,
            exchange: Some(splice::ExchangeView {
                method: Method::Put,
                version: Version::Http11,
                route: Some(1),
                group: 2,
                request: MessageView::Done,
                response: MessageView::Bytes(500),
                started: Time::from_nanos(4_000_000_000),
            }),
            forwarded: [Volume::default(); 2],
            forwarded_by_engine: [Volume::default(); 2],
            rules: [None; 2],
            path: SplicedPath::Small(1000),
            created: Time::from_nanos(1_000_000_000),
            last_seen: Time::from_nanos(4_500_000_000),
        }
    }

    /// An idle one to the backend of the group.
    fn idle() -> SplicedConnection {
        let state = SplicedState::Backend(BackendConnState::Idle);
        let path = SplicedPath::NoExchange;
        SplicedConnection { client: None, service: 2, state, exchange: None, path, ..client_s() }
    }

    #[test]
    fn a_connection_is_described_with_its_request() {
        let view = described(Time::from_nanos(5_000_000_000), &snapshot(), &client_s());
        assert_eq!((&*view.service, &*view.client, &*view.vip), ("shop", "203.0.113.7:4000", "192.0.2.1:80"));
        assert_eq!((&*view.backend, &*view.backend_end), ("10.0.0.2:80", "10.0.0.2:80"));
        assert_eq!((view.source.as_deref(), &*view.state, view.age_s), (Some("10.0.9.1:2000"), "spliced", 4.0));
        assert_eq!((view.offloaded, &*view.offload), (false, "less is left of the body than is worth it"));
        let spliced = view.spliced.unwrap();
        assert_eq!((&*spliced.end, &*spliced.speaks, spliced.requests), ("client", "http", 3));
        let exchange = spliced.exchange.unwrap();
        assert_eq!((exchange.method.as_deref(), exchange.version.as_deref()), (Some("PUT"), Some("1.1")));
        assert_eq!((exchange.route, &*exchange.group, exchange.age_s), (Some(2), "shop/a", 1.0));
        assert_eq!((&*exchange.request, &*exchange.response), ("nothing", "bytes"));
        assert_eq!(exchange.bytes_left, [None, Some(500)]);
        let idle = described(Time::from_nanos(5_000_000_000), &snapshot(), &idle());
        assert_eq!((&*idle.service, &*idle.client, &*idle.state), ("shop/a", "", "idle"));
        assert_eq!(idle.spliced.unwrap().end, "backend");
    }

    #[test]
    fn what_no_route_takes_has_none() {
        let snapshot = snapshot();
        assert_eq!([0, 1, 2, 3].map(|route| said_route(&snapshot, 1, route)), [Some(1), Some(2), None, None]);
        assert_eq!(said_route(&snapshot, 0, 0), None);
        let tls = SplicedConnection { service: 3, ..client_s() };
        let exchange = described(Time::ZERO, &snapshot, &tls).spliced.unwrap().exchange.unwrap();
        assert_eq!((exchange.method, exchange.version, exchange.route), (None, None, None));
    }

    #[test]
    fn filters_find_them_by_everything() {
        let snapshot = snapshot();
        let fits = |query: Query| {
            let filter = ConnectionFilter::of(&query, &snapshot).unwrap();
            (filter.fits_spliced(&client_s()), filter.fits_spliced(&idle()))
        };
        let some = |text: &str| Some(text.to_string());
        assert_eq!(fits(Query::default()), (true, true));
        assert_eq!(fits(Query { client: some("203.0.113.0/24"), ..Query::default() }), (true, false));
        assert_eq!(fits(Query { client: some("203.0.113.8"), ..Query::default() }), (false, false));
        // A service is meant with its groups.
        assert_eq!(fits(Query { service: some("shop"), ..Query::default() }), (true, true));
        assert_eq!(fits(Query { service: some("shop/a"), ..Query::default() }), (true, true));
        assert_eq!(fits(Query { service: some("secure"), ..Query::default() }), (false, false));
        assert_eq!(fits(Query { backend: some("10.0.0.2:80"), ..Query::default() }), (true, true));
        assert_eq!(fits(Query { backend: some("10.0.0.1:80"), ..Query::default() }), (false, false));
        assert_eq!(fits(Query { state: some("spliced"), ..Query::default() }), (true, false));
        assert_eq!(fits(Query { state: some("idle"), ..Query::default() }), (false, true));
        assert_eq!(fits(Query { state: some("established"), ..Query::default() }), (false, false));
        assert_eq!(fits(Query { offloaded: Some(true), ..Query::default() }), (false, false));
        assert_eq!(fits(Query { offloaded: Some(false), ..Query::default() }), (true, true));
        let wrong = ConnectionFilter::of(&Query { state: some("splcied"), ..Query::default() }, &snapshot).unwrap_err();
        assert_eq!(wrong, "there is no state \"splcied\"; did you mean \"spliced\"?");
    }
}
