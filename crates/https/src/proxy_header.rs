//! The header of the PROXY protocol that a connection from a trusted network begins with.

use hairpin_core::flow::FlowKey;
use hairpin_core::l7::head::ParseStatus;
use hairpin_core::l7::proxy_protocol::{self, READ_MAX, Received};
use std::io;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;

/// Reads the header, and writes the addresses that it gives into `key`. What follows the header stays in the socket, for TLS.
///
/// # Errors
/// [`io::ErrorKind::InvalidData`] if the connection begins otherwise, else what the socket says.
pub(crate) async fn take(tcp: &mut TcpStream, key: &mut FlowKey) -> io::Result<()> {
    let received = read(tcp).await?;
    if let Some((source, destination)) = received.ends {
        key.source = source;
        // The header may be of a client over the other family than the proxy's own connection.
        if destination.address.is_ipv4() == key.destination.address.is_ipv4() {
            key.destination = destination;
        }
    }
    Ok(())
}

/// As long as the header is not complete, all that has come is part of it and can be taken from the socket.
async fn read(tcp: &mut TcpStream) -> io::Result<Received> {
    let mut header = [0; READ_MAX];
    let mut had = 0;
    loop {
        let more = tcp.peek(&mut header[had..]).await?;
        if more == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let invalid = |_| io::Error::from(io::ErrorKind::InvalidData);
        let status = proxy_protocol::read(&header[..had + more]).map_err(invalid)?;
        let end = match status {
            ParseStatus::Complete(received) => received.bytes,
            ParseStatus::Partial => had + more,
        };
        tcp.read_exact(&mut header[had..end]).await?;
        had = end;
        if let ParseStatus::Complete(received) = status {
            return Ok(received);
        }
    }
}
