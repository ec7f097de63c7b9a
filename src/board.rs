//! The board: what the tasks of a step on one node tell each other.
//!
//! slurmstepd forks the tasks, so a shared page made before is all they have in
//! common. Each task writes its own slot; whoever finishes last reads them all
//! and writes the report. Nobody waits, but where Slurm binds several tasks to
//! the same set of devices: to split the set a task must know who else holds it.
//!
//! Invariant: a slot is written by one process only, and read by others after
//! its state says so. Plain atomics, so that no byte in it can be unsound.

use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::align::Caution;
use crate::align::plan::{Layout, Plan, Turn};
use crate::align::policy::Ids;
use crate::device::Device;
use crate::report::{Outcome, Task};
use crate::shared_struct;
use crate::spank::SharedText;

/// Devices are told apart by their place among the node's devices.
pub const MAX_DEVICES: usize = 256;

const NOTHING: u32 = 0;
const HOLDS: u32 = 1;
const DONE: u32 = 2;

shared_struct! {
    /// One task's place. All zero is a valid, empty slot.
    pub struct Slot {
        state: AtomicU32,
        rank: AtomicU32,
        /// Bit d: the task's allotment has device d.
        held: [AtomicU64; MAX_DEVICES / 64],
        outcome: AtomicU8,
        layout: AtomicU8,
        ids: AtomicU8,
        /// Bit c: the c-th of [`Caution::ALL`].
        cautions: AtomicU8,
        own: AtomicU32,
        own_count: AtomicU32,
        visible_count: AtomicU32,
        visible: [AtomicU8; MAX_DEVICES],
        why: SharedText<512>,
        replaced_order: SharedText<32>,
        /// In the first slot, once the report is being written: 1.
        reported: AtomicU32,
    }
}

/// The slots of a step, by local rank; `devices` are the node's, in PCI order.
#[derive(Clone, Copy)]
pub struct Board<'a> {
    /// One a task of this node.
    pub slots: &'a [Slot],
    /// No more than [`MAX_DEVICES`] of them can be told apart.
    pub devices: &'a [Device],
}

impl Board<'_> {
    /// Publishes what a task holds and waits, no longer than `patience`, until
    /// every task did; then tells its turn among those that hold the same.
    ///
    /// `None` if another task stays silent.
    pub fn turn(&self, local: usize, held: &[Device], patience: Duration) -> Option<Turn> {
        let own = self.bits(held);
        let slot = self.slots.get(local)?;
        for (cell, bits) in slot.held.iter().zip(own) {
            cell.store(bits, Ordering::Relaxed);
        }
        slot.state.fetch_max(HOLDS, Ordering::AcqRel);

        let deadline = Instant::now() + patience;
        while self.slots.iter().any(|slot| slot.state.load(Ordering::Acquire) == NOTHING) {
            if Instant::now() > deadline {
                return None;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        let holds_the_same = |slot: &&Slot| {
            slot.held.iter().zip(own).all(|(cell, bits)| cell.load(Ordering::Relaxed) == bits)
        };
        Some(Turn {
            rank: self.slots[..local].iter().filter(holds_the_same).count(),
            of: self.slots.iter().filter(holds_the_same).count(),
        })
    }

    /// Publishes what became of a task.
    pub fn finish(&self, task: &Task) {
        let Some(slot) = self.slots.get(task.local as usize) else {
            return;
        };
        slot.rank.store(task.rank, Ordering::Relaxed);
        let said = |(bit, caution): (usize, _)| u8::from(task.cautions.contains(caution)) << bit;
        let cautions = Caution::ALL.iter().enumerate().map(said).sum();
        slot.cautions.store(cautions, Ordering::Relaxed);
        if let Some(old) = &task.replaced_order {
            slot.replaced_order.publish(old);
        }
        match &task.outcome {
            Outcome::Silent => slot.outcome.store(0, Ordering::Relaxed),
            Outcome::Left(why) => {
                slot.why.publish(why);
                slot.outcome.store(1, Ordering::Relaxed);
            }
            Outcome::Aligned(plan) => {
                self.write_plan(slot, plan);
                slot.outcome.store(2, Ordering::Relaxed);
            }
        }
        slot.state.store(DONE, Ordering::SeqCst);
    }

    /// Says for a task that ended early that it has nothing to say.
    pub fn ended(&self, local: usize) {
        if let Some(slot) = self.slots.get(local) {
            slot.state.store(DONE, Ordering::SeqCst);
        }
    }

    fn all_done(&self) -> bool {
        self.slots.iter().all(|slot| slot.state.load(Ordering::SeqCst) == DONE)
    }

    /// Whether the caller is the one to write the report: every task is done
    /// and nobody claimed it before.
    pub fn claim_report(&self) -> bool {
        let claim = |first: &Slot| first.reported.swap(1, Ordering::SeqCst) == 0;
        self.all_done() && self.slots.first().is_some_and(claim)
    }

    /// What became of every task, in order of local rank.
    pub fn tasks(&self) -> Vec<Task> {
        let task = |(local, slot): (usize, &Slot)| Task {
            rank: slot.rank.load(Ordering::Relaxed),
            local: local as u32,
            outcome: match slot.outcome.load(Ordering::Relaxed) {
                1 => Outcome::Left(slot.why.read().unwrap_or_default()),
                2 => self.read_plan(slot).map_or(Outcome::Silent, Outcome::Aligned),
                _ => Outcome::Silent,
            },
            cautions: read_cautions(slot),
            replaced_order: slot.replaced_order.read(),
        };
        self.slots.iter().enumerate().map(task).collect()
    }

    fn write_plan(&self, slot: &Slot, plan: &Plan) {
        let places = plan.visible.iter().filter_map(|device| self.place(*device));
        let mut count = 0;
        for (cell, place) in slot.visible.iter().zip(places) {
            cell.store(place as u8, Ordering::Relaxed);
            count += 1;
        }
        slot.visible_count.store(count, Ordering::Relaxed);
        slot.layout.store(plan.layout as u8, Ordering::Relaxed);
        slot.ids.store(plan.ids as u8, Ordering::Relaxed);
        slot.own.store(plan.own as u32, Ordering::Relaxed);
        slot.own_count.store(plan.own_count as u32, Ordering::Relaxed);
    }

    fn read_plan(&self, slot: &Slot) -> Option<Plan> {
        let count = slot.visible_count.load(Ordering::Relaxed) as usize;
        let device =
            |cell: &AtomicU8| self.devices.get(usize::from(cell.load(Ordering::Relaxed))).copied();
        let layouts = [Layout::Bound, Layout::All, Layout::Single, Layout::Rotate];
        let layout = slot.layout.load(Ordering::Relaxed);
        let ids = slot.ids.load(Ordering::Relaxed);
        let plan = Plan {
            ids: [Ids::Uuid, Ids::Index].into_iter().find(|i| *i as u8 == ids)?,
            layout: layouts.into_iter().find(|l| *l as u8 == layout)?,
            visible: slot.visible.iter().take(count).map(device).collect::<Option<_>>()?,
            own: slot.own.load(Ordering::Relaxed) as usize,
            own_count: slot.own_count.load(Ordering::Relaxed) as usize,
        };
        let own = plan.own.checked_add(plan.own_count)?;
        (plan.own_count > 0 && own <= plan.visible.len()).then_some(plan)
    }

    fn bits(&self, held: &[Device]) -> [u64; MAX_DEVICES / 64] {
        let mut bits = [0; MAX_DEVICES / 64];
        for place in held.iter().filter_map(|device| self.place(*device)) {
            bits[place / 64] |= 1 << (place % 64);
        }
        bits
    }

    /// A device's place among the node's, if a slot can hold it.
    fn place(&self, device: Device) -> Option<usize> {
        self.devices.iter().take(MAX_DEVICES).position(|d| *d == device)
    }
}

fn read_cautions(slot: &Slot) -> Vec<Caution> {
    let bits = slot.cautions.load(Ordering::Relaxed);
    let said = |(bit, _): &(usize, Caution)| bits & (1 << bit) != 0;
    Caution::ALL.into_iter().enumerate().filter(said).map(|(_, caution)| caution).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spank::SharedSlots;

    /// A slot that holds `all` bits or none at all, as no task writes it.
    fn spoilt(write: impl Fn(&Slot)) -> Vec<Task> {
        let slots = SharedSlots::<Slot>::new(1).unwrap();
        let devices: Vec<Device> = (0..3).map(Device::whole).collect();
        write(&slots[0]);
        Board { slots: &slots, devices: &devices }.tasks()
    }

    #[test]
    fn what_a_slot_holds_is_never_trusted() {
        let silent = |write: &dyn Fn(&Slot)| {
            let tasks = spoilt(|slot| {
                slot.outcome.store(2, Ordering::Relaxed);
                slot.layout.store(Layout::All as u8, Ordering::Relaxed);
                slot.visible_count.store(1, Ordering::Relaxed);
                slot.own_count.store(1, Ordering::Relaxed);
                write(slot);
            });
            tasks[0].outcome == Outcome::Silent
        };
        assert!(!silent(&|_| ()));
        assert!(silent(&|slot| slot.own.store(1, Ordering::Relaxed)));
        assert!(silent(&|slot| slot.own_count.store(0, Ordering::Relaxed)));
        assert!(silent(&|slot| slot.own_count.store(u32::MAX, Ordering::Relaxed)));
        assert!(silent(&|slot| slot.visible_count.store(0, Ordering::Relaxed)));
        assert!(silent(&|slot| slot.visible[0].store(9, Ordering::Relaxed)));
        assert!(silent(&|slot| slot.layout.store(9, Ordering::Relaxed)));
        assert!(silent(&|slot| slot.ids.store(9, Ordering::Relaxed)));
        assert!(silent(&|slot| slot.outcome.store(9, Ordering::Relaxed)));
    }

    #[test]
    fn a_reason_of_two_sentences_reaches_the_report_whole() {
        let slots = SharedSlots::<Slot>::new(1).unwrap();
        let board = Board { slots: &slots, devices: &[] };
        let outcome = Outcome::Left("x".repeat(450));
        let task = Task { rank: 3, local: 0, outcome, cautions: Vec::new(), replaced_order: None };
        board.finish(&task);
        assert_eq!(board.tasks(), [task]);
    }

    #[test]
    fn several_cautions_and_the_form_reach_the_report() {
        let slots = SharedSlots::<Slot>::new(1).unwrap();
        let devices = [Device::whole(0)];
        let board = Board { slots: &slots, devices: &devices };
        for cautions in [vec![], vec![Caution::NotInPciOrder], Caution::ALL.to_vec()] {
            let plan = Plan {
                layout: Layout::All,
                visible: devices.to_vec(),
                own: 0,
                own_count: 1,
                ids: Ids::Index,
            };
            let outcome = Outcome::Aligned(plan);
            let task = Task { rank: 0, local: 0, outcome, cautions, replaced_order: None };
            board.finish(&task);
            assert_eq!(board.tasks(), [task]);
        }
    }

    #[test]
    fn a_task_without_a_slot_has_no_turn_and_no_place() {
        let slots = SharedSlots::<Slot>::new(1).unwrap();
        let board = Board { slots: &slots, devices: &[] };
        assert_eq!(board.turn(7, &[], Duration::ZERO), None);
        board.ended(7);
        assert!(!board.claim_report());
    }
}
