//! Tokens and the encryption key: minted once, kept in files that only their owner can read.
//!
//! Invariant: an existing file is never replaced. The tokens are what running programs and the
//! orchestrator's database know, the key is what its secrets are encrypted with.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

use fuse_client::Token;

use super::error::file_error;
use super::{Error, Layout};

/// The three secrets of a stack, each 64 hex digits.
#[derive(Debug, Clone)]
pub(crate) struct Tokens {
    /// The orchestrator's master token.
    pub(crate) orchestrator: Token,
    /// The host agent's token.
    pub(crate) agent: Token,
    /// The orchestrator's key for secrets at rest.
    pub(crate) encryption_key: Token,
}

const ORCHESTRATOR: &str = "orchestrator.token";
const AGENT: &str = "fc-agent.token";
const ENCRYPTION_KEY: &str = "encryption.key";

impl Tokens {
    /// Reads the secrets, making the missing ones.
    ///
    /// # Errors
    /// When a file cannot be read or made, or holds something else.
    pub(crate) fn ensure(layout: &Layout) -> Result<Self, Error> {
        Ok(Self {
            orchestrator: ensure(&layout.file(ORCHESTRATOR))?,
            agent: ensure(&layout.file(AGENT))?,
            encryption_key: ensure(&layout.file(ENCRYPTION_KEY))?,
        })
    }

    /// The host agent's token alone.
    ///
    /// # Errors
    /// When there is none, or it was damaged.
    pub(crate) fn agent(layout: &Layout) -> Result<Token, Error> {
        read(&layout.file(AGENT))
    }

    /// The orchestrator's token alone.
    ///
    /// # Errors
    /// When there is none, or it was damaged.
    pub(crate) fn orchestrator(layout: &Layout) -> Result<Token, Error> {
        read(&layout.file(ORCHESTRATOR))
    }
}

fn ensure(path: &Path) -> Result<Token, Error> {
    let value = hex::encode(rand::random::<[u8; 32]>());
    // Written beside and linked into place: a crash in between leaves no half a token, and a token
    // that is there already wins.
    let dir = path.parent().unwrap_or(Path::new("."));
    let failed = file_error("create", path);
    let outcome = (|| {
        let mut file = tempfile::Builder::new()
            .prefix(".token-")
            .permissions(fs::Permissions::from_mode(0o600))
            .tempfile_in(dir)?;
        writeln!(file, "{value}")?;
        file.as_file().sync_all()?;
        match fs::hard_link(file.path(), path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            outcome => outcome,
        }
    })();
    outcome.map_err(failed)?;
    read(path)
}

fn read(path: &Path) -> Result<Token, Error> {
    let text = fs::read_to_string(path).map_err(file_error("read", path))?;
    let token = text.trim();
    if token.len() != 64 || !token.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(Error::Damaged {
            path: path.to_owned(),
            expected: "64 hex digits",
        });
    }
    let open = OpenOptions::new().read(true).mode(0o600).open(path);
    let file = open.map_err(file_error("open", path))?;
    let meta = file.metadata().map_err(file_error("read", path))?;
    if meta.permissions().mode() & 0o077 != 0 {
        file.set_permissions(fs::Permissions::from_mode(0o600))
            .map_err(file_error("protect", path))?;
    }
    Ok(Token::new(token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(dir: &Path) -> Layout {
        Layout {
            root: dir.to_owned(),
            programs: dir.to_owned(),
            image: dir.to_owned(),
        }
    }

    #[test]
    fn minted_once_private_and_different() {
        let dir = tempfile::tempdir().unwrap();
        let first = Tokens::ensure(&layout(dir.path())).unwrap();
        assert_ne!(first.orchestrator, first.agent);
        assert_ne!(first.agent, first.encryption_key);
        for name in [ORCHESTRATOR, AGENT, ENCRYPTION_KEY] {
            let mode = fs::metadata(dir.path().join(name))
                .unwrap()
                .permissions()
                .mode();
            assert_eq!(mode & 0o777, 0o600, "{name}");
        }
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3);
        let second = Tokens::ensure(&layout(dir.path())).unwrap();
        assert_eq!(first.orchestrator, second.orchestrator);
        assert_eq!(Tokens::agent(&layout(dir.path())).unwrap(), first.agent);
    }

    #[test]
    fn a_damaged_file_is_named_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(AGENT), "short").unwrap();
        let error = Tokens::ensure(&layout(dir.path())).unwrap_err().to_string();
        assert!(error.contains(AGENT) && !error.contains("short"), "{error}");
        assert_eq!(fs::read_to_string(dir.path().join(AGENT)).unwrap(), "short");
    }

    #[test]
    fn an_open_file_is_tightened() {
        let dir = tempfile::tempdir().unwrap();
        Tokens::ensure(&layout(dir.path())).unwrap();
        let path = dir.path().join(AGENT);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        Tokens::agent(&layout(dir.path())).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
    }
}
