//! The allotment: which devices are this task's (design rules 1 to 4 and 8).
//!
//! Invariant (rule 3, never widen): every device of an [`Allotment`] is one
//! that the kernel lets the task open.

use crate::align::{Caution, Doubt};
use crate::device::{Device, Inventory};

/// The scheduler's list of configured devices: position → device. A position
/// whose device file names no card of the node holds `None`.
pub type Positions = [Option<Device>];

/// How to read positions on a node that does not constrain devices and whose
/// gres list is not in PCI order (rule 2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// As the neighbours without gpu-align live: number = rank.
    #[default]
    Rank,
    /// As the gres list says: for sites where every job is aligned.
    File,
}

/// All that the decision rests on.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The node's cards, as the driver lists them today.
    pub inventory: &'a Inventory,
    /// What the kernel lets this task open, in PCI order.
    pub reach: &'a [Device],
    /// The gres list; `None` where it is not known.
    pub positions: Option<&'a Positions>,
    /// The list is not known since devices that it must have are not there
    /// today: a card was lost, or slices cannot be seen.
    pub cards_gone: bool,
    /// The positions that the step holds on this node, as the step was told.
    pub step: Option<&'a [u32]>,
    /// How many devices the scheduler counts on this node, where it says so
    /// apart from a list.
    pub count: Option<usize>,
    /// The numbers that Slurm wrote for this task, if it binds tasks: places
    /// within the step where devices are constrained, else positions.
    pub task: Option<&'a [u32]>,
    /// The place within the step at which the task's devices begin, where the
    /// binding tells.
    pub first_place: Option<usize>,
    /// The devices that Slurm named for this task by UUID instead, if it binds
    /// tasks; `None` for a UUID that the node does not know.
    pub named: Option<&'a Positions>,
    /// What the site wants where the node leaves the choice.
    pub reading: Reading,
}

/// The devices of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allotment {
    /// In PCI order; never empty.
    pub devices: Vec<Device>,
    /// The same, by position in the gres list.
    pub slurm_order: Vec<Device>,
    /// Whether Slurm bound this task to fewer devices than the step holds.
    pub bound: bool,
    /// Why the devices are unverified, where they are.
    pub caution: Option<Caution>,
}

/// Decides the allotment; `None` where the step has no devices (rule 8).
pub fn allotment(facts: &Facts) -> Result<Option<Allotment>, Doubt> {
    let usable = configured_reach(facts);
    let Some(held) = held(facts, usable.len())? else {
        return Ok(None);
    };
    let (devices, bound, caution) = match held {
        Held::ByKernel { given } => constrained(facts, usable, given)?,
        Held::ByList(step) => unconstrained(facts, &usable, step)?,
    };
    // Numbers that are read as ranks come in PCI order.
    let list = if caution.is_none() { facts.positions } else { None };
    let slurm_order = slurm_order(&devices, list);
    Ok(Some(Allotment { devices, slurm_order, bound, caution }))
}

/// The reach without cards that Slurm does not hand out: it denies only what
/// its gres list names, so a card that is not configured opens for every job.
fn configured_reach(facts: &Facts) -> Vec<Device> {
    let configured = |device: &&Device| match facts.positions {
        Some(positions) if positions.iter().any(Option::is_some) => {
            positions.contains(&Some(**device))
        }
        _ => true,
    };
    facts.reach.iter().filter(configured).copied().collect()
}

enum Held<'a> {
    /// The kernel leaves the task no more than the step was given.
    ByKernel { given: usize },
    /// Only Slurm's list tells the step's devices from the others.
    ByList(&'a [u32]),
}

/// Rule 2: a node counts as unconstrained when the task reaches more devices
/// than the step was given. A card of the step that is lost is in no reach: on
/// an unconstrained node another job's card would be taken for it (rule 3).
///
/// Where that card has no position either (`cards_gone`) and the kernel excludes
/// nothing, only the list is left to go by.
///
/// `--gpu-bind=none` makes 22.05 unset the list in every task of a step of
/// several, although the step holds devices (a TaskProlog sees that, the plugin
/// reads before it); then the kernel's answer stands if it excludes anything, or
/// if the count (SLURM_GPUS_ON_NODE, which stays) shows that the step holds them
/// all. A step without devices has neither: Slurm takes both out of its
/// environment, the job's and the user's own included (seen on 22.05, 24.11 and
/// 26.05; rule 8). 21.08 leaves what a job's script exports in a step without
/// devices, and there nothing tells the two apart.
fn held<'a>(facts: &Facts<'a>, usable: usize) -> Result<Option<Held<'a>>, Doubt> {
    if let Some(step) = facts.step.filter(|step| !step.is_empty()) {
        let open = facts.cards_gone && usable == facts.inventory.devices().count();
        return Ok(Some(if usable <= step.len() - lost(facts) && !open {
            Held::ByKernel { given: step.len() }
        } else {
            Held::ByList(step)
        }));
    }
    let configured = match facts.positions {
        Some(positions) if !positions.is_empty() => positions.iter().flatten().count(),
        _ => facts.inventory.devices().count(),
    };
    match facts.count {
        _ if usable == 0 => Ok(None),
        _ if usable < configured => Ok(Some(Held::ByKernel { given: usable })),
        Some(count) if count >= usable => Ok(Some(Held::ByKernel { given: usable })),
        Some(_) => Err(Doubt::NoList),
        None => Ok(None),
    }
}

type Decided = (Vec<Device>, bool, Option<Caution>);

/// Rule 1: where the kernel constrains devices, the reach is the allotment.
/// Rule 4: a binding is kept, whether the kernel enforces it or only Slurm's
/// variable says it.
fn constrained(facts: &Facts, usable: Vec<Device>, given: usize) -> Result<Decided, Doubt> {
    let bound_by_kernel = usable.len() < given;
    if let Some(named) = facts.named.filter(|named| named.len() < given) {
        return Ok((bound_by_name(named, &usable)?, true, None));
    }
    match facts.task {
        None if bound_by_kernel => Err(missing(facts, &usable, given)),
        Some(task) if !bound_by_kernel && task.len() < usable.len() => {
            let (devices, caution) = bound_by_variable(facts, &usable, task)?;
            Ok((devices, true, caution))
        }
        // Slurm bound it to more than it can open: one of its own is lost.
        Some(task) if task.len() > usable.len() => Err(missing(facts, &usable, given)),
        // Or to fewer: that is all that a lost card leaves of the step where nothing is
        // constrained. Without a lost card the kernel is right: Slurm's list may be empty.
        Some(task) if task.len() < usable.len() && lost(facts) > 0 => {
            Err(missing(facts, &usable, given))
        }
        // A task that is bound to all of the step's devices is not bound.
        _ if usable.is_empty() => Err(missing(facts, &usable, given)),
        _ => Ok((usable, bound_by_kernel, None)),
    }
}

/// `--gres-flags=allow-task-sharing` (23.11 and later): every task opens all of
/// the step's devices, and Slurm's variable counts places within the step, in
/// the order of positions.
fn bound_by_variable(
    facts: &Facts,
    usable: &[Device],
    task: &[u32],
) -> Result<(Vec<Device>, Option<Caution>), Doubt> {
    let in_slurms_order = slurm_order(usable, facts.positions);
    let mut devices = Vec::new();
    for &place in task {
        let device = in_slurms_order.get(place as usize).ok_or(Doubt::NoSuchCard(place))?;
        devices.push(*device);
    }
    let caution = facts.positions.is_none().then_some(Caution::UnknownGresList);
    Ok((in_pci_order(devices), caution))
}

/// UUIDs in a bound task's variable (slices from 23.11.4 on, cards with
/// 26.05's `env_uuid`) need no numbering: they are the binding.
fn bound_by_name(named: &Positions, usable: &[Device]) -> Result<Vec<Device>, Doubt> {
    let devices: Vec<Device> =
        named.iter().flatten().filter(|device| usable.contains(device)).copied().collect();
    if devices.is_empty() || devices.len() < named.len() {
        return Err(Doubt::Missing { given: named.len(), reached: devices.len() });
    }
    Ok(in_pci_order(devices))
}

/// How many of the step's positions the gres list knows and no card of this node has.
fn lost(facts: &Facts) -> usize {
    let Some(positions) = facts.positions else { return 0 };
    let step = facts.step.unwrap_or_default().iter();
    step.filter(|&&position| positions.get(position as usize) == Some(&None)).count()
}

/// Why a step's device cannot be opened: the one that is lost, by name, if the
/// gres list tells.
fn missing(facts: &Facts, usable: &[Device], given: usize) -> Doubt {
    let positions = facts.positions.unwrap_or_default();
    for &position in facts.step.unwrap_or_default() {
        match positions.get(position as usize) {
            Some(None) => return Doubt::NoSuchCard(position),
            Some(Some(device)) if !usable.contains(device) => {
                return Doubt::Unreachable { position, pci: facts.inventory.card(*device).pci };
            }
            _ => {}
        }
    }
    Doubt::Missing { given, reached: usable.len() }
}

/// Rule 2 on a node that does not constrain devices: position → device.
///
/// Without a list a position is read as a rank, with a caution. Not so where the
/// list is short of devices that it had (`cards_gone`): ranks have moved since
/// slurmd counted, and a rank may be a card of another job (rule 3). So that is
/// a doubt (rule 6): Slurm's own number is no better, but `strict` can refuse it.
fn unconstrained(facts: &Facts, usable: &[Device], step: &[u32]) -> Result<Decided, Doubt> {
    if facts.cards_gone {
        return Err(Doubt::CardsGone);
    }
    let (device_at, caution) = numbering(facts);
    if let Some(named) = facts.named.filter(|named| named.len() < step.len()) {
        let held = |device: &Device| step.iter().any(|&p| device_at(p) == Some(*device));
        let held: Vec<Device> = usable.iter().copied().filter(held).collect();
        return Ok((bound_by_name(named, &held)?, true, caution));
    }
    let bound = facts.task.filter(|task| task.len() < step.len());
    let positions =
        bound.map_or(Ok(step.to_vec()), |task| positions_of(task, step, facts.first_place))?;
    let mut devices = Vec::new();
    for position in positions {
        let device = device_at(position).ok_or(Doubt::NoSuchCard(position))?;
        if !usable.contains(&device) {
            let pci = facts.inventory.card(device).pci;
            return Err(Doubt::Unreachable { position, pci });
        }
        devices.push(device);
    }
    Ok((in_pci_order(devices), bound.is_some(), caution))
}

/// A bound task's numbers, which are positions of the step; or places within it
/// under `--gres-flags=allow-task-sharing` (seen on 24.11 and 26.05), where they
/// may name another job's cards, or another task's.
///
/// No variable tells the two apart. Numbers that are no positions of the step
/// are places; so are those that begin at the task's place where the step's
/// position at that place is another number. The rest are taken for positions.
fn positions_of(task: &[u32], step: &[u32], first: Option<usize>) -> Result<Vec<u32>, Doubt> {
    let position_at = |place: &u32| step.get(*place as usize).copied();
    let at_place = first.zip(task.first().copied()).is_some_and(|(place, number)| {
        place == number as usize && position_at(&number).is_some_and(|position| position != number)
    });
    if !at_place && task.iter().all(|number| step.contains(number)) {
        return Ok(task.to_vec());
    }
    task.iter().map(|n| position_at(n).ok_or(Doubt::NotTheSteps(*n))).collect()
}

/// What a position means on an unconstrained node: one reading for the whole
/// node, so that two aligned jobs never meet on a card.
///
/// Where positions in PCI order and the gres list agree there is no question.
/// Where the list is another order of the first n cards, jobs without gpu-align
/// live by number = rank: follow them. Where some of the first n ranks are not
/// configured, number = rank points at cards that are nobody's, and where a
/// configured card is lost, ranks have moved: use the list. Slices do not take
/// part: Slurm itself names them by UUID.
fn numbering<'a>(facts: &Facts<'a>) -> (impl Fn(u32) -> Option<Device> + use<'a>, Option<Caution>) {
    let cards = facts.inventory.cards().len();
    let of_rank = move |position: usize| (position < cards).then(|| Device::whole(position));
    let list = facts.positions.filter(|list| !list.is_empty());
    let caution = match list {
        None => Some(Caution::UnknownGresList),
        Some(list) => {
            let is_card = |device: &Option<Device>| device.is_none_or(|d| d.slice.is_none());
            let mut cards = list.iter().enumerate().filter(|(_, device)| is_card(device));
            let in_order = cards.clone().all(|(position, device)| *device == of_rank(position));
            let reordered = cards
                .all(|(position, device)| device.is_some() && list.contains(&of_rank(position)));
            let neighbours = !in_order && reordered && facts.reading == Reading::Rank;
            neighbours.then_some(Caution::NotInPciOrder)
        }
    };
    let device_at = move |position: u32| {
        let position = position as usize;
        let listed = list.and_then(|list| list.get(position).copied().flatten());
        match caution {
            None => listed,
            Some(_) => listed.filter(|device| device.slice.is_some()).or(of_rank(position)),
        }
    };
    (device_at, caution)
}

fn slurm_order(devices: &[Device], positions: Option<&Positions>) -> Vec<Device> {
    let mut ordered = devices.to_vec();
    if let Some(positions) = positions {
        ordered.sort_by_key(|device| positions.iter().position(|p| *p == Some(*device)));
    }
    ordered
}

fn in_pci_order(mut devices: Vec<Device>) -> Vec<Device> {
    devices.sort();
    devices.dedup();
    devices
}

#[cfg(test)]
mod tests;
