//! Refusing guests on huge pages that the host does not have.

use std::path::Path;

use thiserror::Error;

/// Where the kernel counts its 2 MiB pages.
const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const PAGE_MIB: u32 = 2;

/// The pool is too small. Pages are reserved by the operator, never by the agent: they are taken
/// from everything else on the host.
#[derive(Debug, Error, PartialEq, Eq)]
#[error(
    "the VM needs {needed} pages of 2 MiB and the host has {free} free ones; \
     reserve more with: sysctl vm.nr_hugepages={wanted}"
)]
pub struct HugePagesError {
    needed: u32,
    free: u32,
    wanted: u32,
}

/// Checks that the host has free huge pages for a guest of `memory_mb`.
///
/// # Errors
/// It has not.
pub fn ensure_free(memory_mb: u32) -> Result<(), HugePagesError> {
    ensure_free_in(Path::new(POOL), memory_mb)
}

fn ensure_free_in(pool: &Path, memory_mb: u32) -> Result<(), HugePagesError> {
    let count = |file: &str| {
        // A kernel without huge pages has no such file, and none of them.
        let text = std::fs::read_to_string(pool.join(file)).unwrap_or_default();
        text.trim().parse::<u32>().unwrap_or(0)
    };
    let (free, total) = (count("free_hugepages"), count("nr_hugepages"));
    let needed = memory_mb.div_ceil(PAGE_MIB);
    if needed <= free {
        return Ok(());
    }
    Err(HugePagesError {
        needed,
        free,
        wanted: total.saturating_add(needed - free),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_decides_and_the_refusal_says_how_to_enlarge_it() {
        let pool = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| std::fs::write(pool.path().join(file), text).unwrap();
        write("nr_hugepages", "300\n");
        write("free_hugepages", "256\n");
        assert_eq!(ensure_free_in(pool.path(), 512), Ok(()));
        let refusal = ensure_free_in(pool.path(), 515).unwrap_err().to_string();
        assert!(refusal.starts_with("the VM needs 258 pages"), "{refusal}");
        assert!(refusal.ends_with("sysctl vm.nr_hugepages=302"), "{refusal}");
        let nowhere = ensure_free_in(Path::new("/nowhere"), 128).unwrap_err();
        assert!(nowhere.to_string().contains("0 free ones"), "{nowhere}");
    }
}
