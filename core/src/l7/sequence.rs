//! Where bytes were put in or taken out of a stream.
