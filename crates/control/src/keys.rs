//! Whether the secrets in the store open with the keys that this process was given.
//!
//! Asked at boot, so that a wrong key is said there and by the readiness probe, and not
//! by a refused call a week later; and asked again every cycle while something is wrong.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use fuse_model::{Host, HostId};
use fuse_store::{KeyReport, StoreError};

use crate::{Control, error::chain, hosts::watch, provider::LookupError};

/// Names that a message lists.
const NAMED: usize = 3;

/// What is wrong with the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyTrouble {
    /// What it is and what to do, for the operator.
    pub text: String,
    /// Nothing at all opens: this is not the key of this store.
    pub is_total: bool,
}

#[derive(Debug, Default)]
pub(crate) struct Keys {
    trouble: Mutex<Option<KeyTrouble>>,
    /// Hosts whose token does not open here.
    closed: Mutex<BTreeSet<HostId>>,
}

impl Control {
    /// Tries every secret of the store, remembers what is wrong and says so in the log
    /// when that is news. Hosts whose token does not open are marked.
    ///
    /// # Errors
    /// The store fails.
    pub async fn check_keys(&self) -> Result<(), StoreError> {
        let report = self.inner.store.key_report().await?;
        *self.closed_hosts() = report.hosts.iter().cloned().collect();
        let found = trouble(&report, self.inner.store.vault().has_key());
        let mut known = self.lock();
        if *known == found {
            return Ok(());
        }
        match &found {
            Some(trouble) => tracing::error!("{}", trouble.text),
            None => tracing::info!("all stored secrets open again"),
        }
        *known = found;
        Ok(())
    }

    /// What was wrong with the keys at the last look.
    #[must_use]
    pub fn key_trouble(&self) -> Option<KeyTrouble> {
        self.lock().clone()
    }

    /// [`Control::check_keys`], if the last look found something.
    pub(crate) async fn check_keys_again(&self) {
        if self.key_trouble().is_some()
            && let Err(e) = self.check_keys().await
        {
            tracing::warn!(error = %chain(&e), "cannot check the stored secrets");
        }
    }

    /// A host whose token does not open here is one that this replica cannot reach,
    /// whatever the check of another replica says.
    pub(crate) fn with_key_trouble(&self, mut host: Host) -> Host {
        if self.closed_hosts().contains(&host.id) {
            let error = chain(&LookupError::Undecryptable(host.id.clone()));
            host.agent = Some(watch::check(self.inner.store.now(), Err(error)));
        }
        host
    }

    fn closed_hosts(&self) -> std::sync::MutexGuard<'_, BTreeSet<HostId>> {
        let hosts = &self.inner.keys.closed;
        hosts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<KeyTrouble>> {
        let keys = &self.inner.keys.trouble;
        // The value is whole after every operation, so a panicked holder left it usable.
        keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn trouble(report: &KeyReport, has_key: bool) -> Option<KeyTrouble> {
    if report.unreadable.is_empty() {
        return None;
    }
    let count = report.unreadable.len();
    let mut names: Vec<&str> = report.unreadable.iter().map(String::as_str).collect();
    names.truncate(NAMED);
    let names = names.join(", ");
    let more = if count > NAMED { ", …" } else { "" };
    let text = if has_key {
        format!(
            "TOKEN_ENCRYPTION_KEY does not open the secrets of {names}{more} ({count}): set it, or \
             TOKEN_ENCRYPTION_KEY_PREVIOUS, to the key they were stored under"
        )
    } else {
        format!(
            "TOKEN_ENCRYPTION_KEY is not set, and the secrets of {names}{more} ({count}) are \
             encrypted: set it to the key they were stored under"
        )
    };
    Some(KeyTrouble {
        text,
        is_total: report.current == 0 && report.outdated == 0,
    })
}
