//! What every command is given: the streams, the configuration, the way to a client.

use fuse_client::{BaseUrl, Client, Options, Token};

use crate::VERSION;
use crate::args::GlobalArgs;
use crate::commands::context::Error as ContextError;
use crate::config::{Config, ConfigFile, Context};
use crate::error::Error;
use crate::io::Io;

/// The state of one invocation.
#[derive(Debug)]
pub(crate) struct App {
    /// The streams.
    pub(crate) io: Io,
    /// Where the configuration is kept.
    pub(crate) file: ConfigFile,
    /// What it held when the command started.
    pub(crate) config: Config,
    context: Option<String>,
}

impl App {
    /// Reads the configuration. A missing file is fine, a broken one is an error, for every command.
    pub(crate) fn load(global: &GlobalArgs) -> Result<Self, Error> {
        let file = ConfigFile::locate(global.config.as_deref())?;
        let config = file.load()?;
        Ok(Self {
            io: Io::new(global.output),
            file,
            config,
            context: global.context.clone(),
        })
    }

    /// The context of this call: `--context`, else the current one.
    pub(crate) fn context(&self) -> Result<&Context, ContextError> {
        let name = self
            .context
            .as_ref()
            .or(self.config.current_context.as_ref());
        let name = name.ok_or(ContextError::None)?;
        self.config
            .context(name)
            .ok_or_else(|| ContextError::Unknown { name: name.clone() })
    }

    /// The active host of the context in use.
    pub(crate) fn active_host(&self) -> Option<&str> {
        self.context().ok()?.active_host.as_deref()
    }

    /// A client of the context in use.
    pub(crate) fn client(&self) -> Result<Client, Error> {
        let context = self.context()?;
        let base_url =
            BaseUrl::parse(&context.base_url).map_err(|source| ContextError::BadUrl {
                name: context.name.clone(),
                source,
            })?;
        Ok(Client::new(options(base_url, context.token.clone()))?)
    }
}

/// How this program talks to an orchestrator.
pub(crate) fn options(base_url: BaseUrl, token: Option<Token>) -> Options {
    Options::new(base_url, token, format!("fuse-cli/{VERSION}"))
}
