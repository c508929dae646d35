//! The services of a manifest: the guest agent brings their containers up from what was written into the guest.
//!
//! A create waits for them, because one whose service does not start is a failed create. A guest that has booted
//! anew, or was drained for a move that failed, gets them in the background: it is running already, and compose takes
//! its time.

use std::time::Duration;

use fuse_model::EnvironmentId;
use fuse_wire_api::Manifest;

use super::{
    failure::BootError,
    output::Output,
    script::{self, Save},
};
use crate::{
    Control, Error,
    operation::shell,
    provider::{Provider, ProviderError},
};

/// Where the guest agent reports what became of them.
pub(super) const REPORTS: &str = "/fuse/services.ndjson";
/// Bound of everything: images may have to be pulled. The guest's own, which says more, is a little less.
const LIMIT: Duration = Duration::from_secs(600);
/// Bound of starting what goes on in the background.
const START_LIMIT: Duration = Duration::from_secs(10);
/// An image may bring a program of that name along; ours is never there.
const UP: &str = "f=/run/fused; [ -x \"$f\" ] || f=fused; exec \"$f\" services up";
const UP_IN_THE_BACKGROUND: &str = "f=/run/fused; [ -x \"$f\" ] || f=fused; \
    setsid \"$f\" services up </dev/null >/fuse/services.log 2>&1 &";

/// Whether there are any.
pub(super) fn are_wanted(manifest: &Manifest) -> bool {
    !manifest.services.is_empty()
}

/// Brings them up and collects what compose says.
pub(super) async fn up(
    provider: &dyn Provider,
    vm: &EnvironmentId,
    output: &mut Output<'_>,
    save: impl Fn(&Output<'_>) -> Save,
) -> Result<i32, BootError> {
    let written = output.stderr_written();
    let argv = shell(UP, LIMIT).argv;
    let outcome = script::run(provider, vm, argv, LIMIT, output, save).await;
    outcome.map_err(|error| match error {
        BootError::ScriptExit { .. } | BootError::ScriptTimeout { .. } => {
            let said = output.stderr_since(written).trim_end().to_owned();
            BootError::Services { said }
        }
        BootError::ScriptCut => BootError::ServicesCut,
        BootError::Script(source) => BootError::ServicesCall(source),
        other => other,
    })
}

/// Starts bringing them up. How it goes is in the guest, in `/fuse/services.log`.
pub(crate) async fn services_again(
    provider: &dyn Provider,
    vm: &EnvironmentId,
    manifest: &Manifest,
) -> Result<(), ProviderError> {
    if are_wanted(manifest) {
        let request = shell(UP_IN_THE_BACKGROUND, START_LIMIT).request();
        provider.exec(vm, &request).await?;
    }
    Ok(())
}

impl Control {
    /// Starts them again in a guest that was drained and goes on after all.
    pub(super) async fn services_after_drain(
        &self,
        provider: &dyn Provider,
        vm: &EnvironmentId,
    ) -> Result<(), Error> {
        let stored = self.request_of(vm).await?;
        // It was read once, when the environment was created.
        let manifest = Manifest::parse(stored.manifest_text().as_bytes()).unwrap_or_default();
        let started = services_again(provider, vm, &manifest).await;
        started.map_err(|source| Error::Provider {
            operation: "start the services",
            source,
        })
    }
}
