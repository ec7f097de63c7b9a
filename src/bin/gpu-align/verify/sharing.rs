//! Which tasks' processes hold which card: NVML's process list, and what each
//! of those processes was started with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::inside::env::{Env, command};
use crate::inside::usage::{CardUse, Holder};

/// The task that a process belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOf {
    pub job: Option<String>,
    pub step: Option<String>,
    /// The task's rank in its step.
    pub rank: Option<String>,
    /// The UUID of the device that gpu-align gave it as its own.
    pub own: Option<String>,
    pub command: String,
}

impl TaskOf {
    /// `None` where the process is another user's or in another PID namespace.
    pub fn read(root: &Path, pid: u32) -> Option<TaskOf> {
        let env = Env::of_process(root, pid).ok()?;
        Some(TaskOf {
            job: env.owned("SLURM_JOB_ID"),
            step: env.owned("SLURM_STEP_ID"),
            rank: env.owned("SLURM_PROCID"),
            own: env.owned("GPU_ALIGN_CARD"),
            command: command(root, pid).unwrap_or_default(),
        })
    }
}

/// What is known of the processes on one device.
#[derive(Debug, Default)]
pub struct OnDevice {
    /// Of this step, by rank: the processes, with what they are.
    pub ranks: BTreeMap<String, Vec<(u32, String)>>,
    /// Those of them that gpu-align gave this device as their own.
    pub owners: BTreeSet<String>,
    /// Processes that cannot be told.
    pub unknown: Vec<u32>,
}

/// The devices of a card that processes hold, by UUID: the card, or its slices.
pub fn held(card: &CardUse) -> Vec<(String, Vec<Holder>)> {
    if card.mig == Some(true) {
        let of = |slice: &crate::inside::usage::SliceUse| {
            (slice.uuid.to_string(), slice.processes.clone())
        };
        return card.slices.iter().map(of).collect();
    }
    let name = card.uuid.as_ref().map_or(card.pci.to_string(), |uuid| uuid.to_string());
    vec![(name, card.processes.clone().unwrap_or_default())]
}

impl OnDevice {
    /// Whether its tasks share the device because that was asked for: gpu-align
    /// gave it to each of them, or no device of the step can hold fewer than
    /// `fair` tasks, of which it has no more.
    pub fn is_meant(&self, fair: usize) -> bool {
        self.ranks.len() <= fair || self.ranks.len() == self.owners.len()
    }
}

/// Sorts the processes of the device `name`, a UUID, by the tasks of the step
/// `job`.`step`.
pub fn on_device(
    name: &str,
    holders: &[Holder],
    job: &str,
    step: &str,
    task_of: &dyn Fn(u32) -> Option<TaskOf>,
) -> OnDevice {
    let mut found = OnDevice::default();
    let mut pids: Vec<u32> = holders.iter().map(|holder| holder.pid).collect();
    pids.sort_unstable();
    pids.dedup();
    for pid in pids {
        match task_of(pid) {
            None => found.unknown.push(pid),
            Some(TaskOf { job: Some(j), step: Some(s), rank: Some(rank), own, command })
                if j == job && s == step =>
            {
                if own.as_deref() == Some(name) {
                    found.owners.insert(rank.clone());
                }
                found.ranks.entry(rank).or_default().push((pid, command));
            }
            Some(_) => {}
        }
    }
    found
}
