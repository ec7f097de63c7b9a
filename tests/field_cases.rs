//! Faults that people met in public, each a data file in `tests/cases`, all
//! played by one loop: node, gres.conf, Slurm's variables and the kernel's
//! answers in; every task's environment and the log out.
//!
//! In a file `{6}` stands for the UUID of the card of rank 6, `{0/1}` for that
//! of slice 1 of the card of rank 0; ranks count the node file's cards in PCI
//! order, lost ones included.

mod played;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use gpu_align::align::allotment::Reading;
use gpu_align::align::policy::{Policy, Words};
use gpu_align::device::Inventory;
use gpu_align::launch::{Decision, Step, doubtful_variables};
use gpu_align::report::{Outcome, Report, Task};
use gpu_align::slurm::gres_conf::GresError;
use gpu_align::slurm::gres_list::GresList;
use gpu_align::slurm::step::{Kind, Said};
use played::{Player, device_file, inventory, play};
use serde::Deserialize;
use sim_node::{DeviceFile, Node};

type Env = BTreeMap<String, String>;

/// A data file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Case {
    /// What went wrong for whom.
    title: String,
    /// A file of tests/nodes.
    node: String,
    /// Ranks of cards that fell off the bus.
    #[serde(default)]
    gone: Vec<usize>,
    /// Why the driver cannot be read.
    driver: Option<String>,
    gres: String,
    /// What slurm.conf says of the node, `n1`.
    #[serde(default)]
    slurm: String,
    /// Links to device files: name → minor.
    #[serde(default)]
    links: BTreeMap<String, u32>,
    #[serde(default)]
    kind: StepKind,
    #[serde(default)]
    reading: SiteReading,
    /// The step's variables; a task has them too.
    #[serde(default)]
    step: Env,
    task: Vec<CaseTask>,
    /// What is asked for, and what must come of it; each plays the step anew.
    launch: Vec<Launch>,
    /// Jobs without gpu-align on the same node.
    #[serde(default)]
    neighbour: Vec<Neighbour>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StepKind {
    #[default]
    Normal,
    Batch,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum SiteReading {
    #[default]
    Rank,
    File,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseTask {
    /// So many tasks in a row are alike.
    #[serde(default = "once")]
    times: usize,
    /// Minors of `/dev/nvidiaN` that the kernel lets it open.
    opens: Vec<u32>,
    /// And of `/dev/nvidia-caps/nvidia-capN`.
    #[serde(default)]
    caps: Vec<u32>,
    #[serde(default)]
    env: Env,
}

fn once() -> usize {
    1
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Launch {
    words: String,
    /// CUDA_VISIBLE_DEVICES of every task.
    cuda: Option<Vec<String>>,
    /// The own device of every task.
    own: Option<Vec<String>>,
    /// Rule 6: nothing but CUDA's order is set, and the log says why.
    #[serde(default)]
    left: bool,
    /// Rule 8: nothing is set and nothing said.
    #[serde(default)]
    silent: bool,
    /// What the log must hold, blanks folded.
    #[serde(default)]
    log: Vec<String>,
    #[serde(default)]
    never: Vec<String>,
}

/// A job that opens all cards of the node and has CUDA_VISIBLE_DEVICES from Slurm.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Neighbour {
    cuda: String,
    cards: Vec<String>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// The data files by name, `FC-22-b`.
fn cases() -> BTreeMap<String, Case> {
    let mut cases = BTreeMap::new();
    for entry in fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("FC-") {
            let text = fs::read_to_string(&path).unwrap();
            let case = toml::from_str(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
            cases.insert(name, case);
        }
    }
    cases
}

#[test]
fn every_field_case_comes_out_as_it_should() {
    let mut wrong = Vec::new();
    let cases = cases();
    for (name, case) in &cases {
        for launch in &case.launch {
            let played = std::panic::catch_unwind(|| case.play(launch));
            if let Err(why) = played {
                let why = why.downcast_ref::<String>().cloned().unwrap_or_default();
                wrong.push(format!("{name} ({}), words '{}':\n{why}", case.title, launch.words));
            }
        }
    }
    assert!(wrong.is_empty(), "{} launches went wrong:\n{}", wrong.len(), wrong.join("\n\n"));
    assert!(cases.len() > 30);
}

impl Case {
    /// The node, its cards in PCI order, lost ones included.
    fn node(&self) -> Node {
        let nodes = folder().join("../nodes");
        let mut node = Node::read(&nodes.join(format!("{}.json", self.node))).unwrap();
        node.cards.sort_by_key(|card| card.pci);
        for &rank in &self.gone {
            node.cards[rank].gone = true;
        }
        node
    }

    fn play(&self, launch: &Launch) {
        let node = self.node();
        let tasks: Vec<&CaseTask> =
            self.task.iter().flat_map(|task| std::iter::repeat_n(task, task.times)).collect();
        let step = self.step(&node, launch, tasks.len());
        let envs: Vec<Env> = tasks
            .iter()
            .map(|task| self.step.iter().chain(&task.env).map(own_pair).collect())
            .collect();
        let opens: Vec<_> = tasks
            .iter()
            .map(|task| {
                let gone = |minor| node.cards.iter().any(|c| c.minor == minor && c.gone);
                move |file| match file {
                    DeviceFile::Card(minor) => task.opens.contains(&minor) && !gone(minor),
                    DeviceFile::Cap(minor) => task.caps.contains(&minor),
                }
            })
            .collect();
        let reads: Vec<_> = envs.iter().map(|env| |name: &str| env.get(name).cloned()).collect();
        let players: Vec<Player> =
            opens.iter().zip(&reads).map(|(opens, env)| Player { opens, env }).collect();
        let decisions = play(&step, &players);

        for (local, decision) in decisions.iter().enumerate() {
            launch.check(&node, local, &players[local], decision);
        }
        launch.check_log(&node, &log(&step, &envs, &decisions));
        self.check_neighbours(&node, &decisions);
    }

    fn step(&self, node: &Node, launch: &Launch, tasks: usize) -> Step {
        let known = inventory(node);
        let exists = |file: DeviceFile| match file {
            DeviceFile::Card(minor) => node.cards.iter().any(|c| c.minor == minor && !c.gone),
            DeviceFile::Cap(_) => true,
        };
        let stat = |path: &str| match self.links.get(path).map(|&minor| DeviceFile::Card(minor)) {
            Some(file) => number(Some(file).filter(|f| exists(*f))),
            None => number(device_file(path).filter(|f| exists(*f))),
        };
        let list = GresList::from_text(&self.gres, &self.slurm, "n1", &stat, &known);
        let words: Words = launch.words.parse().unwrap();
        let kind = match self.kind {
            StepKind::Normal => Kind::Normal,
            StepKind::Batch => Kind::Batch,
        };
        Step {
            node: "n1".into(),
            name: "12.0".into(),
            policy: Policy::resolve([&words]),
            cards_gone: matches!(list, Err(GresError::CardsGone { .. })),
            positions: list.ok().map(|list| list.devices()),
            said: Said::read(kind, |name| self.step.get(name).cloned()),
            gap: None,
            reading: match self.reading {
                SiteReading::Rank => Reading::Rank,
                SiteReading::File => Reading::File,
            },
            tasks,
            inventory: self.driver.clone().map_or(Ok(known), Err),
        }
    }

    /// What jobs without gpu-align open, and that this step does not meet them.
    fn check_neighbours(&self, node: &Node, decisions: &[Result<Option<Decision>, String>]) {
        for neighbour in &self.neighbour {
            let cuda = sim_cuda::enumerate(node, &|_| true, None, Some(&neighbour.cuda)).unwrap();
            let theirs: Vec<String> = cuda.into_iter().map(|entry| entry.uuid).collect();
            assert_eq!(theirs, spelt_all(&neighbour.cards, node), "the neighbour's cards");
            for decision in decisions.iter().flatten().flatten() {
                let ours = variable(decision, "GPU_ALIGN_UUIDS").unwrap();
                let meet = ours.split(',').any(|uuid| theirs.iter().any(|their| their == uuid));
                assert!(!meet, "{ours} meets the neighbour's {theirs:?}");
            }
        }
    }
}

fn own_pair((name, value): (&String, &String)) -> (String, String) {
    (name.clone(), value.clone())
}

/// Major and minor of a device file.
fn number(file: Option<DeviceFile>) -> Option<(u32, u32)> {
    file.map(|file| match file {
        DeviceFile::Card(minor) => (195, minor),
        DeviceFile::Cap(minor) => (239, minor),
    })
}

/// The text with `{6}` and `{0/1}` replaced by UUIDs.
fn spelt(text: &str, node: &Node) -> String {
    let mut text = text.to_owned();
    for (rank, card) in node.cards.iter().enumerate() {
        text = text.replace(&format!("{{{rank}}}"), &card.uuid);
        for (place, slice) in card.slices.iter().enumerate() {
            text = text.replace(&format!("{{{rank}/{place}}}"), &slice.uuid);
        }
    }
    text
}

fn spelt_all(texts: &[String], node: &Node) -> Vec<String> {
    texts.iter().map(|text| spelt(text, node)).collect()
}

fn variable<'a>(decision: &'a Decision, name: &str) -> Option<&'a str> {
    decision.variables.iter().find(|(n, _)| *n == name).map(|(_, value)| value.as_str())
}

fn folded(text: &str) -> String {
    text.lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join("\n")
}

/// The block that the node writes, as the plugin puts it together.
fn log(step: &Step, envs: &[Env], decisions: &[Result<Option<Decision>, String>]) -> String {
    static NO_CARDS: Inventory = Inventory::empty();
    let task = |(local, decision): (usize, &Result<Option<Decision>, String>)| Task {
        rank: local as u32,
        local: local as u32,
        outcome: match decision {
            Ok(None) => Outcome::Silent,
            Ok(Some(decision)) => Outcome::Aligned(decision.plan.clone()),
            Err(why) => Outcome::Left(why.clone()),
        },
        cautions: match decision {
            Ok(Some(decision)) => decision.cautions.clone(),
            _ => Vec::new(),
        },
        replaced_order: envs[local].get("CUDA_DEVICE_ORDER").cloned(),
    };
    let tasks: Vec<Task> = decisions.iter().enumerate().map(task).collect();
    let report = Report {
        node: &step.node,
        step: Some(&step.name),
        policy: &step.policy,
        inventory: step.inventory.as_ref().unwrap_or(&NO_CARDS),
        tasks: &tasks,
    };
    report.block()
}

impl Launch {
    fn check(
        &self,
        node: &Node,
        local: usize,
        task: &Player,
        decision: &Result<Option<Decision>, String>,
    ) {
        let who = format!("local rank {local}");
        if self.left || self.silent {
            assert_eq!(decision.is_err(), self.left, "{who}: {decision:?}");
            assert_eq!(matches!(decision, Ok(None)), self.silent, "{who}: {decision:?}");
            return;
        }
        let decision = match decision {
            Ok(Some(decision)) => decision,
            other => panic!("{who} is not aligned: {other:?}"),
        };
        // Rule 7, and no other vendor's variable either: these and no more.
        let names: BTreeSet<&str> = decision.variables.iter().map(|(name, _)| *name).collect();
        let ours = ["CUDA_DEVICE_ORDER", "CUDA_VISIBLE_DEVICES", "GPU_ALIGN_CARD"];
        let ours = ours.into_iter().chain(["GPU_ALIGN_MODE", "GPU_ALIGN_UUIDS"]);
        assert_eq!(names, ours.chain(["GPU_ALIGN_VERSION"]).collect(), "{who}");
        assert_eq!(variable(decision, "CUDA_DEVICE_ORDER"), Some("PCI_BUS_ID"));

        let visible = variable(decision, "CUDA_VISIBLE_DEVICES").unwrap();
        let expected = self.cuda.as_ref().expect("the launch says what the tasks see");
        assert_eq!(visible, spelt(&expected[local], node), "{who}: CUDA_VISIBLE_DEVICES");
        let uuids: Vec<&str> = variable(decision, "GPU_ALIGN_UUIDS").unwrap().split(',').collect();
        assert_eq!(task.cuda(node, decision), uuids, "{who}: as CUDA reads it");
        let own = variable(decision, "GPU_ALIGN_CARD").unwrap();
        let expected = self.own.as_ref().expect("the launch says what is whose");
        assert_eq!(own, spelt(&expected[local], node), "{who}: the own device");
        assert_eq!(own, uuids[decision.plan.own], "{who}: the own device's index");
    }

    fn check_log(&self, node: &Node, log: &str) {
        let text = folded(log);
        for line in &self.log {
            let line = spelt(line, node);
            assert!(text.contains(&folded(&line)), "the log lacks '{line}':\n{log}");
        }
        for line in &self.never {
            let line = spelt(line, node);
            assert!(!text.contains(&folded(&line)), "the log must not hold '{line}':\n{log}");
        }
        assert_eq!(log.is_empty(), self.silent, "{log}");
        assert!(log.lines().all(|line| line.starts_with("gpu-align: ")), "{log}");
        assert!(!log.contains("error:"), "information looks like an error:\n{log}");
        if !self.silent {
            assert!(!self.log.is_empty(), "a launch that speaks has an expected line");
        }
    }
}

/// `elsewhere.toml`: what no data file says.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Elsewhere {
    held: Vec<Held>,
    out_of_scope: Vec<OutOfScope>,
}

/// Held by another test than this one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Held {
    case: String,
    by: String,
    what: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutOfScope {
    case: String,
    why: String,
}

/// Every case of the index.
const NUMBERS: [u32; 41] = [
    1, 2, 4, 6, 7, 10, 11, 12, 14, 15, 16, 17, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31,
    32, 33, 34, 35, 37, 38, 39, 41, 42, 44, 45, 46, 47, 48, 49, 50,
];

/// Hard cases run in the cluster too, where Slurm and a kernel take part…
const LIVE: [u32; 10] = [1, 2, 7, 14, 38, 41, 42, 45, 46, 50];

/// …or in another live test that `elsewhere.toml` names…
const LIVE_ELSEWHERE: [u32; 3] = [6, 35, 37];

/// …or need what the cluster does not have.
const NOT_LIVE: [u32; 1] = [39];

fn elsewhere() -> Elsewhere {
    toml::from_str(&fs::read_to_string(folder().join("elsewhere.toml")).unwrap()).unwrap()
}

fn names_case(name: &str, number: u32) -> bool {
    let case = format!("FC-{number:02}");
    name == case || name.starts_with(&format!("{case}-"))
}

#[test]
fn no_case_is_skipped_in_silence() {
    let Elsewhere { held, out_of_scope } = elsewhere();
    let files = cases().into_keys();
    let listed = held.iter().map(|h| &h.case);
    let listed = listed.chain(out_of_scope.iter().map(|o| &o.case)).cloned();
    let all: Vec<String> = files.chain(listed).collect();
    for number in NUMBERS {
        assert!(all.iter().any(|name| names_case(name, number)), "FC-{number:02} is nowhere");
    }
    for name in &all {
        assert!(NUMBERS.iter().any(|&number| names_case(name, number)), "{name} is no case");
    }
}

#[test]
fn what_is_held_elsewhere_is_there() {
    let Elsewhere { held, out_of_scope } = elsewhere();
    for Held { case, by, what } in &held {
        let (file, test) = by.split_once("::").expect("FILE::TEST");
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file));
        let text = text.unwrap_or_else(|why| panic!("{case}: {file}: {why}"));
        assert!(text.contains(&format!(" {test}(")) && !what.is_empty(), "{case}: {by} is nowhere");
    }
    assert!(out_of_scope.iter().all(|o| !o.why.is_empty()));
}

#[test]
fn hard_cases_run_in_the_cluster_or_say_why_not() {
    let live = fs::read_to_string(folder().join("../live/test_field_cases.py")).unwrap();
    for number in LIVE {
        assert!(live.contains(&format!("def test_fc_{number:02}_")), "FC-{number:02} is not live");
    }
    let Elsewhere { held, out_of_scope } = elsewhere();
    for number in LIVE_ELSEWHERE {
        let live = |h: &Held| names_case(&h.case, number) && h.by.starts_with("tests/live/");
        assert!(held.iter().any(live), "FC-{number:02} is not live");
    }
    for number in NOT_LIVE {
        let said = out_of_scope.iter().any(|o| names_case(&o.case, number));
        assert!(said, "FC-{number:02} is hard, and neither runs in the cluster nor says why");
    }
}

#[test]
fn rule_6_what_a_doubt_sets_is_cudas_order_and_a_trace() {
    let set: Vec<&str> = doubtful_variables().iter().map(|(name, _)| *name).collect();
    assert_eq!(set, ["CUDA_DEVICE_ORDER", "GPU_ALIGN_VERSION"]);
}
