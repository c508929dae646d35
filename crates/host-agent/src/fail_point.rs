//! Places where this crate's tests make the agent die, as `kill -9` does it: before and after
//! whatever it changes on the host. Outside of tests nothing of it is there.

/// Dies here if it is this place's turn.
#[cfg(not(test))]
#[inline]
pub(crate) fn place(_name: &'static str) {}

#[cfg(test)]
pub(crate) use armed::{arm, place};

#[cfg(test)]
mod armed {
    use std::sync::atomic::{AtomicU64, Ordering};

    use rustix::process::{Signal, getpid, kill_process};

    /// Places left until the one to die at; 0 is none.
    static LEFT: AtomicU64 = AtomicU64::new(0);

    /// The process is to die at the place of this number from now on.
    pub(crate) fn arm(at: u64) {
        LEFT.store(at, Ordering::SeqCst);
    }

    pub(crate) fn place(name: &'static str) {
        let one_less = |left: u64| left.checked_sub(1);
        if LEFT.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) != Ok(1) {
            return;
        }
        eprintln!("dying at {name}");
        kill_process(getpid(), Signal::KILL).unwrap();
        loop {
            std::thread::park();
        }
    }
}
