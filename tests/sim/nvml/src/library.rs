//! The calls about the library and the node: init, shutdown, versions, handles.

use std::ffi::{CStr, c_char, c_int, c_uint};

use sim_node::Pci;

use crate::abi::{Code, ExcludedDeviceInfo, Out, code, field, put_nonsense_text, put_text, words};
use crate::cards::pci_info;
use crate::state::{Started, answer, start, started, stop};

#[unsafe(no_mangle)]
extern "C" fn nvmlInit_v2() -> c_int {
    code(start())
}

/// No flag changes what a simulated node finds.
#[unsafe(no_mangle)]
extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> c_int {
    code(start())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlShutdown() -> c_int {
    code(stop())
}

#[unsafe(no_mangle)]
extern "C" fn nvmlErrorString(result: c_int) -> *const c_char {
    words(result).as_ptr()
}

/// Answers with text.
///
/// # Safety
///
/// `buffer` is null or has room for `length` bytes.
pub unsafe fn answer_text(
    buffer: *mut c_char,
    length: c_uint,
    find: impl FnOnce(&Started) -> Result<String, Code>,
) -> Result<(), Code> {
    let started = started()?;
    // SAFETY: the caller vouches for the buffer.
    unsafe {
        if started.garbage {
            return put_nonsense_text(buffer, length);
        }
        put_text(buffer, length, &find(&started)?)
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetDriverVersion(text: *mut c_char, length: c_uint) -> c_int {
    let find = |started: &Started| Ok(started.node.driver.clone());
    // SAFETY: the API asks the caller for a buffer of `length` bytes.
    code(unsafe { answer_text(text, length, find) })
}

/// The library's version is the driver's, after CUDA's first number.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlSystemGetNVMLVersion(text: *mut c_char, length: c_uint) -> c_int {
    let find = |started: &Started| {
        let node = &started.node;
        Ok(format!("{}.{}", node.cuda_version() / 1000, node.driver))
    };
    // SAFETY: the API asks the caller for a buffer of `length` bytes.
    code(unsafe { answer_text(text, length, find) })
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion(version: Out<c_int>) -> c_int {
    code(answer(version, |started| Ok(started.node.cuda_version())))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: Out<c_int>) -> c_int {
    nvmlSystemGetCudaDriverVersion(version)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetCount_v2(count: Out<c_uint>) -> c_int {
    code(answer(count, |started| Ok(started.cards.len() as c_uint)))
}

/// Under the fault "garbage" the list of handles ends all the same, so that a
/// caller that believes the count does not fill the memory of the machine.
#[unsafe(no_mangle)]
extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, handle: Out<usize>) -> c_int {
    const ENOUGH: c_uint = 64;
    if started().is_ok_and(|started| started.garbage) && index >= ENOUGH {
        return code(Err(Code::InvalidArgument));
    }
    code(answer(handle, |started| started.handle(index as usize)))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(
    text: *const c_char,
    handle: Out<usize>,
) -> c_int {
    // SAFETY: the API asks the caller for a C string; null is caught inside.
    let wanted = unsafe { string(text) };
    code(answer(handle, |started| {
        let pci: Pci = wanted?.parse().map_err(|_| Code::NotFound)?;
        let index = started.cards.iter().position(|card| card.pci == pci);
        started.handle(index.ok_or(Code::NotFound)?)
    }))
}

/// A card's UUID or a slice's.
#[unsafe(no_mangle)]
unsafe extern "C" fn nvmlDeviceGetHandleByUUID(text: *const c_char, handle: Out<usize>) -> c_int {
    // SAFETY: the API asks the caller for a C string; null is caught inside.
    let wanted = unsafe { string(text) };
    code(answer(handle, |started| {
        let wanted = wanted?;
        if let Some(index) = started.cards.iter().position(|card| card.uuid == wanted) {
            return started.handle(index);
        }
        let of_card = |card| {
            crate::slices::visible(card).find(|(_, s)| started.node.slice_name(card, s) == wanted)
        };
        let mut found = started.cards.iter().filter_map(|c| Some((c, of_card(c)?.0)));
        let (card, place) = found.next().ok_or(Code::NotFound)?;
        started.slice_handle(card, place)
    }))
}

/// # Safety
///
/// `text` is null or a C string that lives as long as the result.
unsafe fn string<'a>(text: *const c_char) -> Result<&'a str, Code> {
    if text.is_null() {
        return Err(Code::InvalidArgument);
    }
    // SAFETY: not null, so the caller vouches for a C string.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Code::NotFound)
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGetExcludedDeviceCount(count: Out<c_uint>) -> c_int {
    code(answer(count, |started| {
        let excluded = started.node.cards.iter().filter(|card| card.excluded);
        Ok(excluded.count() as c_uint)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn nvmlGetExcludedDeviceInfoByIndex(
    index: c_uint,
    info: Out<ExcludedDeviceInfo>,
) -> c_int {
    code(answer(info, |started| {
        let mut excluded = started.node.cards.iter().filter(|card| card.excluded);
        let card = excluded.nth(index as usize).ok_or(Code::InvalidArgument)?;
        Ok(ExcludedDeviceInfo { pci: pci_info(card), uuid: field(&card.uuid) })
    }))
}
