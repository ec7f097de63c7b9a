//! A step played through the pure core, and its tasks' values read as CUDA
//! reads them: by the stand-in's code, which shares nothing with gpu-align.

use gpu_align::align::plan::Turn;
use gpu_align::device::{Card, Device, Inventory, Minor, Slice};
use gpu_align::launch::{Decision, Step};
use gpu_align::reach::{nodes, reach};
use sim_node::{DeviceFile, Node};

/// The cards of a simulated node that its driver lists, which is in no order.
pub fn inventory(node: &Node) -> Inventory {
    let slice = |slice: &sim_node::Slice| Slice {
        uuid: slice.uuid.parse().unwrap(),
        gi: slice.gi,
        ci: slice.ci,
        profile: slice.profile.clone(),
        cap_minors: slice.cap_minors,
    };
    let card = |card: &sim_node::Card| Card {
        pci: card.pci.to_string().parse().unwrap(),
        minor: Minor(card.minor),
        uuid: card.uuid.parse().ok(),
        model: card.model.clone(),
        numa: card.numa.and_then(|numa| u32::try_from(numa).ok()),
        slices: card.slices.iter().map(slice).collect(),
    };
    let listed = |card: &&sim_node::Card| !card.gone && !card.excluded;
    Inventory::new(node.cards.iter().rev().filter(listed).map(card).collect())
}

/// The device file that a path below /dev names.
pub fn device_file(path: &str) -> Option<DeviceFile> {
    let cap = path.strip_prefix("/dev/nvidia-caps/nvidia-cap");
    match cap.or_else(|| path.strip_prefix("/dev/nvidia"))?.parse().ok()? {
        minor if cap.is_some() => Some(DeviceFile::Cap(minor)),
        minor => Some(DeviceFile::Card(minor)),
    }
}

/// One task of a node: what the kernel lets it open, and its environment.
pub struct Player<'a> {
    pub opens: &'a dyn Fn(DeviceFile) -> bool,
    pub env: &'a dyn Fn(&str) -> Option<String>,
}

impl Player<'_> {
    pub fn reach(&self, inventory: &Inventory) -> Vec<Device> {
        reach(&nodes(inventory), |path| device_file(path).is_some_and(self.opens))
    }

    /// The UUIDs of `cuda:0`, `cuda:1`, … under the variables that were decided.
    pub fn cuda(&self, node: &Node, decision: &Decision) -> Vec<String> {
        let set =
            |name| decision.variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.as_str());
        let entries = sim_cuda::enumerate(
            node,
            self.opens,
            set("CUDA_DEVICE_ORDER"),
            set("CUDA_VISIBLE_DEVICES"),
        );
        entries.unwrap_or_default().into_iter().map(|entry| entry.uuid).collect()
    }
}

static NO_CARDS: Inventory = Inventory::empty();

/// Decides for every task of a node, by local rank. Tasks that Slurm bound to
/// the same devices get their turns as the board gives them.
pub fn play(step: &Step, tasks: &[Player]) -> Vec<Result<Option<Decision>, String>> {
    let inventory = step.inventory.as_ref().unwrap_or(&NO_CARDS);
    let decide = |local: usize, turn: &mut dyn FnMut(&[Device]) -> Option<Turn>| {
        let task = &tasks[local];
        step.decide(local, &task.reach(inventory), task.env, turn)
    };
    let published: Vec<Option<Vec<Device>>> = (0..tasks.len())
        .map(|local| {
            let mut held = None;
            let _ = decide(local, &mut |devices| {
                held = Some(devices.to_vec());
                None
            });
            held
        })
        .collect();
    let turn_of = |local: usize| Turn {
        rank: published[..local].iter().filter(|held| **held == published[local]).count(),
        of: published.iter().filter(|held| **held == published[local]).count(),
    };
    let decided: Vec<_> =
        (0..tasks.len()).map(|local| decide(local, &mut |_| Some(turn_of(local)))).collect();
    for (decision, foreseen) in decided.iter().zip(foreseen(step, tasks)) {
        if let Some(foreseen) = foreseen {
            assert_eq!(decision, &Ok(Some(foreseen)), "decided other than foreseen");
        }
    }
    decided
}

/// What a task takes as foreseen instead of deciding for itself.
pub fn foreseen(step: &Step, tasks: &[Player]) -> Vec<Option<Decision>> {
    let inventory = step.inventory.as_ref().unwrap_or(&NO_CARDS);
    let all = step.foresee(Some);
    let of = |(local, task): (usize, &Player)| {
        all.as_ref()?.holds(local, &task.reach(inventory), task.env).cloned()
    };
    tasks.iter().enumerate().map(of).collect()
}
