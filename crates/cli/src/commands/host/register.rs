//! `host register`: declare a host, with everything that can be checked checked before it is sent.

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use fuse_client::{ApiError, BaseUrl};
use fuse_wire_api::{Capacity, ErrorCode, RegisterHost};
use inquire::validator::Validation;
use inquire::{CustomType, CustomUserError, Password, PasswordDisplayMode, Select, Text};

use super::{Error, show};
use crate::app::App;
use crate::commands::flags::{self, SizeArgs};
use crate::commands::token_file::TokenFileArgs;
use crate::error::Error as CliError;
use crate::render::or_dash;

/// Which agent a host runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Backend {
    /// `fc-agent`.
    Firecracker,
    /// `qemu-agent`, for GPUs.
    Qemu,
}

impl Backend {
    fn as_str(self) -> &'static str {
        match self {
            Self::Firecracker => "firecracker",
            Self::Qemu => "qemu",
        }
    }

    /// Where the agent's own token usually is.
    fn token_variable(self) -> &'static str {
        match self {
            Self::Firecracker => "FC_AGENT_TOKEN",
            Self::Qemu => "QEMU_AGENT_TOKEN",
        }
    }
}

/// `host register`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example:\n  fuse host register prod-east-1 --url http://10.0.0.5:8090 --max-vms 20\n\n\
    Needs the master token. A value left at 0 is probed from the host agent."
)]
pub(crate) struct RegisterArgs {
    /// Id of the host, free text, its primary key; an existing id is replaced.
    pub(crate) id: String,
    /// Address of the host agent; asked for in a terminal when absent.
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The host agent's own token [default: $FC_AGENT_TOKEN, or $QEMU_AGENT_TOKEN with qemu].
    #[arg(long, value_name = "TOKEN")]
    pub(crate) token: Option<String>,
    #[command(flatten)]
    pub(crate) file: TokenFileArgs,
    /// Allow an agent without a token.
    #[arg(long)]
    pub(crate) no_verify: bool,
    /// What runs the VMs [default: firecracker].
    #[arg(long, value_enum)]
    pub(crate) backend: Option<Backend>,
    /// Region, matched exactly by placement.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) region: String,
    /// Most VMs at a time; required, not probed.
    #[arg(long, default_value_t = 0, hide_default_value = true, value_name = "N")]
    pub(crate) max_vms: i32,
    /// Size of the host.
    #[command(flatten)]
    pub(crate) size: SizeArgs,
    /// Whole GPUs; 0 = probe from host agent. Needs --backend qemu.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) gpus: i32,
    /// GPU model; empty = probe from host agent.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) gpu_kind: String,
    /// Architecture, amd64 or arm64; empty = probe from host agent.
    #[arg(long, default_value = "", hide_default_value = true)]
    pub(crate) arch: String,
    /// MIG instances carved on the host, as profile=count; repeatable, never probed.
    #[arg(long, value_name = "PROFILE=COUNT")]
    pub(crate) mig_profile: Vec<String>,
    /// Label that placement can ask for, as key=value; repeatable, never probed.
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) label: Vec<String>,
}

/// Checks, registers, shows the host.
pub(crate) async fn run(app: &App, mut args: RegisterArgs) -> Result<(), CliError> {
    if let Some(token) = args.file.read()? {
        args.token = Some(token);
    }
    if args.url.as_deref().unwrap_or_default().trim().is_empty() {
        if !app.io.interactive() {
            return Err(Error::UrlMissing.into());
        }
        form(&mut args)?;
    }
    let request = request(&args, |name| std::env::var(name).ok())?;
    let host = app
        .client()?
        .register_host(&request)
        .await
        .map_err(|error| refused(app, error, Some(&request.token)))?;
    app.io.success(&format!("registered host \"{}\"", host.id));
    show(app, &host)
}

/// Tells a refusal by the agent from one by the orchestrator. `token` is what was sent
/// along, if anything was.
pub(super) fn refused(app: &App, error: fuse_client::Error, token: Option<&str>) -> CliError {
    match error {
        fuse_client::Error::Api(api) if is_agent_refusal(&api) => {
            let hint = match token {
                Some(token) => agent_token_hint(app, token),
                None => {
                    "  the token at fault is the one that the host was registered with: register \
                     it again with the agent's"
                        .to_owned()
                }
            };
            CliError::Host(Error::AgentToken {
                api: Box::new(api),
                hint,
            })
        }
        other => other.into(),
    }
}

/// The agent (502) refused its token, as opposed to the orchestrator (401) refusing ours.
fn is_agent_refusal(api: &ApiError) -> bool {
    api.code == Some(ErrorCode::Unauthorized) && api.status == 502
}

/// The second line of the standard text points at the wrong token; this one puts it right.
fn agent_token_hint(app: &App, token: &str) -> String {
    let context = app.context().ok();
    let name = context
        .map(|context| context.name.as_str())
        .unwrap_or_default();
    let own = context.and_then(|context| context.token.as_ref());
    if own.is_some_and(|own| own.reveal() == token) {
        return format!(
            "  the token at fault is this command's --token: it is the orchestrator's own, which \
             context \"{name}\" already holds; pass the host agent's"
        );
    }
    format!(
        "  the token at fault is this command's --token; the token of context \"{}\" is fine",
        or_dash(name)
    )
}

/// Makes the request, in the documented order of checks: MIG shape, label shape, token, the rules
/// that the server would apply.
fn request(
    args: &RegisterArgs,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<RegisterHost, Error> {
    let mig_profiles = mig_profiles(&args.mig_profile)?;
    let labels = flags::labels(&args.label).map_err(|value| Error::LabelShape {
        value: value.clone(),
    })?;
    let backend = args.backend.unwrap_or(Backend::Firecracker);
    let token = match args.token.as_deref().map(str::trim) {
        Some(token) => token.to_owned(),
        None => environment(backend.token_variable())
            .unwrap_or_default()
            .trim()
            .to_owned(),
    };
    if token.is_empty() && backend == Backend::Firecracker && !args.no_verify {
        return Err(Error::TokenMissing);
    }
    let mut request = RegisterHost {
        id: args.id.clone(),
        url: args.url.clone().unwrap_or_default(),
        token,
        region: args.region.clone(),
        backend: args
            .backend
            .map(|backend| backend.as_str().to_owned())
            .unwrap_or_default(),
        labels,
        capacity: Capacity {
            cpus: args.size.cpus,
            ram_mb: args.size.ram_mb,
            storage_gb: args.size.storage_gb,
            vm_count: args.max_vms,
            arch: args.arch.clone(),
            gpus: args.gpus,
            gpu_kind: args.gpu_kind.clone(),
            mig_profiles,
            ..Capacity::default()
        },
    };
    request.check(|url| {
        BaseUrl::parse(url)
            .map(|_| ())
            .map_err(|error| error.to_string())
    })?;
    if args.max_vms <= 0 {
        return Err(Error::MaxVms);
    }
    Ok(request)
}

fn mig_profiles(values: &[String]) -> Result<BTreeMap<String, i32>, Error> {
    values
        .iter()
        .map(|value| {
            let (profile, count) = value
                .split_once('=')
                .filter(|(profile, _)| !profile.is_empty())
                .ok_or_else(|| Error::MigShape {
                    value: value.clone(),
                })?;
            let count = count.parse().ok().filter(|count| *count > 0);
            let count = count.ok_or_else(|| Error::MigCount {
                value: value.clone(),
            })?;
            Ok((profile.to_lowercase(), count))
        })
        .collect()
}

/// Asks for what the flags left open.
fn form(args: &mut RegisterArgs) -> Result<(), CliError> {
    args.url = Some(Text::new("Host URL").with_validator(required).prompt()?);
    if args.token.is_none() {
        let token = Password::new("Host agent token")
            .with_display_mode(PasswordDisplayMode::Masked)
            .with_help_message("the agent's own FC_AGENT_TOKEN, not the orchestrator token")
            .without_confirmation()
            .prompt()?;
        args.token = Some(token).filter(|token| !token.trim().is_empty());
    }
    args.region = Text::new("Region")
        .with_initial_value(&args.region)
        .prompt()?;
    args.size.cpus = number("CPUs", "0 = probe from host agent", args.size.cpus)?;
    args.size.ram_mb = number("RAM MB", "0 = probe from host agent", args.size.ram_mb)?;
    args.size.storage_gb = number(
        "Storage GB",
        "0 = probe from host agent",
        args.size.storage_gb,
    )?;
    args.max_vms = number("Max VMs", "required, not probed", args.max_vms)?;
    args.gpus = number(
        "GPUs",
        "0 = probe; MIG instances are declared with --mig-profile",
        args.gpus,
    )?;
    args.gpu_kind = Text::new("GPU kind")
        .with_initial_value(&args.gpu_kind)
        .with_help_message("empty = probe")
        .prompt()?;
    if args.gpus > 0 && args.backend.is_none() {
        let backend = Select::new("Backend", vec!["qemu", "firecracker"])
            .with_help_message("GPUs need qemu")
            .prompt()?;
        args.backend = Some(if backend == "qemu" {
            Backend::Qemu
        } else {
            Backend::Firecracker
        });
    }
    Ok(())
}

#[expect(clippy::unnecessary_wraps, reason = "the signature of a validator")]
fn required(text: &str) -> Result<Validation, CustomUserError> {
    Ok(if text.trim().is_empty() {
        Validation::Invalid("required".into())
    } else {
        Validation::Valid
    })
}

/// A whole number, not negative; nothing typed is the value given by flag.
fn number(label: &str, help: &str, preset: i32) -> Result<i32, CliError> {
    Ok(CustomType::<i32>::new(label)
        .with_default(preset)
        .with_help_message(help)
        .with_error_message("a whole number, 0 or more")
        .with_validator(|value: &i32| {
            Ok(if *value < 0 {
                Validation::Invalid("0 or more".into())
            } else {
                Validation::Valid
            })
        })
        .prompt()?)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Wrapper {
        #[command(flatten)]
        args: RegisterArgs,
    }

    fn build(line: &str) -> Result<RegisterHost, String> {
        let words = std::iter::once("register").chain(line.split(' '));
        let args = Wrapper::try_parse_from(words).unwrap().args;
        let env = |name: &str| match name {
            "QEMU_AGENT_TOKEN" => Some("from-qemu-env".to_owned()),
            _ => None,
        };
        request(&args, env).map_err(|error| error.to_string())
    }

    #[test]
    fn every_flag_reaches_the_request() {
        let request = build(
            "gpu-1 --url http://h:8091 --token t --backend qemu --region us-east --max-vms 8 --cpus 4 \
             --ram-mb 1024 --storage-gb 10 --gpus 1 --gpu-kind a100 --arch x86_64 \
             --mig-profile 1G.10gb=4 --mig-profile 2g.20gb=2 --label disk=nvme --label tier=build",
        )
        .unwrap();
        let json = serde_json::to_value(&request).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "id": "gpu-1", "url": "http://h:8091", "token": "t", "region": "us-east",
                "backend": "qemu", "labels": {"disk": "nvme", "tier": "build"},
                "capacity": {"cpus": 4, "ram_mb": 1024, "storage_gb": 10, "vm_count": 8,
                    "arch": "amd64", "gpus": 1, "gpu_kind": "a100",
                    "mig_profiles": {"1g.10gb": 4, "2g.20gb": 2}},
            })
        );
    }

    #[test]
    fn the_token_comes_from_the_environment_of_the_backend() {
        let qemu = build("a --url http://h --max-vms 1 --backend qemu").unwrap();
        assert_eq!(qemu.token, "from-qemu-env");
        let refused = build("a --url http://h --max-vms 1").unwrap_err();
        assert!(refused.contains("FC_AGENT_TOKEN"), "{refused}");
        assert_eq!(
            build("a --url http://h --max-vms 1 --no-verify")
                .unwrap()
                .token,
            ""
        );
    }

    #[test]
    fn texts_of_local_checks() {
        for (flags, text) in [
            (
                "--mig-profile foo",
                "invalid --mig-profile \"foo\": expected profile=count (e.g. 1g.10gb=4)",
            ),
            (
                "--mig-profile =4",
                "invalid --mig-profile \"=4\": expected profile=count (e.g. 1g.10gb=4)",
            ),
            (
                "--mig-profile a=x",
                "invalid --mig-profile \"a=x\": count must be a positive number",
            ),
            (
                "--mig-profile a=0",
                "invalid --mig-profile \"a=0\": count must be a positive number",
            ),
            (
                "--label disk",
                "invalid --label \"disk\": expected key=value (e.g. disk=nvme)",
            ),
            (
                "--label disk=",
                "invalid --label \"disk=\": expected key=value (e.g. disk=nvme)",
            ),
            (
                "--gpus 1",
                "invalid argument: gpus > 0 requires backend \"qemu\"",
            ),
            (
                "--mig-profile 1g.10gb=4",
                "invalid argument: mig_profiles requires backend \"qemu\"",
            ),
            (
                "--label a!=b",
                "invalid argument: labels: invalid label key \"a!\"",
            ),
        ] {
            let line = format!("a --url http://h:8090 --token t --max-vms 1 {flags}");
            assert_eq!(build(&line).unwrap_err(), text, "{flags}");
        }
        assert!(
            build("a --url http://h:8090 --token t")
                .unwrap_err()
                .contains("--max-vms")
        );
        assert!(
            build("a --url h:8090 --token t --max-vms 1")
                .unwrap_err()
                .starts_with("invalid argument: url: ")
        );
    }

    #[test]
    fn shape_comes_before_the_token() {
        let text = build("a --url http://h --max-vms 1 --mig-profile x").unwrap_err();
        assert!(text.starts_with("invalid --mig-profile"), "{text}");
    }
}
