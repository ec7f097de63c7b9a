//! The faults for which a site may want its Prolog to drain the node.

use clap::ValueEnum;
use gpu_align::node::stock::{Fault, FaultKind};

/// A kind of problem, by the name that `--drain` takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Drain {
    /// A card that gres.conf names, that slurm.conf counts or that was there earlier in this
    /// boot is not there
    Missing,
    /// A card fell off the bus or does not answer
    Lost,
    /// The loaded driver and NVML's library are of different versions
    Mismatch,
    /// NVML did not answer in time, or died
    Unanswered,
    /// NVML and the driver tell different stories
    Difference,
    /// The record cannot be written
    Record,
    /// Anything else that gpu-align says
    Other,
}

/// What a bare `--drain` means.
pub const USUAL: &str = "missing,lost,mismatch";

impl Drain {
    pub fn of(fault: &Fault) -> Drain {
        match fault.kind {
            FaultKind::Lost => Drain::Lost,
            FaultKind::LibraryMismatch => Drain::Mismatch,
            FaultKind::NoAnswer | FaultKind::Crashed => Drain::Unanswered,
            FaultKind::Nonsense => Drain::Difference,
            FaultKind::NoLibrary
            | FaultKind::DriverNotLoaded
            | FaultKind::NoPermission
            | FaultKind::Unknown => Drain::Other,
        }
    }
}

/// Something that the Prolog says, one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub kind: Drain,
    pub line: String,
}

impl Problem {
    pub fn new(kind: Drain, line: impl Into<String>) -> Problem {
        Problem { kind, line: line.into() }
    }
}
