//! Who uses the cards: memory, load and processes, from NVML. Inside a job NVML
//! lists only the cards that the job may open.

use gpu_align::device::{PciAddress, Uuid};
use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use serde::{Deserialize, Serialize};

/// What NVML says of the cards that this process may open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub driver: Option<String>,
    /// In NVML's order, which is PCI order.
    pub cards: Vec<CardUse>,
    /// Cards that NVML counts and cannot speak of, with its reason.
    pub silent: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CardUse {
    pub pci: PciAddress,
    pub uuid: Option<Uuid>,
    /// Bytes.
    pub total: Option<u64>,
    pub free: Option<u64>,
    /// Percent of the last sample period in which the card was busy.
    pub load: Option<u32>,
    pub compute_mode: Option<String>,
    pub persistence: Option<bool>,
    pub mig: Option<bool>,
    pub slices: Vec<SliceUse>,
    /// `None` where NVML does not list processes.
    pub processes: Option<Vec<Holder>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SliceUse {
    pub uuid: Uuid,
    pub free: Option<u64>,
    pub processes: Vec<Holder>,
}

/// A process that holds a card.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    /// Bytes.
    pub memory: Option<u64>,
    pub graphics: bool,
}

/// More than any machine holds; NVML's own counts can be nonsense.
const MAX_CARDS: u32 = 128;
const MAX_SLOTS: u32 = 64;

pub fn look() -> Result<Usage, String> {
    let nvml = Nvml::init().map_err(|error| why(&error))?;
    let mut usage = Usage { driver: nvml.sys_driver_version().ok(), ..Usage::default() };
    let count = nvml.device_count().map_err(|error| why(&error))?;
    for index in 0..count.min(MAX_CARDS) {
        match nvml.device_by_index(index).and_then(|device| card(&device)) {
            Ok(card) => usage.cards.push(card),
            Err(error) => usage.silent.push(format!("card {index}: {error}")),
        }
    }
    Ok(usage)
}

fn why(error: &NvmlError) -> String {
    let todo = match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
            "libnvidia-ml.so.1 is not on the loader's path"
        }
        NvmlError::LibRmVersionMismatch => {
            "the loaded driver and its libraries differ in version; ask the admin to reboot the node"
        }
        NvmlError::NoPermission => "this process may not open the driver's device files",
        NvmlError::DriverNotLoaded => "the driver is not loaded on this node",
        _ => "ask the admin to look at the driver",
    };
    match error {
        NvmlError::LibloadingError(_) => format!("NVML cannot be loaded; {todo}"),
        _ => format!("NVML does not start ({error}); {todo}"),
    }
}

fn card(device: &Device) -> Result<CardUse, NvmlError> {
    let pci = device.pci_info()?.bus_id.parse().map_err(|_| NvmlError::Unknown)?;
    let memory = device.memory_info().ok();
    let mig = device.mig_mode().ok().map(|mode| mode.current == 1);
    Ok(CardUse {
        pci,
        uuid: device.uuid().ok().and_then(|uuid| uuid.parse().ok()),
        total: memory.as_ref().map(|memory| memory.total),
        free: memory.as_ref().map(|memory| memory.free),
        load: device.utilization_rates().ok().map(|rates| rates.gpu),
        compute_mode: device.compute_mode().ok().map(|mode| {
            match mode {
                ComputeMode::Default => "default",
                ComputeMode::Prohibited => "prohibited",
                _ => "exclusive_process",
            }
            .to_owned()
        }),
        persistence: device.is_in_persistent_mode().ok(),
        mig,
        slices: if mig == Some(true) { slices(device) } else { Vec::new() },
        processes: processes(device),
    })
}

fn slices(card: &Device) -> Vec<SliceUse> {
    let slots = card.mig_device_count().unwrap_or(0).min(MAX_SLOTS);
    let slice = |slot| {
        let device = card.mig_device_by_index(slot).ok()?;
        Some(SliceUse {
            uuid: device.uuid().ok()?.parse().ok()?,
            free: device.memory_info().ok().map(|memory| memory.free),
            processes: processes(&device).unwrap_or_default(),
        })
    };
    (0..slots).filter_map(slice).collect()
}

fn processes(device: &Device) -> Option<Vec<Holder>> {
    let holder = |graphics| {
        move |process: ProcessInfo| Holder {
            pid: process.pid,
            memory: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
            graphics,
        }
    };
    let compute = device.running_compute_processes().ok()?.into_iter().map(holder(false));
    let graphics = device.running_graphics_processes().unwrap_or_default();
    Some(compute.chain(graphics.into_iter().map(holder(true))).collect())
}
