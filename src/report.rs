//! What the user reads: the block in the job's log, a line a task, JSON lines.
//!
//! Invariant: bounded in size, one sentence a line, `gpu-align:` in front of
//! every line that is not JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::align::Caution;
use crate::align::plan::{Layout, Plan};
use crate::align::policy::{Order, Policy};
use crate::device::{Device, Inventory};

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
    Aligned(Plan),
    /// Rule 6: left as Slurm made it, and why.
    Left(String),
    /// It holds no devices, or ended before it could say.
    Silent,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Rank in the step (SLURM_PROCID).
    pub rank: u32,
    /// Local rank on this node (SLURM_LOCALID).
    pub local: u32,
    pub outcome: Outcome,
    pub cautions: Vec<Caution>,
    /// The user's CUDA_DEVICE_ORDER, if it was another one.
    pub replaced_order: Option<String>,
}

/// The tasks of a step on one node.
pub struct Report<'a> {
    pub node: &'a str,
    /// As Slurm writes it: `12.0`, `12.batch`; in a job and in no step of it the
    /// job's number; `None` outside of Slurm.
    pub step: Option<&'a str>,
    pub policy: &'a Policy,
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

    /// `print=json`: one object a line, one line a task, then one a note.
    pub fn json(&self) -> String {
        let mut text = String::new();
        let tasks = self.tasks.iter().filter_map(|task| self.json_line(task));
        for line in tasks.chain(self.notes_said().iter().map(|note| self.json_note(note))) {
            text = text + &line + "\n";
            if text.len() > MAX_BYTES {
                break;
            }
        }
        bounded(text, MAX_BYTES)
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

    fn json_note(&self, note: &str) -> String {
        let version = env!("CARGO_PKG_VERSION");
        serde_json::json!({
            "gpu_align": version, "node": self.node, "step": self.step, "note": note
        })
        .to_string()
    }

    fn json_line(&self, task: &Task) -> Option<String> {
        #[derive(Serialize)]
        struct Seen<'a> {
            cuda: usize,
            card: usize,
            minor: u32,
            pci: String,
            numa: Option<u32>,
            uuid: String,
            model: &'a str,
            /// A slice's, like `1g.10gb`.
            #[serde(skip_serializing_if = "Option::is_none")]
            profile: Option<&'a str>,
        }
        #[derive(Serialize)]
        struct Line<'a> {
            gpu_align: &'a str,
            node: &'a str,
            step: Option<&'a str>,
            rank: u32,
            local: u32,
            mode: Option<String>,
            /// The `cuda` index of the own device.
            own: Option<usize>,
            devices: Vec<Seen<'a>>,
            left: Option<&'a str>,
            /// Several are parted by semicolons.
            caution: Option<String>,
        }
        let (plan, left) = match &task.outcome {
            Outcome::Aligned(plan) => (Some(plan), None),
            Outcome::Left(why) => (None, Some(why.as_str())),
            Outcome::Silent => return None,
        };
        let seen = |(cuda, &device): (usize, &Device)| {
            let card = self.inventory.card(device);
            Seen {
                cuda,
                card: device.card,
                minor: card.minor.0,
                pci: card.pci.to_string(),
                numa: card.numa,
                uuid: self.name(device),
                model: &card.model,
                profile: self.inventory.slice(device).map(|slice| slice.profile.as_str()),
            }
        };
        let cautions: Vec<String> = task.cautions.iter().map(Caution::to_string).collect();
        let line = Line {
            gpu_align: env!("CARGO_PKG_VERSION"),
            node: self.node,
            step: self.step,
            rank: task.rank,
            local: task.local,
            mode: plan.map(|plan| plan.layout.to_string()),
            own: plan.map(|plan| plan.own),
            devices: plan
                .map(|p| p.visible.iter().enumerate().map(seen).collect())
                .unwrap_or_default(),
            left,
            caution: (!cautions.is_empty()).then(|| cautions.join("; ")),
        };
        serde_json::to_string(&line).ok()
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
mod tests {
    use super::*;
    use crate::align::order::Ordered;
    use crate::align::plan::{Turn, plan};
    use crate::align::policy::Ids;
    use crate::device::{Card, Minor};

    /// INV8P of the field cases: eight cards with permuted minors.
    fn inv8p() -> Inventory {
        let card = |(rank, minor): (usize, u32)| Card {
            pci: format!("0000:{:02x}:00.0", 0x20 * rank + 1).parse().unwrap(),
            minor: Minor(minor),
            uuid: format!("GPU-00000000-0008-4000-8000-00000000000{rank}").parse().ok(),
            model: "NVIDIA A100-SXM4-80GB".into(),
            numa: Some(rank as u32 / 2),
            slices: Vec::new(),
        };
        Inventory::new([4, 5, 6, 7, 2, 3, 0, 1].into_iter().enumerate().map(card).collect())
    }

    fn aligned(layout: Layout, cards: &[usize], rank: usize, of: usize) -> Task {
        let devices: Vec<Device> = cards.iter().copied().map(Device::whole).collect();
        let ordered = Ordered { meant: devices.len(), devices };
        task(rank, Outcome::Aligned(plan(layout, &ordered, Turn { rank, of }, Ids::Uuid)))
    }

    fn task(rank: usize, outcome: Outcome) -> Task {
        let rank = rank as u32;
        Task { rank, local: rank, outcome, cautions: Vec::new(), replaced_order: None }
    }

    fn said(words: &str, tasks: &[Task], what: impl Fn(&Report) -> String) -> String {
        let words = words.parse().unwrap();
        let report = Report {
            node: "n1",
            step: Some("12.0"),
            policy: &Policy::resolve([&words]),
            inventory: &inv8p(),
            tasks,
        };
        what(&report)
    }

    /// Compares with `tests/golden/<name>.snap`.
    fn golden(name: &str, text: String) {
        let mut settings = insta::Settings::clone_current();
        settings.set_snapshot_path("../tests/golden");
        settings.set_prepend_module_to_snapshot(false);
        settings.set_omit_expression(true);
        settings.bind(|| insta::assert_snapshot!(name, text));
    }

    #[test]
    fn the_block_of_a_step_whose_tasks_see_all_cards() {
        let tasks: Vec<Task> = (0..3).map(|r| aligned(Layout::All, &[0, 1, 5], r, 3)).collect();
        golden("all", said("all", &tasks, |r| r.block()));
    }

    #[test]
    fn a_lone_launcher_sees_cards_that_are_nobodys_own() {
        golden("launcher", said("", &[aligned(Layout::All, &[0, 1, 5], 0, 1)], |r| r.block()));
    }

    #[test]
    fn a_binding_lists_what_each_task_sees_and_hints_at_the_alternative() {
        let tasks = [6, 1, 0].iter().enumerate().map(|(rank, card)| {
            let mut task = aligned(Layout::Bound, &[*card], 0, 1);
            (task.rank, task.local) = (rank as u32, rank as u32);
            task
        });
        golden("bound", said("", &tasks.collect::<Vec<_>>(), |r| r.block()));
    }

    #[test]
    fn rule_5_tasks_that_share_a_card_are_said_to() {
        let even: Vec<Task> = (0..6).map(|r| aligned(Layout::Single, &[0, 1, 5], r, 6)).collect();
        golden("sharing", said("single", &even, |r| r.block()));
        let odd: Vec<Task> = (0..4).map(|r| aligned(Layout::Single, &[0, 1, 5], r, 4)).collect();
        assert!(
            said("single", &odd, |r| r.notes()).contains("4 tasks share 3 cards: up to 2 on one")
        );
    }

    #[test]
    fn fewer_tasks_than_cards_show_every_card_that_is_theirs() {
        let tasks: Vec<Task> = (0..2).map(|r| aligned(Layout::Single, &[0, 1, 5], r, 2)).collect();
        golden("blocks", said("single", &tasks, |r| r.block()));
    }

    #[test]
    fn a_doubt_and_a_replaced_order_are_one_line_each() {
        let why = "the NVIDIA driver is not loaded: /proc/driver/nvidia/gpus is missing; load it or ask the admin";
        let mut tasks =
            vec![task(0, Outcome::Left(why.into())), task(1, Outcome::Left(why.into()))];
        golden("doubt", said("", &tasks, |r| r.block()));
        tasks[1] = aligned(Layout::All, &[0, 1], 1, 2);
        tasks[1].cautions = vec![Caution::NotInPciOrder];
        tasks[1].replaced_order = Some("FASTEST_FIRST".into());
        golden("mixed", said("", &tasks, |r| r.block()));
    }

    #[test]
    fn the_header_says_the_form_that_was_written_not_the_one_asked_for() {
        let mut tasks = [0, 1].map(|r| aligned(Layout::All, &[0, 1], r, 2));
        let header = |tasks: &[Task]| {
            said("ids=index", tasks, |r| r.block()).lines().next().unwrap().to_owned()
        };
        assert!(header(&tasks).ends_with("order pci, ids uuid"));
        for task in &mut tasks {
            let Outcome::Aligned(plan) = &mut task.outcome else { panic!() };
            plan.ids = Ids::Index;
            assert_eq!(header(&[task.clone()]).rsplit(' ').next(), Some("index"));
        }
        let mixed = [tasks[0].clone(), aligned(Layout::All, &[0, 1], 1, 2)];
        assert!(header(&mixed).ends_with("order pci, ids index or uuid"));
    }

    #[test]
    fn every_caution_of_a_task_is_said_once() {
        let mut tasks = [0, 1].map(|r| aligned(Layout::All, &[0, 1], r, 2));
        for task in &mut tasks {
            task.cautions = vec![Caution::NotInPciOrder, Caution::CountedForContainer];
        }
        let block = said("ids=index", &tasks, |r| r.block());
        assert_eq!(block.matches("unverified: ").count(), 1, "{block}");
        assert_eq!(block.matches("ask with ids=uuid").count(), 1, "{block}");
        let json = said("ids=index", &tasks, |r| r.json());
        let line: serde_json::Value = serde_json::from_str(json.lines().next().unwrap()).unwrap();
        let caution = line["caution"].as_str().unwrap();
        assert!(
            caution.contains("unverified: ") && caution.contains("; CUDA_VISIBLE"),
            "{caution}"
        );
    }

    #[test]
    fn no_line_of_the_block_is_longer_than_a_wide_terminal() {
        let mut task = aligned(Layout::Bound, &[0], 0, 1);
        task.cautions = Caution::ALL.to_vec();
        task.replaced_order = Some("FASTEST_FIRST".into());
        let mut other = task.clone();
        other.local = 1;
        let block = said("map=0,ids=index", &[task, other], |r| r.block());
        assert_eq!(block.lines().count(), 4 + 2 + Caution::ALL.len() + 1, "{block}");
        for line in block.lines() {
            assert!(line.len() <= 160, "{} columns: {line}", line.len());
        }
    }

    #[test]
    fn a_line_a_task_and_json_say_the_same() {
        let tasks: Vec<Task> = (0..2).map(|r| aligned(Layout::Rotate, &[0, 5], r, 2)).collect();
        golden("task", said("rotate", &tasks, |r| r.task_line(&r.tasks[1]).unwrap()));
        golden("json", said("rotate", &tasks, |r| r.json()));
        golden("rotate", said("rotate", &tasks, |r| r.block()));
    }

    #[test]
    fn without_a_step_the_job_or_the_node_alone_is_named() {
        let words = "all".parse().unwrap();
        let tasks = [aligned(Layout::All, &[0, 1], 0, 1), task(1, Outcome::Left("why".into()))];
        for (step, place) in [(Some("12"), "n1 job 12"), (None, "n1")] {
            let report = Report {
                node: "n1",
                step,
                policy: &Policy::resolve([&words]),
                inventory: &inv8p(),
                tasks: &tasks,
            };
            let block = report.block();
            assert!(block.starts_with(&format!("gpu-align: {place}: 2 tasks, ")), "{block}");
            assert!(block.contains(&format!("\ngpu-align: {place}: CUDA_VISIBLE_DEVICES stays")));
            let line = report.task_line(&tasks[0]).unwrap();
            assert!(line.starts_with(&format!("gpu-align: {place} rank 0 local 0: ")), "{line}");
            let json: serde_json::Value =
                serde_json::from_str(report.json().lines().next().unwrap()).unwrap();
            assert_eq!(json["step"].as_str(), step);
        }
    }

    #[test]
    fn rule_8_tasks_without_cards_are_silent() {
        let tasks = [task(0, Outcome::Silent), task(1, Outcome::Silent)];
        for what in [|r: &Report| r.block(), |r: &Report| r.notes(), |r: &Report| r.json()] {
            assert_eq!(said("all", &tasks, what), "");
        }
    }

    #[test]
    fn a_report_is_bounded() {
        let tasks: Vec<Task> = (0..4096).map(|r| aligned(Layout::All, &[0, 1], r, 4096)).collect();
        let text = said("all", &tasks, |r| r.block());
        assert!(text.len() < MAX_BYTES + 100);
        assert!(text.ends_with("gpu-align: the rest is left out, it is too long for a log\n"));
    }
}
