//! The one place that reads environment variables which no flag declares.

use crate::domain::near_miss;

const PREFIX: &str = "REDRIVE_";
/// What Kubernetes sets by itself in every container beside a service named `redrive`.
const OF_KUBERNETES: [&str; 2] = ["REDRIVE_PORT", "REDRIVE_SERVICE_"];

#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// The names that begin with `REDRIVE_`.
    pub names: Vec<String>,
    /// `RUST_LOG`, unless empty.
    pub rust_log: Option<String>,
}

impl Environment {
    pub fn read() -> Self {
        let mut names: Vec<String> = std::env::vars_os()
            .filter_map(|(name, _)| name.into_string().ok())
            .filter(|name| name.starts_with(PREFIX))
            .collect();
        names.sort();
        #[expect(clippy::disallowed_methods, reason = "settings are read here")]
        let rust_log = std::env::var("RUST_LOG").ok().filter(|value| !value.is_empty());
        Self { names, rust_log }
    }

    /// A warning for each variable that nothing reads: it is probably a typing error.
    pub fn warnings(&self, known: &[&str]) -> Vec<String> {
        // All begin alike: only the rest tells near from far.
        let suffixes: Vec<&str> = known.iter().copied().map(after_prefix).collect();
        self.names
            .iter()
            .filter(|name| !known.contains(&name.as_str()))
            .filter(|name| !OF_KUBERNETES.iter().any(|prefix| name.starts_with(prefix)))
            .map(|name| match near_miss(after_prefix(name), &suffixes) {
                Some(meant) => {
                    format!("unknown environment variable {name}; did you mean {PREFIX}{meant}?")
                }
                None => format!("unknown environment variable {name}; known: {}", known.join(", ")),
            })
            .collect()
    }
}

fn after_prefix(name: &str) -> &str {
    name.strip_prefix(PREFIX).unwrap_or(name)
}
