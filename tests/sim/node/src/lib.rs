//! The simulated node: what its driver would know, and what a process may open.
//!
//! The stand-ins for CUDA and NVML answer from one file, so that the two
//! libraries and `/proc/driver/nvidia` never tell different stories by
//! accident. The file is described by [`Node`]; [`Node::here`] says where it
//! lies. Who may use a card is never in the file: that is asked from the
//! kernel, by opening the device node, as the driver does ([`openable`]).
//!
//! Nothing here is shared with gpu-align itself: a stand-in that parsed PCI
//! addresses with the product's code would share the product's faults.

mod device_file;
mod pci;

use std::env;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use device_file::{DeviceFile, accessible, dev_root, openable};
pub use pci::{Pci, PciError};

/// Where the simulated driver keeps the node file, unless `SIM_NODE` names another.
pub const NODE_FILE: &str = "/proc/driver/nvidia-sim/node.json";

/// A node as its driver knows it. Keys that a reader does not know are ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Node {
    /// The driver's version, like `580.159.03`; decides how CUDA enumerates slices.
    #[serde(default)]
    pub driver: String,
    /// The CUDA version that the driver offers, as CUDA counts: 12090 is 12.9,
    /// which it is where the file says nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cuda: Option<i32>,
    pub cards: Vec<Card>,
    /// How NVML misbehaves; CUDA does not look at it.
    #[serde(default)]
    pub nvml: NvmlTrouble,
}

/// A physical GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Card {
    pub pci: Pci,
    /// N of `/dev/nvidiaN`.
    pub minor: u32,
    /// `GPU-` and the whole identifier.
    pub uuid: String,
    /// NVML's and CUDA's name for the card.
    #[serde(default)]
    pub model: String,
    /// -1 where the kernel knows none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<i32>,
    /// What FASTEST_FIRST goes by: the higher comes first. Only the order counts.
    #[serde(default)]
    pub speed: f64,
    /// Bytes.
    #[serde(default = "eighty_gib")]
    pub memory: u64,
    #[serde(default)]
    pub memory_used: u64,
    /// Whether MIG mode is on; unsaid, it is on when there are slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mig: Option<bool>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub slices: Vec<Slice>,
    /// Excluded by the driver: listed in `/proc`, used by nobody.
    #[serde(default)]
    pub excluded: bool,
    /// Fell off the bus: NVML counts it but gives no handle, CUDA leaves it out.
    #[serde(default)]
    pub lost: bool,
    /// Fell off the bus before the libraries started: neither counts it.
    #[serde(default)]
    pub gone: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistence: Option<bool>,
    /// As NVML numbers them: 0 default, 2 prohibited, 3 exclusive process.
    #[serde(default)]
    pub compute_mode: u32,
    /// Percent of the last sample period that the card was busy.
    #[serde(default)]
    pub utilization: u32,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Process>,
}

fn eighty_gib() -> u64 {
    80 << 30
}

/// A MIG instance of a card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// `MIG-` and the whole identifier.
    pub uuid: String,
    pub gi: u32,
    pub ci: u32,
    /// As nvidia-smi names it, like `1g.10gb`.
    #[serde(default)]
    pub profile: String,
    /// Minors of `/dev/nvidia-caps/nvidia-capN`: of the GPU instance, of the
    /// compute instance. A process needs both, and the card.
    pub cap_minors: [u32; 2],
    /// NVML's index under the card; unsaid, the place in the list. Gaps are
    /// what a node looks like after an instance was destroyed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slot: Option<u32>,
    /// Bytes; unsaid, what the profile's name promises.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// First memory slice and number of memory slices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<[u32; 2]>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processes: Vec<Process>,
}

/// A process that holds memory of a card.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Process {
    pub pid: u32,
    /// Bytes.
    #[serde(default)]
    pub memory: u64,
    /// Whether NVML lists it among the graphics processes instead.
    #[serde(default)]
    pub graphics: bool,
}

/// What goes wrong when NVML starts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NvmlTrouble {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fault: Option<NvmlFault>,
    /// Seconds that each init takes before anything else happens.
    pub sleep_s: f64,
}

/// The faults that NVML's init can be told to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NvmlFault {
    DriverNotLoaded,
    LibRmVersionMismatch,
    NoPermission,
    GpuIsLost,
    Timeout,
    Unknown,
    /// The process dies in init.
    Crash,
    /// Init succeeds, every answer afterwards is nonsense.
    Garbage,
}

/// Why there is no simulated node.
#[derive(Debug, Error)]
pub enum NodeError {
    #[error("cannot read the simulated node {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{}: not a node file: {source}", path.display())]
    Parse { path: PathBuf, source: serde_json::Error },
}

impl Node {
    /// The node that this process runs on: the file that `SIM_NODE` names, or [`NODE_FILE`].
    pub fn here() -> Result<Node, NodeError> {
        Node::read(&env::var_os("SIM_NODE").map_or_else(|| NODE_FILE.into(), PathBuf::from))
    }

    pub fn read(path: &Path) -> Result<Node, NodeError> {
        let text =
            fs::read(path).map_err(|source| NodeError::Read { path: path.into(), source })?;
        serde_json::from_slice(&text)
            .map_err(|source| NodeError::Parse { path: path.into(), source })
    }

    /// The first number of the driver's version, 580 of `580.159.03`; 0 if there is none.
    pub fn driver_branch(&self) -> u32 {
        let digits = self.driver.split('.').next().unwrap_or_default();
        digits.parse().unwrap_or(0)
    }

    /// NVML's name for a slice: `MIG-GPU-<uuid>/<gi>/<ci>` before R470.
    pub fn slice_name(&self, card: &Card, slice: &Slice) -> String {
        match self.driver_branch() {
            1..470 => format!("MIG-{}/{}/{}", card.uuid, slice.gi, slice.ci),
            _ => slice.uuid.clone(),
        }
    }

    pub fn cuda_version(&self) -> i32 {
        self.cuda.unwrap_or(12_090)
    }
}

impl Card {
    pub fn mig_on(&self) -> bool {
        self.mig.unwrap_or(!self.slices.is_empty())
    }

    /// Whether the libraries may speak of the card to a process that may open these files.
    pub fn reachable(&self, openable: &dyn Fn(DeviceFile) -> bool) -> bool {
        !self.excluded && !self.gone && openable(DeviceFile::Card(self.minor))
    }
}

impl Slice {
    /// Whether both capability files of the slice can be opened; the card's is another question.
    pub fn reachable(&self, openable: &dyn Fn(DeviceFile) -> bool) -> bool {
        self.cap_minors.iter().all(|&minor| openable(DeviceFile::Cap(minor)))
    }

    /// Bytes of memory: as the file says, or the number of GB in a profile like `1g.10gb`.
    pub fn memory(&self) -> u64 {
        let promised = || {
            let size = self.profile.rsplit('.').next()?;
            let gigabytes = size.strip_suffix("gb")?.parse::<u64>().ok()?;
            Some(gigabytes << 30)
        };
        self.memory.or_else(promised).unwrap_or(0)
    }
}

/// The 16 octets of `GPU-…` or `MIG-…`; `None` for anything but a full-length UUID.
pub fn octets(uuid: &str) -> Option<[u8; 16]> {
    let digits: Vec<u8> = uuid.get(4..)?.bytes().filter(|&b| b != b'-').collect();
    let mut octets = [0; 16];
    if digits.len() != 32 {
        return None;
    }
    for (octet, pair) in octets.iter_mut().zip(digits.chunks(2)) {
        *octet = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some(octets)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_needs_only_its_address_minor_and_uuid() {
        let node: Node = serde_json::from_str(
            r#"{"driver": "580.159.03", "later": 1, "cards": [
                {"pci": "0000:c1:00.0", "minor": 0, "uuid": "GPU-x", "numa": -1}]}"#,
        )
        .unwrap();
        assert_eq!(node.driver_branch(), 580);
        let card = &node.cards[0];
        assert!(!card.mig_on());
        assert_eq!(card.memory, 80 << 30);
        assert_eq!(node.nvml, NvmlTrouble::default());
    }

    #[test]
    fn every_node_of_the_cluster_tests_is_one() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../nodes");
        let entries: Vec<_> = fs::read_dir(folder).unwrap().collect();
        assert!(!entries.is_empty());
        for entry in entries {
            let node = Node::read(&entry.unwrap().path()).unwrap();
            assert!(node.cards.iter().all(|card| octets(&card.uuid).is_some()));
        }
    }

    #[test]
    fn faults_go_by_the_names_that_nvml_gives_them() {
        let node: Node = serde_json::from_str(
            r#"{"cards": [], "nvml": {"fault": "lib_rm_version_mismatch", "sleep_s": 2}}"#,
        )
        .unwrap();
        assert_eq!(node.nvml.fault, Some(NvmlFault::LibRmVersionMismatch));
        assert_eq!(node.nvml.sleep_s, 2.0);
    }

    #[test]
    fn a_profile_says_how_much_memory_a_slice_has() {
        let slice = |profile: &str| Slice { profile: profile.into(), ..Slice::default() };
        assert_eq!(slice("1g.10gb").memory(), 10 << 30);
        assert_eq!(slice("1c.3g.40gb").memory(), 40 << 30);
        assert_eq!(slice("").memory(), 0);
    }

    #[test]
    fn only_a_full_length_uuid_has_octets() {
        let full = octets("GPU-00000000-0008-4000-8000-0000000000ff").unwrap();
        assert_eq!((full[4], full[5], full[15]), (0, 8, 0xff));
        assert_eq!(octets("GPU-00000000"), None);
        assert_eq!(octets("GPU-????????-????-????-????-????????????"), None);
    }
}
