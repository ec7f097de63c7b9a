mod sharing;

use super::*;
use crate::inside::env::Env;
use crate::inside::hands::Ancestor;
use crate::inside::mps::{Seen, StartedWith};
use crate::inside::scene::Scene;
use crate::inside::simulated::{SCREEN, golden, node, oops, scene};
use crate::inside::usage::{CardUse, Holder, Usage};

fn usage_of(scene: &Scene, holders: &[(usize, &[u32])]) -> Usage {
    let cards = scene.reach.iter().map(|device| {
        let card = scene.cards().card(*device);
        let pids = holders.iter().filter(|(rank, _)| *rank == device.card);
        let pids = pids.flat_map(|(_, pids)| pids.iter().copied());
        let processes = pids.map(|pid| Holder { pid, memory: Some(1 << 30), graphics: false });
        CardUse {
            pci: card.pci,
            uuid: card.uuid.clone(),
            total: Some(80 << 30),
            free: Some(79 << 30),
            load: Some(0),
            compute_mode: Some("default".into()),
            persistence: Some(true),
            mig: Some(false),
            slices: Vec::new(),
            processes: Some(processes.collect()),
        }
    });
    let mut cards: Vec<CardUse> = cards.collect();
    cards.dedup_by_key(|card| card.pci);
    Usage { driver: Some("580.159.04".into()), cards, silent: Vec::new() }
}

struct Case<'a> {
    scene: Scene,
    above: Vec<Ancestor>,
    hits: Vec<hands::Hit>,
    holders: &'a [(usize, &'a [u32])],
    /// Whether NVML lists processes.
    lists_processes: bool,
    /// By rank in the step: the place of the card that gpu-align gave it.
    owns: &'a [usize],
    mps: Seen,
    expected: Option<&'a str>,
    other: Option<Other>,
}

impl Case<'_> {
    fn on(scene: Scene) -> Case<'static> {
        Case {
            scene,
            above: vec![],
            hits: vec![],
            holders: &[],
            lists_processes: true,
            owns: &[2, 3],
            mps: Seen::Nothing,
            expected: None,
            other: None,
        }
    }

    fn checks(&self) -> Vec<Check> {
        let expected: Option<Expected> = self.expected.map(|text| text.parse().unwrap());
        // pid 100 + r belongs to rank r of step 12.0.
        let task_of = |pid: u32| {
            Some(TaskOf {
                job: Some("12".into()),
                step: Some("0".into()),
                rank: Some(pid.checked_sub(100)?),
                own: Some(U[*self.owns.get(pid.checked_sub(100)? as usize)?].into()),
                command: "python train.py".into(),
            })
        };
        let mut usage = usage_of(&self.scene, self.holders);
        if !self.lists_processes {
            usage.cards.iter_mut().for_each(|card| card.processes = None);
        }
        checks::checks(&Evidence {
            scene: &self.scene,
            usage: &Ok(usage),
            above: &self.above,
            hits: &self.hits,
            mps: &self.mps,
            task_of: &task_of,
            other: self.other.clone(),
            expected: expected.as_ref(),
        })
    }

    fn text(&self) -> String {
        let checks = self.checks();
        format!("{}exit {}\n", text(&checks, SCREEN), exit_code(&checks))
    }

    fn says(&self, name: &str) -> String {
        let checks = self.checks();
        let check = checks.iter().find(|check| check.name == name).unwrap();
        format!("{}: {}", check.state.word(), check.says)
    }
}

const U: [&str; 4] = [
    "GPU-00000000-0004-4000-8000-000000000000",
    "GPU-00000000-0004-4000-8000-000000000001",
    "GPU-00000000-0004-4000-8000-000000000002",
    "GPU-00000000-0004-4000-8000-000000000003",
];

fn inv4(minors: &[u32], env: &[(&str, &str)]) -> Scene {
    scene(&node("tidy4"), minors, env)
}

/// A task of a step that holds cards 2 and 3, as gpu-align left it, and what was
/// changed since.
fn task(changed: &[(&str, &str)]) -> Scene {
    let both = [U[2], U[3]].join(",");
    let mut env = vec![
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_TASKS_PER_NODE", "2"),
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_STEP_GPUS", "2,3"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUDA_VISIBLE_DEVICES", both.as_str()),
        ("GPU_ALIGN_VERSION", "0.1.0"),
        ("GPU_ALIGN_MODE", "all"),
        ("GPU_ALIGN_CARD", U[2]),
        ("GPU_ALIGN_UUIDS", both.as_str()),
    ];
    env.extend(changed);
    inv4(&[2, 3], &env)
}

#[test]
fn numbers_that_cannot_be_looked_up_are_said_and_decide_nothing() {
    let mut case = Case::on(task(&[]));
    let before = exit_code(&case.checks());
    case.scene.positions = Err(oops());
    assert!(case.says("slurm").starts_with("unseen: what Slurm's numbers mean: gres.conf:1"));
    assert_eq!(exit_code(&case.checks()), before);
}

fn ancestor(command: &str, pid: u32, visible: &str) -> Ancestor {
    let pairs = [("GPU_ALIGN_VERSION", "0.1.0"), ("CUDA_VISIBLE_DEVICES", visible)];
    let env = Env(pairs.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect());
    Ancestor { pid, command: command.into(), env }
}

#[test]
fn a_task_as_gpu_align_left_it() {
    golden("verify-step", &Case::on(task(&[])).text());
}

#[test]
fn fc_30_every_spelling_is_counted_and_the_end_of_the_list_explained() {
    let mut node = node("tidy4");
    node.cards[3].uuid = "GPU-12345678-0004-4000-8000-000000000003".into();
    let twice = [U[1], U[1]].join(",");
    let (uuid_first, index_first) = ([U[1], "0"].join(","), ["0", U[1]].join(","));
    // Value, and how many cards are usable; `true` where verify finds it wrong.
    let rows = [
        (None, 4, false),
        (Some(""), 0, true),
        (Some("-1"), 0, true),
        (Some("NoDevFiles"), 0, true),
        (Some("none"), 0, true),
        (Some("0,2,-1,1"), 2, true),
        (Some("0,1,9,2"), 2, true),
        (Some("0,1,2,3,0"), 0, true),
        (Some("1x,2yz"), 2, false),
        (Some("0,1,"), 2, false),
        (Some("0, 1"), 2, false),
        (Some(U[1]), 1, false),
        (Some("GPU-1234"), 1, false),
        (Some("GPU-00000000-0004"), 0, true),
        (Some(&twice), 0, true),
        (Some(&uuid_first), 1, true),
        (Some(&index_first), 1, true),
        // FC-29: slot numbers.
        (Some("4,5,6,7"), 0, true),
    ];
    let mut all = String::new();
    for (value, usable, bad) in rows {
        let mut env = vec![("CUDA_DEVICE_ORDER", "PCI_BUS_ID")];
        env.extend(value.map(|value| ("CUDA_VISIBLE_DEVICES", value)));
        let case = Case::on(scene(&node, &[0, 1, 2, 3], &env));
        // What verify says of the list is what the driver makes of it.
        assert_eq!(case.scene.cuda.as_ref().unwrap().devices.len(), usable, "{value:?}");
        assert_eq!(case.scene.selected().len(), usable, "{value:?}");
        let text = SCREEN.sentence("  ", 2, &case.says("list"));
        all += &format!("[{}] {usable}\n{text}", value.unwrap_or("unset"));
        assert_eq!(exit_code(&case.checks()), u8::from(bad), "{value:?}");
    }
    golden("verify-fc30", &all);
}

#[test]
fn fc_30_two_slices_are_one_device_to_an_older_driver() {
    let slice = |ci: u32| sim_node::Slice {
        uuid: format!("MIG-00000000-00a0-5000-8000-00000000000{ci}"),
        gi: 7,
        ci,
        profile: "1g.10gb".into(),
        cap_minors: [30, 31 + ci],
        ..sim_node::Slice::default()
    };
    let mut node = node("tidy4");
    node.driver = "535.129.03".into();
    node.cards[0].slices = vec![slice(0), slice(1)];
    let two = "MIG-00000000-00a0-5000-8000-000000000001,MIG-00000000-00a0-5000-8000-000000000000";
    let case = Case::on(scene(&node, &[0], &[("CUDA_VISIBLE_DEVICES", two)]));
    assert!(case.says("cuda").starts_with("ok: cuda:0"), "{}", case.says("cuda"));
    assert!(
        case.says("cuda").ends_with(
            "of the 2 that the list names CUDA gives a process no more slices than this"
        )
    );
    let parent = Case::on(scene(&node, &[0], &[("CUDA_VISIBLE_DEVICES", U[0])]));
    assert!(
        parent
            .says("slice")
            .starts_with("WRONG: GPU-00000000-0004-4000-8000-000000000000 is a card in MIG mode")
    );
}

#[test]
fn fc_31_a_change_after_launch_names_values_and_the_likely_hand() {
    let both = [U[2], U[3]].join(",");
    let mut batch = Case::on(task(&[("CUDA_VISIBLE_DEVICES", "0,1,2,3")]));
    batch.above = vec![ancestor("/bin/bash /var/spool/slurmd/job12/slurm_script", 41, &both)];
    batch.hits = hands::in_text(
        "the batch script",
        "#!/bin/bash\nexport CUDA_VISIBLE_DEVICES=0,1,2,3\n",
        &["CUDA_VISIBLE_DEVICES"],
    );
    golden("verify-fc31-batch", &batch.text());
    let mut bashrc = Case::on(task(&[("CUDA_VISIBLE_DEVICES", "3")]));
    bashrc.above =
        vec![ancestor("gpu-align verify", 42, "3"), ancestor("bash -lc gpu-align", 41, &both)];
    bashrc.hits = hands::in_text(
        "/home/u/.bashrc",
        "# mine\nexport CUDA_VISIBLE_DEVICES=3\n",
        &["CUDA_VISIBLE_DEVICES"],
    );
    golden("verify-fc31-bashrc", &bashrc.text());
    let mut prolog = Case::on(task(&[("CUDA_VISIBLE_DEVICES", "0")]));
    prolog.above = vec![ancestor("gpu-align verify", 42, "0")];
    prolog.hits = hands::in_text(
        "TaskProlog /etc/slurm/taskprolog",
        "echo export CUDA_VISIBLE_DEVICES=$SLURM_LOCALID\n",
        &["CUDA_VISIBLE_DEVICES"],
    );
    golden("verify-fc31-taskprolog", &prolog.text());
    let order = Case::on(task(&[("CUDA_DEVICE_ORDER", "FASTEST_FIRST")]));
    assert!(order.says("order").starts_with(
        "WRONG: CUDA_DEVICE_ORDER changed after gpu-align: PCI_BUS_ID -> 'FASTEST_FIRST'"
    ));
}

#[test]
fn an_order_that_cuda_does_not_know_costs_every_card() {
    let case = Case::on(inv4(&[0, 1], &[("CUDA_DEVICE_ORDER", "pci")]));
    golden("verify-order", &case.text());
}

#[test]
fn fc_29_slot_numbers_in_a_constrained_job() {
    let env = [("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", "4,5,6,7")];
    let case = Case::on(inv4(&[0, 1, 2, 3], &env));
    assert_eq!(
        case.says("list"),
        "WRONG: 0 of 4 entries usable: CUDA's list ends at entry 0 '4': index 4 is out of range: 4 \
         cards can be opened, indices 0-3"
    );
}

#[test]
fn a_card_of_another_job_is_named_as_such() {
    let case = Case::on(task(&[("CUDA_VISIBLE_DEVICES", U[0])]));
    assert!(case.says("list").contains("is on this node, but this process may not open it"));
}

#[test]
fn fc_32_a_process_that_changed_its_own_list_is_found_by_what_it_holds() {
    let mut case = Case::on(task(&[("CUDA_VISIBLE_DEVICES", U[2]), ("GPU_ALIGN_UUIDS", U[2])]));
    case.other = Some(Other { pid: 100, command: "python train.py".into(), apart: false });
    case.holders = &[(3, &[100])];
    assert!(
        case.says("used").starts_with("WRONG: process 100 ('python train.py') holds 0000:71:00.0")
    );
    case.holders = &[(2, &[100])];
    assert!(case.says("used").starts_with("ok"));
}

#[test]
fn a_process_of_another_task_is_not_judged_by_what_this_one_may_open() {
    let why = "process 100 is in another cgroup";
    let env = task(&[("CUDA_VISIBLE_DEVICES", U[0])]).env;
    let mut case = Case::on(crate::inside::gather::blind_scene(env, why));
    case.other = Some(Other { pid: 100, command: "python train.py".into(), apart: true });
    golden("verify-apart", &case.text());
    // What its environment alone shows is still a verdict.
    let env = task(&[("CUDA_DEVICE_ORDER", "FASTEST_FIRST")]).env;
    case.scene = crate::inside::gather::blind_scene(env, why);
    case.expected = Some("rank=2,3");
    assert!(case.says("order").starts_with("WRONG"));
    assert!(case.says("expect").starts_with("unseen"));
    assert_eq!(exit_code(&case.checks()), 1);
}

#[test]
fn the_expected_cards_are_compared_in_order() {
    let mut case = Case::on(task(&[]));
    for (expected, state) in [
        ("rank=2,3", "ok"),
        ("rank=3,2", "WRONG"),
        ("rank=2", "WRONG"),
        ("GPU-00000000-0004-4000-8000-000000000002,GPU-00000000-0004-4000-8000-000000000003", "ok"),
        ("GPU-00000000-0004-4000-8000-000000000002", "WRONG"),
    ] {
        case.expected = Some(expected);
        assert!(case.says("expect").starts_with(state), "{expected}: {}", case.says("expect"));
    }
    assert!("3,1".parse::<Expected>().is_err());
    assert!("GPU-".parse::<Expected>().is_err());
    // Whose number is whose only the driver's list tells; a UUID is one without it.
    case.scene.inventory = Err("the NVIDIA driver is not loaded".into());
    case.scene.reach.clear();
    for (expected, state) in [("rank=2,3", "unseen"), (&[U[2], U[3]].join(","), "ok")] {
        case.expected = Some(expected);
        assert!(case.says("expect").starts_with(state), "{expected}: {}", case.says("expect"));
    }
}

#[test]
fn what_cannot_be_looked_at_is_said_and_answers_2() {
    let mut scene = inv4(&[], &[]);
    scene.inventory = Err("the NVIDIA driver is not loaded".into());
    scene.reach.clear();
    scene.cuda = Err("libcuda.so.1 cannot be loaded".into());
    scene.unfiltered = scene.cuda.clone();
    golden("verify-blind", &Case::on(scene).text());
}

#[test]
fn without_the_drivers_list_of_cards_no_list_is_called_wrong_unless_its_text_is() {
    let blind = |visible: &str| {
        let mut scene = task(&[("CUDA_VISIBLE_DEVICES", visible)]);
        scene.inventory = Err("the NVIDIA driver is not loaded".into());
        scene.reach.clear();
        scene.cuda = Err("libcuda.so.1 cannot be loaded".into());
        scene.unfiltered = scene.cuda.clone();
        Case::on(scene)
    };
    let states = |case: &Case| {
        let word = |name| case.says(name).split(':').next().unwrap().to_owned();
        (word("variable"), word("list"), exit_code(&case.checks()))
    };
    let given = [U[2], U[3]].join(",");
    let other = [U[3], U[2]].join(",");
    for (visible, variable, list, code) in [
        (given.as_str(), "ok", "unseen", 2),
        ("0,1", "unseen", "unseen", 2),
        (&other, "WRONG", "unseen", 1),
        ("", "WRONG", "WRONG", 1),
        ("-1", "unseen", "WRONG", 1),
        ("none", "unseen", "WRONG", 1),
    ] {
        assert_eq!(states(&blind(visible)), (variable.into(), list.into(), code), "{visible}");
    }
    golden("verify-blind-step", &blind("0,1").text());
    let changed = blind(&other).says("variable");
    assert!(changed.contains(&format!("{given} -> {other}; the likely hand: ")), "{changed}");
    // What another process holds is then only told.
    let mut case = blind(&given);
    case.other = Some(Other { pid: 100, command: "python train.py".into(), apart: false });
    assert!(case.says("used").starts_with("note"));
}

#[test]
fn cards_whose_uuids_nobody_knows_yet_are_not_called_others() {
    let mut scene = task(&[]);
    let mut cards = scene.cards().cards().to_vec();
    cards.iter_mut().for_each(|card| card.uuid = None);
    scene.inventory = Ok(gpu_align::device::Inventory::new(cards));
    scene.gap = Some("the UUIDs of 4 cards are not known".into());
    scene.cuda = Err("libcuda.so.1 cannot be loaded".into());
    scene.unfiltered = scene.cuda.clone();
    let case = Case::on(scene);
    assert!(case.says("variable").starts_with("ok"), "{}", case.says("variable"));
    for name in ["list", "kernel"] {
        assert!(case.says(name).starts_with("unseen"), "{}", case.says(name));
    }
    assert_eq!(exit_code(&case.checks()), 2);
}

#[test]
fn fc_37_a_daemon_that_was_started_with_fewer_cards_is_the_reason() {
    // Programs here talk to the daemon in the usual folder, whatever the variable says.
    let env = [("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", "2,3")];
    let mut case = Case::on(inv4(&[0, 1, 2, 3], &env));
    case.scene.cuda.as_mut().unwrap().devices.clear();
    assert!(!case.says("cuda").contains("MPS"));
    case.mps = Seen::Runs { pid: 77, started_with: StartedWith::List("2,3".into()) };
    let says = case.says("cuda");
    let daemon = "the MPS daemon with pid 77, started with CUDA_VISIBLE_DEVICES=2,3, ";
    assert!(says.starts_with("WRONG: no device, where") && says.contains(daemon), "{says}");
    assert!(case.says("mps").starts_with("note: under the MPS daemon with pid 77"));
    // The variable alone runs no daemon; outside of this container one may.
    let env = [env[0], env[1], ("CUDA_MPS_PIPE_DIRECTORY", "/tmp/mps")];
    let mut case = Case::on(inv4(&[0, 1, 2, 3], &env));
    assert!(case.checks().iter().all(|check| check.name != "mps"));
    case.mps = Seen::NotLooked("it was killed, or runs outside of this container".into());
    assert!(case.says("mps").starts_with("note: under the MPS daemon of /tmp/mps, indices"));
}

#[test]
fn fc_38_a_container_shows_half_of_the_cards() {
    // Host numbers carried into a view that counts from 0.
    let env = [("CUDA_DEVICE_ORDER", "PCI_BUS_ID"), ("CUDA_VISIBLE_DEVICES", "2,3")];
    golden("verify-container", &Case::on(inv4(&[2, 3], &env)).text());
}

#[test]
fn fc_10_unlike_cards_need_an_order() {
    let env = [("CUDA_VISIBLE_DEVICES", "1")];
    golden("verify-unlike", &Case::on(scene(&node("unlike2"), &[0, 1], &env)).text());
}
