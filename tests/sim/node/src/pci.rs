//! A PCI address, in the three spellings that sysfs, CUDA and NVML use.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Ordered as numbers: domain, bus, device, function. Displayed as sysfs writes it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(try_from = "String", into = "String")]
pub struct Pci {
    pub domain: u32,
    pub bus: u8,
    pub device: u8,
    pub function: u8,
}

#[derive(Debug, Error, PartialEq, Eq)]
#[error("'{0}' is not a PCI address like 0000:c1:00.0")]
pub struct PciError(String);

impl Pci {
    /// As cuDeviceGetPCIBusId writes it: `0000:C1:00.0`.
    pub fn cuda(&self) -> String {
        self.to_string().to_uppercase()
    }

    /// As NVML's `busId` has it: a domain of eight digits, upper case.
    pub fn nvml(&self) -> String {
        let Pci { domain, bus, device, function } = self;
        format!("{domain:08X}:{bus:02X}:{device:02X}.{function:X}")
    }
}

impl fmt::Display for Pci {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Pci { domain, bus, device, function } = self;
        write!(f, "{domain:04x}:{bus:02x}:{device:02x}.{function:x}")
    }
}

impl FromStr for Pci {
    type Err = PciError;

    fn from_str(text: &str) -> Result<Pci, PciError> {
        let number = |digits: &str| u32::from_str_radix(digits, 16).ok();
        let byte = |digits: &str| u8::from_str_radix(digits, 16).ok();
        let parse = || {
            let (rest, function) = text.split_once('.')?;
            let mut parts = rest.split(':');
            let pci = Pci {
                domain: number(parts.next()?)?,
                bus: byte(parts.next()?)?,
                device: byte(parts.next()?)?,
                function: byte(function)?,
            };
            parts.next().is_none().then_some(pci)
        };
        parse().ok_or_else(|| PciError(text.into()))
    }
}

impl TryFrom<String> for Pci {
    type Error = PciError;

    fn try_from(text: String) -> Result<Pci, PciError> {
        text.parse()
    }
}

impl From<Pci> for String {
    fn from(pci: Pci) -> String {
        pci.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_is_the_same_address() {
        let pci: Pci = "0000B183:0a:00.0".parse().unwrap();
        assert_eq!(pci.to_string(), "b183:0a:00.0");
        assert_eq!(pci.cuda(), "B183:0A:00.0");
        assert_eq!(pci.nvml(), "0000B183:0A:00.0");
        assert_eq!(pci.nvml().parse(), Ok(pci));
        for wrong in ["", "c1:00.0", "0000:c1:00", "0:1:2:3.0", "0000:1c1:00.0"] {
            assert!(wrong.parse::<Pci>().is_err(), "{wrong}");
        }
    }
}
