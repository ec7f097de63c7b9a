//! Another program, run for its output with a deadline: the helper that asks
//! NVML, which may hang, crash or answer nonsense.
//!
//! Invariant: [`run`] returns within its deadline and [`GRACE`], and leaves
//! neither a process nor a zombie, unless the kernel itself cannot end the
//! child; then it is left to whoever collects orphans.

use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use thiserror::Error;

/// How long a killed child may take to go. One that sleeps in the kernel for
/// good is not waited for.
pub const GRACE: Duration = Duration::from_millis(150);
/// Between looks at a child that has closed its output but not ended yet.
const LOOK: Duration = Duration::from_micros(200);

#[derive(Debug, Error)]
pub enum ChildError {
    #[error("{program} cannot be started ({error})")]
    Start { program: PathBuf, error: io::Error },
    #[error("{program} did not answer within {seconds} s", seconds = .allowed.as_secs_f32())]
    Deadline { program: PathBuf, allowed: Duration },
    #[error("{program} was ended by signal {signal}")]
    Signal { program: PathBuf, signal: i32 },
    #[error("{program} wrote more than {limit} bytes")]
    TooLong { program: PathBuf, limit: usize },
    #[error("{program} cannot be listened to ({error})")]
    Listen { program: PathBuf, error: io::Error },
}

/// What a child left.
#[derive(Debug)]
pub struct Output {
    /// Its exit code; a child that a signal ended is a [`ChildError::Signal`].
    pub code: i32,
    pub stdout: Vec<u8>,
}

/// Whose process group a child is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// A new one, killed as a whole.
    Own,
    /// Its caller's: who ends the caller's group ends the child, too. For a child
    /// that starts nothing.
    Callers,
}

/// Runs `program` with an empty environment, in a process group of its own,
/// nothing on its stdin and its stderr thrown away.
///
/// At the deadline, or past `limit` bytes, the whole group is killed.
pub fn run(
    program: &Path,
    arguments: &[&str],
    allowed: Duration,
    limit: usize,
) -> Result<Output, ChildError> {
    run_with(program, arguments, &[], Group::Own, allowed, limit)
}

/// The same with an environment, and in either group.
pub fn run_with(
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &OsStr)],
    group: Group,
    allowed: Duration,
    limit: usize,
) -> Result<Output, ChildError> {
    let deadline = Instant::now() + allowed;
    let mut command = Command::new(program);
    if group == Group::Own {
        command.process_group(0);
    }
    let mut child = command
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| ChildError::Start { program: program.into(), error })?;
    let outcome = listen(&mut child, program, allowed, deadline, limit);
    let outcome =
        outcome.and_then(|stdout| Ok((stdout, end(&mut child, program, allowed, deadline)?)));
    let (stdout, status) = match outcome {
        Ok(done) => done,
        Err(error) => {
            kill(&mut child, group);
            return Err(error);
        }
    };
    match (status.code(), status.signal()) {
        (Some(code), _) => Ok(Output { code, stdout }),
        (None, signal) => {
            Err(ChildError::Signal { program: program.into(), signal: signal.unwrap_or(0) })
        }
    }
}

/// All of the child's output, which ends with it or with its deadline.
fn listen(
    child: &mut Child,
    program: &Path,
    allowed: Duration,
    deadline: Instant,
    limit: usize,
) -> Result<Vec<u8>, ChildError> {
    let failed = |error: io::Error| ChildError::Listen { program: program.into(), error };
    let mut pipe = child.stdout.take().ok_or_else(|| failed(io::Error::other("no pipe")))?;
    let mut bytes = Vec::new();
    let mut part = [0; 16 * 1024];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ChildError::Deadline { program: program.into(), allowed });
        }
        // Only a clock of i64 seconds could overflow here.
        let left = Timespec::try_from(left).map_err(|e| failed(io::Error::other(e)))?;
        match poll(&mut [PollFd::new(&pipe, PollFlags::IN)], Some(&left)) {
            Ok(0) => continue,
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => continue,
            Err(errno) => return Err(failed(errno.into())),
        }
        match pipe.read(&mut part) {
            Ok(0) => return Ok(bytes),
            Ok(n) => bytes.extend_from_slice(&part[..n]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(failed(error)),
        }
        if bytes.len() > limit {
            return Err(ChildError::TooLong { program: program.into(), limit });
        }
    }
}

/// The exit status of a child that has closed its output.
fn end(
    child: &mut Child,
    program: &Path,
    allowed: Duration,
    deadline: Instant,
) -> Result<ExitStatus, ChildError> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(LOOK),
            Ok(None) => return Err(ChildError::Deadline { program: program.into(), allowed }),
            // Somebody else collected it: the host process ignores SIGCHLD.
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => {
                return Ok(ExitStatus::from_raw(0));
            }
            Err(error) => return Err(ChildError::Listen { program: program.into(), error }),
        }
    }
}

/// Kills the child, with its process group if that is its own, and collects it.
/// Its id cannot have been given to another process, since it has not been collected.
fn kill(child: &mut Child, group: Group) {
    if let Some(id) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        // It may have ended just now.
        let _ = match group {
            Group::Own => kill_process_group(id, Signal::KILL),
            Group::Callers => kill_process(id, Signal::KILL),
        };
    }
    let until = Instant::now() + GRACE;
    while Instant::now() < until && matches!(child.try_wait(), Ok(None)) {
        thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, allowed: Duration, limit: usize) -> Result<Output, ChildError> {
        run(Path::new("/bin/sh"), &["-c", script], allowed, limit)
    }

    const LONG: Duration = Duration::from_secs(20);
    const SHORT: Duration = Duration::from_millis(100);

    #[test]
    fn output_and_exit_code_come_back() {
        let output = shell("echo out; echo err >&2; exit 3", LONG, 100).unwrap();
        assert_eq!((output.code, output.stdout.as_slice()), (3, b"out\n".as_slice()));
    }

    #[test]
    fn the_environment_is_empty_and_stdin_too() {
        let env = run(Path::new("/usr/bin/env"), &[], LONG, 100).unwrap();
        assert_eq!(String::from_utf8(env.stdout).unwrap(), "");
        assert_eq!(shell("cat; pwd", LONG, 100).unwrap().stdout, b"/\n");
    }

    #[test]
    fn at_the_deadline_the_whole_group_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let pids = folder.path().join("pids");
        let script = format!("sleep 1000 & echo $! $$ > {}; wait", pids.display());
        let start = Instant::now();
        let error = shell(&script, Duration::from_millis(500), 100).unwrap_err();
        assert!(start.elapsed() < Duration::from_millis(500) + GRACE + Duration::from_millis(200));
        assert_eq!(error.to_string(), "/bin/sh did not answer within 0.5 s");
        for pid in std::fs::read_to_string(pids).unwrap().split_whitespace() {
            let gone = || match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
                // A grandchild may still wait for whoever collects orphans.
                Ok(stat) => stat.rsplit(") ").next().is_some_and(|s| s.starts_with(['Z', 'X'])),
                Err(_) => true,
            };
            let until = Instant::now() + Duration::from_secs(5);
            while !gone() && Instant::now() < until {
                thread::yield_now();
            }
            assert!(gone(), "{pid}");
        }
    }

    #[test]
    fn a_child_in_its_callers_group_is_killed_alone() {
        let stay = ["-c", "exec sleep 1000"];
        let shell = Path::new("/bin/sh");
        let error = run_with(shell, &stay, &[], Group::Callers, SHORT, 100).unwrap_err();
        assert!(matches!(error, ChildError::Deadline { .. }), "{error}");
        let own = rustix::process::getpgrp().as_raw_nonzero().to_string();
        for (group, same) in [(Group::Callers, true), (Group::Own, false)] {
            let output = run_with(shell, &["-c", "ps -o pgid= -p $$"], &[], group, LONG, 100);
            let said = String::from_utf8(output.unwrap().stdout).unwrap();
            assert_eq!(said.trim() == own, same, "{group:?}");
        }
    }

    #[test]
    fn a_child_that_closes_its_output_but_stays_is_killed_too() {
        let error = shell("exec >&-; exec sleep 1000", SHORT, 100).unwrap_err();
        assert!(matches!(error, ChildError::Deadline { .. }), "{error}");
    }

    #[test]
    fn endless_output_is_cut() {
        let error = shell("exec cat /dev/zero", LONG, 1 << 20).unwrap_err();
        assert!(matches!(error, ChildError::TooLong { .. }), "{error}");
    }

    #[test]
    fn a_crash_and_a_missing_program_are_named() {
        let error = shell("kill -SEGV $$", LONG, 100).unwrap_err();
        assert_eq!(error.to_string(), "/bin/sh was ended by signal 11");
        let error = run(Path::new("/no/such/gpu-align"), &[], LONG, 100).unwrap_err();
        assert!(error.to_string().starts_with("/no/such/gpu-align cannot be started ("), "{error}");
    }
}
