//! Log lines of PID 1, written to the kernel's log.
//!
//! Not to the console: whoever is root in the guest can stop a terminal's
//! output, and PID 1 would stop with it. The kernel's log never blocks, is
//! readable with `dmesg`, and shows warnings on the console.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::sync::Arc;

use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Longest record that the kernel takes.
const MAX_RECORD: usize = 900;

/// Sends the log of this process to the kernel's, or drops it where there is none.
pub(crate) fn to_kernel() {
    // Without this the kernel drops all but a few of our lines.
    drop(std::fs::write("/proc/sys/kernel/printk_devkmsg", "on"));
    let Ok(file) = OpenOptions::new().write(true).open("/dev/kmsg") else {
        return;
    };
    tracing_subscriber::fmt()
        .with_max_level(Level::INFO)
        .with_ansi(false)
        .without_time()
        .with_level(false)
        .with_target(false)
        .with_writer(KernelLog(Arc::new(file)))
        .init();
}

struct KernelLog(Arc<File>);

impl<'a> MakeWriter<'a> for KernelLog {
    type Writer = Record;

    fn make_writer(&'a self) -> Record {
        Record {
            file: Arc::clone(&self.0),
            level: 6,
        }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Record {
        let level = match *meta.level() {
            Level::ERROR => 3,
            Level::WARN => 4,
            _ => 6,
        };
        Record {
            file: Arc::clone(&self.0),
            level,
        }
    }
}

/// One line; the formatter hands it over in one piece.
struct Record {
    file: Arc<File>,
    level: u8,
}

impl Write for Record {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let shown = &line[..line.len().min(MAX_RECORD)];
        let mut record = format!("<{}>[fused] ", self.level).into_bytes();
        record.extend_from_slice(shown);
        self.file.as_ref().write_all(&record)?;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
