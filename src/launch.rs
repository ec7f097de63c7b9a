//! One launch: from what the node, Slurm and the kernel say to what a task's
//! environment holds. No I/O: whoever starts tasks (the plugin, a TaskProlog,
//! `gpu-align exec`) brings the facts and takes the variables.

use crate::align::allotment::{Facts, Reading, allotment};
use crate::align::order::ordered;
use crate::align::plan::{self, Layout, Plan, Turn, cuda_visible_devices};
use crate::align::policy::{Ids, Policy};
use crate::align::{Caution, Doubt};
use crate::board::MAX_DEVICES;
use crate::device::{Device, Inventory};
use crate::slurm::step::{Said, binds, first_place, task_numbers, task_uuids};

/// What is known of a step on this node before its tasks start.
#[derive(Clone, Debug)]
pub struct Step {
    /// Slurm's name of this node, for the log.
    pub node: String,
    /// As Slurm writes it: `12.0`, `12.batch`.
    pub name: String,
    /// What was asked for; not `off`.
    pub policy: Policy,
    /// The node's cards, or why they are not known.
    pub inventory: Result<Inventory, String>,
    /// Why some of its cards have no UUID, where that is known.
    pub gap: Option<String>,
    /// The gres list, position → device; `None` where it is not known.
    pub positions: Option<Vec<Option<Device>>>,
    /// It is not known since AutoDetect finds fewer devices than Slurm counts.
    pub cards_gone: bool,
    /// What Slurm told the step before it bound any task.
    pub said: Said,
    /// How the site wants positions read where devices are not constrained.
    pub reading: Reading,
    /// How many tasks run on this node.
    pub tasks: usize,
}

/// What one task gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What it sees, and which of it is its own.
    pub plan: Plan,
    /// In the order of [`Caution::ALL`].
    pub cautions: Vec<Caution>,
    /// For the task's environment: names and values, no name twice.
    pub variables: Vec<(&'static str, String)>,
}

/// Deciding for all must not hold up the first: 128 take half a millisecond.
const MAX_FORESEEN: usize = 128;

/// What the tasks of a step get, decided before they are forked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreseen<T> {
    /// What each of them has to reach for it, in PCI order.
    reach: Vec<Device>,
    /// By local rank.
    tasks: Vec<T>,
}

impl<T> Foreseen<T> {
    /// What was foreseen for a task, if it reaches what was expected and Slurm did not bind it:
    /// then [`Step::decide`] would say the same.
    pub fn holds(
        &self,
        local: usize,
        reach: &[Device],
        env: impl Fn(&str) -> Option<String>,
    ) -> Option<&T> {
        (reach == self.reach && !binds(env)).then(|| self.tasks.get(local)).flatten()
    }
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

    /// Decides for every task as it will be in most steps: Slurm binds none, and each reaches
    /// what the step was given. `None` where that cannot be known before, or `ready` fails.
    ///
    /// Each task starts cold, as a process of its own: it checks a decision in a third of the time
    /// that it takes to decide.
    pub fn foresee<T>(&self, ready: impl Fn(Decision) -> Option<T>) -> Option<Foreseen<T>> {
        let inventory = self.inventory.as_ref().ok()?;
        // An index counts all that a task reaches, and is not for MPS or a container.
        if self.policy.ids == Ids::Index || self.tasks > MAX_FORESEEN {
            return None;
        }
        let (list, held) = (self.positions.as_ref()?, self.said.positions.as_ref()?);
        let device_at = |&position: &u32| *list.get(position as usize)?;
        let held: Vec<Device> = held.iter().map(device_at).collect::<Option<_>>()?;
        let reach: Vec<Device> = inventory.devices().filter(|d| held.contains(d)).collect();
        let task = |local| ready(self.decide(local, &reach, |_| None, |_| None).ok()??);
        let tasks = (0..self.tasks).map(task).collect::<Option<_>>()?;
        Some(Foreseen { reach, tasks })
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
            cards_gone: self.cards_gone,
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
        let for_mps = self.policy.ids == Ids::Index && under_mps(&env);
        let asked = if for_mps { Ids::Uuid } else { self.policy.ids };
        let plan = plan::plan(layout, &ordered, turn, plan::written(asked, reach));
        let variables = variables(&plan, reach, inventory)?;
        let others = reach.iter().any(|device| !allotment.devices.contains(device));
        let counted = plan.ids == Ids::Index && others && wants_a_container(&env);
        let cautions = [
            allotment.caution,
            for_mps.then_some(Caution::NamedForMps),
            counted.then_some(Caution::CountedForContainer),
        ];
        let cautions = cautions.into_iter().flatten().collect();
        Ok(Some(Decision { plan, cautions, variables }))
    }
}

/// A daemon that was started with a list offers its clients the cards counted
/// anew from 0; only UUIDs mean the same to both.
fn under_mps(env: impl Fn(&str) -> Option<String>) -> bool {
    ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"]
        .iter()
        .any(|name| env(name).is_some_and(|value| !value.is_empty()))
}

/// What a container runtime that starts in the task is asked for: some cards by
/// NVIDIA_VISIBLE_DEVICES, or a bundle by `srun --container`.
fn wants_a_container(env: impl Fn(&str) -> Option<String>) -> bool {
    let set = |name: &str| env(name).filter(|value| !value.is_empty());
    let list = set("NVIDIA_VISIBLE_DEVICES");
    list.is_some_and(|list| !["all", "none", "void"].contains(&list.as_str()))
        || set("SLURM_CONTAINER").is_some()
}

fn variables(
    plan: &Plan,
    reach: &[Device],
    inventory: &Inventory,
) -> Result<Vec<(&'static str, String)>, Doubt> {
    let uuid = |device: &Device| plan::uuid(*device, inventory);
    let uuids: Vec<String> = plan.visible.iter().map(uuid).collect::<Result<_, _>>()?;
    let visible = cuda_visible_devices(plan, reach, inventory)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Card, Minor};
    use crate::slurm::step::Kind;

    fn node() -> Inventory {
        let card = |rank: u32| Card {
            pci: format!("0000:{:02x}:00.0", rank * 16).parse().unwrap(),
            minor: Minor(rank),
            uuid: format!("GPU-00000000-0008-4000-8000-00000000000{rank}").parse().ok(),
            model: "NVIDIA A100-SXM4-80GB".into(),
            numa: None,
            slices: Vec::new(),
        };
        Inventory::new((0..8).map(card).collect())
    }

    /// What the step that holds cards 4 to 7 gets, where these cards can be
    /// opened and the gres list is this one.
    fn decision(
        words: &str,
        reach: std::ops::Range<usize>,
        list: impl IntoIterator<Item = usize>,
        env: &[(&str, &str)],
    ) -> Decision {
        let numbers = if reach.len() == 8 { "4,5,6,7" } else { "0,1,2,3" };
        let slurm = [("SLURM_STEP_GPUS", "4,5,6,7"), ("CUDA_VISIBLE_DEVICES", numbers)];
        let env = |name: &str| {
            let set = slurm.iter().chain(env).find(|(set, _)| *set == name);
            set.map(|(_, value)| value.to_string())
        };
        let step = Step {
            node: "n1".into(),
            name: "12.0".into(),
            policy: Policy::resolve([&words.parse().unwrap()]),
            inventory: Ok(node()),
            gap: None,
            positions: Some(list.into_iter().map(|rank| Some(Device::whole(rank))).collect()),
            cards_gone: false,
            said: Said::read(Kind::Normal, env),
            reading: Reading::Rank,
            tasks: 1,
        };
        let reach: Vec<Device> = reach.map(Device::whole).collect();
        step.decide(0, &reach, env, |_| None).unwrap().unwrap()
    }

    #[test]
    fn fc_38_indices_of_an_unconstrained_node_and_a_container_are_warned_of() {
        let cautions = |words, reach, env: &[_]| decision(words, reach, 0..8, env).cautions;
        let some = [("NVIDIA_VISIBLE_DEVICES", "4,5,6,7")];
        let bundle = [("SLURM_CONTAINER", "/images/app")];
        for env in [&some, &bundle] {
            assert_eq!(cautions("ids=index", 0..8, env), [Caution::CountedForContainer]);
            // UUIDs are right in both views, and so are indices where devices are constrained.
            assert_eq!(cautions("ids=uuid", 0..8, env), []);
            assert_eq!(cautions("ids=index", 4..8, env), []);
        }
        assert_eq!(cautions("ids=index", 0..8, &[]), []);
        assert_eq!(cautions("ids=index", 0..8, &[("NVIDIA_VISIBLE_DEVICES", "all")]), []);
    }

    #[test]
    fn one_caution_does_not_hide_another() {
        let reversed = |env: &[_]| decision("ids=index", 0..8, (0..8).rev(), env).cautions;
        let container = ("NVIDIA_VISIBLE_DEVICES", "4,5,6,7");
        let mps = ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps");
        assert_eq!(reversed(&[container]), [Caution::NotInPciOrder, Caution::CountedForContainer]);
        // Under MPS UUIDs are written, and those mean the same in a container.
        assert_eq!(reversed(&[container, mps]), [Caution::NotInPciOrder, Caution::NamedForMps]);
    }

    #[test]
    fn the_plan_says_in_which_form_cards_are_named() {
        let ids = |words, env: &[_]| decision(words, 0..8, 0..8, env).plan.ids;
        assert_eq!(ids("ids=index", &[]), Ids::Index);
        assert_eq!(ids("ids=index", &[("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")]), Ids::Uuid);
        assert_eq!(ids("ids=uuid", &[]), Ids::Uuid);
    }
}
