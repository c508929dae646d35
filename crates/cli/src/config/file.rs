//! Where the configuration lives and how it is replaced.
//!
//! Invariants: readers never see half a file (temporary sibling, sync, rename); two `fuse` processes
//! that change it at once do not lose each other's change (an exclusive lock around read, change,
//! write); the file is 0600 whatever it was before, a directory made here is 0700.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use serde_saphyr::SerializerOptions;

use super::model::Config;

/// Why the configuration could not be read or written. Every variant names the file.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Neither `XDG_CONFIG_HOME` nor `HOME` says where the file would be.
    #[error("no home directory: set HOME, or pass --config <file>")]
    NoHome,
    /// The file exists and cannot be read.
    #[error("could not read the config file {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not what this program writes.
    ///
    /// The parser's own text quotes the line at fault, which may be a token, so only the place is kept.
    #[error(
        "the config file {} is not valid{}; repair it, or move it away and run `fuse connect` again",
        path.display(),
        place(*line)
    )]
    Parse {
        /// The file.
        path: PathBuf,
        /// 1-based line, when the parser knows it.
        line: Option<u64>,
    },
    /// The file or its directory cannot be written.
    #[error("could not write the config file {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

fn place(line: Option<u64>) -> String {
    line.map(|line| format!(" (line {line})"))
        .unwrap_or_default()
}

/// The configuration file at a known place.
#[derive(Debug, Clone)]
pub(crate) struct ConfigFile {
    path: PathBuf,
}

impl ConfigFile {
    /// Resolves the place: `--config`, else `$XDG_CONFIG_HOME/fuse/config.yaml`, else
    /// `~/.config/fuse/config.yaml` on every platform.
    ///
    /// # Errors
    /// [`Error::NoHome`] when nothing says where the file would be.
    pub(crate) fn locate(flag: Option<&Path>) -> Result<Self, Error> {
        if let Some(path) = flag {
            return Ok(Self {
                path: path.to_owned(),
            });
        }
        let set = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let base = match set("XDG_CONFIG_HOME") {
            Some(dir) => PathBuf::from(dir),
            None => PathBuf::from(set("HOME").ok_or(Error::NoHome)?).join(".config"),
        };
        Ok(Self {
            path: base.join("fuse").join("config.yaml"),
        })
    }

    /// The place.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file; a missing or empty one is an empty configuration.
    ///
    /// # Errors
    /// When it cannot be read or is not valid.
    pub(crate) fn load(&self) -> Result<Config, Error> {
        let text = match fs::read_to_string(&self.path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Config::default()),
            Err(source) => {
                return Err(Error::Read {
                    path: self.path.clone(),
                    source,
                });
            }
        };
        if text.trim().is_empty() {
            return Ok(Config::default());
        }
        serde_saphyr::from_str(&text).map_err(|error| Error::Parse {
            path: self.path.clone(),
            line: error.location().map(|location| location.line()),
        })
    }

    /// Changes the file under its lock and returns what `change` returned.
    ///
    /// # Errors
    /// When the file cannot be read, is not valid, or cannot be replaced; it is then untouched.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut Config) -> T) -> Result<T, Error> {
        let write_error = |source| Error::Write {
            path: self.path.clone(),
            source,
        };
        // A symbolic link (dotfiles kept elsewhere) stays a link: its target is replaced.
        let target = fs::canonicalize(&self.path).unwrap_or_else(|_| self.path.clone());
        let dir = match target.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir,
            _ => Path::new("."),
        };
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(dir)
            .map_err(write_error)?;
        let lock = lock(&target).map_err(write_error)?;
        let mut config = self.load()?;
        let result = change(&mut config);
        let mut layout = SerializerOptions::default();
        layout.compact_list_indent = false;
        layout.prefer_block_scalars = false;
        let text = serde_saphyr::to_string_with_options(&config, layout)
            .map_err(|error| write_error(io::Error::other(error.to_string())))?;
        replace(&target, dir, text.as_bytes()).map_err(write_error)?;
        drop(lock);
        Ok(result)
    }
}

/// Takes the lock beside the file; closing the handle releases it.
///
/// The configuration itself cannot be the lock: it is replaced, and a lock stays with the old inode.
fn lock(target: &Path) -> io::Result<File> {
    let mut name = target.as_os_str().to_owned();
    name.push(".lock");
    let file = OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(name)?;
    file.lock()?;
    Ok(file)
}

fn replace(target: &Path, dir: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut temporary = tempfile::Builder::new()
        .prefix(".config-")
        .permissions(fs::Permissions::from_mode(0o600))
        .tempfile_in(dir)?;
    temporary.write_all(bytes)?;
    temporary.as_file().sync_all()?;
    temporary.persist(target).map_err(|error| error.error)?;
    // The rename is durable only once the directory is.
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use fuse_client::Token;

    use super::*;
    use crate::config::Credentials;

    fn add(file: &ConfigFile, name: &str, token: Option<&str>) {
        let credentials = Credentials {
            base_url: format!("http://{name}:8080"),
            token: token.map(Token::new),
            master: token.is_some(),
        };
        file.update(|config| config.add(name, credentials)).unwrap();
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_missing_or_empty_file_is_an_empty_configuration() {
        let dir = tempfile::tempdir().unwrap();
        let file = ConfigFile::locate(Some(&dir.path().join("config.yaml"))).unwrap();
        assert_eq!(file.load().unwrap(), Config::default());
        fs::write(file.path(), "\n").unwrap();
        assert_eq!(file.load().unwrap(), Config::default());
    }

    #[test]
    fn what_is_written_reads_back_and_is_private() {
        let dir = tempfile::tempdir().unwrap();
        let file = ConfigFile::locate(Some(&dir.path().join("deep/fuse/config.yaml"))).unwrap();
        add(&file, "prod", Some("0123"));
        add(&file, "test", None);
        file.update(|config| config.set_active_host("prod", Some("east-1".into())))
            .unwrap();

        let text = fs::read_to_string(file.path()).unwrap();
        assert_eq!(
            text,
            "\
current_context: test
contexts:
  - name: prod
    base_url: http://prod:8080
    token: \"0123\"
    master: true
    active_host: east-1
  - name: test
    base_url: http://test:8080
"
        );
        assert_eq!(mode(file.path()), 0o600);
        assert_eq!(mode(file.path().parent().unwrap()), 0o700);
        let config = file.load().unwrap();
        assert_eq!(
            config.context("prod").unwrap().token,
            Some(Token::new("0123"))
        );
        assert_eq!(
            config.context("prod").unwrap().active_host.as_deref(),
            Some("east-1")
        );
        assert!(config.context("test").unwrap().token.is_none());
    }

    #[test]
    fn an_open_file_is_tightened_and_unknown_keys_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        fs::write(
            &path,
            "theme: dark\ncontexts:\n  - name: old\n    base_url: http://old:8080\n    colour: red\n",
        )
        .unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let file = ConfigFile::locate(Some(&path)).unwrap();
        add(&file, "new", None);
        assert_eq!(mode(&path), 0o600);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains("theme: dark"), "{text}");
        assert!(text.contains("colour: red"), "{text}");
        assert_eq!(file.load().unwrap().contexts.len(), 2);
    }

    #[test]
    fn a_broken_file_is_named_with_its_line_and_its_content_is_not_repeated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        fs::write(
            &path,
            "contexts:\n  - name: a\n    base_url: [secret-token\n",
        )
        .unwrap();
        let file = ConfigFile::locate(Some(&path)).unwrap();
        let text = file.load().unwrap_err().to_string();
        assert!(text.contains(&*path.to_string_lossy()), "{text}");
        assert!(!text.contains("secret-token"), "{text}");
        assert!(file.update(|_| ()).is_err());
        assert!(fs::read_to_string(&path).unwrap().contains("secret-token"));
    }

    #[test]
    fn a_symbolic_link_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real.yaml");
        fs::write(&real, "").unwrap();
        let link = dir.path().join("config.yaml");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        let file = ConfigFile::locate(Some(&link)).unwrap();
        add(&file, "a", None);
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert!(fs::read_to_string(&real).unwrap().contains("name: a"));
    }

    #[test]
    fn writers_at_once_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = ConfigFile::locate(Some(&dir.path().join("config.yaml"))).unwrap();
        std::thread::scope(|scope| {
            for n in 0..16 {
                let file = &file;
                scope.spawn(move || add(file, &format!("c{n}"), None));
            }
        });
        assert_eq!(file.load().unwrap().contexts.len(), 16);
    }
}
