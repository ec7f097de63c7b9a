//! What Slurm said: its variables, and its configuration read as Slurm reads it.

mod autodetect;
pub mod conf;
pub mod files;
pub mod gres_conf;
pub mod gres_list;
pub mod hostlist;
pub mod plugstack;
#[cfg(feature = "program")]
pub mod plugstack_conf;
pub mod step;
