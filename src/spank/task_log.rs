//! Local task 0's stderr, kept open so that any task of the node can write the block there.
//!
//! In `user_init` slurmstepd's fd 2 *is* local task 0's stderr. A copy with close-on-exec reaches
//! every forked task and no program. slurmstepd must drop its own copy in the last task's
//! `task_post_fork`, or the stream never ends. A reader that does not read must not hang a task's
//! start: what cannot be written by the deadline is dropped.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// How long a full stream is waited for, over all of one text.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most that is written at once. poll calls a pipe writable when a whole page is free.
const CHUNK: usize = 4096;

/// A copy of a stderr that is not handed on to programs.
#[derive(Debug)]
pub struct TaskLog(OwnedFd);

impl TaskLog {
    /// A copy of what fd 2 is now.
    pub fn of_stderr() -> io::Result<Self> {
        Self::copy(libc::STDERR_FILENO)
    }

    fn copy(fd: RawFd) -> io::Result<Self> {
        // SAFETY: fcntl on a number: a bad one is an error, not undefined.
        let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        if copy < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: fcntl just made this descriptor and nobody else owns it.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(copy) }))
    }

    /// Writes the whole text, or gives up after a second.
    pub fn write_all(&self, text: &str) -> io::Result<()> {
        self.write_all_within(text.as_bytes(), PATIENCE)
    }

    fn write_all_within(&self, mut bytes: &[u8], patience: Duration) -> io::Result<()> {
        let deadline = Instant::now() + patience;
        let _quiet = SigpipeBlocked::new();
        while !bytes.is_empty() {
            self.wait_writable(deadline)?;
            match self.write_now(&bytes[..bytes.len().min(CHUNK)]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(why) if why.kind() == io::ErrorKind::Interrupted => {}
                Err(why) if why.kind() == io::ErrorKind::WouldBlock => {}
                Err(why) => return Err(why),
            }
        }
        Ok(())
    }

    fn wait_writable(&self, deadline: Instant) -> io::Result<()> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            let mut ask =
                libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
            let millis = i32::try_from(left.as_millis()).unwrap_or(i32::MAX).max(1);
            // SAFETY: one pollfd, ours.
            match unsafe { libc::poll(&raw mut ask, 1, millis) } {
                0 => return Err(io::ErrorKind::TimedOut.into()),
                1 if ask.revents & libc::POLLOUT != 0 => return Ok(()),
                1 => return Err(io::ErrorKind::BrokenPipe.into()),
                _ => {
                    let why = io::Error::last_os_error();
                    if why.kind() != io::ErrorKind::Interrupted {
                        return Err(why);
                    }
                }
            }
        }
    }

    /// One write that does not wait even if another writer was faster. O_NONBLOCK would do the
    /// same, but the program shares the open file and would inherit it.
    fn write_now(&self, bytes: &[u8]) -> io::Result<usize> {
        let fd = self.0.as_raw_fd();
        let part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let written = match file_type(fd) {
            // SAFETY: one iovec over `bytes`, which is only read; -1: no position.
            libc::S_IFIFO => unsafe {
                libc::pwritev2(fd, &raw const part, 1, -1, libc::RWF_NOWAIT)
            },
            // SAFETY: `bytes` is only read.
            libc::S_IFSOCK => unsafe {
                libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT)
            },
            _ => return plain_write(fd, bytes),
        };
        match usize::try_from(written) {
            Ok(written) => Ok(written),
            Err(_) => match io::Error::last_os_error() {
                // Kernels before 5.14 or so know no RWF_NOWAIT on pipes.
                why if matches!(
                    why.raw_os_error(),
                    Some(libc::EOPNOTSUPP | libc::EINVAL | libc::ENOSYS)
                ) =>
                {
                    plain_write(fd, bytes)
                }
                why => Err(why),
            },
        }
    }
}

fn plain_write(fd: RawFd, bytes: &[u8]) -> io::Result<usize> {
    // SAFETY: `bytes` is only read.
    let written = unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) };
    usize::try_from(written).map_err(|_| io::Error::last_os_error())
}

fn file_type(fd: RawFd) -> libc::mode_t {
    // SAFETY: stat is plain data, valid when zero, and fstat fills it or fails.
    let (code, stat) = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &raw mut stat), stat)
    };
    if code == 0 { stat.st_mode & libc::S_IFMT } else { 0 }
}

/// While this lives, writing to a stream whose reader has gone is an error and not the end of the
/// task: in a task SIGPIPE has its default action.
struct SigpipeBlocked {
    before: libc::sigset_t,
    pending_before: bool,
}

impl SigpipeBlocked {
    fn new() -> Self {
        // SAFETY: signal sets are plain data, filled by the calls; only this thread's mask changes.
        unsafe {
            let mut before = std::mem::zeroed();
            let pending_before = sigpipe_pending();
            let set = sigpipe_only();
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, &raw mut before);
            Self { before, pending_before }
        }
    }
}

impl Drop for SigpipeBlocked {
    fn drop(&mut self) {
        // SAFETY: takes back what `new` did, after removing a SIGPIPE that our own write raised.
        unsafe {
            if !self.pending_before && sigpipe_pending() {
                let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
                let set = sigpipe_only();
                libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const at_once);
            }
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.before, std::ptr::null_mut());
        }
    }
}

fn sigpipe_only() -> libc::sigset_t {
    // SAFETY: a signal set is plain data, made valid by sigemptyset.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGPIPE);
        set
    }
}

fn sigpipe_pending() -> bool {
    // SAFETY: the set is plain data that sigpending fills.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigpending(&raw mut set) == 0 && libc::sigismember(&raw const set, libc::SIGPIPE) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn the_copy_is_close_on_exec_and_above_2() {
        let log = TaskLog::of_stderr().expect("a copy");
        assert!(log.0.as_raw_fd() >= 3);
        // SAFETY: reading a descriptor's flags.
        let flags = unsafe { libc::fcntl(log.0.as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }

    #[test]
    fn a_text_longer_than_the_pipe_arrives_whole() {
        let (mut reader, writer) = pipe().expect("a pipe");
        let log = TaskLog::copy(writer.as_raw_fd()).expect("a copy");
        drop(writer);
        let text = "gpu-align: \n".repeat(20_000);
        let sent = text.clone();
        let thread = std::thread::spawn(move || log.write_all(&sent));
        let mut got = String::new();
        reader.read_to_string(&mut got).expect("the pipe's end");
        thread.join().expect("no panic").expect("all written");
        assert!(got == text);
    }

    #[test]
    fn a_reader_that_does_not_read_costs_the_deadline_and_no_more() {
        let (_reader, writer) = pipe().expect("a pipe");
        let log = TaskLog::copy(writer.as_raw_fd()).expect("a copy");
        let start = Instant::now();
        let result = log.write_all_within(&vec![b'x'; 1 << 20], Duration::from_millis(50));
        assert_eq!(result.map_err(|why| why.kind()), Err(io::ErrorKind::TimedOut));
        assert!(start.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn a_reader_that_has_gone_is_an_error_and_no_signal() {
        let (reader, writer) = pipe().expect("a pipe");
        let log = TaskLog::copy(writer.as_raw_fd()).expect("a copy");
        drop(reader);
        let result = log.write_all("gpu-align: nobody reads this\n");
        assert_eq!(result.map_err(|why| why.kind()), Err(io::ErrorKind::BrokenPipe));
        assert!(!sigpipe_pending());
    }

    #[test]
    fn a_file_is_appended_to_where_fd_2_stood() {
        let mut file = tempfile::tempfile().expect("a file");
        let log = TaskLog::copy(file.as_raw_fd()).expect("a copy");
        log.write_all("one\n").expect("written");
        log.write_all("two\n").expect("written");
        assert_eq!(text_of(&mut file), "one\ntwo\n");
    }

    fn pipe() -> io::Result<(File, OwnedFd)> {
        let mut ends = [0; 2];
        // SAFETY: room for two descriptors, which nobody else owns once they are made.
        unsafe {
            if libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) != 0 {
                return Err(io::Error::last_os_error());
            }
            Ok((File::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])))
        }
    }

    fn text_of(file: &mut File) -> String {
        use std::io::{Seek, SeekFrom};
        file.seek(SeekFrom::Start(0)).expect("a seek");
        let mut text = String::new();
        file.read_to_string(&mut text).expect("the file");
        text
    }
}
