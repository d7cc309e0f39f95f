//! SYN cookies.
