//! Who else is on the cards: from NVML's list and /proc.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use gpu_align::device::clip;
use gpu_align::node::child;
use serde::Serialize;

use crate::inside::screen::size;
use crate::inside::usage::{Holder, Usage};

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Running {
    pub pid: u32,
    /// `None` where the process is not in this PID namespace.
    pub user: Option<String>,
    pub program: Option<String>,
    /// Whether it is this user's own.
    pub own: bool,
    pub pci: String,
    /// Bytes.
    pub memory: Option<u64>,
}

impl Running {
    /// What may name somebody.
    pub fn texts_mut(&mut self) -> impl Iterator<Item = &mut String> {
        let Running { pid: _, user, program, own: _, pci, memory: _ } = self;
        user.iter_mut().chain(program).chain([pci])
    }

    pub fn says(&self) -> String {
        let memory = self.memory.map(|bytes| format!(", {}", size(bytes))).unwrap_or_default();
        match (&self.program, &self.user) {
            (Some(program), Some(user)) => {
                format!("{} {program} (pid {}, user {user}{memory})", self.pci, self.pid)
            }
            _ => format!("{} pid {} of another PID namespace{memory}", self.pci, self.pid),
        }
    }
}

pub fn running(root: &Path, usage: &Usage) -> Vec<Running> {
    let mut found = Vec::new();
    let mut names: Vec<(u32, String)> = Vec::new();
    for card in &usage.cards {
        let slices = card.slices.iter().flat_map(|slice| &slice.processes);
        for Holder { pid, memory, .. } in card.processes.iter().flatten().chain(slices) {
            let owner = std::fs::metadata(root.join(format!("proc/{pid}"))).ok().map(|m| m.uid());
            let name = |uid: u32| {
                if let Some((_, name)) = names.iter().find(|(known, _)| *known == uid) {
                    return name.clone();
                }
                let name = user_name(uid);
                names.push((uid, name.clone()));
                name
            };
            found.push(Running {
                pid: *pid,
                own: owner == Some(rustix::process::getuid().as_raw()),
                user: owner.map(name),
                program: std::fs::read_to_string(root.join(format!("proc/{pid}/comm")))
                    .ok()
                    .map(|comm| clip(comm.trim())),
                pci: card.pci.to_string(),
                memory: *memory,
            });
        }
    }
    found.dedup_by_key(|process| (process.pid, process.pci.clone()));
    found
}

/// By `id`, which asks whatever directory the site uses.
pub fn user_name(uid: u32) -> String {
    const PATIENCE: Duration = Duration::from_secs(2);
    let arguments = ["-nu", &uid.to_string()];
    let asked = child::run(Path::new("/usr/bin/id"), &arguments, PATIENCE, 256);
    let name = asked.ok().filter(|output| output.code == 0);
    let name = name.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    name.filter(|name| !name.is_empty()).unwrap_or_else(|| uid.to_string())
}
