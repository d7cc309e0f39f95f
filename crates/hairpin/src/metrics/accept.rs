//! Taking connections: so many at a time, and what happens to the one too many.

use super::Answers;
use super::counts::Closed;
use super::exchange::{self, MetricsExchange};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Connections at a time at most.
pub(crate) const CONNECTIONS_MAX: usize = 32;
/// How long to wait after a failure to accept: out of descriptors, most likely, which passes.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// A connection being served.
struct ServedClient {
    exchange: Arc<MetricsExchange>,
    task: JoinHandle<()>,
}

/// Aborts what it holds when it goes, so that no client is served after the server has stopped.
struct ServedClients(Vec<ServedClient>);

impl Drop for ServedClients {
    fn drop(&mut self) {
        self.0.iter().for_each(|client| client.task.abort());
    }
}

/// Serves every client that connects, for ever.
pub(super) async fn accept(listener: std::net::TcpListener, answers: Arc<Answers>) {
    // Only a runtime without I/O would refuse.
    let Ok(listener) = TcpListener::from_std(listener) else { return };
    let mut clients = ServedClients(Vec::with_capacity(CONNECTIONS_MAX));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => admit(&mut clients.0, stream, &answers),
            Err(_) => {
                answers.status.counts().close(Closed::AcceptFailed);
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Serves `stream`, if need be in place of the connection that has gone longest without a whole request: connections
/// that only sit there must not keep a monitoring system out. If all are being answered, the new connection is closed.
fn admit(clients: &mut Vec<ServedClient>, stream: TcpStream, answers: &Arc<Answers>) {
    clients.retain(|client| !client.task.is_finished());
    if clients.len() >= CONNECTIONS_MAX {
        // They are in the order of their arrival.
        let Some(idle) = clients.iter().position(|client| !client.exchange.is_open()) else {
            answers.status.counts().close(Closed::Refused);
            return;
        };
        clients.remove(idle).task.abort();
        answers.status.counts().close(Closed::GaveWay);
    }
    let exchange = Arc::new(MetricsExchange::default());
    let task = tokio::spawn(exchange::serve(stream, Arc::clone(&exchange), Arc::clone(answers)));
    clients.push(ServedClient { exchange, task });
}
