//! Owner of the agent's nftables table.
//!
//! One task holds what the table should be and makes every change, in order and each as one
//! transaction. Whatever goes wrong with a small change (the table was flushed, an element is
//! missing), the whole table is written anew from memory, so the kernel always converges to what
//! the agent knows. Callers: the registry, and the agent's maintenance task through
//! [`Firewall::verify`].

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use thiserror::Error;
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use super::plan::Index;
use super::ruleset::{self, Binding, Bindings};

/// Bound of one run of the nft program.
const NFT_LIMIT: Duration = Duration::from_secs(10);
/// Changes that may wait.
const QUEUE: usize = 64;

/// A failed change of the packet rules.
#[derive(Debug, Error)]
pub enum FirewallError {
    /// The program did not start.
    #[error("cannot run {}", .program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The program ran too long.
    #[error("nft did not answer within {} s", NFT_LIMIT.as_secs())]
    Timeout,
    /// The kernel or the program refused.
    #[error("nft refused: {message}")]
    Refused {
        /// First lines of what it said.
        message: String,
    },
    /// The owner is gone: the agent shuts down.
    #[error("the agent is shutting down")]
    Closed,
}

/// What [`Firewall::verify`] found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The kernel has what it should have.
    Intact,
    /// It had not; the table was written anew.
    Repaired,
}

enum Request {
    Set {
        index: Index,
        binding: Option<Binding>,
        reply: oneshot::Sender<Result<(), FirewallError>>,
    },
    Verify {
        reply: oneshot::Sender<Result<Verdict, FirewallError>>,
    },
}

/// Handle to the owner of the table.
#[derive(Debug)]
pub struct Firewall {
    requests: mpsc::Sender<Request>,
    /// Runs the owner; ends with this value. The table stays: guests go on.
    _owner: JoinSet<()>,
}

impl Firewall {
    /// Writes the whole table for `bindings` and takes charge of it.
    ///
    /// # Errors
    /// The table cannot be written.
    pub async fn start(
        nft: PathBuf,
        table: &str,
        subnet: &str,
        bindings: impl IntoIterator<Item = Binding>,
    ) -> Result<Self, FirewallError> {
        let desired = bindings.into_iter().map(|b| (b.slot.index, b)).collect();
        let owner = Owner {
            nft,
            table: table.to_owned(),
            subnet: subnet.to_owned(),
            desired,
        };
        owner.replace().await?;
        let (requests, inbox) = mpsc::channel(QUEUE);
        let mut tasks = JoinSet::new();
        tasks.spawn(owner.run(inbox));
        Ok(Self {
            requests,
            _owner: tasks,
        })
    }

    /// Makes `binding` what the rules say of its VM.
    ///
    /// # Errors
    /// The change was refused; the rules are as before.
    pub async fn set(&self, binding: Binding) -> Result<(), FirewallError> {
        let index = binding.slot.index;
        self.ask(|reply| Request::Set {
            index,
            binding: Some(binding),
            reply,
        })
        .await
    }

    /// Forgets a VM. Succeeds when it is not known.
    ///
    /// # Errors
    /// The change was refused.
    pub async fn clear(&self, index: Index) -> Result<(), FirewallError> {
        self.ask(|reply| Request::Set {
            index,
            binding: None,
            reply,
        })
        .await
    }

    /// Compares the kernel's table with what it should be, and repairs it.
    ///
    /// # Errors
    /// The table cannot be read or written.
    pub async fn verify(&self) -> Result<Verdict, FirewallError> {
        self.ask(|reply| Request::Verify { reply }).await
    }

    async fn ask<T>(
        &self,
        request: impl FnOnce(oneshot::Sender<Result<T, FirewallError>>) -> Request,
    ) -> Result<T, FirewallError> {
        let (reply, answer) = oneshot::channel();
        self.requests
            .send(request(reply))
            .await
            .map_err(|_| FirewallError::Closed)?;
        answer.await.map_err(|_| FirewallError::Closed)?
    }
}

struct Owner {
    nft: PathBuf,
    table: String,
    subnet: String,
    desired: Bindings,
}

impl Owner {
    async fn run(mut self, mut inbox: mpsc::Receiver<Request>) {
        while let Some(request) = inbox.recv().await {
            // A caller that went away does not undo what it asked for.
            match request {
                Request::Set {
                    index,
                    binding,
                    reply,
                } => {
                    let _gone = reply.send(self.set(index, binding).await);
                }
                Request::Verify { reply } => {
                    let _gone = reply.send(self.verify().await);
                }
            }
        }
    }

    async fn set(&mut self, index: Index, binding: Option<Binding>) -> Result<(), FirewallError> {
        let old = self.desired.remove(&index);
        let script = ruleset::change(&self.table, old.as_ref(), binding.as_ref());
        if let Some(binding) = binding {
            self.desired.insert(index, binding);
        }
        if script.is_empty() {
            return Ok(());
        }
        let Err(first) = self.apply(&script).await else {
            return Ok(());
        };
        tracing::warn!(error = %first, "packet rules are not what they were; writing them anew");
        let Err(error) = self.replace().await else {
            return Ok(());
        };
        match old {
            Some(old) => self.desired.insert(index, old),
            None => self.desired.remove(&index),
        };
        Err(error)
    }

    async fn verify(&self) -> Result<Verdict, FirewallError> {
        let listing = run(&self.nft, &["-j", "list", "table", "inet", &self.table], "").await;
        // A table that is gone is an error of nft's, and a reason to write it.
        let listing = listing
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok());
        if listing.is_some_and(|listing| ruleset::matches(&listing, &self.desired)) {
            return Ok(Verdict::Intact);
        }
        self.replace().await.map(|()| Verdict::Repaired)
    }

    async fn replace(&self) -> Result<(), FirewallError> {
        self.apply(&ruleset::replace(&self.table, &self.subnet, &self.desired))
            .await
    }

    async fn apply(&self, script: &str) -> Result<(), FirewallError> {
        run(&self.nft, &["-f", "-"], script).await.map(drop)
    }
}

/// Chains of other tables that drop forwarded packets unless told otherwise, as container engines
/// and host firewalls set up. What they drop, no rule of the agent's can let through.
///
/// # Errors
/// The rule set cannot be read.
pub async fn dropping_chains(nft: &Path, table: &str) -> Result<Vec<String>, FirewallError> {
    let listing = run(nft, &["-j", "list", "chains"], "").await?;
    let listing: serde_json::Value = serde_json::from_slice(&listing).unwrap_or_default();
    Ok(ruleset::dropping_chains(&listing, table))
}

/// Removes the table if there is one.
///
/// # Errors
/// It is there and cannot be removed.
pub async fn remove(nft: &Path, table: &str) -> Result<(), FirewallError> {
    // Adding first makes the removal succeed whether the table is there or not.
    let script = format!("add table inet {table}\ndelete table inet {table}\n");
    run(nft, &["-f", "-"], &script).await.map(drop)
}

async fn run(nft: &Path, args: &[&str], stdin: &str) -> Result<Vec<u8>, FirewallError> {
    let start = |source| FirewallError::Start {
        program: nft.to_owned(),
        source,
    };
    let mut child = Command::new(nft)
        .args(args)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .map_err(start)?;
    let finish = async {
        if let Some(mut pipe) = child.stdin.take() {
            // A refusal may close the pipe early; the exit status tells the reason.
            let _closed = pipe.write_all(stdin.as_bytes()).await;
        }
        child.wait_with_output().await.map_err(start)
    };
    let done = tokio::time::timeout(NFT_LIMIT, finish)
        .await
        .map_err(|_| FirewallError::Timeout)??;
    if done.status.success() {
        return Ok(done.stdout);
    }
    let message = String::from_utf8_lossy(&done.stderr);
    let message = message.lines().take(3).collect::<Vec<_>>().join("; ");
    Err(FirewallError::Refused { message })
}
