//! Messages of every release, kept as they were written: this release reads them, and what it writes
//! has every field in them, so a program of that release reads this one's.
//!
//! `wire/<release>.json` holds each message with all of its fields and with the fewest. The file of a
//! release is not changed once that is out; a field that is added goes into the newest, or into a new one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fuse_wire_guest::{control, snapshot as guest_snapshot};
use fuse_wire_host as host;
use serde::de::value::Error as Refused;
use serde::de::{DeserializeOwned, Deserializer, Error as _, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A message as its release wrote it.
#[derive(Deserialize)]
struct Sample {
    full: Value,
    least: Value,
}

/// A message as this release understands it.
struct Message {
    name: &'static str,
    again: fn(&Value) -> Result<Value, serde_json::Error>,
    fields: fn() -> &'static [&'static str],
}

const fn message<T: Serialize + DeserializeOwned>(name: &'static str) -> Message {
    Message {
        name,
        again: |value| serde_json::to_value(T::deserialize(value)?),
        fields: fields::<T>,
    }
}

macro_rules! messages {
    ($($prefix:literal: $module:ident { $($type:ident)* })*) => {
        [$($(message::<$module::$type>(concat!($prefix, stringify!($type))),)*)*]
    };
}

fn messages() -> Vec<Message> {
    messages! {
        "host.": host {
            CreateVmRequest VmView VmList CreateTimings Capacity GpuDevice MigInstance Health
            ExecRequest ExecResponse UploadRequest StartAgentRequest StartAgentResponse Expose
            Endpoint SnapshotRequest Snapshot SnapshotList RestoreRequest RestoreResponse
            ForkRequest PullRequest Pull Artifact FailedCreate
        }
        "guest.": control {
            Ready Status SurfaceStatus ExecRequest ExecResponse UploadRequest UploadFile
            UploadResponse ClockRequest ClockResponse SurfaceRequest PowerRequest ErrorBody
        }
        "guest.": guest_snapshot {
            FreezeRequest FreezeResponse ThawResponse SeedRequest ResumedRequest
        }
    }
    .into()
}

/// The fields that a type is read from; none of one that is read by hand.
fn fields<T: DeserializeOwned>() -> &'static [&'static str] {
    struct Names<'a>(&'a mut &'static [&'static str]);
    impl<'de> Deserializer<'de> for Names<'_> {
        type Error = Refused;

        fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, Refused> {
            Err(Refused::custom("only names are wanted"))
        }

        fn deserialize_struct<V: Visitor<'de>>(
            self,
            _: &'static str,
            names: &'static [&'static str],
            visitor: V,
        ) -> Result<V::Value, Refused> {
            *self.0 = names;
            self.deserialize_any(visitor)
        }

        serde::forward_to_deserialize_any! {
            bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf option unit
            unit_struct newtype_struct seq tuple tuple_struct map enum identifier ignored_any
        }
    }
    let mut names: &'static [&'static str] = &[];
    assert!(
        T::deserialize(Names(&mut names)).is_err(),
        "nothing to read"
    );
    names
}

/// What the releases wrote, oldest first.
fn releases() -> Vec<(PathBuf, BTreeMap<String, Sample>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/wire");
    let files = std::fs::read_dir(dir).unwrap();
    let mut paths: Vec<_> = files.map(|file| file.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let samples = serde_json::from_str(&text).unwrap();
        (path, samples)
    };
    paths.into_iter().map(read).collect()
}

/// Whether everything in `part` is in `whole` as it is.
fn has(whole: &Value, part: &Value) -> bool {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => part
            .iter()
            .all(|(name, value)| whole.get(name).is_some_and(|there| has(there, value))),
        (Value::Array(whole), Value::Array(part)) => {
            whole.len() == part.len() && whole.iter().zip(part).all(|(one, two)| has(one, two))
        }
        _ => whole == part,
    }
}

#[test]
fn messages_of_every_release_are_understood() {
    let messages = messages();
    let releases = releases();
    assert!(!releases.is_empty());
    for (path, samples) in releases {
        for (name, Sample { full, least }) in samples {
            let message = messages.iter().find(|message| message.name == name);
            let message = message.unwrap_or_else(|| panic!("{name} is gone"));
            for sample in [full, least] {
                let again = (message.again)(&sample)
                    .unwrap_or_else(|error| panic!("{}: {name}: {error}", path.display()));
                assert!(has(&again, &sample), "{}: {name}: {again}", path.display());
            }
        }
    }
}

#[test]
fn the_newest_file_has_every_field_of_every_message() {
    let (path, newest) = releases().pop().unwrap();
    for message in messages() {
        let sample = newest.get(message.name);
        let sample = sample.unwrap_or_else(|| panic!("{} is not in {path:?}", message.name));
        // One has two forms, each with fields of its own.
        let is_there = |field: &str| {
            [&sample.full, &sample.least]
                .iter()
                .any(|one| one.get(field).is_some())
        };
        let missing = (message.fields)().iter().find(|field| !is_there(field));
        assert_eq!(missing, None, "of {} in {path:?}", message.name);
    }
}
