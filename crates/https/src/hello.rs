//! A ClientHello that is read before it is decided how it is answered: while a CA looks whether a name leads here.

use crate::stream::{Source, is_clear_text};
use rustls::server::{Accepted, AcceptedAlert, Acceptor};
use std::io;
use std::task::Poll;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Reads a ClientHello; `None`: the client speaks clear text. A client that cannot be understood is told so.
pub(crate) async fn accept_hello(tcp: &mut TcpStream) -> io::Result<Option<Accepted>> {
    let mut acceptor = Acceptor::default();
    let mut is_first = true;
    loop {
        let read = std::future::poll_fn(|cx| {
            let mut source = Source { tcp: &mut *tcp, cx, first: is_first.then_some(0) };
            match acceptor.read_tls(&mut source) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                Ok(0) => Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                result => Poll::Ready(result.map(|_| source.first)),
            }
        });
        if is_clear_text(read.await?) {
            return Ok(None);
        }
        is_first = false;
        match acceptor.accept() {
            Ok(Some(accepted)) => return Ok(Some(accepted)),
            Ok(None) => {}
            Err((error, alert)) => {
                tell(tcp, alert).await;
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        }
    }
}

/// Sends an alert, as far as the client takes it.
pub(crate) async fn tell(tcp: &mut TcpStream, mut alert: AcceptedAlert) {
    let mut bytes = Vec::new();
    if alert.write_all(&mut bytes).is_ok() {
        let _ = tcp.write_all(&bytes).await;
    }
}
