//! The program `fuse` itself, against an orchestrator that a test scripts, and against the real one
//! on its stub provider when that has been built.

#[cfg(test)]
mod build;
#[cfg(test)]
mod build_steps;
#[cfg(test)]
mod completion;
#[cfg(test)]
mod connect;
#[cfg(test)]
mod doctor;
#[cfg(test)]
mod environments;
#[cfg(test)]
mod exec;
#[cfg(test)]
mod fake;
#[cfg(test)]
mod fuse;
#[cfg(test)]
mod fusefile;
#[cfg(test)]
mod hosts;
#[cfg(test)]
mod init;
#[cfg(test)]
mod lifecycle;
#[cfg(test)]
mod live;
#[cfg(test)]
mod local;
mod logs;
#[cfg(test)]
mod real;
#[cfg(test)]
mod shell;
#[cfg(test)]
mod status;
#[cfg(test)]
mod tasks;
#[cfg(test)]
mod terminal;
#[cfg(test)]
mod up;
