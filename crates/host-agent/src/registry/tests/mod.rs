//! The registry on a fake VMM, with real devices and packet rules in a network namespace.

mod clock;
mod create;
mod gpus;
mod lifecycle;
mod logs;
mod matrix;
mod reattach;
mod snapshot;
mod stop;
mod surface;

use fuse_wire_host::CreateVmRequest;

pub(super) fn named(name: &str) -> CreateVmRequest {
    CreateVmRequest {
        name: Some(name.to_owned()),
        ..CreateVmRequest::default()
    }
}
