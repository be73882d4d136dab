//! A directory's files, read, copied and compared.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Names the files in which two directories differ, except for -shm files. With an image made by
/// [`super::Lose::Nothing`] and the directory that a process left by exiting (not by being killed, since
/// then the record of a last call may be missing), any difference is a file operation that the
/// shim does not see.
pub(crate) fn differences(left: &Path, right: &Path) -> io::Result<Vec<PathBuf>> {
    let mut a = read_tree(left)?;
    let b = read_tree(right)?;
    let mut found = Vec::new();
    for (path, content) in b {
        if a.remove(&path).as_ref() != Some(&content) {
            found.push(path);
        }
    }
    found.extend(a.into_keys());
    Ok(found)
}

/// Copies a directory's files, except for -shm files: for `base`, before the process starts.
pub(crate) fn copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for (path, content) in read_tree(from)? {
        let target = to.join(path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(target, content)?;
    }
    Ok(())
}

/// SQLite's shared memory index: it is mapped, so its changes are not in the log, and recovery
/// never trusts one that outlived a power cut.
pub(super) fn is_shm(path: &Path) -> bool {
    path.as_os_str().as_encoded_bytes().ends_with(b"-shm")
}

pub(super) fn read_tree(root: &Path) -> io::Result<BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = BTreeMap::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(root.join(&dir))? {
            let entry = entry?;
            let path = dir.join(entry.file_name());
            let kind = entry.file_type()?;
            if kind.is_dir() {
                pending.push(path);
            } else if kind.is_file() && !is_shm(&path) {
                found.insert(path, fs::read(entry.path())?);
            }
        }
    }
    Ok(found)
}
