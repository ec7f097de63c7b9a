//! What a process may open: asked from the kernel, never assumed.
//!
//! A simulated card is a character device 195:N without a driver behind it.
//! When the device cgroup allows it, open gets past the permission checks and
//! finds no driver (ENXIO); when not, it ends at EPERM. So "no such device" is
//! a yes here. With a real driver open simply succeeds.

use std::env;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A device node that stands for a card or for a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeviceFile {
    /// `nvidiaN`
    Card(u32),
    /// `nvidia-caps/nvidia-capN`
    Cap(u32),
}

impl DeviceFile {
    pub fn path(self, dev: &Path) -> PathBuf {
        match self {
            DeviceFile::Card(minor) => dev.join(format!("nvidia{minor}")),
            DeviceFile::Cap(minor) => dev.join(format!("nvidia-caps/nvidia-cap{minor}")),
        }
    }
}

/// `/dev`, or the folder of device files that `SIM_DEV` names.
pub fn dev_root() -> PathBuf {
    env::var_os("SIM_DEV").map_or_else(|| "/dev".into(), PathBuf::from)
}

/// Whether this process may open the file under [`dev_root`].
pub fn openable(file: DeviceFile) -> bool {
    let attempt = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC)
        .open(file.path(&dev_root()));
    match attempt {
        Ok(_) => true,
        Err(error) => matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENODEV)),
    }
}

/// The same question asked without opening: faccessat for reading and writing.
pub fn accessible(file: DeviceFile) -> bool {
    let Ok(path) = CString::new(file.path(&dev_root()).as_os_str().as_bytes()) else {
        return false;
    };
    // SAFETY: the path is a NUL-terminated string that outlives the call.
    unsafe { libc::faccessat(libc::AT_FDCWD, path.as_ptr(), libc::R_OK | libc::W_OK, 0) == 0 }
}
