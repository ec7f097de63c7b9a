//! The C functions of the driver API, as far as enumeration goes.
//!
//! The environment and the device files are read in the first `cuInit` that
//! succeeds: what changes later changes nothing, while a failed `cuInit` looks
//! again when called again (both seen with the driver). Out pointers are taken
//! as nullable references, so that almost nothing here is unsafe.

use std::env;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use sim_node::{Node, NodeError, octets, openable};

use crate::enumerate::{Entry, enumerate};
use crate::error::CudaError;

/// Where a caller wants a result; null is an invalid argument.
type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

static DEVICES: OnceLock<Vec<Entry>> = OnceLock::new();

fn look() -> Result<Vec<Entry>, CudaError> {
    let node = Node::here().map_err(|error| match error {
        // No driver: the real library says that there is no device.
        NodeError::Read { .. } => CudaError::NoDevice,
        NodeError::Parse { .. } => {
            eprintln!("sim-cuda: {error}");
            CudaError::Unknown
        }
    })?;
    let text = |name| env::var_os(name).map(|value| value.to_string_lossy().into_owned());
    enumerate(
        &node,
        &openable,
        text("CUDA_DEVICE_ORDER").as_deref(),
        text("CUDA_VISIBLE_DEVICES").as_deref(),
    )
}

fn devices() -> Result<&'static [Entry], CudaError> {
    DEVICES.get().map(Vec::as_slice).ok_or(CudaError::NotInitialized)
}

fn device(ordinal: c_int) -> Result<&'static Entry, CudaError> {
    let index = usize::try_from(ordinal).map_err(|_| CudaError::InvalidDevice)?;
    devices()?.get(index).ok_or(CudaError::InvalidDevice)
}

fn put<T>(out: Out<T>, value: T) -> Result<(), CudaError> {
    out.ok_or(CudaError::InvalidValue)?.write(value);
    Ok(())
}

/// Cuts the text to the buffer; it always ends in NUL.
///
/// # Safety
///
/// `buffer` is null or has room for `length` bytes.
unsafe fn put_text(buffer: *mut c_char, length: c_int, text: &str) -> Result<(), CudaError> {
    let room = usize::try_from(length).unwrap_or(0);
    if buffer.is_null() || room == 0 {
        return Err(CudaError::InvalidValue);
    }
    let size = text.len().min(room - 1);
    // SAFETY: the caller vouches for `length` bytes, and size + 1 are written.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, size);
        buffer.add(size).write(0);
    }
    Ok(())
}

fn code(result: Result<(), CudaError>) -> c_int {
    result.map_or_else(CudaError::code, |()| 0)
}

#[unsafe(no_mangle)]
extern "C" fn cuInit(flags: c_uint) -> c_int {
    if flags != 0 {
        return CudaError::InvalidValue.code();
    }
    if DEVICES.get().is_some() {
        return 0;
    }
    code(look().map(|devices| {
        // Two threads may have looked at once; the first one's list stays.
        DEVICES.get_or_init(|| devices);
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuDriverGetVersion(version: Out<c_int>) -> c_int {
    let node = Node::here().unwrap_or_default();
    code(put(version, node.cuda_version()))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetCount(count: Out<c_int>) -> c_int {
    code(devices().and_then(|all| put(count, all.len() as c_int)))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGet(handle: Out<c_int>, ordinal: c_int) -> c_int {
    code(device(ordinal).and_then(|_| put(handle, ordinal)))
}

/// The card's UUID, also for a slice: only the second version knows slices.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, handle: c_int) -> c_int {
    code(device(handle).and_then(|d| put(uuid, octets(&d.card_uuid).unwrap_or_default())))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, handle: c_int) -> c_int {
    code(device(handle).and_then(|d| put(uuid, octets(&d.uuid).unwrap_or_default())))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetPCIBusId(text: *mut c_char, length: c_int, handle: c_int) -> c_int {
    // SAFETY: the API asks the caller for a buffer of `length` bytes.
    code(device(handle).and_then(|d| unsafe { put_text(text, length, &d.pci.cuda()) }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(text: *mut c_char, length: c_int, handle: c_int) -> c_int {
    // SAFETY: the API asks the caller for a buffer of `length` bytes.
    code(device(handle).and_then(|d| unsafe { put_text(text, length, &d.name) }))
}

/// The first version, whose 32 bits end at 4 GiB.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem(bytes: Out<c_uint>, handle: c_int) -> c_int {
    code(device(handle).and_then(|d| put(bytes, c_uint::try_from(d.memory).unwrap_or(c_uint::MAX))))
}

#[unsafe(no_mangle)]
extern "C" fn cuDeviceTotalMem_v2(bytes: Out<usize>, handle: c_int) -> c_int {
    code(device(handle).and_then(|d| put(bytes, d.memory as usize)))
}

/// The PCI ids only; a simulated card has no other attributes.
#[unsafe(no_mangle)]
extern "C" fn cuDeviceGetAttribute(value: Out<c_int>, attribute: c_int, handle: c_int) -> c_int {
    const PCI_BUS_ID: c_int = 33;
    const PCI_DEVICE_ID: c_int = 34;
    const PCI_DOMAIN_ID: c_int = 50;
    code(device(handle).and_then(|d| {
        let number = match attribute {
            PCI_BUS_ID => d.pci.bus.into(),
            PCI_DEVICE_ID => d.pci.device.into(),
            PCI_DOMAIN_ID => d.pci.domain as c_int,
            _ => return Err(CudaError::InvalidValue),
        };
        put(value, number)
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorName(error: c_int, text: Out<*const c_char>) -> c_int {
    describe(error, text, c"CUDA_SUCCESS", CudaError::name)
}

#[unsafe(no_mangle)]
extern "C" fn cuGetErrorString(error: c_int, text: Out<*const c_char>) -> c_int {
    describe(error, text, c"no error", CudaError::text)
}

/// An unknown code gives a null text and an invalid argument, as the API says.
fn describe(
    error: c_int,
    text: Out<*const c_char>,
    success: &'static CStr,
    words: fn(CudaError) -> &'static CStr,
) -> c_int {
    let known = match error {
        0 => Some(success),
        code => CudaError::from_code(code).map(words),
    };
    let written = put(text, known.map_or(ptr::null(), CStr::as_ptr));
    code(written.and(known.map(|_| ()).ok_or(CudaError::InvalidValue)))
}
