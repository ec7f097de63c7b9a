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
    settings.set_snapshot_path("../../tests/golden");
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
    assert!(said("single", &odd, |r| r.notes()).contains("4 tasks share 3 cards: up to 2 on one"));
}

#[test]
fn fewer_tasks_than_cards_show_every_card_that_is_theirs() {
    let tasks: Vec<Task> = (0..2).map(|r| aligned(Layout::Single, &[0, 1, 5], r, 2)).collect();
    golden("blocks", said("single", &tasks, |r| r.block()));
}

#[test]
fn a_doubt_and_a_replaced_order_are_one_line_each() {
    let why = "the NVIDIA driver is not loaded: /proc/driver/nvidia/gpus is missing; load it or ask the admin";
    let mut tasks = vec![task(0, Outcome::Left(why.into())), task(1, Outcome::Left(why.into()))];
    golden("doubt", said("", &tasks, |r| r.block()));
    tasks[1] = aligned(Layout::All, &[0, 1], 1, 2);
    tasks[1].cautions = vec![Caution::NotInPciOrder];
    tasks[1].replaced_order = Some("FASTEST_FIRST".into());
    golden("mixed", said("", &tasks, |r| r.block()));
}

#[test]
fn the_header_says_the_form_that_was_written_not_the_one_asked_for() {
    let mut tasks = [0, 1].map(|r| aligned(Layout::All, &[0, 1], r, 2));
    let header =
        |tasks: &[Task]| said("ids=index", tasks, |r| r.block()).lines().next().unwrap().to_owned();
    assert!(header(&tasks).ends_with("order pci, ids uuid"));
    for task in &mut tasks {
        let Outcome::Aligned(plan) = &mut task.outcome else { panic!() };
        plan.ids = Ids::Index;
        assert_eq!(header(std::slice::from_ref(task)).rsplit(' ').next(), Some("index"));
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
    assert!(caution.contains("unverified: ") && caution.contains("; CUDA_VISIBLE"), "{caution}");
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
