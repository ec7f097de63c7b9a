//! The calls about MIG: modes, slots, instances.
//!
//! Slots are sparse: an index below the maximum without an instance is "not
//! found", which is no error of the card.

use std::ffi::{c_int, c_uint};

use sim_node::{Card, Slice, openable};

use crate::abi::{Attributes, Code, GpuInstanceInfo, Out, code};
use crate::state::{Device, answer, answer_for};

/// As many as today's cards can have; more only if the node file has more.
const SLOTS: u32 = 7;

/// The bit that tells a GPU instance's handle from a device's.
const INSTANCE: usize = 1 << 48;

/// The slices that the process may use, with their places in the card's list.
pub fn visible(card: &Card) -> impl Iterator<Item = (usize, &Slice)> {
    let on = card.mig_on();
    let slices = card.slices.iter().enumerate();
    slices.filter(move |(_, slice)| on && slice.reachable(&openable))
}

fn slot(place: usize, slice: &Slice) -> u32 {
    slice.slot.unwrap_or(place as u32)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigMode(
    handle: usize,
    current: Out<c_uint>,
    pending: Out<c_uint>,
) -> c_int {
    let mode = |d: Device| Ok(c_uint::from(d.whole()?.mig_on()));
    code(answer_for(handle, current, mode).and_then(|()| answer_for(handle, pending, mode)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMaxMigDeviceCount(handle: usize, count: Out<c_uint>) -> c_int {
    code(answer_for(handle, count, |d| {
        let card = d.whole()?;
        let slices = card.slices.iter().enumerate();
        let used = slices.map(|(place, slice)| slot(place, slice) + 1).max();
        Ok(if card.mig_on() { used.unwrap_or(0).max(SLOTS) } else { 0 })
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    handle: usize,
    index: c_uint,
    slice: Out<usize>,
) -> c_int {
    code(answer(slice, |started| {
        let card = started.device(handle)?.whole()?;
        let (place, _) = visible(card)
            .find(|&(place, slice)| slot(place, slice) == index)
            .ok_or(Code::NotFound)?;
        started.slice_handle(card, place)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetDeviceHandleFromMigDeviceHandle(
    handle: usize,
    card: Out<usize>,
) -> c_int {
    code(answer(card, |started| {
        started.device(handle)?.slice()?;
        Ok(handle & 0xffff)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceIsMigDeviceHandle(handle: usize, is_slice: Out<c_uint>) -> c_int {
    code(answer_for(handle, is_slice, |d| Ok(matches!(d, Device::Slice(..)).into())))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceId(handle: usize, id: Out<c_uint>) -> c_int {
    code(answer_for(handle, id, |d| Ok(d.slice()?.gi)))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetComputeInstanceId(handle: usize, id: Out<c_uint>) -> c_int {
    code(answer_for(handle, id, |d| Ok(d.slice()?.ci)))
}

/// From the profile's name: `1c.3g.40gb` is one of three compute slices, 40 GB.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetAttributes_v2(handle: usize, attributes: Out<Attributes>) -> c_int {
    code(answer_for(handle, attributes, |d| {
        let Device::Slice(_, slice) = d else {
            return Err(Code::NotSupported);
        };
        let part = |unit| {
            let mut parts = slice.profile.split('.');
            parts.find_map(|part| part.strip_suffix(unit)?.parse::<c_uint>().ok())
        };
        let of_instance = part('g').unwrap_or(0);
        let own = part('c').unwrap_or(of_instance);
        Ok(Attributes {
            multiprocessor_count: 14 * own,
            gpu_instance_slice_count: of_instance,
            compute_instance_slice_count: own,
            memory_size_mb: slice.memory() >> 20,
            ..Attributes::default()
        })
    }))
}

/// As NVML, for root and those who may configure MIG in earnest; here, for all.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetGpuInstanceById(
    handle: usize,
    id: c_uint,
    instance: Out<usize>,
) -> c_int {
    code(answer_for(handle, instance, |d| {
        let card = d.whole()?;
        let known = visible(card).any(|(_, slice)| slice.gi == id);
        let number = usize::try_from(id).map_err(|_| Code::InvalidArgument)?;
        known.then_some(INSTANCE | number << 16 | handle).ok_or(Code::NotFound)
    }))
}

/// Where the instance lies; the profile's number is not simulated.
#[unsafe(no_mangle)]
extern "C" fn nvmlGpuInstanceGetInfo(instance: usize, info: Out<GpuInstanceInfo>) -> c_int {
    code(answer(info, |started| {
        if instance & INSTANCE == 0 {
            return Err(Code::InvalidArgument);
        }
        let (handle, id) = (instance & 0xffff, (instance >> 16) as u32);
        let card = started.device(handle)?.whole()?;
        let mut slices = visible(card).map(|(_, slice)| slice);
        let slice = slices.find(|slice| slice.gi == id).ok_or(Code::NotFound)?;
        let [placement_start, placement_size] = slice.placement.unwrap_or([0, 1]);
        Ok(GpuInstanceInfo { device: handle, id, profile_id: 0, placement_start, placement_size })
    }))
}
