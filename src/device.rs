//! What a node has to give: cards, their slices, and the names they go by.
//!
//! Three numbers name a card and are equal only on tidy nodes: its *minor*
//! (`/dev/nvidiaN`), its *rank* (place among all cards in PCI order, which is
//! nvidia-smi's index on the host) and Slurm's *position* (place in the gres
//! list). This module keeps them apart by type. The invariant: the cards of an
//! [`Inventory`] are in PCI order, so a card's index there is its rank.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// A PCI bus address. Ordered as numbers: domain, bus, device, function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

/// A name that is not what it claims to be.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NameError {
    #[error("'{0}' is not a PCI address; write domain:bus:device.function, like 0000:c1:00.0")]
    Pci(String),
    #[error("'{0}' is not a full device UUID; write GPU- or MIG- and the whole identifier")]
    Uuid(String),
}

impl FromStr for PciAddress {
    type Err = NameError;

    /// Accepts domains of any width and either letter case
    /// (`0000:c1:00.0`, `00000000:C1:00.0`), as sysfs and NVML write them.
    fn from_str(text: &str) -> Result<Self, NameError> {
        let parse = || {
            let (head, function) = text.rsplit_once('.')?;
            let mut parts = head.rsplitn(3, ':');
            let device = hex(parts.next()?)?;
            let bus = hex(parts.next()?)?;
            let domain = hex(parts.next()?)?;
            Some(PciAddress {
                domain,
                bus: bus.try_into().ok()?,
                device: device.try_into().ok()?,
                function: hex(function)?.try_into().ok()?,
            })
        };
        parse().ok_or_else(|| NameError::Pci(clip(text)))
    }
}

fn hex(digits: &str) -> Option<u32> {
    let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_hexdigit());
    plain.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

/// Keeps a stranger's text short enough for one line of a log.
pub fn clip(text: &str) -> String {
    text.chars().take(48).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// As sysfs writes it: a domain of four hexadecimal digits, eight if it needs more.
impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let text = if self.domain > 0xffff {
            format!("{:08x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
        } else {
            format!("{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
        };
        f.pad(&text)
    }
}

/// A full-length device UUID, `GPU-…` for a card or `MIG-…` for a slice.
///
/// A card that was never initialised shows `GPU-????????-…` in
/// `/proc/driver/nvidia`: that is no identity, and does not parse.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Uuid(String);

impl Uuid {
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it names a MIG slice rather than a whole card.
    pub fn is_slice(&self) -> bool {
        self.0.starts_with("MIG-")
    }
}

impl FromStr for Uuid {
    type Err = NameError;

    /// Accepts `GPU-` or `MIG-` and 8-4-4-4-12 hexadecimal digits in either
    /// case, kept in lower case as NVML prints them, and the older slice
    /// spelling `MIG-GPU-<uuid>/<gi>/<ci>` (drivers before R470).
    fn from_str(text: &str) -> Result<Self, NameError> {
        let parse = || {
            let (kind, rest) = text.split_at_checked(4)?;
            if kind.eq_ignore_ascii_case("GPU-") && is_uuid(rest) {
                return Some(Uuid(format!("GPU-{}", rest.to_ascii_lowercase())));
            }
            if !kind.eq_ignore_ascii_case("MIG-") {
                return None;
            }
            if is_uuid(rest) {
                return Some(Uuid(format!("MIG-{}", rest.to_ascii_lowercase())));
            }
            let mut parts = rest.split('/');
            let (parent, gi, ci) = (parts.next()?, parts.next()?, parts.next()?);
            let (kind, id) = parent.split_at_checked(4)?;
            let instances = [gi, ci].iter().all(|n| n.parse::<u16>().is_ok());
            let whole = kind.eq_ignore_ascii_case("GPU-") && is_uuid(id);
            (whole && instances && parts.next().is_none())
                .then(|| Uuid(format!("MIG-GPU-{}/{gi}/{ci}", id.to_ascii_lowercase())))
        };
        parse().ok_or_else(|| NameError::Uuid(clip(text)))
    }
}

fn is_uuid(text: &str) -> bool {
    let lengths = [8, 4, 4, 4, 12];
    let groups: Vec<&str> = text.split('-').collect();
    groups.len() == lengths.len()
        && groups
            .iter()
            .zip(lengths)
            .all(|(g, n)| g.len() == n && g.bytes().all(|b| b.is_ascii_hexdigit()))
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(&self.0)
    }
}

macro_rules! serde_as_text {
    ($($name:ty),*) => {$(
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )*};
}
serde_as_text!(PciAddress, Uuid);

/// N of `/dev/nvidiaN`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Minor(pub u32);

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A physical GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Card {
    pub pci: PciAddress,
    pub minor: Minor,
    /// `None` while the driver has not initialised the card.
    pub uuid: Option<Uuid>,
    pub model: String,
    /// The NUMA node it hangs off; `None` where the kernel says -1 or nothing.
    pub numa: Option<u32>,
    /// MIG slices, in order of GPU instance and compute instance; empty unless
    /// the card is in MIG mode.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Slice>,
}

/// A MIG instance of a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slice {
    pub uuid: Uuid,
    /// GPU instance and compute instance ids.
    pub gi: u32,
    pub ci: u32,
    /// As nvidia-smi names it, like `1g.10gb`.
    pub profile: String,
    /// Minors of `/dev/nvidia-caps/nvidia-capN` for the GPU instance and the
    /// compute instance: both must open, and the card's node too.
    pub cap_minors: [u32; 2],
}

/// What a task can be given: a whole card, or a slice of a card in MIG mode.
///
/// A place in an [`Inventory`]; ordered by the card's rank, then by slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Device {
    /// The card's rank.
    pub card: usize,
    /// The slice's place in [`Card::slices`].
    pub slice: Option<usize>,
}

impl Device {
    /// The whole card of this rank.
    pub fn whole(card: usize) -> Device {
        Device { card, slice: None }
    }
}

/// All cards of a node that the driver offers, in PCI order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Inventory {
    cards: Vec<Card>,
}

impl Inventory {
    /// A node without cards.
    pub const fn empty() -> Inventory {
        Inventory { cards: Vec::new() }
    }

    /// Sorts the cards by PCI address; a card's index is then its rank.
    pub fn new(mut cards: Vec<Card>) -> Inventory {
        cards.sort_by_key(|card| card.pci);
        for card in &mut cards {
            card.slices.sort_by_key(|slice| (slice.gi, slice.ci));
        }
        Inventory { cards }
    }

    /// In PCI order: a card's index is its rank.
    pub fn cards(&self) -> &[Card] {
        &self.cards
    }

    pub fn is_empty(&self) -> bool {
        self.cards.is_empty()
    }

    /// The card that a device is, or is a slice of.
    pub fn card(&self, device: Device) -> &Card {
        &self.cards[device.card]
    }

    /// The slice that a device is; `None` for a whole card.
    pub fn slice(&self, device: Device) -> Option<&Slice> {
        Some(&self.card(device).slices[device.slice?])
    }

    /// The device's own UUID; a slice's, never its parent's.
    pub fn uuid(&self, device: Device) -> Option<&Uuid> {
        match self.slice(device) {
            Some(slice) => Some(&slice.uuid),
            None => self.card(device).uuid.as_ref(),
        }
    }

    /// Everything that can be given, in PCI order: the slices of a card that
    /// has some, otherwise the card.
    pub fn devices(&self) -> impl Iterator<Item = Device> + '_ {
        self.cards.iter().enumerate().flat_map(|(card, c)| {
            let slices = (0..c.slices.len()).map(move |s| Device { card, slice: Some(s) });
            let whole = c.slices.is_empty().then(|| Device::whole(card));
            slices.chain(whole)
        })
    }

    /// The rank of the card with this minor.
    pub fn rank_of_minor(&self, minor: Minor) -> Option<usize> {
        self.cards.iter().position(|card| card.minor == minor)
    }

    /// The device that goes by this name, a slice also by the older spelling
    /// `MIG-GPU-<card>/<gi>/<ci>`.
    pub fn device_of_uuid(&self, uuid: &Uuid) -> Option<Device> {
        self.devices().find(|&device| {
            self.uuid(device) == Some(uuid) || self.older_name(device).as_ref() == Some(uuid)
        })
    }

    fn older_name(&self, device: Device) -> Option<Uuid> {
        let slice = self.slice(device)?;
        let card = self.card(device).uuid.as_ref()?;
        Some(Uuid(format!("MIG-{card}/{}/{}", slice.gi, slice.ci)))
    }

    /// Whether minors and PCI order name the cards alike.
    pub fn is_tidy(&self) -> bool {
        self.cards.iter().enumerate().all(|(rank, card)| card.minor.0 as usize == rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pci(text: &str) -> PciAddress {
        text.parse().unwrap()
    }

    #[test]
    fn pci_addresses_are_ordered_as_numbers() {
        let mut all =
            ["00000010:00:00.0", "00000002:00:00.0", "0000B183:00:00.0", "00000009:01:00.0"]
                .map(pci);
        all.sort();
        assert_eq!(
            all.map(|p| p.to_string()),
            ["0002:00:00.0", "0009:01:00.0", "0010:00:00.0", "b183:00:00.0"]
        );
    }

    #[test]
    fn pci_spellings_of_sysfs_and_nvml_are_equal() {
        assert_eq!(pci("0000:c1:00.0"), pci("00000000:C1:00.0"));
        assert_eq!(pci("10000:01:00.0").to_string(), "00010000:01:00.0");
        for wrong in ["", "c1:00.0", "0000:c1:00", "0000:+1:00.0", "0000:1c1:00.0", "x"] {
            assert!(wrong.parse::<PciAddress>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_placeholder_uuid_is_no_identity() {
        assert!("GPU-????????-????-????-????-????????????".parse::<Uuid>().is_err());
        assert!("GPU-00000000".parse::<Uuid>().is_err());
    }

    #[test]
    fn both_spellings_of_a_slice_are_uuids() {
        let id = "00000000-0004-4000-8000-00000000000A";
        for name in [format!("MIG-{id}"), format!("MIG-GPU-{id}/7/0")] {
            assert!(name.parse::<Uuid>().unwrap().is_slice(), "{name}");
        }
        assert_eq!(
            format!("gpu-{id}").parse::<Uuid>().unwrap().as_str(),
            "GPU-00000000-0004-4000-8000-00000000000a"
        );
    }

    #[test]
    fn a_slice_is_found_by_either_name() {
        let id = "00000000-0004-4000-8000-000000000000";
        let slice = Slice {
            uuid: format!("MIG-{id}").parse().unwrap(),
            gi: 7,
            ci: 0,
            profile: "1g.10gb".into(),
            cap_minors: [66, 67],
        };
        let card = Card {
            pci: pci("0000:01:00.0"),
            minor: Minor(0),
            uuid: format!("GPU-{id}").parse().ok(),
            model: String::new(),
            numa: None,
            slices: vec![slice],
        };
        let inventory = Inventory::new(vec![card]);
        let found = |name: String| inventory.device_of_uuid(&name.parse().unwrap());
        let device = Some(Device { card: 0, slice: Some(0) });
        assert_eq!(found(format!("MIG-{id}")), device);
        assert_eq!(found(format!("MIG-GPU-{id}/7/0")), device);
        assert_eq!(found(format!("MIG-GPU-{id}/8/0")), None);
        assert_eq!(found(format!("GPU-{id}")), None);
    }
}
