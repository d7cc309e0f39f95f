//! Chunked bodies as they come.
