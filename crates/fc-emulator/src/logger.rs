//! The emulator's own log, in the form of Firecracker's.
//!
//! ```text
//! 2026-11-30T09:15:00.000000Z [vm-1:INFO:src/main.rs:10] message field=value
//! ```
//!
//! It goes to standard output, where the guest's console goes too, until it is
//! given a file. Level, file and form can be changed while it runs.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use thiserror::Error;
use tracing::level_filters::LevelFilter;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, MakeWriter};
use tracing_subscriber::layer::{Context, Filter};
use tracing_subscriber::prelude::*;
use tracing_subscriber::registry::LookupSpan;

use crate::config::{LogLevel, LoggerConfig};

/// The log file cannot be had.
#[derive(Debug, Error)]
#[error("Failed to open the log file {}", path.display())]
pub(crate) struct LoggerError {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// Handle to the process's log.
#[derive(Clone, Debug)]
pub(crate) struct Logger(Arc<Mutex<Settings>>);

#[derive(Debug)]
struct Settings {
    instance: String,
    level: LevelFilter,
    show_level: bool,
    show_origin: bool,
    module: Option<String>,
    file: Option<Arc<File>>,
}

impl Logger {
    /// Makes this the log of the process. `instance` stands in every line.
    pub(crate) fn install(instance: &str) -> Self {
        let logger = Self(Arc::new(Mutex::new(Settings {
            instance: instance.to_owned(),
            level: LevelFilter::INFO,
            show_level: false,
            show_origin: false,
            module: None,
            file: None,
        })));
        let layer = tracing_subscriber::fmt::layer()
            .with_ansi(false)
            .event_format(logger.clone())
            .with_writer(logger.clone())
            .with_filter(logger.clone());
        if tracing_subscriber::registry()
            .with(layer)
            .try_init()
            .is_err()
        {
            // Only a second installation fails, and then the first one logs.
            tracing::warn!("the log is installed already");
        }
        logger
    }

    /// Takes over what `config` names.
    ///
    /// # Errors
    /// The file cannot be opened; nothing is changed then.
    pub(crate) fn update(&self, config: &LoggerConfig) -> Result<(), LoggerError> {
        let file = config.log_path.as_ref().map(|path| {
            // A FIFO that nobody reads yet must not hold the VM up.
            let opened = OpenOptions::new()
                .read(true)
                .append(true)
                .create(true)
                .custom_flags(libc::O_NONBLOCK)
                .open(path);
            opened.map_err(|source| LoggerError {
                path: path.clone(),
                source,
            })
        });
        let file = file.transpose()?;
        self.with(|settings| {
            if let Some(file) = file {
                settings.file = Some(Arc::new(file));
            }
            if let Some(level) = config.level {
                settings.level = level.into();
            }
            settings.show_level = config.show_level.unwrap_or(settings.show_level);
            settings.show_origin = config.show_log_origin.unwrap_or(settings.show_origin);
            if config.module.is_some() {
                settings.module.clone_from(&config.module);
            }
        });
        Ok(())
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Settings) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> Self {
        match level {
            LogLevel::Off => Self::OFF,
            LogLevel::Error => Self::ERROR,
            LogLevel::Warning => Self::WARN,
            LogLevel::Info => Self::INFO,
            LogLevel::Debug => Self::DEBUG,
            LogLevel::Trace => Self::TRACE,
        }
    }
}

impl<S: Subscriber> Filter<S> for Logger {
    fn enabled(&self, metadata: &Metadata<'_>, _: &Context<'_, S>) -> bool {
        self.with(|settings| {
            let module = settings.module.as_deref().unwrap_or_default();
            *metadata.level() <= settings.level && metadata.target().starts_with(module)
        })
    }
}

impl<S, N> FormatEvent<S, N> for Logger
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        SystemTime.format_time(&mut writer)?;
        let metadata = event.metadata();
        let prefix = self.with(|settings| {
            let mut prefix = format!(" [{}", settings.instance);
            if settings.show_level {
                prefix.push_str(&format!(":{}", metadata.level()));
            }
            if let (true, Some(file), Some(line)) =
                (settings.show_origin, metadata.file(), metadata.line())
            {
                prefix.push_str(&format!(":{file}:{line}"));
            }
            prefix
        });
        write!(writer, "{prefix}] ")?;
        context
            .field_format()
            .format_fields(writer.by_ref(), event)?;
        writeln!(writer)
    }
}

impl<'a> MakeWriter<'a> for Logger {
    type Writer = Output;

    fn make_writer(&'a self) -> Output {
        Output(self.with(|settings| settings.file.clone()))
    }
}

/// Where one line goes.
#[derive(Debug)]
pub(crate) struct Output(Option<Arc<File>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &self.0 {
            Some(file) => (&**file).write(bytes),
            None => io::stdout().write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &self.0 {
            Some(file) => (&**file).flush(),
            None => io::stdout().flush(),
        }
    }
}
