//! SIGHUP: the file is read again, and the settings of queues are replaced as a whole or not at all.

use crate::config::{Config, Overrides, changes};
use crate::queue::Host;
use crate::service::Service;
use std::sync::Arc;
use tokio::signal::unix::Signal;

/// Reloads at every signal, for ever.
pub(super) async fn at_every<H: Host>(
    mut hangup: Signal, service: Arc<Service<H>>, running: Config, overrides: Overrides,
) {
    // The file of the start is the file of every reload: when it is gone, that is an error and not a reason to forget
    // what it said.
    let config = overrides.config.or_else(|| running.source.clone());
    let overrides = Overrides { config, ..overrides };
    while hangup.recv().await.is_some() {
        match Config::load(&overrides) {
            Ok(new) => {
                for key in new.restart_keys(&running) {
                    tracing::warn!("[server] {key} has changed: this needs a restart");
                }
                if new.bounds != running.bounds {
                    tracing::warn!("[limits] has changed: this needs a restart");
                }
                for warning in &new.warnings {
                    tracing::warn!("{warning}");
                }
                let changes = changes(&service.queues().settings(), &new.settings);
                if let Err(error) = service.queues().replace_settings(new.settings).await {
                    tracing::warn!(%error, "queues that are new in the configuration are made with the next call");
                }
                for change in &changes {
                    tracing::info!("{change}");
                }
                match changes.len() {
                    0 => tracing::info!("configuration reloaded: nothing has changed"),
                    1 => tracing::info!("configuration reloaded: 1 change"),
                    count => tracing::info!("configuration reloaded: {count} changes"),
                }
            }
            Err(error) => {
                for problem in error.lines() {
                    tracing::error!("{problem}");
                }
                tracing::error!("configuration not reloaded: everything stays as it was");
            }
        }
    }
}
