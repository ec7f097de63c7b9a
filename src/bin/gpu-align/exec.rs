//! `gpu-align exec`: the option's words for ranks that Slurm did not start.

use std::ffi::OsString;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use gpu_align::align::plan::Turn;
use gpu_align::align::policy::{Mode, Policy, Print, Words};
use gpu_align::launch::{self, Decision};
use gpu_align::ranks::{LocalRank, local_rank};
use gpu_align::report::{Outcome, Report, Task};
use gpu_align::slurm::step::Said;

use crate::become_command;
use crate::inside::env::Env;
use crate::inside::gather;
use crate::inside::scene::{ORDER, PCI_ORDER, Scene};
use crate::inside::screen::count;

const EXAMPLES: &str = "\
The local rank is taken from the first of these that is set: OMPI_COMM_WORLD_LOCAL_RANK,
MPI_LOCALRANKID, MV2_COMM_WORLD_LOCAL_RANK, PMIX_LOCAL_RANK, PMI_LOCAL_RANK,
PALS_LOCAL_RANKID, FLUX_TASK_LOCAL_ID, LOCAL_RANK, SLURM_LOCALID.

Exit status: the command's; otherwise
  1    the words ask for 'strict' and there is a doubt
  2    the words, or the local rank, cannot be understood
  126  COMMAND cannot be started
  127  COMMAND is not there

Examples:
  mpirun -np 4 gpu-align exec single -- ./app
  torchrun --nproc-per-node=4 --no-python gpu-align exec rotate -- python train.py
  gpu-align exec all,ids=index -- python old.py";

/// Give each rank that another launcher started its own card, then become COMMAND
///
/// For mpirun, torchrun and the like inside a job or on a bare machine: the same words
/// and rules as srun --gpu-align. A rank never gets a card that its launcher may not use.
#[derive(Args)]
#[command(after_long_help = EXAMPLES)]
pub struct Exec {
    /// What to do, as in srun --gpu-align=WORDS; SLURM_GPU_ALIGN is heard first
    #[arg(value_name = "WORDS", default_value = "", hide_default_value = true)]
    words: String,
    /// This process's rank on the node, where no launcher says it
    #[arg(long, value_name = "N")]
    local_rank: Option<usize>,
    /// How many ranks run on the node, where no launcher says it
    #[arg(long, value_name = "N")]
    local_size: Option<usize>,
    /// Become this command as that rank
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Exec {
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let env = Env::own();
        let site: Words = match env.get("SLURM_GPU_ALIGN").unwrap_or_default().parse() {
            Ok(words) => words,
            Err(why) => bail!("SLURM_GPU_ALIGN: {why}"),
        };
        let policy = Policy::resolve([&site, &self.words.parse()?]);
        if policy.is_off() {
            return Ok(become_command(&self.command, &[]));
        }
        let rank = self.rank(&env, &policy)?;
        let scene = gather::quick_scene(env);
        let done = align(&scene, &policy, &rank);
        if !done.log.is_empty() {
            eprint!("{}", done.log);
        }
        match done.doubt && policy.strict {
            true => Ok(ExitCode::from(1)),
            false => Ok(become_command(&self.command, &done.variables)),
        }
    }

    fn rank(&self, env: &Env, policy: &Policy) -> anyhow::Result<LocalRank> {
        let said = local_rank(|name| env.owned(name));
        let mut rank = match (self.local_rank, said) {
            (Some(rank), _) => {
                LocalRank { rank, size: None, source: "--local-rank", is_slurms: false }
            }
            (None, Some(said)) => said,
            (None, None) => bail!(
                "no launcher says this process's local rank (OMPI_COMM_WORLD_LOCAL_RANK, \
                 LOCAL_RANK, …); give it with --local-rank"
            ),
        };
        rank.size = self.local_size.or(rank.size);
        // The batch step's own process, or a lone one: nobody else counts.
        if rank.source == "SLURM_LOCALID" && rank.size.is_none() && rank.rank == 0 {
            rank.size = Some(1);
        }
        if rank.size.is_some_and(|size| size <= rank.rank) {
            bail!("local rank {} is not below --local-size; count ranks from 0", rank.rank);
        }
        if rank.size.is_none() && matches!(policy.mode, Mode::Single | Mode::Rotate) {
            bail!(
                "{} says local rank {} and nobody says how many ranks this node has, on which \
                 mode {} depends; give --local-size",
                rank.source,
                rank.rank,
                policy.mode
            );
        }
        Ok(rank)
    }
}

/// What a rank gets, and what its log says.
#[derive(Debug, Default)]
pub struct Done {
    pub variables: Vec<(&'static str, String)>,
    pub log: String,
    pub doubt: bool,
}

/// Decides for one rank among those that share this process's allotment.
pub fn align(scene: &Scene, policy: &Policy, rank: &LocalRank) -> Done {
    match decide(scene, policy, rank) {
        Ok(None) => {
            let why = "this process can open no card and nothing was set; ask Slurm for one";
            Done { log: line(policy, why), ..Done::default() }
        }
        Ok(Some(decision)) => Done {
            log: said(scene, policy, rank, &decision),
            variables: decision.variables,
            doubt: false,
        },
        Err(why) => Done {
            log: format!("gpu-align: CUDA_VISIBLE_DEVICES stays as it was: {why}\n"),
            variables: launch::doubtful_variables(),
            doubt: true,
        },
    }
}

fn line(policy: &Policy, why: &str) -> String {
    match policy.print {
        Print::Off => String::new(),
        _ => format!("gpu-align: {why}\n"),
    }
}

fn decide(scene: &Scene, policy: &Policy, rank: &LocalRank) -> Result<Option<Decision>, String> {
    let (mut held, mut cautions) = scene.allotted_with_cautions()?;
    held.sort();
    let (local, of) = match is_bound(scene, rank, held.len()) {
        true => (0, 1),
        false => (rank.rank, rank.size.unwrap_or(rank.rank + 1)),
    };
    if held.is_empty() {
        return Ok(None);
    }
    let mut step = scene.step(policy.clone(), of);
    // The launcher's allotment is settled: it is all that there is to give, in the order
    // of Slurm's list, and what is left is to share it out.
    let listed = step.positions.take().unwrap_or_default();
    held.sort_by_key(|&device| listed.iter().position(|&at| at == Some(device)));
    step.said = Said { positions: None, count: Some(held.len()) };
    step.positions = Some(held.into_iter().map(Some).collect());
    let settled =
        |name: &str| (name != "SLURMD_TRES_BIND").then(|| scene.env.owned(name)).flatten();
    // Indices count all that this process may open, not only what it holds.
    let decision = step.decide(local, &scene.reach, settled, |_| Some(Turn { rank: local, of }))?;
    Ok(decision.map(|decision| {
        cautions.extend(decision.cautions);
        Decision { cautions, ..decision }
    }))
}

/// Whether the ranks are Slurm's tasks and this one's devices, `held` of them,
/// are its own already (rule 4): the other ranks hold others of the step's.
fn is_bound(scene: &Scene, rank: &LocalRank, held: usize) -> bool {
    let by_plugin = matches!(scene.env.get("GPU_ALIGN_MODE"), Some("single" | "bound"));
    let bound = scene.is_bound() || by_plugin;
    rank.is_slurms && bound && held < scene.step_devices()
}

fn said(scene: &Scene, policy: &Policy, rank: &LocalRank, decision: &Decision) -> String {
    let step = scene.place().map(|(_, name)| name);
    let local = rank.rank as u32;
    let ranks: &[&str] = match rank.is_slurms {
        true => &["SLURM_PROCID"],
        false => &["OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "RANK"],
    };
    let global = ranks.iter().find_map(|name| scene.env.number(name)).unwrap_or(rank.rank);
    let order = scene.env.get(ORDER).filter(|order| *order != PCI_ORDER);
    let task = Task {
        rank: global as u32,
        local,
        outcome: Outcome::Aligned(decision.plan.clone()),
        cautions: decision.cautions.clone(),
        replaced_order: order.map(gpu_align::device::clip),
    };
    let tasks = [task];
    let report = Report {
        node: &scene.node_name(),
        step: step.as_deref(),
        policy,
        inventory: scene.cards(),
        tasks: &tasks,
    };
    let mut log = match policy.print {
        Print::Off => return String::new(),
        Print::Json => return report.json(),
        Print::Node | Print::Task => report.task_line(&tasks[0]).unwrap_or_default(),
    };
    log += &report.notes();
    // Rule 5, once a node.
    let held = scene.allotted().map(|devices| devices.len()).unwrap_or(0);
    let devices = if is_bound(scene, rank, held) { scene.step_devices() } else { held };
    if let Some(of) = rank.size.filter(|&of| local == 0 && devices > 0 && of > devices) {
        log += &format!("gpu-align:   {of} ranks share {}\n", count(devices, "card"));
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inside::scene::VISIBLE;
    use crate::inside::simulated::{golden, node, scene};
    use gpu_align::align::{Caution, Doubt};
    use gpu_align::device::Device;
    use gpu_align::slurm::gres_conf::GresError;

    fn done(minors: &[u32], env: &[(&str, &str)], words: &str, rank: usize, of: usize) -> Done {
        let words = words.parse().unwrap();
        let rank = LocalRank { rank, size: Some(of), source: "LOCAL_RANK", is_slurms: false };
        align(&scene(&node("tidy4"), minors, env), &Policy::resolve([&words]), &rank)
    }

    fn visible(done: &Done) -> &str {
        &done.variables.iter().find(|(name, _)| *name == VISIBLE).unwrap().1
    }

    fn card(rank: usize) -> String {
        format!("GPU-00000000-0004-4000-8000-00000000000{rank}")
    }

    const BATCH: [(&str, &str); 6] = [
        ("SLURMD_NODENAME", "n1"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_JOB_GPUS", "0,1,2,3"),
        ("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
        ("CUDA_VISIBLE_DEVICES", "0,1,2,3"),
    ];

    #[test]
    fn fc_20_each_rank_of_mpirun_gets_its_own_card() {
        for rank in 0..4 {
            assert_eq!(visible(&done(&[0, 1, 2, 3], &BATCH, "single", rank, 4)), card(rank));
        }
        let all = done(&[0, 1, 2, 3], &BATCH, "all", 2, 4);
        assert_eq!(visible(&all), [card(0), card(1), card(2), card(3)].join(","));
        golden("exec-all", &all.log);
        let half = done(&[2, 3], &BATCH[..3], "rotate,ids=index", 1, 2);
        assert_eq!(visible(&half), "1,0");
    }

    #[test]
    fn rule_3_a_rank_gets_none_of_the_cards_that_its_launcher_may_not_use() {
        let mut env = BATCH.to_vec();
        let given = [card(1), card(3)].join(",");
        env.push(("GPU_ALIGN_UUIDS", given.as_str()));
        assert_eq!(visible(&done(&[0, 1, 2, 3], &env, "single", 1, 2)), card(3));
        // Indices count what can be opened, not what is held.
        assert_eq!(visible(&done(&[0, 1, 2, 3], &env, "single,ids=index", 1, 2)), "3");
        let bare = [("CUDA_VISIBLE_DEVICES", "2"), ("CUDA_DEVICE_ORDER", "PCI_BUS_ID")];
        assert_eq!(visible(&done(&[0, 1, 2, 3], &bare, "all", 0, 1)), card(2));
    }

    #[test]
    fn fc_37_under_an_mps_daemon_ranks_get_uuids_whatever_form_is_asked_for() {
        let mut env = BATCH.to_vec();
        env.push(("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"));
        let named = done(&[0, 1, 2, 3], &env, "single,ids=index", 1, 4);
        assert_eq!(visible(&named), card(1));
        assert!(named.log.contains("holds UUIDs, not indices"), "{}", named.log);
    }

    #[test]
    fn ranks_get_cards_in_slurms_order_where_they_ask_for_it() {
        let mut scene = scene(&node("tidy4"), &[0, 1, 2, 3], &BATCH);
        scene.positions = Ok(Some([3, 2, 1, 0].map(|rank| Some(Device::whole(rank))).into()));
        let policy = Policy::resolve([&"single,order=slurm".parse().unwrap()]);
        let rank = LocalRank { rank: 0, size: Some(4), source: "LOCAL_RANK", is_slurms: false };
        assert_eq!(visible(&align(&scene, &policy, &rank)), card(3));
    }

    #[test]
    fn fc_38_indices_of_an_unconstrained_node_and_a_container_are_warned_of() {
        let container = ("NVIDIA_VISIBLE_DEVICES", "0,1");
        let env = [&BATCH[..3], &[("SLURM_JOB_GPUS", "1,2"), container]].concat();
        let said = |minors: &[u32], words| done(minors, &env, words, 1, 2).log;
        let caution = Caution::CountedForContainer.to_string();
        let warned = said(&[0, 1, 2, 3], "ids=index");
        assert!(warned.ends_with(&format!("gpu-align:   {caution}\n")), "{warned}");
        for log in [said(&[0, 1, 2, 3], "ids=uuid"), said(&[1, 2], "ids=index")] {
            assert!(!log.contains(&caution), "{log}");
        }
    }

    #[test]
    fn rule_5_ranks_that_share_are_said_once() {
        let first = done(&[0, 1], &[], "single", 0, 4);
        assert!(first.log.contains("4 ranks share 2 cards"), "{}", first.log);
        assert!(!done(&[0, 1], &[], "single", 1, 4).log.contains("share"));
    }

    #[test]
    fn outside_of_slurm_no_step_is_named() {
        let node = [("SLURMD_NODENAME", "n1")];
        golden("exec-bare", &done(&[0, 1], &node, "single", 1, 2).log);
    }

    /// What rank 0 of two of Slurm's own tasks gets and is told, which can open
    /// `minors` of the step's `count` cards.
    fn slurms(minors: &[u32], count: &str, more: &[(&str, &str)], words: &str) -> Done {
        // As 22.05 has it: the first of them, as many as the task can open.
        let list: Vec<String> = (0..minors.len()).map(|n| n.to_string()).collect();
        let list = list.join(",");
        let mut env = BATCH[..3].to_vec();
        env.extend([
            ("SLURM_STEP_ID", "0"),
            ("SLURM_NODEID", "0"),
            ("SLURM_STEP_TASKS_PER_NODE", "2"),
            ("SLURM_STEP_GPUS", &list),
            ("SLURM_GPUS_ON_NODE", count),
        ]);
        env.extend(more);
        let words = words.parse().unwrap();
        let rank = local_rank(|name| {
            env.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string())
        });
        let rank = rank.unwrap();
        assert_eq!(rank.size, Some(2));
        align(&scene(&node("tidy4"), minors, &env), &Policy::resolve([&words]), &rank)
    }

    #[test]
    fn rule_4_a_rank_that_slurm_bound_shares_with_none_and_keeps_all_of_its_cards() {
        let bound = [("SLURMD_TRES_BIND", "gres/gpu:per_task:1"), ("CUDA_VISIBLE_DEVICES", "0")];
        for words in ["all", "single", "rotate"] {
            let one = slurms(&[1], "2", &bound, words);
            assert_eq!(visible(&one), card(1));
            assert!(!one.log.contains("share"), "{words}: {}", one.log);
        }
        // Also where srun's --mpi plugin repeats the rank.
        let pals = [bound[0], bound[1], ("PALS_LOCAL_RANKID", "0"), ("SLURM_PROCID", "6")];
        let one = slurms(&[1], "2", &pals, "single");
        assert_eq!(visible(&one), card(1));
        assert!(!one.log.contains("share") && one.log.contains("rank 6 local 0"), "{}", one.log);
        let two = [("SLURMD_TRES_BIND", "gres/gpu:per_task:2"), ("CUDA_VISIBLE_DEVICES", "0,1")];
        let two = slurms(&[0, 1], "4", &two, "single");
        assert_eq!(visible(&two), [card(0), card(1)].join(","));
        // So is one that the plugin gave a card of its own.
        let own = card(1);
        let single = [("GPU_ALIGN_MODE", "single"), ("GPU_ALIGN_UUIDS", own.as_str())];
        let single = slurms(&[0, 1], "2", &single, "all");
        assert_eq!(visible(&single), own);
        assert!(!single.log.contains("share"), "{}", single.log);
        // --gpu-bind=single:2, and no binding at all
        let both = [("SLURMD_TRES_BIND", "gres/gpu:single:2"), ("CUDA_VISIBLE_DEVICES", "0")];
        assert!(slurms(&[0], "1", &both, "all").log.contains("2 ranks share 1 card"));
        assert!(slurms(&[0], "1", &[], "all").log.contains("2 ranks share 1 card"));
        assert_eq!(visible(&slurms(&[0, 1], "2", &[], "single")), card(0));
    }

    #[test]
    fn rule_6_a_doubt_leaves_the_variable_alone_and_forces_the_order() {
        let env = [("SLURM_JOB_ID", "12"), ("SLURMD_NODENAME", "n1")];
        let doubt = done(&[0, 1, 2, 3], &env, "single", 0, 4);
        assert!(doubt.doubt);
        assert_eq!(doubt.variables[0], ("CUDA_DEVICE_ORDER", "PCI_BUS_ID".to_owned()));
        assert!(doubt.variables.iter().all(|(name, _)| *name != VISIBLE));
        golden("exec-doubt", &doubt.log);
    }

    /// What the rank gets whose step holds positions 1 and 2, where all cards can be
    /// opened and this is known of the gres list.
    fn where_listed(list: Result<Option<Vec<Option<Device>>>, GresError>) -> Done {
        let env = [&BATCH[..3], &[("SLURM_JOB_GPUS", "1,2")]].concat();
        let mut scene = scene(&node("tidy4"), &[0, 1, 2, 3], &env);
        scene.positions = list;
        let rank = LocalRank { rank: 0, size: Some(2), source: "LOCAL_RANK", is_slurms: false };
        align(&scene, &Policy::resolve([]), &rank)
    }

    #[test]
    fn rule_2_numbers_that_are_read_as_ranks_are_called_unverified_as_under_the_plugin() {
        let list = |ranks: [usize; 4]| Ok(Some(ranks.map(|rank| Some(Device::whole(rank))).into()));
        let says = |list, caution: Caution| where_listed(list).log.contains(&caution.to_string());
        assert!(says(Ok(None), Caution::UnknownGresList));
        assert!(says(list([3, 2, 1, 0]), Caution::NotInPciOrder));
        assert!(!where_listed(list([0, 1, 2, 3])).log.contains("unverified"));
    }

    #[test]
    fn fc_41_where_autodetect_lost_a_card_a_rank_is_in_doubt_as_under_the_plugin() {
        let conf = "/etc/slurm/gres.conf".into();
        let gone = where_listed(Err(GresError::CardsGone { conf, wanted: 5, found: 4 }));
        assert!(gone.doubt && gone.log.contains(&Doubt::CardsGone.to_string()), "{}", gone.log);
    }

    #[test]
    fn rule_8_without_cards_nothing_is_set() {
        assert_eq!(done(&[], &[], "all", 0, 1).variables, []);
    }
}
