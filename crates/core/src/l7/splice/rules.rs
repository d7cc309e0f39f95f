//! Bodies that the engine carries.
//!
//! A rule has a guard: it holds for one offload range of the response (or of a request), whose numbers have one difference,
//! and for acknowledgements that leave no byte of ours in doubt. So a rule that outlasts its exchange does no harm as long
//! as the backend connection is the client connection's: what does not belong to that offload range comes to software. The
//! pair goes before the client connection gets another backend connection.
//!
//! An engine that cannot translate SACK edges, or has no guards (every card), gets only what the backend sends, and only
//! of responses (Laconic, 3.5): all that the client says comes by software, which goes by its acknowledgements. When
//! such a rule holds, everything of ours is acknowledged at both ends, so that whatever it meets is translated right or
//! older than the receiver cares for, and it goes when its exchange is over: the next request waits until it has.

use super::guards::{guards, only_answers};
use super::{Context, End, Splices, value};
use crate::engine::{Completion, EngineCaps, Fate, Guard, OPS_MAX, Refusal, Rule, RuleId, RuleOp};
use crate::flow::{Direction, FlowKey};
use crate::frame::FrameIo;
use crate::l7::config::Kind;
use crate::l7::splice::state::entry::{BackendConn, ClientConn, ClientConnState, OffloadRange};
use crate::l7::splice::state::exchange::Message;
use crate::l7::splice::state::joined::{joined, joined_mut};
use crate::l7::splice::state::sizes::{fit, fits};
use crate::l7::splice::tcp::numbers::{before, beyond, later};
use crate::offload::{Answer, BOTH, OffloadState};
use crate::rewrite::Rewrite;
use crate::stored::Optional;
use crate::time::{Duration, Time};

/// Names of rules of splices have this bit; those of layer 4 never get there.
pub(crate) const RULE_BIT: u64 = 1 << 63;
/// Bytes of an offload range at most: numbers are compared within half their space.
pub(super) const OFFLOAD_RANGE_MAX: u64 = 1 << 30;
/// A backend is not held back for more bytes than that: the client's window does it.
const CLAMP_MAX: u64 = 512 << 10;
/// What a head takes of them.
const CLAMP_HEAD: u32 = 2048;
/// How long after a refusal the engine is not asked again about a client connection.
const REFUSED_FOR: Duration = Duration::from_secs(1);

/// Which directions of an exchange an engine forwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Directions {
    /// Both.
    Both,
    /// What the backend sends.
    Down,
}

impl Directions {
    /// The flows that have rules, as the bits of `RulePair::held`.
    fn bits(self) -> u8 {
        match self {
            Directions::Both => 0b11,
            Directions::Down => 1 << Direction::FromBackend as u8,
        }
    }
}

/// Which directions an engine can forward between these ends. `None`: neither.
pub(super) fn directions(
    caps: &EngineCaps,
    client_conn: &ClientConn,
    backend_conn: &BackendConn,
) -> Option<Directions> {
    let all = caps.checks_guards && caps.rewrites_sack && caps.rewrites_window;
    let [_, down] =
        rewrites(client_conn, backend_conn).map(|rewrite| caps.rewrites_window || rewrite.window_shift == 0);
    match caps.rewrites_sequence {
        true if all && client_conn.peer.sack == backend_conn.peer.sack => Some(Directions::Both),
        true if down => Some(Directions::Down),
        _ => None,
    }
}

/// Whether an engine can do with an exchange's timestamps what is to be done: nothing, or additions.
fn can_stamp(caps: &EngineCaps, client_conn: &ClientConn, backend_conn: &BackendConn) -> bool {
    match (client_conn.peer.has_timestamps, backend_conn.peer.has_timestamps) {
        (true, true) => caps.rewrites_timestamps,
        (client, backend) => client == backend,
    }
}

/// What the engine is offered of an exchange now.
struct OfferTerms {
    /// A body of so many bytes and more.
    least: u64,
    directions: Directions,
}

/// A pair of rules for one offload range of an exchange.
struct RuleOffer {
    /// Of the client's packets, and of the backend's.
    guards: [Guard; 2],
    directions: Directions,
    range: OffloadRange,
    /// Nothing that is on its way can be overtaken.
    at_once: bool,
}

/// Whether an exchange gets rules.
enum OfferVerdict {
    Rules(RuleOffer),
    /// It may, later.
    NotNow,
    /// Not for what it carries now.
    Never,
}

impl OfferTerms {
    /// What the engine is offered now of a client connection's exchange. `None`: nothing.
    fn of<IO: FrameIo>(
        cx: &Context<'_, IO>,
        client_conn: &ClientConn,
        backend_conn: &BackendConn,
    ) -> Option<OfferTerms> {
        let configured = match cx.kind(client_conn.service) {
            Kind::Http(http) => http.offload_bytes_min,
            Kind::Tls(tls) => tls.offload_bytes_min,
            Kind::Forward | Kind::Terminated(_) | Kind::Group => return None,
        };
        let may = cx.offloads && cx.now >= client_conn.offer_after && cx.ops.len() + 2 <= OPS_MAX;
        let is_narrow = client_conn.peer.is_narrow || backend_conn.peer.is_narrow;
        if !may || is_narrow || !fit(client_conn, backend_conn) || !can_stamp(cx.caps, client_conn, backend_conn) {
            return None;
        }
        let directions = directions(cx.caps, client_conn, backend_conn)?;
        Some(OfferTerms { least: configured.unwrap_or(cx.statistics.http.threshold.bytes_min), directions })
    }

    /// The rules for what is left of an exchange's body.
    fn plan(&self, client_conn: &ClientConn, backend_conn: &BackendConn) -> OfferVerdict {
        let directions = self.directions;
        // The backend's acknowledgement of the request's end has to come by here: an exchange is over only with it.
        let able = |_: &(Guard, Guard)| match client_conn.exchange.request.get() {
            Message::Done => only_answers(client_conn, backend_conn),
            _ => directions == Directions::Both,
        };
        let Some((mut client, backend)) = guards(client_conn, backend_conn, self.least).filter(able) else {
            return OfferVerdict::Never;
        };
        // Rules that lead to another backend connection go first.
        let same_backend = client_conn.pair.held() == 0 || client_conn.rule_key == backend_conn.key;
        // An end that has something of ours still to acknowledge may do so with a number that the engine takes:
        // software would send it again and again, and give up.
        let owns = backend_conn.peer.owned.is_some() || client_conn.peer.owned.is_some();
        // What is added to timestamps is known once both ends have sent some.
        let is_timed = client_conn.clock_down.get().is_some() || !client_conn.peer.has_timestamps;
        if owns || !client_conn.up.is_settled() || !same_backend || !is_timed {
            return OfferVerdict::NotNow;
        }
        let is_clamped = client_conn.is_clamped && backend.sequence_length > 0;
        // A backend does not send into a window of less than a segment.
        let segment = u32::from(client_conn.peer.mss).saturating_sub(client_conn.peer.options());
        let peer = &backend_conn.peer;
        let at_once = is_clamped && beyond(peer.highest, peer.edge) < segment;
        if is_clamped {
            // What is on its way comes by here; when it has come, there is nothing that the rest could overtake.
            if u64::from(backend.sequence_length) < self.least + u64::from(beyond(peer.highest, peer.edge)) {
                return OfferVerdict::Never;
            }
            // In units of windows it may be shown less than that, and send nothing.
            if !at_once && beyond(peer.highest, peer.limit()) >= segment {
                return OfferVerdict::NotNow;
            }
        }
        // The acknowledgement that says that the client has it all comes by here: it ends the exchange, and shows the backend
        // a small window.
        if client.sequence_length == 0 {
            client.acknowledgement_length = client.acknowledgement_length.saturating_sub(1);
        }
        let (from, first, length) = if client.sequence_length > 0 {
            (Direction::FromClient, client.sequence, client.sequence_length)
        } else {
            (Direction::FromBackend, backend.sequence, backend.sequence_length)
        };
        // What still comes by here of an offload range that is the engine's was on its way already.
        let is_in = |range: &OffloadRange| range.from == from && first.wrapping_sub(range.first) < range.bytes;
        if client_conn.offload_range.as_ref().is_some_and(is_in) {
            return OfferVerdict::NotNow;
        }
        let range = OffloadRange::new(from, first, length);
        OfferVerdict::Rules(RuleOffer { guards: [client, backend], directions, range, at_once })
    }
}

/// What a backend is shown room for until the head of its response to a client connection is read: enough for one whose
/// body the engine is not offered. `None`: as much as the client has, if that is less, or more is not worth it.
pub(super) fn window_clamp<IO: FrameIo>(
    cx: &Context<'_, IO>,
    client_conn: &ClientConn,
    backend_conn: &BackendConn,
) -> Option<u32> {
    if !matches!(cx.kind(client_conn.service), Kind::Http(_)) {
        return None;
    }
    let least = OfferTerms::of(cx, client_conn, backend_conn)?.least;
    if !fits(client_conn, backend_conn, Direction::FromBackend) {
        return None;
    }
    let clamp = least.min(CLAMP_MAX + 1) as u32 + CLAMP_HEAD;
    (clamp <= CLAMP_MAX as u32 && clamp < client_conn.peer.window).then_some(clamp)
}

impl Splices {
    fn rule_id(&self, position: u32, direction: Direction) -> RuleId {
        let generation = u64::from(self.client_conns.generation(position)) & 0x7fff_ffff;
        RuleId(RULE_BIT | generation << 32 | u64::from(value(position, direction)))
    }

    /// Offers what is left of a large body to the engine.
    pub(super) fn offer<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some((client_conn, backend_conn)) = joined(&self.client_conns, &self.backend_conns, position) else {
            return;
        };
        if client_conn.pair.state() != OffloadState::Software && client_conn.pair.state() != OffloadState::Offloaded
            || client_conn.state != ClientConnState::Spliced
        {
            return;
        }
        match OfferTerms::of(cx, client_conn, backend_conn) {
            Some(terms) => match terms.plan(client_conn, backend_conn) {
                OfferVerdict::Rules(offer) => self.install(cx, position, &offer),
                OfferVerdict::NotNow => {}
                OfferVerdict::Never => self.release_clamp(cx, position),
            },
            None if client_conn.is_clamped => self.release_clamp(cx, position),
            None => {}
        }
    }

    /// Requests the rules of an offer.
    fn install<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32, offer: &RuleOffer) {
        let ids = BOTH.map(|direction| self.rule_id(position, direction));
        let Splices { client_conns, backend_conns, rules, seals, .. } = self;
        let Some((client_conn, backend_conn)) = joined_mut(client_conns, backend_conns, position) else {
            return cx.impossible();
        };
        let (rewrites, keys) = (rewrites(client_conn, backend_conn), [client_conn.key, backend_conn.key]);
        let (number, wanted) = (u32::from(backend_conn.number) * 2, offer.directions.bits());
        for (direction, guard) in BOTH.into_iter().zip(offer.guards) {
            let at = direction as usize;
            if wanted & (1 << at) == 0 {
                continue;
            }
            let rule = Rule {
                id: ids[at],
                key: keys[at].flow(),
                rewrite: rewrites[at],
                guard: Some(guard).filter(|_| cx.caps.checks_guards),
                fate: Fate::Forward,
                total: number + direction as u32,
                at_once: offer.at_once,
            };
            cx.ops.push_back(RuleOp::Install(rule));
        }
        cx.statistics.http.offloaded += 1;
        // How far either may acknowledge what it got from the engine, which software does not see.
        let [to_client, to_backend] =
            offer.guards.map(|guard| guard.acknowledgement.wrapping_add(guard.acknowledgement_length + 1));
        backend_conn.peer.reach = later(backend_conn.peer.sent, to_backend);
        client_conn.peer.reach = later(client_conn.peer.sent, to_client);
        rules[usize::from(!client_conn.key.is_ipv4())] += client_conn.pair.ask(wanted);
        client_conn.wanted = wanted;
        if offer.directions == Directions::Down {
            // What the client sends again of its request is answered here: the backend would report it (RFC 2883) in
            // numbers that are not translated.
            client_conn.exchange.request_floor = offer.guards[0].sequence;
        }
        client_conn.rule_key = keys[1];
        client_conn.rule_seal = seals.rule(client_conn.seal, &keys[1]);
        client_conn.offload_range = offer.range.into();
        client_conn.offered += u64::from(offer.guards[1].sequence_length);
        client_conn.offer_after = cx.now;
    }

    /// The engine does not carry a client connection's response, whatever it is: the backend is held back no longer.
    fn release_clamp<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return cx.impossible() };
        if !client_conn.is_clamped || matches!(client_conn.exchange.response.get(), Message::Head) {
            return;
        }
        client_conn.is_clamped = false;
        let exchange = &client_conn.exchange;
        let (is_done, end) = (exchange.response.is_done(), exchange.response.end(None));
        let Some((number, backend_conn)) = client_conn
            .backend_conn
            .get()
            .and_then(|backend_conn| Some((backend_conn, self.backend_conns.get(backend_conn)?)))
        else {
            return;
        };
        // One that ends within the room it has needs nothing.
        let has_room = end.is_some_and(|end| !before(backend_conn.peer.edge, end));
        if !is_done && !has_room {
            self.acknowledge(cx, End::Backend(number));
        }
    }

    /// Asks for the removal of what rules a client connection has in force.
    pub(super) fn remove_rules<IO: FrameIo>(&mut self, cx: &mut Context<'_, IO>, position: u32) {
        let Some(client_conn) = self.client_conns.get(position) else { return cx.impossible() };
        if client_conn.pair.state() != OffloadState::Offloaded {
            return;
        }
        if self.ask_removal(position, &mut |op| cx.ops.push_back(op)) == 0 {
            self.settle_rules(position);
        }
    }

    /// Asks for the removal of what rules a client connection has in force; returns how many.
    fn ask_removal(&mut self, position: u32, ops: &mut impl FnMut(RuleOp)) -> u8 {
        let ids = BOTH.map(|direction| self.rule_id(position, direction));
        let Some(client_conn) = self.client_conns.get_mut(position) else { return 0 };
        let keys = [client_conn.key, client_conn.rule_key];
        let backend_conn = client_conn.backend_conn.get();
        let asked =
            client_conn.pair.remove(|direction| (ids[direction as usize], keys[direction as usize].flow()), &mut *ops);
        backend_conn.into_iter().for_each(|backend_conn| self.divert(backend_conn, ops));
        asked
    }

    /// Takes an answer of the engine about a splice's rule. Returns whether the rule is held.
    pub(crate) fn handle_completion(&mut self, now: Time, completion: &Completion, ops: &mut impl FnMut(RuleOp)) {
        let (Completion::Installed(id) | Completion::Rejected(id, _) | Completion::Removed(id, _)) = *completion;
        let value = id.0 as u32;
        let (position, direction) = super::parts(value);
        if self.rule_id(position, direction) != id {
            return;
        }
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        let rules = &mut self.rules[usize::from(!client_conn.key.is_ipv4())];
        // The backend connection whose backend has sent more than its response has.
        let mut repeated = None;
        let answer = match completion {
            Completion::Installed(_) => {
                client_conn.exchange.is_offloaded = true;
                Answer::Installed
            }
            Completion::Rejected(_, refusal) => {
                // One that was to be updated is in force as it was.
                if !client_conn.pair.holds(direction) {
                    *rules = rules.saturating_sub(1);
                }
                client_conn.offload_range = Optional::NONE;
                let wait = if *refusal == Refusal::Unsupported { REFUSED_FOR * 3600 } else { REFUSED_FOR };
                client_conn.offer_after = now + wait;
                Answer::Rejected
            }
            Completion::Removed(_, counters) => {
                *rules = rules.saturating_sub(1);
                client_conn.offload_range = Optional::NONE;
                if let Some(counters) = counters {
                    client_conn.forwarded[direction as usize].add(counters.packets, counters.bytes);
                    client_conn.forwarded_by_engine[direction as usize].add(counters.packets, counters.bytes);
                    client_conn.last_seen = client_conn.last_seen.max(counters.last_seen.unwrap_or(Time::ZERO));
                    let headers =
                        if client_conn.key.is_ipv4() { 40 } else { 60 } + u64::from(client_conn.peer.options());
                    let payload = counters.bytes.saturating_sub(counters.packets * headers);
                    let is_judged = direction == Direction::FromBackend && client_conn.offered > 0;
                    // A sender repeats its last segment when its acknowledgement is late, too (RFC 8985, 7).
                    let probe = u64::from(client_conn.peer.mss);
                    if is_judged && payload > client_conn.offered + probe {
                        repeated = client_conn.backend_conn.get();
                    }
                }
                if direction == Direction::FromBackend {
                    client_conn.offered = 0;
                }
                Answer::Removed
            }
        };
        let is_last = client_conn.pair.answer(direction, answer);
        if let Some(entry) = repeated.and_then(|backend_conn| self.backend_conns.get_mut(backend_conn)) {
            entry.has_repeated = true;
        }
        if !is_last {
            return;
        }
        let is_held = client_conn.pair.held() != 0;
        self.release_clamp_later(position);
        if !is_held {
            return self.settle_rules(position);
        }
        if self.client_conns.get(position).is_some_and(ClientConn::has_unwanted_rules) {
            self.ask_removal(position, ops);
        }
    }

    /// The engine carries a client connection's response from now on, or has refused it: the backend is to see all of the
    /// client's window. If there is no room to note it, the client's next acknowledgement says so.
    pub(super) fn release_clamp_later(&mut self, position: u32) {
        let Some(client_conn) = self.client_conns.get_mut(position) else { return };
        let is_over = !matches!(client_conn.exchange.response.get(), Message::Head);
        if client_conn.is_clamped && client_conn.state == ClientConnState::Spliced && is_over {
            client_conn.is_clamped = false;
            if self.ready.len() < self.ready.capacity() {
                self.ready.push_back(position);
            }
        }
    }

    /// The engine holds nothing of a client connection any more.
    fn settle_rules(&mut self, position: u32) {
        let Some(client_conn) = self.client_conns.get(position) else { return };
        let backend_conn = client_conn.backend_conn.get().and_then(|backend_conn| self.backend_conns.get(backend_conn));
        let owes_last = backend_conn.is_some_and(|entry| entry.peer.owes_last());
        match client_conn.state {
            ClientConnState::PendingRemoval => self.release_client(position),
            ClientConnState::Waiting => self.ready.push_back(position),
            ClientConnState::Spliced
                if (client_conn.asks > 0 || owes_last) && self.ready.len() < self.ready.capacity() =>
            {
                self.ready.push_back(position);
            }
            // Its backend connection is others' to take now.
            ClientConnState::Resetting if self.ready.len() < self.ready.capacity() => self.ready.push_back(position),
            _ if client_conn.is_between_exchanges() && self.ready.len() < self.ready.capacity() => {
                self.ready.push_back(position);
            }
            _ => {}
        }
    }

    /// The keys of the flows whose rules are in force or asked for.
    pub(crate) fn rules_known(&self) -> impl Iterator<Item = FlowKey> {
        self.client_conns.iter().flat_map(|(_, client_conn)| {
            let keys = [(client_conn.key.flow(), 1), (client_conn.rule_key.flow(), 2)];
            keys.into_iter().filter(|&(_, bit)| client_conn.pair.held() & bit != 0).map(|(key, _)| key)
        })
    }
}

/// What the two rules of a pair change, the client's first.
fn rewrites(client_conn: &ClientConn, backend_conn: &BackendConn) -> [Rewrite; 2] {
    let (up, down) = (client_conn.up.delta_at_end(), client_conn.down.delta_at_end());
    let shift = |from: u8, to: u8| from as i8 - to as i8;
    let [clock_up, clock_down] = [client_conn.clock_up, client_conn.clock_down].map(|clock| clock.get().unwrap_or(0));
    [
        Rewrite {
            source: backend_conn.own_end(),
            destination: backend_conn.target(),
            sequence_delta: up,
            acknowledgement_delta: down.wrapping_neg(),
            window_shift: shift(client_conn.peer.scale, backend_conn.peer.announced),
            timestamp_delta: clock_up,
            echo_delta: clock_down.wrapping_neg(),
        },
        Rewrite {
            source: client_conn.key.destination,
            destination: client_conn.key.source,
            sequence_delta: down,
            acknowledgement_delta: up.wrapping_neg(),
            window_shift: shift(backend_conn.peer.scale, client_conn.peer.announced),
            timestamp_delta: clock_down,
            echo_delta: clock_up.wrapping_neg(),
        },
    ]
}
