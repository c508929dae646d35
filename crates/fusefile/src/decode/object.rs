//! Objects with fixed keys, and the pairs of any mapping: duplicates, merges, unknown keys.

use std::collections::HashMap;
use std::collections::hash_map;

use super::{Decoder, Segment, Slot, suggest};
use crate::diagnostic::{Position, quoted};
use crate::model::{
    Cache, Copy, Desktop, EnvValue, Expose, Field, File, Fusefile, Healthcheck, HttpProbe,
    Placement, Resources, Service, ServiceHealthcheck, Step,
};
use crate::shape::{self, Object};
use crate::yaml::{Content, Node, NodeId, Tag, tag_of};

/// A type that is an object of the format.
pub(super) trait Decode: Default {
    const SHAPE: &'static Object;
    /// Whether `<<` merges another mapping; the custom node of a step has never allowed it.
    const MERGES: bool = true;

    /// The key that the short form of the object stands for, if it has one.
    const TEXT_KEY: Option<&'static str> = None;

    /// The short form of the object, for those that have one.
    fn from_text(_text: &str, _at: Position) -> Option<Self> {
        None
    }

    /// Takes the value of `key`, which is one of the shape's.
    fn set(&mut self, d: &mut Decoder<'_>, key: &str, slot: Slot);
}

/// A key with its value.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pair<'t> {
    pub(super) key: &'t str,
    pub(super) at: Position,
    pub(super) value: NodeId,
}

pub(super) fn decode<'t, T: Decode>(d: &mut Decoder<'t>, node: &'t Node) -> Option<T> {
    if let Content::Scalar { text, .. } = &node.content
        && let Some(out) = T::from_text(text, node.at)
    {
        return Some(out);
    }
    if T::TEXT_KEY.is_some() && matches!(node.content, Content::List(_)) {
        d.mismatch(node, "text or an object", None);
        return None;
    }
    let pairs = if T::MERGES {
        d.pairs(node)?
    } else {
        d.own_pairs(node)?
    };
    let mut out = T::default();
    let mut misspelt: Vec<(&'static str, Position)> = Vec::new();
    for pair in &pairs {
        if let Some(field) = T::SHAPE.field(pair.key) {
            let slot = Slot {
                node: Some(pair.value),
                key: pair.at,
            };
            d.within(Segment::Key(field.key), |d| out.set(d, field.key, slot));
        } else {
            let hint = match T::TEXT_KEY {
                Some(key) if pairs.len() == 1 => suggest::for_split_text(key),
                _ => suggest::for_key(T::SHAPE, pair.key),
            };
            let message = format!("unknown key {}", quoted(pair.key));
            d.report(pair.at, message, Some(hint.text));
            misspelt.extend(hint.meant.map(|key| (key, pair.at)));
        }
    }
    // A misspelt key is one mistake: the key that was meant does not count as missing as well.
    for (key, at) in misspelt {
        if !pairs.iter().any(|pair| pair.key == key) {
            out.set(
                d,
                key,
                Slot {
                    node: None,
                    key: at,
                },
            );
        }
    }
    Some(out)
}

impl<'t> Decoder<'t> {
    /// The pairs of a mapping without duplicates, merged ones after its own.
    pub(super) fn pairs(&mut self, node: &'t Node) -> Option<Vec<Pair<'t>>> {
        let mut pairs = self.own_pairs(node)?;
        let Some(at) = pairs.iter().position(|pair| self.is_merge(pair, node)) else {
            return Some(pairs);
        };
        let merge = pairs.remove(at);
        let mut seen: HashMap<&str, ()> = pairs.iter().map(|pair| (pair.key, ())).collect();
        for pair in self.merged(self.tree.node(merge.value)) {
            if let hash_map::Entry::Vacant(slot) = seen.entry(pair.key) {
                slot.insert(());
                pairs.push(pair);
            }
        }
        Some(pairs)
    }

    /// Whether the pair is a plain `<<`.
    fn is_merge(&self, pair: &Pair<'_>, node: &Node) -> bool {
        let Content::Map(written) = &node.content else {
            return false;
        };
        pair.key == "<<"
            && written.iter().any(|(key, _)| {
                let key = self.tree.node(*key);
                key.at == pair.at && tag_of(key) == Some(Tag::Merge)
            })
    }

    /// The pairs that `<<: value` brings: of one mapping, or of a list of them, earlier ones first.
    fn merged(&mut self, value: &'t Node) -> Vec<Pair<'t>> {
        match &value.content {
            Content::Map(_) => self.pairs(value).unwrap_or_default(),
            Content::List(items) => {
                let mut out = Vec::new();
                for &id in items {
                    let item = self.tree.node(id);
                    match &item.content {
                        Content::Map(_) => out.extend(self.pairs(item).unwrap_or_default()),
                        Content::Broken => {}
                        _ => self.mismatch(item, "an object to merge", None),
                    }
                }
                out
            }
            Content::Broken => Vec::new(),
            Content::Scalar { .. } => {
                self.mismatch(value, "an object to merge", None);
                Vec::new()
            }
        }
    }

    /// The pairs as written, the first of duplicates only.
    pub(super) fn own_pairs(&mut self, node: &'t Node) -> Option<Vec<Pair<'t>>> {
        let Content::Map(written) = &node.content else {
            self.mismatch(node, "an object", None);
            return None;
        };
        let tree = self.tree;
        self.work += written.len();
        let mut seen: HashMap<&str, u32> = HashMap::with_capacity(written.len());
        let mut out = Vec::with_capacity(written.len());
        for &(key, value) in written {
            let key = tree.node(key);
            let text = match (&key.content, tag_of(key)) {
                (_, Some(Tag::Null)) => "",
                (Content::Scalar { text, .. }, _) => text.as_str(),
                (Content::Broken, _) => continue,
                (Content::List(_) | Content::Map(_), _) => {
                    self.mismatch(key, "a key", None);
                    continue;
                }
            };
            match seen.entry(text) {
                hash_map::Entry::Occupied(first) => {
                    let line = *first.get();
                    let message = format!("duplicate key {}, first on line {line}", quoted(text));
                    self.report(key.at, message, Some("keep one of them".to_owned()));
                }
                hash_map::Entry::Vacant(slot) => {
                    slot.insert(key.at.line);
                    out.push(Pair {
                        key: text,
                        at: key.at,
                        value,
                    });
                }
            }
        }
        Some(out)
    }
}

/// Implements [`Decode`] by reading each listed key into the field of its name.
macro_rules! decode {
    ($type:ty, $shape:expr, [$($key:literal => $field:ident),* $(,)?] $($special:item)*) => {
        impl Decode for $type {
            const SHAPE: &'static Object = &$shape;
            $($special)*

            fn set(&mut self, d: &mut Decoder<'_>, key: &str, slot: Slot) {
                match key {
                    $($key => self.$field = d.field(slot),)*
                    // A key of the shape without a line here: the test below finds it.
                    other => d.report(slot.key, format!("key {other} is not read"), None),
                }
            }
        }
    };
}

decode!(Fusefile, shape::FUSEFILE, [
    "version" => version, "name" => name, "image" => image, "resources" => resources,
    "placement" => placement, "cache" => cache, "files" => files, "copy" => copy, "env" => env,
    "build" => build, "setup" => setup, "services" => services, "run" => run,
    "workspace" => workspace, "startup_timeout" => startup_timeout, "expose" => expose,
    "healthcheck" => healthcheck, "desktop" => desktop, "secrets" => secrets,
]);
decode!(Resources, shape::RESOURCES, [
    "cpus" => cpus, "memory" => memory, "disk" => disk, "storage" => storage, "gpu" => gpu,
    "gpu_kind" => gpu_kind, "gpu_profile" => gpu_profile, "region" => region,
    "max_runtime" => max_runtime, "idle_timeout" => idle_timeout,
]);
decode!(Placement, shape::PLACEMENT, ["host" => host, "labels" => labels]);
decode!(Cache, shape::CACHE, ["enabled" => enabled]);
decode!(File, shape::FILE, [
    "path" => path, "source" => source, "content" => content, "mode" => mode,
]);
decode!(Copy, shape::COPY, ["from" => from, "to" => to]);
decode!(EnvValue, shape::ENV_VALUE, ["value" => value, "secret" => secret]);
decode!(Step, shape::STEP, [
    "run" => run, "inputs" => inputs, "cache" => cache, "workdir" => workdir,
]
    const MERGES: bool = false;
    const TEXT_KEY: Option<&'static str> = Some("run");

    fn from_text(text: &str, at: Position) -> Option<Self> {
        let run = Field { value: text.to_owned(), at: Some(at), broken: false };
        Some(Self { run, ..Self::default() })
    }
);
decode!(Service, shape::SERVICE, [
    "image" => image, "ports" => ports, "env" => env, "command" => command, "restart" => restart,
    "healthcheck" => healthcheck, "depends_on" => depends_on,
]);
decode!(ServiceHealthcheck, shape::SERVICE_HEALTHCHECK, [
    "test" => test, "interval" => interval, "timeout" => timeout, "retries" => retries,
]);
decode!(Expose, shape::EXPOSE, ["port" => port, "as" => r#as]);
decode!(Healthcheck, shape::HEALTHCHECK, [
    "http" => http, "exec" => exec, "interval" => interval, "timeout" => timeout,
    "retries" => retries, "start_period" => start_period,
]);
decode!(HttpProbe, shape::HTTP_PROBE, ["port" => port, "path" => path]);
decode!(Desktop, shape::DESKTOP, ["width" => width, "height" => height]);
