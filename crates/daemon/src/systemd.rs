//! What the service manager is told: ready, alive, stopping. Where none asked, nothing happens.

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;

/// The program serves; units ordered after this one may start.
pub fn ready() {
    tell(&[NotifyState::Ready]);
}

/// The end was asked for.
pub fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Says at half the interval that was asked for that tasks still get their turn. Never ends, so it belongs beside
/// what does; a process that hangs stops saying it and is restarted.
pub async fn keep_alive() {
    let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) else {
        return std::future::pending().await;
    };
    let mut tick = tokio::time::interval(limit / 2);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        tell(&[NotifyState::Watchdog]);
    }
}

fn tell(state: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(state) {
        tracing::debug!(%error, "the service manager could not be told");
    }
}
