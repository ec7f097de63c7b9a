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

/// The CPUs near the card, as the kernel lists them (`0-3,8-11`).
pub fn local_cpu_list(root: &Path, pci: PciAddress) -> Option<String> {
    let path = root.join(format!("sys/bus/pci/devices/{pci}/local_cpulist"));
    let list = text::read(&path, 4096).ok()?.trim().to_owned();
    let plain = |b: u8| b.is_ascii_digit() || b == b'-' || b == b',';
    (!list.is_empty() && list.bytes().all(plain)).then_some(list)
}
