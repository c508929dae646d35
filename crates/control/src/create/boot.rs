//! The steps between an accepted record and a running environment.

use std::time::{Duration, Instant};

use fuse_model::{Endpoint, Environment, TaskLog, TaskOutput};
use fuse_redact::Redactor;
use fuse_wire_api::{CheckedCreate, Expose};
use fuse_wire_host::{StartAgentRequest, start_agent};

use super::{
    GuestToken, StoredRequest,
    failure::BootError,
    output::{self, Output},
    report::Progress,
    script::{self, Save},
    services,
    steps::{self, Steps},
};
use crate::{
    Control, Settings,
    guest::{self, Credentials, FileSources},
    provider::{FoundVm, LookupError, NewVm, Provider, upload_request},
};

/// What a boot needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Boot<'a> {
    pub(super) control: &'a Control,
    pub(super) record: &'a Environment,
    pub(super) request: &'a CheckedCreate,
    pub(super) redactor: &'a Redactor,
    pub(super) progress: &'a Progress,
}

/// What a boot yields.
#[derive(Debug)]
pub(super) struct Booted {
    pub(super) vm: FoundVm,
    pub(super) endpoints: Vec<Endpoint>,
    pub(super) token: GuestToken,
}

impl Boot<'_> {
    /// Runs all steps in order.
    pub(super) async fn run(self) -> Result<Booted, BootError> {
        let started = Instant::now();
        let inner = &self.control.inner;
        let (_, provider) = inner
            .providers
            .of(self.record.host_id.as_ref())
            .await
            .map_err(BootError::Lookup)?;
        if self.request.egress.is_proxy() {
            return Err(BootError::Egress);
        }
        let seed = self
            .control
            .local_seed(self.record, &self.request.seed_snapshot_id);
        let seed = seed.await?;
        let vm = NewVm {
            id: &self.record.id,
            spec: &self.record.spec,
            owner: inner.store.fleet_id(),
            seed: seed.as_ref(),
            gpu_uuids: &self.gpu_uuids().await?,
        };
        let progress = self.progress;
        let made = progress.measure("boot", provider.create(vm)).await;
        self.control.note_boot(self.record, &made).await;
        let vm = made.map_err(BootError::Boot)?;
        if let Some(timings) = &vm.timings {
            progress.note_host(timings);
        }
        if !provider.has_guest() {
            return Ok(Booted {
                vm,
                endpoints: Vec::new(),
                token: None,
            });
        }
        let booted = started.elapsed();
        let uploaded = progress.measure("upload", self.upload(&*provider)).await;
        let credentials = uploaded?;
        self.run_work(&*provider).await?;
        let stored = StoredRequest::of(self.request);
        let start = start_request(&inner.settings, &stored, credentials.is_some());
        let started_agent = provider.start_agent(&self.record.id, &start);
        let endpoints = progress
            .measure("start-agent", started_agent)
            .await
            .map_err(BootError::StartAgent)?;
        tracing::debug!(
            vm_id = %self.record.id, boot_ms = booted.as_millis(),
            elapsed_ms = started.elapsed().as_millis(), "guest is up"
        );
        Ok(Booted {
            vm,
            endpoints,
            token: credentials.map(|made| made.token),
        })
    }

    async fn gpu_uuids(&self) -> Result<Vec<String>, BootError> {
        if self.record.spec.gpus == 0 {
            return Ok(Vec::new());
        }
        let store = &self.control.inner.store;
        let uuids = store.environment_gpu_uuids(&self.record.id).await;
        uuids.map_err(|e| BootError::Lookup(LookupError::logged(e)))
    }

    /// Credentials exist only with a key to store the token under.
    async fn upload(&self, provider: &dyn Provider) -> Result<Option<Credentials>, BootError> {
        let credentials = self.control.new_credentials(&self.record.id);
        let credentials = credentials.map_err(BootError::Credentials)?;
        let files = guest::profile_files(FileSources {
            manifest_bytes: &self.request.manifest_bytes,
            manifest: &self.request.manifest,
            secrets: &self.request.secrets,
            credentials: credentials.as_ref(),
            healthcheck: self.request.healthcheck.as_ref(),
            desktop: self.request.desktop.as_ref(),
            files: &self.request.files,
        });
        provider
            .upload(&self.record.id, &upload_request(files))
            .await
            .map_err(BootError::Upload)?;
        Ok(credentials)
    }

    /// The startup script, then the services; what both write is kept with the task.
    async fn run_work(&self, provider: &dyn Provider) -> Result<(), BootError> {
        let services = services::are_wanted(&self.request.manifest);
        if self.request.startup_script.is_empty() && !services {
            return Ok(());
        }
        let script = match &self.request.startup_steps {
            Some(places) => steps::instrument(&self.request.startup_script, places),
            None => self.request.startup_script.clone(),
        };
        let (script, mark) = output::mark_phases(&script, &nonce());
        let mut output = Output::new(self.redactor, mark);
        let mut outcome = self.run_script(provider, &script, &mut output).await;
        if outcome.is_ok() && services {
            outcome = self.run_services(provider, &mut output).await;
        }
        let exit_code = match &outcome {
            Ok(exit_code)
            | Err(
                BootError::ScriptExit { exit_code, .. }
                | BootError::ScriptTimeout { exit_code, .. },
            ) => Some(*exit_code),
            // What they said is in what was written.
            Err(BootError::Services { .. }) => Some(1),
            // It was not told how the script ended.
            Err(_) => None,
        };
        let ended = exit_code.map(|exit_code| output.output(exit_code));
        self.save(output.log(), ended).await;
        outcome.map(drop)
    }

    async fn run_script(
        &self,
        provider: &dyn Provider,
        script: &str,
        output: &mut Output<'_>,
    ) -> Result<i32, BootError> {
        if script.is_empty() {
            return Ok(0);
        }
        let limit = script_limit(&self.control.inner.settings, self.request);
        let save = |output: &Output<'_>| self.save(output.log(), None);
        let id = &self.record.id;
        let running = script::run(provider, id, script::argv(script), limit, output, save);
        let running = self.progress.measure("script", running);
        if script.contains(steps::FILE) {
            let reports = Steps::new(self.control, provider, id, steps::FILE);
            reports.during(running).await
        } else {
            running.await
        }
    }

    async fn run_services(
        &self,
        provider: &dyn Provider,
        output: &mut Output<'_>,
    ) -> Result<i32, BootError> {
        let save = |output: &Output<'_>| self.save(output.log(), None);
        let coming = services::up(provider, &self.record.id, output, save);
        let coming = self.progress.measure("services", coming);
        let reports = Steps::new(self.control, provider, &self.record.id, services::REPORTS);
        reports.during(coming).await
    }

    /// Keeps what the script wrote with the task. Losing it is no reason to fail.
    fn save(&self, log: TaskLog, output: Option<TaskOutput>) -> Save {
        let (store, id) = (self.control.inner.store.clone(), self.record.id.clone());
        let task = self.record.task_id.clone();
        Box::pin(async move {
            let Some(task) = task else { return };
            if let Err(e) = store.task_set_log(&task, &id, log, output).await {
                tracing::warn!(
                    vm_id = %id, error = %crate::error::chain(&e),
                    "cannot keep the output of a startup script"
                );
            }
        })
    }
}

/// What no script says by chance.
fn nonce() -> String {
    hex::encode(rand::random::<[u8; 16]>())
}

/// The bound of a request's script.
pub(super) fn script_limit(settings: &Settings, request: &CheckedCreate) -> Duration {
    match request.startup_script_timeout_seconds {
        0 => settings.script_timeout,
        seconds => Duration::from_secs(seconds),
    }
}

/// The start-agent call of an environment. The token travels as a file; here only its
/// presence counts.
pub(crate) fn start_request(
    settings: &Settings,
    stored: &StoredRequest,
    has_token: bool,
) -> StartAgentRequest {
    StartAgentRequest {
        manifest_path: guest::MANIFEST_PATH.to_owned(),
        secrets_path: guest::SECRETS_PATH.to_owned(),
        tls_cert_path: Some(guest::TLS_CERT_PATH.to_owned()),
        tls_key_path: Some(guest::TLS_KEY_PATH.to_owned()),
        auth_token: has_token.then(|| "set".to_owned()),
        gateway: (!stored.gateway_url.is_empty()).then(|| stored.gateway_url.clone()),
        download_url: settings.agent_download_url.clone(),
        expose: stored.expose.iter().filter_map(expose).collect(),
        ..StartAgentRequest::default()
    }
}

fn expose(entry: &Expose) -> Option<start_agent::Expose> {
    Some(start_agent::Expose {
        // Validation keeps ports in range.
        port: u16::try_from(entry.port).ok()?,
        name: entry.name.clone(),
        protocol: match entry.protocol.as_str() {
            "udp" => start_agent::Protocol::Udp,
            _ => start_agent::Protocol::Tcp,
        },
    })
}
