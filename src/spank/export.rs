//! The symbols that Slurm looks for in the plugin file; no others leave it.
//!
//! `init` and `fini` must never be among them: Slurm would call them. A hook that has nothing to
//! do is not exported, so that Slurm does not call it for nothing.

#![allow(non_upper_case_globals)]

use std::ffi::{c_char, c_int};

use super::bindings::spank_t;
use super::guard::guard;
use super::{Outcome, Spank, handle, option};
use crate::plugin;

/// The plugin's name: in messages of Slurm and in the variables that carry its option.
#[unsafe(no_mangle)]
pub static plugin_name: [u8; 10] = *b"gpu-align\0";

/// What kind of plugin the file is.
#[unsafe(no_mangle)]
pub static plugin_type: [u8; 6] = *b"spank\0";

/// Read by Slurm 25.05 and newer when `slurm_spank_init` fails in slurmstepd: 3012 is
/// ESPANK_JOB_FAILURE (fail the job), where the default 3011 drains the node. Written out since
/// older headers do not have the name.
#[unsafe(no_mangle)]
pub static slurm_spank_init_failure_mode: c_int = 3012;

/// Registers the option, then hands over the arguments of the line in plugstack.conf.
fn init(spank: &Spank<'_>, arguments: &[String]) -> Outcome {
    if let Err(why) = option::register(spank) {
        handle::debug(&format!("gpu-align: --gpu-align is not offered: {why}"));
    }
    plugin::init(spank, arguments)
}

/// # Safety
/// Slurm's: `spank` is its handle and `texts` holds `count` C strings.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn slurm_spank_init(
    spank: spank_t,
    count: c_int,
    texts: *mut *mut c_char,
) -> c_int {
    guard("init", || {
        // SAFETY: both come straight from Slurm, for this call.
        let (spank, arguments) = unsafe { (Spank::new(spank), handle::arguments(count, texts)) };
        init(&spank, &arguments)
    })
}

macro_rules! hooks {
    ($($(#[$doc:meta])* $symbol:ident => $hook:ident;)*) => {
        $(
            $(#[$doc])*
            ///
            /// # Safety
            /// Slurm's: `spank` is its handle for this call.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $symbol(
                spank: spank_t,
                _count: c_int,
                _texts: *mut *mut c_char,
            ) -> c_int {
                guard(stringify!($hook), || {
                    // SAFETY: the handle comes straight from Slurm, for this call.
                    let spank = unsafe { Spank::new(spank) };
                    plugin::$hook(&spank)
                })
            }
        )*
    };
}

hooks! {
    /// After the option callbacks; in slurmstepd as root.
    slurm_spank_init_post_opt => init_post_opt;
    /// In slurmstepd as the user, before any task exists; fd 2 is local task 0's stderr.
    slurm_spank_user_init => user_init;
    /// In slurmstepd as root, once per task, for all tasks before any `task_init`.
    slurm_spank_task_post_fork => task_post_fork;
    /// In the task, as the user, in its cgroup; what is set here reaches the program.
    slurm_spank_task_init => task_init;
    /// In slurmstepd, when a task has ended.
    slurm_spank_task_exit => task_exit;
    /// Last, in every program.
    slurm_spank_exit => exit;
}
