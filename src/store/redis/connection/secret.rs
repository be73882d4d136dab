//! Users and passwords, which are never printed.

use std::{fmt, fs, path::PathBuf};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Credentials {
    pub user: Option<String>,
    pub password: Option<Secret>,
}

#[derive(Clone, PartialEq, Eq)]
pub enum Secret {
    Text(String),
    /// Read for every connection, so that it can be changed while the server runs.
    File(PathBuf),
}

impl Secret {
    pub(super) fn read(&self) -> Result<String, String> {
        match self {
            Self::Text(text) => Ok(text.clone()),
            Self::File(path) => fs::read_to_string(path)
                .map(|text| text.trim_end_matches(['\r', '\n']).to_owned())
                .map_err(|error| format!("cannot read the password of Redis in {}: {error}", path.display())),
        }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(_) => f.write_str("(secret)"),
            Self::File(path) => write!(f, "(in {})", path.display()),
        }
    }
}
