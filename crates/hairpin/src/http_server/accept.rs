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

/// Serves every client that connects, for ever. `open` makes of an accepted connection the stream that requests come by, and
/// says who is at the other end, or why it cannot; until then the connection counts as one without a request.
pub(crate) async fn accept<L, P, A, F, S>(listener: L, answers: Arc<A>, open: impl Fn(L::Stream) -> F)
where
    L: Listen,
    P: Send + Sync + 'static,
    A: Answerer<P>,
    F: Future<Output = Result<(S, P), Closed>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut clients = ServedClients(Vec::with_capacity(A::BOUNDS.connections_max));
    loop {
        match listener.next().await {
            Ok(stream) => admit(&mut clients.0, open(stream), &answers),
            Err(_) => {
                answers.counts().close(Closed::AcceptFailed);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves the connection that `opening` gives, if need be in place of the one that has gone longest without a whole request:
/// connections that only sit there must not keep others out. If all are being answered, the new connection is closed.
fn admit<P, A, S>(
    clients: &mut Vec<ServedClient>,
    opening: impl Future<Output = Result<(S, P), Closed>> + Send + 'static,
    answers: &Arc<A>,
) where
    P: Send + Sync + 'static,
    A: Answerer<P>,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
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
    let (own, answers) = (Arc::clone(&exchange), Arc::clone(answers));
    let task = tokio::spawn(async move {
        match opening.await {
            Ok((stream, peer)) => connection::serve(stream, peer, own, answers).await,
            Err(why) => answers.counts().close(why),
        }
    });
    clients.push(ServedClient { exchange, task });
}
