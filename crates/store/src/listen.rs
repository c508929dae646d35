//! Hears of events that other replicas commit (PostgreSQL only).
//!
//! `NOTIFY` comes with the commit that it belongs to. What is lost while the
//! connection is down is made up for by waking everybody once it is back, and
//! by a slow tick: watchers read the events table, a wake carries nothing.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgListener, PgPoolOptions};
use tokio::time::timeout;

use crate::core::Core;

/// The channel that the clock statement notifies.
const CHANNEL: &str = "fuse_events";
/// Longest silence before watchers look anyway.
const SAFETY_NET: Duration = Duration::from_secs(5);
/// Pause before another try at a server that does not answer.
const RECONNECT: Duration = Duration::from_secs(1);

/// Listens until the store is closed.
pub(crate) async fn run(core: Arc<Core>, options: PgConnectOptions) {
    let stop = core.stop.clone();
    let listening = async {
        loop {
            if let Err(error) = listen(&core, &options).await {
                tracing::warn!(%error, "not hearing of other replicas' events; looking every second");
            }
            core.wake_watchers();
            tokio::time::sleep(RECONNECT).await;
        }
    };
    tokio::select! {
        () = listening => {}
        () = stop.cancelled() => {}
    }
}

async fn listen(core: &Core, options: &PgConnectOptions) -> Result<(), sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen(CHANNEL).await?;
    loop {
        match timeout(SAFETY_NET, listener.try_recv()).await {
            // A notification, or a connection that was lost and made anew.
            Ok(received) => drop(received?),
            Err(_elapsed) => {}
        }
        core.wake_watchers();
    }
}
