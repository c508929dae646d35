//! The decoded Fusefile: what the author wrote, typed, with positions.
//!
//! Made by [`crate::parse`] only. Nothing here is checked beyond its type; [`crate::validate`] and
//! [`crate::compile`] do that. Absent scalars are empty strings or zero, as everywhere in the format;
//! where absent and empty differ the type is an `Option`.

use std::collections::BTreeMap;
use std::ops::Deref;

use crate::diagnostic::Position;

/// A value with the place it was written at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Field<T> {
    /// The value; the type's default when absent or broken.
    pub value: T,
    /// Where it stands: the value of a scalar, the key of a list or object. `None` when absent.
    pub at: Option<Position>,
    /// It was written but could not be decoded (already reported), so nothing more is said about it.
    pub broken: bool,
}

impl<T> Deref for Field<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// A value of a map, with the place of its key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry<T> {
    /// Where the key stands.
    pub key_at: Option<Position>,
    /// The value.
    pub value: Field<T>,
}

/// A map whose keys the author chooses; iterated in ascending byte order.
pub type Map<T> = BTreeMap<String, Entry<T>>;

/// A list; null items are already gone.
pub type List<T> = Vec<Field<T>>;

/// The whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct Fusefile {
    pub version: Field<i64>,
    pub name: Field<String>,
    pub image: Field<String>,
    pub resources: Field<Resources>,
    pub placement: Field<Placement>,
    pub cache: Field<Cache>,
    pub files: Field<List<File>>,
    pub copy: Field<List<Copy>>,
    pub env: Field<Map<EnvValue>>,
    pub build: Field<List<Step>>,
    pub setup: Field<List<Step>>,
    pub services: Field<Map<Service>>,
    pub run: Field<Run>,
    pub workspace: Field<String>,
    pub startup_timeout: Field<String>,
    pub expose: Field<List<Expose>>,
    pub healthcheck: Field<Option<Healthcheck>>,
    pub desktop: Field<Option<Desktop>>,
    pub secrets: Field<List<String>>,
}

/// `resources`; sizes and durations still as text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct Resources {
    pub cpus: Field<i32>,
    pub memory: Field<String>,
    pub disk: Field<String>,
    pub storage: Field<String>,
    pub gpu: Field<i64>,
    pub gpu_kind: Field<String>,
    pub gpu_profile: Field<String>,
    pub region: Field<String>,
    pub max_runtime: Field<String>,
    pub idle_timeout: Field<String>,
}

/// `placement`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct Placement {
    pub host: Field<String>,
    pub labels: Field<Map<String>>,
}

/// `cache`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct Cache {
    pub enabled: Field<bool>,
}

/// One entry of `files`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct File {
    pub path: Field<String>,
    pub source: Field<String>,
    /// `None` when not written; an empty text is an empty file.
    pub content: Field<Option<String>>,
    pub mode: Field<String>,
}

/// One entry of `copy`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct Copy {
    pub from: Field<String>,
    pub to: Field<String>,
}

/// A literal or a reference to a secret.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct EnvValue {
    /// `None` when not written; an empty text is an empty variable.
    pub value: Field<Option<String>>,
    pub secret: Field<String>,
}

/// One step of `build` or `setup`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct Step {
    pub run: Field<String>,
    pub inputs: Field<List<String>>,
    /// `None` when not written, which is not the same as `false`.
    pub cache: Field<Option<bool>>,
    pub workdir: Field<String>,
}

/// `run`: what the environment is for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Run {
    /// Not written, or empty.
    #[default]
    Absent,
    /// Shell text, byte for byte.
    Shell(String),
    /// Arguments, each one word whatever it contains.
    Exec(Vec<String>),
}

/// One of `services`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct Service {
    pub image: Field<String>,
    pub ports: Field<List<i64>>,
    pub env: Field<Map<EnvValue>>,
    pub command: Field<List<String>>,
    pub restart: Field<String>,
    pub healthcheck: Field<Option<ServiceHealthcheck>>,
    pub depends_on: Field<List<String>>,
}

/// A container's own health check, with compose's meaning.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct ServiceHealthcheck {
    pub test: Field<List<String>>,
    pub interval: Field<String>,
    pub timeout: Field<String>,
    pub retries: Field<i64>,
}

/// One entry of `expose`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct Expose {
    pub port: Field<i64>,
    pub r#as: Field<String>,
}

/// The environment's `healthcheck`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct Healthcheck {
    pub http: Field<Option<HttpProbe>>,
    pub exec: Field<List<String>>,
    pub interval: Field<String>,
    pub timeout: Field<String>,
    pub retries: Field<i64>,
    pub start_period: Field<String>,
}

/// `healthcheck.http`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct HttpProbe {
    pub port: Field<i64>,
    pub path: Field<String>,
}

/// `desktop`, in pixels.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[expect(
    missing_docs,
    reason = "the fields are the format's own keys, described in `shape`"
)]
pub struct Desktop {
    pub width: Field<i64>,
    pub height: Field<i64>,
}

impl Fusefile {
    /// The steps in force, with the key the author wrote them under: `build` if non-empty, else
    /// `setup`; `build` when there are none or both.
    #[must_use]
    pub fn steps(&self) -> (&'static str, &List<Step>) {
        if self.build.is_empty() && !self.setup.is_empty() {
            ("setup", &self.setup.value)
        } else {
            ("build", &self.build.value)
        }
    }
}
