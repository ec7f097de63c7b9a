//! A step's whole life on a node with cards, played in forked processes: what each task finds, and
//! where the words go.

use spank_host::{Bytes, Host, Played, Step, Task, built_plugin};

use crate::inputs::Card;
use crate::node::{Information, Node};

/// Three cards whose minors are not in PCI order.
fn cards() -> [Card; 3] {
    [(0x01, 2), (0x41, 0), (0xc1, 1)].map(|(bus, minor)| Card { bus, minor })
}

fn uuid(card: usize) -> String {
    cards()[card].uuid()
}

fn furnish(node: &Node) {
    let tree: Vec<(String, Information)> = cards()
        .iter()
        .map(|card| (card.pci(), Information::Content(card.information().as_str().into())))
        .collect();
    node.set_driver(&tree).expect("the driver's files");
    node.set_devices(&[0, 1, 2]).expect("the device nodes");
    let gres = "Name=gpu File=/dev/nvidia[0-2]\n";
    std::fs::write(node.path("gres.conf"), gres).expect("gres.conf");
}

fn step(node: &Node, words: &str, tasks: Vec<Task>) -> Step {
    Step {
        args: vec![format!("gres_conf={}", node.path("gres.conf").display()).into_bytes().into()],
        options: vec![Some(words.into())],
        env: [
            ("SLURM_STEP_GPUS".to_owned(), Bytes::from("0,1,2")),
            ("CUDA_VISIBLE_DEVICES".to_owned(), Bytes::from("0,1,2")),
            ("HOME".to_owned(), Bytes::from("/")),
        ]
        .into(),
        tasks,
        fork: true,
        ..Step::default()
    }
}

fn play(step: &Step) -> Played {
    let host = Host::load(&built_plugin(), step).expect("the plugin loads");
    host.play_as_told(step).expect("the step is played")
}

/// What holds for every step that goes well.
fn went_well(played: &Played) {
    assert!(!played.hung && played.task_log_copies == 0, "{played:?}");
    for answer in &played.answers {
        assert!(matches!(answer.code, None | Some(0)), "{answer:?}");
    }
    for task in &played.tasks {
        assert!(!task.lost && task.inherited.is_empty(), "{task:?}");
    }
    assert_eq!(String::from_utf8_lossy(&played.stderr.0), "");
    assert!(played.log.is_empty(), "{:?}", played.log);
}

fn variable<'a>(played: &'a Played, task: usize, name: &str) -> &'a str {
    let value = played.tasks[task].env.get(name).map(|bytes| bytes.0.as_slice());
    std::str::from_utf8(value.unwrap_or(b"(unset)")).expect("UTF-8")
}

fn stderr(played: &Played, task: usize) -> String {
    String::from_utf8_lossy(&played.tasks[task].stderr.0).into_owned()
}

const TABLE: &str = "gpu-align:   rank local cuda card  bus           numa  uuid                                      model";

fn row(rank: usize, cuda: usize, card: usize) -> String {
    let (pci, uuid) = (cards()[card].pci(), uuid(card));
    format!(
        "gpu-align: {rank:>6} {rank:>5} {cuda:>4} {card:>4}  {pci}     -  {uuid}  NVIDIA A100-SXM4-80GB"
    )
}

#[test]
fn three_tasks_find_their_cards_in_every_mode() {
    let Some(node) = Node::enter() else {
        return;
    };
    furnish(&node);
    let list = |cards: &[usize]| cards.iter().map(|&c| uuid(c)).collect::<Vec<_>>().join(",");
    // Per task: what it sees, and the cuda index of its own card.
    let all = [0, 1, 2].map(|task| (list(&[0, 1, 2]), task));
    let single = [0, 1, 2].map(|task| (list(&[task]), 0));
    let rotate = [[0, 1, 2], [1, 2, 0], [2, 0, 1]].map(|order| (list(&order), 0));
    let rotating = "gpu-align:   every task's own card is its cuda:0, not cuda:LOCAL_RANK\n";
    for (words, mode, expected, hint) in [
        ("", "all", &all, ""),
        ("all", "all", &all, ""),
        ("single", "single", &single, ""),
        ("rotate", "rotate", &rotate, rotating),
    ] {
        let played = play(&step(&node, words, vec![Task::default(); 3]));
        went_well(&played);
        let mut block = format!(
            "gpu-align: this node step 12.0: 3 tasks, 3 cards, mode {mode}, order pci, ids uuid\n\
             {TABLE}\n"
        );
        for (task, (visible, cuda)) in expected.iter().enumerate() {
            let found = |name| variable(&played, task, name);
            assert_eq!(found("CUDA_VISIBLE_DEVICES"), visible, "{words} {task}");
            assert_eq!(found("GPU_ALIGN_UUIDS"), visible, "{words} {task}");
            assert_eq!(found("GPU_ALIGN_CARD"), uuid(task), "{words} {task}");
            assert_eq!(found("GPU_ALIGN_MODE"), mode);
            assert_eq!(found("GPU_ALIGN_VERSION"), env!("CARGO_PKG_VERSION"));
            assert_eq!(found("CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
            assert_eq!(found("SLURM_STEP_GPUS"), "0,1,2");
            assert_eq!(found("HOME"), "/");
            assert_eq!(played.tasks[task].env.len(), 8);
            block += &format!("{}\n", row(task, *cuda, task));
        }
        assert_eq!(stderr(&played, 0), block + hint, "{words}");
        assert_eq!(stderr(&played, 1) + &stderr(&played, 2), "", "{words}");
    }
}

#[test]
fn indices_count_cards_in_pci_order() {
    let Some(node) = Node::enter() else {
        return;
    };
    furnish(&node);
    let played = play(&step(&node, "single,order=slurm,ids=index", vec![Task::default(); 3]));
    went_well(&played);
    // Slurm's order is that of the minors: 0x41, 0xc1, 0x01.
    for (task, index) in ["1", "2", "0"].into_iter().enumerate() {
        assert_eq!(variable(&played, task, "CUDA_VISIBLE_DEVICES"), index);
    }
}

#[test]
fn a_task_that_dies_leaves_the_others_their_cards_and_the_report() {
    let Some(node) = Node::enter() else {
        return;
    };
    furnish(&node);
    let mut tasks = vec![Task::default(); 3];
    tasks[1].dies = true;
    let played = play(&step(&node, "single", tasks));
    assert!(!played.hung && played.task_log_copies == 0);
    assert_eq!(variable(&played, 2, "CUDA_VISIBLE_DEVICES"), uuid(2));
    let said = String::from_utf8_lossy(&played.stderr.0).into_owned() + &stderr(&played, 0);
    assert!(said.contains(&row(0, 0, 0)) && said.contains(&row(2, 0, 2)), "{said}");
    assert!(!said.contains(&row(1, 0, 1)), "{said}");
}

#[test]
fn words_that_cannot_be_read_are_a_doubt_said_once() {
    let Some(node) = Node::enter() else {
        return;
    };
    furnish(&node);
    let endless = vec![b'a'; 1 << 20];
    for (words, why) in [
        (
            &b"singel"[..],
            "SLURM_GPU_ALIGN: 'singel' is not a word of gpu-align; did you mean 'single'?",
        ),
        (&endless[..], "the value of SLURM_GPU_ALIGN is longer than 65536 bytes"),
    ] {
        let mut step = step(&node, "", vec![Task::default(); 2]);
        step.options.clear();
        step.env.insert("SLURM_GPU_ALIGN".to_owned(), words.to_vec().into());
        let played = play(&step);
        went_well(&played);
        let line = format!(
            "gpu-align: this node step 12.0: CUDA_VISIBLE_DEVICES stays as Slurm made it: {why}\n"
        );
        assert_eq!(stderr(&played, 0), line);
        assert_eq!(variable(&played, 1, "CUDA_VISIBLE_DEVICES"), "0,1,2");
        assert_eq!(variable(&played, 1, "CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
        // A later `off` is not asked what it turned off.
        step.options = vec![Some("off".into())];
        let played = play(&step);
        went_well(&played);
        assert_eq!(stderr(&played, 0), "");
        assert_eq!(variable(&played, 1, "CUDA_DEVICE_ORDER"), "(unset)");
    }
}
