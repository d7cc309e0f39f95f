//! What a TLS client asks for.
