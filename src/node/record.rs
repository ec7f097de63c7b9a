//! The record that `gpu-align prolog` leaves for the plugin,
//! `/run/gpu-align/node.json`: what NVML knows and `/proc/driver/nvidia` does not.
//!
//! Invariants: a reader finds a whole record, the old or the new one, whenever
//! the writer dies; and it believes only one that root alone could write and
//! that speaks of this boot, this driver, these cards and these slices.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use serde::Deserialize;
use thiserror::Error;

use crate::device::{Card, Inventory, PciAddress, Uuid, clip};
use crate::node::{capabilities, driver, text};

/// Where the record lies unless plugstack.conf says `record=`.
pub const PATH: &str = "/run/gpu-align/node.json";

/// What this version writes, and all that it reads.
pub const SCHEMA: u32 = 1;

/// Larger than any node's record; a bound on what reading can cost.
pub const MAX_BYTES: usize = 1 << 20;

const ROOT: u32 = 0;

/// Why a record is not believed.
#[derive(Debug, Error)]
pub enum Disbelief {
    #[error("there is none")]
    Missing,
    #[error("it is a symbolic link")]
    Link,
    #[error("it is no regular file")]
    NotAFile,
    #[error("it is owned by user {0}, not by root")]
    Owner(u32),
    #[error("others than root may write it (mode {0:o})")]
    Writable(u32),
    #[error("it is larger than {MAX_BYTES} bytes")]
    TooLarge,
    #[error("it cannot be read ({0})")]
    Unreadable(io::Error),
    #[error("it is not what gpu-align writes ({0})")]
    Malformed(serde_json::Error),
    #[error("its schema is {0} and this version reads {SCHEMA}")]
    Schema(u32),
    #[error("it was written before this boot")]
    OtherBoot,
    #[error("it was written under driver {record}, and {now} is loaded")]
    OtherDriver { record: String, now: String },
    #[error("it has card {0}, which the driver does not list")]
    CardGone(PciAddress),
    #[error("it lacks card {0}, which the driver lists")]
    CardNew(PciAddress),
    #[error("it has another minor or UUID for card {0} than the driver")]
    OtherCard(PciAddress),
    #[error("it names two devices {0}")]
    SharedUuid(Uuid),
    #[error("it has other slices for card {0} than the driver")]
    OtherSlices(PciAddress),
    #[error("this boot, its driver or its slices cannot be told ({0})")]
    Now(String),
}

/// The part of a record that the plugin needs; the rest is for people and
/// monitoring (see `stock`).
#[derive(Debug, Deserialize)]
struct Contents {
    boot_id: String,
    driver: String,
    cards: Vec<Card>,
}

/// What a record must agree with.
pub struct Now<'a> {
    root: &'a Path,
    boot_id: String,
    driver: String,
    /// The cards as the driver lists them.
    cards: &'a [Card],
}

impl<'a> Now<'a> {
    pub fn read(root: &'a Path, known: &'a Inventory) -> Result<Now<'a>, Disbelief> {
        let boot_id = boot_id(root).map_err(|error| Disbelief::Now(error.to_string()))?;
        let driver = driver::version(root).map_err(|error| Disbelief::Now(error.to_string()))?;
        Ok(Now { root, boot_id, driver, cards: known.cards() })
    }
}

/// The id that the kernel gave this boot.
pub fn boot_id(root: &Path) -> io::Result<String> {
    Ok(text::read(&root.join("proc/sys/kernel/random/boot_id"), 64)?.trim().to_owned())
}

/// Reads a record of root's and believes it, or says why not.
pub fn read(path: &Path, now: &Now) -> Result<Vec<Card>, Disbelief> {
    read_owned_by(ROOT, path, now)
}

fn read_owned_by(owner: u32, path: &Path, now: &Now) -> Result<Vec<Card>, Disbelief> {
    believe(&bytes_owned_by(owner, path)?, now)
}

/// The bytes of a file that only its owner could have written.
fn bytes_owned_by(owner: u32, path: &Path) -> Result<Vec<u8>, Disbelief> {
    // O_NONBLOCK: a FIFO must not hold the step up before it is seen to be one.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(path)
        .map_err(|error| match error.raw_os_error() {
            Some(libc::ENOENT | libc::ENOTDIR) => Disbelief::Missing,
            Some(libc::ELOOP) => Disbelief::Link,
            _ => Disbelief::Unreadable(error),
        })?;
    let meta = file.metadata().map_err(Disbelief::Unreadable)?;
    if !meta.is_file() {
        return Err(Disbelief::NotAFile);
    }
    if meta.uid() != owner {
        return Err(Disbelief::Owner(meta.uid()));
    }
    if meta.mode() & 0o022 != 0 {
        return Err(Disbelief::Writable(meta.mode() & 0o7777));
    }
    if meta.len() > MAX_BYTES as u64 {
        return Err(Disbelief::TooLarge);
    }
    let mut bytes = Vec::new();
    // It may have grown since.
    file.take(MAX_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(Disbelief::Unreadable)?;
    if bytes.len() > MAX_BYTES {
        return Err(Disbelief::TooLarge);
    }
    Ok(bytes)
}

/// The cards of a record or of the helper's answer, if they are today's.
pub fn believe(bytes: &[u8], now: &Now) -> Result<Vec<Card>, Disbelief> {
    // A later version may have changed everything but this.
    #[derive(Deserialize)]
    struct Version {
        schema: u32,
    }
    let Version { schema } = serde_json::from_slice(bytes).map_err(Disbelief::Malformed)?;
    if schema != SCHEMA {
        return Err(Disbelief::Schema(schema));
    }
    let contents: Contents = serde_json::from_slice(bytes).map_err(Disbelief::Malformed)?;
    if contents.boot_id != now.boot_id {
        return Err(Disbelief::OtherBoot);
    }
    if contents.driver != now.driver {
        return Err(Disbelief::OtherDriver {
            record: clip(&contents.driver),
            now: now.driver.clone(),
        });
    }
    let cards = Inventory::new(contents.cards).cards().to_vec();
    same_cards(&cards, now)?;
    no_name_twice(&cards)?;
    Ok(cards)
}

/// CUDA sees no card at all when a UUID is listed twice, and two tasks would
/// share one.
fn no_name_twice(cards: &[Card]) -> Result<(), Disbelief> {
    let mut names = BTreeSet::new();
    let slices = cards.iter().flat_map(|card| &card.slices).map(|slice| &slice.uuid);
    match cards.iter().flat_map(|card| &card.uuid).chain(slices).find(|uuid| !names.insert(*uuid)) {
        Some(uuid) => Err(Disbelief::SharedUuid(uuid.clone())),
        None => Ok(()),
    }
}

fn same_cards(cards: &[Card], now: &Now) -> Result<(), Disbelief> {
    for card in cards {
        let count = cards.iter().filter(|other| other.pci == card.pci).count();
        if count > 1 || now.cards.iter().all(|other| other.pci != card.pci) {
            return Err(Disbelief::CardGone(card.pci));
        }
    }
    for card in now.cards {
        let Some(said) = cards.iter().find(|said| said.pci == card.pci) else {
            return Err(Disbelief::CardNew(card.pci));
        };
        let other_uuid = matches!((&said.uuid, &card.uuid), (Some(a), Some(b)) if a != b);
        if said.minor != card.minor || other_uuid {
            return Err(Disbelief::OtherCard(card.pci));
        }
        same_slices(said, now)?;
    }
    Ok(())
}

/// Instances come and go without a boot. One that is made again in the place of
/// another has the same UUID: it is computed from the card's and the two ids.
fn same_slices(said: &Card, now: &Now) -> Result<(), Disbelief> {
    let live = capabilities::instances(now.root, said.minor)
        .map_err(|error| Disbelief::Now(error.to_string()))?;
    let said_here = said.slices.iter().map(|slice| (slice.gi, slice.ci, slice.cap_minors));
    if said_here.eq(live.iter().map(|i| (i.gi, i.ci, i.cap_minors))) {
        return Ok(());
    }
    Err(Disbelief::OtherSlices(said.pci))
}

/// The cards that a record of root's from this boot has seen, whatever else has
/// changed since: those that were there when it was written, and those that were
/// gone by then.
pub fn seen_this_boot(path: &Path, root: &Path) -> Vec<Card> {
    seen_by(ROOT, path, root).unwrap_or_default()
}

fn seen_by(owner: u32, path: &Path, root: &Path) -> Option<Vec<Card>> {
    #[derive(Deserialize)]
    struct Seen {
        schema: u32,
        boot_id: String,
        cards: Vec<Card>,
        #[serde(default)]
        gone: Vec<Card>,
    }
    let bytes = bytes_owned_by(owner, path).ok()?;
    let Seen { schema, boot_id: boot, mut cards, gone } = serde_json::from_slice(&bytes).ok()?;
    cards.extend(gone);
    (schema == SCHEMA && boot == boot_id(root).ok()?).then_some(cards)
}

#[derive(Debug, Error)]
#[error("{path} cannot be written ({error}); look at the folder's owner and free space")]
pub struct WriteError {
    path: PathBuf,
    error: io::Error,
}

/// Writes a file that is whole whenever it is there: a temporary one beside it,
/// synced, then renamed over it; mode 0644.
///
/// Writers take turns by a lock on a file that is theirs alone (a folder could be
/// locked by anyone), so the temporary name is always the same one and a writer
/// that was killed leaves at most that.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), WriteError> {
    replace(path, bytes).map_err(|error| WriteError { path: path.into(), error })
}

fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name().and_then(|n| n.to_str()))
    else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    let folder = File::open(parent)?;
    let turn = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(parent.join(".lock"))?;
    rustix::fs::flock(&turn, rustix::fs::FlockOperation::LockExclusive)?;
    let temporary = parent.join(format!(".{name}.new"));
    if let Err(error) = fs::remove_file(&temporary) {
        if error.kind() != io::ErrorKind::NotFound {
            return Err(error);
        }
    }
    if let Err(error) = fill(&temporary, bytes).and_then(|()| fs::rename(&temporary, path)) {
        // A job's record has a name of its own: nobody else would take this away.
        let _ = fs::remove_file(&temporary);
        return Err(error);
    }
    folder.sync_all()
}

fn fill(temporary: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(temporary)?;
    // Whatever the umask is.
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests;
