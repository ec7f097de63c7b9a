//! CUDA's side of the promise: how the driver reads a process's environment,
//! and what it then enumerates.
//!
//! [`visible`] is the driver's reading of CUDA_VISIBLE_DEVICES as a pure
//! function that can say where and why a list ends; [`Answer`] is what the
//! driver itself said when it was asked. The two are compared, never mixed.

pub mod visible;

use serde::{Deserialize, Serialize};

use crate::device::{PciAddress, Uuid};

/// What the driver library said.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The file that the loader took for `libcuda.so.1`.
    pub library: Option<String>,
    /// As CUDA counts: 12090 is 12.9.
    pub version: Option<i32>,
    /// A device's place is its CUDA index.
    pub devices: Vec<CudaDevice>,
    /// The call that ended the enumeration, if one did.
    pub error: Option<CallError>,
}

/// One device as CUDA enumerates it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CudaDevice {
    pub uuid: Uuid,
    pub pci: PciAddress,
    pub name: String,
    /// Bytes.
    pub memory: u64,
}

/// A call of the driver's API that failed; no code where the library or the
/// function is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallError {
    pub call: String,
    pub code: Option<i32>,
    pub name: String,
}

impl Answer {
    /// Whether the driver was asked and answered; that there is no device
    /// (100) or that the list is void (101) are answers too.
    pub fn is_answer(&self) -> bool {
        self.error.as_ref().is_none_or(|error| matches!(error.code, Some(100 | 101)))
    }

    pub fn uuids(&self) -> Vec<Uuid> {
        self.devices.iter().map(|device| device.uuid.clone()).collect()
    }
}

impl std::fmt::Display for CallError {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self.code {
            Some(code) => write!(f, "{} answers {code}, {}", self.call, self.name),
            None => write!(f, "{}: {}", self.call, self.name),
        }
    }
}
