//! Heads of requests and responses, read strictly.
