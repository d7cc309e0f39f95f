//! The pool against a plain model.
