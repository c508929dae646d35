//! From a request to the task of a new VM.
//!
//! A fork, and a create from a seed, differ from other creates in where the first bytes of the disk
//! come from and in nothing else.

use std::sync::Arc;

use fuse_wire_host::name::{MAX_ID_LEN, vm_id};
use fuse_wire_host::{CreateVmRequest, ForkRequest, VmState, VmView};
use tokio::sync::oneshot;

use super::actor::Actor;
use super::error::{CreateError, SpecError};
use super::host::Host;
use super::meta::{Disks, Meta, Phase, Spec};
use super::timings::Timings;
use super::vm::Vm;
use crate::disk::overlay::MAX_GIB;
use crate::disk::{BaseImage, space};
use crate::gpu::{Claim, Inventory, Used, Want, pick};
use crate::huge_pages;
use crate::snapshot::Held;

/// Least memory of a VM in MiB: the kernel, the initramfs and the guest agent's own share.
const MIN_MEMORY_MIB: u32 = 128;
/// Most memory of a VM in MiB (4 TiB).
const MAX_MEMORY_MIB: u32 = 4 * 1024 * 1024;

/// What a disk begins with.
#[derive(Debug)]
struct Source {
    base: BaseImage,
    seed: Option<Held>,
}

/// Checks a request, takes an id and a number, and waits for the VM's task to bring it up.
pub(super) async fn create(
    host: &Arc<Host>,
    request: CreateVmRequest,
) -> Result<VmView, CreateError> {
    let timings = Timings::start();
    let (want, inventory) = gpus(host, &request).await?;
    let seed = request.seed_snapshot.as_deref().filter(|id| !id.is_empty());
    if seed.is_some() {
        host.snapshots_possible()
            .map_err(CreateError::Unsupported)?;
    }
    let seed = seed
        .map(|id| host.snapshots.hold(id))
        .transpose()
        .map_err(CreateError::Seed)?;
    let spec = check(host, request, seed.as_ref())?;
    let id = vm_id(&spec.name);
    let copied = seed
        .as_ref()
        .map_or(0, |seed| space::stored_bytes(&seed.files().overlay()));
    let floor = host.config.vms.min_free_mib;
    space::ensure_free(host.disk_dir(), floor)
        .and_then(|()| space::ensure_room(host.disk_dir(), copied, floor))
        .map_err(CreateError::Space)?;
    let source = source(host, &id, &spec, seed).await?;
    timings.note_since_start("image");
    let claim = |used: &Used| pick(&inventory, used, &want);
    let plan = &host.config.net.plan;
    let actor = host.tables.reserve(&id, plan, claim, |index, claim| {
        let meta = meta(host, &id, spec, plan.slot(index), claim, &source);
        let (vm, mailbox) = Vm::new(host, &meta, VmState::Creating);
        let actor = Actor {
            host: Arc::clone(host),
            vm: Arc::clone(&vm),
            meta,
            mailbox,
            process: None,
        };
        (vm, actor)
    })?;
    let (reply, answer) = oneshot::channel();
    host.tasks.spawn(actor.create(source.seed, timings, reply));
    answer.await.map_err(|_| CreateError::Lost { id })?
}

/// A create with the sizes and the owner of the source, where the request does not say otherwise.
pub(super) fn fork_request(source: &Spec, request: ForkRequest) -> CreateVmRequest {
    let size = |asked: Option<u32>, source: u32| asked.filter(|n| *n > 0).or(Some(source));
    let text = |asked: Option<String>| asked.filter(|text| !text.is_empty());
    CreateVmRequest {
        name: request.name,
        cpus: size(request.cpus, source.cpus),
        memory_mb: size(request.memory_mb, source.memory_mb),
        storage_gb: request.storage_gb,
        region: text(request.region).or_else(|| Some(source.region.clone())),
        owner: text(request.owner).or_else(|| source.owner.clone()),
        seed_snapshot: Some(request.snapshot_id),
        huge_pages: Some(source.huge_pages),
        ..CreateVmRequest::default()
    }
}

/// Finds the base image; a seed has its own.
async fn source(
    host: &Host,
    id: &str,
    spec: &Spec,
    seed: Option<Held>,
) -> Result<Source, CreateError> {
    let images = Arc::clone(&host.images);
    let digest = seed
        .as_ref()
        .map(|seed| seed.stored().view.base_digest.clone().unwrap_or_default());
    let image = spec.image.clone();
    let find = move || match digest {
        Some(digest) => images.pinned(&digest),
        None => images.resolve(image.as_deref()),
    };
    let base = tokio::task::spawn_blocking(find).await;
    let base = base
        .map_err(|_| CreateError::Lost { id: id.to_owned() })?
        .map_err(CreateError::Image)?;
    Ok(Source { base, seed })
}

/// What a request wants of the host's devices, and what there is if it wants any.
async fn gpus(host: &Host, request: &CreateVmRequest) -> Result<(Want, Inventory), CreateError> {
    let text = |value: &Option<String>| value.clone().unwrap_or_default().trim().to_owned();
    let want = Want {
        gpus: request.gpus.unwrap_or(0),
        kind: text(&request.gpu_kind),
        profile: text(&request.gpu_profile).to_lowercase(),
        gpu_uuids: request.gpu_uuids.clone(),
        mig_uuids: request.mig_instance_uuids.clone(),
    };
    if want.is_nothing() {
        return Ok((want, Inventory::default()));
    }
    let settings = host.config.qemu.as_ref().ok_or(CreateError::NoGpus)?;
    let inventory = Inventory::read(&settings.gpus).await;
    Ok((want, inventory.map_err(CreateError::Inventory)?))
}

fn check(host: &Host, request: CreateVmRequest, seed: Option<&Held>) -> Result<Spec, CreateError> {
    let vms = &host.config.vms;
    let (least_gb, default_gb) = match seed {
        Some(seed) => (seed.stored().storage_gb, seed.stored().storage_gb),
        None => (1, vms.storage_gib),
    };
    let given = |value: Option<u32>, default: u32| value.filter(|v| *v > 0).unwrap_or(default);
    let text = |value: Option<String>| value.filter(|v| !v.trim().is_empty());
    let fresh = || format!("vm-{:08x}", rand::random::<u32>());
    let spec = Spec {
        name: text(request.name).unwrap_or_else(fresh),
        cpus: given(request.cpus, 1),
        memory_mb: given(request.memory_mb, vms.memory_mib),
        storage_gb: given(request.storage_gb, default_gb),
        region: request.region.unwrap_or_default(),
        image: request
            .image
            .filter(|image| seed.is_none() && !image.is_empty()),
        owner: text(request.owner),
        huge_pages: request.huge_pages.unwrap_or(false),
    };
    let id = vm_id(&spec.name);
    if id.len() > MAX_ID_LEN {
        return Err(CreateError::Spec(SpecError::NameTooLong {
            id,
            max: MAX_ID_LEN,
        }));
    }
    for (field, value, min, max) in [
        ("cpus", spec.cpus, 1, host.vmm.limits().max_cpus),
        ("memory_mb", spec.memory_mb, MIN_MEMORY_MIB, MAX_MEMORY_MIB),
        ("storage_gb", spec.storage_gb, least_gb, MAX_GIB),
    ] {
        if value < min || value > max {
            return Err(CreateError::Spec(SpecError::Range {
                field,
                min,
                max,
                value,
            }));
        }
    }
    if spec.huge_pages {
        huge_pages::ensure_free(spec.memory_mb).map_err(CreateError::HugePages)?;
    }
    Ok(spec)
}

fn meta(
    host: &Host,
    id: &str,
    spec: Spec,
    slot: crate::net::Slot,
    gpus: Claim,
    source: &Source,
) -> Meta {
    let dir = host.metas.dir(id);
    Meta {
        vm_id: id.to_owned(),
        phase: Phase::Creating,
        spec,
        slot,
        disks: Disks {
            rootfs: source.base.path.clone(),
            image_digest: source.base.digest.clone(),
            overlay: dir.join("overlay.img"),
        },
        gpus,
        created_at: jiff::Timestamp::now()
            .strftime("%Y-%m-%dT%H:%M:%SZ")
            .to_string(),
        process: None,
        boot_id: None,
        guest_version: None,
        seed_snapshot: source
            .seed
            .as_ref()
            .map(|seed| seed.stored().view.snapshot_id.clone()),
        sock: host.vmm.sockets(id, &dir).api,
        surface_published: false,
        expose_endpoints: Vec::new(),
    }
}
