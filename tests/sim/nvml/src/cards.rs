//! The calls about a card: names, numbers, modes, memory, processes.

use std::ffi::{c_char, c_int, c_uint, c_ulong};
use std::mem::{MaybeUninit, size_of};
use std::slice;

use sim_node::{Card, Process};

use crate::abi::{
    Code, Memory, MemoryV2, Out, PciInfo, ProcessInfo, Utilization, code, field, put_nonsense,
};
use crate::library::answer_text;
use crate::state::{Device, Started, answer, answer_for, started};

pub fn pci_info(card: &Card) -> PciInfo {
    /// A device of NVIDIA's, an A100 as it happens: the node file has no such number.
    const DEVICE_ID: c_uint = 0x20b2_10de;
    PciInfo {
        bus_id_legacy: field(&card.pci.cuda()),
        domain: card.pci.domain,
        bus: card.pci.bus.into(),
        device: card.pci.device.into(),
        pci_device_id: DEVICE_ID,
        pci_subsystem_id: 0,
        bus_id: field(&card.pci.nvml()),
    }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPciInfo_v3(handle: usize, info: Out<PciInfo>) -> c_int {
    code(answer_for(handle, info, |d| Ok(pci_info(d.whole()?))))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMinorNumber(handle: usize, minor: Out<c_uint>) -> c_int {
    code(answer_for(handle, minor, |d| Ok(d.whole()?.minor)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetIndex(handle: usize, index: Out<c_uint>) -> c_int {
    code(answer(index, |started| {
        let minor = started.device(handle)?.whole()?.minor;
        let place = started.cards.iter().position(|card| card.minor == minor);
        place.map(|i| i as c_uint).ok_or(Code::InvalidArgument)
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetUUID(handle: usize, text: *mut c_char, length: c_uint) -> c_int {
    let uuid = |started: &Started| match started.device(handle)? {
        Device::Card(card) => Ok(card.uuid.clone()),
        Device::Slice(card, slice) => Ok(started.node.slice_name(card, slice)),
    };
    // SAFETY: the API asks the caller for a buffer of `length` bytes.
    code(unsafe { answer_text(text, length, uuid) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetName(handle: usize, text: *mut c_char, length: c_uint) -> c_int {
    let name = |device: Device| match device {
        Device::Card(card) => card.model.clone(),
        Device::Slice(card, slice) => format!("{} MIG {}", card.model, slice.profile),
    };
    // SAFETY: the API asks the caller for a buffer of `length` bytes.
    code(unsafe { answer_text(text, length, |started| started.device(handle).map(name)) })
}

/// On by default.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetPersistenceMode(handle: usize, mode: Out<c_uint>) -> c_int {
    code(answer_for(handle, mode, |d| Ok(d.whole()?.persistence.unwrap_or(true).into())))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeMode(handle: usize, mode: Out<c_uint>) -> c_int {
    code(answer_for(handle, mode, |d| Ok(d.whole()?.compute_mode)))
}

/// Total, used and free bytes. A slice has none in use but its processes'.
fn memory(device: Device) -> Memory {
    let (total, used) = match device {
        Device::Card(card) => (card.memory, card.memory_used),
        Device::Slice(_, slice) => {
            let used = slice.processes.iter().map(|process| process.memory).sum();
            (slice.memory(), used)
        }
    };
    Memory { total, free: total.saturating_sub(used), used }
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo(handle: usize, info: Out<Memory>) -> c_int {
    code(answer_for(handle, info, |d| Ok(memory(d))))
}

/// The caller says in the structure which version of it this is.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMemoryInfo_v2(handle: usize, info: Option<&mut MemoryV2>) -> c_int {
    const VERSION: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;
    let Some(info) = info else {
        return code(Err(Code::InvalidArgument));
    };
    if info.version != VERSION {
        return code(Err(Code::ArgumentVersionMismatch));
    }
    let mut found = MaybeUninit::new(*info);
    let outcome = answer_for(handle, Some(&mut found), |d| {
        let Memory { total, free, used } = memory(d);
        Ok(MemoryV2 { version: VERSION, total, reserved: 0, free, used })
    });
    // SAFETY: it was initialised from the caller's structure.
    *info = unsafe { found.assume_init() };
    code(outcome)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetUtilizationRates(handle: usize, rates: Out<Utilization>) -> c_int {
    code(answer_for(handle, rates, |d| Ok(Utilization { gpu: d.whole()?.utilization, memory: 0 })))
}

/// Only where the card's own memory is a NUMA node (Grace): never here.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetNumaNodeId(handle: usize, node: Out<c_uint>) -> c_int {
    code(answer_for(handle, node, |_| Err(Code::NotSupported)))
}

/// The card's NUMA node as a set of bits.
///
/// # Safety
///
/// `set` is null or has room for `size` words.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetMemoryAffinity(
    handle: usize,
    size: c_uint,
    set: *mut c_ulong,
    _scope: c_uint,
) -> c_int {
    if set.is_null() || size == 0 {
        return code(Err(Code::InvalidArgument));
    }
    // SAFETY: not null, and the API asks the caller for `size` words.
    let set = unsafe { slice::from_raw_parts_mut(set, size as usize) };
    let mut node = MaybeUninit::new(0);
    let outcome = answer_for(handle, Some(&mut node), |d| {
        let known = d.card().numa.filter(|&numa| numa >= 0);
        known.ok_or(Code::NotSupported)
    });
    // SAFETY: initialised above, and overwritten by numbers only.
    let node = unsafe { node.assume_init() } as usize;
    set.fill(0);
    if outcome.is_ok() {
        let bits = c_ulong::BITS as usize;
        match set.get_mut(node / bits) {
            Some(word) => *word = 1 << (node % bits),
            None => return code(Err(Code::InsufficientSize)),
        }
    }
    code(outcome)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v2(
    handle: usize,
    count: Option<&mut c_uint>,
    infos: *mut ProcessInfo,
) -> c_int {
    // SAFETY: the API asks the caller for an array of `*count` structures.
    code(unsafe { processes(handle, count, infos, false) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    handle: usize,
    count: Option<&mut c_uint>,
    infos: *mut ProcessInfo,
) -> c_int {
    // SAFETY: the API asks the caller for an array of `*count` structures.
    code(unsafe { processes(handle, count, infos, false) })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetGraphicsRunningProcesses_v3(
    handle: usize,
    count: Option<&mut c_uint>,
    infos: *mut ProcessInfo,
) -> c_int {
    // SAFETY: the API asks the caller for an array of `*count` structures.
    code(unsafe { processes(handle, count, infos, true) })
}

/// The processes of a slice, or of a card with those of its slices. `count`
/// says how many fit and becomes how many there are.
///
/// # Safety
///
/// `infos` is null or has room for `*count` structures.
unsafe fn processes(
    handle: usize,
    count: Option<&mut c_uint>,
    infos: *mut ProcessInfo,
    graphics: bool,
) -> Result<(), Code> {
    /// The instance ids of a process that runs on a whole card.
    const NO_INSTANCE: c_uint = c_uint::MAX;
    let count = count.ok_or(Code::InvalidArgument)?;
    let started = started()?;
    if started.garbage {
        let mut nonsense = MaybeUninit::new(*count);
        put_nonsense(Some(&mut nonsense))?;
        // SAFETY: initialised above, and overwritten by a number.
        *count = unsafe { nonsense.assume_init() };
        return Err(Code::InsufficientSize);
    }
    let mut found = Vec::new();
    let mut add = |processes: &[Process], gi, ci| {
        let wanted = processes.iter().filter(|p| p.graphics == graphics);
        found.extend(wanted.map(|process| ProcessInfo {
            pid: process.pid,
            used_gpu_memory: process.memory,
            gpu_instance_id: gi,
            compute_instance_id: ci,
        }));
    };
    match started.device(handle)? {
        Device::Slice(_, slice) => add(&slice.processes, slice.gi, slice.ci),
        Device::Card(card) => {
            add(&card.processes, NO_INSTANCE, NO_INSTANCE);
            for slice in &card.slices {
                add(&slice.processes, slice.gi, slice.ci);
            }
        }
    }
    let room = *count as usize;
    *count = found.len() as c_uint;
    if found.len() > room {
        return Err(Code::InsufficientSize);
    }
    if infos.is_null() && !found.is_empty() {
        return Err(Code::InvalidArgument);
    }
    for (place, process) in found.into_iter().enumerate() {
        // SAFETY: not null, and there are no more of them than the caller has room for.
        unsafe { infos.add(place).write(process) };
    }
    Ok(())
}
