//! A client's connection, from its first byte until it is known which HTTP it speaks.

use crate::client_certificate::ClientCertificate;
use crate::client_stream::{ClientStream, Prefixed, Socket};
use crate::deadline::Deadline;
use crate::exchange::{self, Client};
use crate::local::Local;
use crate::setup::TerminatedService;
use crate::stream::{HandshakeError, TlsStream};
use crate::{challenge, http1, http2, proxy_header, pump};
use hairpin_core::flow::{Address, Endpoint, FlowKey, Protocol};
use hairpin_core::l7::config::HttpLimits;
use hairpin_core::l7::splice::Refused;
use rustls::HandshakeKind;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout, timeout_at};

/// The bytes that a client of HTTP/2 sends first (RFC 9113, 3.4).
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// How long a client that speaks clear text may take to read that TLS is awaited.
pub const TOLD_WITHIN: Duration = Duration::from_secs(3);

/// Counts a client's connection for as long as it exists.
struct Counted {
    local: Rc<Local>,
    service: u16,
    /// Its key among the core's connections.
    key: u64,
}

impl Counted {
    fn new(local: &Rc<Local>, service: u16, key: u64) -> Counted {
        local.counts.change(|statistics| {
            statistics.http.client_conns_now += 1;
            statistics.http.client_conns_peak = statistics.http.client_conns_peak.max(statistics.http.client_conns_now);
        });
        local.counts.service(service, |service| {
            service.created += 1;
            service.established += 1;
            service.client_conns_now += 1;
        });
        Counted { local: Rc::clone(local), service, key }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.local.controls.remove(self.key);
        self.local.counts.change(|statistics| statistics.http.client_conns_now -= 1);
        self.local.counts.service(self.service, |service| {
            service.client_conns_now = service.client_conns_now.saturating_sub(1);
        });
    }
}

/// A connection that limits of its client count for as long as it exists.
struct Held {
    local: Rc<Local>,
    service: u16,
    client: Address,
}

impl Held {
    /// `None`: it is beyond a limit.
    fn new(local: &Rc<Local>, service: u16, client: Address) -> Option<Held> {
        let limited = local.limiting(service, &local.setup(), |limiting| limiting.connection(&client));
        limited.is_none().then(|| Held { local: Rc::clone(local), service, client })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.local.release(self.service, &self.client);
    }
}

/// Serves a client that has connected to `vip`, in a task of its own.
pub(crate) fn begin(local: &Rc<Local>, vip: Endpoint, tcp: TcpStream, peer: SocketAddr) {
    let setup = local.setup();
    let Some(service) = setup.at(&vip).cloned() else { return };
    if local.controls.connections() >= local.clients_max {
        local.counts.change(|statistics| statistics.connections_refused += 1);
        local.counts.service(service.number, |service| service.refused += 1);
        return;
    }
    let source = Endpoint::new(peer.ip().to_canonical(), peer.port());
    let flow = FlowKey { source, destination: vip, protocol: Protocol::Tcp };
    let (key, control) = local.controls.add(service.number, flow);
    let counted = Counted::new(local, service.number, key);
    let client = Client {
        service: service.number,
        key: flow,
        tls: service.tls.is_some(),
        http2: false,
        certificate: None,
        control,
    };
    let task = tokio::task::spawn_local(serve(counted, client, service, tcp));
    local.controls.set_task(key, task.abort_handle());
}

async fn serve(counted: Counted, mut client: Client, service: TerminatedService, mut tcp: TcpStream) {
    let local = &counted.local;
    let _ = tcp.set_nodelay(true);
    let accepted = Instant::now();
    let until = accepted + service.handshake_timeout;
    let is_proxy = service.accept_proxy.iter().any(|network| network.contains(&client.key.source.address));
    if is_proxy && !has_header(local, &mut client, &mut tcp, until).await {
        return;
    }
    let Some(_held) = Held::new(local, client.service, client.key.source.address) else {
        local.counts.service(client.service, |service| service.refused += 1);
        return tcp.reset();
    };
    client.control.set_held();
    match &service.tls {
        Some(config) => {
            if let Some(stream) = handshake(local, config, tcp, until).await {
                let took = accepted.elapsed();
                local.counts.service(client.service, |service| service.handshakes.add(took));
                serve_tls(local, &mut client, &service, stream).await;
            }
        }
        None => Box::pin(serve_clear(local, &client, &service, tcp)).await,
    }
}

/// Serves a client that speaks clear text: by HTTP/2 if it sends that preface first (prior knowledge; RFC 9113, 3.3).
async fn serve_clear(local: &Rc<Local>, client: &Client, service: &TerminatedService, tcp: TcpStream) {
    let mut socket = Socket::new(tcp);
    let limits = local.setup().terminated(client.service).filter(|it| it.http2).map(|it| it.http.limits);
    let mut input = Vec::new();
    if let Some(limits) = limits {
        match Box::pin(first_bytes(local, &mut socket.tcp, &limits)).await {
            Some(first) => input = first,
            None => return socket.close(),
        }
    }
    if input.starts_with(PREFACE) {
        local.counts.change(|statistics| statistics.http2_connections += 1);
        client.control.set_protocol("h2");
        let stream = Prefixed::new(input, socket);
        Box::pin(http2::serve(local, client, service.streams_max, stream)).await;
    } else {
        client.control.set_protocol("http/1.1");
        http1::serve(local, client, &mut socket, input).await;
    }
}

/// Reads until it is clear whether the client sends the preface of HTTP/2. `None`: the client closes before, or is too slow.
async fn first_bytes(local: &Local, tcp: &mut TcpStream, limits: &HttpLimits) -> Option<Vec<u8>> {
    let mut deadline = Deadline::default();
    deadline.set(limits.idle_timeout);
    let mut input = Vec::new();
    loop {
        let was_empty = input.is_empty();
        match pump::read(local, tcp, &mut input, &mut deadline).await {
            Ok(0) => return None,
            Ok(_) if input.len() < PREFACE.len() && PREFACE.starts_with(&input) => {}
            Ok(_) => return Some(input),
            Err(error) if error.kind() == io::ErrorKind::TimedOut && !was_empty => {
                local.counts.refused(Refused::Slow);
                return None;
            }
            Err(_) => return None,
        }
        if was_empty {
            deadline.set(limits.head_timeout);
        }
    }
}

/// Reads the proxy's header. Returns false, and counts it, if the header is missing, wrong or late.
async fn has_header(local: &Local, client: &mut Client, tcp: &mut TcpStream, until: Instant) -> bool {
    match Box::pin(timeout_at(until, proxy_header::take(tcp, &mut client.key))).await {
        Ok(Ok(())) => {
            client.control.set_client(client.key.source);
            return true;
        }
        Ok(Err(_)) => local.counts.change(|statistics| statistics.proxy_headers_invalid += 1),
        Err(_) => local.counts.change(|statistics| statistics.handshakes_slow += 1),
    }
    false
}

async fn serve_tls(local: &Rc<Local>, client: &mut Client, service: &TerminatedService, mut stream: Box<TlsStream>) {
    let session = stream.session();
    // A ticket of a resumed session carries the certificate that the first handshake has verified.
    client.certificate = ClientCertificate::of(session.peer_certificates()).map(Rc::new);
    let is_too_long = client.certificate.as_ref().is_some_and(|certificate| certificate.is_too_long);
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let is_resumed = session.handshake_kind() == Some(HandshakeKind::Resumed);
    local.counts.change(|statistics| {
        statistics.handshakes += 1;
        statistics.resumed += u64::from(is_resumed);
        statistics.http2_connections += u64::from(is_http2);
        statistics.client_subjects_too_long += u64::from(is_too_long);
    });
    client.control.set_protocol(if is_http2 { "h2" } else { "http/1.1" });
    if is_http2 {
        Box::pin(http2::serve(local, client, service.streams_max, *stream)).await;
    } else {
        http1::serve(local, client, &mut *stream, Vec::new()).await;
    }
}

/// Shakes hands with a client. Returns `None`, and counts it, if that fails or takes too long.
async fn handshake(
    local: &Rc<Local>,
    config: &Arc<rustls::ServerConfig>,
    tcp: TcpStream,
    until: Instant,
) -> Option<Box<TlsStream>> {
    let challenges = local.setup().challenges.clone();
    let made = match challenges {
        None => Box::pin(timeout_at(until, TlsStream::accept(tcp, Arc::clone(config)))).await,
        Some(open) => Box::pin(timeout_at(until, TlsStream::accept_chosen(tcp, config, &open))).await,
    };
    match made {
        // The CA has seen the certificate: there is nothing more to say (RFC 8737, 3).
        Ok(Ok(stream)) if stream.session().alpn_protocol() == Some(challenge::ALPN) => {
            local.counts.change(|statistics| statistics.challenges += 1);
            Box::pin(end_challenge(stream)).await;
            return None;
        }
        Ok(Ok(stream)) => return Some(Box::new(stream)),
        Ok(Err(HandshakeError::ClearText(socket))) => {
            local.counts.change(|statistics| statistics.clear_text += 1);
            // Boxed, so that other connections reserve no memory for it.
            Box::pin(tell_tls(local, socket)).await;
        }
        Ok(Err(HandshakeError::Failed)) => local.counts.change(|statistics| statistics.handshakes_failed += 1),
        Err(_) => local.counts.change(|statistics| statistics.handshakes_slow += 1),
    }
    None
}

/// Ends a handshake that answered a challenge.
async fn end_challenge(mut stream: TlsStream) {
    let _ = timeout(TOLD_WITHIN, stream.shutdown()).await;
}

/// Tells a client that speaks clear-text HTTP what is awaited.
async fn tell_tls(local: &Local, mut socket: Socket) {
    socket.close();
    let tcp = &mut socket.tcp;
    const WORDS: &[u8] = b"400 Bad Request: this port speaks TLS; use https://\n";
    let response = exchange::plain(local, 400, WORDS);
    let _ = timeout(TOLD_WITHIN, async {
        tcp.write_all(&response).await?;
        tcp.shutdown().await?;
        // Its request is read, so that the kernel does not answer it with RST.
        let mut thrown_away = [0; 4096];
        while tokio::io::AsyncReadExt::read(tcp, &mut thrown_away).await? > 0 {}
        std::io::Result::Ok(())
    })
    .await;
}
