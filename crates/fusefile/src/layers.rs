//! The layer cache: which steps can be cached, and under which keys.
//!
//! A key hashes the recipe up to and with its step: base image and files, every step before, the step's text
//! and inputs, and the workspace. Not in it: secrets, env, task id, `run`, resources, `copy`, services,
//! architecture. Changing what is hashed needs another domain string. Pure but for the inputs, which are read
//! through the tree that is handed in.

mod miss;

use std::collections::BTreeMap;

use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::compile::json;
use crate::compile::{Compiled, FileEntry, StepPlan};
use crate::diagnostic::{Diagnostic, Severity};
use crate::fs::Tree;
use crate::inputs::{self, Inputs};
pub use miss::{Cause, Miss, Recipe};

/// First line of what a key hashes.
const DOMAIN: &str = "fusefile-layer/v2";

/// The layer plan: what `--plan` prints and the cache lookup walks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Key of the state before the first step.
    pub base_key: String,
    /// Architecture that layers are looked up for; empty = unknown.
    pub arch: String,
    /// Whether the cache is in force.
    pub cache_enabled: bool,
    /// One for each step, in order. Cacheable ones come first.
    pub steps: Vec<PlanStep>,
    /// The workspace that is part of every key.
    #[serde(skip)]
    pub workspace: String,
}

/// One step of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlanStep {
    /// From 0.
    pub index: usize,
    /// Shell text.
    pub script: String,
    /// The layer's key; empty when not cacheable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Key of the step before, or the base key; empty when not cacheable.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub parent_key: String,
    /// Digest of the inputs; empty without.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub inputs_digest: String,
    /// Whether a layer can be looked up and kept.
    pub cacheable: bool,
    /// What the cache says.
    pub status: Status,
    /// Why it is not cacheable; empty when it is.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub reason: &'static str,
    /// Its inputs one by one.
    #[serde(skip)]
    pub files: BTreeMap<String, String>,
    /// Why it has no layer, while its status says so; only in live runs.
    #[serde(skip)]
    pub miss: Miss,
}

/// Verdict of the cache on a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// A layer was found; only in live runs.
    Hit,
    /// No layer.
    Miss,
    /// Not cacheable.
    Skip,
}

impl Plan {
    /// The plan of a compiled file. `no_cache` turns the cache off whatever the file says.
    ///
    /// # Errors
    /// The first problem with `inputs`.
    pub fn of(compiled: &Compiled, no_cache: bool, tree: &dyn Tree) -> Result<Self, Diagnostic> {
        let base_key = base_key(&compiled.spec.image, &compiled.script.files);
        let cache_enabled = compiled.cache_enabled && !no_cache;
        let mut parent = base_key.clone();
        let mut steps = Vec::with_capacity(compiled.steps.len());
        let reasons = reasons(cache_enabled, compiled.spec.gpus, &compiled.steps);
        let fragments = &compiled.script.fragments;
        for (index, ((step, script), reason)) in compiled
            .steps
            .iter()
            .zip(fragments)
            .zip(reasons)
            .enumerate()
        {
            let cacheable = reason.is_empty();
            let (mut key, mut parent_key, mut inputs) = <(String, String, Inputs)>::default();
            if cacheable {
                inputs = inputs::read(tree, &step.inputs)
                    .map_err(|error| problem(compiled, step, &error))?;
                key = layer_key(&parent, script, &inputs.digest, &compiled.script.workspace);
                parent_key = std::mem::replace(&mut parent, key.clone());
            }
            let status = if cacheable {
                Status::Miss
            } else {
                Status::Skip
            };
            steps.push(PlanStep {
                index,
                script: script.clone(),
                key,
                parent_key,
                inputs_digest: inputs.digest,
                files: inputs.files,
                cacheable,
                status,
                reason,
                miss: Miss::default(),
            });
        }
        Ok(Self {
            base_key,
            arch: String::new(),
            cache_enabled,
            steps,
            workspace: compiled.script.workspace.clone(),
        })
    }

    /// The JSON form with two spaces of indent and a newline at the end.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = json::pretty(self);
        text.push('\n');
        text
    }
}

/// Why each step is not cacheable, or nothing. The texts are part of the API.
fn reasons(enabled: bool, gpus: i64, steps: &[StepPlan]) -> Vec<&'static str> {
    let mut broken = false;
    steps
        .iter()
        .map(|step| {
            if !enabled {
                return "caching is not enabled";
            }
            if gpus > 0 {
                return "gpu environments cannot be snapshotted";
            }
            if broken {
                return "an earlier step is uncacheable";
            }
            if step.opted_out {
                broken = true;
                return "step opted out with cache: false";
            }
            ""
        })
        .collect()
}

/// Key of the state before the first step.
#[must_use]
pub fn base_key(image: &str, files: &[FileEntry]) -> String {
    let mut sum = Sha256::new();
    sum.update(image);
    sum.update(format!("\0files:{}\0", files.len()));
    for file in files {
        sum.update(format!(
            "{}:{}\0{}:",
            file.path.len(),
            file.path,
            file.body.len()
        ));
        sum.update(&file.body);
        sum.update("\0");
    }
    format!("image:{}", hex::encode(sum.finalize()))
}

/// Key of the layer that a step leaves.
#[must_use]
pub fn layer_key(parent: &str, script: &str, inputs_digest: &str, workspace: &str) -> String {
    let text = format!("{DOMAIN}\n{parent}\n{script}\n{inputs_digest}\n{workspace}");
    hex::encode(Sha256::digest(text))
}

fn problem(compiled: &Compiled, step: &StepPlan, error: &inputs::InputError) -> Diagnostic {
    let cause = std::error::Error::source(error).map(|cause| format!(": {cause}"));
    Diagnostic {
        severity: Severity::Error,
        file: compiled.path.clone(),
        position: step.at,
        field: Some(format!("{}.inputs", step.field)),
        message: format!("{error}{}", cause.unwrap_or_default()),
        suggestion: None,
    }
}
