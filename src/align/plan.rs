//! The plan for one task: what it sees, which of it is its own, and the text
//! for its environment.
//!
//! Invariant (rule 3): `visible` is a subset or permutation of the allotment,
//! without duplicates, and the own devices are part of it.

use std::fmt;

use crate::align::Doubt;
use crate::align::order::Ordered;
use crate::align::policy::{Ids, Mode};
use crate::device::{Device, Inventory};

/// A task's turn among the tasks that hold the same devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// From 0; the local rank where the step's devices are everyone's.
    pub rank: usize,
    /// How many tasks hold them; at least 1.
    pub of: usize,
}

/// The mode in force once `auto` is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Slurm's per-task binding, kept: each task sees the devices it is bound to.
    Bound,
    /// As [`Mode::All`].
    All,
    /// As [`Mode::Single`].
    Single,
    /// As [`Mode::Rotate`].
    Rotate,
}

impl Layout {
    /// `auto` keeps a per-task binding and is `all` where there is none.
    pub fn of(mode: Mode, bound: bool) -> Layout {
        match (mode, bound) {
            (Mode::Single, _) => Layout::Single,
            (Mode::Rotate, _) => Layout::Rotate,
            (Mode::Auto | Mode::Off, true) => Layout::Bound,
            (Mode::All | Mode::Auto | Mode::Off, _) => Layout::All,
        }
    }
}

/// The value of GPU_ALIGN_MODE.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match self {
            Layout::Bound => "bound",
            Layout::All => "all",
            Layout::Single => "single",
            Layout::Rotate => "rotate",
        })
    }
}

/// What one task gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Which mode this came of.
    pub layout: Layout,
    /// In the order in which CUDA will count them.
    pub visible: Vec<Device>,
    /// Where the own devices begin in `visible`: the `cuda:` index to use.
    pub own: usize,
    /// How many devices, from there on, are this task's alone; more than one
    /// only where there are fewer tasks than devices and each sees its own.
    pub own_count: usize,
    /// How CUDA_VISIBLE_DEVICES names them, which need not be as was asked.
    pub ids: Ids,
}

impl Plan {
    /// The device that `cuda:own` is, the first of the own ones.
    pub fn own_device(&self) -> Device {
        self.visible[self.own]
    }
}

/// Lays out the devices for one task. `devices` must not be empty.
///
/// More ranks than devices share in contiguous blocks (`single`, `rotate`) or
/// by `r mod n`, which is what programs compute (`all`). Fewer ranks than
/// devices get contiguous blocks in `single`, larger blocks first.
pub fn plan(layout: Layout, ordered: &Ordered, turn: Turn, ids: Ids) -> Plan {
    let all = &ordered.devices;
    let meant = &all[..ordered.meant];
    match layout {
        Layout::Bound | Layout::All => {
            let own = turn.rank % all.len();
            Plan { layout, visible: all.clone(), own, own_count: 1, ids }
        }
        Layout::Single => {
            let block = own_block(meant.len(), turn);
            Plan { layout, own: 0, own_count: block.len(), visible: meant[block].to_vec(), ids }
        }
        Layout::Rotate => {
            let first =
                if turn.of > meant.len() { own_block(meant.len(), turn).start } else { turn.rank };
            let visible = all.iter().cycle().skip(first).take(all.len()).copied().collect();
            Plan { layout, visible, own: 0, own_count: 1, ids }
        }
    }
}

/// The contiguous block of `devices` that is a rank's own.
fn own_block(devices: usize, turn: Turn) -> std::ops::Range<usize> {
    let (rank, of) = (turn.rank.min(turn.of - 1), turn.of);
    if of >= devices {
        let start = rank * devices / of;
        start..start + 1
    } else {
        (rank * devices).div_ceil(of)..((rank + 1) * devices).div_ceil(of)
    }
}

/// The form that can be written where `asked` was asked for: an index counts
/// cards, and means nothing where a slice can be opened too.
pub fn written(asked: Ids, reach: &[Device]) -> Ids {
    match reach.iter().all(|device| device.slice.is_none()) {
        true => asked,
        false => Ids::Uuid,
    }
}

/// The text of CUDA_VISIBLE_DEVICES (rule 9): full UUIDs or plain decimals,
/// one kind per list, no blanks.
///
/// An index counts the cards in `reach` in PCI order, which is how CUDA counts
/// under CUDA_DEVICE_ORDER=PCI_BUS_ID; all that is visible is in reach.
pub fn cuda_visible_devices(
    plan: &Plan,
    reach: &[Device],
    inventory: &Inventory,
) -> Result<String, Doubt> {
    let name = |device: &Device| match reach.iter().position(|d| d == device) {
        Some(index) if plan.ids == Ids::Index => Ok(index.to_string()),
        _ => uuid(*device, inventory),
    };
    let names: Result<Vec<String>, Doubt> = plan.visible.iter().map(name).collect();
    Ok(names?.join(","))
}

/// The device's UUID, or the doubt that it has none yet.
pub fn uuid(device: Device, inventory: &Inventory) -> Result<String, Doubt> {
    inventory
        .uuid(device)
        .map(|uuid| uuid.as_str().to_owned())
        .ok_or(Doubt::Placeholder(inventory.card(device).pci))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices(n: usize) -> Ordered {
        Ordered { devices: (0..n).map(Device::whole).collect(), meant: n }
    }

    /// Each rank's visible devices, and its own index.
    fn laid_out(layout: Layout, n: usize, ranks: usize) -> Vec<(Vec<usize>, usize)> {
        (0..ranks)
            .map(|rank| {
                let plan = plan(layout, &devices(n), Turn { rank, of: ranks }, Ids::Uuid);
                (plan.visible.iter().map(|d| d.card).collect(), plan.own)
            })
            .collect()
    }

    fn own_cards(layout: Layout, n: usize, ranks: usize) -> Vec<usize> {
        laid_out(layout, n, ranks).iter().map(|(visible, own)| visible[*own]).collect()
    }

    #[test]
    fn all_shows_every_device_and_rank_r_has_index_r() {
        let plans = laid_out(Layout::All, 3, 3);
        assert!(plans.iter().all(|(visible, _)| visible == &[0, 1, 2]));
        assert_eq!(plans.iter().map(|(_, own)| *own).collect::<Vec<_>>(), [0, 1, 2]);
    }

    #[test]
    fn rotate_puts_the_own_device_first_and_the_rest_in_cyclic_order() {
        let visible: Vec<_> = laid_out(Layout::Rotate, 3, 3).into_iter().map(|p| p.0).collect();
        assert_eq!(visible, [[0, 1, 2], [1, 2, 0], [2, 0, 1]]);
    }

    #[test]
    fn more_ranks_than_devices_share_in_blocks_but_modulo_in_all() {
        assert_eq!(own_cards(Layout::Single, 3, 6), [0, 0, 1, 1, 2, 2]);
        assert_eq!(own_cards(Layout::Rotate, 4, 8), [0, 0, 1, 1, 2, 2, 3, 3]);
        assert_eq!(own_cards(Layout::All, 3, 6), [0, 1, 2, 0, 1, 2]);
        assert_eq!(own_cards(Layout::Single, 3, 5), [0, 0, 1, 1, 2]);
    }

    #[test]
    fn fewer_ranks_than_devices_get_contiguous_blocks_and_none_idle() {
        let visible = |n, ranks| -> Vec<Vec<usize>> {
            laid_out(Layout::Single, n, ranks).into_iter().map(|p| p.0).collect()
        };
        assert_eq!(visible(3, 2), [vec![0, 1], vec![2]]);
        assert_eq!(visible(4, 2), [[0, 1], [2, 3]]);
        assert_eq!(visible(4, 3), [vec![0, 1], vec![2], vec![3]]);
        assert_eq!(visible(4, 1), [[0, 1, 2, 3]]);
    }

    #[test]
    fn a_short_map_hands_out_only_what_it_lists() {
        let ordered = Ordered { devices: [2, 0, 1].map(Device::whole).to_vec(), meant: 2 };
        let single = plan(Layout::Single, &ordered, Turn { rank: 1, of: 2 }, Ids::Uuid);
        assert_eq!(single.visible, [Device::whole(0)]);
        let all = plan(Layout::All, &ordered, Turn { rank: 0, of: 2 }, Ids::Uuid);
        assert_eq!(all.visible, ordered.devices);
    }

    #[test]
    fn rule_9_a_slice_in_reach_makes_every_name_a_uuid() {
        let slice = Device { card: 1, slice: Some(0) };
        assert_eq!(written(Ids::Index, &[Device::whole(0)]), Ids::Index);
        assert_eq!(written(Ids::Index, &[Device::whole(0), slice]), Ids::Uuid);
        assert_eq!(written(Ids::Uuid, &[Device::whole(0)]), Ids::Uuid);
    }

    #[test]
    fn auto_keeps_a_binding_and_is_all_without_one() {
        assert_eq!(Layout::of(Mode::Auto, true), Layout::Bound);
        assert_eq!(Layout::of(Mode::Auto, false), Layout::All);
        assert_eq!(Layout::of(Mode::All, true), Layout::All);
    }
}
