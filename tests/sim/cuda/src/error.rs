//! The driver API's result codes that enumeration can end in.

use std::ffi::CStr;

/// A `CUresult` other than success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
pub enum CudaError {
    InvalidValue = 1,
    NotInitialized = 3,
    /// Nothing to enumerate: no card reachable, or none named.
    NoDevice = 100,
    /// A device ordinal that does not exist; from `cuInit`, a card named twice.
    InvalidDevice = 101,
    /// The node file cannot be read as one.
    Unknown = 999,
}

impl CudaError {
    pub fn code(self) -> i32 {
        self as i32
    }

    pub fn name(self) -> &'static CStr {
        match self {
            CudaError::InvalidValue => c"CUDA_ERROR_INVALID_VALUE",
            CudaError::NotInitialized => c"CUDA_ERROR_NOT_INITIALIZED",
            CudaError::NoDevice => c"CUDA_ERROR_NO_DEVICE",
            CudaError::InvalidDevice => c"CUDA_ERROR_INVALID_DEVICE",
            CudaError::Unknown => c"CUDA_ERROR_UNKNOWN",
        }
    }

    pub fn text(self) -> &'static CStr {
        match self {
            CudaError::InvalidValue => c"invalid argument",
            CudaError::NotInitialized => c"initialization error",
            CudaError::NoDevice => c"no CUDA-capable device is detected",
            CudaError::InvalidDevice => c"invalid device ordinal",
            CudaError::Unknown => c"unknown error",
        }
    }

    pub(crate) fn from_code(code: i32) -> Option<CudaError> {
        use CudaError::*;
        [InvalidValue, NotInitialized, NoDevice, InvalidDevice, Unknown]
            .into_iter()
            .find(|error| error.code() == code)
    }
}
