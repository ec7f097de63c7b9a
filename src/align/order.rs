//! Which device is meant for which rank.

use crate::align::Doubt;
use crate::align::allotment::Allotment;
use crate::align::policy::{Order, Place};
use crate::device::{Device, Inventory};

/// A task's devices in the order in which ranks are meant to have them.
///
/// The first `meant` are handed out; the rest (devices that an explicit map
/// leaves out) stay visible where all devices are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// A permutation of the allotment; never empty.
    pub devices: Vec<Device>,
    /// How many of them, from the front; at least 1.
    pub meant: usize,
}

/// Orders the allotment; the result is a permutation of its devices.
pub fn ordered(
    allotment: &Allotment,
    order: &Order,
    inventory: &Inventory,
) -> Result<Ordered, Doubt> {
    let devices = match order {
        Order::Pci => allotment.devices.clone(),
        Order::Slurm => allotment.slurm_order.clone(),
        Order::Map(places) => {
            let mapped = map(&allotment.devices, places, inventory)?;
            let rest = allotment.devices.iter().filter(|d| !mapped.contains(d));
            let devices = mapped.iter().chain(rest).copied().collect();
            return Ok(Ordered { devices, meant: mapped.len() });
        }
    };
    Ok(Ordered { meant: devices.len(), devices })
}

fn map(devices: &[Device], places: &[Place], inventory: &Inventory) -> Result<Vec<Device>, Doubt> {
    let mut mapped = Vec::new();
    for place in places {
        let device = match place {
            Place::Index(place) => *devices
                .get(*place)
                .ok_or(Doubt::MapPlace { place: *place, devices: devices.len() })?,
            Place::Uuid(uuid) => *devices
                .iter()
                .find(|&&device| inventory.uuid(device) == Some(uuid))
                .ok_or_else(|| Doubt::MapUuid(uuid.to_string()))?,
        };
        // A place and a UUID may name the same device: once is enough.
        if !mapped.contains(&device) {
            mapped.push(device);
        }
    }
    Ok(mapped)
}
