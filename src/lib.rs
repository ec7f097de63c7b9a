//! gpu-align: every local rank runs on the card it was meant to have.

pub mod align;
pub mod device;
pub mod node;
pub mod reach;
pub mod report;
pub mod slurm;
