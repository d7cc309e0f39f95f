//! Taking connections: so many at a time, and what happens to the one too many.

use super::connection::{self, Exchange};
use super::{Answerer, Closed};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;

/// How long to wait after a failure to accept: out of descriptors, most likely, which passes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A socket that listens.
pub(crate) trait Listen: Send + 'static {
    /// A client's end.
    type Stream: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next client.
    fn next(&self) -> impl Future<Output = io::Result<Self::Stream>> + Send;
}

impl Listen for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

impl Listen for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// A connection being served.
struct ServedClient {
    exchange: Arc<Exchange>,
    task: JoinHandle<()>,
}

/// Aborts what it holds when it goes, so that no client is served after the server has stopped.
struct ServedClients(Vec<ServedClient>);

impl Drop for ServedClients {
    fn drop(&mut self) {
        self.0.iter().for_each(|client| client.task.abort());
    }
}

/// Serves every client that connects, for ever; `peer` says who it is, and fails where that cannot be told.
pub(crate) async fn accept<L, P, A>(listener: L, answers: Arc<A>, peer: fn(&L::Stream) -> io::Result<P>)
where
    L: Listen,
    P: Send + Sync + 'static,
    A: Answerer<P>,
{
    let mut clients = ServedClients(Vec::with_capacity(A::BOUNDS.connections_max));
    loop {
        let accepted = listener.next().await.and_then(|stream| peer(&stream).map(|peer| (stream, peer)));
        match accepted {
            Ok((stream, peer)) => admit(&mut clients.0, stream, peer, &answers),
            Err(_) => {
                answers.counts().close(Closed::AcceptFailed);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves `stream`, if need be in place of the connection that has gone longest without a whole request: connections
/// that only sit there must not keep others out. If all are being answered, the new connection is closed.
fn admit<S, P, A>(clients: &mut Vec<ServedClient>, stream: S, peer: P, answers: &Arc<A>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    P: Send + Sync + 'static,
    A: Answerer<P>,
{
    clients.retain(|client| !client.task.is_finished());
    if clients.len() >= A::BOUNDS.connections_max {
        // They are in the order of their arrival.
        let Some(idle) = clients.iter().position(|client| !client.exchange.is_open()) else {
            answers.counts().close(Closed::Refused);
            return;
        };
        clients.remove(idle).task.abort();
        answers.counts().close(Closed::GaveWay);
    }
    let exchange = Arc::new(Exchange::default());
    let task = tokio::spawn(connection::serve(stream, peer, Arc::clone(&exchange), Arc::clone(answers)));
    clients.push(ServedClient { exchange, task });
}
