//! Everything that can be said of a node: the document that `gpu-align
//! inventory --json` prints and that the record holds. Its shape is schema
//! [`SCHEMA`](crate::node::record::SCHEMA); programs may rely on what the
//! fields' words below say.
//!
//! Invariant: every card that the driver lists is in it. One that NVML cannot
//! speak of is there with the reason.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::device::{Card, Inventory, Minor, PciAddress, Slice, Uuid};
use crate::node::driver::{self, DriverError};
use crate::node::nvml::{self, View};
use crate::node::{capabilities, record, topology};
use crate::reach::may_open;

/// A node's stock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stock {
    /// 1. Another number is another shape.
    pub schema: u32,
    /// The gpu-align that wrote it.
    pub version: String,
    /// /proc/sys/kernel/random/boot_id.
    pub boot_id: String,
    /// The loaded driver's version, like `580.159.04`.
    pub driver: String,
    /// The CUDA version that the driver offers, like `12.9`; null if NVML is silent.
    pub cuda: Option<String>,
    /// Why NVML says nothing; null if it speaks.
    pub nvml: Option<Fault>,
    /// In PCI order.
    pub cards: Vec<StockCard>,
    /// Cards that an earlier record of this boot has and the driver no longer
    /// lists; only the Prolog, which keeps the record, knows of any.
    #[serde(default)]
    pub gone: Vec<Card>,
    /// Where the driver and NVML tell different stories, a sentence each.
    pub differences: Vec<String>,
}

/// A card, by all its names. What is not known is null.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StockCard {
    /// Place among all cards in PCI order: nvidia-smi's index on the host.
    pub rank: usize,
    /// N of `/dev/nvidiaN`.
    pub minor: Minor,
    pub uuid: Option<Uuid>,
    pub pci: PciAddress,
    pub model: String,
    /// NUMA node.
    pub numa: Option<u32>,
    /// Near CPUs, as the kernel lists them: `0-3,8-11`.
    pub cpus: Option<String>,
    /// Bytes.
    pub memory: Option<u64>,
    pub persistence: Option<bool>,
    /// `default`, `prohibited` or `exclusive_process`.
    pub compute_mode: Option<String>,
    /// Whether MIG mode is on; null where the card has none.
    pub mig: Option<bool>,
    /// In order of GPU instance and compute instance.
    pub slices: Vec<StockSlice>,
    /// Why NVML does not speak of this card; null if it does.
    pub fault: Option<Fault>,
}

/// A MIG instance: `uuid`, `gi`, `ci`, `profile`, `cap_minors` and these.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StockSlice {
    #[serde(flatten)]
    pub slice: Slice,
    /// Bytes.
    pub memory: Option<u64>,
    /// First memory slice and number of memory slices.
    pub placement: Option<[u32; 2]>,
}

/// What is wrong, for programs and for people.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    pub kind: FaultKind,
    /// A sentence: cause and next step.
    pub why: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    NoLibrary,
    DriverNotLoaded,
    LibraryMismatch,
    NoPermission,
    /// Fell off the bus, or does not answer.
    Lost,
    /// It was waited for in vain.
    NoAnswer,
    /// It died while it was asked.
    Crashed,
    /// What it said cannot be true.
    Nonsense,
    Unknown,
}

impl Stock {
    /// Takes stock of the node, asking NVML in this very process.
    pub fn take(root: &Path) -> Result<Stock, DriverError> {
        let known = driver::read(root)?;
        let addresses: Vec<PciAddress> = known.cards().iter().map(|card| card.pci).collect();
        Stock::of(root, &known, nvml::look(&addresses), may_open)
    }

    /// The stock of a node on which NVML was asked in vain.
    pub fn without_nvml(root: &Path, fault: Fault) -> Result<Stock, DriverError> {
        Stock::of(root, &driver::read(root)?, Err(fault), may_open)
    }

    fn of(
        root: &Path,
        known: &Inventory,
        view: Result<View, Fault>,
        opens: impl Fn(&str) -> bool,
    ) -> Result<Stock, DriverError> {
        let driver = driver::version(root)?;
        let (view, fault) = match view {
            Ok(view) => (view, None),
            Err(fault) => (View::default(), Some(fault)),
        };
        let mut differences = Vec::new();
        if view.driver.as_ref().is_some_and(|said| *said != driver) {
            differences.push(format!(
                "NVML says driver {} and the loaded one is {driver}; reload the driver or reboot",
                view.driver.as_deref().unwrap_or_default()
            ));
        }
        differences.extend(view.strangers.iter().map(|pci| {
            format!("NVML lists card {pci} and the driver's /proc does not; look at the kernel log")
        }));
        let spoke = fault.is_none();
        let mut cards = Vec::new();
        for (rank, card) in known.cards().iter().enumerate() {
            let said = view.cards.iter().find(|(pci, _)| *pci == card.pci).map(|(_, said)| said);
            let mut stocked = StockCard::of(root, rank, card, spoke.then_some(said).flatten());
            if spoke && said.is_none() {
                stocked.fault = Some(nvml::unspoken(card.pci));
            }
            if let Some(Ok(said)) = said {
                differences.extend(said.differences(card));
            }
            stocked.explain(&opens);
            cards.push(stocked);
        }
        Ok(Stock {
            schema: record::SCHEMA,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            boot_id: record::boot_id(root).unwrap_or_default(),
            driver,
            cuda: view.cuda,
            nvml: fault,
            cards,
            gone: Vec::new(),
            differences,
        })
    }

    /// Whether NVML spoke, of every card, and the driver agrees.
    pub fn is_sound(&self) -> bool {
        let silent = self.cards.iter().any(|card| card.fault.is_some());
        self.nvml.is_none() && !silent && self.differences.is_empty()
    }

    /// Sorts out which of the cards that were seen earlier are gone.
    pub fn remember(&mut self, seen: Vec<Card>) {
        let is_gone = |card: &Card| self.cards.iter().all(|now| now.pci != card.pci);
        self.gone = seen.into_iter().filter(is_gone).collect();
    }

    /// The cards and slices, as the rest of gpu-align knows them.
    pub fn inventory(&self) -> Inventory {
        Inventory::new(self.cards.iter().map(StockCard::card).collect())
    }
}

impl StockCard {
    fn of(root: &Path, rank: usize, card: &Card, said: Option<&Result<nvml::Said, Fault>>) -> Self {
        let mut stocked = StockCard {
            rank,
            minor: card.minor,
            uuid: card.uuid.clone(),
            pci: card.pci,
            model: card.model.clone(),
            numa: card.numa,
            cpus: topology::local_cpu_list(root, card.pci),
            memory: None,
            persistence: None,
            compute_mode: None,
            mig: None,
            slices: Vec::new(),
            fault: None,
        };
        match said {
            None => {}
            Some(Err(fault)) => stocked.fault = Some(fault.clone()),
            Some(Ok(said)) => {
                stocked.uuid = stocked.uuid.or(said.uuid.clone());
                stocked.memory = said.memory;
                stocked.persistence = said.persistence;
                stocked.compute_mode.clone_from(&said.compute_mode);
                stocked.mig = said.mig;
                stocked.add_slices(root, &said.slices);
            }
        }
        stocked
    }

    /// NVML names the slices, the driver says which nodes open them.
    fn add_slices(&mut self, root: &Path, said: &[nvml::SaidSlice]) {
        let live = capabilities::instances(root, self.minor).unwrap_or_default();
        for slice in said {
            let instance = live.iter().find(|i| (i.gi, i.ci) == (slice.gi, slice.ci));
            let Some(instance) = instance else {
                self.fault = Some(Fault {
                    kind: FaultKind::Nonsense,
                    why: format!(
                        "NVML lists slice {} of card {} and the driver has no capability for it; \
                         look at /proc/driver/nvidia/capabilities",
                        slice.uuid, self.pci
                    ),
                });
                continue;
            };
            self.slices.push(StockSlice {
                slice: Slice {
                    uuid: slice.uuid.clone(),
                    gi: slice.gi,
                    ci: slice.ci,
                    profile: slice.profile.clone(),
                    cap_minors: instance.cap_minors,
                },
                memory: slice.memory,
                placement: slice.placement,
            });
        }
        self.slices.sort_by_key(|s| (s.slice.gi, s.slice.ci));
    }

    /// A card whose device file is closed to this process is not lost.
    fn explain(&mut self, opens: impl Fn(&str) -> bool) {
        let file = format!("/dev/nvidia{}", self.minor);
        if let Some(fault) = self.fault.as_mut().filter(|_| !opens(&file)) {
            fault.kind = FaultKind::NoPermission;
            fault.why = format!(
                "this process may not open {file}; that is right inside a job that does not hold it"
            );
        }
    }

    fn card(&self) -> Card {
        Card {
            pci: self.pci,
            minor: self.minor,
            uuid: self.uuid.clone(),
            model: self.model.clone(),
            numa: self.numa,
            slices: self.slices.iter().map(|s| s.slice.clone()).collect(),
        }
    }
}

#[cfg(test)]
mod tests;
