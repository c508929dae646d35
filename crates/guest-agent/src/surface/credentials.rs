//! The surface's token and certificate, kept current with their files.
//!
//! Credentials are rotated by writing the files anew. A change takes effect for
//! the next request, also on open connections; what was valid before is not any
//! more. Certificate and key arrive one after the other, so a pair that does not
//! fit is ignored and the one before stays.

use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::inotify;
use rustls::ServerConfig;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use subtle::ConstantTimeEq as _;
use thiserror::Error;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::task::TaskTracker;

use super::options::CredentialFiles;
use crate::sys;

/// Who may use the surface beyond `/health`.
#[derive(Clone)]
pub(super) enum Access {
    /// Everybody: no token was asked for.
    Open,
    /// Nobody: the token has not arrived yet.
    Locked,
    /// Whoever sends this value as `Authorization`.
    Bearer(Vec<u8>),
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Open => "Open",
            Self::Locked => "Locked",
            Self::Bearer(_) => "Bearer",
        })
    }
}

impl Access {
    /// Whether a request with this `Authorization` header may pass.
    pub(super) fn admits(&self, authorization: Option<&[u8]>) -> bool {
        match self {
            Self::Open => true,
            Self::Locked => false,
            Self::Bearer(expected) => {
                authorization.is_some_and(|given| bool::from(given.ct_eq(expected)))
            }
        }
    }
}

/// What is valid now.
#[derive(Clone, Debug)]
pub(super) struct Credentials {
    pub(super) access: Access,
    pub(super) tls: Option<Arc<ServerConfig>>,
}

/// Why credentials could not be used.
#[derive(Debug, Error)]
pub(super) enum CredentialError {
    /// Not a certificate and its key.
    #[error("{} and {} are not a certificate and its private key in PEM", cert.display(), key.display())]
    Pair {
        /// Certificate file.
        cert: PathBuf,
        /// Key file.
        key: PathBuf,
        /// What is wrong; never holds key material.
        #[source]
        source: PairError,
    },
    /// Changes of files cannot be noticed.
    #[error("cannot watch the credential files for changes")]
    Watch(#[source] io::Error),
}

/// What is wrong with a certificate and a key.
#[derive(Debug, Error)]
pub(super) enum PairError {
    /// Not PEM.
    #[error("not readable as PEM")]
    Pem(#[from] rustls_pki_types::pem::Error),
    /// Not usable for TLS.
    #[error("not usable for TLS")]
    Tls(#[from] rustls::Error),
}

impl Credentials {
    /// Reads the files at start.
    ///
    /// # Errors
    /// There is a certificate and a key, but they are of no use.
    pub(super) fn load(files: &CredentialFiles) -> Result<Self, CredentialError> {
        let tls = load_tls(files)?;
        if files.tls.is_some() && tls.is_none() {
            tracing::warn!("serving without TLS until certificate and key arrive");
        }
        let access = load_access(files);
        if matches!(access, Access::Locked) {
            tracing::warn!("locked until the token arrives: only /health is served");
        }
        Ok(Self { access, tls })
    }

    /// Reads the files again. Never goes from TLS to plain text.
    fn reload(&self, files: &CredentialFiles) -> Self {
        let tls = match load_tls(files) {
            Ok(Some(tls)) => Some(tls),
            Ok(None) => self.tls.clone(),
            Err(error) => {
                tracing::warn!(%error, "keeping the certificate in use");
                self.tls.clone()
            }
        };
        Self {
            access: load_access(files),
            tls,
        }
    }
}

/// Follows the files for as long as the surface runs.
///
/// # Errors
/// Changes cannot be watched for.
pub(super) fn keep_current(
    first: &Credentials,
    files: CredentialFiles,
    tasks: &TaskTracker,
) -> Result<watch::Receiver<Credentials>, CredentialError> {
    let watcher = Watcher::new(&files).map_err(CredentialError::Watch)?;
    // What changed before the watch began was read too early.
    let first = first.reload(&files);
    let (sender, receiver) = watch::channel(first);
    tasks.spawn(follow(watcher, files, sender));
    Ok(receiver)
}

async fn follow(watcher: Watcher, files: CredentialFiles, current: watch::Sender<Credentials>) {
    let mut hangup = signal(SignalKind::hangup()).ok();
    loop {
        let asked = async {
            match &mut hangup {
                Some(hangup) => drop(hangup.recv().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = watcher.changed() => {
                if let Err(error) = changed {
                    tracing::error!(%error, "changed credentials are noticed on SIGHUP only");
                    return;
                }
            }
            () = asked => {}
            () = current.closed() => return,
        }
        watcher.watch(&files);
        let next = current.borrow().reload(&files);
        current.send_replace(next);
        tracing::info!("credentials read again");
    }
}

fn load_access(files: &CredentialFiles) -> Access {
    let Some(path) = &files.token else {
        return Access::Open;
    };
    match fs::read_to_string(path) {
        Ok(text) if text.trim().is_empty() => Access::Locked,
        Ok(text) => Access::Bearer(format!("Bearer {}", text.trim()).into_bytes()),
        Err(error) => {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!(path = %path.display(), %error, "token not readable");
            }
            Access::Locked
        }
    }
}

fn load_tls(files: &CredentialFiles) -> Result<Option<Arc<ServerConfig>>, CredentialError> {
    let Some((cert, key)) = &files.tls else {
        return Ok(None);
    };
    let present = |path: &Path| fs::metadata(path).is_ok_and(|meta| meta.len() > 0);
    if !present(cert) || !present(key) {
        return Ok(None);
    }
    let failed = |source| CredentialError::Pair {
        cert: cert.clone(),
        key: key.clone(),
        source,
    };
    parse_pair(cert, key).map(Some).map_err(failed)
}

fn parse_pair(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, PairError> {
    let chain = CertificateDer::pem_file_iter(cert)?.collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_file(key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    Ok(Arc::new(config))
}

/// Notices that files may have changed, by watching their directories: files
/// are replaced, and may not be there yet.
struct Watcher {
    queue: AsyncFd<OwnedFd>,
}

impl Watcher {
    fn new(files: &CredentialFiles) -> io::Result<Self> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let watcher = Self {
            queue: sys::watch_fd(inotify::init(flags)?)?,
        };
        watcher.watch(files);
        Ok(watcher)
    }

    /// Adds directories that have appeared; does nothing for those watched already.
    fn watch(&self, files: &CredentialFiles) {
        let paths = files
            .token
            .iter()
            .chain(files.tls.iter().flat_map(|(c, k)| [c, k]));
        let flags = inotify::WatchFlags::MOVED_TO
            | inotify::WatchFlags::CLOSE_WRITE
            | inotify::WatchFlags::CREATE
            | inotify::WatchFlags::DELETE
            | inotify::WatchFlags::MOVED_FROM;
        for path in paths {
            // Up to the directory below the root: any of them may be made later.
            for dir in path
                .ancestors()
                .skip(1)
                .filter(|dir| dir.parent().is_some())
            {
                if let Err(error) = inotify::add_watch(&self.queue, dir, flags)
                    && error != rustix::io::Errno::NOENT
                {
                    tracing::warn!(dir = %dir.display(), %error, "directory not watched");
                }
            }
        }
    }

    /// Resolves after something happened in a watched directory.
    async fn changed(&self) -> io::Result<()> {
        loop {
            let mut guard = self.queue.readable().await?;
            let drained = guard.try_io(|queue| {
                let mut space = [MaybeUninit::uninit(); 4096];
                let mut events = inotify::Reader::new(queue.get_ref(), &mut space);
                events.next()?;
                // The rest of the batch is the same news.
                while !events.is_buffer_empty() {
                    events.next()?;
                }
                Ok(())
            });
            if let Ok(result) = drained {
                return result;
            }
        }
    }
}
