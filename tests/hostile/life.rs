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

#[test]
fn many_tasks_say_no_more_than_few() {
    let Some(node) = Node::enter() else {
        return;
    };
    furnish(&node);
    for words in ["print=node", "print=task", "print=json"] {
        // 5000: more than can share a page, so that none can speak for all.
        for local_tasks in [None, Some(5000), Some(0)] {
            let mut step = step(&node, words, vec![Task::default(); 600]);
            step.items.local_tasks = local_tasks;
            step.fork = false;
            step.hooks = ["init", "options", "init_post_opt", "user_init", "task_init", "exit"]
                .map(str::to_owned)
                .into();
            let played = play(&step);
            let output = played.output();
            assert!((500..64 * 1024).contains(&output), "{words} {local_tasks:?}: {output}");
        }
    }
}

#[test]
fn a_log_is_let_go_of_although_slurm_counts_no_tasks() {
    let Some(node) = Node::enter() else {
        return;
    };
    furnish(&node);
    let mut step = step(&node, "", vec![Task::default()]);
    step.items.local_tasks = Some(0);
    assert_eq!(play(&step).task_log_copies, 0);
}

#[test]
fn a_sibling_that_died_costs_a_bound_task_a_moment_and_a_doubt() {
    let Some(node) = Node::enter() else {
        return;
    };
    furnish(&node);
    let bound = [("SLURMD_TRES_BIND", "gres/gpu:map_gpu:0"), ("CUDA_VISIBLE_DEVICES", "0,1")];
    let env = bound.map(|(name, value)| (name.to_owned(), Some(value.into()))).into();
    let mut tasks = vec![Task { env, ..Task::default() }; 3];
    tasks[2].dies = true;
    let played = play(&step(&node, "single", tasks));
    assert!(!played.hung);
    // 250 ms, and as much again for a loaded machine.
    assert!(played.slowest() < 500_000, "{} us", played.slowest());
    let said = String::from_utf8_lossy(&played.stderr.0).into_owned() + &stderr(&played, 0);
    assert!(said.contains("other tasks did not say in time which they hold"), "{said}");
    assert_eq!(variable(&played, 0, "CUDA_VISIBLE_DEVICES"), "0,1");
}

/// `cargo build -p spank-host && cargo test --test hostile -- --ignored`
#[test]
#[ignore = "takes valgrind, and spank-host beside the tests"]
fn a_life_under_valgrind_has_no_error_and_loses_nothing() {
    let Some(node) = Node::enter() else {
        return;
    };
    furnish(&node);
    let host = std::env::current_exe().expect("this test").with_file_name("../spank-host");
    let mut bound = vec![Task::default(); 3];
    for task in &mut bound {
        let variables =
            [("SLURMD_TRES_BIND", "gres/gpu:map_gpu:0"), ("CUDA_VISIBLE_DEVICES", "0,1")];
        task.env = variables.map(|(name, value)| (name.to_owned(), Some(value.into()))).into();
    }
    let tasks = vec![Task::default(); 3];
    for (words, tasks, fork) in [
        ("single", tasks.clone(), true),
        ("rotate,print=json", tasks.clone(), true),
        ("print=task", bound.clone(), true),
        ("single", bound, true),
        ("singel", tasks.clone(), true),
        ("map=2,0,1,ids=index", tasks, false),
    ] {
        let step = Step { fork, ..step(&node, words, tasks) };
        let file = node.path("step.json");
        std::fs::write(&file, serde_json::to_vec(&step).expect("JSON")).expect("the step");
        let ran = std::process::Command::new("valgrind")
            .args(["--leak-check=full", "--show-leak-kinds=definite,possible"])
            .args(["--errors-for-leak-kinds=definite,possible", "--error-exitcode=99"])
            .arg(format!("--log-file={}", node.path("valgrind.%p").display()))
            .args([host.as_path(), &built_plugin(), &file])
            .output()
            .expect("valgrind runs");
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&ran.stdout),
            String::from_utf8_lossy(&ran.stderr)
        );
        assert!(ran.status.success(), "{said}");
        let played: Played = serde_json::from_slice(&ran.stdout).expect("what was played");
        assert!(!played.hung && played.tasks.iter().all(|task| !task.lost), "{said}");
        let reports = reports(&node);
        // The host, and in forked play the step and its tasks.
        assert_eq!(reports.len(), if fork { 5 } else { 1 });
        for report in reports {
            let clean = report.contains("ERROR SUMMARY: 0 errors")
                && (report.contains("no leaks are possible")
                    || (report.contains("definitely lost: 0 bytes")
                        && report.contains("possibly lost: 0 bytes")));
            assert!(clean, "{words}: {report}");
        }
    }
}

/// What valgrind wrote, one text for each process; taken away.
fn reports(node: &Node) -> Vec<String> {
    let entries = std::fs::read_dir(node.path("")).expect("the node's folder").flatten();
    let paths = entries.map(|entry| entry.path());
    let reports = paths.filter(|path| path.to_string_lossy().contains("/valgrind."));
    let take = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(&path).expect("a report");
        std::fs::remove_file(&path).expect("a report");
        text
    };
    reports.map(take).collect()
}
