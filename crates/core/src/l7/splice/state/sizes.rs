//! How long the segments are that backends are asked for, and which ends fit each other.
//!
//! Neither end gets longer segments than it has said that it takes (RFC 9293, 3.7.1): the worker cuts what is longer. The
//! engine cuts nothing, so it is offered only what fits by what both ends were told. Connections to backends are kept in
//! two sizes, Ethernet's and the tunnels', and a client gets one of its own size. Clients that take less than either are
//! few: they share Ethernet's, and what goes to them is cut.

use super::entry::{BackendConn, ClientConn};
use super::exchange::Message;
use crate::flow::Direction;
use crate::l7::cookie;

/// What a connection to a backend is kept for: clients that need one of this size, with or without timestamps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::l7::splice) struct Shape {
    size: Size,
    has_timestamps: bool,
}

/// How long the segments of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Size {
    /// Clients that take segments as long as Ethernet carries.
    Ethernet,
    /// Clients behind a tunnel or an access network.
    Tunnel,
}

impl Shape {
    /// How many there are.
    pub(in crate::l7::splice) const COUNT: usize = 4;

    /// Of a connection whose backend was told this MSS, and perhaps offered timestamps.
    pub(in crate::l7::splice) fn of(asked: u16, is_ipv4: bool, has_timestamps: bool) -> Shape {
        let size = if asked < most(is_ipv4) { Size::Tunnel } else { Size::Ethernet };
        Shape { size, has_timestamps }
    }

    /// Its number, below [`Shape::COUNT`].
    pub(in crate::l7::splice) fn number(self) -> usize {
        self.size as usize * 2 + usize::from(self.has_timestamps)
    }
}

impl BackendConn {
    /// What it is kept for.
    pub(in crate::l7::splice) fn shape(&self) -> Shape {
        Shape::of(self.asked, self.key.is_ipv4(), self.offers_timestamps)
    }
}

/// The longest segment that Hairpin asks a peer for.
fn most(is_ipv4: bool) -> u16 {
    if is_ipv4 { cookie::MSS_V4 } else { cookie::MSS_V6 }
}

/// The MSS that a backend is told, for a client that takes `mss`. What `is_kept` serves others after this client.
pub(in crate::l7::splice) fn asked_for(mss: u16, is_ipv4: bool, is_kept: bool) -> u16 {
    let tunnel = if is_ipv4 { cookie::MSS_TUNNEL_V4 } else { cookie::MSS_TUNNEL_V6 };
    match mss {
        mss if mss >= most(is_ipv4) => most(is_ipv4),
        mss if !is_kept => mss,
        mss if mss >= tunnel => tunnel,
        _ => most(is_ipv4),
    }
}

/// Whether all that this end sends fits the other, by what each was told.
pub(in crate::l7::splice) fn fits(client_conn: &ClientConn, backend_conn: &BackendConn, from: Direction) -> bool {
    match from {
        Direction::FromClient => most(client_conn.key.is_ipv4()) <= backend_conn.peer.mss,
        Direction::FromBackend => backend_conn.asked <= client_conn.peer.mss,
    }
}

/// Whether what an exchange still has to carry fits its receiver. Acknowledgements fit every receiver.
pub(in crate::l7::splice) fn fit(client_conn: &ClientConn, backend_conn: &BackendConn) -> bool {
    let up = matches!(client_conn.exchange.request.get(), Message::Bytes { .. } | Message::Endless);
    let down = matches!(client_conn.exchange.response.get(), Message::Bytes { .. } | Message::Endless);
    (!up || fits(client_conn, backend_conn, Direction::FromClient))
        && (!down || fits(client_conn, backend_conn, Direction::FromBackend))
}
