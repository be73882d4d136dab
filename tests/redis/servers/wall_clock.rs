//! A wall clock that can be set for one server.

use super::Launch;
use std::{fs, path::Path, process::Command};
use tempfile::TempDir;

pub(crate) struct WallClock {
    folder: TempDir,
}

impl WallClock {
    /// So many seconds from the real time.
    pub(crate) fn at(offset: i64) -> Self {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/redis/servers/wall_clock.c");
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O2", "-o"])
            .args([&folder.path().join("shim.so"), &source])
            .status();
        assert!(compiled.is_ok_and(|status| status.success()), "cc: see CONTRIBUTING.md");
        let clock = Self { folder };
        clock.set(offset);
        clock
    }

    pub(crate) fn set(&self, offset: i64) {
        // All at once: the shim must not read half a number.
        let new = self.folder.path().join("new");
        fs::write(&new, offset.to_string()).unwrap();
        fs::rename(new, self.folder.path().join("offset")).unwrap();
    }

    pub(crate) fn of(&self, launch: Launch) -> Launch {
        launch
            .environment("LD_PRELOAD", self.folder.path().join("shim.so"))
            .environment("WALL_CLOCK", self.folder.path().join("offset"))
    }
}
