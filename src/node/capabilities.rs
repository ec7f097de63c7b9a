//! MIG instances as the driver lists them,
//! `/proc/driver/nvidia/capabilities/gpu<minor>/mig/gi<G>/ci<C>/access`: always
//! live, but without UUIDs or profiles. It tells whether a card is cut into
//! slices at all, and whether what a record says of them still holds.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::device::{Inventory, Minor};
use crate::node::text;

/// More than any card can be cut into.
const MAX_INSTANCES: usize = 128;

/// A compute instance and the capability nodes that open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instance {
    pub gi: u32,
    pub ci: u32,
    /// Of the GPU instance, of the compute instance.
    pub cap_minors: [u32; 2],
}

fn folder(root: &Path, minor: Minor) -> PathBuf {
    root.join(format!("proc/driver/nvidia/capabilities/gpu{minor}/mig"))
}

/// Whether the card has GPU instances. One system call where it has none: an
/// empty folder has two links, its own name and its dot.
pub fn is_cut(root: &Path, minor: Minor) -> bool {
    let folder = folder(root, minor);
    fs::metadata(&folder).is_ok_and(|meta| meta.nlink() != 2 && !gis(&folder).is_empty())
}

/// Whether every card that is cut has its slices in the inventory: only NVML, or
/// a record of what it said, names them.
pub fn are_known(root: &Path, inventory: &Inventory) -> bool {
    inventory.cards().iter().all(|card| !card.slices.is_empty() || !is_cut(root, card.minor))
}

/// The card's compute instances, in order of GPU instance and compute instance.
pub fn instances(root: &Path, minor: Minor) -> io::Result<Vec<Instance>> {
    let mut instances = Vec::new();
    for (gi, folder) in gis(&folder(root, minor)) {
        let gi_cap = device_minor(&folder)?;
        for (ci, folder) in numbered(&folder, "ci") {
            if instances.len() == MAX_INSTANCES {
                return Err(io::Error::other(format!("{} has no end", folder.display())));
            }
            instances.push(Instance { gi, ci, cap_minors: [gi_cap, device_minor(&folder)?] });
        }
    }
    instances.sort();
    Ok(instances)
}

fn gis(folder: &Path) -> Vec<(u32, PathBuf)> {
    numbered(folder, "gi")
}

/// The folders `<prefix>N` below a folder; none where there is no such folder.
fn numbered(folder: &Path, prefix: &str) -> Vec<(u32, PathBuf)> {
    let number = |entry: fs::DirEntry| {
        let number = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
        Some((number, entry.path()))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(number).take(MAX_INSTANCES).collect()
}

fn device_minor(folder: &Path) -> io::Result<u32> {
    let path = folder.join("access");
    let content = text::read(&path, 256)?;
    let number = content.lines().find_map(|line| line.strip_prefix("DeviceFileMinor:"));
    number.and_then(|number| number.trim().parse().ok()).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{} has no valid 'DeviceFileMinor'", path.display()),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(root: &Path, path: &str, minor: u32) {
        let folder = root.join("proc/driver/nvidia/capabilities").join(path);
        fs::create_dir_all(&folder).unwrap();
        let content =
            format!("DeviceFileMinor: {minor}\nDeviceFileMode: 256\nDeviceFileModify: 1\n");
        fs::write(folder.join("access"), content).unwrap();
    }

    #[test]
    fn instances_come_with_the_nodes_that_open_them() {
        let root = tempfile::tempdir().unwrap();
        access(root.path(), "gpu4/mig/gi11", 102);
        access(root.path(), "gpu4/mig/gi11/ci0", 103);
        access(root.path(), "gpu4/mig/gi1", 12);
        access(root.path(), "gpu4/mig/gi1/ci1", 14);
        access(root.path(), "gpu4/mig/gi1/ci0", 13);
        let found = instances(root.path(), Minor(4)).unwrap();
        let instance = |gi, ci, a, b| Instance { gi, ci, cap_minors: [a, b] };
        assert_eq!(
            found,
            [instance(1, 0, 12, 13), instance(1, 1, 12, 14), instance(11, 0, 102, 103)]
        );
        assert!(is_cut(root.path(), Minor(4)));
    }

    #[test]
    fn a_card_that_could_be_cut_is_not_cut() {
        let root = tempfile::tempdir().unwrap();
        assert!(!is_cut(root.path(), Minor(0)));
        fs::create_dir_all(root.path().join("proc/driver/nvidia/capabilities/gpu0/mig")).unwrap();
        assert!(!is_cut(root.path(), Minor(0)));
        assert_eq!(instances(root.path(), Minor(0)).unwrap(), []);
    }

    #[test]
    fn a_broken_access_file_is_named() {
        let root = tempfile::tempdir().unwrap();
        access(root.path(), "gpu0/mig/gi1", 12);
        let folder = root.path().join("proc/driver/nvidia/capabilities/gpu0/mig/gi1");
        fs::create_dir_all(folder.join("ci0")).unwrap();
        fs::write(folder.join("ci0/access"), "DeviceFileMinor: x\n").unwrap();
        let error = instances(root.path(), Minor(0)).unwrap_err().to_string();
        assert!(error.contains("gi1/ci0/access has no valid"), "{error}");
    }
}
