//! Tests of the whole pipeline, from a Fusefile's text to what is sent.

mod decoding;
mod diagnostics;
mod examples;
mod layers;
mod properties;
mod shells;
mod tree;
mod walk;
