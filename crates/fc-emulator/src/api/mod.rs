//! The HTTP API on the Unix socket: requests in, [`crate::action::Action`]s out.
//!
//! [`parse`] is pure and holds the routes and their complaints; [`server`] moves
//! the bytes.

mod parse;
mod server;

#[cfg(test)]
mod parse_tests;

pub(crate) use server::{Request, Server};
