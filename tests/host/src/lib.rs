//! Plays a Slurm job step to a SPANK plugin file, without Slurm.
//!
//! A [`Step`] says what Slurm would know: the program that loads the plugin, its arguments, the
//! option's values, the job's environment, the tasks, the hooks in order. A [`Host`] loads the
//! file and plays steps to it; what comes back in a [`Played`] is all that Slurm and the user
//! would have seen of it: answers, environments, log lines, stderr, times.
//!
//! [`Host::play`] runs every hook in this process, thousands of steps a second.
//! [`Host::play_forked`] forks as slurmstepd does: one process for the step and one for each task,
//! all `task_post_fork` before any `task_init`, and the tasks' `task_init` at the same time.

mod forked;
mod play;
mod plugin_file;
mod slurm;
mod stderr;
mod step;

pub use play::Host;
pub use plugin_file::built_plugin;
pub use step::{Answer, Bytes, Context, Ended, Items, Line, Played, Step, Task};
