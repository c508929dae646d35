//! Secrets on the command line: `--secret`, `--secrets-file`, `--secret-env`, `--secret-path`. A file
//! called `-` is standard input, which can be read once.
//!
//! Invariant: no error repeats what it could not read, because that may be the secret; it gives the
//! position of the argument, or the file and line.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};

use clap::Args;

/// Why secrets could not be collected.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// An argument is not `key=value`.
    #[error("--{flag} argument {position} is not {form}; its text is not repeated here")]
    Argument {
        /// The flag.
        flag: &'static str,
        /// Counted from 1 among the arguments of that flag.
        position: usize,
        /// What it should look like.
        form: &'static str,
    },
    /// A line of the file is not `key=value`.
    #[error("{}:{line}: not key=value; the line is not repeated here", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
    },
    /// A file cannot be read.
    #[error("could not read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds something that cannot travel as text.
    #[error("{}: a secret must be text (UTF-8)", path.display())]
    NotText {
        /// The file.
        path: PathBuf,
    },
    /// Two flags read it.
    #[error("standard input (-) can hold one secret or one secrets file, not several")]
    StdinTwice,
    /// A variable is not set.
    #[error("--secret-env {name}: the environment variable {variable} is not set")]
    Unset {
        /// The secret.
        name: String,
        /// The variable.
        variable: String,
    },
    /// The Fusefile needs secrets that were not given.
    #[error(
        "missing {}: {}. give each with --secret NAME=VALUE, --secret-env NAME, --secret-path NAME=FILE \
         or a --secrets-file{}",
        if names.len() == 1 { "secret" } else { "secrets" },
        names.join(", "),
        if *empty { "; an empty value counts as missing unless --allow-empty-secrets is given" } else { "" }
    )]
    Missing {
        /// All of them.
        names: Vec<String>,
        /// Some of them were given, but empty.
        empty: bool,
    },
}

/// Flags that carry secrets.
#[derive(Default, Args)]
pub(crate) struct SecretArgs {
    /// Value of a secret; repeatable, beats the file. Visible in the process list while `fuse` runs.
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) secret: Vec<String>,
    /// File of NAME=VALUE lines, - for standard input; blank lines and # comments are skipped.
    #[arg(long, value_name = "FILE")]
    pub(crate) secrets_file: Option<PathBuf>,
    /// Take a secret from an environment variable (of the same name unless given).
    #[arg(long, value_name = "NAME[=VAR]")]
    pub(crate) secret_env: Vec<String>,
    /// Take a secret from a file (- for standard input), as it is but for one final line break.
    #[arg(long, value_name = "NAME=FILE")]
    pub(crate) secret_path: Vec<String>,
}

impl fmt::Debug for SecretArgs {
    /// No values, nor what stands where a value might have been put by mistake.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecretArgs").finish_non_exhaustive()
    }
}

impl SecretArgs {
    /// Collects all values. Arguments beat the file; among arguments the later flag kind wins:
    /// `--secret-env`, then `--secret-path`, then `--secret`.
    pub(crate) fn collect(
        &self,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<BTreeMap<String, String>, Error> {
        let mut values = BTreeMap::new();
        let mut stdin = Some(io::stdin());
        if let Some(path) = &self.secrets_file {
            let text = read(path, &mut stdin)?;
            for (number, line) in text.lines().enumerate() {
                let line = line.trim();
                if line.is_empty() || line.starts_with('#') {
                    continue;
                }
                let (key, value) = pair(line).ok_or_else(|| Error::Line {
                    path: path.clone(),
                    line: number + 1,
                })?;
                values.insert(key.to_owned(), value.to_owned());
            }
        }
        for (index, argument) in self.secret_env.iter().enumerate() {
            let (name, variable) = match argument.split_once('=') {
                Some((name, variable)) => (name, variable),
                None => (argument.as_str(), argument.as_str()),
            };
            if name.is_empty() || variable.is_empty() {
                return Err(shape("secret-env", index, "NAME or NAME=VAR"));
            }
            let value = environment(variable).ok_or_else(|| Error::Unset {
                name: name.to_owned(),
                variable: variable.to_owned(),
            })?;
            values.insert(name.to_owned(), value);
        }
        for (index, argument) in self.secret_path.iter().enumerate() {
            let (name, path) = pair(argument)
                .filter(|(_, path)| !path.is_empty())
                .ok_or_else(|| shape("secret-path", index, "NAME=FILE"))?;
            let text = read(Path::new(path), &mut stdin)?;
            let text = text.strip_suffix('\n').unwrap_or(&text);
            let text = text.strip_suffix('\r').unwrap_or(text);
            values.insert(name.to_owned(), text.to_owned());
        }
        for (index, argument) in self.secret.iter().enumerate() {
            let (name, value) =
                pair(argument).ok_or_else(|| shape("secret", index, "NAME=VALUE"))?;
            values.insert(name.to_owned(), value.to_owned());
        }
        Ok(values)
    }
}

/// The gate: every required name has a value, all missing ones are named at once.
pub(crate) fn require(
    names: &[String],
    values: &BTreeMap<String, String>,
    allow_empty: bool,
) -> Result<(), Error> {
    let lacks = |name: &&String| match values.get(*name) {
        Some(value) => value.is_empty() && !allow_empty,
        None => true,
    };
    let missing: Vec<String> = names.iter().filter(lacks).cloned().collect();
    if missing.is_empty() {
        return Ok(());
    }
    let empty = missing.iter().any(|name| values.contains_key(name));
    Err(Error::Missing {
        names: missing,
        empty,
    })
}

fn shape(flag: &'static str, index: usize, form: &'static str) -> Error {
    Error::Argument {
        flag,
        position: index + 1,
        form,
    }
}

/// Splits at the first `=`; the key must not be empty, the value is verbatim.
fn pair(text: &str) -> Option<(&str, &str)> {
    text.split_once('=').filter(|(key, _)| !key.is_empty())
}

/// The content of a file, or of standard input while it has not been used.
fn read(path: &Path, stdin: &mut Option<io::Stdin>) -> Result<String, Error> {
    let bytes = if path == Path::new("-") {
        let mut bytes = Vec::new();
        let stdin = stdin.take().ok_or(Error::StdinTwice)?;
        stdin.lock().read_to_end(&mut bytes).map(|_| bytes)
    } else {
        fs::read(path)
    };
    let bytes = bytes.map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })?;
    String::from_utf8(bytes).map_err(|_| Error::NotText {
        path: path.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> Option<String> {
        None
    }

    #[test]
    fn later_and_closer_wins() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secrets");
        fs::write(
            &file,
            "# comment\n\n  A = from file \nB=b1\nB=b2\nC=x=y\nD=\n",
        )
        .unwrap();
        let key = dir.path().join("key");
        fs::write(&key, "line1\nline2\r\n").unwrap();
        let args = SecretArgs {
            secret: vec!["B=arg".into(), "E=".into()],
            secrets_file: Some(file),
            secret_env: vec!["F".into(), "G=VAR".into()],
            secret_path: vec![format!("H={}", key.display())],
        };
        let values = args.collect(|name| Some(format!("env:{name}"))).unwrap();
        let expected = [
            // Only the ends of the line are trimmed: what stands around `=` belongs to key and value.
            ("A ", " from file"),
            ("B", "arg"),
            ("C", "x=y"),
            ("D", ""),
            ("E", ""),
            ("F", "env:F"),
            ("G", "env:VAR"),
            ("H", "line1\nline2"),
        ];
        let expected: BTreeMap<_, _> = expected
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        assert_eq!(values, expected);
    }

    #[test]
    fn errors_never_repeat_the_text() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secrets");
        fs::write(&file, "A=1\nhunter2\n").unwrap();
        let cases = [
            SecretArgs {
                secret: vec!["A=1".into(), "hunter2".into()],
                ..SecretArgs::default()
            },
            SecretArgs {
                secret: vec!["=hunter2".into()],
                ..SecretArgs::default()
            },
            SecretArgs {
                secrets_file: Some(file),
                ..SecretArgs::default()
            },
            SecretArgs {
                secret_path: vec!["hunter2".into()],
                ..SecretArgs::default()
            },
            SecretArgs {
                secret_env: vec!["=hunter2".into()],
                ..SecretArgs::default()
            },
        ];
        for (case, args) in cases.iter().enumerate() {
            let text = args.collect(none).unwrap_err().to_string();
            assert!(!text.contains("hunter2"), "{case}: {text}");
        }
        let second = cases[0].collect(none).unwrap_err().to_string();
        assert!(second.starts_with("--secret argument 2"), "{second}");
        let line = cases[2].collect(none).unwrap_err().to_string();
        assert!(line.contains(":2: "), "{line}");
    }

    #[test]
    fn the_gate_names_everything_missing() {
        let names = ["A".to_owned(), "B".to_owned(), "C".to_owned()];
        let values = [
            ("A".to_owned(), "1".to_owned()),
            ("B".to_owned(), String::new()),
        ]
        .into();
        let text = require(&names, &values, false).unwrap_err().to_string();
        assert!(text.starts_with("missing secrets: B, C."), "{text}");
        assert!(text.contains("--allow-empty-secrets"), "{text}");
        let text = require(&names, &values, true).unwrap_err().to_string();
        assert!(text.starts_with("missing secret: C."), "{text}");
        assert!(require(&names[..2], &values, true).is_ok());
    }
}
