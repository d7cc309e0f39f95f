//! A client and its backend: two sockets in a set of their own.

use smoltcp::iface::{Context, SocketSet};
use smoltcp::socket::{Socket, tcp};
use smoltcp::time::{Duration, Instant};
use std::net::{Ipv4Addr, SocketAddrV4};

/// Bytes of requests that wait, and of responses; windows without scaling.
const REQUEST_BYTES: usize = 4096;
const RESPONSE_BYTES: usize = 48 << 10;
/// As long as Linux waits with an acknowledgement.
const ACK_DELAY: Duration = Duration::from_millis(40);

/// Whether a pair goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PairState {
    Open,
    Ended,
}

/// The two connections.
pub(super) struct Pair {
    /// The client's socket, and the backend's behind it.
    pub(super) sockets: SocketSet<'static>,
    pub(super) client: (Ipv4Addr, u16),
    /// Its port towards the backend.
    pub(super) port: u16,
    /// When a timer of one of them runs out.
    pub(super) due: Option<Instant>,
    pub(super) is_touched: bool,
    is_connected: bool,
}

impl Pair {
    pub(super) fn new() -> Pair {
        let mut sockets = SocketSet::new(Vec::with_capacity(2));
        for (receive, send) in [(REQUEST_BYTES, RESPONSE_BYTES), (RESPONSE_BYTES, REQUEST_BYTES)] {
            let buffer = |bytes| tcp::SocketBuffer::new(vec![0; bytes]);
            let mut socket = tcp::Socket::new(buffer(receive), buffer(send));
            socket.set_nagle_enabled(false);
            socket.set_ack_delay(Some(ACK_DELAY));
            sockets.add(socket);
        }
        Pair { sockets, client: (Ipv4Addr::UNSPECIFIED, 0), port: 0, due: None, is_touched: false, is_connected: false }
    }

    /// The client's socket and the backend's.
    fn both(&mut self) -> Option<[&mut tcp::Socket<'static>; 2]> {
        let mut all = self.sockets.iter_mut().map(|(_, socket)| socket);
        let (Some(Socket::Tcp(client)), Some(Socket::Tcp(backend))) = (all.next(), all.next()) else { return None };
        Some([client, backend])
    }

    /// Waits for a client's first packet.
    pub(super) fn open(&mut self, client: (Ipv4Addr, u16), port: u16) {
        (self.client, self.is_connected) = (client, false);
        if let Some([client, _]) = self.both() {
            // It is closed: `close` has seen to that.
            let _ = client.listen(port);
        }
    }

    /// Whether the client has shown that it receives, and no backend has been asked.
    pub(super) fn wants_backend(&mut self) -> bool {
        !self.is_connected && self.both().is_some_and(|[client, _]| client.state() == tcp::State::Established)
    }

    pub(super) fn connect(&mut self, context: &mut Context, to: SocketAddrV4) {
        self.is_connected = true;
        let port = self.port;
        if let Some([_, backend]) = self.both() {
            let _ = backend.connect(context, (*to.ip(), to.port()), port);
        }
    }

    /// Copies what has arrived at each end to the other, as far as there is room, and ends what has ended.
    pub(super) fn copy(&mut self) -> PairState {
        let is_connected = self.is_connected;
        let Some([client, backend]) = self.both() else { return PairState::Ended };
        copy(client, backend);
        copy(backend, client);
        if is_connected && (!client.is_active() || !backend.is_active()) {
            // One end is gone: what the other one has not acknowledged is lost, as when a process is killed.
            client.abort();
            backend.abort();
        }
        let is_listening = client.state() == tcp::State::Listen;
        if client.is_active() || is_listening { PairState::Open } else { PairState::Ended }
    }

    /// Makes the sockets ready for other ends.
    pub(super) fn close(&mut self) {
        (self.due, self.is_touched) = (None, false);
        for socket in self.both().into_iter().flatten() {
            socket.abort();
        }
    }
}

/// Copies from one socket's buffer to the other's, and passes the end of the stream on.
fn copy(from: &mut tcp::Socket<'static>, to: &mut tcp::Socket<'static>) {
    while from.can_recv() && to.can_send() {
        let copied = from.recv(|bytes| {
            let sent = to.send_slice(bytes).unwrap_or(0);
            (sent, sent)
        });
        if !copied.is_ok_and(|bytes| bytes > 0) {
            break;
        }
    }
    let is_over = !from.may_recv() && from.recv_queue() == 0 && from.is_active();
    if is_over && from.state() != tcp::State::SynReceived && from.state() != tcp::State::SynSent && to.may_send() {
        to.close();
    }
}
