//! Everything that a process finds out about its cards, from whoever says it:
//! the driver's list, the kernel, Slurm's words and CUDA.
//!
//! Invariant: what could not be looked at is an `Err` with a sentence, never an
//! empty list.

use std::path::Path;

use gpu_align::align::Caution;
use gpu_align::align::allotment::Reading as NumberReading;
use gpu_align::align::plan::Turn;
use gpu_align::align::policy::Policy;
use gpu_align::cuda::visible::{self, Known, Named, Reading};
use gpu_align::cuda::{Answer, CudaDevice};
use gpu_align::device::{Device, Inventory, Uuid};
use gpu_align::launch::Step;
use gpu_align::ranks;
use gpu_align::slurm::gres_conf::GresError;
use gpu_align::slurm::step::{self, Kind, Said};

use super::env::Env;

pub const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
pub const ORDER: &str = "CUDA_DEVICE_ORDER";
pub const PCI_ORDER: &str = "PCI_BUS_ID";

pub struct Scene {
    pub env: Env,
    pub inventory: Result<Inventory, String>,
    /// Why some cards have no UUID.
    pub gap: Option<String>,
    /// What the kernel lets this process open, in PCI order.
    pub reach: Vec<Device>,
    /// What CUDA enumerates.
    pub cuda: Result<Answer, String>,
    /// The same without CUDA_VISIBLE_DEVICES: what its indices count.
    pub unfiltered: Result<Answer, String>,
    /// By rank: whether the card is near one of this process's CPUs.
    pub near: Vec<bool>,
    /// The CPUs that this process may use, as the kernel lists them.
    pub cpus: String,
    /// The gres list, if there is a gres.conf here; or why it cannot be told.
    pub positions: Result<Option<Vec<Option<Device>>>, GresError>,
}

impl Scene {
    /// The node's cards; none where they are not known.
    pub fn cards(&self) -> &Inventory {
        static NONE: Inventory = Inventory::empty();
        self.inventory.as_ref().unwrap_or(&NONE)
    }

    /// The device that CUDA speaks of.
    pub fn device_of(&self, seen: &CudaDevice) -> Option<Device> {
        let cards = self.cards();
        let by_address = || {
            let rank = cards.cards().iter().position(|card| card.pci == seen.pci)?;
            cards.cards()[rank].slices.is_empty().then(|| Device::whole(rank))
        };
        cards.device_of_uuid(&seen.uuid).or_else(by_address)
    }

    /// The device's UUID, from CUDA where the driver does not know it yet.
    pub fn uuid(&self, device: Device) -> Option<Uuid> {
        let said = || {
            let answers = [&self.cuda, &self.unfiltered];
            let mut seen = answers.into_iter().flatten().flat_map(|answer| &answer.devices);
            Some(seen.find(|seen| self.device_of(seen) == Some(device))?.uuid.clone())
        };
        self.cards().uuid(device).cloned().or_else(said)
    }

    /// Whether every device that this process may open is known by its UUID.
    pub fn knows_uuids(&self) -> bool {
        self.inventory.is_ok() && self.reach.iter().all(|device| self.uuid(*device).is_some())
    }

    /// The CUDA index of a device.
    pub fn cuda_index(&self, device: Device) -> Option<usize> {
        let answer = self.cuda.as_ref().ok()?;
        answer.devices.iter().position(|seen| self.device_of(seen) == Some(device))
    }

    pub fn in_job(&self) -> bool {
        self.env.get("SLURM_JOB_ID").is_some()
    }

    /// What part of which job this is, and what to call it: `("step", "12.3")`;
    /// `("job", "12")` where Slurm gives the step no number.
    pub fn place(&self) -> Option<(&'static str, String)> {
        let job = self.env.get("SLURM_JOB_ID")?;
        match self.env.get("SLURM_STEP_ID").or_else(|| self.env.get("SLURM_STEPID")) {
            Some(step) if step.parse::<u16>().is_ok() => Some(("step", format!("{job}.{step}"))),
            _ => Some(("job", job.to_owned())),
        }
    }

    pub fn node_name(&self) -> String {
        let short = || {
            let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
            name.split('.').next().unwrap_or_default().to_owned()
        };
        self.env.owned("SLURMD_NODENAME").unwrap_or_else(short)
    }

    /// What Slurm told this process, read with the distrust of [`Said::read`].
    pub fn said(&self) -> Said {
        let step = self.env.get("SLURM_STEP_ID").or_else(|| self.env.get("SLURM_STEPID"));
        let own_list = self.env.get("SLURM_STEP_GPUS").is_some();
        let normal = own_list || step.is_some_and(|step| step.parse::<u16>().is_ok());
        let kind = if normal { Kind::Normal } else { Kind::Batch };
        Said::read(kind, |name| self.env.owned(name))
    }

    /// The devices that Slurm's numbers name, if its gres list can be read here.
    pub fn slurm_says(&self) -> Option<Vec<Device>> {
        let (said, list) = (self.said().positions?, self.positions.as_ref().ok()?.as_ref()?);
        let at = |&position: &u32| list.get(position as usize).copied().flatten();
        Some(said.iter().filter_map(at).collect())
    }

    /// The step that this process belongs to, as the plugin would see it.
    pub fn step(&self, policy: Policy, tasks: usize) -> Step {
        Step {
            node: self.node_name(),
            name: self.place().map(|(_, name)| name).unwrap_or_default(),
            policy,
            inventory: self.inventory.clone(),
            gap: self.gap.clone(),
            positions: self.positions.as_ref().ok().cloned().flatten(),
            cards_gone: matches!(self.positions, Err(GresError::CardsGone { .. })),
            said: self.said(),
            reading: NumberReading::Rank,
            tasks,
        }
    }

    /// What CUDA_VISIBLE_DEVICES is read against.
    pub fn known(&self) -> Known {
        self.known_among(&self.reach)
    }

    /// What it is read against where these devices of the reach can be opened.
    fn known_among(&self, within: &[Device]) -> Known {
        let cards = self.cards();
        let mut devices = Vec::new();
        let mut parents = Vec::new();
        for &device in within {
            let mut names: Vec<String> = self.uuid(device).iter().map(Uuid::to_string).collect();
            if let Some(slice) = cards.slice(device) {
                if let Some(parent) = &cards.card(device).uuid {
                    names.push(format!("MIG-{parent}/{}/{}", slice.gi, slice.ci));
                    // A card in MIG mode stands for the first of its slices.
                    if !parents.contains(&device.card) {
                        parents.push(device.card);
                        names.push(parent.to_string());
                    }
                }
            }
            devices.push(Named { names });
        }
        let elsewhere = cards.devices().filter(|device| !within.contains(device));
        let elsewhere = elsewhere.filter_map(|device| Some(cards.uuid(device)?.to_string()));
        Known { elsewhere: elsewhere.collect(), numbered: self.numbered(within), devices }
    }

    /// The devices that an index counts, as places in `within`: as CUDA itself
    /// says, else whole cards in PCI order and slices after them.
    fn numbered(&self, within: &[Device]) -> Vec<usize> {
        let place = |device: Device| within.iter().position(|&d| d == device);
        if let Some(answer) = self.unfiltered.as_ref().ok().filter(|answer| answer.error.is_none())
        {
            return answer.devices.iter().filter_map(|d| place(self.device_of(d)?)).collect();
        }
        let (slices, whole): (Vec<_>, Vec<_>) =
            (0..within.len()).partition(|&place| within[place].slice.is_some());
        whole.into_iter().chain(slices).collect()
    }

    /// CUDA_VISIBLE_DEVICES as the driver reads it.
    pub fn reading(&self) -> Reading {
        visible::read(self.env.get(VISIBLE), &self.known())
    }

    /// The devices that the variable selects, by gpu-align's reading.
    pub fn selected(&self) -> Vec<Device> {
        self.reading().chosen.iter().map(|&place| self.reach[place]).collect()
    }

    /// The devices that the variable would select where these can be opened, as
    /// in a container that shows no others.
    pub fn selected_among(&self, within: &[Device]) -> Vec<Device> {
        let reading = visible::read(self.env.get(VISIBLE), &self.known_among(within));
        reading.chosen.iter().map(|&place| within[place]).collect()
    }

    /// What gpu-align gave this process, if it was here.
    pub fn given(&self) -> Option<Vec<Uuid>> {
        let list = self.env.get("GPU_ALIGN_UUIDS")?;
        list.split(',').map(|uuid| uuid.parse().ok()).collect()
    }

    /// The devices that are this process's to use, in PCI order or as gpu-align
    /// gave them; never more than the kernel lets it open. `Err`: a sentence.
    pub fn allotted(&self) -> Result<Vec<Device>, String> {
        self.allotted_with_cautions().map(|(devices, _)| devices)
    }

    /// The same, and what is to be said of it.
    pub fn allotted_with_cautions(&self) -> Result<(Vec<Device>, Vec<Caution>), String> {
        self.inventory.as_ref().map_err(Clone::clone)?;
        let within = |mut devices: Vec<Device>| {
            devices.retain(|device| self.reach.contains(device));
            devices
        };
        if let Some(given) = self.given() {
            let cards = self.cards();
            let given = given.iter().filter_map(|uuid| cards.device_of_uuid(uuid)).collect();
            return Ok((within(given), Vec::new()));
        }
        let narrowed = || self.env.get(VISIBLE).map(|_| self.selected());
        if !self.in_job() {
            return Ok((narrowed().unwrap_or_else(|| self.reach.clone()), Vec::new()));
        }
        let words = "all".parse().map_err(|why| format!("{why}"))?;
        let step = self.step(Policy::resolve([&words]), 1);
        let env = |name: &str| self.env.owned(name);
        let alone = |_: &[Device]| Some(Turn { rank: 0, of: 1 });
        match step.decide(0, &self.reach, env, alone)? {
            Some(decision) => {
                let held = decision.plan.visible;
                let narrowed: Vec<Device> = narrowed().unwrap_or_default();
                let both: Vec<Device> =
                    held.iter().copied().filter(|d| narrowed.contains(d)).collect();
                let devices = within(if both.is_empty() { held } else { both });
                Ok((devices, decision.cautions))
            }
            None if self.reach.is_empty() => Ok((Vec::new(), Vec::new())),
            None => narrowed().map(|devices| (devices, Vec::new())).ok_or_else(|| {
                format!(
                    "cannot tell which cards are yours: this session of job {} has no list of \
                     them and can open all {} of the node; ask inside the job, with srun",
                    self.env.get("SLURM_JOB_ID").unwrap_or_default(),
                    self.reach.len()
                )
            }),
        }
    }

    /// How many tasks of this process's Slurm step run on this node.
    pub fn tasks_here(&self) -> Option<usize> {
        ranks::slurm_tasks_here(|name| self.env.owned(name))
    }

    /// How many devices that step holds on this node: as Slurm says, else as many
    /// as can be opened.
    pub fn step_devices(&self) -> usize {
        let said = self.said();
        let listed = said.positions.map(|positions| positions.len());
        // Under a binding SLURM_STEP_GPUS lists what one task got.
        let said = if self.is_bound() { said.count.or(listed) } else { listed.or(said.count) };
        said.unwrap_or(self.reach.len())
    }

    /// Whether Slurm binds the tasks of that step to devices.
    pub fn is_bound(&self) -> bool {
        step::binds(|name| self.env.owned(name))
    }

    /// What could not be looked at, a sentence each.
    pub fn unseen(&self) -> Vec<String> {
        let cuda = match &self.cuda {
            Err(why) => Some(why.clone()),
            Ok(answer) if !answer.is_answer() => {
                answer.error.as_ref().map(|e| format!("CUDA: {e}"))
            }
            Ok(_) => None,
        };
        let cards = self.inventory.as_ref().err().cloned();
        cards.into_iter().chain(self.gap.clone()).chain(cuda).chain(self.unread_numbers()).collect()
    }

    /// Why the numbers that Slurm gave this step cannot be looked up.
    pub fn unread_numbers(&self) -> Option<String> {
        let why = self.positions.as_ref().err()?;
        self.said().positions.map(|_| format!("what Slurm's numbers mean: {why}"))
    }
}

/// Whether two lists of CPUs, as the kernel writes them, share one.
pub fn share_a_cpu(one: &str, other: &[usize]) -> bool {
    one.split(',').any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        match (first.trim().parse::<usize>(), last.trim().parse::<usize>()) {
            (Ok(first), Ok(last)) => other.iter().any(|cpu| (first..=last).contains(cpu)),
            _ => false,
        }
    })
}

/// CPUs as the kernel lists them: `0-3,8`.
pub fn cpu_list(cpus: &[usize]) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let text = |(first, last): &(usize, usize)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    };
    ranges.iter().map(text).collect::<Vec<_>>().join(",")
}

/// By rank: whether the card is near one of these CPUs. A card whose place is
/// not known is near none.
pub fn near(root: &Path, inventory: &Inventory, cpus: &[usize]) -> Vec<bool> {
    let near_cpus =
        |card: &gpu_align::device::Card| gpu_align::node::topology::local_cpu_list(root, card.pci);
    inventory
        .cards()
        .iter()
        .map(|card| near_cpus(card).is_some_and(|list| share_a_cpu(&list, cpus)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::simulated::{node, scene};

    #[test]
    fn a_step_is_named_as_the_plugin_names_it() {
        let name = |env: &[(&str, &str)]| {
            scene(&node("tidy4"), &[0], env).step(Policy::resolve([]), 1).name
        };
        let (job, step) = (("SLURM_JOB_ID", "12"), ("SLURM_STEP_ID", "3"));
        assert_eq!(name(&[job, step]), "12.3");
        assert_eq!(name(&[job]), "12");
        assert_eq!(name(&[job, ("SLURM_STEP_ID", "4294967291")]), "12");
        assert_eq!(name(&[]), "");
    }
}
