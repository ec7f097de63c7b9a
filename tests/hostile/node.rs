//! A node with NVIDIA cards, for the calling thread alone: a private mount namespace with its own
//! /proc/driver and /dev. Nothing in the plugin knows that it is not real.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;

use spank_host::Bytes;
use tempfile::TempDir;

use crate::inputs::DRIVER;

const NVIDIA_MAJOR: u32 = 195;

/// What stands in the place of a card's `information`.
#[derive(Clone, Debug)]
pub enum Information {
    Content(Bytes),
    /// A folder of that name, which opens but cannot be read.
    Folder,
    /// A pipe that nobody writes to, which would hold up a careless reader for ever.
    Pipe,
    /// A link to itself.
    Loop,
    Nothing,
}

pub struct Node {
    folder: TempDir,
}

impl Node {
    /// Moves this thread to a node without cards; `None`, and a word why, for who is not root.
    pub fn enter() -> Option<Node> {
        // SAFETY: geteuid has no preconditions.
        if unsafe { libc::geteuid() } != 0 {
            eprintln!(
                "SKIPPED: only root can simulate a node with cards (a private mount namespace)"
            );
            return None;
        }
        match Node::build() {
            Ok(node) => Some(node),
            Err(why) => {
                eprintln!("SKIPPED: no node with cards can be simulated here: {why}");
                None
            }
        }
    }

    fn build() -> io::Result<Node> {
        let folder = tempfile::tempdir()?;
        // SAFETY: changes this thread's view of the file systems only.
        check(unsafe { libc::unshare(libc::CLONE_NEWNS) })?;
        mount("none", Path::new("/"), "", libc::MS_REC | libc::MS_PRIVATE)?;
        mount("tmpfs", folder.path(), "tmpfs", 0)?;
        let node = Node { folder };
        for part in ["driver/nvidia/gpus", "dev", "empty"] {
            fs::create_dir_all(node.path(part))?;
        }
        let version = format!(
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {DRIVER}  Release Build\n"
        );
        fs::write(node.path("driver/nvidia/version"), version)?;
        make_device(&node.path("dev/null"), 1, 3)?;
        make_device(&node.path("dev/urandom"), 1, 9)?;
        bind(&node.path("driver"), "/proc/driver")?;
        bind(&node.path("dev"), "/dev")?;
        // This machine's own Slurm and cards have no say.
        for place in ["/etc/slurm", "/run/slurm", "/sys/bus/pci"] {
            if Path::new(place).is_dir() {
                bind(&node.path("empty"), place)?;
            }
        }
        Ok(node)
    }

    /// A path in the node's own folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Replaces the driver's cards by those in `tree`: folder name and content.
    pub fn set_driver(&self, tree: &[(String, Information)]) -> io::Result<()> {
        write_driver(&self.path("driver/nvidia"), tree)
    }

    /// Makes `minors` the only cards that can be opened.
    pub fn set_devices(&self, minors: &[u32]) -> io::Result<()> {
        for entry in fs::read_dir("/dev")?.flatten() {
            if entry.file_name().as_bytes().starts_with(b"nvidia") {
                fs::remove_file(entry.path())?;
            }
        }
        minors.iter().try_for_each(|minor| {
            make_device(Path::new(&format!("/dev/nvidia{minor}")), NVIDIA_MAJOR, *minor)
        })
    }
}

/// Writes `<driver>/gpus/<name>/information` for each of the tree, and removes all others.
pub fn write_driver(driver: &Path, tree: &[(String, Information)]) -> io::Result<()> {
    let gpus = driver.join("gpus");
    let _ = fs::remove_dir_all(&gpus);
    fs::create_dir_all(&gpus)?;
    for (name, information) in tree {
        let folder = gpus.join(name);
        fs::create_dir_all(&folder)?;
        let path = folder.join("information");
        match information {
            Information::Content(bytes) => fs::write(path, &bytes.0)?,
            Information::Folder => fs::create_dir_all(path)?,
            Information::Loop => {
                let _ = std::os::unix::fs::symlink(&path, &path);
            }
            Information::Pipe => {
                let path = c_path(&path)?;
                // SAFETY: a C string and a mode. One that exists already is as good.
                unsafe { libc::mkfifo(path.as_ptr(), 0o600) };
            }
            Information::Nothing => {}
        }
    }
    Ok(())
}

fn check(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn c_path(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn bind(from: &Path, to: &str) -> io::Result<()> {
    mount(&from.to_string_lossy(), Path::new(to), "", libc::MS_BIND)
}

fn mount(source: &str, target: &Path, kind: &str, flags: libc::c_ulong) -> io::Result<()> {
    let (source, target, kind) = (CString::new(source)?, c_path(target)?, CString::new(kind)?);
    // SAFETY: three C strings, and no data.
    check(unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind.as_ptr(), flags, ptr::null())
    })
}

fn make_device(path: &Path, major: u32, minor: u32) -> io::Result<()> {
    let path = c_path(path)?;
    let number = libc::makedev(major, minor);
    // SAFETY: a C string and numbers.
    unsafe {
        check(libc::mknod(path.as_ptr(), libc::S_IFCHR | 0o666, number))?;
        // The umask has taken something away.
        check(libc::chmod(path.as_ptr(), 0o666))
    }
}
