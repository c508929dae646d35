//! The copy report (`--show-copy`) and what is said even without it.

use crate::walk::{MAX_COPY_BYTES, Walked, WalkedEntry};

impl Walked {
    /// The report, lines with their newlines.
    #[must_use]
    pub fn report(&self) -> String {
        if self.entries.is_empty() {
            return "no copy block\n".to_owned();
        }
        let mut out = String::new();
        let (mut files, mut bytes) = (0, 0);
        for entry in &self.entries {
            files += entry.files;
            bytes += entry.bytes;
            out += &format!("copy {} -> {}\n", entry.from, entry.to);
            out += &format!("  {}{}\n", summary(entry.files, entry.bytes), skips(entry));
        }
        let limit = size(MAX_COPY_BYTES);
        out += &format!("total: {} (limit {limit})\n", summary(files, bytes));
        out
    }

    /// One note for each entry of which a built-in rule dropped something: authors look for a missing
    /// `build/` in their own files first.
    #[must_use]
    pub fn default_skip_notes(&self) -> Vec<String> {
        self.entries
            .iter()
            .filter_map(|entry| {
                let first = entry.first_default_skip.as_ref()?;
                let more = match entry.skipped_by_default {
                    0 | 1 => String::new(),
                    n => format!(" and {} more", n - 1),
                };
                let name = first.rsplit('/').next().unwrap_or(first);
                Some(format!(
                    "copy {}: the built-in ignore rules left out {first}{more}; \
                     a line !{name} in .fuseignore takes it along",
                    entry.from
                ))
            })
            .collect()
    }
}

fn summary(files: u64, bytes: u64) -> String {
    let noun = if files == 1 { "file" } else { "files" };
    format!("{files} {noun}, {}", size(bytes))
}

fn skips(entry: &WalkedEntry) -> String {
    match (entry.skipped_by_author, entry.skipped_by_default) {
        (0, 0) => String::new(),
        (a, 0) => format!(" ({a} skipped by .fuseignore)"),
        (0, b) => format!(" ({b} skipped by the defaults)"),
        (a, b) => format!(" ({a} skipped by .fuseignore, {b} by the defaults)"),
    }
}

/// Bytes as people read them, base 1024, one decimal from a KB on.
fn size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    // The whole block is capped at half a MB, but sizes are counted before the cap is hit.
    let (tenths, unit) = if bytes < 1024 * 1024 {
        ((bytes * 10 + 512) / 1024, "KB")
    } else {
        ((bytes * 10 + 524_288) / 1_048_576, "MB")
    };
    format!("{}.{} {unit}", tenths / 10, tenths % 10)
}
