//! `up` from the layer cache. Whatever is wrong with the cache, `up` goes on without it.

use fuse_client::{Client, Created};
use fuse_fusefile::layers::Plan;
use fuse_fusefile::{Compiled, Start};
use fuse_wire_api::CreateEnvironment;

use crate::app::App;
use crate::commands::cache::{self, Layer};
use crate::error::Error as CliError;
use crate::render;

/// What the layer cache has of a Fusefile.
#[derive(Clone)]
pub(super) struct Cached {
    /// With its hits marked.
    pub(super) plan: Plan,
    layer: Option<Layer>,
}

impl Cached {
    /// Looks for the deepest layer.
    pub(super) async fn find(
        app: &App,
        client: &Client,
        compiled: &Compiled,
        mut plan: Plan,
        name: &str,
    ) -> Self {
        let layer = cache::lookup(app, client, compiled, &mut plan, name).await;
        Self { plan, layer }
    }

    /// The start from that layer.
    pub(super) fn start(&self) -> Option<Start<'_>> {
        self.layer.as_ref().map(|layer| Start::Layer {
            snapshot: &layer.snapshot,
            steps: layer.steps,
        })
    }

    /// Creates from the layer or, when the server refuses that, from the start; answers with the layer
    /// that was used.
    pub(super) async fn create(
        &self,
        app: &App,
        client: &Client,
        seeded: Option<&CreateEnvironment>,
        cold: &CreateEnvironment,
    ) -> Result<(Created, Option<&Layer>), CliError> {
        let (Some(layer), Some(seeded)) = (&self.layer, seeded) else {
            return Ok((client.create_in_background(cold).await?, None));
        };
        match client.create_in_background(seeded).await {
            Ok(created) => {
                let (held, all) = (layer.steps, self.plan.steps.len());
                app.io.success(&format!(
                    "{held} of {all} steps from layer {}",
                    layer.snapshot
                ));
                Ok((created, Some(layer)))
            }
            Err(error) if error.api().is_some() => {
                Self::give_up(app, layer, &render::api::message(&error));
                Ok((client.create_in_background(cold).await?, None))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// What there is without `layer`, when a create that used it failed for want of it; that is said.
    pub(super) fn without(
        &self,
        app: &App,
        layer: Option<&Layer>,
        failure: &CliError,
    ) -> Option<Self> {
        let (layer, why) = (layer?, cache::lost_layer(failure)?);
        Self::give_up(app, layer, why);
        let mut plan = self.plan.clone();
        cache::lose(&mut plan, layer, why);
        Some(Self { plan, layer: None })
    }

    fn give_up(app: &App, layer: &Layer, why: &str) {
        let snapshot = &layer.snapshot;
        app.io.warn(&format!(
            "layer {snapshot} cannot be used: {why}; building from the start"
        ));
    }
}
