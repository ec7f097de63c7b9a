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

/// Something to say about a decision that holds all the same; a task can have several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Caution {
    /// Positions were read as ranks although the gres list says otherwise.
    #[error(
        "unverified: this node does not constrain devices and its gres.conf is not in PCI order: numbers are read as other jobs read them"
    )]
    NotInPciOrder,
    /// Positions were read as ranks because the gres list is not known.
    #[error(
        "unverified: this node's gres list is not known, so Slurm's numbers are read as places in PCI order"
    )]
    UnknownGresList,
    /// `ids=index` was asked for, and an MPS daemon numbers its cards anew.
    #[error("an MPS daemon counts its own cards, so CUDA_VISIBLE_DEVICES holds UUIDs, not indices")]
    NamedForMps,
    /// `ids=index` counts cards that are not the step's, and a container that
    /// shows only some of them counts anew.
    #[error(
        "CUDA_VISIBLE_DEVICES holds places among all cards of this node; a container that shows only some counts those from 0: ask with ids=uuid"
    )]
    CountedForContainer,
}

impl Caution {
    /// All of them, in the order in which a log says them.
    pub const ALL: [Caution; 4] = [
        Caution::NotInPciOrder,
        Caution::UnknownGresList,
        Caution::NamedForMps,
        Caution::CountedForContainer,
    ];
}

/// Why nothing was decided. Rule 6: doubt leaves things as Slurm made them.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Doubt {
    #[error(
        "Slurm's position {position} is card {pci}, which this task cannot open; ask the admin whether it was lost"
    )]
    Unreachable { position: u32, pci: PciAddress },
    #[error(
        "the step was given {given} cards and this task can open {reached}; ask the admin whether a card was lost"
    )]
    Missing { given: usize, reached: usize },
    #[error(
        "Slurm's position {0} names no card of this node; ask the admin to compare gres.conf with nvidia-smi"
    )]
    NoSuchCard(u32),
    #[error(
        "Slurm binds this task to position {0}, which is not its step's; ask with --gres=gpu:N and no binding"
    )]
    NotTheSteps(u32),
    #[error(
        "Slurm does not say which of the cards that open are the step's; leave out --gpu-bind=none"
    )]
    NoList,
    #[error(
        "AutoDetect finds fewer GPUs than slurm.conf counts: positions may have moved; ask the admin"
    )]
    CardsGone,
    #[error("card {0} has no UUID before its first use; let the Prolog run 'gpu-align prolog'")]
    Placeholder(PciAddress),
    #[error("map= asks for device {place} and this task has {devices}; count from 0 in PCI order")]
    MapPlace { place: usize, devices: usize },
    #[error(
        "map= asks for {0}, which is not among this task's devices; list its own UUIDs or places"
    )]
    MapUuid(String),
    #[error(
        "other tasks did not say in time which they hold; use mode auto, or --gres=gpu:N and no binding"
    )]
    SilentTask,
    #[error("this node has {0} devices, more than gpu-align can tell apart; ask the admin")]
    TooMany(usize),
}
