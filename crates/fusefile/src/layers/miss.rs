//! Why a step has no layer: its recipe beside those of the layers that earlier builds left.
//!
//! A key is a hash and tells nothing about what it was made of. So a build writes the parts of the hash
//! into the metadata of each layer's snapshot, and a later one compares. Parts are digests themselves:
//! nothing of a script is told; of inputs, their paths are.

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::Plan;
use crate::inputs::{Changes, Parts};

/// Metadata keys of a layer.
const OF: &str = "layer_of";
const BASE: &str = "layer_base";
const PARENT: &str = "layer_parent";
const STEP: &str = "layer_step";
const INPUTS: &str = "layer_inputs";
const FILES: &str = "layer_files";
const INDEX: &str = "layer_index";

/// Why a step that can be cached has no usable layer, and what is known about it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Miss {
    /// Why.
    pub cause: Cause,
    /// What there is instead, what changed, or what went wrong.
    pub detail: Vec<String>,
}

/// Why a step that can be cached has no usable layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cause {
    /// There is none, and no earlier build to compare with.
    #[default]
    NoEntry,
    /// Its text, its working directory or the workspace is another.
    StepChanged,
    /// The same text, but its inputs are others.
    InputsChanged,
    /// A step before it is another.
    ParentChanged,
    /// Image or files are others.
    BaseChanged,
    /// A layer was found, but could not be brought to where it is needed.
    NotOnHost,
}

impl Cause {
    /// The stable word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoEntry => "no-entry",
            Self::StepChanged => "step-changed",
            Self::InputsChanged => "inputs-changed",
            Self::ParentChanged => "parent-changed",
            Self::BaseChanged => "base-changed",
            Self::NotOnHost => "not-on-host",
        }
    }
}

/// What a layer's key was made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recipe {
    /// Name of what was built; recipes of different names say nothing about each other.
    of: String,
    base: String,
    parent: String,
    step: String,
    inputs: String,
    files: Option<Parts>,
    index: usize,
}

impl Recipe {
    /// The recipe of a cacheable step of a plan; `of` names what is built.
    #[must_use]
    pub fn of(plan: &Plan, index: usize, of: &str) -> Option<Self> {
        let step = plan.steps.get(index).filter(|step| step.cacheable)?;
        let text = format!("{}\n{}", step.script, plan.workspace);
        Some(Self {
            of: of.to_owned(),
            base: plan.base_key.clone(),
            parent: step.parent_key.clone(),
            step: hex::encode(Sha256::digest(text)),
            inputs: step.inputs_digest.clone(),
            files: Parts::of(&step.files),
            index,
        })
    }

    /// As it is kept with the snapshot.
    #[must_use]
    pub fn metadata(&self) -> BTreeMap<String, String> {
        let files = self.files.as_ref();
        let files = files.and_then(|parts| serde_json::to_string(parts).ok());
        [
            (OF, Some(self.of.clone())),
            (BASE, Some(self.base.clone())),
            (PARENT, Some(self.parent.clone())),
            (STEP, Some(self.step.clone())),
            (INPUTS, Some(self.inputs.clone())),
            (FILES, files),
            (INDEX, Some(self.index.to_string())),
        ]
        .into_iter()
        .filter_map(|(key, value)| Some((key.to_owned(), value?)))
        .collect()
    }

    /// From the metadata of a snapshot; `None` if it is not that of a layer, or of one that does not say.
    #[must_use]
    pub fn from_metadata(metadata: &BTreeMap<String, String>) -> Option<Self> {
        let text = |key| metadata.get(key).cloned();
        let files = metadata.get(FILES);
        Some(Self {
            of: text(OF)?,
            base: text(BASE)?,
            parent: text(PARENT)?,
            step: text(STEP)?,
            inputs: text(INPUTS)?,
            files: files.and_then(|text| serde_json::from_str(text).ok()),
            index: text(INDEX)?.parse().ok()?,
        })
    }

    /// Why there is no layer of the step `index` of `plan`, when there are those of `kept`; `of` names what is
    /// built. `None` if the step cannot be cached.
    #[must_use]
    pub fn miss(plan: &Plan, index: usize, of: &str, kept: &[Self]) -> Option<Miss> {
        let wanted = Self::of(plan, index, of)?;
        let (cause, nearest) = wanted.nearest(kept);
        let mut detail = Vec::new();
        if cause == Cause::InputsChanged {
            let files = &plan.steps.get(index)?.files;
            let kept = nearest.iter().filter_map(|other| other.files.as_ref());
            // The newest comes first, and stays when others are as near.
            let changes = kept.map(|parts| parts.changes(files));
            let fewest = changes.min_by_key(Changes::count);
            detail = fewest.unwrap_or_default().shown();
        }
        Some(Miss { cause, detail })
    }

    /// Those that differ least from what is wanted, and in what. A step is looked for by its text first, so that
    /// one put in before it does not make it look changed.
    fn nearest<'a>(&self, kept: &'a [Self]) -> (Cause, Vec<&'a Self>) {
        type Same = fn(&Recipe, &Recipe) -> bool;
        let by_likeness: [(Cause, Same); 6] = [
            // It is the very layer, and yet was not found: it went away in between.
            (Cause::NoEntry, |a, b| {
                a.step == b.step && a.parent == b.parent && a.inputs == b.inputs
            }),
            (Cause::InputsChanged, |a, b| {
                a.step == b.step && a.parent == b.parent
            }),
            (Cause::ParentChanged, |a, b| {
                a.step == b.step && a.inputs == b.inputs && a.base == b.base
            }),
            (Cause::BaseChanged, |a, b| {
                a.step == b.step && a.inputs == b.inputs
            }),
            (Cause::InputsChanged, |a, b| a.step == b.step),
            (Cause::StepChanged, |a, b| {
                a.parent == b.parent || a.index == b.index
            }),
        ];
        let same = |is: Same| -> Vec<&Self> {
            let kept = kept.iter().filter(|other| other.of == self.of);
            kept.filter(|other| is(self, other)).collect()
        };
        by_likeness
            .into_iter()
            .map(|(cause, is)| (cause, same(is)))
            .find(|(_, alike)| !alike.is_empty())
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::Disk;

    fn plan(dir: &std::path::Path, source: &str) -> Plan {
        let checked = crate::check("F", source.as_bytes(), None);
        Plan::of(&checked.compiled.unwrap(), false, &Disk::new(dir)).unwrap()
    }

    fn kept(plan: &Plan) -> Vec<Recipe> {
        (0..plan.steps.len())
            .filter_map(|index| Recipe::of(plan, index, "a"))
            .collect()
    }

    /// What the steps of `plan` miss beside the layers of `kept`.
    fn misses(plan: &Plan, kept: &[Recipe]) -> Vec<&'static str> {
        (0..plan.steps.len())
            .map(|index| {
                let miss = Recipe::miss(plan, index, "a", kept).unwrap();
                miss.cause.as_str()
            })
            .collect()
    }

    const HEAD: &str = "version: 1\ncache: {enabled: true}\n";

    #[test]
    fn the_nearest_layer_tells_what_changed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("deps"), "a").unwrap();
        let file = |head: &str, steps: &str| plan(dir.path(), &format!("{HEAD}{head}{steps}"));
        let steps = "build: [one, {run: two, inputs: [deps]}, three]\n";
        let before = file("", steps);
        let kept = kept(&before);
        assert_eq!(misses(&before, &[]), ["no-entry"; 3]);

        let step = file("", "build: [uno, {run: two, inputs: [deps]}, three]\n");
        assert_eq!(
            misses(&step, &kept),
            ["step-changed", "parent-changed", "parent-changed"]
        );
        let base = file("image: other\n", steps);
        assert_eq!(misses(&base, &kept), ["base-changed"; 3]);
        let workspace = file("workspace: /w\n", steps);
        assert_eq!(misses(&workspace, &kept), ["step-changed"; 3]);
        let put_in = file(
            "",
            "build: [zero, one, {run: two, inputs: [deps]}, three, four]\n",
        );
        assert_eq!(
            misses(&put_in, &kept)[..4],
            [
                "step-changed",
                "parent-changed",
                "parent-changed",
                "parent-changed"
            ]
        );
        // Nobody ever had a fifth step.
        assert_eq!(misses(&put_in, &kept)[4], "no-entry");

        std::fs::write(dir.path().join("deps"), "b").unwrap();
        let inputs = file("", steps);
        assert_eq!(
            misses(&inputs, &kept)[1..],
            ["inputs-changed", "parent-changed"]
        );
        let miss = Recipe::miss(&inputs, 1, "a", &kept).unwrap();
        assert_eq!(miss.detail, ["deps"]);
        // Beside one that had no inputs at all, the one that had them is nearer.
        let before = file("", "build: [one, two, three]\n");
        let both = [self::kept(&before), kept.clone()].concat();
        let miss = Recipe::miss(&inputs, 1, "a", &both).unwrap();
        assert_eq!(miss.detail, ["deps"]);
        // A layer of an earlier release does not say what its inputs were.
        let older: Vec<_> = kept
            .iter()
            .map(|recipe| Recipe {
                files: None,
                ..recipe.clone()
            })
            .collect();
        let miss = Recipe::miss(&inputs, 1, "a", &older).unwrap();
        assert_eq!((miss.cause, miss.detail.len()), (Cause::InputsChanged, 0));
        // What is built under another name is another history.
        let other = Recipe::miss(&step, 0, "b", &kept).unwrap();
        assert_eq!(other, Miss::default());
    }

    #[test]
    fn a_recipe_survives_as_metadata() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("deps"), "a").unwrap();
        let plan = plan(
            dir.path(),
            &format!("{HEAD}build: [{{run: one, inputs: [deps]}}, {{run: two, cache: false}}]\n"),
        );
        let recipe = Recipe::of(&plan, 0, "a").unwrap();
        let mut metadata = recipe.metadata();
        assert_eq!(Recipe::from_metadata(&metadata).as_ref(), Some(&recipe));
        assert!(metadata.values().all(|value| !value.contains("one")));
        assert!(metadata[FILES].contains("deps"));
        metadata.remove(PARENT);
        assert_eq!(Recipe::from_metadata(&metadata), None);
        assert_eq!(Recipe::of(&plan, 1, "a"), None);
        assert_eq!(Recipe::of(&plan, 2, "a"), None);
    }
}
