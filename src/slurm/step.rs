//! A step's and a task's variables, read with the distrust that they have
//! earned: `SLURM_STEP_GPUS` is the same in every task of a bound step, is
//! unset by `--gpu-bind=none`, and `SLURM_JOB_GPUS` in a step belongs to the
//! batch host.

use std::str::FromStr;

use crate::device::Uuid;

/// Longer lists are not read; no node has as many cards.
const MAX_LIST: usize = 1024;

/// More than any cluster has.
const MAX_NODES: usize = 1 << 20;

/// Step ids that Slurm reserves (slurm.h).
const INTERACTIVE: u32 = 0xffff_fffa;
const BATCH: u32 = 0xffff_fffb;
const EXTERN: u32 = 0xffff_fffc;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Started by srun.
    Normal,
    Batch,
    Interactive,
    /// Holds adopted processes; runs no task.
    Extern,
}

impl Kind {
    pub fn of(step_id: u32) -> Kind {
        match step_id {
            BATCH => Kind::Batch,
            INTERACTIVE => Kind::Interactive,
            EXTERN => Kind::Extern,
            _ => Kind::Normal,
        }
    }
}

/// `12.0`, `12.batch`: as Slurm's own tools write a step.
pub fn name(job: u32, step_id: u32) -> String {
    match Kind::of(step_id) {
        Kind::Normal => format!("{job}.{step_id}"),
        Kind::Batch => format!("{job}.batch"),
        Kind::Interactive => format!("{job}.interactive"),
        Kind::Extern => format!("{job}.extern"),
    }
}

/// What the step was told, read before tasks are forked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// The positions that the step holds on this node.
    pub positions: Option<Vec<u32>>,
    /// How many devices it holds, said apart from a list.
    pub count: Option<usize>,
}

impl Said {
    /// Reads the step-level variables through `env`.
    ///
    /// A batch or interactive step has `SLURM_JOB_GPUS`; in a normal step that
    /// variable is inherited from the batch host and is not read.
    pub fn read(kind: Kind, env: impl Fn(&str) -> Option<String>) -> Said {
        let list = match kind {
            Kind::Normal => env("SLURM_STEP_GPUS"),
            Kind::Batch | Kind::Interactive => env("SLURM_JOB_GPUS"),
            Kind::Extern => None,
        };
        Said {
            positions: list.as_deref().and_then(numbers),
            count: env("SLURM_GPUS_ON_NODE").and_then(|n| n.trim().parse().ok()),
        }
    }
}

impl Said {
    /// Whether the step was told that it holds any devices.
    pub fn holds_devices(&self) -> bool {
        let listed = self.positions.as_ref().is_some_and(|list| !list.is_empty());
        listed || self.count.is_some_and(|count| count > 0)
    }
}

/// The numbers that Slurm wrote for one task, if it binds tasks to devices.
pub fn task_numbers(env: impl Fn(&str) -> Option<String>) -> Option<Vec<u32>> {
    numbers(&bound_list(env)?)
}

/// The UUIDs that it wrote instead: for slices from 23.11.4 on, for cards where
/// 26.05's `env_uuid` asks for them.
pub fn task_uuids(env: impl Fn(&str) -> Option<String>) -> Option<Vec<Uuid>> {
    list(&bound_list(env)?)
}

/// Whether Slurm binds tasks to devices.
///
/// `SLURMD_TRES_BIND` says so; it can be stale in an srun inside a step, which
/// the allotment checks against the reach.
pub fn binds(env: impl Fn(&str) -> Option<String>) -> bool {
    env("SLURMD_TRES_BIND")
        .is_some_and(|binding| binding.contains("gpu") && !binding.contains("gpu:none"))
}

/// CUDA_VISIBLE_DEVICES of a task that Slurm binds to devices.
fn bound_list(env: impl Fn(&str) -> Option<String>) -> Option<String> {
    binds(&env).then(|| env("CUDA_VISIBLE_DEVICES")).flatten()
}

/// The place within the step at which a task's devices begin, where Slurm hands
/// them out by local rank: `single:TASKS_PER_GPU` and `per_task:GPUS`. `gpus`:
/// how many the step holds on this node.
pub fn first_place(
    env: impl Fn(&str) -> Option<String>,
    local: usize,
    gpus: usize,
) -> Option<usize> {
    let binding = env("SLURMD_TRES_BIND")?;
    let (_, binding) = binding.split_once("gpu:")?;
    let binding = binding.split('+').next()?;
    let (kind, number) = binding.strip_prefix("verbose,").unwrap_or(binding).split_once(':')?;
    let number: usize = number.parse().ok()?;
    match kind {
        "single" => local.checked_div(number)?.checked_rem(gpus),
        "per_task" => local.checked_mul(number),
        _ => None,
    }
}

/// A list of decimals separated by commas; `None` for anything else.
pub fn numbers(text: &str) -> Option<Vec<u32>> {
    list(text)
}

/// A list of one kind of word separated by commas; `None` for anything else.
fn list<T: FromStr>(text: &str) -> Option<Vec<T>> {
    let parsed: Vec<T> =
        text.split(',').take(MAX_LIST + 1).map(|n| n.trim().parse().ok()).collect::<Option<_>>()?;
    (parsed.len() <= MAX_LIST).then_some(parsed)
}

/// How many tasks node `node` of a step runs, by `SLURM_STEP_TASKS_PER_NODE`:
/// `2(x3),1` is 2, 2, 2 and 1.
pub fn tasks_on_node(list: &str, node: usize) -> Option<usize> {
    let mut before = 0;
    for part in list.split(',').take(MAX_LIST) {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?.parse().ok()?),
            None => (part, 1_usize),
        };
        before += nodes.min(MAX_NODES);
        if node < before {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env<'a>(pairs: &'a [(&str, &str)]) -> impl Fn(&str) -> Option<String> + use<'a> {
        |name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string())
    }

    #[test]
    fn a_step_does_not_read_the_batch_hosts_list() {
        let both = [("SLURM_JOB_GPUS", "0,1"), ("SLURM_STEP_GPUS", "2,3")];
        assert_eq!(Said::read(Kind::Normal, env(&both)).positions, Some(vec![2, 3]));
        assert_eq!(Said::read(Kind::Batch, env(&both)).positions, Some(vec![0, 1]));
        assert_eq!(Said::read(Kind::Normal, env(&both[..1])).positions, None);
    }

    #[test]
    fn tasks_per_node_are_written_in_runs() {
        let at = |node| tasks_on_node("2(x3),1,4(x2)", node);
        assert_eq!([0, 2, 3, 4, 5].map(at), [Some(2), Some(2), Some(1), Some(4), Some(4)]);
        assert_eq!(at(6), None);
        for garbage in ["", "x", "2(x", "2(x2", "-1", "2(x99999999999999999999)"] {
            assert_eq!(tasks_on_node(garbage, 0), None, "{garbage}");
        }
    }

    #[test]
    fn what_is_no_list_of_numbers_is_no_list() {
        for garbage in ["", "a", "0,,1", "-1", "0-3", "99999999999", "GPU-0"] {
            assert_eq!(numbers(garbage), None, "{garbage}");
        }
        assert_eq!(numbers(&"1,".repeat(100_000)), None);
    }

    #[test]
    fn slurm_hands_out_devices_by_local_rank_under_single_and_per_task() {
        let place = |bind, local| first_place(env(&[("SLURMD_TRES_BIND", bind)]), local, 3);
        assert_eq!(place("gpu:single:1", 2), Some(2));
        assert_eq!(place("gres/gpu:single:1", 4), Some(1));
        assert_eq!(place("gres/gpu:verbose,single:2", 3), Some(1));
        assert_eq!(place("gres/nic:single:1+gres/gpu:per_task:2", 1), Some(2));
        for unknown in
            ["", "gpu:none", "gpu:closest", "gpu:map_gpu:2,0,1", "gpu:single:0", "gpu:single:"]
        {
            assert_eq!(place(unknown, 1), None, "{unknown}");
        }
        assert_eq!(first_place(env(&[]), 1, 3), None);
        assert_eq!(first_place(env(&[("SLURMD_TRES_BIND", "gpu:single:1")]), 1, 0), None);
    }

    #[test]
    fn a_task_is_bound_only_if_slurm_says_that_it_binds() {
        let cuda = ("CUDA_VISIBLE_DEVICES", "1");
        assert_eq!(task_numbers(env(&[cuda])), None);
        let bound = [cuda, ("SLURMD_TRES_BIND", "gres/gpu:single:1")];
        assert_eq!(task_numbers(env(&bound)), Some(vec![1]));
        let slice = "MIG-00000000-00a0-5000-8000-000000000000";
        let named = [("CUDA_VISIBLE_DEVICES", slice), bound[1]];
        assert_eq!(task_numbers(env(&named)), None);
        assert_eq!(task_uuids(env(&named)), Some(vec![slice.parse().unwrap()]));
        assert_eq!(task_uuids(env(&named[..1])), None);
        let none = [cuda, ("SLURMD_TRES_BIND", "gres/gpu:none")];
        assert_eq!(task_numbers(env(&none)), None);
    }
}
