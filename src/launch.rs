//! One launch: from what the node, Slurm and the kernel say to what a task's
//! environment holds. No I/O: whoever starts tasks (the plugin, a TaskProlog,
//! `gpu-align exec`) brings the facts and takes the variables.

use crate::align::Doubt;
use crate::align::allotment::{Caution, Facts, Reading, allotment};
use crate::align::order::ordered;
use crate::align::plan::{self, Layout, Plan, Turn, cuda_visible_devices};
use crate::align::policy::{Ids, Policy};
use crate::board::MAX_DEVICES;
use crate::device::{Device, Inventory};
use crate::slurm::step::{Said, first_place, task_numbers, task_uuids};

/// What is known of a step on this node before its tasks start.
#[derive(Clone, Debug)]
pub struct Step {
    pub node: String,
    /// As Slurm writes it: `12.0`, `12.batch`.
    pub name: String,
    pub policy: Policy,
    /// The node's cards, or why they are not known.
    pub inventory: Result<Inventory, String>,
    /// Why some of its cards have no UUID, where that is known.
    pub gap: Option<String>,
    /// The gres list, position → device; `None` where it is not known.
    pub positions: Option<Vec<Option<Device>>>,
    pub said: Said,
    pub reading: Reading,
    /// How many tasks run on this node.
    pub tasks: usize,
}

/// What one task gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub plan: Plan,
    pub caution: Option<Caution>,
    /// For the task's environment.
    pub variables: Vec<(&'static str, String)>,
}

impl Step {
    /// Decides for the task with local rank `local`.
    ///
    /// `reach` is what the kernel lets it open, `env` its environment. `turn`
    /// is asked only where Slurm bound the task to several devices: its turn
    /// among the tasks that hold the same ones, `None` if they do not say.
    ///
    /// `Ok(None)`: the step has no devices. `Err`: a doubt, as a sentence.
    pub fn decide(
        &self,
        local: usize,
        reach: &[Device],
        env: impl Fn(&str) -> Option<String>,
        turn: impl FnOnce(&[Device]) -> Option<Turn>,
    ) -> Result<Option<Decision>, String> {
        let inventory = match &self.inventory {
            Ok(inventory) => inventory,
            Err(_) if self.said.positions.is_none() => return Ok(None),
            Err(why) => return Err(why.clone()),
        };
        self.decide_among(inventory, local, reach, env, turn).map_err(|doubt| match &self.gap {
            Some(why) if matches!(doubt, Doubt::Placeholder(_)) => why.clone(),
            _ => doubt.to_string(),
        })
    }

    fn decide_among(
        &self,
        inventory: &Inventory,
        local: usize,
        reach: &[Device],
        env: impl Fn(&str) -> Option<String>,
        turn: impl FnOnce(&[Device]) -> Option<Turn>,
    ) -> Result<Option<Decision>, Doubt> {
        let devices = inventory.devices().count();
        if devices > MAX_DEVICES {
            return Err(Doubt::TooMany(devices));
        }
        let task = task_numbers(&env);
        let named: Option<Vec<Option<Device>>> = task_uuids(&env)
            .map(|uuids| uuids.iter().map(|uuid| inventory.device_of_uuid(uuid)).collect());
        let facts = Facts {
            inventory,
            reach,
            positions: self.positions.as_deref(),
            step: self.said.positions.as_deref(),
            count: self.said.count,
            task: task.as_deref(),
            first_place: first_place(&env, local, self.said.positions.iter().flatten().count()),
            named: named.as_deref(),
            reading: self.reading,
        };
        let Some(allotment) = allotment(&facts)? else {
            return Ok(None);
        };
        let turn = match (allotment.bound, allotment.devices.len()) {
            (false, _) => Turn { rank: local, of: self.tasks.max(local + 1) },
            (true, 1) => Turn { rank: 0, of: 1 },
            (true, _) => turn(&allotment.devices).ok_or(Doubt::SilentTask)?,
        };
        let ordered = ordered(&allotment, &self.policy.order, inventory)?;
        let layout = Layout::of(self.policy.mode, allotment.bound);
        let plan = plan::plan(layout, &ordered, turn);
        let mps = under_mps(&env) && self.policy.ids == Ids::Index;
        let ids = if mps { Ids::Uuid } else { self.policy.ids };
        let variables = variables(&plan, ids, reach, inventory)?;
        let caution = allotment.caution.or(mps.then_some(Caution::NamedForMps));
        Ok(Some(Decision { plan, caution, variables }))
    }
}

/// A daemon that was started with a list offers its clients the cards counted
/// anew from 0; only UUIDs mean the same to both.
fn under_mps(env: impl Fn(&str) -> Option<String>) -> bool {
    ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
        .iter()
        .any(|name| env(name).is_some_and(|value| !value.is_empty()))
}

fn variables(
    plan: &Plan,
    ids: Ids,
    reach: &[Device],
    inventory: &Inventory,
) -> Result<Vec<(&'static str, String)>, Doubt> {
    let uuid = |device: &Device| plan::uuid(*device, inventory);
    let uuids: Vec<String> = plan.visible.iter().map(uuid).collect::<Result<_, _>>()?;
    let visible = cuda_visible_devices(&plan.visible, ids, reach, inventory)?;
    let mut variables = doubtful_variables();
    variables.extend([
        ("CUDA_VISIBLE_DEVICES", visible),
        ("GPU_ALIGN_MODE", plan.layout.to_string()),
        ("GPU_ALIGN_CARD", uuids[plan.own].clone()),
        ("GPU_ALIGN_UUIDS", uuids.join(",")),
    ]);
    Ok(variables)
}

/// What is set even in doubt (rule 6): CUDA's order, and that gpu-align was here.
pub fn doubtful_variables() -> Vec<(&'static str, String)> {
    vec![
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()),
        ("GPU_ALIGN_VERSION", env!("CARGO_PKG_VERSION").to_owned()),
    ]
}
