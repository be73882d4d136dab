use super::{record::MAGIC, *};

struct Case {
    dir: PathBuf,
    log: Vec<u8>,
}

impl Case {
    fn new(name: &str) -> Case {
        let unique = format!("power_cut_image-{name}-{}", std::process::id());
        let dir = std::env::temp_dir().join(unique);
        let _ = fs::remove_dir_all(&dir);
        fs::create_dir_all(&dir).expect("create a directory");
        let mut case = Case { dir, log: Vec::new() };
        case.add(0, 0, 0, b"");
        case
    }

    fn add(&mut self, op: u32, inode: u64, offset: u64, payload: &[u8]) {
        self.log.extend(MAGIC.to_le_bytes());
        self.log.extend(op.to_le_bytes());
        self.log.extend(inode.to_le_bytes());
        self.log.extend(offset.to_le_bytes());
        self.log.extend((payload.len() as u64).to_le_bytes());
        self.log.extend(payload);
    }

    fn image(&self, seed: u64, lose: Lose) -> io::Result<(Report, BTreeMap<PathBuf, Vec<u8>>)> {
        let (log, out) = (self.dir.join("log"), self.dir.join("out"));
        let base = self.dir.join("base");
        fs::write(&log, &self.log)?;
        let report = crash_image(&log, base.exists().then_some(&*base), &out, seed, lose)?;
        let tree = read_tree(&out)?;
        fs::remove_dir_all(out)?;
        Ok((report, tree))
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn tree(files: &[(&str, &[u8])]) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = files.iter();
    files.map(|(p, c)| (PathBuf::from(p), c.to_vec())).collect()
}

#[test]
fn what_was_synced_is_there_and_nothing_else() -> io::Result<()> {
    let mut case = Case::new("synced");
    case.add(1, 7, 1, b"a");
    case.add(2, 7, 0, b"kept");
    case.add(6, 7, 0, b"");
    case.add(2, 7, 2, b"later");
    case.add(1, 8, 1, b"b");
    case.add(1, 9, 1, b"a-shm");
    let (report, files) = case.image(1, Lose::All)?;
    assert_eq!(files, tree(&[("a", b"kept")]));
    assert_eq!((report.durable, report.lost, report.names_lost), (1, 1, 2));
    let (_, files) = case.image(1, Lose::AllByTheLetter)?;
    assert_eq!(files, tree(&[]));
    let (_, files) = case.image(1, Lose::Nothing)?;
    assert_eq!(files, tree(&[("a", b"kelater"), ("b", b"")]));
    Ok(())
}

#[test]
fn a_removal_or_rename_holds_once_its_directory_is_synced() -> io::Result<()> {
    let mut case = Case::new("names");
    fs::create_dir_all(case.dir.join("base"))?;
    fs::write(case.dir.join("base/a"), b"1")?;
    fs::write(case.dir.join("base/b"), b"2")?;
    case.add(9, 7, 0, b"a");
    case.add(10, 8, 0, b"b\0c");
    let (_, files) = case.image(1, Lose::All)?;
    assert_eq!(files, tree(&[("a", b"1"), ("b", b"2")]));
    case.add(7, 1, 0, b"");
    // The inode and the name are used again, by a file that is not durable yet.
    case.add(1, 7, 1, b"a");
    case.add(2, 7, 0, b"new");
    let (_, files) = case.image(1, Lose::All)?;
    assert_eq!(files, tree(&[("c", b"2")]));
    Ok(())
}

#[test]
fn unsynced_writes_survive_in_sectors_as_the_seed_says() -> io::Result<()> {
    let mut case = Case::new("torn");
    case.add(1, 7, 1, b"a");
    case.add(3, 7, 8192, b"");
    case.add(6, 7, 0, b"");
    for page in 0..8 {
        case.add(2, 7, page * 1024 + 24, &[1; 1000]);
    }
    let (mut kept, mut lost, mut torn) = (0, 0, 0);
    for seed in 0..50 {
        let (report, files) = case.image(seed, Lose::Some)?;
        assert_eq!((report.clone(), files.clone()), case.image(seed, Lose::Some)?);
        assert_eq!(report.kept + report.lost + report.torn, 8);
        for sector in files[Path::new("a")].chunks(SECTOR as usize) {
            // The first 24 bytes of every other sector were never written.
            assert!(sector[24..].iter().all(|&byte| byte == sector[24]));
        }
        kept += report.kept;
        lost += report.lost;
        torn += report.torn;
    }
    assert!(kept > 50 && lost > 50 && torn > 10, "{kept} {lost} {torn}");
    Ok(())
}

#[test]
fn a_torn_last_record_is_left_out_and_a_damaged_log_refused() -> io::Result<()> {
    let mut case = Case::new("log");
    case.add(1, 7, 1, b"a");
    let whole = case.log.len();
    case.add(2, 7, 0, b"data");
    for len in whole + 1..case.log.len() {
        let mut torn = Case::new("log-torn");
        torn.log = case.log[..len].to_vec();
        let (report, files) = torn.image(1, Lose::Nothing)?;
        assert!(report.log_torn);
        assert_eq!(files, tree(&[("a", b"")]));
    }
    case.log[whole] ^= 1;
    assert!(case.image(1, Lose::Nothing).is_err());
    case.log.clear();
    assert!(case.image(1, Lose::Nothing).is_err());
    Ok(())
}
