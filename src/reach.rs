//! Reach: what the kernel lets this process open.
//!
//! faccessat answers for the device cgroup without opening, and so without
//! waking, a card: under cgroup v1, under v2's eBPF program, as root and as a
//! user. This is the one truth about a task's devices; Slurm's numbers are not.

use std::path::Path;

use crate::device::{Device, Inventory};

/// The device nodes that a process needs to open one device. A slice needs
/// three: its card's, its GPU instance's and its compute instance's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nodes {
    pub device: Device,
    /// Below /dev.
    pub paths: Vec<String>,
}

/// The nodes of every device, in PCI order. They are spelt before tasks are
/// forked: what is left for each task is to ask the kernel.
pub fn nodes(inventory: &Inventory) -> Vec<Nodes> {
    let of = |device: Device| {
        let caps = inventory.slice(device).into_iter().flat_map(|slice| slice.cap_minors);
        let card = format!("/dev/nvidia{}", inventory.card(device).minor);
        let caps = caps.map(|minor| format!("/dev/nvidia-caps/nvidia-cap{minor}"));
        Nodes { device, paths: std::iter::once(card).chain(caps).collect() }
    };
    inventory.devices().map(of).collect()
}

/// The devices for which `opens` says yes to each of their nodes.
pub fn reach(nodes: &[Nodes], opens: impl Fn(&str) -> bool) -> Vec<Device> {
    // A loop of its own: every far part of the file that a task runs is a page fault.
    let mut reached = Vec::with_capacity(nodes.len());
    for Nodes { device, paths } in nodes {
        if paths.iter().all(|path| opens(path)) {
            reached.push(*device);
        }
    }
    reached
}

/// Whether this process may read and write the device node at `path`.
pub fn may_open(path: &str) -> bool {
    rustix::fs::accessat(
        rustix::fs::CWD,
        Path::new(path),
        rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK,
        rustix::fs::AtFlags::empty(),
    )
    .is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Card, Minor, Slice};

    fn node() -> Inventory {
        let card = |bus: &str, minor, slices| Card {
            pci: format!("0000:{bus}:00.0").parse().unwrap(),
            minor: Minor(minor),
            uuid: None,
            model: String::new(),
            numa: None,
            slices,
        };
        let slice = |ci| Slice {
            uuid: format!("MIG-00000000-00a0-5000-8000-00000000000{ci}").parse().unwrap(),
            gi: 1,
            ci,
            profile: "1g.10gb".into(),
            cap_minors: [30, 31 + ci],
        };
        Inventory::new(vec![card("01", 1, vec![slice(0), slice(1)]), card("02", 0, vec![])])
    }

    #[test]
    fn a_card_is_reached_through_its_minor() {
        let reached = reach(&nodes(&node()), |path| path == "/dev/nvidia0");
        assert_eq!(reached, [Device::whole(1)]);
    }

    #[test]
    fn a_slice_needs_its_card_and_both_of_its_capability_nodes() {
        let open =
            ["/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap32"];
        let reached = reach(&nodes(&node()), |path| open.contains(&path));
        assert_eq!(reached, [Device { card: 0, slice: Some(1) }]);
        assert_eq!(reach(&nodes(&node()), |path| path != "/dev/nvidia1"), [Device::whole(1)]);
    }

    #[test]
    fn the_kernel_is_asked() {
        assert!(may_open("/dev/null"));
        assert!(!may_open("/dev/no-such-card"));
    }
}
