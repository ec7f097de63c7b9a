//! A step as a file describes it, and what became of it.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A text that need not be UTF-8. In JSON a string, or a list of byte values.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(from = "Spelled", into = "Spelled")]
pub struct Bytes(pub Vec<u8>);

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(&self.0), f)
    }
}

#[derive(Deserialize, Serialize)]
#[serde(untagged)]
enum Spelled {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<Spelled> for Bytes {
    fn from(spelled: Spelled) -> Self {
        match spelled {
            Spelled::Text(text) => Self(text.into_bytes()),
            Spelled::Bytes(bytes) => Self(bytes),
        }
    }
}

impl From<Bytes> for Spelled {
    fn from(bytes: Bytes) -> Self {
        match String::from_utf8(bytes.0) {
            Ok(text) => Self::Text(text),
            Err(why) => Self::Bytes(why.into_bytes()),
        }
    }
}

impl From<&str> for Bytes {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

/// The program that loads the plugin; numbered as in spank.h.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Context {
    /// Slurm cannot say.
    Error = 0,
    /// srun.
    Local = 1,
    /// slurmstepd.
    #[default]
    Remote = 2,
    /// sbatch, salloc.
    Allocator = 3,
    /// slurmd.
    Slurmd = 4,
    /// Prolog and Epilog.
    JobScript = 5,
}

/// What Slurm would know of a step. Everything may be left out.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Step {
    /// The program that loads the plugin.
    pub context: Context,
    /// `slurm_api_version()`: 0x260000 is 22.05.
    pub api_version: i64,
    /// The arguments of the line in plugstack.conf.
    pub args: Vec<Bytes>,
    /// One call of the option's callback for each; `null` is a NULL pointer.
    pub options: Vec<Option<Bytes>>,
    /// The job's environment.
    pub env: BTreeMap<String, Bytes>,
    /// What `spank_get_item` answers.
    pub items: Items,
    /// The tasks of this node.
    pub tasks: Vec<Task>,
    /// The hooks in order: names without `slurm_spank_`, `options` for the option's callbacks, and
    /// `task_init:2` for one task only. Empty: as the program would call them.
    pub hooks: Vec<String>,
    /// Functions that the program shall lack. Counts when the file is loaded.
    pub missing: Vec<String>,
    /// Play it in forked processes.
    pub fork: bool,
}

impl Default for Step {
    fn default() -> Self {
        Self {
            context: Context::Remote,
            api_version: 0x26_0000,
            args: Vec::new(),
            options: Vec::new(),
            env: BTreeMap::new(),
            items: Items::default(),
            tasks: vec![Task::default()],
            hooks: Vec::new(),
            missing: Vec::new(),
            fork: false,
        }
    }
}

/// What `spank_get_item` answers; `null` is the answer ESPANK_ERROR.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Items {
    /// S_JOB_UID; S_JOB_GID is the same number.
    pub uid: Option<u32>,
    /// S_JOB_ID.
    pub job_id: Option<u32>,
    /// S_JOB_STEPID.
    pub step_id: Option<u32>,
    /// S_JOB_NNODES.
    pub nodes: Option<u32>,
    /// S_JOB_NODEID.
    pub node_id: Option<u32>,
    /// S_JOB_LOCAL_TASK_COUNT where it shall differ from the number of tasks.
    pub local_tasks: Option<u32>,
    /// S_JOB_TOTAL_TASK_COUNT where it shall differ from the number of tasks.
    pub total_tasks: Option<u32>,
}

impl Default for Items {
    fn default() -> Self {
        Self {
            uid: Some(1000),
            job_id: Some(12),
            step_id: Some(0),
            nodes: Some(1),
            node_id: Some(0),
            local_tasks: None,
            total_tasks: None,
        }
    }
}

/// One task of the node.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Task {
    /// What Slurm changes in the job's environment for this task; `null` unsets.
    pub env: BTreeMap<String, Option<Bytes>>,
    /// S_TASK_ID where it shall differ from the place in the list.
    pub id: Option<i32>,
    /// S_TASK_GLOBAL_ID where it shall differ from the place in the list.
    pub global_id: Option<u32>,
    /// S_TASK_PID where it shall differ from the process that runs the task's hooks.
    pub pid: Option<i32>,
    /// Forked play only: the task is gone before its `task_init`.
    pub dies: bool,
}

/// One hook's answer.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Answer {
    /// The hook, without `slurm_spank_`; `option` for the option's callback.
    pub hook: String,
    /// The task that it ran for.
    pub task: Option<usize>,
    /// What it returned; `null` where the file has no such hook.
    pub code: Option<i32>,
    /// How long it took, in microseconds.
    pub micros: u64,
}

/// One line that went to Slurm's log.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub struct Line {
    /// `spank_log`, `error`, `info`, `verbose`, `debug`, `debug2` or `debug3`.
    pub level: String,
    /// The hook that said it.
    pub hook: String,
    /// The task that it was said in.
    pub task: Option<usize>,
    /// The line.
    pub text: Bytes,
}

/// How a task stood when the step was over.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Ended {
    /// The environment that its program would get; empty if `task_init` did not run.
    pub env: BTreeMap<String, Bytes>,
    /// Its stderr (forked play).
    pub stderr: Bytes,
    /// Files that its program would inherit beyond 0, 1, 2 (forked play).
    pub inherited: Vec<String>,
    /// It did not answer in time, or died in a hook (forked play).
    pub lost: bool,
}

/// All that Slurm and the user would have seen.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Played {
    /// `plugin_version` after the file was loaded.
    pub plugin_version: u32,
    /// Names of the registered options.
    pub options: Vec<String>,
    /// Every hook's answer, in order.
    pub answers: Vec<Answer>,
    /// Every line logged, in order.
    pub log: Vec<Line>,
    /// The job's environment at the end.
    pub env: BTreeMap<String, Bytes>,
    /// The tasks.
    pub tasks: Vec<Ended>,
    /// What else was written to fd 2: by all hooks (in-process play), outside tasks (forked play).
    pub stderr: Bytes,
    /// Forked play: copies of task 0's stderr that the step's process still held after the last
    /// `task_post_fork`. Any keeps the stream from ending.
    pub task_log_copies: usize,
    /// Forked play: the step's process did not end in time and was killed.
    pub hung: bool,
}

impl Played {
    /// The answers of one hook.
    pub fn codes(&self, hook: &str) -> Vec<Option<i32>> {
        let of_hook = self.answers.iter().filter(|answer| answer.hook == hook);
        of_hook.map(|answer| answer.code).collect()
    }

    /// The longest time that a hook took, in microseconds.
    pub fn slowest(&self) -> u64 {
        self.answers.iter().map(|answer| answer.micros).max().unwrap_or(0)
    }

    /// How many bytes reached logs and stderr in all.
    pub fn output(&self) -> usize {
        let lines = self.log.iter().map(|line| line.text.0.len() + 1).sum::<usize>();
        let tasks = self.tasks.iter().map(|task| task.stderr.0.len()).sum::<usize>();
        lines + tasks + self.stderr.0.len()
    }
}
