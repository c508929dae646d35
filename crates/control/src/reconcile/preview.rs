//! What a cycle would do, without doing any of it: for people.

use std::fmt;

use fuse_model::{Environment, State};
use fuse_planner::{Action, Age, Eviction, Limits, Listing, Memory, Overrun, evictions};
use fuse_store::StoreError;

use super::interrupted::{BATCH, is_migrating};
use crate::Control;

/// What a cycle would do now.
#[derive(Debug, Clone, Default)]
pub struct Preview {
    /// Environments in the table.
    pub tracked: usize,
    /// Hosts that did not answer: about their VMs nothing is done.
    pub silent: Vec<String>,
    /// VMs of other fleets, or of nobody, by host and name: never touched.
    pub foreign: Vec<(String, String)>,
    /// What would be done.
    pub steps: Vec<PreviewStep>,
}

/// Something that a cycle would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PreviewStep {
    /// The pass: `interrupted`, `missing`, `orphans`, `stuck`, `idle`, `destroy`, `set-up`,
    /// `evict`, `snapshots`.
    pub pass: &'static str,
    /// The environment, VM or snapshot.
    pub entity: String,
    /// What and why.
    pub what: String,
}

impl fmt::Display for Preview {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.steps {
            writeln!(f, "{:<12} {:<40} {}", step.pass, step.entity, step.what)?;
        }
        for (place, vm) in &self.foreign {
            let what = format!("left alone on {place}: another fleet's, or nobody's");
            writeln!(f, "{:<12} {vm:<40} {what}", "foreign")?;
        }
        for host in &self.silent {
            writeln!(
                f,
                "{:<12} {host:<40} does not answer: its VMs are left alone",
                "hosts"
            )?;
        }
        writeln!(
            f,
            "{} environments, {} VMs of others left alone, {} things to do",
            self.tracked,
            self.foreign.len(),
            self.steps.len()
        )
    }
}

impl Control {
    /// Looks at table and hosts as a cycle does and says what that cycle, or the next one with the
    /// same view, would do. Writes nothing and destroys nothing.
    ///
    /// # Errors
    /// The store fails.
    pub async fn reconcile_preview(&self) -> Result<Preview, StoreError> {
        let store = &self.inner.store;
        let mut preview = Preview::default();
        for record in store.environment_list_interrupted(BATCH).await? {
            let what = interrupted(&record);
            preview.add("interrupted", record.id.as_str(), what);
        }
        let picture = self.picture().await?;
        preview.tracked = picture.records.len();
        let silent = picture.listings.iter();
        preview.silent = silent
            .filter(|(_, listing)| **listing == Listing::Unknown)
            .map(|(place, _)| place.clone())
            .collect();
        let mut memory = Memory::default();
        let retries = self.inner.settings.orphan_max_retries;
        let mut look = || {
            let fleet = store.fleet_id();
            // A store that can be looked at outlives its process: nobody is a stranger to it.
            memory.plan(fleet, &picture.tracked, &picture.listings, retries, None)
        };
        // What takes two sightings is seen twice here.
        let (first, second) = (look(), look());
        preview.foreign = first.foreign;
        for action in &first.actions {
            preview.add_action(action, "");
        }
        let confirmed = second.actions.iter();
        for action in confirmed.filter(|action| !first.actions.contains(action)) {
            preview.add_action(action, ", if it is still so in the next cycle");
        }
        self.preview_limits(picture.records.values(), &mut preview);
        for host in &picture.draining {
            let records = picture.records.values();
            for due in evictions(host, records, |one| self.is_at_work(one)) {
                let (id, verb) = match &due {
                    Eviction::Drain(id) => (id, "drain it"),
                    Eviction::Migrate(id) => (id, "migrate it"),
                };
                let what = format!("{verb}: host {} is draining", host.id);
                preview.add("evict", id.as_str(), what);
            }
        }
        for id in self.old_credentials(BATCH).await? {
            let what = "renew its guest's credentials: half of their life is over".to_owned();
            preview.add("credentials", id.as_str(), what);
        }
        for snapshot in store.snapshot_list_collectable(BATCH).await? {
            let what = "delete it: its retention is over, or its deletion was begun".to_owned();
            preview.add("snapshots", snapshot.id.as_str(), what);
        }
        Ok(preview)
    }

    fn preview_limits<'a>(
        &self,
        records: impl Iterator<Item = &'a Environment>,
        preview: &mut Preview,
    ) {
        let (limits, now) = (self.limits(), self.inner.store.now());
        for record in records {
            let Some(overrun) = limits.overrun(record, Age::by_clock(record, now)) else {
                continue;
            };
            let pass = match overrun {
                Overrun::Runtime { .. } => "stuck",
                Overrun::Idle { .. } => "idle",
            };
            let what = format!("end it at the second strike: {}", overrun.text());
            preview.add(pass, record.id.as_str(), what);
        }
    }

    /// The limits of environments.
    pub(crate) fn limits(&self) -> Limits {
        let settings = &self.inner.settings;
        Limits {
            runtime: settings.task_stuck_timeout,
            idle: settings.default_idle_timeout,
            runtime_covers_draining: settings.max_runtime_covers_draining,
        }
    }
}

impl Preview {
    fn add(&mut self, pass: &'static str, entity: &str, what: String) {
        self.steps.push(PreviewStep {
            pass,
            entity: entity.to_owned(),
            what,
        });
    }

    fn add_action(&mut self, action: &Action, when: &str) {
        let (pass, entity, what) = match action {
            Action::MarkLost(id) => (
                "missing",
                id.as_str(),
                "end it: its host does not have its VM".to_owned(),
            ),
            Action::EndStopped(id) => (
                "missing",
                id.as_str(),
                "end it: its VM has stopped".to_owned(),
            ),
            Action::Reap(id) => (
                "destroy",
                id.as_str(),
                "remove its record: its VM is gone".to_owned(),
            ),
            Action::RetryDestroy(id) => ("destroy", id.as_str(), "destroy its VM again".to_owned()),
            Action::SetUpAgain(id) => (
                "set-up",
                id.as_str(),
                "write files and credentials again: its guest has booted anew".to_owned(),
            ),
            Action::NoteGuest { id, version } => (
                "set-up",
                id.as_str(),
                format!("write down that its guest agent is of release {version}"),
            ),
            Action::DestroyOrphan { place, vm } => (
                "orphans",
                vm.as_str(),
                format!("destroy it on {place}: it is ours and no record's"),
            ),
        };
        self.add(pass, entity, what + when);
    }
}

fn interrupted(record: &Environment) -> String {
    let kind = record.operation.as_ref().map(|operation| operation.kind);
    let kind = kind.map_or("operation", fuse_model::OperationKind::as_str);
    match record.state {
        State::Provisioning if is_migrating(record) => {
            "undo it: what it was to take the place of goes on".to_owned()
        }
        State::Provisioning => "adopt it if its guest agent serves, else undo it".to_owned(),
        State::Destroying => "go on with its destroy".to_owned(),
        State::Running | State::Draining | State::Destroyed | State::Failed => {
            format!("settle its interrupted {kind}")
        }
    }
}
