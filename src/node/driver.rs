//! The driver's own list of cards, `/proc/driver/nvidia`: always live, world
//! readable, the same inside and outside a device cgroup, and read in
//! microseconds without touching a card.
//!
//! Invariant: what is listed here exists. What the driver cannot say (a UUID
//! before a card's first use, MIG slices) is absent, never guessed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::device::{Card, Inventory, Minor, PciAddress};
use crate::node::{text, topology};

/// More than any machine holds; a bound on what a broken /proc can cost.
const MAX_CARDS: usize = 128;
/// The file is some 400 bytes long.
const MAX_INFORMATION: usize = 4096;

#[derive(Debug, Error)]
pub enum DriverError {
    #[error("the NVIDIA driver is not loaded: {0} is missing; load it or ask the admin")]
    NotLoaded(PathBuf),
    #[error("{path} cannot be read ({error}); ask the admin to look at the driver")]
    Unreadable { path: PathBuf, error: io::Error },
    #[error("{path} has no valid '{key}'; ask the admin to look at the driver")]
    Malformed { path: PathBuf, key: &'static str },
    #[error("{path} lists more than {MAX_CARDS} cards; ask the admin to look at the driver")]
    TooMany { path: PathBuf },
    #[error("{path}: the driver gives minor {minor} to two cards; ask the admin to look at it")]
    SharedMinor { path: PathBuf, minor: Minor },
    #[error(
        "{path}: the driver gives one bus id or UUID to two cards; ask the admin to look at it"
    )]
    SharedName { path: PathBuf },
}

/// Reads every card below `<root>/proc/driver/nvidia/gpus`, with its NUMA node
/// from `<root>/sys`. `root` is `/` but for tests.
///
/// Cards that the admin excluded (`GPU Excluded: Yes`) are left out: neither
/// CUDA nor nvidia-smi counts them. A folder without cards is an empty
/// inventory; a missing folder is [`DriverError::NotLoaded`].
pub fn read(root: &Path) -> Result<Inventory, DriverError> {
    let gpus = root.join("proc/driver/nvidia/gpus");
    let unreadable = |path: &Path, error| DriverError::Unreadable { path: path.into(), error };
    let entries = match fs::read_dir(&gpus) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(DriverError::NotLoaded(gpus)),
        other => other.map_err(|e| unreadable(&gpus, e))?,
    };
    let mut cards: Vec<Card> = Vec::new();
    for (number, entry) in entries.enumerate() {
        if number == MAX_CARDS {
            return Err(DriverError::TooMany { path: gpus });
        }
        let entry = entry.map_err(|e| unreadable(&gpus, e))?;
        let path = entry.path().join("information");
        let content = text::read(&path, MAX_INFORMATION).map_err(|e| unreadable(&path, e))?;
        let Some(mut card) = parse_information(&path, &content)? else {
            continue;
        };
        if cards.iter().any(|other| other.minor == card.minor) {
            return Err(DriverError::SharedMinor { path, minor: card.minor });
        }
        // CUDA sees no card at all when a UUID is listed twice.
        let same = |a: &Card| a.pci == card.pci || (a.uuid.is_some() && a.uuid == card.uuid);
        if cards.iter().any(same) {
            return Err(DriverError::SharedName { path });
        }
        card.numa = topology::numa_node(root, card.pci);
        cards.push(card);
    }
    Ok(Inventory::new(cards))
}

/// The loaded driver's version, like `580.159.04`, from
/// `<root>/proc/driver/nvidia/version`.
pub fn version(root: &Path) -> Result<String, DriverError> {
    let path = root.join("proc/driver/nvidia/version");
    let content = text::read(&path, MAX_INFORMATION).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => DriverError::NotLoaded(path.clone()),
        _ => DriverError::Unreadable { path: path.clone(), error },
    })?;
    let is_version =
        |word: &&str| word.contains('.') && word.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    content
        .lines()
        .next()
        .and_then(|line| line.split_whitespace().find(is_version))
        .map(str::to_owned)
        .ok_or(DriverError::Malformed { path, key: "NVRM version" })
}

/// One card's `information` file; `None` for an excluded card.
fn parse_information(path: &Path, content: &str) -> Result<Option<Card>, DriverError> {
    let field = |key: &'static str| {
        content
            .lines()
            .filter_map(|line| line.split_once(':'))
            .find(|(name, _)| name.trim() == key)
            .map(|(_, value)| value.trim())
            .ok_or(DriverError::Malformed { path: path.into(), key })
    };
    let malformed = |key| DriverError::Malformed { path: path.into(), key };
    if field("GPU Excluded").is_ok_and(|value| value == "Yes") {
        return Ok(None);
    }
    let pci: PciAddress = field("Bus Location")?.parse().map_err(|_| malformed("Bus Location"))?;
    let minor = field("Device Minor")?.parse().map_err(|_| malformed("Device Minor"))?;
    let model: String = field("Model")?.chars().filter(|c| !c.is_control()).take(64).collect();
    Ok(Some(Card {
        pci,
        minor: Minor(minor),
        // Before a card's first use the driver shows GPU-????????-…
        uuid: field("GPU UUID")?.parse().ok(),
        model,
        numa: None,
        slices: Vec::new(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn card(root: &Path, pci: &str, fields: &str) {
        let folder = root.join("proc/driver/nvidia/gpus").join(pci);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("information"), fields).unwrap();
    }

    fn information(pci: &str, minor: &str, uuid: &str, excluded: &str) -> String {
        format!(
            "Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 118\nGPU UUID: \t {uuid}\n\
             Video BIOS: \t 92.00.45.00.06\nBus Type: \t PCIe\nDMA Size: \t 47 bits\n\
             DMA Mask: \t 0x7fffffffffff\nBus Location: \t {pci}\nDevice Minor: \t {minor}\n\
             GPU Excluded:\t {excluded}\n"
        )
    }

    const UUID: &str = "GPU-00000000-0008-4000-8000-000000000000";

    const OTHER_UUID: &str = "GPU-00000000-0008-4000-8000-000000000001";

    #[test]
    fn cards_come_in_pci_order_with_their_names() {
        let root = tempfile::tempdir().unwrap();
        card(root.path(), "0000:c1:00.0", &information("0000:c1:00.0", "0", UUID, "No"));
        card(root.path(), "0000:01:00.0", &information("0000:01:00.0", "4", OTHER_UUID, "No"));
        let sys = root.path().join("sys/bus/pci/devices/0000:c1:00.0");
        fs::create_dir_all(&sys).unwrap();
        fs::write(sys.join("numa_node"), "3\n").unwrap();
        let inventory = read(root.path()).unwrap();
        let minors: Vec<u32> = inventory.cards().iter().map(|c| c.minor.0).collect();
        assert_eq!(minors, [4, 0]);
        assert_eq!(inventory.cards()[0].numa, None);
        assert_eq!(inventory.cards()[1].numa, Some(3));
        assert_eq!(inventory.cards()[1].model, "NVIDIA A100-SXM4-80GB");
        assert_eq!(inventory.cards()[1].uuid.as_ref().unwrap().as_str(), UUID);
    }

    #[test]
    fn a_placeholder_is_unknown_and_an_excluded_card_is_not_there() {
        let root = tempfile::tempdir().unwrap();
        let unknown = "GPU-????????-????-????-????-????????????";
        card(root.path(), "a", &information("0000:01:00.0", "0", unknown, "No"));
        card(root.path(), "b", &information("0000:02:00.0", "1", UUID, "Yes"));
        let inventory = read(root.path()).unwrap();
        assert_eq!(inventory.cards().len(), 1);
        assert_eq!(inventory.cards()[0].uuid, None);
    }

    #[test]
    fn the_version_is_the_drivers_not_the_compilers() {
        let root = tempfile::tempdir().unwrap();
        assert!(matches!(version(root.path()), Err(DriverError::NotLoaded(_))));
        fs::create_dir_all(root.path().join("proc/driver/nvidia")).unwrap();
        let write = |text| fs::write(root.path().join("proc/driver/nvidia/version"), text).unwrap();
        for module in ["Open Kernel Module for x86_64", "x86_64 Kernel Module"] {
            write(format!(
                "NVRM version: NVIDIA UNIX {module}  580.159.04  Release Build  (x@)  \n\
                 GCC version:  gcc version 15.3.0 (GCC) \n"
            ));
            assert_eq!(version(root.path()).unwrap(), "580.159.04");
        }
        write("GCC version:\n".into());
        assert!(matches!(version(root.path()), Err(DriverError::Malformed { .. })));
    }

    #[test]
    fn a_driver_that_cannot_be_read_is_an_error_that_names_the_place() {
        let root = tempfile::tempdir().unwrap();
        let error = read(root.path()).unwrap_err();
        assert!(matches!(error, DriverError::NotLoaded(_)), "{error}");
        card(root.path(), "a", "Model: X\nGPU UUID: Y\n");
        let error = read(root.path()).unwrap_err().to_string();
        assert!(error.contains("gpus/a/information has no valid 'Bus Location'"), "{error}");
        card(root.path(), "a", &information("0000:01:00.0", "0", UUID, "No"));
        card(root.path(), "b", &information("0000:02:00.0", "0", UUID, "No"));
        assert!(matches!(read(root.path()), Err(DriverError::SharedMinor { .. })));
        card(root.path(), "b", &information("0000:02:00.0", "1", UUID, "No"));
        assert!(matches!(read(root.path()), Err(DriverError::SharedName { .. })));
        card(root.path(), "b", &information("0000:01:00.0", "1", OTHER_UUID, "No"));
        assert!(matches!(read(root.path()), Err(DriverError::SharedName { .. })));
    }

    #[test]
    fn no_more_folders_are_read_than_a_machine_has_cards() {
        let root = tempfile::tempdir().unwrap();
        for n in 0..=MAX_CARDS {
            card(root.path(), &n.to_string(), &information("0000:01:00.0", "0", UUID, "Yes"));
        }
        assert!(matches!(read(root.path()), Err(DriverError::TooMany { .. })));
    }
}
