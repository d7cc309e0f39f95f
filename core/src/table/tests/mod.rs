//! Model tests: every structure against a plain map or list.
