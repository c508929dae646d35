//! The client against a scripted server on loopback: what is sent, and how answers are sorted.

#[cfg(test)]
mod client;
