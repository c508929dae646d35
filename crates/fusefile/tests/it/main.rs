//! Tests of the whole pipeline, from a Fusefile's text to what is sent.

#![expect(
    clippy::unwrap_used,
    reason = "a test that cannot go on says so by panicking"
)]

mod copy_rules;
mod decoding;
mod diagnostics;
mod examples;
mod grammars;
mod layers;
mod mutations;
mod properties;
mod rules;
mod schema;
mod scripts;
mod shells;
mod shipped;
mod tree;
mod walk;
