//! A client connection and the backend connection that it has, looked up together.
//!
//! A lookup checks that the place is in use, and a lookup for a change also stores the number of the operation. A stage
//! therefore looks both up once for a segment, and hands on references.

use super::entry::{BackendConn, ClientConn};
use crate::table::numbered::NumberedSlab;

/// Looks up a client connection and its backend connection, to read them.
#[inline]
pub(in crate::l7::splice) fn joined<'a>(
    client_conns: &'a NumberedSlab<ClientConn>,
    backend_conns: &'a NumberedSlab<BackendConn>,
    position: u32,
) -> Option<(&'a ClientConn, &'a BackendConn)> {
    let client_conn = client_conns.get(position)?;
    let backend_conn = backend_conns.get(client_conn.backend_conn.get()?)?;
    Some((client_conn, backend_conn))
}

/// Looks up a client connection and its backend connection, to change them.
#[inline]
pub(in crate::l7::splice) fn joined_mut<'a>(
    client_conns: &'a mut NumberedSlab<ClientConn>,
    backend_conns: &'a mut NumberedSlab<BackendConn>,
    position: u32,
) -> Option<(&'a mut ClientConn, &'a mut BackendConn)> {
    let client_conn = client_conns.get_mut(position)?;
    let backend_conn = backend_conns.get_mut(client_conn.backend_conn.get()?)?;
    Some((client_conn, backend_conn))
}
