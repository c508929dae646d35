//! The layer cache: the deepest layer that holds the beginning of a plan.

use fuse_client::Client;
use fuse_fusefile::Compiled;
use fuse_fusefile::layers::{Cause, Miss, Plan, PlanStep, Recipe, Status};
use fuse_wire_api::{Event, KIND_STEP, ListSnapshots, MAX_PAGE, PageQuery};
use jiff::Timestamp;

use crate::app::App;
use crate::error::Error as CliError;
use crate::render;
use crate::render::steps::MissNote;
use crate::wait;

/// Architecture of hosts that do not say theirs.
const DEFAULT_ARCH: &str = "amd64";

/// Texts of the server about a layer that cannot be had.
const LOST: [&str; 3] = [
    "artifact transfer failed",
    "snapshot not found",
    "of the snapshot is not on this host",
];

/// A layer to start from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layer {
    /// The snapshot that holds it.
    pub(crate) snapshot: String,
    /// How many steps are in it.
    pub(crate) steps: usize,
}

/// Why layers could not even be looked for.
#[derive(Debug, thiserror::Error)]
enum Unusable {
    #[error(
        "the hosts differ in architecture; `fuse host <id>` selects one, `placement.host` pins one"
    )]
    MixedFleet,
    #[error("no host is registered")]
    NoHost,
    #[error("{}", render::api::message(.0))]
    Client(#[from] fuse_client::Error),
}

/// Looks from the last cacheable step to the first and stops at the first hit; marks it, and what is
/// below it, in the plan, and what the layers of `name` tell about the misses above it. The cache never
/// makes anything fail: what is in its way is a warning.
pub(crate) async fn lookup(
    app: &App,
    client: &Client,
    compiled: &Compiled,
    plan: &mut Plan,
    name: &str,
) -> Option<Layer> {
    if !plan.steps.iter().any(|step| step.cacheable) {
        return None;
    }
    match deepest(app, client, compiled, plan).await {
        Ok((layer, tenant)) => {
            let held = layer.as_ref().map_or(0, |layer| layer.steps);
            for step in plan.steps.iter_mut().take(held) {
                step.status = Status::Hit;
            }
            explain(client, plan, name, &tenant).await;
            layer
        }
        Err(reason) => {
            app.io
                .warn(&format!("the layer cache is left out: {reason}"));
            None
        }
    }
}

/// The deepest layer, and the tenant that the caller's layers have.
async fn deepest(
    app: &App,
    client: &Client,
    compiled: &Compiled,
    plan: &mut Plan,
) -> Result<(Option<Layer>, String), Unusable> {
    let mut tenant = String::new();
    plan.arch = arch(app, client, &compiled.spec.host_id).await?;
    let steps = plan.steps.iter_mut().rev();
    for step in steps.filter(|step| step.cacheable) {
        let found = client.resolve_snapshot(&step.key, &plan.arch).await?;
        step.miss.detail = found.miss_detail;
        tenant = found.tenant_id;
        if let Some(snapshot) = found.snapshot.filter(|_| found.found) {
            let layer = Layer {
                snapshot: snapshot.id,
                steps: step.index + 1,
            };
            return Ok((Some(layer), tenant));
        }
    }
    Ok((None, tenant))
}

/// Finds out why the steps without a layer have none. A list may show the layers of others, too; those that
/// could never be found are not compared with. Only the newest layers are looked at, and without
/// them the answer is that there is none: it is not worth more than one call.
async fn explain(client: &Client, plan: &mut Plan, name: &str, tenant: &str) {
    let misses = |plan: &Plan, index: usize| {
        let step = &plan.steps[index];
        step.cacheable && step.status == Status::Miss && step.miss.detail.is_empty()
    };
    if !(0..plan.steps.len()).any(|index| misses(plan, index)) {
        return;
    }
    let query = ListSnapshots {
        mode: super::build::MODE.to_owned(),
        state: "ready".to_owned(),
        arch: plan.arch.clone(),
        tenant_id: tenant.to_owned(),
        limit: Some(MAX_PAGE.to_string()),
        ..ListSnapshots::default()
    };
    let Ok(list) = client.snapshots(&query).await else {
        return;
    };
    let kept: Vec<_> = list
        .snapshots
        .iter()
        .filter(|snapshot| snapshot.tenant_id == tenant)
        .filter_map(|snapshot| Recipe::from_metadata(&snapshot.metadata))
        .collect();
    for index in 0..plan.steps.len() {
        if misses(plan, index)
            && let Some(miss) = Recipe::miss(plan, index, name, &kept)
        {
            plan.steps[index].miss = miss;
        }
    }
}

/// Notes that a layer cannot be used after all, so that its steps have to be built.
pub(crate) fn lose(plan: &mut Plan, layer: &Layer, why: &str) {
    let why = why.lines().next().unwrap_or_default();
    for step in plan.steps.iter_mut().take(layer.steps) {
        step.status = Status::Miss;
        step.miss = Miss {
            cause: Cause::NotOnHost,
            detail: vec![why.to_owned()],
        };
    }
}

/// The architecture that the environment will have: that of the pinned host, of the active host, or the
/// one that all hosts share. Never this machine's.
async fn arch(app: &App, client: &Client, pinned: &str) -> Result<String, Unusable> {
    let or_default = |arch: String| match arch.as_str() {
        "" => DEFAULT_ARCH.to_owned(),
        _ => arch,
    };
    let one = match pinned {
        "" => app.active_host(),
        id => Some(id),
    };
    if let Some(id) = one {
        return Ok(or_default(client.host(id).await?.capacity.arch));
    }
    let mut shared: Option<String> = None;
    let mut page = PageQuery::default();
    loop {
        let list = client.hosts(&page).await?;
        for host in list.hosts {
            let arch = or_default(host.capacity.arch);
            match &shared {
                Some(shared) if *shared != arch => return Err(Unusable::MixedFleet),
                _ => shared = Some(arch),
            }
        }
        match list.next_cursor {
            Some(cursor) => page.cursor = Some(cursor),
            None => return shared.ok_or(Unusable::NoHost),
        }
    }
}

/// What is shown of the steps that a layer holds.
pub(crate) fn cached_steps(plan: &Plan, layer: Option<&Layer>) -> Vec<Event> {
    let held = layer.map_or(0, |layer| layer.steps);
    plan.steps
        .iter()
        .take(held)
        .map(|step| {
            let mut event = step_event(step.index, plan.steps.len());
            event.key.clone_from(&step.key);
            event.cached = true;
            event
        })
        .collect()
}

/// A step event of our own, as the server would send it.
pub(crate) fn step_event(index: usize, total: usize) -> Event {
    let mut event = Event::state(String::new(), String::new(), "", Timestamp::now());
    event.event = KIND_STEP.to_owned();
    event.index = u32::try_from(index + 1).unwrap_or(u32::MAX);
    event.total = u32::try_from(total).unwrap_or(u32::MAX);
    event
}

/// Why a create from a layer failed, if the layer is what it failed for: its disk could not be brought
/// to the host, or is not there any more.
pub(crate) fn lost_layer(failure: &CliError) -> Option<&str> {
    let CliError::Wait(wait::Error::Failed { cause, .. }) = failure else {
        return None;
    };
    let is_about_it = LOST.iter().any(|text| cause.contains(text));
    is_about_it.then_some(cause)
}

/// Why each step of a plan has to be built, should it come to that.
pub(crate) fn misses(plan: &Plan) -> Vec<MissNote> {
    let note = |step: &PlanStep| MissNote {
        reason: match step {
            _ if !plan.cache_enabled => "disabled",
            step if !step.cacheable => "uncacheable",
            _ if plan.arch.is_empty() => "unsupported",
            step => step.miss.cause.as_str(),
        },
        detail: step.miss.detail.clone(),
    };
    plan.steps.iter().map(note).collect()
}
