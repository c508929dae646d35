//! The SDK against a small HTTP server in the same process.

#[cfg(test)]
mod calls;
#[cfg(test)]
mod events;
#[cfg(test)]
mod examples;
#[cfg(test)]
mod exec;
#[cfg(test)]
mod server;
