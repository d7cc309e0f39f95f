//! Responses that Hairpin makes itself. All are written here, so that each has its error page.

use crate::local::Local;
use crate::pages::Place;
use hairpin_core::l7::edit::{HEAD_ROOM, NoRoom};
use hairpin_core::l7::reply::{self, Reply};

/// The HTTP/1.1 response to a request that is refused. `challenge`: the credentials that it should have.
pub(crate) fn refusal(
    local: &Local,
    place: Place<'_>,
    status: u16,
    head_only: bool,
    challenge: Option<&[u8]>,
) -> Vec<u8> {
    let retry_after_s = reply::retry_after_s(status);
    let (date, location) = (local.date(), None);
    let reply = Reply { status, date, retry_after_s, location, challenge, body: &[], head_only, close: true };
    write(local, place, &reply).unwrap_or_default()
}

/// An HTTP/1.1 response with this text, the last one of its connection, whose request was not read.
pub(crate) fn plain(local: &Local, status: u16, body: &[u8]) -> Vec<u8> {
    let (date, location, retry_after_s, challenge) = (local.date(), None, None, None);
    let reply = Reply { status, date, retry_after_s, location, challenge, body, head_only: false, close: true };
    written(local, &reply).unwrap_or_default()
}

/// An HTTP/1.1 response, with the error page that its request's route or service has for it. A text of its own, which only
/// `reply` of a route can give to an error, stays.
///
/// # Errors
/// Its head, and the body that it has without a page, do not fit in [`HEAD_ROOM`].
pub(crate) fn write(local: &Local, place: Place<'_>, reply: &Reply<'_>) -> Result<Vec<u8>, NoRoom> {
    let response = written(local, reply)?;
    let is_usual = reply.body.is_empty() || reply.body == reply::text(reply.status).as_bytes();
    let page = is_usual.then(|| place.setup.page(place.service, place.route, reply.status)).flatten();
    Ok(page.map(|page| page.put_into(&response, reply.head_only)).unwrap_or(response))
}

fn written(local: &Local, reply: &Reply<'_>) -> Result<Vec<u8>, NoRoom> {
    let mut heads = local.heads.borrow_mut();
    let length = reply::write(&mut heads[..HEAD_ROOM], reply)?;
    Ok(heads[..length].to_vec())
}
