//! NVML's C side: result codes, structures, and ways to fill a caller's memory.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulonglong};
use std::mem::MaybeUninit;
use std::ptr;

/// An `nvmlReturn_t` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum Code {
    Uninitialized = 1,
    InvalidArgument = 2,
    NotSupported = 3,
    NoPermission = 4,
    NotFound = 6,
    InsufficientSize = 7,
    DriverNotLoaded = 9,
    Timeout = 10,
    GpuIsLost = 15,
    LibRmVersionMismatch = 18,
    ArgumentVersionMismatch = 25,
    Unknown = 999,
}

/// What NVML says in words; codes that the stand-in never gives are unknown to it.
pub fn words(code: c_int) -> &'static CStr {
    match code {
        0 => c"The operation was successful",
        1 => c"Uninitialized",
        2 => c"Invalid Argument",
        3 => c"Not Supported",
        4 => c"Insufficient Permissions",
        6 => c"Not Found",
        7 => c"Insufficient Size",
        9 => c"Driver Not Loaded",
        10 => c"Timeout",
        15 => c"GPU is lost",
        18 => c"Driver/library version mismatch",
        25 => c"Argument version mismatch",
        _ => c"Unknown Error",
    }
}

/// The `nvmlReturn_t` of an outcome.
pub fn code(outcome: Result<(), Code>) -> c_int {
    outcome.map_or_else(|code| code as c_int, |()| 0)
}

/// Where a caller wants a result; null is an invalid argument.
pub type Out<'a, T> = Option<&'a mut MaybeUninit<T>>;

/// What every byte of an answer is under the fault "garbage"; no UTF-8 begins with it.
const NONSENSE: u8 = 0xa5;

/// A type of C that any bytes make a value of.
///
/// # Safety
///
/// Numbers, and structures and arrays of numbers, only.
pub unsafe trait Plain: Copy {}

macro_rules! plain {
    ($($name:ty),*) => {$(
        // SAFETY: numbers, or structures and arrays of numbers.
        unsafe impl Plain for $name {}
    )*};
}
plain!(
    c_int,
    c_uint,
    usize,
    PciInfo,
    Memory,
    MemoryV2,
    Utilization,
    Attributes,
    GpuInstanceInfo,
    ExcludedDeviceInfo
);

pub fn put<T: Plain>(out: Out<T>, value: T) -> Result<(), Code> {
    out.ok_or(Code::InvalidArgument)?.write(value);
    Ok(())
}

pub fn put_nonsense<T: Plain>(out: Out<T>) -> Result<(), Code> {
    let out = out.ok_or(Code::InvalidArgument)?;
    // SAFETY: the memory is the caller's, one T; any bytes make a Plain value.
    unsafe { ptr::write_bytes(out.as_mut_ptr(), NONSENSE, 1) };
    Ok(())
}

/// Text with its NUL, or that it does not fit.
///
/// # Safety
///
/// `buffer` is null or has room for `length` bytes.
pub unsafe fn put_text(buffer: *mut c_char, length: c_uint, text: &str) -> Result<(), Code> {
    if buffer.is_null() {
        return Err(Code::InvalidArgument);
    }
    if text.len() >= length as usize {
        return Err(Code::InsufficientSize);
    }
    // SAFETY: the caller vouches for `length` bytes, and at most as many are written.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, text.len());
        buffer.add(text.len()).write(0);
    }
    Ok(())
}

/// A buffer full of nonsense, with a NUL at its very end.
///
/// # Safety
///
/// `buffer` is null or has room for `length` bytes.
pub unsafe fn put_nonsense_text(buffer: *mut c_char, length: c_uint) -> Result<(), Code> {
    if buffer.is_null() || length == 0 {
        return Err(Code::InvalidArgument);
    }
    // SAFETY: the caller vouches for `length` bytes.
    unsafe {
        ptr::write_bytes(buffer, NONSENSE, length as usize);
        buffer.add(length as usize - 1).write(0);
    }
    Ok(())
}

/// Text in a fixed field, cut to it, always ending in NUL.
pub fn field<const N: usize>(text: &str) -> [c_char; N] {
    let mut field = [0; N];
    for (to, from) in field[..N - 1].iter_mut().zip(text.bytes()) {
        *to = from as c_char;
    }
    field
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct PciInfo {
    pub bus_id_legacy: [c_char; 16],
    pub domain: c_uint,
    pub bus: c_uint,
    pub device: c_uint,
    pub pci_device_id: c_uint,
    pub pci_subsystem_id: c_uint,
    pub bus_id: [c_char; 32],
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Memory {
    pub total: c_ulonglong,
    pub free: c_ulonglong,
    pub used: c_ulonglong,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct MemoryV2 {
    pub version: c_uint,
    pub total: c_ulonglong,
    pub reserved: c_ulonglong,
    pub free: c_ulonglong,
    pub used: c_ulonglong,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct Utilization {
    pub gpu: c_uint,
    pub memory: c_uint,
}

#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct Attributes {
    pub multiprocessor_count: c_uint,
    pub shared_copy_engine_count: c_uint,
    pub shared_decoder_count: c_uint,
    pub shared_encoder_count: c_uint,
    pub shared_jpeg_count: c_uint,
    pub shared_ofa_count: c_uint,
    pub gpu_instance_slice_count: c_uint,
    pub compute_instance_slice_count: c_uint,
    pub memory_size_mb: c_ulonglong,
}

/// `nvmlProcessInfo_t` of the second and third version of the calls.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ProcessInfo {
    pub pid: c_uint,
    pub used_gpu_memory: c_ulonglong,
    pub gpu_instance_id: c_uint,
    pub compute_instance_id: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct GpuInstanceInfo {
    pub device: usize,
    pub id: c_uint,
    pub profile_id: c_uint,
    pub placement_start: c_uint,
    pub placement_size: c_uint,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ExcludedDeviceInfo {
    pub pci: PciInfo,
    pub uuid: [c_char; 80],
}
