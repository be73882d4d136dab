//! SIGHUP: the file is read again, and the settings of queues are replaced as a whole or not at all.

use crate::{
    broker::Broker,
    config::{Config, ConfigError, Overrides},
    domain::settings::Settings,
    store::Store,
};
use std::sync::Arc;
use tokio::signal::unix::Signal;

/// Reloads at every signal, for ever.
pub(super) async fn at_every<S: Store>(
    mut hangup: Signal,
    broker: Arc<Broker<S>>,
    running: Config,
    overrides: Overrides,
) {
    // The file of the start is the file of every reload: when it is gone, that is an error and not a reason to forget
    // what it said.
    let config = overrides.config.or_else(|| running.source.clone());
    let overrides = Overrides { config, ..overrides };
    while hangup.recv().await.is_some() {
        let plan = plan(&running, Config::load(&overrides));
        for problem in &plan.problems {
            tracing::error!("{problem}");
        }
        for warning in &plan.warnings {
            tracing::warn!("{warning}");
        }
        match plan.settings {
            Some(settings) => {
                broker.replace_settings(settings);
                tracing::info!("configuration reloaded");
            }
            None => tracing::error!("configuration not reloaded: everything stays as it was"),
        }
    }
}

#[derive(Debug, Default)]
struct Plan {
    settings: Option<Arc<Settings>>,
    problems: Vec<String>,
    warnings: Vec<String>,
}

fn plan(running: &Config, loaded: Result<Config, ConfigError>) -> Plan {
    match loaded {
        Err(error) => Plan { problems: error.lines(), ..Plan::default() },
        Ok(new) => {
            let needs_restart = |key| format!("[server] {key} has changed: this needs a restart");
            let warnings = new.restart_keys(running).into_iter().map(needs_restart);
            let warnings = warnings.chain(new.warnings.clone()).collect();
            Plan { settings: Some(new.settings), warnings, ..Plan::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn load(text: &str) -> Result<Config, ConfigError> {
        Config::resolve(&Overrides::default(), Some((Path::new("redrive.toml"), text)))
    }

    #[test]
    fn a_good_file_replaces_the_settings_of_queues() {
        let plan = plan(&load("").unwrap(), load("[queues.q]\npolicy = \"patient\""));
        assert_eq!(plan.settings.unwrap().queues.len(), 1);
        assert_eq!((plan.problems, plan.warnings), (vec![], vec![]));
    }

    #[test]
    fn a_bad_file_changes_nothing_and_says_why() {
        let text = "[queues.good]\n[queues.bad]\npolicy = \"x\"\nlease_duration = \"1\"";
        let plan = plan(&load("").unwrap(), load(text));
        assert!(plan.settings.is_none());
        assert_eq!(plan.problems.len(), 2);
        assert_eq!(plan.problems[0], "redrive.toml:3:10: unknown preset \"x\"");
    }

    #[test]
    fn what_needs_a_restart_is_named_and_the_rest_is_taken() {
        let text = "[server]\nlisten = \"127.0.0.1:1\"\n[queues.q]";
        let plan = plan(&load("").unwrap(), load(text));
        assert_eq!(plan.warnings, ["[server] listen has changed: this needs a restart"]);
        assert!(plan.settings.is_some());
    }
}
