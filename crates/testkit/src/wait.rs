//! Waiting for something that another process does, with a deadline and a reason when it does not happen.
//!
//! Used only where there is no event to wait for: the state of other processes, as an outsider sees it.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Pause between two looks.
const PAUSE: Duration = Duration::from_millis(50);

/// An error that ends the waiting: what is waited for cannot come any more.
#[derive(Debug)]
pub struct GiveUp(pub String);

impl std::fmt::Display for GiveUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for GiveUp {}

/// Calls `probe` until it answers `Ok(value)`.
///
/// # Errors
/// When `deadline` has passed or `probe` answers [`GiveUp`]: names `what` and the last reason that `probe` gave.
pub async fn until<T, F, Fut>(what: &str, deadline: Duration, mut probe: F) -> Result<T>
where
    F: FnMut() -> Fut,
    Fut: Future<Output = Result<T>>,
{
    let start = Instant::now();
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(last) if last.is::<GiveUp>() => return Err(last.context(what.to_owned())),
            Err(last) if start.elapsed() >= deadline => {
                bail!("{what}: not within {deadline:?}; last: {last:#}")
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
