//! The health probe of the workload: attempts at an interval, folded into a verdict that
//! is written to a file and shown by `/health`. It reports and never acts.

mod attempt;
mod config;
mod verdict;

use std::path::{Path, PathBuf};

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

pub(super) use config::{Config, ConfigError};
pub(super) use verdict::Verdict;

/// Reads the configuration; `None` when there is no file, so that nothing is probed.
///
/// # Errors
/// The file is there and is not usable.
pub(super) fn load(path: &Path) -> Result<Option<Config>, ConfigError> {
    Config::load(path)
}

/// Probes until `stop`, and publishes every verdict.
pub(super) async fn run(
    config: Config,
    file: PathBuf,
    verdicts: watch::Sender<Option<Verdict>>,
    stop: CancellationToken,
) {
    let started = Instant::now();
    let mut verdict = Verdict::starting(Timestamp::now());
    publish(&verdict, &file, &verdicts);
    let mut ticks = interval(config.interval);
    // An attempt that took long is followed by the next one in its turn, not by a burst.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        if stop.run_until_cancelled(ticks.tick()).await.is_none() {
            return;
        }
        let Some(outcome) = stop.run_until_cancelled(attempt::attempt(&config)).await else {
            return;
        };
        let is_shielded = started.elapsed() < config.start_period;
        verdict.fold(outcome, is_shielded, config.retries, Timestamp::now());
        publish(&verdict, &file, &verdicts);
    }
}

fn publish(verdict: &Verdict, file: &Path, verdicts: &watch::Sender<Option<Verdict>>) {
    if verdicts.borrow().as_ref() == Some(verdict) {
        return;
    }
    if let Err(error) = verdict.write(file) {
        tracing::warn!(%error, file = %file.display(), "cannot write the health verdict");
    }
    verdicts.send_replace(Some(verdict.clone()));
}

#[cfg(test)]
mod tests;
