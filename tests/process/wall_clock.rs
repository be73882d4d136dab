//! A wall clock that can be set for one server.

use crate::server::Launch;
use std::fs;
use std::path::{Path, PathBuf};

/// The wall clock of one server. Other clocks go on as they are.
pub(crate) struct WallClock {
    file: PathBuf,
}

impl WallClock {
    pub(crate) fn in_folder(folder: &Path) -> Self {
        let clock = Self { file: folder.join("offset") };
        clock.set(0);
        clock
    }

    /// So many seconds from the real time.
    pub(crate) fn set(&self, offset: i64) {
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{offset:+}\n")).unwrap();
        fs::rename(new, &self.file).unwrap();
    }

    pub(crate) fn of(&self, launch: Launch) -> Launch {
        launch
            .env("LD_PRELOAD", libfaketime())
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    }
}

fn libfaketime() -> PathBuf {
    let folders = fs::read_dir("/usr/lib").expect("/usr/lib").flatten();
    folders
        .map(|folder| folder.path().join("faketime/libfaketimeMT.so.1"))
        .find(|path| path.exists())
        .expect("libfaketime is not there: script/test installs it")
}
