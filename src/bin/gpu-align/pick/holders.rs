//! Who of this user's processes holds which card on this node: a list in a
//! folder that nobody else can write to, changed under a lock.
//!
//! Invariant: a card is held by a process that lives, known by its pid and its
//! start time; entries of the dead are passed over and dropped.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use rustix::fs::{FlockOperation, flock};

use crate::inside::env::parent_and_start;

pub struct Holders {
    root: PathBuf,
    folder: PathBuf,
    node: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    uuid: String,
    pid: u32,
    start: u64,
}

impl Holders {
    /// The folder `/tmp/gpu-align-<uid>`, made if it is not there; one that
    /// another user could have made or can write to is refused.
    pub fn of_this_user(root: &Path, node: &str) -> anyhow::Result<Holders> {
        let user = rustix::process::geteuid().as_raw();
        let folder = root.join(format!("tmp/gpu-align-{user}"));
        private_folder(&folder, user)?;
        let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
        let node = node.chars().map(plain).collect();
        Ok(Holders { root: root.into(), folder, node })
    }

    /// Lets `choose` pick among the UUIDs that nobody holds, by places in its
    /// own list, and writes down that `pid` holds them. One picker at a time.
    pub fn take<T: AsPicked, E>(
        &self,
        pid: u32,
        choose: impl FnOnce(&dyn Fn(&str) -> bool) -> Result<T, E>,
    ) -> anyhow::Result<Result<T, E>> {
        let _lock = self.lock()?;
        let mut entries = self.living();
        let held = |uuid: &str| entries.iter().any(|entry| entry.uuid == uuid);
        let picked = match choose(&held) {
            Ok(picked) => picked,
            Err(why) => return Ok(Err(why)),
        };
        let (_, start) = parent_and_start(&self.root, pid)
            .with_context(|| format!("process {pid} is not there to hold a card; give --holder"))?;
        entries.extend(picked.uuids().map(|uuid| Entry { uuid: uuid.to_owned(), pid, start }));
        self.write(&entries)?;
        Ok(Ok(picked))
    }

    /// What living processes hold, at this moment.
    pub fn held(&self) -> Vec<String> {
        self.living().into_iter().map(|entry| entry.uuid).collect()
    }

    /// The right to look at the cards, if no other waiting picker has it.
    pub fn turn(&self) -> anyhow::Result<Option<File>> {
        let path = self.folder.join(format!("{}.turn", self.node));
        let file = open(&path).with_context(|| cannot(&path))?;
        Ok(flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok().then_some(file))
    }

    fn lock(&self) -> anyhow::Result<File> {
        let path = self.folder.join(format!("{}.lock", self.node));
        let file = open(&path).with_context(|| cannot(&path))?;
        flock(&file, FlockOperation::LockExclusive).with_context(|| cannot(&path))?;
        Ok(file)
    }

    fn list(&self) -> PathBuf {
        self.folder.join(format!("{}.held", self.node))
    }

    /// The entries of processes that live.
    fn living(&self) -> Vec<Entry> {
        let text = fs::read_to_string(self.list()).unwrap_or_default();
        let entry = |line: &str| {
            let mut words = line.split(' ');
            let uuid = words.next()?.to_owned();
            let (pid, start) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
            Some(Entry { uuid, pid, start })
        };
        let lives = |entry: &Entry| {
            parent_and_start(&self.root, entry.pid).is_some_and(|(_, start)| start == entry.start)
        };
        text.lines().filter_map(entry).filter(lives).collect()
    }

    /// Whole, old or new, whenever the writer dies.
    fn write(&self, entries: &[Entry]) -> anyhow::Result<()> {
        let list = self.list();
        let new = list.with_extension("new");
        let text: String =
            entries.iter().map(|e| format!("{} {} {}\n", e.uuid, e.pid, e.start)).collect();
        let write = || {
            let mut file = open(&new)?;
            file.set_len(0)?;
            file.write_all(text.as_bytes())?;
            fs::rename(&new, &list)
        };
        write().with_context(|| cannot(&list))
    }
}

fn cannot(path: &Path) -> String {
    format!("{} cannot be written; look at the folder's owner and free space", path.display())
}

fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    options.custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC).open(path)
}

fn private_folder(folder: &Path, user: u32) -> anyhow::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(why) if why.kind() != io::ErrorKind::AlreadyExists => {
            return Err(why).with_context(|| cannot(folder));
        }
        _ => {}
    }
    let meta = fs::symlink_metadata(folder).with_context(|| cannot(folder))?;
    if !meta.is_dir() || meta.uid() != user || meta.mode() & 0o077 != 0 {
        bail!(
            "{} is not a folder of yours alone (mode 0700); someone else may have made it, remove \
             it or ask the admin",
            folder.display()
        );
    }
    Ok(())
}

/// The UUIDs of what was picked.
pub trait AsPicked {
    fn uuids(&self) -> impl Iterator<Item = &str>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    impl AsPicked for Vec<String> {
        fn uuids(&self) -> impl Iterator<Item = &str> {
            self.iter().map(String::as_str)
        }
    }

    fn root() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("tmp")).unwrap();
        root
    }

    fn process(root: &Path, pid: u32, start: u64) {
        process_in_state(root, pid, start, "S");
    }

    fn process_in_state(root: &Path, pid: u32, start: u64, state: &str) {
        let folder = root.join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        let fields = vec!["0"; 18].join(" ");
        let stat = format!("{pid} (a) b) {state} {fields} {start} 0\n");
        fs::write(folder.join("stat"), stat).unwrap();
    }

    fn take(holders: &Holders, pid: u32) -> String {
        let all = ["GPU-0", "GPU-1"];
        let choose = |held: &dyn Fn(&str) -> bool| {
            let free = all.iter().find(|uuid| !held(uuid)).ok_or("none".to_owned())?;
            Ok(vec![free.to_string()])
        };
        holders.take(pid, choose).unwrap().map_or_else(|why| why, |picked| picked[0].clone())
    }

    #[test]
    fn a_card_is_held_while_its_process_lives() {
        let root = root();
        let holders = Holders::of_this_user(root.path(), "n1").unwrap();
        process(root.path(), 10, 100);
        process(root.path(), 11, 100);
        assert_eq!(take(&holders, 10), "GPU-0");
        assert_eq!(take(&holders, 11), "GPU-1");
        assert_eq!(take(&holders, 11), "none");
        fs::remove_dir_all(root.path().join("proc/10")).unwrap();
        assert_eq!(take(&holders, 11), "GPU-0");
        // Ended, and not collected by its parent yet.
        process_in_state(root.path(), 11, 100, "Z");
        process(root.path(), 12, 100);
        assert_eq!(take(&holders, 12), "GPU-0");
        process(root.path(), 11, 100);
        fs::remove_dir_all(root.path().join("proc/12")).unwrap();
        assert_eq!(take(&holders, 11), "GPU-0");
        // Another process got the number of the first.
        process(root.path(), 11, 200);
        assert_eq!(take(&holders, 11), "GPU-0");
        assert!(holders.take(99, |_| Ok::<_, String>(vec!["GPU-1".to_owned()])).is_err());
    }

    #[test]
    fn a_folder_that_another_user_could_have_made_is_refused() {
        let user = rustix::process::geteuid().as_raw();
        let root = root();
        let folder = root.path().join(format!("tmp/gpu-align-{user}"));
        symlink("/tmp", &folder).unwrap();
        assert!(Holders::of_this_user(root.path(), "n1").is_err());
        fs::remove_file(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let why = Holders::of_this_user(root.path(), "n1").err().unwrap().to_string();
        assert!(why.contains("is not a folder of yours alone"), "{why}");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o700)).unwrap();
        let holders = Holders::of_this_user(root.path(), "../n1").unwrap();
        symlink("/etc/passwd", folder.join(".._n1.lock")).unwrap();
        assert!(holders.lock().is_err());
    }
}
