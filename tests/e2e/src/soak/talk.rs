//! One WebSocket that talks on and on, message by message: for the demo.

use super::book::SoakBook;
use super::server::SoakServer;
use crate::namespace::Namespace;
use crate::tool::inside;
use anyhow::{Context, Result, ensure};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;
use tokio_tungstenite::tungstenite::{Message, client};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Between two messages.
const PAUSE: Duration = Duration::from_millis(50);

/// A WebSocket under way, and the server that sends back what it gets.
#[derive(Debug)]
pub struct WebSocketTalk {
    answered: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<()>>,
    _server: SoakServer,
}

impl WebSocketTalk {
    /// Starts a server on `port` in one namespace, and a client in another, which asks `to` for `path`.
    ///
    /// # Errors
    /// The server cannot listen. What befalls the client, [`WebSocketTalk::stop`] tells.
    pub fn start(
        (server, port): (&Namespace, u16),
        ours: &Namespace,
        to: SocketAddr,
        path: &str,
    ) -> Result<WebSocketTalk> {
        let server = SoakServer::start(server, port, 1, &Arc::new(SoakBook::default()))?;
        let (answered, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (count, ends, url) = (Arc::clone(&answered), Arc::clone(&stop), format!("ws://{to}{path}"));
        let thread = inside::spawn(ours, None, move || {
            let stream = TcpStream::connect_timeout(&to, PATIENCE).context("cannot connect")?;
            stream.set_read_timeout(Some(PATIENCE))?;
            let (mut socket, _) = client(url, stream).context("no WebSocket")?;
            while !ends.load(Ordering::Relaxed) {
                let message = Message::text(format!("message {}", count.load(Ordering::Relaxed)));
                socket.send(message.clone()).context("cannot send")?;
                ensure!(socket.read().context("no answer")? == message, "another message came back");
                count.fetch_add(1, Ordering::Relaxed);
                sleep(PAUSE);
            }
            Ok(())
        });
        Ok(WebSocketTalk { answered, stop, thread, _server: server })
    }

    /// Messages that came back so far.
    pub fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Ends it: how many messages came back.
    ///
    /// # Errors
    /// It broke.
    pub fn stop(self) -> Result<u64> {
        self.stop.store(true, Ordering::Relaxed);
        inside::join(self.thread)?;
        Ok(self.answered.load(Ordering::Relaxed))
    }
}
