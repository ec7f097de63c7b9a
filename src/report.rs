//! What the user reads: the block in the job's log, a line a task, JSON lines.
//!
//! Invariant: bounded in size, one sentence a line, `gpu-align:` in front of
//! every line that is not JSON.

use std::collections::BTreeMap;

use crate::align::Caution;
use crate::align::plan::{Layout, Plan};
use crate::align::policy::{Order, Policy};
use crate::device::{Device, Inventory};

mod json;

/// All that one node of a step may print in a block, its notes or JSON.
pub const MAX_BYTES: usize = 48 * 1024;

/// The same for the notes below the lines of `print=task`.
const MAX_NOTES: usize = 16 * 1024;

/// The longest line but for JSON, in characters; real ones have some 150.
const MAX_LINE: usize = 1000;

/// Rows that are made at all: more do not fit [`MAX_BYTES`].
const MAX_ROWS: usize = 512;

/// Local ranks that one line lists.
const MAX_RANKS: usize = 64;

/// What became of one task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its environment holds what the plan says.
    Aligned(Plan),
    /// Rule 6: left as Slurm made it, and why.
    Left(String),
    /// It holds no devices, or ended before it could say.
    Silent,
}

/// One task of the node, as the report tells of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Rank in the step (SLURM_PROCID).
    pub rank: u32,
    /// Local rank on this node (SLURM_LOCALID).
    pub local: u32,
    /// What became of it.
    pub outcome: Outcome,
    /// What is to be said of it all the same; empty where it is silent.
    pub cautions: Vec<Caution>,
    /// The user's CUDA_DEVICE_ORDER, if it was another one.
    pub replaced_order: Option<String>,
}

/// The tasks of a step on one node.
pub struct Report<'a> {
    /// Slurm's name of the node.
    pub node: &'a str,
    /// As Slurm writes it: `12.0`, `12.batch`; in a job and in no step of it the
    /// job's number; `None` outside of Slurm.
    pub step: Option<&'a str>,
    /// What was asked for.
    pub policy: &'a Policy,
    /// The cards that the tasks' devices are of.
    pub inventory: &'a Inventory,
    /// In order of local rank.
    pub tasks: &'a [Task],
}

impl Report<'_> {
    /// The block for `print=node`, empty if there is nothing to say.
    pub fn block(&self) -> String {
        let mut text = String::new();
        if let Some(header) = self.header() {
            let mut rows = Vec::new();
            for task in self.tasks {
                if rows.len() <= MAX_ROWS {
                    self.rows(task, &mut rows);
                }
            }
            self.unowned_rows(&mut rows);
            push_line(&mut text, &header);
            text.push_str(&table(&rows));
        }
        self.push_notes(&mut text);
        bounded(text, MAX_BYTES)
    }

    /// The lines below the table: sharing, hints, cautions and doubts.
    pub fn notes(&self) -> String {
        let mut text = String::new();
        self.push_notes(&mut text);
        bounded(text, MAX_NOTES)
    }

    /// Why tasks were left alone, for `strict`, where it ends them.
    pub fn doubts(&self) -> String {
        let mut text = String::new();
        self.push_doubts(&mut text);
        bounded(text, MAX_NOTES)
    }

    /// `print=task`: where one task's own device is.
    pub fn task_line(&self, task: &Task) -> Option<String> {
        let Outcome::Aligned(plan) = &task.outcome else {
            return None;
        };
        let own = plan.own_device();
        let card = self.inventory.card(own);
        let mut text = String::new();
        let line = format!(
            "{} rank {} local {}: cuda:{} is card {} {} {} {} (mode {}, {} visible)",
            self.place(),
            task.rank,
            task.local,
            plan.own,
            own.card,
            card.pci,
            self.name(own),
            card.model,
            plan.layout,
            plan.visible.len(),
        );
        push_line(&mut text, &line);
        Some(text)
    }

    /// `n1 step 12.0`, `n1 job 12`, `n1`.
    fn place(&self) -> String {
        match self.step {
            Some(step) if step.contains('.') => format!("{} step {step}", self.node),
            Some(job) => format!("{} job {job}", self.node),
            None => self.node.to_owned(),
        }
    }

    fn plans(&self) -> impl Iterator<Item = (&Task, &Plan)> {
        self.tasks.iter().filter_map(|task| match &task.outcome {
            Outcome::Aligned(plan) => Some((task, plan)),
            _ => None,
        })
    }

    fn header(&self) -> Option<String> {
        let (_, first) = self.plans().next()?;
        let mut devices: Vec<Device> =
            self.plans().flat_map(|(_, plan)| plan.visible.iter().copied()).collect();
        devices.sort();
        devices.dedup();
        let kind = kind_of(&devices);
        let order = match &self.policy.order {
            Order::Map(_) => "map".to_owned(),
            order => order.to_string(),
        };
        // One task can hold a slice, which has no index, and another a card.
        let ids = match self.plans().all(|(_, plan)| plan.ids == first.ids) {
            true => first.ids.to_string(),
            false => "index or uuid".to_owned(),
        };
        Some(format!(
            "{}: {}, {}, mode {}, order {order}, ids {ids}",
            self.place(),
            count(self.tasks.len(), "task"),
            count(devices.len(), kind),
            first.layout,
        ))
    }

    /// A task's own devices; under a binding all that it sees, which differs
    /// from task to task.
    fn rows(&self, task: &Task, rows: &mut Vec<Row>) {
        let Outcome::Aligned(plan) = &task.outcome else {
            return;
        };
        let shown = match plan.layout {
            Layout::Bound => 0..plan.visible.len(),
            Layout::All if self.lists_differ() => 0..plan.visible.len(),
            _ => plan.own..plan.own + plan.own_count,
        };
        for cuda in shown {
            let device = plan.visible[cuda];
            rows.push(self.row(Some(task), cuda, device));
        }
    }

    /// Whether Slurm's binding shows in what the tasks see, though all of it was asked for.
    fn lists_differ(&self) -> bool {
        let mut lists = self.plans().map(|(_, plan)| &plan.visible);
        lists.next().is_some_and(|first| lists.any(|list| list != first))
    }

    /// Where every task sees the same list, the devices that are nobody's own.
    fn unowned_rows(&self, rows: &mut Vec<Row>) {
        let Some(first) =
            self.plans().map(|(_, plan)| plan).next().filter(|plan| plan.layout == Layout::All)
        else {
            return;
        };
        if self.lists_differ() {
            return;
        }
        for (cuda, &device) in first.visible.iter().enumerate() {
            if self.plans().all(|(_, plan)| plan.own_device() != device) {
                rows.push(self.row(None, cuda, device));
            }
        }
    }

    fn row(&self, task: Option<&Task>, cuda: usize, device: Device) -> Row {
        let number = |n: Option<u32>| n.map_or("-".into(), |n| n.to_string());
        let card = self.inventory.card(device);
        let model = match self.inventory.slice(device) {
            Some(slice) => format!("{} MIG {}", card.model, slice.profile),
            None => card.model.clone(),
        };
        Row([
            number(task.map(|t| t.rank)),
            number(task.map(|t| t.local)),
            cuda.to_string(),
            device.card.to_string(),
            card.pci.to_string(),
            number(card.numa),
            self.name(device),
            model,
        ])
    }

    fn name(&self, device: Device) -> String {
        self.inventory.uuid(device).map_or("-".into(), |uuid| uuid.to_string())
    }

    fn push_notes(&self, text: &mut String) {
        for note in self.notes_said() {
            push_line(text, &format!("  {note}"));
        }
        self.push_doubts(text);
    }

    /// Sharing, hints, cautions and replaced orders, each once.
    fn notes_said(&self) -> Vec<String> {
        let hints = [self.sharing(), self.hint()];
        let cautions = self.tasks.iter().flat_map(|task| &task.cautions).map(Caution::to_string);
        let orders = self
            .tasks
            .iter()
            .filter_map(|task| task.replaced_order.as_deref())
            .map(|old| format!("CUDA_DEVICE_ORDER was {old} and is now PCI_BUS_ID"));
        let mut said: Vec<String> = Vec::new();
        for note in hints.into_iter().flatten().chain(cautions).chain(orders) {
            if !said.contains(&note) {
                said.push(note);
            }
        }
        said
    }

    fn push_doubts(&self, text: &mut String) {
        for (why, locals) in self.left() {
            let who = match locals.len() == self.tasks.len() {
                true => String::new(),
                false => format!(" in local rank {}", join(&locals)),
            };
            let place = self.place();
            push_line(
                text,
                &format!("{place}: CUDA_VISIBLE_DEVICES stays as Slurm made it{who}: {why}"),
            );
        }
    }

    /// The reasons for leaving tasks alone, each with its local ranks.
    fn left(&self) -> BTreeMap<&str, Vec<u32>> {
        let mut left: BTreeMap<&str, Vec<u32>> = BTreeMap::new();
        for task in self.tasks {
            if let Outcome::Left(why) = &task.outcome {
                left.entry(why).or_default().push(task.local);
            }
        }
        left
    }

    /// Rule 5: two ranks on one card are never silent.
    fn sharing(&self) -> Option<String> {
        let mut tasks_of: BTreeMap<Device, usize> = BTreeMap::new();
        for (_, plan) in self.plans() {
            for &device in &plan.visible[plan.own..plan.own + plan.own_count] {
                *tasks_of.entry(device).or_default() += 1;
            }
        }
        let most = *tasks_of.values().max()?;
        let least = *tasks_of.values().min()?;
        let share = |n: usize| match least == most {
            true => format!("{n} on each"),
            false => format!("up to {n} on one"),
        };
        let tasks = self.plans().count();
        (most > 1).then(|| {
            format!(
                "{} share {}: {}",
                count(tasks, "task"),
                count(tasks_of.len(), kind_of(tasks_of.keys())),
                share(most)
            )
        })
    }

    fn hint(&self) -> Option<String> {
        let (_, plan) = self.plans().next()?;
        let several = self.plans().count() > 1;
        let slices = |plan: &Plan| plan.visible.iter().any(|device| device.slice.is_some());
        if self.plans().any(|(_, plan)| plan.visible.len() > 1 && slices(plan)) {
            let hint = "before driver 570 a CUDA process uses the first MIG slice of its list only; \
                        run a task a slice with --gpu-align=single";
            return Some(hint.to_owned());
        }
        let bound =
            plan.layout == Layout::Bound || (plan.layout == Layout::All && self.lists_differ());
        match plan.layout {
            Layout::Rotate if several => {
                Some("every task's own card is its cuda:0, not cuda:LOCAL_RANK".to_owned())
            }
            _ if bound && several && plan.visible.len() == 1 && !slices(plan) => Some(
                "Slurm binds each task to its own card, which is its cuda:0; for cuda:LOCAL_RANK or peer \
                 access ask with --gres=gpu:N --gpu-align=all"
                    .to_owned(),
            ),
            _ => None,
        }
    }
}

/// What several devices are called together.
fn kind_of<'a>(devices: impl IntoIterator<Item = &'a Device>) -> &'static str {
    match devices.into_iter().all(|device| device.slice.is_none()) {
        true => "card",
        false => "device",
    }
}

/// rank, local, cuda, card, bus, numa, uuid, model.
struct Row([String; 8]);

impl Row {
    fn head() -> Row {
        Row(["rank", "local", "cuda", "card", "bus", "numa", "uuid", "model"].map(String::from))
    }
}

fn table(rows: &[Row]) -> String {
    let width = |column: usize, least: usize| {
        rows.iter().map(|row| row.0[column].len()).max().unwrap_or(0).max(least)
    };
    let (bus, uuid) = (width(4, 12), width(6, 40));
    let mut text = String::new();
    for Row(cell) in std::iter::once(&Row::head()).chain(rows) {
        let line = format!(
            "{:>6} {:>5} {:>4} {:>4}  {:<bus$}  {:>4}  {:<uuid$}  {}",
            cell[0], cell[1], cell[2], cell[3], cell[4], cell[5], cell[6], cell[7]
        );
        push_line(&mut text, &line);
    }
    text
}

fn push_line(text: &mut String, line: &str) {
    let clean = |c: char| if c.is_control() { '?' } else { c };
    text.push_str("gpu-align: ");
    text.extend(line.chars().take(MAX_LINE).map(clean));
    text.push('\n');
}

fn count(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

fn join(numbers: &[u32]) -> String {
    let list = numbers.iter().take(MAX_RANKS).map(u32::to_string).collect::<Vec<_>>().join(",");
    match numbers.len().saturating_sub(MAX_RANKS) {
        0 => list,
        more => format!("{list} and {more} more"),
    }
}

/// Cuts a text at a line's end before `most` bytes, and says so.
pub fn bounded(mut text: String, most: usize) -> String {
    if text.len() > most {
        let end = text.as_bytes()[..most].iter().rposition(|&b| b == b'\n').map_or(0, |i| i + 1);
        text.truncate(end);
        push_line(&mut text, "the rest is left out, it is too long for a log");
    }
    text
}

#[cfg(test)]
mod tests;
