//! The small grammars of the format: sizes, durations, names, guest paths. Pure functions on text.

pub mod duration;
pub mod glob;
pub mod guest_path;
pub mod names;
pub mod size;
