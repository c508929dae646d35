//! The configuration file: named contexts, the current one, the active host of each.
//!
//! Callers read through [`ConfigFile::load`] and change through [`ConfigFile::update`]; nothing
//! else touches the file.

mod file;
mod model;

pub(crate) use file::{ConfigFile, Error};
pub(crate) use model::{Config, Context, Credentials};
