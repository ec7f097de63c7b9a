//! The hooks' content.

use crate::spank::{Outcome, Spank};

/// In every program, first: the arguments of the line in plugstack.conf.
pub fn init(_spank: &Spank<'_>, _arguments: &[String]) -> Outcome {
    Outcome::Fine
}

/// `--gpu-align[=WORDS]` was given; `None` without a value. `remote`: in slurmstepd.
pub fn option(_words: Option<&str>, _remote: bool) -> Outcome {
    Outcome::Fine
}

/// After the option callbacks; in slurmstepd as root.
pub fn init_post_opt(_spank: &Spank<'_>) -> Outcome {
    Outcome::Fine
}

/// In slurmstepd as the user, before any task exists.
pub fn user_init(_spank: &Spank<'_>) -> Outcome {
    Outcome::Fine
}

/// In slurmstepd as root, once per task, for all tasks before any `task_init`.
pub fn task_post_fork(_spank: &Spank<'_>) -> Outcome {
    Outcome::Fine
}

/// In the task, as the user, in its cgroup.
pub fn task_init(_spank: &Spank<'_>) -> Outcome {
    Outcome::Fine
}

/// In slurmstepd, when a task has ended.
pub fn task_exit(_spank: &Spank<'_>) -> Outcome {
    Outcome::Fine
}

/// Last, in every program.
pub fn exit(_spank: &Spank<'_>) -> Outcome {
    Outcome::Fine
}
