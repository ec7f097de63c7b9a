//! gpu-align: every local rank runs on the card it was meant to have.
//!
//! The way of the data, in one direction:
//!
//! ```text
//! node::driver ───────────────► Inventory ─┐
//! reach (the kernel) ─────────► devices ───┼► align::allotment ─► order ─► plan
//! slurm::{step, gres_conf} ───► numbers ───┘                                │
//! align::policy (the user's words) ─────────────────────────────────────────┤
//!                                   environment (launch) and log (report) ◄─┘
//! ```
//!
//! [`align`] knows nothing of Slurm, files or C. [`plugin`] holds no decision:
//! it says what happens in which hook. [`spank`] is the C side, and all of the
//! plugin file's unsafe.

pub mod align;
pub mod board;
pub mod cuda;
pub mod device;
pub mod launch;
pub mod node;
pub mod plugin;
pub mod ranks;
pub mod reach;
pub mod report;
pub mod slurm;
pub mod spank;
