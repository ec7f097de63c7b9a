//! What `cuInit` finds: the reachable devices, in CUDA's order, filtered by the user's list.

use sim_node::{Card, DeviceFile, Node, Pci, Slice};

use crate::error::CudaError;
use crate::visible;

/// One CUDA device of a process; its place in the list is its CUDA index.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The device's own UUID: a slice's, never its card's.
    pub uuid: String,
    /// The UUID of the card that it is, or is a part of.
    pub card_uuid: String,
    pub pci: Pci,
    pub minor: u32,
    pub name: String,
    /// Bytes.
    pub memory: u64,
    /// GPU instance and compute instance, if it is a slice.
    pub slice: Option<(u32, u32)>,
}

/// The devices that a process would see as `cuda:0`, `cuda:1`, …
///
/// `openable` says what the process may open ([`sim_node::openable`] asks the
/// kernel); `order` and `visible` are the values of CUDA_DEVICE_ORDER and
/// CUDA_VISIBLE_DEVICES, `None` where unset.
///
/// # Errors
///
/// [`CudaError::NoDevice`] when nothing is left; [`CudaError::InvalidDevice`]
/// when CUDA_VISIBLE_DEVICES names a device twice or CUDA_DEVICE_ORDER is set to
/// anything but the two words it knows, the empty value included: the driver
/// then gives no card at all.
pub fn enumerate(
    node: &Node,
    openable: &dyn Fn(DeviceFile) -> bool,
    order: Option<&str>,
    visible: Option<&str>,
) -> Result<Vec<Entry>, CudaError> {
    let fastest_first = match order {
        None | Some("FASTEST_FIRST") => true,
        Some("PCI_BUS_ID") => false,
        Some(_) => return Err(CudaError::InvalidDevice),
    };
    let rule = SliceRule::of(node);
    let cards = Reachable::of(node, openable, fastest_first);
    let numbered = numbered(&cards, rule);
    let chosen = match visible {
        None => numbered,
        Some(list) => visible::filter(list, &numbered, &cards)?,
    };
    let devices = rule.apply(chosen);
    if devices.is_empty() {
        return Err(CudaError::NoDevice);
    }
    Ok(devices)
}

/// A card that the process may open, with those of its slices that it may use.
pub(crate) struct Reachable<'a> {
    pub card: &'a Card,
    pub slices: Vec<&'a Slice>,
}

impl<'a> Reachable<'a> {
    /// All of them in PCI order, or the fastest first and by PCI among equals.
    fn of(
        node: &'a Node,
        openable: &dyn Fn(DeviceFile) -> bool,
        fastest_first: bool,
    ) -> Vec<Reachable<'a>> {
        let usable = |card: &&Card| !card.lost && card.reachable(openable);
        let mut cards: Vec<&Card> = node.cards.iter().filter(usable).collect();
        cards.sort_by_key(|card| card.pci);
        if fastest_first {
            cards.sort_by(|a, b| b.speed.total_cmp(&a.speed));
        }
        let with_slices = |card: &'a Card| {
            let mut slices: Vec<&Slice> = card.slices.iter().collect();
            slices.retain(|slice| card.mig_on() && slice.reachable(openable));
            slices.sort_by_key(|slice| (slice.gi, slice.ci));
            Reachable { card, slices }
        };
        cards.into_iter().map(with_slices).collect()
    }

    /// The card itself; a card in MIG mode is no device, its first slice stands for it.
    ///
    /// Deduced: NVIDIA's MIG user guide says that CUDA picks the first compute
    /// instance available, and is silent on the parent's UUID in
    /// CUDA_VISIBLE_DEVICES; parents' indices are known to select that way.
    pub fn device(&self) -> Option<Entry> {
        if self.card.mig_on() {
            return self.slices.first().map(|slice| self.slice(slice));
        }
        Some(Entry {
            uuid: self.card.uuid.clone(),
            card_uuid: self.card.uuid.clone(),
            pci: self.card.pci,
            minor: self.card.minor,
            name: self.card.model.clone(),
            memory: self.card.memory,
            slice: None,
        })
    }

    pub fn slice(&self, slice: &Slice) -> Entry {
        Entry {
            uuid: slice.uuid.clone(),
            card_uuid: self.card.uuid.clone(),
            pci: self.card.pci,
            minor: self.card.minor,
            name: format!("{} MIG {}", self.card.model, slice.profile),
            memory: slice.memory(),
            slice: Some((slice.gi, slice.ci)),
        }
    }
}

/// The devices that indices count: whole cards first, then what the cards in MIG mode offer.
fn numbered(cards: &[Reachable], rule: SliceRule) -> Vec<Entry> {
    let (sliced, whole): (Vec<_>, Vec<_>) = cards.iter().partition(|c| c.card.mig_on());
    let slices = |card: &&Reachable| match rule {
        SliceRule::One => card.device().into_iter().collect::<Vec<_>>(),
        SliceRule::OnePerInstance => card.slices.iter().map(|s| card.slice(s)).collect(),
    };
    let whole = whole.iter().filter_map(|card| card.device());
    rule.apply(whole.chain(sliced.iter().flat_map(slices)).collect())
}

/// How many slices a process gets, by the MIG user guide's "CUDA Device Enumeration".
#[derive(Clone, Copy, PartialEq)]
enum SliceRule {
    /// Up to R565: a single compute instance, the first visible; and no whole
    /// card once a compute instance is enumerated.
    One,
    /// From R570: one compute instance of each GPU instance, beside whole cards.
    OnePerInstance,
}

impl SliceRule {
    fn of(node: &Node) -> SliceRule {
        if node.driver_branch() >= 570 { SliceRule::OnePerInstance } else { SliceRule::One }
    }

    fn apply(self, devices: Vec<Entry>) -> Vec<Entry> {
        match self {
            SliceRule::One => match devices.iter().find(|d| d.slice.is_some()) {
                Some(first) => vec![first.clone()],
                None => devices,
            },
            SliceRule::OnePerInstance => {
                let mut kept: Vec<Entry> = Vec::new();
                for device in devices {
                    let instance = |d: &Entry| d.slice.map(|(gi, _)| (d.pci, gi));
                    let taken =
                        kept.iter().any(|k| k.slice.is_some() && instance(k) == instance(&device));
                    if !taken {
                        kept.push(device);
                    }
                }
                kept
            }
        }
    }
}
