//! The decision, and nothing else: data in, plan out. No files, no C, no clock.
//!
//! The way of the data: a [`policy`] is what was asked for; an [`allotment`] is
//! what the kernel and the scheduler leave this task; [`order`] says which
//! device is meant for which rank; [`plan`] is what one task gets to see.

pub mod allotment;
pub mod order;
pub mod plan;
pub mod policy;

use thiserror::Error;

use crate::device::PciAddress;

/// Why nothing was decided. Rule 6: doubt leaves things as Slurm made them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Doubt {
    #[error(
        "the step has cards but Slurm's position {position} is card {pci}, which this task cannot open; ask the admin whether it was lost"
    )]
    Unreachable { position: u32, pci: PciAddress },
    #[error(
        "the step was given {given} cards and this task can open {reached} of them; ask the admin whether a card was lost"
    )]
    Missing { given: usize, reached: usize },
    #[error(
        "Slurm's position {0} names no card of this node; ask the admin to compare gres.conf with nvidia-smi"
    )]
    NoSuchCard(u32),
    #[error(
        "Slurm binds this task to position {0}, which its step does not hold; ask with --gres=gpu:N and without a binding"
    )]
    NotTheSteps(u32),
    #[error(
        "this node does not constrain devices and Slurm does not say which cards are the step's; leave out --gpu-bind=none"
    )]
    NoList,
    #[error(
        "the driver does not know card {0}'s UUID before its first use; let the Prolog run 'gpu-align prolog', or enable persistence mode"
    )]
    Placeholder(PciAddress),
    #[error("map= asks for device {place} and this task has {devices}; count from 0 in PCI order")]
    MapPlace { place: usize, devices: usize },
    #[error(
        "map= asks for {0}, which is not among this task's devices; list its own UUIDs or places"
    )]
    MapUuid(String),
    #[error(
        "Slurm binds this task to several devices and other tasks did not say in time which they hold; use mode auto, or ask with --gres=gpu:N"
    )]
    SilentTask,
    #[error("this node has {0} devices, more than gpu-align can tell apart; ask the admin")]
    TooMany(usize),
}
