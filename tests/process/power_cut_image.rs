//! Builds what a disk could hold after a power cut, from the log that `powercut.c` keeps of a
//! process's file operations.
//!
//! The model is the one POSIX allows and file systems really show: what was written to a file
//! before its last successful sync is there; of what came later any part may be there, in any
//! order, in sectors. A file's name lives apart from its contents: it can be lost on its own, and
//! a removed file can come back.

pub(crate) mod random;
mod record;
mod tree;

use random::Random;
use record::{Record, bad, number, to_path};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fmt, fs, io};
pub(crate) use tree::{copy_dir, differences};
use tree::{is_shm, read_tree};

/// What becomes of the operations that no sync covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lose {
    /// They are all lost. A synced file keeps its name, as on ext4, even if no one synced its
    /// directory.
    All,
    /// As `All`, but by the letter of POSIX: a name is kept only if its directory was synced.
    AllByTheLetter,
    /// A seeded choice of them survives, out of order, and torn at sector boundaries.
    Some,
    /// They all survive. This is no power cut: the image equals the directory as the process
    /// left it, if the log is complete. See [`differences`].
    Nothing,
}

/// What went into an image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// Writes that a sync covers.
    pub(crate) durable: u64,
    /// Unsynced writes that survived whole.
    pub(crate) kept: u64,
    /// Unsynced writes that left nothing, or only zeros.
    pub(crate) lost: u64,
    /// Unsynced writes of which a part survived.
    pub(crate) torn: u64,
    /// Successful syncs of files.
    pub(crate) syncs: u64,
    /// Successful syncs of directories.
    pub(crate) dir_syncs: u64,
    /// Unsynced creations, removals and renames that were undone.
    pub(crate) names_lost: u64,
    /// Did the log end within a record?
    pub(crate) log_torn: bool,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} writes durable, {} kept, {} lost, {} torn; {} names lost; {} file syncs, {} directory syncs{}",
            self.durable,
            self.kept,
            self.lost,
            self.torn,
            self.names_lost,
            self.syncs,
            self.dir_syncs,
            if self.log_torn { "; log torn" } else { "" }
        )
    }
}

/// Writes to `out_dir`, which must be empty or absent, what a disk could hold had the power gone
/// at the end of `log`. `base` is a copy of the watched directory from before the process started;
/// without it the directory was empty.
pub(crate) fn crash_image(
    log: &Path, base: Option<&Path>, out_dir: &Path, seed: u64, lose: Lose,
) -> io::Result<Report> {
    crash_image_at(log, u64::MAX, base, out_dir, seed, lose)
}

/// As [`crash_image`], had the power gone when the log was `cut` bytes long. What was acknowledged
/// while the log was at most that long must be in the image, so one run of a process gives as many
/// power cuts as its log has bytes.
pub(crate) fn crash_image_at(
    log: &Path, cut: u64, base: Option<&Path>, out_dir: &Path, seed: u64, lose: Lose,
) -> io::Result<Report> {
    let mut bytes = fs::read(log)?;
    bytes.truncate(usize::try_from(cut).unwrap_or(usize::MAX));
    let mut disk = Disk::default();
    if let Some(base) = base {
        disk.load(base)?;
    }
    let mut report = Report::default();
    disk.replay(&bytes, &mut report)?;

    let mut random = Random(seed);
    // Some file systems lose almost nothing, others almost all; a fixed chance would rarely show
    // either, nor the interesting cases of a single operation lost or kept.
    let keep_percent = [5, 25, 50, 75, 95][random.below(5) as usize];
    let names = disk.surviving_names(lose, keep_percent, &mut random, &mut report);

    fs::create_dir_all(out_dir)?;
    if fs::read_dir(out_dir)?.next().is_some() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} is not empty", out_dir.display())));
    }
    // Every file is built, also those whose name is gone, so that the counts are of all writes.
    let contents: Vec<Vec<u8>> =
        disk.files.iter().map(|file| file.surviving(&bytes, lose, keep_percent, &mut random, &mut report)).collect();
    for (path, file) in names {
        let target = out_dir.join(path);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(target, &contents[file])?;
    }
    Ok(report)
}

const SECTOR: u64 = 512;

/// A change of a file's contents; data is a range of the log.
enum Change {
    Write { at: u64, data: Range<usize> },
    Resize(u64),
    Extend(u64),
    Zero { at: u64, len: u64 },
}

#[derive(Default)]
struct File {
    base: Vec<u8>,
    changes: Vec<Change>,
    /// How many of the changes the last sync covers.
    synced: usize,
}

enum NameChange {
    Create { path: PathBuf },
    Remove { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf },
}

struct NameRecord {
    file: usize,
    change: NameChange,
    file_synced: bool,
    dir_synced: bool,
}

/// A watched directory's history. Files are numbered, because a name may stand for several files
/// in turn.
#[derive(Default)]
struct Disk {
    files: Vec<File>,
    base_names: BTreeMap<PathBuf, usize>,
    name_records: Vec<NameRecord>,
    /// Those of `name_records` whose directory was not synced since.
    unsynced_names: Vec<usize>,
}

impl Disk {
    fn load(&mut self, base: &Path) -> io::Result<()> {
        for (path, content) in read_tree(base)? {
            self.base_names.insert(path, self.files.len());
            self.files.push(File { base: content, ..File::default() });
        }
        Ok(())
    }

    fn add_name_record(&mut self, file: usize, change: NameChange) {
        self.unsynced_names.push(self.name_records.len());
        self.name_records.push(NameRecord { file, change, file_synced: false, dir_synced: false });
    }

    fn replay(&mut self, log: &[u8], report: &mut Report) -> io::Result<()> {
        let mut names = self.base_names.clone();
        // Inode numbers are reused, so what one stands for changes with each open.
        let mut by_inode: HashMap<u64, usize> = HashMap::new();
        let mut at = 0;
        let mut loaded = false;
        while at < log.len() {
            let Some(record) = Record::parse(log, at)? else {
                report.log_torn = true;
                break;
            };
            at = record.payload.end;
            let payload = &log[record.payload.clone()];
            let known = || {
                by_inode
                    .get(&record.inode)
                    .copied()
                    .ok_or_else(|| bad(format!("record {} of a file never opened", record.op)))
            };
            match record.op {
                0 => loaded = true,
                1 => {
                    let path = to_path(payload)?;
                    let created = record.offset == 1;
                    let file = match names.get(&path) {
                        Some(&file) if !created => file,
                        // Not in the base and not seen to be created: then it was created by a
                        // call that the shim does not see, and is no more durable for that.
                        _ => {
                            let file = self.files.len();
                            self.files.push(File::default());
                            names.insert(path.clone(), file);
                            self.add_name_record(file, NameChange::Create { path });
                            file
                        }
                    };
                    by_inode.insert(record.inode, file);
                }
                2 => {
                    let at = record.offset;
                    let data = record.payload.clone();
                    self.files[known()?].changes.push(Change::Write { at, data });
                }
                3 => self.files[known()?].changes.push(Change::Resize(record.offset)),
                4 => self.files[known()?].changes.push(Change::Extend(record.offset)),
                5 => {
                    let (at, len) = (record.offset, number(payload, 0)?);
                    self.files[known()?].changes.push(Change::Zero { at, len });
                }
                6 => {
                    let file = known()?;
                    report.syncs += 1;
                    self.files[file].synced = self.files[file].changes.len();
                    for &index in &self.unsynced_names {
                        let name = &mut self.name_records[index];
                        // A removal is a matter of the directory alone.
                        if name.file == file && !matches!(name.change, NameChange::Remove { .. }) {
                            name.file_synced = true;
                        }
                    }
                }
                7 => {
                    report.dir_syncs += 1;
                    let dir = to_path(payload)?;
                    let records = &mut self.name_records;
                    self.unsynced_names.retain(|&index| {
                        let name = &mut records[index];
                        let path = match &name.change {
                            NameChange::Create { path } | NameChange::Remove { path } => path,
                            NameChange::Rename { to, .. } => to,
                        };
                        name.dir_synced = path.parent() == Some(dir.as_path());
                        !name.dir_synced
                    });
                }
                8 => {
                    report.syncs += 1;
                    for file in &mut self.files {
                        file.synced = file.changes.len();
                    }
                    for index in self.unsynced_names.drain(..) {
                        self.name_records[index].dir_synced = true;
                    }
                }
                9 => {
                    let path = to_path(payload)?;
                    if let Some(file) = names.remove(&path) {
                        self.add_name_record(file, NameChange::Remove { path });
                    }
                }
                10 => {
                    let split = payload.iter().position(|&byte| byte == 0);
                    let split = split.ok_or_else(|| bad("rename record without a NUL".into()))?;
                    let from = to_path(&payload[..split])?;
                    let to = to_path(&payload[split + 1..])?;
                    let file =
                        names.remove(&from).ok_or_else(|| bad(format!("rename of unknown {}", from.display())))?;
                    names.insert(to.clone(), file);
                    self.add_name_record(file, NameChange::Rename { from, to });
                }
                11 => {
                    let what = String::from_utf8_lossy(payload);
                    return Err(bad(format!("the process did what no log can tell: {what}")));
                }
                other => return Err(bad(format!("unknown operation {other}"))),
            }
        }
        if !loaded {
            // Without this check a binary that ignores LD_PRELOAD (a static one) would pass.
            return Err(bad("the log does not begin: was the shim loaded?".into()));
        }
        Ok(())
    }

    fn surviving_names(
        &self, lose: Lose, keep_percent: u64, random: &mut Random, report: &mut Report,
    ) -> BTreeMap<PathBuf, usize> {
        let mut names = self.base_names.clone();
        for record in &self.name_records {
            let durable = record.dir_synced || (record.file_synced && lose != Lose::AllByTheLetter);
            let survives = durable
                || match lose {
                    Lose::All | Lose::AllByTheLetter => false,
                    Lose::Some => random.below(100) < keep_percent,
                    Lose::Nothing => true,
                };
            if !survives {
                report.names_lost += 1;
                continue;
            }
            match &record.change {
                NameChange::Create { path } => {
                    names.insert(path.clone(), record.file);
                }
                NameChange::Remove { path } => {
                    // Only the file that it removed: if that one never got here, what stands
                    // under the name is another.
                    if names.get(path) == Some(&record.file) {
                        names.remove(path);
                    }
                }
                NameChange::Rename { from, to } => {
                    if names.get(from) == Some(&record.file) {
                        names.remove(from);
                    }
                    names.insert(to.clone(), record.file);
                }
            }
        }
        names.retain(|path, _| !is_shm(path));
        names
    }
}

impl File {
    fn surviving(
        &self, log: &[u8], lose: Lose, keep_percent: u64, random: &mut Random, report: &mut Report,
    ) -> Vec<u8> {
        let mut content = self.base.clone();
        for (index, change) in self.changes.iter().enumerate() {
            let durable = index < self.synced;
            let survives = durable
                || match lose {
                    Lose::All | Lose::AllByTheLetter => false,
                    Lose::Some => random.below(100) < keep_percent,
                    Lose::Nothing => true,
                };
            match change {
                Change::Write { at, data } => {
                    let data = &log[data.clone()];
                    if durable {
                        report.durable += 1;
                        overwrite(&mut content, *at, data);
                    } else if !survives {
                        report.lost += 1;
                        // The size may reach the disk without the data: then zeros are read.
                        let end = *at as usize + data.len();
                        if lose == Lose::Some && end > content.len() && random.below(8) == 0 {
                            content.resize(end, 0);
                        }
                    } else if let Some(part) = (lose == Lose::Some && random.below(4) == 0)
                        .then(|| torn_part(*at, data.len() as u64, random))
                        .flatten()
                    {
                        report.torn += 1;
                        let at = *at + part.start as u64;
                        overwrite(&mut content, at, &data[part]);
                    } else {
                        report.kept += 1;
                        overwrite(&mut content, *at, data);
                    }
                }
                Change::Resize(size) if survives => content.resize(*size as usize, 0),
                Change::Extend(size) if survives => {
                    let size = content.len().max(*size as usize);
                    content.resize(size, 0);
                }
                Change::Zero { at, len } if survives => {
                    let end = content.len().min((*at + *len) as usize);
                    let start = end.min(*at as usize);
                    content[start..end].fill(0);
                }
                Change::Resize(_) | Change::Extend(_) | Change::Zero { .. } => {}
            }
        }
        content
    }
}

fn overwrite(content: &mut Vec<u8>, at: u64, data: &[u8]) {
    let start = at as usize;
    let end = start + data.len();
    if content.len() < end {
        content.resize(end, 0);
    }
    content[start..end].copy_from_slice(data);
}

/// The part of a write that survives when it is cut at a sector boundary of the file: its
/// beginning or, as drives reorder, its end. None if it lies within one sector, which a disk
/// writes whole.
fn torn_part(at: u64, len: u64, random: &mut Random) -> Option<Range<usize>> {
    let first = at / SECTOR + 1;
    let last = (at + len).saturating_sub(1) / SECTOR;
    if len == 0 || first > last {
        return None;
    }
    let cut = (first + random.below(last - first + 1)) * SECTOR - at;
    Some(if random.below(2) == 0 { 0..cut as usize } else { cut as usize..len as usize })
}

#[cfg(test)]
mod tests;
