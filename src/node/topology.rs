//! Where a card hangs: its NUMA node, from sysfs.

use std::path::Path;

use crate::device::PciAddress;
use crate::node::text;

/// The card's NUMA node, from `<root>/sys/bus/pci/devices/<pci>/numa_node`.
///
/// `None` where the kernel writes -1 (one node, or firmware that does not say)
/// or the file cannot be read.
pub fn numa_node(root: &Path, pci: PciAddress) -> Option<u32> {
    let path = root.join(format!("sys/bus/pci/devices/{pci}/numa_node"));
    text::read(&path, 32).ok()?.trim().parse().ok()
}
