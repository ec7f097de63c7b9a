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

/// The local rank that the most trusted variable gives; a value that is no
/// number is passed over.
pub fn local_rank(env: impl Fn(&str) -> Option<String>) -> Option<LocalRank> {
    let number = |name: &str| env(name)?.trim().parse::<usize>().ok();
    LAUNCHERS.iter().find_map(|&(source, sizes)| {
        let rank = number(source)?;
        let size = match source {
            "SLURM_LOCALID" => slurm_tasks_here(&env),
            _ => sizes.iter().find_map(|name| number(name)),
        };
        Some(LocalRank { rank, size: size.filter(|&size| size > rank), source })
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
