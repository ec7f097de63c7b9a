//! What the commands for users share: a process and what it finds around it.

pub mod apart;
pub mod driver_api;
pub mod env;
pub mod gather;
pub mod hands;
pub mod mps;
pub mod scene;
pub mod screen;
pub mod usage;

#[cfg(test)]
pub mod simulated;
