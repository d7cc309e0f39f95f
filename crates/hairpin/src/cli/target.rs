//! Which instance a command is about.

use crate::config;
use crate::control::ControlClient;
use anyhow::{Result, bail};
use clap::Args;
use std::path::{Path, PathBuf};

/// The default directory of control sockets.
const DIRECTORY: &str = "/run/hairpin";

/// The instance.
#[derive(Args, Debug, Default)]
pub(super) struct InstanceTarget {
    /// The instance's name; "default" unless given.
    #[arg(short, long, value_name = "NAME", conflicts_with_all = ["config", "socket"])]
    pub(super) instance: Option<String>,
    /// The instance that this configuration file describes.
    #[arg(short, long, value_name = "FILE", conflicts_with = "socket")]
    pub(super) config: Option<PathBuf>,
    /// The instance behind this control socket.
    #[arg(long, value_name = "PATH")]
    pub(super) socket: Option<PathBuf>,
}

impl InstanceTarget {
    /// Its control socket.
    pub(super) fn socket(&self) -> Result<PathBuf> {
        match (&self.socket, &self.config) {
            (Some(socket), _) => Ok(socket.clone()),
            (None, Some(file)) => Ok(config::load(file)?.settings.socket()),
            (None, None) => {
                Ok(config::socket_path(Path::new(DIRECTORY), self.instance.as_deref().unwrap_or("default")))
            }
        }
    }

    /// The configuration file by which it is named.
    pub(super) fn file(&self) -> Option<&Path> {
        self.config.as_deref()
    }

    /// Its control socket; that of the instance `file` describes, if the command line names none and `file` is right.
    pub(super) fn socket_or_of(&self, file: &Path) -> Result<PathBuf> {
        let named = self.instance.is_some() || self.config.is_some() || self.socket.is_some();
        match config::load(file) {
            Ok(config) if !named => Ok(config.settings.socket()),
            _ => self.socket(),
        }
    }

    /// A connection to it.
    pub(super) fn connect(&self) -> Result<ControlClient> {
        connect(&self.socket()?)
    }
}

/// A connection to the instance behind `socket`.
///
/// # Errors
/// No instance answers there, or the socket may not be used.
pub(crate) fn connect(socket: &Path) -> Result<ControlClient> {
    match ControlClient::connect(socket)? {
        Some(client) => Ok(client),
        None => bail!(
            "no instance answers at {}; start one with `hairpin run`, or name the right one with --instance, --config \
             or --socket",
            socket.display()
        ),
    }
}
