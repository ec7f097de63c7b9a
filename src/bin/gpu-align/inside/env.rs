//! A process's environment, as it is and as it was when its program started.

use std::collections::BTreeMap;
use std::path::Path;

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

    /// The environment without some of its variables.
    pub fn without(&self, names: &[&str]) -> Env {
        let mut env = self.clone();
        env.0.retain(|name, _| !names.contains(&name.as_str()));
        env
    }
}

/// The parent of a process, and its start time in clock ticks, which with the
/// pid names it for good.
pub fn parent_and_start(root: &Path, pid: u32) -> Option<(u32, u64)> {
    let stat = std::fs::read_to_string(root.join(format!("proc/{pid}/stat"))).ok()?;
    // The program's name is in parentheses and may hold anything.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    Some((fields.get(1)?.parse().ok()?, fields.get(19)?.parse().ok()?))
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
