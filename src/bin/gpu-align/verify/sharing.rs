//! Whether two tasks of the step hold one card: by NVML's process list, and what
//! each of those processes was started with.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::checks::{Check, Evidence, State, check};
use crate::inside::env::{Env, command};
use crate::inside::screen::count;
use crate::inside::usage::{CardUse, Holder, Usage};

impl Evidence<'_> {
    /// Two tasks of the step on one device, unless that was asked for.
    pub fn sharing(&self) -> Option<Check> {
        let usage = self.usage.as_ref().ok()?;
        // Whose the cards are is not known without the driver's list.
        self.scene.inventory.as_ref().ok()?;
        let env = &self.scene.env;
        let (job, step) = (env.get("SLURM_JOB_ID")?, env.get("SLURM_STEP_ID")?);
        let (tasks, devices) = (self.scene.tasks_here().unwrap_or(1), self.scene.step_devices());
        // More tasks than devices cannot but share, evenly at best.
        let fair = tasks.div_ceil(devices.max(1));
        let bound = self.is_bound_to_one();
        let mut unknown = 0;
        let (mut meant, mut wrong) = (Vec::new(), Vec::new());
        for card in self.visible_cards(usage) {
            for (name, holders) in held(card) {
                let found = on_device(&name, &holders, job, step, self.task_of);
                unknown += found.unknown.len();
                if found.ranks.len() > 1 {
                    let rank = |(rank, of): (&u32, &Vec<(u32, String)>)| {
                        let (pid, command) = &of[0];
                        format!("rank {rank} (pid {pid}, '{command}')")
                    };
                    let ranks: Vec<String> = found.ranks.iter().map(rank).collect();
                    let shared =
                        if bound || found.is_meant(fair) { &mut meant } else { &mut wrong };
                    shared.push(format!("{name}: {}", ranks.join(", ")));
                }
            }
        }
        let says = |shared: &[String], end: &str| {
            format!("tasks of step {job}.{step} hold one card: {}; {end}", shared.join("; "))
        };
        if !wrong.is_empty() {
            let end = "each should use cuda:LOCAL_RANK under --gpu-align=all, or cuda:0 under \
                       --gpu-align=single";
            return Some(check("sharing", State::Wrong, says(&wrong, end)));
        }
        if !meant.is_empty() {
            let end = match tasks > devices {
                true => "there are more tasks than cards",
                false => "it was given to each of them",
            };
            return Some(check("sharing", State::Note, says(&meant, end)));
        }
        let unlisted = self
            .visible_cards(usage)
            .find(|card| card.mig != Some(true) && card.processes.is_none());
        if let Some(card) = unlisted {
            let text = format!("NVML does not list the processes on {}", card.pci);
            return Some(check("sharing", State::Unseen, text));
        }
        match unknown {
            0 => Some(check("sharing", State::Fine, "no card is held by two tasks of this step")),
            n => Some(check(
                "sharing",
                State::Unseen,
                format!(
                    "{} on these cards cannot be told: another user's, or counted in another PID \
                     namespace",
                    count(n, "process").replace("processs", "processes")
                ),
            )),
        }
    }

    /// Whether the user's own `--gpu-bind` leaves these tasks one device.
    fn is_bound_to_one(&self) -> bool {
        let words = ["single:", "map_gpu:", "mask_gpu:"];
        let binding = self.scene.env.get("SLURMD_TRES_BIND").unwrap_or_default();
        self.scene.reach.len() == 1 && words.iter().any(|word| binding.contains(word))
    }

    fn visible_cards<'a>(&'a self, usage: &'a Usage) -> impl Iterator<Item = &'a CardUse> {
        let own: Vec<_> =
            self.scene.reach.iter().map(|d| self.scene.cards().card(*d).pci).collect();
        usage.cards.iter().filter(move |card| own.contains(&card.pci))
    }
}

/// The task that a process belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskOf {
    pub job: Option<String>,
    pub step: Option<String>,
    /// The task's rank in its step.
    pub rank: Option<u32>,
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
            rank: env.get("SLURM_PROCID").and_then(|rank| rank.parse().ok()),
            own: env.owned("GPU_ALIGN_CARD"),
            command: command(root, pid).unwrap_or_default(),
        })
    }
}

/// What is known of the processes on one device.
#[derive(Debug, Default)]
pub struct OnDevice {
    /// Of this step, by rank: the processes, with what they are.
    pub ranks: BTreeMap<u32, Vec<(u32, String)>>,
    /// Those of them that gpu-align gave this device as their own.
    pub owners: BTreeSet<u32>,
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
                    found.owners.insert(rank);
                }
                found.ranks.entry(rank).or_default().push((pid, command));
            }
            Some(_) => {}
        }
    }
    found
}
