//! What NVML knows between init and shutdown, and what a handle stands for.
//!
//! Handles are numbers in a pointer's clothes: the card's index plus one in the
//! low 16 bits, a slice's place plus one in the next 16. None is ever followed.

use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use sim_node::{Card, Node, NodeError, NvmlFault, Slice, openable};

use crate::abi::{Code, Out, Plain, put, put_nonsense};

/// A started library.
pub struct Started {
    pub node: Node,
    /// Those that the process may open, in PCI order: a card's place is its index.
    pub cards: Vec<Card>,
    pub garbage: bool,
}

/// How often the library was started, and what it then found.
struct Library {
    users: u32,
    started: Option<Arc<Started>>,
}

static LIBRARY: Mutex<Library> = Mutex::new(Library { users: 0, started: None });

fn library() -> MutexGuard<'static, Library> {
    LIBRARY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Looks at the node when nobody has started the library yet; counts users.
pub fn start() -> Result<(), Code> {
    let mut library = library();
    if library.started.is_none() {
        library.started = Some(Arc::new(look()?));
    }
    library.users += 1;
    Ok(())
}

pub fn stop() -> Result<(), Code> {
    let mut library = library();
    if library.users == 0 {
        return Err(Code::Uninitialized);
    }
    library.users -= 1;
    if library.users == 0 {
        library.started = None;
    }
    Ok(())
}

pub fn started() -> Result<Arc<Started>, Code> {
    library().started.clone().ok_or(Code::Uninitialized)
}

fn look() -> Result<Started, Code> {
    let node = Node::here().map_err(|error| match error {
        NodeError::Read { .. } => Code::DriverNotLoaded,
        NodeError::Parse { .. } => {
            eprintln!("sim-nvml: {error}");
            Code::Unknown
        }
    })?;
    let seconds = Duration::try_from_secs_f64(node.nvml.sleep_s).unwrap_or_default();
    thread::sleep(seconds);
    let garbage = match node.nvml.fault {
        None => false,
        Some(NvmlFault::Garbage) => true,
        Some(NvmlFault::Crash) => process::abort(),
        Some(NvmlFault::DriverNotLoaded) => return Err(Code::DriverNotLoaded),
        Some(NvmlFault::LibRmVersionMismatch) => return Err(Code::LibRmVersionMismatch),
        Some(NvmlFault::NoPermission) => return Err(Code::NoPermission),
        Some(NvmlFault::GpuIsLost) => return Err(Code::GpuIsLost),
        Some(NvmlFault::Timeout) => return Err(Code::Timeout),
        Some(NvmlFault::Unknown) => return Err(Code::Unknown),
    };
    let mut cards = node.cards.clone();
    cards.retain(|card| card.reachable(&openable));
    cards.sort_by_key(|card| card.pci);
    Ok(Started { node, cards, garbage })
}

/// What a handle stands for.
#[derive(Clone, Copy)]
pub enum Device<'a> {
    Card(&'a Card),
    Slice(&'a Card, &'a Slice),
}

impl<'a> Device<'a> {
    pub fn card(self) -> &'a Card {
        match self {
            Device::Card(card) | Device::Slice(card, _) => card,
        }
    }

    /// The card, or that a slice does not answer such questions.
    pub fn whole(self) -> Result<&'a Card, Code> {
        match self {
            Device::Card(card) => Ok(card),
            Device::Slice(..) => Err(Code::NotSupported),
        }
    }

    /// The slice, or that only slices answer such questions.
    pub fn slice(self) -> Result<&'a Slice, Code> {
        match self {
            Device::Slice(_, slice) => Ok(slice),
            Device::Card(_) => Err(Code::InvalidArgument),
        }
    }
}

impl Started {
    pub fn device(&self, handle: usize) -> Result<Device<'_>, Code> {
        let card = (handle & 0xffff).checked_sub(1);
        let card = card.and_then(|index| self.cards.get(index));
        let card = card.ok_or(Code::InvalidArgument)?;
        match (handle >> 16).checked_sub(1) {
            None => Ok(Device::Card(card)),
            Some(place) => {
                let slice = card.slices.get(place).ok_or(Code::InvalidArgument)?;
                Ok(Device::Slice(card, slice))
            }
        }
    }

    /// The handle of the card at this index; a lost card has none.
    pub fn handle(&self, index: usize) -> Result<usize, Code> {
        match self.cards.get(index) {
            Some(card) if card.lost => Err(Code::GpuIsLost),
            Some(_) => Ok(index + 1),
            None => Err(Code::InvalidArgument),
        }
    }

    pub fn slice_handle(&self, card: &Card, place: usize) -> Result<usize, Code> {
        let index = self.cards.iter().position(|c| c.minor == card.minor);
        let handle = self.handle(index.ok_or(Code::InvalidArgument)?)?;
        Ok(handle | (place + 1) << 16)
    }
}

/// Answers a question about the library or the node as a whole.
pub fn answer<T: Plain>(
    out: Out<T>,
    find: impl FnOnce(&Started) -> Result<T, Code>,
) -> Result<(), Code> {
    let started = started()?;
    if started.garbage {
        return put_nonsense(out);
    }
    put(out, find(&started)?)
}

/// Answers a question about the device that a handle stands for.
pub fn answer_for<T: Plain>(
    handle: usize,
    out: Out<T>,
    find: impl FnOnce(Device) -> Result<T, Code>,
) -> Result<(), Code> {
    answer(out, |started| find(started.device(handle)?))
}
