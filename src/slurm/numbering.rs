//! What a position means where the kernel forbids nothing: design rule 2.
//!
//! Jobs without gpu-align read Slurm's number p as the card of rank p. Where the
//! gres list means another card, to be right alone is to meet a neighbour.

use super::gres_list::GresList;
use crate::device::Device;

/// How the numbers that jobs without gpu-align live by (position p read as
/// rank p) relate to the cards that Slurm means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Numbering {
    /// Position p is the card of rank p, for all p.
    RankEqualsPosition,
    /// The same cards, in another order: nobody is without a card, but
    /// number = rank and the gres list disagree on whose it is.
    Permuted,
    /// Some number p points at a card of rank p that Slurm gives to nobody.
    Holes,
}

/// Compares the gres list with PCI order. Slices do not take part: Slurm
/// itself names them by UUID.
pub fn numbering(list: &GresList) -> Numbering {
    let numbered = || list.positions().filter(|&p| !list.is_slice(p));
    if numbered().all(|p| list.device(p) == rank(p)) {
        Numbering::RankEqualsPosition
    } else if numbered().all(|p| list.position_of(p as usize).is_some()) {
        Numbering::Permuted
    } else {
        Numbering::Holes
    }
}

/// The card that a neighbour's number means.
fn rank(number: u32) -> Option<Device> {
    Some(Device::whole(usize::try_from(number).ok()?))
}

/// Whom to follow on a node that constrains nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Follow {
    /// Jobs without gpu-align, which read number as rank.
    #[default]
    Neighbours,
    /// The gres list, where every job of the site runs gpu-align.
    File,
}

/// A position's device on an unconstrained node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Resolved {
    pub device: Device,
    /// Whether neighbours and gres list agree; if not, the log says `unverified`.
    pub verified: bool,
}

/// Design rule 2. All positions of a node are resolved in one way: to follow
/// the neighbours for some and the list for others could give one card twice.
pub fn resolve(list: &GresList, position: u32, follow: Follow) -> Option<Resolved> {
    let file = list.device(position);
    let numbering = numbering(list);
    let slice = list.is_slice(position);
    let neighbours = numbering == Numbering::Permuted && follow == Follow::Neighbours;
    // Permuted: every number is a card's, so p names one if it is a position.
    let device = match file {
        Some(_) if neighbours && !slice => rank(position),
        file => file,
    };
    let agreed = numbering == Numbering::RankEqualsPosition || slice || follow == Follow::File;
    device.map(|device| Resolved {
        device,
        verified: agreed,
    })
}
