//! The screen of an environment.

use fuse_wire_api::{ComputerAction, MAX_BODY_LARGE};
use serde_json::json;

use super::{
    environment::{ENVIRONMENTS, MISSING},
    operation::{Call, Operation},
};

const NONE: &str = "there is no screen: no guest agent of this release has one";
const NOT_RUNNING: &str = "the environment is not `running`";

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new(
            ("POST", "/v1/environments/{vmId}/computer"),
            "computerAction",
            ENVIRONMENTS,
            refused(
                Call::new("Do something on the screen")
                    .body::<ComputerAction>(MAX_BODY_LARGE, json!({"action": "screenshot"}))
                    .error(400, "invalid_argument", "no `action`"),
            ),
        ),
        Operation::new(
            ("GET", "/v1/environments/{vmId}/computer"),
            "computerDisplay",
            ENVIRONMENTS,
            refused(Call::new("Read the state of the screen")),
        ),
        Operation::new(
            ("GET", "/v1/environments/{vmId}/computer/stream"),
            "computerStream",
            ENVIRONMENTS,
            refused(
                Call::new("Watch and control the screen")
                    .about("An upgrade to `fuse-vnc/1`.")
                    .error(400, "invalid_argument", "no `Upgrade: fuse-vnc/1`"),
            ),
        ),
    ]
}

fn refused(call: Call) -> Call {
    call.error(404, "not_found", MISSING)
        .error(409, "conflict", NOT_RUNNING)
        .error(501, "unimplemented", NONE)
}
