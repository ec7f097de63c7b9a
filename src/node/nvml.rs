//! NVML, asked what `/proc/driver/nvidia` cannot say: slices, memory, modes,
//! and which cards are lost. For the helper program only: NVML can hang, die,
//! take seconds and keep device files open, so no part of slurmstepd calls it.
//!
//! Invariant: an answer that cannot be true is a fault, never a name.

use nvml_wrapper::enum_wrappers::device::ComputeMode;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use crate::device::{Card, Minor, PciAddress, Uuid};
use crate::node::stock::{Fault, FaultKind};

/// More than any machine holds; NVML's own count can be nonsense.
const MAX_CARDS: u32 = 128;
/// More slots than any card has.
const MAX_SLOTS: u32 = 64;

/// What NVML says of a node.
#[derive(Debug, Default)]
pub struct View {
    pub driver: Option<String>,
    pub cuda: Option<String>,
    /// One for each card that it was asked about.
    pub cards: Vec<(PciAddress, Result<Said, Fault>)>,
    /// Cards that it lists and was not asked about.
    pub strangers: Vec<PciAddress>,
}

/// What NVML says of a card.
#[derive(Debug)]
pub struct Said {
    pub uuid: Option<Uuid>,
    pub minor: Option<Minor>,
    pub memory: Option<u64>,
    pub persistence: Option<bool>,
    pub compute_mode: Option<String>,
    pub mig: Option<bool>,
    pub slices: Vec<SaidSlice>,
}

/// What NVML says of a slice.
#[derive(Debug)]
pub struct SaidSlice {
    pub uuid: Uuid,
    pub gi: u32,
    pub ci: u32,
    pub profile: String,
    pub memory: Option<u64>,
    pub placement: Option<[u32; 2]>,
}

impl Said {
    /// Where this differs from what the driver says of the same card.
    pub fn differences(&self, card: &Card) -> Vec<String> {
        let mut differences = Vec::new();
        let mut compare = |what: &str, nvml: Option<String>, driver: Option<String>| {
            if let (Some(nvml), Some(driver)) = (nvml, driver) {
                if nvml != driver {
                    differences.push(format!(
                        "card {}: NVML says {what} {nvml} and the driver's /proc says {driver}; \
                         reboot the node before you trust either",
                        card.pci
                    ));
                }
            }
        };
        let text = |uuid: &Option<Uuid>| uuid.as_ref().map(Uuid::to_string);
        compare("UUID", text(&self.uuid), text(&card.uuid));
        compare("minor", self.minor.map(|m| m.to_string()), Some(card.minor.to_string()));
        differences
    }
}

/// A card that the driver lists and NVML does not speak of.
pub fn unspoken(pci: PciAddress) -> Fault {
    fault(FaultKind::Lost, format!("NVML does not list card {pci}; {LOST}"))
}

const LOST: &str = "it may have fallen off the bus, look for Xid in the kernel log and reset it";

/// Asks NVML about these cards, and whether it knows others.
pub fn look(cards: &[PciAddress]) -> Result<View, Fault> {
    let nvml = Nvml::init().map_err(|error| node_fault(&error))?;
    let mut view = View {
        driver: nvml.sys_driver_version().ok().filter(|v| plain(v)),
        cuda: nvml.sys_cuda_driver_version().ok().and_then(cuda_version),
        ..View::default()
    };
    for &pci in cards {
        let said = nvml
            .device_by_pci_bus_id(pci.to_string())
            .map_err(|error| card_fault(pci, &error))
            .and_then(|device| card(&nvml, &device, pci));
        view.cards.push((pci, said));
    }
    for index in 0..nvml.device_count().unwrap_or(0).min(MAX_CARDS) {
        let pci = nvml.device_by_index(index).and_then(|device| device.pci_info());
        let pci = pci.ok().and_then(|pci| pci.bus_id.parse().ok());
        view.strangers.extend(pci.filter(|pci| !cards.contains(pci)));
    }
    Ok(view)
}

fn card(nvml: &Nvml, device: &Device, pci: PciAddress) -> Result<Said, Fault> {
    let uuid = device.uuid().map_err(|error| card_fault(pci, &error))?;
    let nonsense = |what: &str| {
        fault(
            FaultKind::Nonsense,
            format!("NVML's {what} for card {pci} makes no sense; reload the driver or reboot"),
        )
    };
    let uuid: Uuid = uuid.parse().map_err(|_| nonsense("UUID"))?;
    let mig = device.mig_mode().ok().map(|mode| mode.current == 1);
    let slices = match mig {
        Some(true) => slices(nvml, device).map_err(|_| nonsense("list of slices"))?,
        _ => Vec::new(),
    };
    Ok(Said {
        uuid: Some(uuid),
        minor: device.minor_number().ok().map(Minor),
        memory: device.memory_info().ok().map(|memory| memory.total),
        persistence: device.is_in_persistent_mode().ok(),
        compute_mode: device.compute_mode().ok().map(compute_mode),
        mig,
        slices,
    })
}

/// The slots are sparse: one without an instance is no error.
fn slices(nvml: &Nvml, card: &Device) -> Result<Vec<SaidSlice>, NvmlError> {
    let mut slices = Vec::new();
    for slot in 0..card.mig_device_count()?.min(MAX_SLOTS) {
        match card.mig_device_by_index(slot) {
            Ok(device) => slices.push(slice(nvml, card, &device)?),
            Err(NvmlError::NotFound) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(slices)
}

fn slice(nvml: &Nvml, card: &Device, device: &Device) -> Result<SaidSlice, NvmlError> {
    let name = device.name()?;
    let (gi, ci) = instance::ids(nvml, device)?;
    Ok(SaidSlice {
        uuid: device.uuid()?.parse().map_err(|_| NvmlError::Unknown)?,
        gi,
        ci,
        // "NVIDIA A100-SXM4-80GB MIG 1g.10gb"
        profile: name.rsplit_once(" MIG ").map_or(name.as_str(), |(_, profile)| profile).to_owned(),
        memory: device.memory_info().ok().map(|memory| memory.total),
        placement: instance::placement(nvml, card, gi),
    })
}

/// What nvml-wrapper has no method for, through its own table of NVML's functions.
mod instance {
    use nvml_wrapper::error::{NvmlError, nvml_sym, nvml_try};
    use nvml_wrapper::{Device, Nvml};

    /// A slice's GPU instance and compute instance.
    pub fn ids(nvml: &Nvml, slice: &Device) -> Result<(u32, u32), NvmlError> {
        let (mut gi, mut ci) = (0, 0);
        let get_gi = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceId.as_ref())?;
        let get_ci = nvml_sym(nvml.lib().nvmlDeviceGetComputeInstanceId.as_ref())?;
        // SAFETY: the handle is a live slice's; each call writes one number.
        unsafe {
            nvml_try(get_gi(slice.handle(), &raw mut gi))?;
            nvml_try(get_ci(slice.handle(), &raw mut ci))?;
        }
        Ok((gi, ci))
    }

    /// First memory slice and number of memory slices; `None` where NVML does
    /// not tell (it wants root for this).
    pub fn placement(nvml: &Nvml, card: &Device, gi: u32) -> Option<[u32; 2]> {
        let by_id = nvml_sym(nvml.lib().nvmlDeviceGetGpuInstanceById.as_ref()).ok()?;
        let get_info = nvml_sym(nvml.lib().nvmlGpuInstanceGetInfo.as_ref()).ok()?;
        // SAFETY: both structures are plain data for which zero is valid; the
        // first call makes the handle that the second one takes.
        let info = unsafe {
            let mut instance = std::mem::zeroed();
            nvml_try(by_id(card.handle(), gi, &raw mut instance)).ok()?;
            let mut info = std::mem::zeroed();
            nvml_try(get_info(instance, &raw mut info)).ok()?;
            info
        };
        Some([info.placement.start, info.placement.size])
    }
}

fn compute_mode(mode: ComputeMode) -> String {
    let name = match mode {
        ComputeMode::Default => "default",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::ExclusiveProcess => "exclusive_process",
        ComputeMode::ExclusiveThread => "exclusive_thread",
    };
    name.to_owned()
}

/// 12090 is 12.9.
fn cuda_version(number: i32) -> Option<String> {
    (1000..100_000).contains(&number).then(|| format!("{}.{}", number / 1000, number % 1000 / 10))
}

fn plain(version: &str) -> bool {
    !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

fn fault(kind: FaultKind, why: String) -> Fault {
    Fault { kind, why }
}

fn card_fault(pci: PciAddress, error: &NvmlError) -> Fault {
    match error {
        NvmlError::GpuLost => fault(FaultKind::Lost, format!("card {pci} is lost: {LOST}")),
        NvmlError::NotFound | NvmlError::InvalidArg => unspoken(pci),
        NvmlError::NoPermission => fault(
            FaultKind::NoPermission,
            format!("NVML may not speak of card {pci}; look at its device file and the cgroup"),
        ),
        NvmlError::Utf8Error(_) => fault(
            FaultKind::Nonsense,
            format!("NVML's answer for card {pci} makes no sense; reload the driver or reboot"),
        ),
        other => fault(
            FaultKind::Unknown,
            format!("NVML does not speak of card {pci} ({other}); look at the kernel log"),
        ),
    }
}

fn node_fault(error: &NvmlError) -> Fault {
    let (kind, why) = match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => (
            FaultKind::NoLibrary,
            "NVML cannot be loaded; install the driver's libnvidia-ml.so.1".to_owned(),
        ),
        NvmlError::DriverNotLoaded => (
            FaultKind::DriverNotLoaded,
            "NVML finds no loaded driver; load it or look at the kernel log".to_owned(),
        ),
        NvmlError::LibRmVersionMismatch => (
            FaultKind::LibraryMismatch,
            "the loaded driver and NVML's library are of different versions; reload the driver or \
             reboot the node"
                .to_owned(),
        ),
        NvmlError::NoPermission => (
            FaultKind::NoPermission,
            "NVML may not open the device files; look at the modes of /dev/nvidia* and the cgroup"
                .to_owned(),
        ),
        NvmlError::GpuLost => {
            (FaultKind::Lost, format!("NVML does not start, a card is lost: {LOST}"))
        }
        NvmlError::Timeout => (
            FaultKind::NoAnswer,
            "the driver does not answer NVML; look at the kernel log and reboot the node"
                .to_owned(),
        ),
        other => {
            (FaultKind::Unknown, format!("NVML does not start ({other}); look at the kernel log"))
        }
    };
    fault(kind, why)
}
