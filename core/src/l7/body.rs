//! How long a message's body is.
