//! Domain types to wire types.

use fuse_control::TaskDetails;
use fuse_model as model;
use fuse_wire_api as wire;

/// An environment as the API shows it.
pub(crate) fn environment(record: model::Environment) -> wire::Environment {
    let health = record.probe.verdict().cloned().map(health);
    wire::Environment {
        id: record.id.into_string(),
        state: record.state.as_str().to_owned(),
        task_id: record
            .task_id
            .map(model::TaskId::into_string)
            .unwrap_or_default(),
        host_id: record
            .host_id
            .map(model::HostId::into_string)
            .unwrap_or_default(),
        url: record.url,
        spec: spec(record.spec),
        created_at: record.created_at,
        updated_at: record.updated_at,
        error: record.error,
        endpoints: record.endpoints.into_iter().map(endpoint).collect(),
        guest_version: record.guest_version,
        health,
        egress: wire::EgressStatus::default(),
        warnings: Vec::new(),
    }
}

fn health(health: model::Health) -> wire::Health {
    wire::Health {
        state: health.state.as_str().to_owned(),
        since: health.since,
        failures: health.failures,
        message: health.message,
    }
}

fn spec(spec: model::EnvironmentSpec) -> wire::Spec {
    wire::Spec {
        cpus: spec.cpus,
        ram_mb: spec.ram_mb,
        storage_gb: spec.storage_gb,
        region: spec.region,
        arch: spec
            .arch
            .map(|arch| arch.as_str().to_owned())
            .unwrap_or_default(),
        max_runtime_seconds: spec.max_runtime_seconds,
        idle_timeout_seconds: spec.idle_timeout_seconds,
        image: spec.image,
        gpus: spec.gpus,
        gpu_kind: spec.gpu_kind,
        gpu_profile: spec.gpu_profile,
        host_id: spec
            .host_id
            .map(model::HostId::into_string)
            .unwrap_or_default(),
        labels: spec.labels,
        huge_pages: spec.huge_pages,
    }
}

fn endpoint(endpoint: model::Endpoint) -> wire::Endpoint {
    wire::Endpoint {
        name: endpoint.name,
        url: endpoint.url,
        protocol: endpoint.protocol,
        port: endpoint.port,
    }
}

/// A snapshot as the API shows it.
pub(crate) fn snapshot(record: model::Snapshot) -> wire::Snapshot {
    let (comment, name) = (
        record.meta("comment").to_owned(),
        record.meta("name").to_owned(),
    );
    let export_ref = record
        .exports
        .first()
        .map(|export| export.destination.clone());
    wire::Snapshot {
        id: record.id.into_string(),
        vm_id: record
            .environment_id
            .map(model::EnvironmentId::into_string)
            .unwrap_or_default(),
        task_id: record.task_id,
        tenant_id: record.tenant,
        parent_snapshot_id: record.parent_id,
        host_id: record
            .host_id
            .map(model::HostId::into_string)
            .unwrap_or_default(),
        mode: record.mode,
        state: record.state.as_str().to_owned(),
        kind: record.kind.as_str().to_owned(),
        comment,
        name,
        metadata: record.metadata,
        layer_key: record.layer_key,
        arch: record.arch,
        digest: record.digest,
        size_bytes: record.size_bytes,
        created_at: record.created_at,
        updated_at: record.updated_at,
        retention_until: record.retention_until,
        last_error: record.last_error,
        export_ref: export_ref.unwrap_or_default(),
        exports: record.exports.into_iter().map(export).collect(),
    }
}

fn export(export: model::SnapshotExport) -> wire::SnapshotExport {
    wire::SnapshotExport {
        destination: export.destination,
        status: export.status,
        requested_at: Some(export.requested_at),
        updated_at: Some(export.updated_at),
        last_error: export.last_error,
    }
}

/// A transition, or a report out of a guest, as a record of an event stream.
pub(crate) fn event(event: model::EnvironmentEvent) -> wire::Event {
    let id = event.id.to_string();
    let vm_id = event.environment_id.into_string();
    let Some(report) = event.report else {
        let mut record = wire::Event::state(id, vm_id, event.state.as_str(), event.at);
        record.url = event.url;
        record.error = event.error;
        return record;
    };
    let mut record = wire::Event::state(id, vm_id, "", event.at);
    match report {
        model::GuestReport::Step(step) => {
            record.event = wire::KIND_STEP.to_owned();
            record.index = step.index;
            record.total = step.total;
            record.duration_ms = step.duration_ms;
            record.exit_code = step.exit_code;
        }
        model::GuestReport::Service(service) => {
            record.event = wire::KIND_SERVICE.to_owned();
            record.service = service.service;
            record.status = service.status.as_str().to_owned();
            record.duration_ms = service.duration_ms;
            record.exit_code = service.exit_code;
        }
    }
    record
}

/// A task as the API shows it.
pub(crate) fn task(details: TaskDetails) -> wire::Task {
    let TaskDetails {
        task,
        output,
        failure,
    } = details;
    wire::Task {
        task_id: task.id.into_string(),
        vm_id: task.environment_id.into_string(),
        run_status: task.status.as_str().to_owned(),
        last_error: task.last_error,
        output: output.map(|output| wire::TaskOutput {
            exit_code: output.exit_code,
            stdout: output.stdout,
            stderr: output.stderr,
        }),
        failure: failure.as_ref().map(task_failure),
        assigned_at: task.assigned_at,
        updated_at: task.updated_at,
    }
}

fn task_failure(failure: &model::TaskFailure) -> wire::TaskFailure {
    wire::TaskFailure {
        console_bytes: failure.console.len() as u64,
        agent_bytes: failure.agent.len() as u64,
        kept_until: Some(failure.kept_until),
        // One that a later release wrote may not be readable here.
        ..serde_json::from_str(&failure.report).unwrap_or_default()
    }
}

/// A host as the API shows it; never its token.
pub(crate) fn host(host: model::Host) -> wire::Host {
    let gpu_kind = host.capacity.gpu_kind.clone();
    wire::Host {
        agent: agent(&host),
        id: host.id.into_string(),
        url: host.url,
        region: host.region,
        backend: host.backend.as_str().to_owned(),
        labels: host.labels,
        state: host.state.as_str().to_owned(),
        evict: match host.evict {
            model::Evict::None => String::new(),
            evict => evict.as_str().to_owned(),
        },
        capacity: capacity(host.capacity),
        allocated: wire::Allocated {
            cpus: host.allocated.cpus,
            ram_mb: host.allocated.ram_mb,
            storage_gb: host.allocated.storage_gb,
            vm_count: host.allocated.vm_count,
            gpus: host.allocated.gpus,
            // Named only where something of the kind is taken.
            gpu_kind: if host.allocated.gpus > 0 {
                gpu_kind
            } else {
                String::new()
            },
            mig_profiles: host.allocated.bound.mig_profiles,
            mig_instance_uuids: host
                .allocated
                .bound
                .mig_instance_uuids
                .into_iter()
                .collect(),
        },
        last_seen: host.last_seen,
        created_at: host.created_at,
        updated_at: host.updated_at,
        warnings: Vec::new(),
    }
}

fn agent(host: &model::Host) -> Option<wire::AgentStatus> {
    let check = host.agent.as_ref()?;
    let boots = host.failed_boots.as_ref();
    Some(wire::AgentStatus {
        reachable: check.is_reachable(),
        checked_at: check.checked_at,
        changed_at: Some(check.changed_at),
        error: check.error.clone().unwrap_or_default(),
        version: check.version.clone(),
        guests: check.guests,
        disk_free_gb: check.disk_free_gb,
        failed_boots: boots.map_or(0, |boots| boots.count),
        last_boot_error: boots
            .map(|boots| boots.last_error.clone())
            .unwrap_or_default(),
        quarantined_at: host.quarantined_at(),
    })
}

fn capacity(capacity: model::Capacity) -> wire::Capacity {
    wire::Capacity {
        cpus: capacity.cpus,
        ram_mb: capacity.ram_mb,
        storage_gb: capacity.storage_gb,
        vm_count: capacity.vm_count,
        arch: capacity
            .arch
            .map(|arch| arch.as_str().to_owned())
            .unwrap_or_default(),
        gpus: capacity.gpus,
        gpu_kind: capacity.gpu_kind,
        mig_profiles: capacity.mig_profiles,
        mig_instances: capacity
            .mig_instances
            .into_iter()
            .map(|found| wire::MigInstance {
                uuid: found.uuid,
                profile: found.profile,
                kind: found.kind,
                parent_gpu_uuid: found.parent_gpu_uuid,
            })
            .collect(),
        gpu_devices: capacity.gpu_devices.into_iter().map(device).collect(),
    }
}

fn device(found: model::GpuDevice) -> wire::GpuDevice {
    wire::GpuDevice {
        uuid: found.uuid,
        model: found.model,
        pci_bus_id: found.pci_bus_id,
        memory_mb: found.memory_mb,
        driver_version: found.driver_version,
        cuda_version: found.cuda_version,
        compute_cap: found.compute_cap,
        mig_capable: found.mig_capable,
        mig_mode: found.mig_mode,
        iommu_group: found.iommu_group,
    }
}

/// An API key as the API lists it.
pub(crate) fn api_key(key: fuse_store::ApiKey) -> wire::ApiKey {
    wire::ApiKey {
        id: key.id.into_string(),
        label: key.label,
        scopes: key.scopes,
        created_at: key.created_at,
        last_used_at: key.last_used_at,
        revoked_at: key.revoked_at,
    }
}

/// An entry of the audit log.
pub(crate) fn audit_event(record: fuse_store::AuditRecord) -> wire::AuditEvent {
    wire::AuditEvent {
        entity_type: record.entity_type,
        entity_id: record.entity_id,
        kind: record.kind,
        payload: record.payload,
        created_at: record.at,
    }
}

/// A dead letter.
pub(crate) fn dead_letter(record: fuse_store::DeadLetterRecord) -> wire::DeadLetter {
    let letter = record.letter;
    wire::DeadLetter {
        kind: letter.kind,
        entity_id: letter.entity_id,
        task_id: letter.task_id,
        reason: letter.reason,
        retry_count: letter.retry_count,
        payload: letter.payload,
        first_seen_at: record.first_seen_at,
        last_seen_at: record.last_seen_at,
    }
}

/// Output as text; what is not UTF-8 is replaced by U+FFFD.
pub(crate) fn lossy(output: Vec<u8>) -> String {
    String::from_utf8(output).unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned())
}
