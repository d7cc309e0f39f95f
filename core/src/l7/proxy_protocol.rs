//! The client's address in front of a backend's stream.
