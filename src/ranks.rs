//! A process's local rank, when it was not Slurm that started it.
//!
//! Each launcher has its own variables. `SLURM_LOCALID` comes last: a batch
//! step leaves `SLURM_LOCALID=0` to everything that is started in it, so under
//! mpirun every rank would read 0 (field case FC-20).

use crate::slurm::step::tasks_on_node;

/// A local rank and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalRank {
    pub rank: usize,
    /// How many processes the launcher started on this node, if it says so.
    pub size: Option<usize>,
    /// The variable that holds the rank.
    pub source: &'static str,
    /// Whether the rank is that of a task that Slurm started, not of a process
    /// that a launcher started inside one.
    pub is_slurms: bool,
}

/// The variables of rank and size, by trust.
const LAUNCHERS: [(&str, &[&str]); 9] = [
    ("OMPI_COMM_WORLD_LOCAL_RANK", &["OMPI_COMM_WORLD_LOCAL_SIZE"]),
    ("MPI_LOCALRANKID", &["MPI_LOCALNRANKS"]),
    ("MV2_COMM_WORLD_LOCAL_RANK", &["MV2_COMM_WORLD_LOCAL_SIZE"]),
    ("PMIX_LOCAL_RANK", &["PMIX_LOCAL_SIZE"]),
    ("PMI_LOCAL_RANK", &["PMI_LOCAL_SIZE"]),
    ("PALS_LOCAL_RANKID", &["PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"]),
    ("FLUX_TASK_LOCAL_ID", &[]),
    ("LOCAL_RANK", &["LOCAL_WORLD_SIZE"]),
    ("SLURM_LOCALID", &[]),
];

/// Those that srun sets too, by its `--mpi` plugin (`pmix`, `pmi2`,
/// `cray_shasta`): there they repeat `SLURM_LOCALID`.
const OF_SRUN: [&str; 3] = ["PMIX_LOCAL_RANK", "PMI_LOCAL_RANK", "PALS_LOCAL_RANKID"];

/// The local rank that the most trusted variable gives; a value that is no
/// number is passed over.
pub fn local_rank(env: impl Fn(&str) -> Option<String>) -> Option<LocalRank> {
    let number = |name: &str| env(name)?.trim().parse::<usize>().ok();
    LAUNCHERS.iter().find_map(|&(source, sizes)| {
        let rank = number(source)?;
        let size = sizes.iter().find_map(|name| number(name)).filter(|&size| size > rank);
        let tasks = slurm_tasks_here(&env).filter(|&tasks| tasks > rank);
        // A launcher in a lone task starts more ranks than Slurm knows of.
        let repeats = OF_SRUN.contains(&source)
            && number("SLURM_LOCALID") == Some(rank)
            && tasks.is_some_and(|tasks| tasks > 1 && size.is_none_or(|size| size == tasks));
        let is_slurms = source == "SLURM_LOCALID" || repeats;
        let size = if is_slurms { tasks } else { size };
        Some(LocalRank { rank, size, source, is_slurms })
    })
}

/// How many tasks the Slurm step of this process has on this node, as
/// `SLURM_STEP_TASKS_PER_NODE` says (`4(x2),3`); a batch step has one.
pub fn slurm_tasks_here(env: impl Fn(&str) -> Option<String>) -> Option<usize> {
    let node: usize = env("SLURM_NODEID")?.trim().parse().ok()?;
    let list = env("SLURM_STEP_TASKS_PER_NODE")?;
    tasks_on_node(&list, node)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<'a> {
        |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string())
    }

    #[test]
    fn fc_20_a_batch_steps_localid_does_not_hide_the_launchers_rank() {
        let env = env(&[
            ("SLURM_LOCALID", "0"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
        ]);
        let rank = local_rank(env).unwrap();
        assert_eq!((rank.rank, rank.size, rank.source), (3, Some(4), "OMPI_COMM_WORLD_LOCAL_RANK"));
    }

    #[test]
    fn every_launcher_is_known_and_slurm_is_last() {
        for (name, sizes) in LAUNCHERS {
            let mut pairs = vec![("SLURM_LOCALID", "7"), (name, "1")];
            pairs.extend(sizes.first().map(|size| (*size, "2")));
            if name == "SLURM_LOCALID" {
                pairs.remove(0);
            }
            let rank = local_rank(env(&pairs)).unwrap();
            assert_eq!((rank.rank, rank.source), (1, name));
            assert_eq!(rank.size, sizes.first().map(|_| 2), "{name}");
        }
        assert_eq!(local_rank(env(&[("LOCAL_RANK", "x")])), None);
    }

    #[test]
    fn fc_20_what_sruns_mpi_plugin_says_of_its_own_task_is_slurms_rank() {
        let step =
            [("SLURM_LOCALID", "1"), ("SLURM_NODEID", "0"), ("SLURM_STEP_TASKS_PER_NODE", "4")];
        let with = |more: &[(&'static str, &'static str)]| {
            let pairs: Vec<_> = more.iter().chain(&step).copied().collect();
            let found = local_rank(env(&pairs)).unwrap();
            (found.rank, found.size, found.is_slurms)
        };
        assert_eq!(with(&[("PMIX_RANK", "1")]), (1, Some(4), true));
        for name in OF_SRUN {
            assert_eq!(with(&[(name, "1")]), (1, Some(4), true), "{name}");
            // A launcher in task 1, whose ranks count on their own.
            assert_eq!(with(&[(name, "3")]), (3, None, false), "{name}");
        }
        let two = [("PMI_LOCAL_RANK", "1"), ("PMI_LOCAL_SIZE", "2")];
        assert_eq!(with(&two), (1, Some(2), false));
        let torchrun = [("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4")];
        assert_eq!(with(&torchrun), (1, Some(4), false));
        let mpirun = env(&[
            ("PMIX_LOCAL_RANK", "0"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NODEID", "0"),
            ("SLURM_STEP_TASKS_PER_NODE", "1"),
        ]);
        assert!(!local_rank(mpirun).unwrap().is_slurms);
    }

    #[test]
    fn a_size_that_the_rank_exceeds_is_not_believed() {
        let rank = local_rank(env(&[("LOCAL_RANK", "4"), ("LOCAL_WORLD_SIZE", "4")])).unwrap();
        assert_eq!(rank.size, None);
    }

    #[test]
    fn slurm_counts_tasks_node_by_node() {
        let here = |list, node| {
            slurm_tasks_here(env(&[("SLURM_STEP_TASKS_PER_NODE", list), ("SLURM_NODEID", node)]))
        };
        assert_eq!(here("4(x2),3", "1"), Some(4));
        assert_eq!(here("4(x2),3", "2"), Some(3));
        assert_eq!(here("4(x2),3", "3"), None);
        assert_eq!(here("x", "0"), None);
    }
}
