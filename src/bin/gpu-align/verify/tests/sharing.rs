//! Two tasks of a step on one card.

use super::*;

#[test]
fn fc_16_two_ranks_on_one_card_are_found_by_their_processes() {
    let mut case = Case::on(task(&[]));
    case.holders = &[(2, &[100, 101]), (3, &[])];
    golden("verify-sharing", &case.text());
    case.holders = &[(2, &[100]), (3, &[101])];
    assert!(case.says("sharing").starts_with("ok"));
    case.holders = &[(2, &[1])];
    assert!(case.says("sharing").starts_with("unseen: 1 process on these cards"));
}

#[test]
fn ranks_that_share_are_told_in_the_order_of_numbers() {
    let mut case = Case::on(task(&[]));
    case.owns = &[2; 11];
    case.holders = &[(2, &[110, 102, 100])];
    let says = case.says("sharing");
    let ranks: Vec<&str> =
        says.split("rank ").skip(1).filter_map(|s| s.split(' ').next()).collect();
    assert_eq!(ranks, ["0", "2", "10"], "{says}");
}

#[test]
fn cards_whose_processes_nvml_does_not_list_are_not_called_unshared() {
    let mut case = Case::on(task(&[]));
    case.lists_processes = false;
    let says = case.says("sharing");
    assert_eq!(says, "unseen: NVML does not list the processes on 0000:51:00.0");
}

/// Rank 0 of a step of `tasks` tasks that holds cards 0 to 3, or the first of
/// them, in some mode.
fn one_of(tasks: &str, cards: &str, mode: &str, visible: &str, changed: &[(&str, &str)]) -> Scene {
    let mut env = vec![
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "0"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_TASKS_PER_NODE", tasks),
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_STEP_GPUS", cards),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUDA_VISIBLE_DEVICES", visible),
        ("GPU_ALIGN_VERSION", "0.1.0"),
        ("GPU_ALIGN_MODE", mode),
        ("GPU_ALIGN_CARD", U[0]),
        ("GPU_ALIGN_UUIDS", visible),
    ];
    env.extend(changed);
    let minors: Vec<u32> = cards.split(',').map(|card| card.parse().unwrap()).collect();
    inv4(&minors, &env)
}

#[test]
fn fc_16_four_workers_on_one_card_are_wrong_in_every_mode() {
    for (mode, visible) in [("all", U.join(",")), ("rotate", U.join(",")), ("single", U[0].into())]
    {
        let mut case = Case::on(one_of("4", "0,1,2,3", mode, &visible, &[]));
        case.owns = &[0, 1, 2, 3];
        case.holders = &[(0, &[100, 101, 102, 103])];
        let says = case.says("sharing");
        assert!(says.starts_with("WRONG: tasks of step 12.0 hold one card"), "{mode}: {says}");
        assert_eq!(exit_code(&case.checks()), 1);
    }
}

#[test]
fn rule_5_more_tasks_than_cards_share_them_evenly_and_are_told_so() {
    for mode in ["all", "rotate", "single"] {
        let mut case = Case::on(one_of("2", "0", mode, U[0], &[]));
        case.owns = &[0, 0];
        case.holders = &[(0, &[100, 101])];
        let says = case.says("sharing");
        assert!(says.starts_with("note: "), "{mode}: {says}");
        assert!(says.ends_with("; there are more tasks than cards"), "{says}");
        assert_eq!(exit_code(&case.checks()), 0);
    }
    // Five tasks on four cards: two on one cannot be helped, three can.
    let mut case = Case::on(one_of("5", "0,1,2,3", "all", &U.join(","), &[]));
    case.owns = &[0, 1, 2, 3, 0];
    case.holders = &[(1, &[100, 101])];
    assert!(case.says("sharing").starts_with("note"));
    case.holders = &[(1, &[100, 101, 102])];
    assert!(case.says("sharing").starts_with("WRONG"));
}

#[test]
fn rule_5_a_card_that_was_given_to_two_tasks_is_theirs_to_share() {
    // --gpu-align=single,map=0
    let mut case = Case::on(one_of("2", "0,1,2,3", "single", U[0], &[]));
    case.owns = &[0, 0];
    case.holders = &[(0, &[100, 101])];
    assert!(case.says("sharing").starts_with("note"));
    assert!(case.says("sharing").ends_with("; it was given to each of them"));
    case.owns = &[0, 1];
    assert!(case.says("sharing").starts_with("WRONG"));
    // --gpu-bind=map_gpu:0,0 on a node that constrains devices
    for (bind, state) in [("gpu:map_gpu:0,0", "note"), ("gres/gpu:per_task:1", "WRONG")] {
        let env = [("SLURM_GPUS_ON_NODE", "4"), ("SLURMD_TRES_BIND", bind)];
        let mut case = Case::on(one_of("2", "0", "bound", U[0], &env));
        case.owns = &[0, 1];
        case.holders = &[(0, &[100, 101])];
        assert!(case.says("sharing").starts_with(state), "{bind}: {}", case.says("sharing"));
    }
}

#[test]
fn fc_25_local_rank_under_rotate_doubles_up_two_cards() {
    // Rank 2's list starts with card 2; cuda:2 of it is card 0, where rank 0 is.
    let turned = [U[2], U[3], U[0], U[1]].join(",");
    let env = [
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_PROCID", "2"),
        ("SLURM_LOCALID", "2"),
        ("SLURM_NODEID", "0"),
        ("SLURM_STEP_TASKS_PER_NODE", "4"),
        ("SLURMD_NODENAME", "n1"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUDA_VISIBLE_DEVICES", turned.as_str()),
        ("GPU_ALIGN_VERSION", "0.1.0"),
        ("GPU_ALIGN_MODE", "rotate"),
        ("GPU_ALIGN_CARD", U[2]),
        ("GPU_ALIGN_UUIDS", turned.as_str()),
    ];
    let mut case = Case::on(inv4(&[0, 1, 2, 3], &env));
    case.owns = &[0, 1, 2, 3];
    case.holders = &[(0, &[100, 102]), (2, &[101, 103])];
    let says = case.says("sharing");
    assert!(says.starts_with("WRONG: tasks of step 12.0 hold one card: "), "{says}");
    for pair in [(0, "rank 0", "rank 2"), (2, "rank 1", "rank 3")] {
        let card = says.split(U[pair.0]).nth(1).unwrap();
        let card = card.split(';').next().unwrap();
        assert!(card.contains(pair.1) && card.contains(pair.2), "{says}");
    }
    // Each on its own first device, as rotate is meant.
    case.holders = &[(0, &[100]), (1, &[101]), (2, &[102]), (3, &[103])];
    assert!(case.says("sharing").starts_with("ok"), "{}", case.says("sharing"));
}
