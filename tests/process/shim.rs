//! Small C libraries that stand between the program and the system.

use crate::server::scratch;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tempfile::TempDir;

/// A library, compiled when it is first needed.
pub(crate) struct Shim {
    source: &'static str,
    library: OnceLock<(TempDir, PathBuf)>,
}

impl Shim {
    /// `source`: a file beside this one.
    pub(crate) const fn new(source: &'static str) -> Self {
        Self { source, library: OnceLock::new() }
    }

    /// What to preload.
    pub(crate) fn library(&self) -> &Path {
        let (_, library) = self.library.get_or_init(|| {
            let directory = scratch();
            let library = directory.path().join("shim.so");
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/process").join(self.source);
            let status = Command::new("cc")
                .args(["-shared", "-fPIC", "-O2", "-o"])
                .args([&library, &source])
                .args(["-ldl", "-lpthread"])
                .status();
            assert!(
                status.is_ok_and(|status| status.success()),
                "cc cannot compile {}: see CONTRIBUTING.md for what the tests need",
                source.display()
            );
            (directory, library)
        });
        library
    }
}
