//! The C side: everything that Slurm's SPANK interface asks for, and all of the plugin's unsafe.
//!
//! Slurm loads the plugin file into srun, sbatch, salloc, slurmd and slurmstepd, of any release
//! from 21.08 on. So this layer keeps four promises towards the programs that it lives in:
//!
//! - loading never fails for a symbol that one of them lacks ([`calls`]),
//! - the version that Slurm checks is the running Slurm's own ([`release`]),
//! - a hook answers 0 or -1 and no panic leaves it or spoils a later hook ([`guard`], [`state`]),
//! - nothing is exported but `plugin_*` and the hooks in use ([`export`]).
//!
//! Upwards it offers plain safe Rust: [`Spank`], [`Outcome`], [`SharedSlots`], [`TaskLog`]. The
//! hooks' content is in [`crate::plugin`].
//!
//! slurm-spank 0.4.1 was weighed for this and left out: it knows no optional option values and no
//! failure mode, fixes the version at build time, exports all twelve hooks, and one caught panic
//! poisons every hook after it.

mod bindings;
mod calls;
mod export;
mod guard;
mod handle;
mod option;
mod release;
mod shared;
mod state;
mod task_log;

pub use calls::SpankError;
pub use handle::{Context, SetenvRoom, Spank, error};
pub use release::supports;
pub use shared::{SharedPlain, SharedSlots, SharedText};
pub use state::StateCell;
pub use task_log::TaskLog;

/// Ends the task that this hook runs in, before its program starts, with status 1. Only for a
/// forked task: none of slurmstepd's own clean-up runs.
pub fn end_task() -> ! {
    // SAFETY: _exit takes any status and never comes back.
    unsafe { libc::_exit(1) }
}

/// What a hook answers to Slurm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// 0: go on. Also the answer after an internal error: the job goes on as Slurm made it.
    Fine,
    /// -1: the command is refused (srun, sbatch, salloc) or the task fails (slurmstepd).
    Refused,
}
