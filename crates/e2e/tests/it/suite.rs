//! What the tests share: the runtime, one stack for all that can share it, results, teardown.

use std::future::Future;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use fuse_testkit::{Slot, Stack, StackOptions, missing_for_guests, report_skip};
use libtest_mimic::{Completion, Failed, Trial};
use tokio::runtime::Runtime;
use tokio::sync::OnceCell;
use tokio::task::JoinSet;

/// Longest run of one test: a hang must not cost the whole suite.
const TEST_DEADLINE: Duration = Duration::from_secs(240);
/// The same for those in whose guests a lot is started, which takes emulated ones minutes.
const SLOW_TEST_DEADLINE: Duration = Duration::from_secs(900);

/// Handed to every test.
#[derive(Clone)]
pub(crate) struct Suite {
    inner: Arc<Inner>,
}

struct Inner {
    runtime: Runtime,
    stack: OnceCell<Stack>,
    missing: Option<String>,
    /// Watches for Ctrl-C and SIGTERM.
    _interrupt: JoinSet<()>,
}

impl Suite {
    /// Prepares the runtime and removes what an aborted run has left.
    pub(crate) fn new() -> Result<Self> {
        let missing = missing_for_guests();
        if missing.is_none() {
            Slot::sweep()?;
        }
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?;
        let mut interrupt = JoinSet::new();
        interrupt.spawn_on(clean_up_on_interrupt(), runtime.handle());
        Ok(Self {
            inner: Arc::new(Inner {
                runtime,
                stack: OnceCell::new(),
                missing,
                _interrupt: interrupt,
            }),
        })
    }

    /// A test, run on the shared runtime with a deadline; skipped, aloud, where guests cannot run.
    pub(crate) fn trial<F, Fut>(&self, name: &'static str, test: F) -> Trial
    where
        F: FnOnce(Suite) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>>,
    {
        self.trial_within(TEST_DEADLINE, name, test)
    }

    /// One that takes longer than others.
    pub(crate) fn slow_trial<F, Fut>(&self, name: &'static str, test: F) -> Trial
    where
        F: FnOnce(Suite) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>>,
    {
        self.trial_within(SLOW_TEST_DEADLINE, name, test)
    }

    fn trial_within<F, Fut>(&self, limit: Duration, name: &'static str, test: F) -> Trial
    where
        F: FnOnce(Suite) -> Fut + Send + 'static,
        Fut: Future<Output = Result<()>>,
    {
        let suite = self.clone();
        Trial::ignorable_test(name, move || {
            if let Some(reason) = &suite.inner.missing {
                report_skip(name, reason);
                return Ok(Completion::ignored_with(reason));
            }
            let runtime = &suite.inner.runtime;
            let result =
                runtime.block_on(async { tokio::time::timeout(limit, test(suite.clone())).await });
            match result {
                Ok(Ok(())) => Ok(Completion::Completed),
                Ok(Err(error)) => Err(Failed::from(report(&error))),
                Err(_) => Err(Failed::from(format!("did not end within {limit:?}"))),
            }
        })
    }

    /// The stack that tests share when they do not break it; started by the first to ask.
    pub(crate) async fn stack(&self) -> Result<&Stack> {
        self.inner
            .stack
            .get_or_try_init(|| Stack::start(StackOptions::default()))
            .await
    }

    /// Takes the shared stack down; says so and returns false when anything was left.
    pub(crate) fn teardown(self) -> bool {
        let Some(mut inner) = Arc::into_inner(self.inner) else {
            say("a test still holds the suite");
            return false;
        };
        let Some(stack) = inner.stack.take() else {
            return true;
        };
        keep_logs(&stack, "shared");
        match inner.runtime.block_on(stack.teardown()) {
            Ok(()) => true,
            Err(error) => {
                say(&format!(
                    "the shared stack did not leave the machine as it was: {error:#}"
                ));
                false
            }
        }
    }
}

/// Guests run in sessions of their own, so Ctrl-C and SIGTERM do not reach them: they are passed on here.
#[expect(
    clippy::exit,
    reason = "an interrupted run ends at once, in the middle of any test"
)]
async fn clean_up_on_interrupt() {
    use tokio::signal::unix::{SignalKind, signal};
    if let Ok(mut terminate) = signal(SignalKind::terminate()) {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => {}
            _ = terminate.recv() => {}
        }
        if let Err(error) = Slot::purge_held() {
            say(&format!(
                "interrupted, and not all could be removed: {error:#}"
            ));
        }
        std::process::exit(130);
    }
}

/// Runs `test` on a stack of its own and takes that down, whatever came of the test.
pub(crate) async fn with_stack(
    name: &str,
    options: StackOptions,
    test: impl AsyncFnOnce(&Stack) -> Result<()>,
) -> Result<()> {
    let stack = Stack::start(options).await?;
    finish(name, stack, test).await
}

/// The second half of [`with_stack`], for tests that start the stack themselves.
pub(crate) async fn finish(
    name: &str,
    stack: Stack,
    test: impl AsyncFnOnce(&Stack) -> Result<()>,
) -> Result<()> {
    let result = test(&stack).await;
    keep_logs(&stack, name);
    let clean = stack.teardown().await;
    result.and(clean)
}

/// Copies the logs to where CI can collect them.
fn keep_logs(stack: &Stack, name: &str) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("e2e-logs")
        .join(name);
    if let Err(error) = stack.save_logs(&target) {
        say(&format!("logs of {name} not kept: {error:#}"));
    }
}

/// The chain of causes on one line and, with `RUST_BACKTRACE=1`, the lines of the suite that it came through.
fn report(error: &anyhow::Error) -> String {
    let trace = error.backtrace().to_string();
    let ours = trace
        .lines()
        .map(str::trim)
        .filter(|l| l.contains("tests/it/") && !l.contains("suite.rs"));
    std::iter::once(format!("{error:#}"))
        .chain(ours.map(str::to_owned))
        .collect::<Vec<_>>()
        .join("\n")
}

/// A line on stderr.
pub(crate) fn say(text: &str) {
    // Nothing sensible can be done when stderr is gone.
    let _gone = writeln!(std::io::stderr(), "{text}");
}

/// A path in the repository.
pub(crate) fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

/// A fresh directory of the test `name` with a `Fusefile` of the given text; below the stack's own directory.
pub(crate) fn project(stack: &Stack, name: &str, fusefile: &str) -> Result<PathBuf> {
    let dir = stack.dir().join("projects").join(name);
    std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
    std::fs::write(dir.join("Fusefile"), fusefile)?;
    Ok(dir)
}
