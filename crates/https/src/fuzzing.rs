//! Functions that the fuzz targets (`tests/fuzz`) call, and no program.

use crate::translate;
use http::HeaderMap;
use http::request::Parts;

/// The head of HTTP/1.1 that a request by HTTP/2 is written as; `is_whole`: no body follows. `None`: the stream is refused.
pub fn request_head(parts: &Parts, is_whole: bool) -> Option<Vec<u8>> {
    translate::request_head(parts, is_whole).ok()
}

/// The lines of HTTP/1.1 that the trailers of a request are written as.
pub fn trailer_lines(trailers: &HeaderMap) -> Vec<u8> {
    translate::trailer_lines(trailers)
}
