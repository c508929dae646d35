//! Places where a process can be made to die, for the tests of recovery: before and after each
//! effect that an operation has on the store or on a host.
//!
//! In builds with debug assertions, which is what tests run, effects on environments and snapshots
//! whose id starts as `FUSE_DIE_FOR` says (a list with commas) are counted, and the process kills
//! itself at the place whose number is `FUSE_DIE_AT`. In a release nothing of it is there.

use std::future::Future;

/// Runs an effect on the environment or snapshot `id`.
#[cfg(not(debug_assertions))]
#[inline]
pub(crate) fn effect<F: Future>(_what: &'static str, _id: &str, effect: F) -> F {
    effect
}

/// Runs an effect on the environment or snapshot `id`, unless the process dies before or after it.
#[cfg(debug_assertions)]
pub(crate) async fn effect<F: Future>(what: &'static str, id: &str, effect: F) -> F::Output {
    armed::hit("before", what, id);
    let done = effect.await;
    armed::hit("after", what, id);
    done
}

#[cfg(debug_assertions)]
mod armed {
    use std::{
        process::{Command, id as own_pid},
        sync::{
            LazyLock,
            atomic::{AtomicU64, Ordering},
        },
    };

    /// Where to die, and at what.
    struct Plan {
        at: u64,
        prefixes: Vec<String>,
    }

    static PLAN: LazyLock<Option<Plan>> = LazyLock::new(|| {
        Some(Plan {
            at: std::env::var("FUSE_DIE_AT").ok()?.parse().ok()?,
            prefixes: std::env::var("FUSE_DIE_FOR")
                .ok()?
                .split(',')
                .map(str::to_owned)
                .collect(),
        })
    });
    static HITS: AtomicU64 = AtomicU64::new(0);

    pub(super) fn hit(when: &str, what: &str, id: &str) {
        let Some(plan) = &*PLAN else { return };
        let counts = plan.prefixes.iter().any(|prefix| id.starts_with(prefix));
        if !counts || HITS.fetch_add(1, Ordering::Relaxed) + 1 != plan.at {
            return;
        }
        tracing::error!(place = plan.at, "dying {when} {what}");
        // As `kill -9` does it: nothing of this process runs any more.
        let _status = Command::new("kill")
            .args(["-9", &own_pid().to_string()])
            .status();
        loop {
            std::thread::park();
        }
    }
}
