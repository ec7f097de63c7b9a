//! fd 2, put elsewhere and read back.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;

/// No more than this is read back.
const LIMIT: usize = 4 << 20;

/// A file in memory that takes what is written to fd 2.
pub(crate) struct Capture(File);

impl Capture {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: a name and a flag; the descriptor is fresh and ours.
        let fd = unsafe { libc::memfd_create(c"stderr".as_ptr(), libc::MFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        Ok(Self(unsafe { File::from_raw_fd(fd) }))
    }

    /// Makes this what fd 2 is, for good: in a forked process.
    pub(crate) fn take_stderr(&self) {
        redirect(self.0.as_raw_fd());
    }

    /// Makes this what fd 2 is until the answer is dropped, and empties it first.
    pub(crate) fn take_stderr_for_now(&self) -> io::Result<Restore> {
        self.0.set_len(0)?;
        // SAFETY: seeking our own file.
        unsafe { libc::lseek(self.0.as_raw_fd(), 0, libc::SEEK_SET) };
        // SAFETY: fcntl on a number; the copy is fresh and ours.
        let before = unsafe {
            let copy = libc::fcntl(2, libc::F_DUPFD_CLOEXEC, 3);
            if copy < 0 {
                return Err(io::Error::last_os_error());
            }
            OwnedFd::from_raw_fd(copy)
        };
        redirect(self.0.as_raw_fd());
        Ok(Restore(before))
    }

    pub(crate) fn text(&self) -> Vec<u8> {
        let length = self.0.metadata().map_or(0, |data| data.len());
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(LIMIT).min(LIMIT)];
        let read = self.0.read_at(&mut bytes, 0).unwrap_or(0);
        bytes.truncate(read);
        bytes
    }

    /// How many of this process's descriptors are this file.
    pub(crate) fn copies(&self) -> usize {
        let own = inode(self.0.as_raw_fd());
        open_files().into_iter().filter(|&fd| inode(fd) == own).count()
    }
}

/// Gives fd 2 back when dropped.
pub(crate) struct Restore(OwnedFd);

impl Drop for Restore {
    fn drop(&mut self) {
        redirect(self.0.as_raw_fd());
    }
}

fn redirect(fd: RawFd) {
    // SAFETY: both are open descriptors of this process.
    unsafe { libc::dup2(fd, 2) };
}

fn inode(fd: RawFd) -> Option<(u64, u64)> {
    // SAFETY: stat is plain data that fstat fills or refuses.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut stat) == 0).then_some((stat.st_dev, stat.st_ino))
    }
}

pub(crate) fn open_files() -> Vec<RawFd> {
    let Ok(folder) = std::fs::read_dir("/proc/self/fd") else {
        return Vec::new();
    };
    folder.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Open files above 2 that a program started now would inherit.
pub(crate) fn inheritable() -> Vec<RawFd> {
    let mut files = open_files();
    files.retain(|&fd| {
        // SAFETY: reading a descriptor's flags; a closed one is an error.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        fd > 2 && flags >= 0 && flags & libc::FD_CLOEXEC == 0
    });
    files
}
