//! A process's environment, as it is and as it was when its program started.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use gpu_align::slurm::files;

use super::scene::VISIBLE;

/// Variables by name; what is not UTF-8 is kept readable, not exact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Env(pub BTreeMap<String, String>);

impl Env {
    pub fn own() -> Env {
        let readable = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        Env(std::env::vars_os().map(|(name, value)| (readable(name), readable(value))).collect())
    }

    /// What process `pid` was started with, from `/proc/<pid>/environ`.
    pub fn of_process(root: &Path, pid: u32) -> std::io::Result<Env> {
        let bytes = std::fs::read(root.join(format!("proc/{pid}/environ")))?;
        let pair = |entry: &[u8]| {
            let text = String::from_utf8_lossy(entry).into_owned();
            text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()))
        };
        Ok(Env(bytes.split(|&byte| byte == 0).filter_map(pair).collect()))
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn owned(&self, name: &str) -> Option<String> {
        self.0.get(name).cloned()
    }

    pub fn number(&self, name: &str) -> Option<usize> {
        self.get(name)?.trim().parse().ok()
    }

    /// Where a file of Slurm's configuration is looked for, in that order.
    pub fn places_of(&self, name: &str) -> Vec<PathBuf> {
        files::candidates_of(self.get("SLURM_CONF").map(Path::new), name)
    }

    /// Whether CUDA_VISIBLE_DEVICES names devices by index, not by UUID.
    pub fn lists_indices(&self) -> bool {
        let list = self.get(VISIBLE).unwrap_or_default();
        !list.is_empty() && !list.starts_with("GPU-") && !list.starts_with("MIG-")
    }

    /// The environment without some of its variables.
    pub fn without(&self, names: &[&str]) -> Env {
        let mut env = self.clone();
        env.0.retain(|name, _| !names.contains(&name.as_str()));
        env
    }
}

/// The parent of a process, and its start time in clock ticks, which with the
/// pid names it for good. `None` for one that has ended, collected or not.
pub fn parent_and_start(root: &Path, pid: u32) -> Option<(u32, u64)> {
    let fields = stat(root, pid)?;
    if matches!(fields[0].as_str(), "Z" | "X") {
        return None;
    }
    Some((fields[1].parse().ok()?, fields.get(19)?.parse().ok()?))
}

/// The fields of `/proc/<pid>/stat` from the process's state on; at least three.
fn stat(root: &Path, pid: u32) -> Option<Vec<String>> {
    let stat = std::fs::read_to_string(root.join(format!("proc/{pid}/stat"))).ok()?;
    // The program's name is in parentheses and may hold anything.
    let fields: Vec<String> = stat.rsplit_once(") ")?.1.split(' ').map(str::to_owned).collect();
    (fields.len() > 2).then_some(fields)
}

/// The shell that process `pid`, or the copy of a shell that it is, belongs to:
/// bash runs `$(command 2>file)` in a copy of itself that ends with the command.
/// A copy has its shell's program, words and process group.
pub fn shell_of(root: &Path, pid: u32) -> u32 {
    let same = |one: u32, other: u32| {
        let words = |pid| std::fs::read(root.join(format!("proc/{pid}/cmdline"))).ok();
        let program = |pid| std::fs::read_link(root.join(format!("proc/{pid}/exe"))).ok();
        let group = |pid| stat(root, pid).map(|fields| fields[2].clone());
        words(one).is_some()
            && words(one) == words(other)
            && program(one) == program(other)
            && group(one) == group(other)
    };
    let mut shell = pid;
    while let Some((parent, _)) = parent_and_start(root, shell) {
        if parent <= 1 || !same(shell, parent) {
            break;
        }
        shell = parent;
    }
    shell
}

/// What a process is, short: its command line's first words.
pub fn command(root: &Path, pid: u32) -> Option<String> {
    let bytes = std::fs::read(root.join(format!("proc/{pid}/cmdline"))).ok()?;
    let words: Vec<String> = bytes
        .split(|&byte| byte == 0)
        .filter(|word| !word.is_empty())
        .take(3)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    (!words.is_empty()).then(|| gpu_align::device::clip(&words.join(" ")))
}
