//! The gres list: what Slurm's position numbers mean on this node.
//!
//! Position p in `SLURM_STEP_GPUS` is the p-th device of slurmd's list, from
//! 21.08 on. Its order, as read in Slurm's source (`_merge_system_gres_conf` in
//! `src/plugins/gres/gpu/gres_gpu.c`) and, but for NVML, seen on running
//! slurmds of 22.05, 24.11 and 26.05:
//!
//! * no AutoDetect: the order of gres.conf, untouched;
//! * AutoDetect: by file name in natural order (`nvidia2` before `nvidia10`),
//!   then by `Links`, those without last. NVML fills Links with its own index,
//!   so whole cards come in PCI order and slices, which have none, after them;
//!   `nvidia` fills none, so the file names decide.
//!
//! The invariant: a device is found by the number that its file really has
//! (links followed), never by the digits of its name; and a file without a card
//! behind it still takes its position.

use std::path::{Path, PathBuf};

use super::autodetect::{Entry, detected, nvml_cards, proc_cards};
use super::conf::{self, Line};
use super::gres_conf::{self, AutoDetect, GresConf, GresError, NodeGres, Record};
use crate::device::{Device, Inventory, Minor, clip};

/// Of `/dev/nvidiaN`; nvidiactl and nvidia-modeset share it, but are no card's minor.
const NVIDIA_MAJOR: u32 = 195;

/// Slurm's positions on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GresList {
    positions: Vec<Position>,
    /// By position, as slurmd spells them.
    files: Vec<String>,
    surplus: Vec<Surplus>,
    autodetect: AutoDetect,
    source: PathBuf,
}

/// A device that gres.conf names beyond those that slurm.conf's `Gres=` counts:
/// it has no position, and no job gets it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surplus {
    /// Its device file; several are joined by commas.
    pub file: String,
    /// Rank of the card behind it, if there is one.
    pub card: Option<usize>,
}

impl Surplus {
    fn of(entry: Entry) -> Option<Surplus> {
        Some(Surplus { file: entry.file?, card: entry.position.card })
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    /// Rank of the card that the device is, or is a slice of.
    pub card: Option<usize>,
    /// `None` for a lost card, and for a slice that the inventory does not know.
    pub device: Option<Device>,
}

impl GresList {
    /// Reads gres.conf, and slurm.conf next to it if it is there. Device files
    /// are looked up under `dev_root` (`/` but for tests).
    pub fn read(
        gres_conf: &Path,
        node: &str,
        dev_root: &Path,
        inventory: &Inventory,
    ) -> Result<GresList, GresError> {
        let lines = conf::read(gres_conf)?;
        // Without slurm.conf (a dynamic node), all that gres.conf names counts.
        let slurm_conf = gres_conf::slurm_conf(gres_conf);
        let slurm = match conf::read(&slurm_conf) {
            Err(why) if why.is_absent_at(&slurm_conf) => Vec::new(),
            read => read?,
        };
        let slurm = gres_conf::node_gres(&slurm, node);
        let stat = |file: &str| device_number(&dev_root.join(file.trim_start_matches('/')));
        GresList::from_lines(&lines, slurm, gres_conf, node, &stat, inventory)
    }

    /// The same of texts, with `stat` for the device number behind a path.
    pub fn from_text(
        gres_conf: &str,
        slurm_conf: &str,
        node: &str,
        stat: &dyn Fn(&str) -> Option<(u32, u32)>,
        inventory: &Inventory,
    ) -> Result<GresList, GresError> {
        let path = Path::new("gres.conf");
        let read = |text: &str| conf::read_with(path, &mut |_| Ok(text.as_bytes().to_vec()));
        let slurm = gres_conf::node_gres(&read(slurm_conf)?, node);
        GresList::from_lines(&read(gres_conf)?, slurm, path, node, stat, inventory)
    }

    fn from_lines(
        lines: &[Line],
        slurm: Option<NodeGres>,
        source: &Path,
        node: &str,
        stat: &dyn Fn(&str) -> Option<(u32, u32)>,
        inventory: &Inventory,
    ) -> Result<GresList, GresError> {
        let GresConf { autodetect, records } = GresConf::parse(lines, node)?;
        let known = slurm.is_some();
        let wanted = slurm.iter().flatten().map(|(_, count)| count).sum();
        let (records, surplus) = match slurm {
            Some(gres) => gres_conf::merged(records, &gres),
            None => (records, Vec::new()),
        };
        let surplus = singles(surplus, stat, inventory);
        let configured = singles(records, stat, inventory);
        let mut list = match autodetect {
            AutoDetect::Off => configured,
            AutoDetect::Nvml => detected(nvml_cards(inventory), configured, known),
            AutoDetect::Nvidia => detected(proc_cards(inventory), configured, known),
        };
        // As slurmd does: a GPU without a file is no GPU.
        list.retain(|entry| entry.file.is_some());
        // slurmd keeps the list of its start: behind a card that was lost since, today's positions
        // are not Slurm's.
        if autodetect != AutoDetect::Off && list.len() < wanted {
            let conf = source.to_owned();
            return Err(GresError::CardsGone { conf, wanted, found: list.len() });
        }
        if list.is_empty() {
            return Err(GresError::NoGpus { conf: source.to_owned(), node: clip(node) });
        }
        Ok(GresList {
            positions: list.iter().map(|entry| entry.position).collect(),
            files: list.into_iter().filter_map(|entry| entry.file).collect(),
            surplus: surplus.into_iter().filter_map(Surplus::of).collect(),
            autodetect,
            source: source.to_owned(),
        })
    }

    /// Rank of the card at a position, whole or as the parent of a slice.
    pub fn card(&self, position: u32) -> Option<usize> {
        self.get(position)?.card
    }

    /// The very device at a position.
    pub fn device(&self, position: u32) -> Option<Device> {
        self.get(position)?.device
    }

    /// The device file at a position; several are joined by commas.
    pub fn file(&self, position: u32) -> Option<&str> {
        self.files.get(usize::try_from(position).ok()?).map(String::as_str)
    }

    /// Every position's device.
    pub fn devices(&self) -> Vec<Option<Device>> {
        self.positions.iter().map(|position| position.device).collect()
    }

    fn get(&self, position: u32) -> Option<&Position> {
        self.positions.get(usize::try_from(position).ok()?)
    }

    /// All position numbers.
    pub fn positions(&self) -> std::ops::Range<u32> {
        // At most MAX_POSITIONS of them.
        0..self.positions.len() as u32
    }

    /// Whether a slice stands here, known to the inventory or not.
    pub fn is_slice(&self, position: u32) -> bool {
        self.get(position).is_some_and(|p| match p.device {
            Some(device) => device.slice.is_some(),
            None => p.card.is_some(),
        })
    }

    /// Number of positions, those without a card included; never 0.
    #[expect(clippy::len_without_is_empty, reason = "a list of none is an error")]
    pub fn len(&self) -> usize {
        self.positions.len()
    }

    /// The position of a whole card.
    pub fn position_of(&self, rank: usize) -> Option<u32> {
        let whole = Some(Device::whole(rank));
        let at = self.positions.iter().position(|p| p.device == whole)?;
        u32::try_from(at).ok()
    }

    /// Whether whole cards stand in PCI order, as all that counts cards by
    /// number expects them; slices go by UUID.
    pub fn is_in_pci_order(&self) -> bool {
        let whole = self.positions.iter().filter_map(|p| p.device).filter(|d| d.slice.is_none());
        whole.is_sorted()
    }

    /// Whether Slurm gives this card out, whole or in slices. A card that it
    /// does not is open to every task, on a node that constrains devices too:
    /// slurmstepd denies configured devices only.
    pub fn is_configured(&self, rank: usize) -> bool {
        self.positions.iter().any(|p| p.card == Some(rank))
    }

    /// What gres.conf names and slurm.conf does not count.
    pub fn surplus(&self) -> &[Surplus] {
        &self.surplus
    }

    pub fn autodetect(&self) -> AutoDetect {
        self.autodetect
    }

    /// The gres.conf that was read.
    pub fn source(&self) -> &Path {
        &self.source
    }
}

fn device_number(path: &Path) -> Option<(u32, u32)> {
    use std::os::unix::fs::{FileTypeExt, MetadataExt};
    let meta = std::fs::metadata(path).ok()?;
    let number = meta.rdev();
    let device = meta.file_type().is_char_device();
    device.then(|| (libc::major(number), libc::minor(number)))
}

/// gres.conf's records, one device each.
fn singles(
    records: Vec<Record>,
    stat: &dyn Fn(&str) -> Option<(u32, u32)>,
    inventory: &Inventory,
) -> Vec<Entry> {
    let mut entries = Vec::new();
    for record in records {
        let bare = Entry { kind: record.kind, link: record.link, ..Entry::default() };
        if record.devices.is_empty() {
            entries.extend(std::iter::repeat_n(bare, record.count));
            continue;
        }
        for files in record.devices {
            entries.push(Entry {
                position: position(&files, stat, inventory),
                file: Some(files.join(",")),
                ..bare.clone()
            });
        }
    }
    entries
}

/// What the files of one device are: a card's node makes it a card; capability
/// nodes next to it make it the slice that needs both of them.
fn position(
    files: &[String],
    stat: &dyn Fn(&str) -> Option<(u32, u32)>,
    inventory: &Inventory,
) -> Position {
    let numbers: Vec<_> = files.iter().filter_map(|file| stat(file)).collect();
    let card = numbers
        .iter()
        .filter(|&&(major, _)| major == NVIDIA_MAJOR)
        .find_map(|&(_, minor)| inventory.rank_of_minor(Minor(minor)));
    let device = card.and_then(|rank| {
        if files.len() == 1 {
            return Some(Device::whole(rank));
        }
        let named = |cap: u32| numbers.iter().any(|&(major, n)| major != NVIDIA_MAJOR && n == cap);
        let slices = &inventory.cards()[rank].slices;
        let slice = slices.iter().position(|slice| slice.cap_minors.into_iter().all(named))?;
        Some(Device { card: rank, slice: Some(slice) })
    });
    Position { card, device }
}

#[cfg(test)]
mod tests;
