//! What Slurm said.

pub mod plugstack;
pub mod step;
