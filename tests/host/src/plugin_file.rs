//! A plugin file, loaded: its hooks and its version.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

pub(crate) type Hook = unsafe extern "C" fn(*mut c_void, c_int, *mut *mut c_char) -> c_int;

/// All hooks that spank.h knows.
const HOOKS: [&str; 12] = [
    "init",
    "job_prolog",
    "init_post_opt",
    "local_user_init",
    "user_init",
    "task_init_privileged",
    "task_init",
    "task_post_fork",
    "task_exit",
    "job_epilog",
    "slurmd_exit",
    "exit",
];

/// All functions that slurm.c offers.
const OFFERED: [&str; 14] = [
    "slurm_api_version",
    "spank_context",
    "spank_get_item",
    "spank_getenv",
    "spank_setenv",
    "spank_unsetenv",
    "spank_option_register",
    "slurm_spank_log",
    "slurm_error",
    "slurm_info",
    "slurm_verbose",
    "slurm_debug",
    "slurm_debug2",
    "slurm_debug3",
];

/// The gpu-align plugin file that cargo built along with the test now running.
pub fn built_plugin() -> PathBuf {
    let test = std::env::current_exe().unwrap_or_default();
    test.with_file_name("libgpu_align.so")
}

/// A loaded plugin file. It stays loaded: a file that Slurm unloads is not played again either.
pub(crate) struct PluginFile {
    hooks: BTreeMap<&'static str, Hook>,
    pub(crate) version: u32,
}

impl PluginFile {
    /// Loads the file as a program would that lacks the functions in `missing`.
    pub(crate) fn load(path: &Path, missing: &[String]) -> io::Result<Self> {
        if missing.is_empty() {
            return Self::open(path);
        }
        let changed = without(path, missing)?;
        Self::open(changed.path())
    }

    fn open(path: &Path) -> io::Result<Self> {
        let text = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: loading runs the file's constructors: that is what this host is for.
        let library = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
        if library.is_null() {
            // SAFETY: after a failure dlerror gives a C string.
            let why = unsafe { CStr::from_ptr(libc::dlerror()) };
            return Err(io::Error::other(why.to_string_lossy().into_owned()));
        }
        let symbol = |name: &str| {
            let name = CString::new(name).unwrap_or_default();
            // SAFETY: the library is loaded and `name` a C string.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            (!found.is_null()).then_some(found)
        };
        for needed in ["plugin_name", "plugin_type"] {
            if symbol(needed).is_none() {
                let why = format!("{} is no Slurm plugin: it has no {needed}", path.display());
                return Err(io::Error::other(why));
            }
        }
        let version = symbol("plugin_version")
            .ok_or_else(|| io::Error::other(format!("{} has no plugin_version", path.display())))?;
        let hooks = HOOKS
            .iter()
            .filter_map(|&hook| {
                let found = symbol(&format!("slurm_spank_{hook}"))?;
                // SAFETY: spank.h gives all these symbols this type.
                Some((hook, unsafe { std::mem::transmute::<*mut c_void, Hook>(found) }))
            })
            .collect();
        Ok(Self {
            hooks,
            // SAFETY: spank.h: an unsigned int.
            version: unsafe { version.cast::<u32>().read() },
        })
    }

    pub(crate) fn hook(&self, name: &str) -> Option<Hook> {
        self.hooks.get(name).copied()
    }
}

/// A copy of the file that asks for other names than those in `missing`. Functions are looked up
/// by name while the plugin runs, so a name that nobody offers is a function that is not there.
fn without(path: &Path, missing: &[String]) -> io::Result<NamedTempFile> {
    let mut bytes = fs::read(path)?;
    for name in missing {
        if !OFFERED.contains(&name.as_str()) {
            let why = format!("missing: this host never offers {name:?}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let wanted = [name.as_bytes(), b"\0"].concat();
        let places: Vec<usize> = memchr::memmem::find_iter(&bytes, &wanted).collect();
        for place in places {
            bytes[place] = b'X';
        }
    }
    let mut copy = NamedTempFile::new()?;
    copy.write_all(&bytes)?;
    copy.flush()?;
    Ok(copy)
}
