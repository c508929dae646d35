//! The shape of the format: every object with its keys, what each holds, what it is for.
//!
//! The one list of keys. The decoder refuses what is not in it and takes its suggestions from it, and the
//! JSON Schema is generated from it, so neither can know a key that the other does not.

/// An object with a fixed set of keys.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) fields: &'static [Field],
    pub(crate) rule: Rule,
}

/// What holds between the keys of an object.
#[derive(Debug)]
pub(crate) enum Rule {
    None,
    /// These must be there.
    Required(&'static [&'static str]),
    /// These must be there, and exactly one of the pair.
    OneOf(&'static [&'static str], [&'static str; 2]),
    /// These must be there, and not both of the pair.
    NotBoth(&'static [&'static str], [&'static str; 2]),
}

/// One key of an object.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) key: &'static str,
    pub(crate) kind: Kind,
    pub(crate) about: &'static str,
    pub(crate) deprecated: bool,
}

/// What a key holds.
#[derive(Debug)]
pub(crate) enum Kind {
    /// The constant 1.
    Version,
    Text(Text),
    /// A whole number in a range.
    Int(Option<i64>, Option<i64>),
    /// A whole number that may be written as `2.0`.
    Cpus,
    Bool,
    /// A list of at least so many items.
    List(usize, &'static Kind),
    /// A map with names of the author's choice.
    Map(Text, &'static Kind),
    Object(&'static Object),
    /// A build step: text, or an object.
    Step(&'static Object),
    /// Text, or a list of arguments.
    Run,
}

/// What a text may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Text {
    Any,
    NonEmpty,
    DnsLabel,
    PlacementLabel,
    Identifier,
    Size,
    Duration,
    FileMode,
    MigProfile,
    RestartPolicy,
    /// Not empty, no `..` segment.
    Path,
    /// Absolute, no `..` segment.
    AbsolutePath,
    /// Starts with a slash.
    UrlPath,
}

impl Object {
    pub(crate) fn field(&self, key: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.key == key)
    }
}

const fn field(key: &'static str, kind: Kind, about: &'static str) -> Field {
    Field {
        key,
        kind,
        about,
        deprecated: false,
    }
}

const PORT: Kind = Kind::Int(Some(1), Some(65535));
const PIXELS: Kind = Kind::Int(Some(320), Some(3840));
const COUNT: Kind = Kind::Int(Some(0), None);
const ANY: Kind = Kind::Text(Text::Any);
const NON_EMPTY: Kind = Kind::Text(Text::NonEmpty);
const DURATION: Kind = Kind::Text(Text::Duration);
const SIZE: Kind = Kind::Text(Text::Size);

/// The whole file.
pub(crate) static FUSEFILE: Object = Object {
    fields: &[
        field("version", Kind::Version, "Version of the format; always 1."),
        field(
            "name",
            Kind::Text(Text::DnsLabel),
            "Task id; the environment's id is made of it. Default: the name of the directory.",
        ),
        field(
            "image",
            ANY,
            "Name of a root file system on the host, not an OCI reference. Default: the host's base.",
        ),
        field(
            "resources",
            Kind::Object(&RESOURCES),
            "Size and lifetime of the machine.",
        ),
        field(
            "placement",
            Kind::Object(&PLACEMENT),
            "Which hosts may run it.",
        ),
        field(
            "cache",
            Kind::Object(&CACHE),
            "Layer cache of the build steps.",
        ),
        field(
            "files",
            Kind::List(0, &Kind::Object(&FILE)),
            "Small files that the startup script writes before the first step; 64 KiB in all.",
        ),
        field(
            "copy",
            Kind::List(0, &Kind::Object(&COPY)),
            "Files and directories next to the Fusefile to upload; 512 KiB in all.",
        ),
        field(
            "env",
            Kind::Map(Text::Identifier, &Kind::Object(&ENV_VALUE)),
            "Environment of the build steps and of run.",
        ),
        field(
            "build",
            Kind::List(0, &Kind::Step(&STEP)),
            "Steps that prepare the machine, in order, in one shell.",
        ),
        Field {
            key: "setup",
            kind: Kind::List(0, &Kind::Step(&STEP)),
            about: "Old name of build.",
            deprecated: true,
        },
        field(
            "services",
            Kind::Map(Text::Any, &Kind::Object(&SERVICE)),
            "Containers to run in the guest.",
        ),
        field(
            "run",
            Kind::Run,
            "What the environment is for: shell text, or a list of arguments. It must return.",
        ),
        field(
            "workspace",
            Kind::Text(Text::AbsolutePath),
            "Directory that steps and run start in. Default: /workspace.",
        ),
        field(
            "startup_timeout",
            DURATION,
            "How long files, steps and run may take together. Default 30s, at most 55s.",
        ),
        field(
            "expose",
            Kind::List(0, &Kind::Object(&EXPOSE)),
            "Guest ports to publish.",
        ),
        field(
            "healthcheck",
            Kind::Object(&HEALTHCHECK),
            "How the guest agent tells whether the workload is well.",
        ),
        field(
            "desktop",
            Kind::Object(&DESKTOP),
            "Size of the virtual display.",
        ),
        field(
            "secrets",
            Kind::List(0, &NON_EMPTY),
            "Names of secrets that must be supplied besides those that env and services name.",
        ),
    ],
    rule: Rule::NotBoth(&["version"], ["build", "setup"]),
};

pub(crate) static RESOURCES: Object = Object {
    fields: &[
        field(
            "cpus",
            Kind::Cpus,
            "Whole virtual CPUs. Default: the host's, 1.",
        ),
        field("memory", SIZE, "Memory, such as 2GB. Default: the host's."),
        field("disk", SIZE, "Disk, such as 10GB; rounded up to whole GiB."),
        field("storage", SIZE, "Another name of disk."),
        field(
            "gpu",
            COUNT,
            "GPUs, or MIG instances when gpu_profile is set.",
        ),
        field("gpu_kind", ANY, "Kind of GPU that the host must have."),
        field(
            "gpu_profile",
            Kind::Text(Text::MigProfile),
            "MIG profile, such as 1g.10gb.",
        ),
        field("region", ANY, "Region that the host must be in."),
        field(
            "max_runtime",
            DURATION,
            "The environment is destroyed this long after create.",
        ),
        field(
            "idle_timeout",
            DURATION,
            "The environment is destroyed after this long without exec or shell; at least 1m.",
        ),
    ],
    rule: Rule::None,
};

pub(crate) static PLACEMENT: Object = Object {
    fields: &[
        field("host", ANY, "Id of the only host that may run it."),
        field(
            "labels",
            Kind::Map(Text::PlacementLabel, &Kind::Text(Text::PlacementLabel)),
            "Labels that the host must carry.",
        ),
    ],
    rule: Rule::None,
};

pub(crate) static CACHE: Object = Object {
    fields: &[field(
        "enabled",
        Kind::Bool,
        "Whether finished steps are kept as layers.",
    )],
    rule: Rule::None,
};

pub(crate) static FILE: Object = Object {
    fields: &[
        field("path", ANY, "Where to write it, relative to the workspace."),
        field("source", ANY, "File to read, relative to the Fusefile."),
        field("content", ANY, "The text itself."),
        field(
            "mode",
            Kind::Text(Text::FileMode),
            "Permission bits in octal, such as 0644.",
        ),
    ],
    rule: Rule::OneOf(&["path"], ["source", "content"]),
};

pub(crate) static COPY: Object = Object {
    fields: &[
        field(
            "from",
            NON_EMPTY,
            "File or directory, relative to the Fusefile.",
        ),
        field(
            "to",
            Kind::Text(Text::Path),
            "Where it goes, relative to the workspace.",
        ),
    ],
    rule: Rule::Required(&["from", "to"]),
};

pub(crate) static ENV_VALUE: Object = Object {
    fields: &[
        field("value", ANY, "The value itself."),
        field("secret", ANY, "Name of the secret that holds the value."),
    ],
    rule: Rule::OneOf(&[], ["value", "secret"]),
};

pub(crate) static STEP: Object = Object {
    fields: &[
        field("run", NON_EMPTY, "Shell text."),
        field(
            "inputs",
            Kind::List(0, &NON_EMPTY),
            "Files whose contents the cached layer depends on, as globs below the Fusefile.",
        ),
        field(
            "cache",
            Kind::Bool,
            "false: never cache this step or a later one.",
        ),
        field(
            "workdir",
            Kind::Text(Text::Path),
            "Directory to run in, relative to the workspace.",
        ),
    ],
    rule: Rule::Required(&["run"]),
};

pub(crate) static SERVICE: Object = Object {
    fields: &[
        field("image", NON_EMPTY, "OCI reference, pulled in the guest."),
        field(
            "ports",
            Kind::List(0, &PORT),
            "Ports that the container publishes in the guest.",
        ),
        field(
            "env",
            Kind::Map(Text::NonEmpty, &Kind::Object(&ENV_VALUE)),
            "Environment of the container.",
        ),
        field(
            "command",
            Kind::List(0, &ANY),
            "Arguments instead of the image's own command.",
        ),
        field(
            "restart",
            Kind::Text(Text::RestartPolicy),
            "When the container starts again.",
        ),
        field(
            "healthcheck",
            Kind::Object(&SERVICE_HEALTHCHECK),
            "The container's own health check.",
        ),
        field(
            "depends_on",
            Kind::List(0, &ANY),
            "Services that start before this one.",
        ),
    ],
    rule: Rule::Required(&["image"]),
};

pub(crate) static SERVICE_HEALTHCHECK: Object = Object {
    fields: &[
        field("test", Kind::List(0, &ANY), "Command, as compose takes it."),
        field("interval", DURATION, "Time between two checks."),
        field("timeout", DURATION, "Time that one check may take."),
        field(
            "retries",
            COUNT,
            "Failures in a row before the container is unhealthy.",
        ),
    ],
    rule: Rule::None,
};

pub(crate) static EXPOSE: Object = Object {
    fields: &[
        field("port", PORT, "Guest port."),
        field("as", Kind::Text(Text::DnsLabel), "Name of the endpoint."),
    ],
    rule: Rule::Required(&["port"]),
};

pub(crate) static HEALTHCHECK: Object = Object {
    fields: &[
        field(
            "http",
            Kind::Object(&HTTP_PROBE),
            "GET on the guest's loopback; 2xx and 3xx pass.",
        ),
        field(
            "exec",
            Kind::List(1, &NON_EMPTY),
            "Arguments to run; exit status 0 passes.",
        ),
        field(
            "interval",
            DURATION,
            "Time between two probes. Default 10s.",
        ),
        field(
            "timeout",
            DURATION,
            "Time that one probe may take. Default 2s.",
        ),
        field(
            "retries",
            COUNT,
            "Failures in a row before the verdict changes. Default 3.",
        ),
        field("start_period", DURATION, "Grace after boot."),
    ],
    rule: Rule::OneOf(&[], ["http", "exec"]),
};

pub(crate) static HTTP_PROBE: Object = Object {
    fields: &[
        field("port", PORT, "Guest port."),
        field(
            "path",
            Kind::Text(Text::UrlPath),
            "Path of the request. Default: /.",
        ),
    ],
    rule: Rule::Required(&["port"]),
};

pub(crate) static DESKTOP: Object = Object {
    fields: &[
        field("width", PIXELS, "Width in pixels."),
        field("height", PIXELS, "Height in pixels."),
    ],
    rule: Rule::Required(&["width", "height"]),
};
