//! gpu-align: every local rank runs on the card it was meant to have.

pub mod device;
pub mod slurm;
